r"""Ridge regression from features to semantics; the class whose description points the same way wins.

.. math:: V = (X^T X + \gamma I)^{-1} \sum_c S_c s_c^T ,

X and s centered on their means over all samples, which are sums too (direct attribute prediction, in closed form).
"""

import torch
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.methods.closed_form.base import ClosedForm, ClosedFormSettings
from fedunseen.methods.closed_form.statistics import solve_positive, unpacked


class Ridge(ClosedForm, name="ridge"):
    """Regression of a class's attributes on a sample's features, compared with descriptions by cosine."""

    class Settings(ClosedFormSettings):
        """Settings of ridge regression to semantics."""

        log_gamma: float = -1.0
        """Exponent of the regularizer, as a power of ten, in units of the features' mean variance times the number of
        samples: so it means the same at any scale of features."""

    def solve(self, sums: Params) -> Params:
        """Return V (d, attributes) and the means of features and attributes."""
        count, total = sums["count"], sums["total"]
        samples, s = count.sum().clamp(min=1.0), self.semantics.double().cpu()
        centre, middle = total.sum(0) / samples, count @ s / samples
        left = unpacked(sums["square"], total.shape[1]) - samples * torch.outer(centre, centre)
        level = left.diagonal().mean().clamp(min=torch.finfo(torch.float64).tiny)
        left.diagonal().add_(10.0**self.settings.log_gamma * level)
        v = solve_positive(left, (total - count[:, None] * centre).T @ (s - middle))
        return {"v": v.float().contiguous(), "centre": centre.float(), "middle": middle.float()}

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Cosine between predicted attributes and descriptions, both less the mean of the training samples' ones."""
        predicted = (self.backbone(params, inputs) - params["centre"]) @ params["v"]
        described = semantics - params["middle"]
        return torch.nn.functional.normalize(predicted, dim=1) @ torch.nn.functional.normalize(described, dim=1).T
