"""Answers about samples that are drawn from merged sums, where no real one can be held out.

The Gaussian is a good classifier and a bad density: what follows is too sure. It costs no message.
"""

import numpy as np
import torch

from fedunseen.confidence.folds import LEAST, answered, class_folds
from fedunseen.confidence.held_out import HeldOut
from fedunseen.core.parameters import Params
from fedunseen.core.random import stream
from fedunseen.encoders.backbone import Backbone
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.closed_form.statistics import dequantized, few_threads, scatter, unpacked

DRAWS = 50  # of each class
_WIDEST = 4096  # features: a wider covariance takes too long to factorize
_LEVEL = 1e-6  # of the mean variance, added to each


def can_leave_out(method: ClosedForm, sums: Params) -> bool:
    """Return whether models without some classes follow from sums: of vectors, with enough seen
    classes.
    """
    few = len(method.space.seen) < LEAST and len(method.space.unseen)
    counted = sums["count"] > 0
    enough = float(sums["count"].sum()) >= 2 * int(counted.sum()) > 0
    return bool(not few and enough and type(method.backbone) is Backbone)


def drawn_folds(method: ClosedForm, model: Params, sums: Params, seed: int) -> list[HeldOut]:
    """Return what models without some classes say of samples that are drawn; none where no model
    follows.

    Args:
        method: with its settings and classes.
        model: the final one, whose kernel and shrinkage the folds take.
        sums: merged, noisy ones too.
        seed: draws the samples and the folds.
    """
    if not can_leave_out(method, sums) or method.width > _WIDEST:
        return []
    if method.release is not None:
        sums = method.release.cleaned(sums, method.space.seen)
    sums = {**sums, **dequantized(sums, method.quantization)} if method.release is None else sums
    sums = {**sums, "square": unpacked(sums["square"], method.width)}
    quick = method.quick(model)
    candidates = np.flatnonzero(sums["count"].numpy() > 0)
    count = sums["count"][torch.from_numpy(candidates)]
    means = sums["total"][torch.from_numpy(candidates)] / count[:, None]
    spread = scatter(sums)
    within = spread / max(1.0, float(count.sum()) - len(count))
    within.diagonal().add_(_LEVEL * float(within.diagonal().mean()))
    noise = stream(seed, "samples drawn for confidence").standard_normal(
        (len(candidates) * DRAWS, method.width)
    )
    labels = np.repeat(candidates, DRAWS)
    places = torch.from_numpy(np.repeat(np.arange(len(candidates)), DRAWS))
    try:
        with torch.no_grad(), few_threads(method.width):
            drawn = torch.from_numpy(noise) @ torch.linalg.cholesky(within).T
            wider = (1 + 1 / count[places]).sqrt()[:, None]  # a mean is uncertain too
            samples = (means[places] + drawn * wider).float()
            folds = [
                answered(quick, sums, samples, labels, candidates, out)
                for out in class_folds(candidates, len(method.space.unseen), seed)
            ]
    # samples are all but alike
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return []
    # distances of drawn samples are those of a Gaussian, which no real ones have
    return [HeldOut(fold.scores, fold.labels, fold.unseen) for fold in folds]
