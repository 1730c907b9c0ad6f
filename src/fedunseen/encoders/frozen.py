"""What frozen encoders of images share: where they compute, and in which portions."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["device", "in_portions"]


def device() -> torch.device:
    """Return the GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def in_portions(
    images: NDArray[Any], at_once: int, encode: Callable[[Tensor], Tensor], apart: bool = False
) -> NDArray[Any]:
    """Return the features of images.

    Args:
        images: (n, ...), in memory or on disk.
        at_once: how many are encoded together: no more have to fit in the device's memory.
        encode: images (m, ...) on :func:`device` to features (m, ...).
        apart: several threads may call ``encode`` at once. On a CPU each portion then has a thread of its own.

    Returns:
        (n, ...)
    """
    place = device()

    def portion(start: int) -> NDArray[Any]:
        with torch.inference_mode():
            part = torch.from_numpy(np.array(images[start : start + at_once])).to(place)
            return np.asarray(encode(part).cpu().contiguous().numpy())

    starts, threads = range(0, len(images), at_once), torch.get_num_threads()
    if not apart or place.type != "cpu" or min(threads, len(starts)) < 2:
        return np.concatenate([portion(start) for start in starts])
    # A thread for each portion, not several within each layer of one: those wait for the slowest after every layer,
    # which costs several times the processor time where cores have other work too. The bits are those of one thread.
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return np.concatenate(list(pool.map(portion, starts)))
    finally:
        torch.set_num_threads(threads)
