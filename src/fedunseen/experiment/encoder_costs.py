"""What an image encoder costs on this machine, for ``init`` to say."""

import time
from typing import NamedTuple

import torch


class Cost(NamedTuple):
    """An encoder's size and work.

    Attributes:
        weights: what it is.
        setting: the one line of ``[encoder]`` that chooses it.
        megabytes: of its weights.
        multiply_adds: thousand millions for a picture.
    """

    weights: str
    setting: str
    megabytes: int
    multiply_adds: float


BETTER = Cost("DINOv2-small", 'encoder.name = "vision"', 88, 5.5)
"""22 million parameters, each used for 257 tokens of a picture of 224 x 224."""
_TOKENS = 257
_WIDTHS = (384, 1536)  # of a layer of that network
_TURNS = 5


def seconds(cost: Cost) -> float:
    """Estimate the seconds that a picture takes: the encoder's multiplications at the speed at
    which this machine multiplies matrices of its shapes.
    """
    rows = torch.ones(_TOKENS, _WIDTHS[0])
    weights = torch.ones(_WIDTHS)
    taken = []
    for _ in range(_TURNS):
        begin = time.perf_counter()
        rows @ weights
        taken.append(time.perf_counter() - begin)
    return cost.multiply_adds * 1e9 / (_TOKENS * _WIDTHS[0] * _WIDTHS[1]) * min(taken)


def better_encoder() -> str:
    """Return a sentence about what a better encoder would cost.

    Example:
        >>> better_encoder()
        'encoder.name = "vision" takes DINOv2-small: 88 MB to download, about ... s a picture here'
    """
    took = seconds(BETTER)
    return (
        f"{BETTER.setting} takes {BETTER.weights}: {BETTER.megabytes} MB to download, about "
        f"{took:.1g} s a picture here"
    )
