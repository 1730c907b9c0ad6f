"""Updates of Gaussian classes by unlabelled samples, like those of StatA and of ADAPT.

Both start from means (C, d) and one precision (d, d), here those of ``gaussian``, and a bias a
class, and return new means. In the papers the first means are texts' embeddings.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]


def _scores(x: Floats, means: Floats, precision: Floats, bias: Floats) -> Floats:
    turned = means @ precision
    scores: Floats = x @ turned.T - (turned * means).sum(1) / 2 + bias
    return scores


def _soft(scores: Floats) -> Floats:
    shifted = np.exp(scores - scores.max(1, keepdims=True))
    soft: Floats = shifted / shifted.sum(1, keepdims=True)
    return soft


def stata(
    x: Floats, means: Floats, precision: Floats, bias: Floats, anchor: float, rounds: int = 10
) -> Floats:
    """StatA-like (Zanella et al. 2025): expectation maximization with a statistical anchor: a
    class's mean is that of its soft samples and of ``anchor`` samples at its first mean.
    """
    now = means
    for _ in range(rounds):
        soft = _soft(_scores(x, now, precision, bias))
        number = soft.sum(0)[:, None]
        now = (soft.T @ x + anchor * means) / (number + anchor)
    return now


def adapt_bank(
    x: Floats, means: Floats, precision: Floats, bias: Floats, anchor: float, bank: int
) -> Floats:
    """ADAPT-like (2025): one pass; each class's ``bank`` most confident samples among those that it
    wins, and ``anchor`` samples at its first mean.
    """
    soft = _soft(_scores(x, means, precision, bias))
    winner = soft.argmax(1)
    now = means.copy()
    for c in range(len(means)):
        won = np.flatnonzero(winner == c)
        kept = won[np.argsort(-soft[won, c], kind="stable")[:bank]]
        now[c] = (x[kept].sum(0) + anchor * means[c]) / (len(kept) + anchor)
    return now
