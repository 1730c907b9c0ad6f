"""A small vision transformer as pure functions of a dictionary of tensors, and the rollout of its attention."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedunseen.core.parameters import Params, linear_layer
from fedunseen.methods.networks import linear

_WIDEN = 2  # a layer's hidden units, as a multiple of its width


def transformer_init(name: str, width: int, depth: int, rng: np.random.Generator) -> Params:
    """Draw ``depth`` layers of pre-norm self-attention and two linear layers each, and a last normalization."""
    params: Params = {}
    for i in range(depth):
        layer = f"{name}.{i}"
        params |= _norm_init(f"{layer}.norm1", width) | _norm_init(f"{layer}.norm2", width)
        params |= linear_layer(f"{layer}.qkv", width, 3 * width, rng) | linear_layer(f"{layer}.out", width, width, rng)
        params |= linear_layer(f"{layer}.widen", width, _WIDEN * width, rng)
        params |= linear_layer(f"{layer}.narrow", _WIDEN * width, width, rng)
    return params | _norm_init(f"{name}.norm", width)


def transformer(params: Params, name: str, tokens: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Apply the layers of :func:`transformer_init`."""
    n, count, width = tokens.shape
    attentions = []
    i = 0
    while f"{name}.{i}.qkv.weight" in params:
        layer = f"{name}.{i}"
        qkv = linear(params, f"{layer}.qkv", _norm(params, f"{layer}.norm1", tokens))
        query, key, value = qkv.reshape(n, count, 3, heads, width // heads).permute(2, 0, 3, 1, 4).unbind(0)
        attention = (query @ key.mT * (width // heads) ** -0.5).softmax(-1)  # (n, heads, T, T)
        seen = (attention @ value).transpose(1, 2).reshape(n, count, width)
        tokens = tokens + linear(params, f"{layer}.out", seen)
        inner = F.gelu(linear(params, f"{layer}.widen", _norm(params, f"{layer}.norm2", tokens)))
        tokens = tokens + linear(params, f"{layer}.narrow", inner)
        attentions.append(attention.mean(1))
        i += 1
    return _norm(params, f"{name}.norm", tokens), torch.stack(attentions)


def rollout(attentions: Tensor) -> Tensor:
    """Return how much the first token looks at each other one through all layers (attention rollout)."""
    attentions = attentions.detach().float()
    identity = torch.eye(attentions.shape[-1], device=attentions.device)
    through = identity
    for layer in attentions.unbind(0):
        through = (layer + identity) / (layer.sum(-1, keepdim=True) + 1) @ through
    return through[..., 0, 1:]


def _norm_init(name: str, width: int) -> Params:
    return {f"{name}.weight": torch.ones(width), f"{name}.bias": torch.zeros(width)}


def _norm(params: Params, name: str, tokens: Tensor) -> Tensor:
    return F.layer_norm(tokens, tokens.shape[-1:], params[f"{name}.weight"], params[f"{name}.bias"])
