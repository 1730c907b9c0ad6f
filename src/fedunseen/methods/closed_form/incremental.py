r"""A model of :class:`~.gaussian.Gaussian` that learns one class after the other, without solving
for all again.

With :math:`B = K_{OO} + \mathrm{diag}(1 / n) = L L^T`, a new class with covariances k to the
observed ones and a mean that lies r from its prediction changes their coefficients by
:math:`-B^{-1} k\, a^T`, where :math:`a = r / (K_{cc} + 1 / n_c - k^T B^{-1} k)`. Every prototype
then moves along a: weights change by rank one. Lengths are changed afterwards, class by class.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.methods.closed_form.gaussian import covariance_with, discriminants_of, from_prior
from fedunseen.methods.closed_form.gaussian_process import Kernel, squared_distances, stretch
from fedunseen.methods.closed_form.shown import Correction, worth


@dataclass(frozen=True, eq=False)
class IncrementalModel:
    """A model that takes one class after the other.

    Attributes:
        params: what scores classes; ``dual_coefficients`` are those of before.
        semantics: (C, a) float64.
        observed: (O,) ids of the classes with samples.
        factor: (O, O) L.
        cross: (C, O) covariances K.
        dual: (O, d) coefficients of the observed classes.
        weight: (C, d) of prototypes of their own lengths.
        bias: (C,) of these, without any offset.
        correction: by how much scores of shown classes are raised.
    """

    params: Params
    semantics: Tensor
    observed: Tensor
    factor: Tensor
    cross: Tensor
    dual: Tensor
    weight: Tensor
    bias: Tensor
    correction: Correction

    @staticmethod
    def of(params: Params, semantics: Tensor, offset: float = 0.0) -> "IncrementalModel":
        """Return the model of these classes, in O(C O + O^3 + d^3).

        ``offset``: what the scores of seen classes are lowered by.
        """
        semantics = semantics.double().cpu()
        observed = torch.nonzero(params["count"] > 0)[:, 0]
        cross = covariance_with(Kernel.of(params), semantics, params["described"], observed)
        a = cross[observed].clone()
        a.diagonal().add_(1 / params["count"][observed])
        dual = params["dual_coefficients"][observed]
        factor = torch.linalg.cholesky(a)
        params = {"raised": torch.zeros_like(params["count"]), **params}
        weight = params["weight"]
        bias = params["bias"] - _raised(params)
        if "length" in params:  # a prior mean of its own goes with own lengths
            weight, bias = discriminants_of(cross @ dual, params["precision"])
        correction = Correction.of(params, semantics, offset)
        return IncrementalModel(
            params, semantics, observed, factor, cross, dual, weight, bias, correction
        )

    def add(self, semantics: Tensor | None, count: float, total: Tensor) -> "IncrementalModel":
        """Add a class by description (a,), ``count`` examples with the sum ``total`` (d,), or both."""
        p = self.params
        count *= worth(p)
        total = worth(p) * total
        kernel = Kernel.of(p)
        described = float(semantics is not None)
        row = (
            self.semantics.new_zeros(1, self.semantics.shape[1])
            if semantics is None
            else semantics.double()[None]
        )
        near = described * p["described"] * kernel(squared_distances(self.semantics, row))[:, 0]
        variance = kernel.variance * (1 + kernel.nugget)
        k = near[self.observed]
        prior = from_prior(p, torch.zeros_like(total)[None], row, near.new_tensor([described]))[0]
        bias = self.bias
        apart = prior + k @ self.dual
        changed = self
        classes, shown = self.cross.shape
        # copied once: copies are what takes time here
        weight = torch.empty(classes + 1, len(total), dtype=k.dtype)
        cross = torch.empty(classes + 1, shown + bool(count), dtype=k.dtype)
        cross[:-1, :shown] = self.cross
        cross[-1, :shown] = k
        variances = p["variance"]
        new_variance = variance
        if count:
            half = torch.linalg.solve_triangular(self.factor, k[:, None], upper=False)
            new_variance = variance - half.square().sum()  # before the samples count
            square = new_variance + 1 / count
            effect = torch.linalg.solve_triangular(self.factor.T, half, upper=True)[:, 0]
            a = (total / count - p["centre"] - apart) / square
            step = a @ p["precision"]
            moved = near - self.cross @ effect
            bias = bias - moved * (self.weight @ a) - moved.square() * (a @ step) / 2
            variances = variances - moved.square() / square
            new_variance = new_variance / (count * square)
            torch.addr(self.weight, moved, step, out=weight[:-1])
            apart = apart + (variance - k @ effect) * a
            factor = _with_row(self.factor, half[:, 0], square)
            cross[:-1, -1] = near
            cross[-1, -1] = variance
            observed = torch.cat([self.observed, self.observed.new_tensor([classes])])
            dual = torch.cat([self.dual - torch.outer(effect, a), a[None]])
            changed = replace(self, observed=observed, factor=factor, dual=dual)
        else:
            weight[:-1] = self.weight
        weight[-1] = apart @ p["precision"]
        bias = torch.cat([bias, (weight[-1] @ apart)[None] / -2])
        params = _appended(p, count=count, described=described, seen_mask=0.0, raised=0.0)
        params["variance"] = torch.cat([variances, variances.new_tensor([float(new_variance)])])
        params |= _scored(params, weight, bias)
        if count:
            now = torch.arange(len(params["count"])) == classes
            params = self.correction.applied(params, now)
        semantics = torch.cat([self.semantics, row])
        return replace(
            changed, params=params, semantics=semantics, cross=cross, weight=weight, bias=bias
        )


def _scored(params: Params, weight: Tensor, bias: Tensor) -> Params:
    """Return what scores classes, from prototypes of their own lengths."""
    if "length" in params:
        times = stretch(-2 * bias, params["length"])
        weight = times[:, None] * weight
        bias = times.square() * bias
    return {"weight": weight, "bias": bias + _raised(params)}


def _raised(params: Params) -> Tensor:
    """Return (C,) what biases have beside prototypes."""
    raised: Tensor = params["raised"] - params["offset"] * params["seen_mask"]
    return raised


def _with_row(factor: Tensor, half: Tensor, square: Tensor) -> Tensor:
    """Return the Cholesky factor (O + 1, O + 1) of a matrix that has one row more."""
    shown = len(half)
    larger = factor.new_zeros(shown + 1, shown + 1)
    larger[:-1, :-1] = factor
    larger[-1, :-1] = half
    larger[-1, -1] = square.sqrt()
    return larger


def _appended(params: Params, **numbers: float) -> Params:
    """Return parameters whose tensors (C,) have one more number."""
    added = {
        name: torch.cat([params[name], params[name].new_tensor([value])])
        for name, value in numbers.items()
    }
    return params | added
