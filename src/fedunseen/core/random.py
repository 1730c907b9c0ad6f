"""Keyed random streams: every random choice draws from a stream named by (seed, purpose, keys...).

Nothing depends on the order of execution, on the number of processes or on the engine: a client's
batches in round 7 are the same whether it ran first or last, alone or batched with others.
"""

import hashlib
from functools import cache

import numpy as np
from numpy.typing import NDArray


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Return the generator of one purpose."""
    entropy: list[int] | NDArray[np.uint32] = [seed, _word(purpose), *keys]
    # The words into which NumPy cuts these numbers, in half of its time: a round asks for thousands
    # of streams.
    if all(0 <= key < 2**32 for key in (seed, *keys)) and entropy[1] >= 2**32:
        entropy = np.array([seed, entropy[1] % 2**32, entropy[1] // 2**32, *keys], dtype=np.uint32)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))


@cache
def _word(purpose: str) -> int:
    """Return the number, below 2^64, that stands for a purpose."""
    return int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")
