"""What to expect of unseen classes, from sums alone: some seen classes are left out and recognized.

Samples of them are drawn from the class's mean and the covariance within classes, to test the model
or as examples.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.core.random import stream
from fedunseen.encoders.backbone import Backbone
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.closed_form.gaussian_process import MANY, spread_over
from fedunseen.methods.closed_form.statistics import dequantized, few_threads, scatter, unpacked

SHOTS = 5  # examples of each class whose gain is predicted
DRAWS = 20  # samples of each class left out
_LEAST = 5  # classes with samples
_WIDEST = 4096  # features: a wider model takes too long to solve a few times more
_REPEATS = ((256, 40), (1024, 10), (_WIDEST, 4))  # of features up to a width


def estimable(method: ClosedForm, sums: Params) -> bool:
    """Return whether accuracies can be estimated from sums: vectors, enough classes, no noise, and
    not too wide.
    """
    vectors = type(method.backbone) is Backbone  # what is drawn has no cells to average over
    return (
        "square" in sums  # an adapted model has none
        and vectors
        and method.release is None
        and method.width <= _WIDEST
        and int((sums["count"] > 0).sum()) >= _LEAST
    )


def left_out_accuracy(
    tested: Sequence[tuple[ClosedForm, Params, int]], sums: Params
) -> NDArray[np.float64]:
    """Return the accuracy among classes left out, in percent, (methods, repeats): all are tested on
    the same draws.

    ``tested``: methods, their models, and how many examples of each class left out they see: none,
    or one number.
    """
    count = sums["count"]
    total = sums["total"]
    observed = torch.nonzero(count > 0)[:, 0].numpy()
    means = total / count.clamp(min=1.0)[:, None]
    width = total.shape[1]
    sums = {**sums, "square": unpacked(sums["square"], width)}
    spread = scatter(sums)
    within = spread / max(1.0, float(count.sum()) - len(observed))
    # above rounding, which alone is left where the samples of a class are alike
    level = max(1e-6 * float(within.diagonal().mean()), 1e-9 * float(means.square().mean()), 1e-300)
    within.diagonal().add_(level)
    factor = torch.linalg.cholesky(within).float()
    wanted = max(2, min(len(tested[0][0].space.unseen), len(observed) // 2))
    true_places = torch.arange(wanted).repeat_interleave(DRAWS)
    most = max(shots for *_, shots in tested)
    right = []
    for repeat in range(next(n for widest, n in _REPEATS if width <= widest)):
        rng = stream(0, "classes left out of the sums", repeat)
        out = torch.from_numpy(np.sort(rng.choice(observed, wanted, replace=False)))
        noise = (
            torch.from_numpy(rng.standard_normal((wanted * (DRAWS + most), width))).float()
            @ factor.T
        )
        tests, examples = noise.split([wanted * DRAWS, wanted * most])
        kept, square = without_classes(sums, out, spread)
        shown = {0: {**sums, "count": kept, "total": means * kept[:, None], "square": square}}
        if most:
            ids = out.repeat_interleave(most)
            examples = examples + means[ids]
            shown[most] = {
                **sums,
                "count": kept.index_fill(0, out, float(most)),
                "total": shown[0]["total"].index_add(0, ids, examples),
                "square": square + examples.T @ examples,
            }
        inputs = (tests + means[out][true_places]).float()
        with torch.no_grad():
            scores = [
                method.left_out_scores(model, shown[shots], inputs, out)
                for method, model, shots in tested
            ]
        right.append(
            [
                100 * float((class_scores.argmax(1) == true_places).double().mean())
                for class_scores in scores
            ]
        )
    return np.array(right).T


def without_classes(sums: Params, out: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Return counts (C,) and second moments (d, d) without some classes, whose covariance is taken
    to be that of all.

    Args:
        sums: counts, totals, and second moments (d, d).
        out: (T,) the classes.
        spread: (d, d) the scatter within classes, of all samples.
    """
    count = sums["count"]
    total = sums["total"]
    kept = count.clone()
    kept[out] = 0.0
    square = torch.add(sums["square"], spread, alpha=float(kept.sum() / count.sum()) - 1)
    means = total[out] / count[out].clamp(min=1.0)[:, None]
    return kept, square.addmm_(total[out].T, means, alpha=-1.0)


def _of_a_spread(sums: Params) -> Params:
    """Return statistics of some of very many classes, with the covariance of all: models without
    some classes take the number of the others cubed.
    """
    observed = torch.nonzero(sums["count"] > 0)[:, 0]
    some = observed[spread_over(len(observed))]
    count = torch.zeros_like(sums["count"])
    total = torch.zeros_like(sums["total"])
    count[some] = sums["count"][some]
    total[some] = sums["total"][some]
    square = scatter(sums) * float(count.sum() / sums["count"].sum())
    square.addmm_((total[some] / count[some][:, None]).T, total[some])
    return {**sums, "count": count, "total": total, "square": square}


def lead_over(theirs: NDArray[np.float64], ours: NDArray[np.float64]) -> dict[str, float]:
    """Return a rival's ``accuracy`` on classes left out, its ``lead``, and half its interval
    (``ci95``).
    """
    lead = theirs - ours
    half = 1.96 * float(lead.std(ddof=1)) / len(lead) ** 0.5
    return {"accuracy": float(theirs.mean()), "lead": float(lead.mean()), "ci95": half}


def estimates(
    method: ClosedForm, sums: Params, model: Params, examples: bool = True
) -> dict[str, Any]:
    """Return ``left_out_accuracy`` by the number of examples, and ``left_out_rivals``: other closed
    forms.
    """
    from fedunseen.methods.closed_form.gaussian import Gaussian
    from fedunseen.methods.closed_form.ridge import Ridge

    if not estimable(method, sums):
        return {}
    sums = {**sums, **dequantized(sums, method.quantization, method.worth)}
    if int((sums["count"] > 0).sum()) > MANY:
        sums = _of_a_spread(sums)
    quick = method.quick(model)
    tested = [(quick, model, 0)]
    about = method.space, method.semantics, method.backbone
    if not isinstance(quick, Gaussian):
        rival = Gaussian(Gaussian.Settings.model_validate({}), *about)
        solved = rival.solve(sums)
        tested.append((rival.quick(solved), solved, 0))
    if not isinstance(quick, Ridge):
        tested.append((Ridge(Ridge.Settings.model_validate({}), *about), {}, 0))
    shown = [(quick, model, SHOTS)] if examples and isinstance(quick, Gaussian) else []
    with few_threads(method.width):
        ours, *theirs = left_out_accuracy([*tested, *shown], sums)
    accuracy = {"0": float(ours.mean())}
    if shown:
        accuracy[str(SHOTS)] = float(theirs.pop().mean())
    rivals = {
        other_method.settings.name: lead_over(row, ours)
        for (other_method, *_), row in zip(tested[1:], theirs, strict=True)
    }
    return {"left_out_accuracy": accuracy, "left_out_rivals": rivals}
