"""A model's zero-shot answers, batch of samples by batch; :mod:`fedunseen.metrics` says how good they are."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.data import ClassSpace
from fedunseen.metrics import Answers, answers_of


def answer(
    scores: Iterable[Tensor],
    labels: NDArray[np.int64],
    space: ClassSpace,
    unseen_scores: Iterable[Tensor] | None = None,
) -> Answers:
    """Turn a model's scores of test samples, of seen and of unseen classes, into answers."""
    parts, done = [], 0
    for batch in scores:
        own = labels[done : done + len(batch)]
        parts.append(answers_of(batch.float().cpu().numpy(), own, space.seen, space.unseen))
        done += len(batch)
    best_seen, best_unseen, gap, unseen = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("best_seen", "best_unseen", "gap", "unseen")
    )
    zsl = best_unseen
    if unseen_scores is not None:
        best = [space.unseen[batch.float().cpu().numpy()[:, space.unseen].argmax(1)] for batch in unseen_scores]
        zsl = np.concatenate(best)
    return Answers(labels, best_seen, best_unseen, gap, unseen, zsl)
