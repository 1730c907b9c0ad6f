"""Whether models are the same bit for bit."""

from pathlib import Path

import torch
from safetensors.torch import load_file


def tensors(model):
    """Return the tensors of a run, of a run directory, or of a dictionary."""
    path = getattr(model, "path", model)
    return load_file(path / "model.safetensors") if isinstance(path, Path) else dict(model)


def same(one, other):
    """Say whether two models have the same tensors."""
    one, other = tensors(one), tensors(other)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
