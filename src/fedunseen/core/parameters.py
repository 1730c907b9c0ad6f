"""Parameters are plain dictionaries of tensors: here is the arithmetic that strategies, merging and
checks need.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")

Params = dict[str, Tensor]
"""Name -> tensor. Nothing may depend on the order of names: files do not keep it."""

ClientStates = Mapping[int, Mapping[str, Tensor]]
"""Client -> what it keeps; tensors may be on disk (``core.tensor_store``), and are read when they
are asked for.
"""


def difference(new: Mapping[str, Tensor], old: Mapping[str, Tensor], scale: float = 1.0) -> Params:
    """Return ``scale * (new - old)``, name by name: a client's update (FedZSL, Algorithm 1, line
    26).
    """
    if scale == 1.0:
        return {name: new[name] - old[name] for name in new}
    return {name: scale * (new[name] - old[name]) for name in new}


def add_scaled(
    params: Mapping[str, Tensor], updates: Sequence[Mapping[str, Tensor]], weights: Sequence[float]
) -> Params:
    """Return ``params + sum_k weights[k] * updates[k]``, added in the order given (so merging is
    reproducible).
    """
    total = {name: value.clone() for name, value in params.items()}
    for update, weight in zip(updates, weights, strict=True):
        for name, value in update.items():
            total[name].add_(value, alpha=weight)
    return total


class Scaled(Mapping[str, Tensor]):
    """Tensors times a factor, each made when it is asked for: many clipped updates take no memory
    of their own.
    """

    def __init__(self, params: Mapping[str, Tensor], factor: float) -> None:
        self.params = params
        self.factor = factor

    def __getitem__(self, name: str) -> Tensor:
        return self.params[name] * self.factor

    def __iter__(self) -> Iterator[str]:
        return iter(self.params)

    def __len__(self) -> int:
        return len(self.params)


def length(params: Mapping[str, Tensor]) -> float:
    """Return the L2 norm of all tensors taken as one vector, added in order of names; not finite if
    a number is not.
    """
    total = 0.0
    for name in sorted(params):
        value = params[name]
        norm = float(torch.linalg.vector_norm(value))
        if not math.isfinite(norm):  # the squares may have been too large for float32
            norm = float(torch.linalg.vector_norm(value, dtype=torch.float64))
        total = math.hypot(total, norm)
    return total


def under(prefix: str, params: Mapping[str, Tensor]) -> Params:
    """Return the tensors under names that begin with ``prefix``: how several models share one
    dictionary.
    """
    return {prefix + name: value for name, value in params.items()}


def within(prefix: str, params: Mapping[str, Tensor]) -> Params:
    """Return what :func:`under` put there."""
    return {
        name.removeprefix(prefix): value
        for name, value in params.items()
        if name.startswith(prefix)
    }


def of_each_client(params: Mapping[str, T]) -> dict[int, dict[str, T]]:
    """Return what lies under ``client/K/`` for each client, in client order; other names are left
    out.
    """
    clients: dict[int, dict[str, T]] = {}
    for key, value in params.items():
        if key.startswith("client/"):
            _, client, name = key.split("/", 2)
            clients.setdefault(int(client), {})[name] = value
    return dict(sorted(clients.items()))


def is_statistic(name: str) -> bool:
    """Say whether ``name`` is a running statistic of a normalization layer: kept and merged, but
    not learned.
    """
    return name.endswith((".running_mean", ".running_var"))


def zeros(like: Mapping[str, Tensor]) -> Params:
    """Return zeros for all parameters that are learned."""
    return {name: torch.zeros_like(value) for name, value in like.items() if not is_statistic(name)}


def transformed(*values: Tensor) -> bool:
    """Say whether any of these is within a transform of ``torch.func``: mapped over, or
    differentiated there.
    """
    return any(torch.func.debug_unwrap(value) is not value for value in values)


def stack(many: Sequence[Mapping[str, Tensor]]) -> Params:
    """Stack the parameters of K clients: each tensor (...) becomes (K, ...)."""
    return {name: torch.stack([params[name] for params in many]) for name in many[0]}


def unstack(stacked: Mapping[str, Tensor], position: int) -> Params:
    """Return client ``position`` of a stack, as views: clone what is to outlive the stack."""
    return {name: value[position] for name, value in stacked.items()}


def finite(params: Mapping[str, Tensor]) -> bool:
    """Say whether every number is finite."""
    # A sum is finite only if all it adds is, and takes a tenth of the time; it may overflow where
    # nothing is infinite.
    return all(
        math.isfinite(value.sum().item()) or bool(torch.isfinite(value).all())
        for value in params.values()
        if value.is_floating_point()
    )


def size_in_bytes(params: Mapping[str, Tensor] | Iterable[Tensor]) -> int:
    """Return what the tensors take on the wire, without headers."""
    tensors = params.values() if isinstance(params, Mapping) else params
    return sum(value.numel() * value.element_size() for value in tensors)


def fits_int32(value: Tensor) -> bool:
    """Return whether an int64 tensor holds no number that 32 bits do not."""
    if value.dtype != torch.int64 or not value.numel():
        return False
    least, most = torch.aminmax(value)
    return int(least) >= -(2**31) and int(most) < 2**31


def wire_size(params: Mapping[str, Tensor]) -> int:
    """Return the bytes of tensors in a message: whole numbers travel in 32 bits where they fit."""
    return sum(
        value.numel() * 4 if fits_int32(value) else size_in_bytes([value])
        for value in params.values()
    )


def to_device(params: Mapping[str, Tensor], device: torch.device) -> Params:
    """Move every tensor to ``device``."""
    return {name: value.to(device) for name, value in params.items()}


def linear_layer(name: str, width_in: int, width_out: int, rng: np.random.Generator) -> Params:
    """Draw a linear layer as PyTorch does: weight (out, in) and bias (out,) from U(-1/sqrt(in),
    1/sqrt(in)).
    """
    bound = width_in**-0.5
    weight = rng.uniform(-bound, bound, (width_out, width_in)).astype(np.float32)
    bias = rng.uniform(-bound, bound, width_out).astype(np.float32)
    return {f"{name}.weight": torch.from_numpy(weight), f"{name}.bias": torch.from_numpy(bias)}
