"""Fully connected layers: trained on top of features, or as a classifier."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedunseen.core.parameters import Params, linear_layer


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
        inputs = torch.relu(linear(params, f"{name}.{i}", inputs))
        i += 1
    return inputs


def linear(params: Params, name: str, inputs: Tensor) -> Tensor:
    """Apply the linear layer ``name``."""
    return F.linear(inputs, params[f"{name}.weight"], params[f"{name}.bias"])


def stable_rate(params: Params, incoming: Tensor, layers: int, steepness: float, momentum: float) -> float:
    """Return half of the learning rate from which on gradient descent diverges; infinity on a flat loss.

    With momentum rho it diverges where the largest curvature exceeds 2 (1 + rho) / lr. By the weights of the last
    layer, that is the loss's own curvature by the layer's outputs, ``steepness``, times the mean of |f|^2 + 1.
    """
    with torch.no_grad():
        features = mlp(params, "f", incoming.float())
        # drawn layers make short features, which training lengthens up to those that come in
        squared = max(float(some.double().square().sum(1).mean()) for some in (incoming, features))
    curvature = steepness * (squared + 1) * (1 + layers)
    return (1 + momentum) / curvature if curvature > 0 else float("inf")
