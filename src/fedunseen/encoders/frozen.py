"""What frozen encoders of images share: where they compute, in which portions, and what their features depend on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.array_cache import cached_features, files_digest


def device() -> torch.device:
    """Return the GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def encoded(
    images: NDArray[Any], shape: tuple[int, ...], encode: Callable[[NDArray[Any]], NDArray[Any]], *,
    encoder: str, weights: list[Path], prepare: Sequence[Any], library: str,
) -> NDArray[Any]:  # fmt: skip
    """Return features of images, kept in the cache: vectors (n, d) float32 or maps float16; releases may round."""
    depends = {
        "encoder": encoder,
        "weights": files_digest(weights),
        "output": "maps" if len(shape) == 3 else "vectors",
        "prepare": prepare,
        "device": device().type,
        "library": [version(library), version("torch")],
    }
    return cached_features(depends, images, shape, "float16" if len(shape) == 3 else "float32", encode)


def in_portions(
    images: NDArray[Any], at_once: int, encode: Callable[[Tensor], Tensor], apart: bool = False
) -> NDArray[Any]:
    """Return the features of images."""
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
