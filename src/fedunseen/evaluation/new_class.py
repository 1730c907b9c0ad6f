"""What to expect of a class that is added by its description alone, before anything is answered.

A prototype is drawn from the model's posterior, and samples around it. Seen classes that are left
out in the same way say how much too easy draws are: the odds are corrected by those of real samples
of them, from when the run left them out. Single classes lie far from their mean, so that an
interval over draws of the prototype is returned too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.confidence.folds import class_folds
from fedunseen.encoders.backbone import Backbone
from fedunseen.methods.closed_form import gaussian_process as gp
from fedunseen.methods.closed_form.gaussian import Gaussian, covariance_with, discriminants_of
from fedunseen.methods.closed_form.statistics import few_threads
from fedunseen.model import Model

_PROTOTYPES = 50  # drawn of a class
_SAMPLES = 8  # drawn around each
_WIDEST = 4096  # features: a wider covariance takes too long to factorize
_INSIDE = 0.8  # of the draws
_POSSIBLE = 0.005  # share that is right at least and at most, where odds are needed
_SEED = 0


def can_expect(model: Model) -> bool:
    """Return whether samples of a class can be drawn: of vectors, from Gaussian classes."""
    method = model.method
    return (
        isinstance(method, Gaussian)
        and type(method.backbone) is Backbone
        and method.width <= _WIDEST
        and "slope" not in model.params
        and len(model.space.seen) > 1
    )


class Expected(NamedTuple):
    """What percentage of a class's samples gets its name.

    Attributes:
        right: in the mean.
        low, high: four of five classes lie between.
    """

    right: float
    low: float
    high: float


def expected_of(
    model: Model, semantics: NDArray[np.float64], left_out: float | None
) -> list[Expected]:
    """Return for each class what to expect of it, beside all of the model's own.

    Args:
        model: one for which :func:`can_expect` holds.
        semantics: (T, a) of the classes, before scaling.
        left_out: percent of real samples of seen classes that were right among all classes while
            the run left these out; None where it was not measured.
    """
    with torch.no_grad(), few_threads(model.method.width):
        draws = _Draws.of(model)
        ratio = 1.0
        if left_out is not None:
            ratio = _odds(left_out / 100) / _odds(draws.right_of_left_out())
        described = torch.from_numpy(model.semantics_scaler(semantics)).double()
        return [_corrected(draws.right_of(row[None]), ratio) for row in described]


def _odds(share: float) -> float:
    share = min(1 - _POSSIBLE, max(_POSSIBLE, share))
    return share / (1 - share)


def _corrected(right: NDArray[np.float64], ratio: float) -> Expected:
    """Return what to expect from how many samples are right of each drawn prototype (p,): so few
    show no certainty. The odds are corrected.
    """

    def corrected(more: float) -> NDArray[np.float64]:
        share = (right + more) / (_SAMPLES + 1)
        return 100 * ratio * share / (1 - share + ratio * share)

    outside = (1 - _INSIDE) / 2
    low = float(np.quantile(corrected(0.0), outside))
    high = float(np.quantile(corrected(1.0), 1 - outside))
    return Expected(float(corrected(0.5).mean()), low, high)


@dataclass(frozen=True, eq=False)
class _Draws:
    """A model, and standard draws that all classes share.

    Attributes:
        model: the model.
        weight, bias: (C, d), (C,) of its classes, calibrated.
        observed: (O,) the classes with samples; not unseen ones that got theirs after training.
        means: (C, d) of their samples, less the center.
        covariance: (C, O) of prototypes with those of observed classes.
        moved: (p, d) draws with the covariance within classes: of prototypes.
        around: (n, d) the same, of samples.
    """

    model: Model
    weight: Tensor
    bias: Tensor
    observed: Tensor
    means: Tensor
    covariance: Tensor
    moved: Tensor
    around: Tensor

    @staticmethod
    def of(model: Model) -> _Draws:
        method = model.method
        assert isinstance(method, Gaussian)
        params = model.params
        semantics = method.semantics.double().cpu()
        described = params["described"]
        seen = torch.from_numpy(model.seen_mask).double()
        # an unseen class with samples competes as by its description: the odds that correct draws
        # were measured so, and a new class that alone is far from samples wins all its draws
        by_description = (seen == 0) & (described > 0)
        has_samples = params["count"] > 0
        observed = torch.nonzero(has_samples & ~by_description)[:, 0]
        covariance = covariance_with(gp.Kernel.of(params), semantics, described, observed)
        lower = torch.linalg.cholesky(params["precision"])
        rng = torch.Generator().manual_seed(_SEED)
        count = _PROTOTYPES * (1 + _SAMPLES)
        noise = torch.randn(len(lower), count, generator=rng, dtype=torch.float64)
        drawn = torch.linalg.solve_triangular(lower.T, noise, upper=True).T
        draws = _Draws(
            model,
            params["weight"].clone(),
            params["bias"] - model.calibration.offset * seen,
            observed,
            method.class_means(params),
            covariance,
            *drawn.split([_PROTOTYPES, count - _PROTOTYPES]),
        )
        if bool((has_samples & by_description).any()):
            apart, _ = draws.predicted(covariance[by_description], observed)
            draws.weight[by_description], draws.bias[by_description] = discriminants_of(
                apart, params["precision"], params.get("length")
            )
        return draws

    def predicted(self, cross: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return prototypes (T, d) less the center, and by how much (T,) these draws lower their
        variance, from covariances (T, O) with observed classes.
        """
        columns = torch.isin(self.observed, observed)
        inner = self.covariance[observed][:, columns]
        inner = inner + torch.diag(1 / self.model.params["count"][observed])
        weights = torch.linalg.solve(inner, cross[:, columns].T).T
        return weights @ self.means[observed], (weights * cross[:, columns]).sum(1)

    def right_of_left_out(self) -> float:
        """Return the share of draws of seen classes that are right while these are left out."""
        candidates = np.intersect1d(self.model.space.seen, self.observed.numpy())
        ids = torch.from_numpy(candidates)
        right = []
        for left in class_folds(candidates, max(1, len(self.model.space.unseen)), _SEED):
            out = torch.from_numpy(left)
            kept = self.observed[~torch.isin(self.observed, out)]
            apart, less = self.predicted(self.covariance[out], kept)
            weight = self.weight.clone()
            bias = self.bias.clone()
            weight[out], bias[out] = discriminants_of(
                apart, self.model.params["precision"], self.model.params.get("length")
            )
            for row, c, lessened in zip(apart, left.tolist(), less.tolist(), strict=True):
                scores = self.drawn(row, lessened) @ weight[ids].T + bias[ids]
                right.append((ids[scores.argmax(1)] == c).double().mean())
        return float(torch.stack(right).mean()) if right else 0.0

    def drawn(self, apart: Tensor, less: float) -> Tensor:
        """Return samples around draws of a prototype that is predicted at ``apart`` (d,)."""
        kernel = gp.Kernel.of(self.model.params)
        variance = max(0.0, kernel.variance * (1 + kernel.nugget) - less)
        prototypes = apart + variance**0.5 * self.moved
        samples: Tensor = prototypes.repeat_interleave(_SAMPLES, 0) + self.around
        return samples

    def right_of(self, described: Tensor) -> NDArray[np.float64]:
        """Return how many of its samples are right for each drawn prototype (p,) of a class with
        scaled semantics (1, a).
        """
        params = self.model.params
        kernel = gp.Kernel.of(params)
        known = self.model.method.semantics.double().cpu()[self.observed]
        cross = kernel(gp.squared_distances(described, known)) * params["described"][self.observed]
        apart, less = self.predicted(cross, self.observed)
        weight, bias = discriminants_of(apart, params["precision"], params.get("length"))
        scores = self.drawn(apart[0], float(less[0])) @ torch.cat([self.weight, weight]).T
        scores += torch.cat([self.bias, bias])
        right = (scores.argmax(1) == len(self.weight)).double().view(-1, _SAMPLES).sum(1)
        return np.asarray(right.numpy())
