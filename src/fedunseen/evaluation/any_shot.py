"""What examples of unseen classes add to their descriptions, and descriptions to examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen import metrics
from fedunseen.core.parameters import Params

if TYPE_CHECKING:
    from fedunseen.methods.closed_form.gaussian import Gaussian

DRAWS = 5


def curve(
    method: Gaussian,
    params: Params,
    features: Tensor,
    labels: NDArray[np.int64],
    shots: Sequence[int],
    rng: np.random.Generator,
) -> dict[str, NDArray[np.float64]]:
    """Measure the accuracy among unseen classes after some examples of each, which are left out of the test."""
    classes, counts = np.unique(labels, return_counts=True)
    shots = [k for k in shots if k < counts.min()] if len(classes) > 1 else []
    result = {f"curve_{kind}": np.full((len(shots), DRAWS), np.nan) for kind in ("both", "examples", "nearest")}
    total_classes, width = len(params["count"]), features.shape[1]
    ids = torch.from_numpy(classes)
    for draw in range(DRAWS):
        order = {int(c): rng.permutation(np.flatnonzero(labels == c)) for c in classes}
        for place, k in enumerate(shots):
            shown = np.concatenate([own[:k] for own in order.values()]).astype(np.int64)
            tested = np.setdiff1d(np.arange(len(labels)), shown)
            count = torch.zeros(total_classes, dtype=torch.float64)
            count[ids] = float(k)
            total = torch.zeros(total_classes, width, dtype=torch.float64)
            total.index_add_(0, torch.from_numpy(labels[shown]), features[torch.from_numpy(shown)])
            asked = features[torch.from_numpy(tested)]

            def accuracy(scores: Tensor, of: NDArray[np.int64] = labels[tested]) -> float:
                answers = classes[scores.argmax(1).numpy()]
                return float(np.nanmean(metrics.per_class(of, answers, classes)))

            model = method.extend(params, method.semantics, count, total) if k else params
            result["curve_both"][place, draw] = accuracy(_scores(model, asked, ids))
            if k:
                undescribed = np.isin(np.arange(total_classes), classes, invert=True)
                forgotten = params | {"described": params["described"].clone()}
                forgotten["described"][ids] = 0.0
                alone = method.extend(forgotten, method.semantics, count, total, undescribed)
                result["curve_examples"][place, draw] = accuracy(_scores(alone, asked, ids))
                result["curve_nearest"][place, draw] = accuracy(-torch.cdist(asked, total[ids] / k))
    return {"curve_shots": np.array(shots, dtype=np.float64), **result}


def _scores(model: Params, features: Tensor, ids: Tensor) -> Tensor:
    """Return (n, k) the scores of some classes."""
    return torch.addmm(model["bias"][ids], features - model["centre"], model["weight"][ids].T)
