r"""SAE: the semantic autoencoder (Kodirov, Xiang and Gong 2017), in closed form.

One matrix W (attributes, d) encodes features x as attributes s, and its transpose decodes them:

.. math:: \min_W \sum_i \|x_i - W^T s_i\|^2 + \lambda \|W x_i - s_i\|^2 .

Its solution is that of the Sylvester equation :math:`A W + W \lambda B = (1 + \lambda) C` with
:math:`A = \sum_c n_c s_c s_c^T`, :math:`B = X^T X` and :math:`C = \sum_c s_c S_c^T`, which are
sums. x and s are centered on their means over all samples. A and B are symmetric, so that their
eigenvectors solve it.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedunseen.core.parameters import Params
from fedunseen.methods.closed_form.base import ClosedForm, ClosedFormSettings, Discriminants
from fedunseen.methods.closed_form.statistics import centred

_LEAST = 1e-9  # of the largest eigenvalue: below, directions have neither samples nor attributes


class SAE(ClosedForm, name="sae"):
    """The class wins whose description, decoded, points the same way as the sample (cosine)."""

    class Settings(ClosedFormSettings):
        """Settings of the semantic autoencoder."""

        log_lambda: float = 0.5
        """Exponent of the weight of encoding beside decoding; for `sae` a power of ten, in units of
        the ratio of the mean variances of attributes and features: so it means the same at any
        scale of either. Chosen on left-out classes of CIFAR-100, AWA1 and digits."""

    def solve(self, sums: Params) -> Params:
        """Return W (attributes, d) and the means of features and attributes."""
        centre, middle, gram, effects, s = centred(sums, self.semantics)
        of_attributes, left = torch.linalg.eigh((s.T * sums["count"]) @ s)
        of_features, right = torch.linalg.eigh(gram)
        tiny = torch.finfo(torch.float64).tiny
        ratio = of_attributes.mean().clamp(min=tiny) / of_features.mean().clamp(min=tiny)
        weight = 10.0**self.settings.log_lambda * ratio
        spread = of_attributes.clamp(min=0)[:, None] + weight * of_features.clamp(min=0)
        both = left.T @ s.T @ effects @ right
        solved = (1 + weight) * both / (spread + _LEAST * spread.max() + tiny)
        encoder = left @ solved @ right.T
        return {
            "encoder": encoder.float().contiguous(),
            "centre": centre.float(),
            "middle": middle.float(),
        }

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Return the cosines (n, C) between samples and decoded descriptions, both less the mean of
        the training samples' ones.
        """
        features = self.backbone(params, inputs) - params["centre"]
        cosines: Tensor = normalize(features, dim=1) @ self._decoded(params, semantics).T
        return cosines

    def left_out_scores(self, model: Params, sums: Params, inputs: Tensor, out: Tensor) -> Tensor:
        """Return scores (n, T) of classes ``out`` that ``sums`` lack."""
        return self.scores(self.solve(sums), inputs, self.semantics[out])

    def discriminants(
        self, params: Params, inputs: Tensor, semantics: Tensor, classes: Tensor
    ) -> Discriminants:
        """Return the cosines as linear functions; the length of the features is a factor of each
        sample.
        """
        features = self.backbone(params, inputs) - params["centre"]
        length = features.norm(dim=1, keepdim=True)
        weight = self._decoded(params, semantics)[classes] / length
        return Discriminants(weight, params["centre"], weight.new_zeros(len(weight)))

    def attribute_parts(
        self, params: Params, inputs: Tensor, semantics: Tensor, classes: Tensor
    ) -> Tensor:
        """Return the products (n, a) whose sum is the cosine."""
        features = normalize(self.backbone(params, inputs) - params["centre"], dim=1)
        apart = semantics[classes] - params["middle"]
        length = (apart @ params["encoder"]).norm(dim=1, keepdim=True)
        parts: Tensor = features @ params["encoder"].T * apart / length
        return parts

    def _decoded(self, params: Params, semantics: Tensor) -> Tensor:
        """Return the directions (C, d), of unit length, that descriptions (C, a) are decoded to."""
        return normalize((semantics - params["middle"]) @ params["encoder"], dim=1)
