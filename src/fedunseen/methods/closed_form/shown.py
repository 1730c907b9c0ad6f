r"""Scores of classes that are shown by examples after training.

A prototype that is off by e scores the samples of its class lower by :math:`e^T \Sigma^{-1} e / 2`.
A calibration offset o makes up for that of classes without examples. With n examples a share w of
the prototype is their mean, and the rest is predicted as before:

.. math:: (o + T \kappa / 2)\,(1 - w)^2 + T w^2 / 2 n - T \kappa / 2

is what a class lacks beside the seen ones. T is how far a new sample lies from the mean of its
class, squared, under Sigma, and T kappa that of a seen class's prototype. Without examples this is
o. Unbiased linear discriminants have the same term (Moran and Murphy, 1979).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.methods.closed_form.gaussian_process import Kernel, posterior, stored_factor

NOISE = 0.3
"""How far the mean of a class's examples lies from its prototype, as a share of what Sigma says.

The evidence weighs all directions of features alike; what tells classes lies in few of them, and
there a prototype differs from its prediction by more. Of the shares 1, 0.5, 0.3, 0.2, 0.1, 0.05,
0.02 and 0.005, this one is best for *seen* classes that are left out and shown (CIFAR-100, AWA1).
"""
_HALF = 0.5
_LEAST_LEFT = 1e-3  # of a sample's influence on its own distance


@dataclass(frozen=True)
class Correction:
    """By how much scores of shown classes are raised.

    Attributes:
        distance: T, at least 0.
        noise: kappa, the mean over seen classes.
        offset: o, in units of scores.
    """

    distance: float
    noise: float
    offset: float

    @staticmethod
    def of(params: Params, semantics: Tensor, offset: float) -> "Correction":
        """Return the correction beside the seen classes of a Gaussian model; d^3 multiplications.

        Args:
            params: the model.
            semantics: (C, a) of its classes, as the method takes them.
            offset: what the scores of seen classes are lowered by, beside the model's own offset.
        """
        seen = torch.nonzero(params["seen_mask"] > 0)[:, 0]
        count = params["count"][seen]
        offset += float(params["offset"])
        if not bool((count > 0).any()):
            return Correction(0.0, 0.0, offset)
        # by seen classes alone, so that it does not depend on what is shown before
        kernel = Kernel.of(params).within(semantics.double().cpu()[seen])
        variance = posterior(kernel, kernel, kernel.diagonal(), count).variance
        noise = float((count * variance.square()).mean())
        freedom = max(1.0, float(count.sum()) - len(count))
        return Correction(_distance(params, freedom), noise, offset)

    def raised(self, count: Tensor, variance: Tensor) -> Tensor:
        """Return by how much scores are raised, (C,), beside those of classes without examples.

        Args:
            count: (C,) what each class's examples count as (:func:`counted_as`).
            variance: (C,) of each prototype, in units of Sigma.
        """
        share = count * variance
        predicted = self.offset + self.distance * self.noise / 2
        # share / n, where ``count`` is n / NOISE
        noise = self.distance / 2 * share * variance / NOISE
        return predicted * ((1 - share).square() - 1) + noise

    def applied(self, params: Params, now: Tensor) -> Params:
        """Return the model with the classes ``now`` (C,), and those of before, raised.

        ``raised`` (C,) is part of the model's ``bias``.
        """
        before = params["raised"]
        mask = (now | (before != 0)) & (params["seen_mask"] == 0)
        raised = torch.where(mask, self.raised(params["count"], params["variance"]), 0.0)
        return {**params, "raised": raised, "bias": params["bias"] + (raised - before)}


def worth(params: Params) -> float:
    """Return how many training samples an example of an unseen class counts as: see :data:`NOISE`.

    Without seen classes there is nothing to compare with, and it is one.
    """
    return 1 / NOISE if bool((params["seen_mask"] > 0).any()) else 1.0


def counted_as(params: Params, count: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Return what numbers (C,) and sums (..., C, d) of examples count as beside training samples;
    those of seen classes are more of these.
    """
    seen = torch.zeros(len(count), dtype=torch.bool)
    seen[: len(params["seen_mask"])] = params["seen_mask"] > 0
    times = torch.ones_like(count).masked_fill(~seen, worth(params))
    return count * times, total * times[:, None]


def mostly_shown(params: Params) -> Tensor:
    """Return (C,) which classes have prototypes that examples shown since training make up to at
    least a half.
    """
    raised = params.get("raised", torch.zeros(len(params.get("count", ()))))
    if not bool((raised != 0).any()):
        return raised != 0
    return (raised != 0) & (params["count"] * params["variance"] >= _HALF)


def _distance(params: Params, freedom: float) -> float:
    """Return the mean squared distance under Sigma of a sample that Sigma was not computed from.

    The mean over those that it was computed from is tr(Sigma^-1 Sigma_0). Without the sample, of
    leverage h, it is 1 / (1 - h) as large.
    """
    precision = params["precision"]
    width = len(precision)
    shrinkage = float(params["kernel"][3])
    within = float(width)
    if shrinkage < 1:
        covariance = torch.cholesky_inverse(stored_factor(precision))
        level = float(covariance.trace()) / width
        within = (width - shrinkage * level * float(precision.trace())) / (1 - shrinkage)
    remaining_share = 1 - (1 - shrinkage) * within / freedom
    return max(0.0, within) / max(remaining_share, _LEAST_LEFT)
