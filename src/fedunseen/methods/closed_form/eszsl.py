"""ESZSL: "an embarrassingly simple approach to zero-shot learning" (Romera-Paredes and Torr 2015),
in closed form.

A yardstick that costs nothing, and the first sanity check of any features. All that it needs of
samples are sums, so that ten parties and one place give the same model.
"""

from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.methods.closed_form.base import ClosedForm, ClosedFormSettings, Discriminants
from fedunseen.methods.closed_form.statistics import solve_positive, unpacked


class ESZSL(ClosedForm, name="eszsl"):
    r"""Bilinear compatibility x V a with
    :math:`V = (X^TX + \gamma I)^{-1} X^T Y S\,(S^TS + \lambda I)^{-1}`.

    Y is 1 for a sample's class and -1 elsewhere, so that
    :math:`X^T Y S = \sum_c (2 S_c - \sum_k S_k) s_c^T`.
    """

    class Settings(ClosedFormSettings):
        """Settings of ESZSL: both regularizers as powers of ten, chosen on validation classes in
        the papers.
        """

        log_gamma: float = 3.0
        """Exponent of the regularizer on features; for `ridge` a power of ten, in units of the
        features' mean variance times the number of samples: so it means the same at any scale of
        features."""
        log_lambda: float = 0.0
        """Exponent of the regularizer on semantics."""

    shift_invariant = False  # V has no intercept
    scaling = ("centre", "l2")  # its regularizer is in the features' own units

    def solve(self, sums: Params) -> Params:
        """Return V (d, attributes)."""
        observed = sums["count"] > 0
        total = sums["total"][observed]
        s = self.semantics.double().cpu()[observed]
        left = unpacked(sums["square"], total.shape[1])
        right = s.T @ s
        left.diagonal().add_(10.0**self.settings.log_gamma)
        right.diagonal().add_(10.0**self.settings.log_lambda)
        v = solve_positive(left, (2 * total - total.sum(0)).T @ s)
        return {"v": solve_positive(right, v.T).T.float().contiguous()}

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Bilinear compatibility."""
        return self.backbone(params, inputs) @ params["v"] @ semantics.T

    def discriminants(
        self, params: Params, inputs: Tensor, semantics: Tensor, classes: Tensor
    ) -> Discriminants:
        """Return the scores as linear functions, without constants."""
        weight = semantics[classes] @ params["v"].T
        return Discriminants(
            weight, weight.new_zeros(weight.shape[1]), weight.new_zeros(len(weight))
        )

    def attribute_parts(
        self, params: Params, inputs: Tensor, semantics: Tensor, classes: Tensor
    ) -> Tensor:
        """Return the products (n, a) whose sum is the score."""
        return self.backbone(params, inputs) @ params["v"] * semantics[classes]
