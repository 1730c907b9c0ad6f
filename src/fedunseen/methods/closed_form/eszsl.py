"""ESZSL: "an embarrassingly simple approach to zero-shot learning" (Romera-Paredes and Torr 2015), in closed form.

A yardstick that costs nothing, and the first sanity check of any features. All that it needs of samples are sums, so
that ten parties and one place give the same model.
"""

from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.methods.closed_form.base import ClosedForm, ClosedFormSettings
from fedunseen.methods.closed_form.statistics import solve_positive, unpacked


class ESZSL(ClosedForm, name="eszsl"):
    r"""Bilinear compatibility x V a with :math:`V = (X^TX + \gamma I)^{-1} X^T Y S\,(S^TS + \lambda I)^{-1}`.

    Y is 1 for a sample's class and -1 elsewhere, so that :math:`X^T Y S = \sum_c (2 S_c - \sum_k S_k) s_c^T`.
    """

    class Settings(ClosedFormSettings):
        """Settings of ESZSL: both regularizers as powers of ten, chosen on validation classes in the papers."""

        log_gamma: float = 3.0
        """Exponent of the regularizer on features."""
        log_lambda: float = 0.0
        """Exponent of the regularizer on semantics."""

    shift_invariant = False  # V has no intercept
    scaling = ("centre", "l2")  # its regularizer is in the features' own units

    def solve(self, sums: Params) -> Params:
        """Return V (d, attributes)."""
        there = sums["count"] > 0
        total, s = sums["total"][there], self.semantics.double().cpu()[there]
        left, right = unpacked(sums["square"], total.shape[1]), s.T @ s
        left.diagonal().add_(10.0**self.settings.log_gamma)
        right.diagonal().add_(10.0**self.settings.log_lambda)
        v = solve_positive(left, (2 * total - total.sum(0)).T @ s)
        return {"v": solve_positive(right, v.T).T.float().contiguous()}

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Bilinear compatibility."""
        return self.backbone(params, inputs) @ params["v"] @ semantics.T
