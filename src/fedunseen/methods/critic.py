"""The Wasserstein critic of generative methods (Gulrajani et al. 2017), conditional on attributes: one hidden layer."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.core.phases import weighted_mean
from fedunseen.losses import precise
from fedunseen.methods.networks import linear


def normal_layer(name: str, width_in: int, width_out: int, rng: np.random.Generator) -> Params:
    """Draw a linear layer as f-CLSWGAN does: weight (out, in) from N(0, 0.02), bias (out,) 0."""
    weight = 0.02 * rng.standard_normal((width_out, width_in), dtype=np.float32)
    return {f"{name}.weight": torch.from_numpy(weight), f"{name}.bias": torch.zeros(width_out)}


def critic_init(width: int, attributes: int, hidden: int, rng: np.random.Generator) -> Params:
    """Draw a critic D([x; a]): N(0, 0.02), biases 0."""
    return normal_layer("critic.0", width + attributes, hidden, rng) | normal_layer("critic.1", hidden, 1, rng)


def critic(params: Params, features: Tensor, attributes: Tensor) -> Tensor:
    """Return (B,) the critic's values."""
    hidden = linear(params, "critic.0", torch.cat([features, attributes], dim=-1))
    return precise(linear(params, "critic.1", F.leaky_relu(hidden, 0.2)).squeeze(-1))


def wasserstein(
    params: Params, real: Tensor, fake: Tensor, attributes: Tensor, mix: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return the two parts of a critic's loss (Gulrajani et al. 2017).

    :math:`E\,D(\tilde x, a) - E\,D(x, a)` and :math:`E\,(\|\nabla_{\hat x} D(\hat x, a)\|_2 - 1)^2`. With one hidden
    layer of leaky ReLUs the gradient is :math:`W_x^T (w_2 \odot s(\hat h))`, s being the slopes.
    """
    both = torch.cat([torch.cat([real, fake], dim=0), torch.cat([attributes, attributes], dim=0)], dim=-1)
    hidden = linear(params, "critic.0", both)
    values = precise(linear(params, "critic.1", F.leaky_relu(hidden, 0.2)).squeeze(-1))
    at_real, at_fake = values.tensor_split(2)
    of_real, of_fake = hidden.tensor_split(2)
    u = mix.unsqueeze(-1)
    between = u * of_real + (1 - u) * of_fake
    slopes = torch.where(between > 0, 1.0, 0.2) * params["critic.1.weight"]
    # All of W, not its columns of features alone: a slice of the weights would cost its gradient a pass over memory.
    gradient = (slopes @ params["critic.0.weight"])[..., : real.shape[-1]]
    length = torch.linalg.vector_norm(precise(gradient), dim=-1)
    return weighted_mean(at_fake - at_real, weights), weighted_mean((length - 1.0) ** 2, weights)
