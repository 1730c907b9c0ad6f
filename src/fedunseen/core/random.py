"""Keyed random streams: every random choice draws from a stream named by (seed, purpose, keys...).

Nothing depends on the order of execution, on the number of processes or on the engine: a client's batches in
round 7 are the same whether it ran first or last, alone or batched with others.
"""

from __future__ import annotations

import hashlib

import numpy as np

__all__ = ["stream"]


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Return the generator of one purpose.

    Args:
        seed: the run's seed (``run.seed``), >= 0.
        purpose: what is drawn, for example ``"batches"``; two purposes never share numbers.
        keys: whatever else names the draw, usually round and client, each >= 0; one purpose always has as many.

    Example:
        >>> int(stream(0, "batches", 3, 1).integers(1000)) == int(stream(0, "batches", 3, 1).integers(1000))
        True
        >>> draws = {int(stream(0, "batches", r, c).integers(2**62)) for r in range(10) for c in range(10)}
        >>> len(draws)
        100
    """
    word = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, word, *keys])))
