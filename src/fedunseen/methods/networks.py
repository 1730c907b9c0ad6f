"""Fully connected layers on top of features, or as a classifier, and the learning rate that such a
network bears.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedunseen.core.parameters import Params, linear_layer
from fedunseen.methods.base import OneLoss


def mlp_init(name: str, widths: Sequence[int], rng: np.random.Generator) -> Params:
    """Draw fully connected layers of the given widths, input first; none for a single width."""
    params: Params = {}
    for i, (width_in, width_out) in enumerate(pairwise(widths)):
        params |= linear_layer(f"{name}.{i}", width_in, width_out, rng)
    return params


def mlp(params: Params, name: str, inputs: Tensor) -> Tensor:
    """Apply the layers of :func:`mlp_init`, ReLU after each; the identity if there are none."""
    i = 0
    while f"{name}.{i}.weight" in params:
        inputs = torch.relu_(linear(params, f"{name}.{i}", inputs))
        i += 1
    return inputs


def linear(params: Params, name: str, inputs: Tensor) -> Tensor:
    """Apply the linear layer ``name``."""
    return F.linear(inputs, params[f"{name}.weight"], params[f"{name}.bias"])


class Layered(OneLoss):
    """A method with trained layers f (``hidden``) between the backbone and its last layer, or
    none.
    """

    @property
    def trains_features(self) -> bool:
        """Whether training changes the features f(x), or only what is made of them."""
        return self.backbone.trained or bool(self.settings.hidden)

    def steepness(self) -> float:
        """Return the largest curvature of the loss by the last layer's outputs."""
        raise TypeError(f"{type(self).__name__} must say how steep its loss is")

    def rate(self, params: Params, inputs: Tensor) -> float:
        """Return half of the learning rate from which on gradient descent diverges.

        With momentum rho it diverges where the largest curvature exceeds 2 (1 + rho) / lr. By the
        weights of the last layer, that is :meth:`steepness` times the mean of |f|^2 + 1. Without
        inputs, on a flat loss and at most for a trained encoder, it is ``trained_rate``.
        """
        if not len(inputs):
            return self.trained_rate
        with torch.no_grad():
            incoming = self.backbone(params, inputs)
            features = mlp(params, "f", incoming.float())
            # drawn layers make short features, which training lengthens up to those that come in
            squared = max(
                float(values.double().square().sum(1).mean()) for values in (incoming, features)
            )
        curvature = self.steepness() * (squared + 1) * (1 + len(self.settings.hidden))
        if not curvature > 0:
            return self.trained_rate
        rate: float = (1 + self.settings.momentum) / curvature
        return min(rate, self.trained_rate) if self.backbone.trained else rate
