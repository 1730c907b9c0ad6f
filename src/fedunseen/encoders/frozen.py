"""What frozen encoders of images share: where they compute, and in which portions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["device", "in_portions"]


def device() -> torch.device:
    """Return the GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def in_portions(images: NDArray[Any], at_once: int, encode: Callable[[Tensor], Tensor]) -> NDArray[Any]:
    """Return the features of images.

    Args:
        images: (n, ...), in memory or on disk.
        at_once: how many are encoded together: no more have to fit in the device's memory.
        encode: images (m, ...) on :func:`device` to features (m, ...).

    Returns:
        (n, ...)
    """
    found = []
    with torch.inference_mode():
        for start in range(0, len(images), at_once):
            part = torch.from_numpy(np.array(images[start : start + at_once])).to(device())
            found.append(encode(part).cpu().contiguous().numpy())
    return np.concatenate(found)
