"""What to expect of a class that is added by its description alone, before anything is answered.

A prototype is drawn from the model's posterior, and samples around it. The spread of samples is the
one at which seen classes, left out in the same way, are recognized as often as real samples of them
were when the run left them out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.confidence.folds import class_folds
from fedunseen.encoders.backbone import Backbone
from fedunseen.methods.closed_form import gaussian_process as gp
from fedunseen.methods.closed_form.gaussian import Gaussian, covariance_with
from fedunseen.methods.closed_form.statistics import few_threads
from fedunseen.model import Model

_PROTOTYPES = 50  # drawn of a class
_SAMPLES = 8  # drawn around each
_WIDEST = 4096  # features: a wider covariance takes too long to factorize
_SPREADS = 2.0 ** np.arange(0, 6.1, 0.25)  # times the covariance within classes
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


def expected_of(
    model: Model, semantics: NDArray[np.float64], left_out: float | None
) -> list[float]:
    """Return for each class what percentage of its samples gets its name, beside all of the
    model's own.

    Args:
        model: one for which :func:`can_expect` holds.
        semantics: (T, a) of the classes, before scaling.
        left_out: percent of real samples of seen classes that were right among all classes while
            the run left these out; None where it was not measured.
    """
    with torch.no_grad(), few_threads(model.method.width):
        draws = _Draws.of(model)
        spread = 1.0 if left_out is None else draws.matching_spread(left_out / 100)
        described = torch.from_numpy(model.semantics_scaler(semantics)).double()
        return [draws.expected(row[None], spread) for row in described]


@dataclass(frozen=True, eq=False)
class _Draws:
    """A model, and standard draws that all classes share.

    Attributes:
        model: the model.
        weight, bias: (C, d), (C,) of its classes, calibrated.
        observed: (O,) the classes with samples.
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
        observed = torch.nonzero(params["count"] > 0)[:, 0]
        described = params["described"]
        covariance = covariance_with(gp.Kernel.of(params), semantics, described, observed)
        lower = torch.linalg.cholesky(params["precision"])
        rng = torch.Generator().manual_seed(_SEED)
        count = _PROTOTYPES * (1 + _SAMPLES)
        noise = torch.randn(len(lower), count, generator=rng, dtype=torch.float64)
        drawn = torch.linalg.solve_triangular(lower.T, noise, upper=True).T
        seen = torch.from_numpy(model.seen_mask).double()
        return _Draws(
            model,
            params["weight"],
            params["bias"] - model.calibration.offset * seen,
            observed,
            method.class_means(params),
            covariance,
            *drawn.split([_PROTOTYPES, count - _PROTOTYPES]),
        )

    def predicted(self, cross: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return prototypes (T, d) less the center, and by how much (T,) these draws lower their
        variance, from covariances (T, O) with observed classes.
        """
        columns = torch.isin(self.observed, observed)
        inner = self.covariance[observed][:, columns]
        inner = inner + torch.diag(1 / self.model.params["count"][observed])
        weights = torch.linalg.solve(inner, cross[:, columns].T).T
        return weights @ self.means[observed], (weights * cross[:, columns]).sum(1)

    def matching_spread(self, share: float) -> float:
        """Return the spread at which seen classes that are left out get this share right."""
        params = self.model.params
        candidates = np.intersect1d(self.model.space.seen, self.observed.numpy())
        unseen = max(1, len(self.model.space.unseen))
        around = self.around[:: max(1, _PROTOTYPES // _SAMPLES)]
        right = np.zeros(len(_SPREADS))
        folds = class_folds(candidates, unseen, _SEED)
        for left in folds:
            out = torch.from_numpy(left)
            kept = self.observed[~torch.isin(self.observed, out)]
            apart, _ = self.predicted(self.covariance[out], kept)
            weight = self.weight.clone()
            bias = self.bias.clone()
            weight[out] = apart @ params["precision"]
            bias[out] = (weight[out] * apart).sum(1) / -2
            ids = torch.from_numpy(candidates)
            moved = around @ weight[ids].T
            at_means = self.means[out] @ weight[ids].T + bias[ids]
            place = torch.searchsorted(ids, out)
            for k, spread in enumerate(_SPREADS):
                answers = (at_means[:, None] + spread**0.5 * moved).argmax(2)
                right[k] += float((answers == place[:, None]).double().mean()) / len(folds)
        return float(_SPREADS[int(np.abs(right - share).argmin())])

    def expected(self, described: Tensor, spread: float) -> float:
        """Return the percentage for one class with scaled semantics (1, a)."""
        params = self.model.params
        method = self.model.method
        kernel = gp.Kernel.of(params)
        known = method.semantics.double().cpu()[self.observed]
        cross = kernel(gp.squared_distances(described, known)) * params["described"][self.observed]
        apart, less = self.predicted(cross, self.observed)
        variance = max(0.0, kernel.variance * (1 + kernel.nugget) - float(less[0]))
        prototypes = (apart + variance**0.5 * self.moved).repeat_interleave(_SAMPLES, 0)
        samples = prototypes + spread**0.5 * self.around
        own = (apart @ params["precision"])[0]
        scores = samples @ torch.cat([self.weight, own[None]]).T
        scores += torch.cat([self.bias, (own @ apart[0])[None] / -2])
        return 100 * float((scores.argmax(1) == len(self.weight)).double().mean())
