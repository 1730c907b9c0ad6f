r"""A model of :class:`~.gaussian.Gaussian` that learns one class after the other, without solving for all again.

With :math:`B = K_{OO} + \mathrm{diag}(1 / n) = L L^T`, a new class with covariances k to the observed ones and a mean
that lies r from its prediction changes their coefficients by :math:`-B^{-1} k\, a^T`, where
:math:`a = r / (K_{cc} + 1 / n_c - k^T B^{-1} k)`. Every prototype then moves along a: weights change by rank one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.methods.closed_form.gaussian import covariance_with, from_prior
from fedunseen.methods.closed_form.gaussian_process import Kernel, squared_distances


@dataclass(frozen=True, eq=False)
class Growing:
    """A model that grows.

    Attributes:
        params: what scores classes; ``dual_coefficients`` and ``variance`` are those of before.
        semantics: (C, a) float64.
        observed: (O,) ids of the classes with samples.
        factor: (O, O) L.
        cross: (C, O) covariances K.
        dual: (O, d) coefficients of the observed classes.
    """

    params: Params
    semantics: Tensor
    observed: Tensor
    factor: Tensor
    cross: Tensor
    dual: Tensor

    @staticmethod
    def of(params: Params, semantics: Tensor) -> "Growing":
        """Return the model of these classes, in O(C O + O^3)."""
        semantics, observed = semantics.double().cpu(), torch.nonzero(params["count"] > 0)[:, 0]
        cross = covariance_with(Kernel.of(params), semantics, params["described"], observed)
        a = cross[observed].clone()
        a.diagonal().add_(1 / params["count"][observed])
        dual = params["dual_coefficients"][observed]
        return Growing(params, semantics, observed, torch.linalg.cholesky(a), cross, dual)

    def add(self, semantics: Tensor | None, count: float, total: Tensor) -> "Growing":
        """Add a class by its description (a,), by ``count`` samples with the sum ``total`` (d,), or by both."""
        p, kernel, described = self.params, Kernel.of(self.params), float(semantics is not None)
        row = self.semantics.new_zeros(1, self.semantics.shape[1]) if semantics is None else semantics.double()[None]
        near = described * p["described"] * kernel(squared_distances(self.semantics, row))[:, 0]
        own, k = kernel.variance * (1 + kernel.nugget), near[self.observed]
        prior = from_prior(p, torch.zeros_like(total)[None], row, near.new_tensor([described]))[0]
        bias, apart, grown, (classes, shown) = p["bias"], prior + k @ self.dual, self, self.cross.shape
        weight = torch.empty(classes + 1, len(total), dtype=k.dtype)  # copied once: copies are what takes time here
        cross = torch.empty(classes + 1, shown + bool(count), dtype=k.dtype)
        cross[:-1, :shown], cross[-1, :shown] = self.cross, k
        if count:
            half = torch.linalg.solve_triangular(self.factor, k[:, None], upper=False)
            square = own + 1 / count - half.square().sum()
            effect = torch.linalg.solve_triangular(self.factor.T, half, upper=True)[:, 0]
            a = (total / count - p["centre"] - apart) / square
            step, moved = a @ p["precision"], near - self.cross @ effect
            bias = bias - moved * (p["weight"] @ a) - moved.square() * (a @ step) / 2
            torch.addr(p["weight"], moved, step, out=weight[:-1])
            apart = apart + (own - k @ effect) * a
            factor = torch.zeros(shown + 1, shown + 1, dtype=k.dtype)
            factor[:-1, :-1], factor[-1, :-1], factor[-1, -1] = self.factor, half[:, 0], square.sqrt()
            cross[:-1, -1], cross[-1, -1] = near, own
            observed = torch.cat([self.observed, self.observed.new_tensor([classes])])
            dual = torch.cat([self.dual - torch.outer(effect, a), a[None]])
            grown = Growing(p, self.semantics, observed, factor, cross, dual)
        else:
            weight[:-1] = p["weight"]
        weight[-1] = apart @ p["precision"]
        numbers = {"count": count, "described": described, "seen_mask": 0.0}
        params = p | {name: torch.cat([p[name], near.new_tensor([value])]) for name, value in numbers.items()}
        params |= {"weight": weight, "bias": torch.cat([bias, (weight[-1] @ apart)[None] / -2])}
        return Growing(params, torch.cat([self.semantics, row]), grown.observed, grown.factor, cross, grown.dual)
