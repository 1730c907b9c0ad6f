r"""Ridge regression from features to semantics; the class whose description points the same way
wins.

.. math:: V = (X^T X + \gamma I)^{-1} \sum_c S_c s_c^T ,

X and s centered on their means over all samples, which are sums too (direct attribute prediction,
in closed form).
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedunseen.core.parameters import Params
from fedunseen.methods.closed_form.base import ClosedForm, ClosedFormSettings, Discriminants
from fedunseen.methods.closed_form.statistics import centred, solve_positive


class Ridge(ClosedForm, name="ridge"):
    """Regression of a class's attributes on a sample's features, compared with descriptions by
    cosine.
    """

    class Settings(ClosedFormSettings):
        """Settings of ridge regression to semantics."""

        log_gamma: float = -1.0
        """Exponent of the regularizer on features; for `ridge` a power of ten, in units of the
        features' mean variance times the number of samples: so it means the same at any scale of
        features."""

    def solve(self, sums: Params) -> Params:
        """Return V (d, attributes) and the means of features and attributes."""
        centre, middle, gram, effects, apart = self._equations(sums)
        v = solve_positive(gram, effects @ apart)
        return {"v": v.float().contiguous(), "centre": centre.float(), "middle": middle.float()}

    def _equations(self, sums: Params) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the means of features and of attributes, ``gram`` (d, d), ``effects`` (d, C) and
        ``apart`` (C, a): V solves gram V = effects apart.
        """
        centre, middle, gram, effects, apart = centred(sums, self.semantics)
        level = gram.diagonal().mean().clamp(min=torch.finfo(torch.float64).tiny)
        gram.diagonal().add_(10.0**self.settings.log_gamma * level)
        return centre, middle, gram, effects.T, apart

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Cosine between predicted attributes and descriptions, both less the mean of the training
        samples' ones.
        """
        predicted = self._predicted(params, inputs)
        return normalize(predicted, dim=1) @ self._directions(params, semantics).T

    def left_out_scores(self, model: Params, sums: Params, inputs: Tensor, out: Tensor) -> Tensor:
        """Return scores (n, T) of classes ``out`` that ``sums`` lack: how well they would be
        recognized as unseen ones chooses settings and the offset.
        """
        centre, middle, gram, effects, apart = self._equations(sums)
        observed = sums["count"] > 0
        # often fewer classes have samples than there are attributes
        v = solve_positive(gram, effects[:, observed]) @ apart[observed]
        fold = {"v": v.float(), "centre": centre.float(), "middle": middle.float()}
        return self.scores(fold, inputs, self.semantics[out])

    def discriminants(
        self, params: Params, inputs: Tensor, semantics: Tensor, classes: Tensor
    ) -> Discriminants:
        """Return the cosines as linear functions; the length of the predicted attributes is a
        factor of each sample.
        """
        length = self._predicted(params, inputs).norm(dim=1, keepdim=True)
        weight = self._directions(params, semantics)[classes] @ params["v"].T / length
        return Discriminants(weight, params["centre"], weight.new_zeros(len(weight)))

    def attribute_parts(
        self, params: Params, inputs: Tensor, semantics: Tensor, classes: Tensor
    ) -> Tensor:
        """Return the products (n, a) whose sum is the cosine."""
        predicted = normalize(self._predicted(params, inputs), dim=1)
        return predicted * self._directions(params, semantics)[classes]

    def _predicted(self, params: Params, inputs: Tensor) -> Tensor:
        """Return attributes (n, a) less their mean, as the features of inputs predict them."""
        return (self.backbone(params, inputs) - params["centre"]) @ params["v"]

    def _directions(self, params: Params, semantics: Tensor) -> Tensor:
        """Return descriptions (C, a) less the mean, of unit length."""
        return normalize(semantics - params["middle"], dim=1)
