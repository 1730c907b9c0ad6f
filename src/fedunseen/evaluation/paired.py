"""Is one model better than another? Differences between two that answered the same questions, with 95 % intervals.

Two models answer the same easy episodes well and the same hard ones badly, so that the interval of their difference is
much narrower than what the intervals of both make one expect. It is about the questions asked: another training, with
another seed, is another model. Over several seeds, :func:`paired_difference` of the seeds' numbers tells about that.
"""

from __future__ import annotations

import numpy as np
import scipy.stats
from numpy.typing import NDArray

__all__ = ["class_difference", "harmonic_difference", "paired_difference"]

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Right = NDArray[np.bool_]

_Z = 1.96


def paired_difference(ours: Floats, theirs: Floats) -> tuple[float, float]:
    """Return the mean of ``ours - theirs`` (n,) and half of its 95 % interval by Student's t; NaN of fewer than two.

    Example:
        >>> mean, half = paired_difference(np.array([61.0, 52.0, 73.0]), np.array([60.0, 50.0, 70.0]))
        >>> mean, round(half, 2)  # t(0.975; 2) = 4.30 times 1 / sqrt(3)
        (2.0, 2.48)
    """
    apart = ours - theirs
    if len(apart) < 2:
        return float(apart.mean()), float("nan")
    half = scipy.stats.t.ppf(0.975, len(apart) - 1) * apart.std(ddof=1) / len(apart) ** 0.5
    return float(apart.mean()), float(half)


def class_difference(labels: Ids, ours: Right, theirs: Right) -> tuple[float, float]:
    """Return the difference of two per-class accuracies in percent, and half of its 95 % interval.

    Classes are fixed, and the samples within each are drawn: the variance of the mean over C classes is the sum over
    classes of s_c^2 / n_c, over C^2. NaN where a class has but one sample.

    Args:
        labels: (n,) true classes.
        ours: (n,) whether our answer is right.
        theirs: (n,) the same of the other model.

    Example:
        >>> right = np.array([True, True, False, True]), np.array([False, True, False, True])
        >>> mean, half = class_difference(np.array([0, 0, 1, 1]), *right)
        >>> mean, round(half, 1)
        (25.0, 49.0)
    """
    mean, variance = _over_classes(labels, 100.0 * ours - 100.0 * theirs)
    return mean, _Z * variance**0.5


def harmonic_difference(labels: Ids, seen: Right, ours: Right, theirs: Right) -> tuple[float, float]:
    """Return the difference of two harmonic means (S, U) in percent, and half of its 95 % interval.

    To first order: H = 2 S U / (S + U) changes by 2 U^2 / (S + U)^2 times S's change, and likewise by U's.

    Args:
        labels: (n,) true classes.
        seen: (n,) whether the true class is a seen one.
        ours: (n,) whether our answer is right.
        theirs: (n,) the same of the other model.
    """
    sides = (seen, ~seen)
    means, slopes = zip(*(_harmonic(labels, sides, right) for right in (ours, theirs)), strict=True)
    variance = 0.0
    for side, first, second in zip(sides, *slopes, strict=True):
        variance += _over_classes(labels[side], 100.0 * (first * ours[side] - second * theirs[side]))[1]
    return means[0] - means[1], _Z * variance**0.5


def _harmonic(labels: Ids, sides: tuple[Right, Right], right: Right) -> tuple[float, tuple[float, float]]:
    """Return the harmonic mean, and its slopes along seen and unseen accuracy."""
    s, u = (_over_classes(labels[side], 100.0 * right[side].astype(np.float64))[0] for side in sides)
    if s + u == 0:
        return 0.0, (0.0, 0.0)
    return 2 * s * u / (s + u), (2 * u**2 / (s + u) ** 2, 2 * s**2 / (s + u) ** 2)


def _over_classes(labels: Ids, values: Floats) -> tuple[float, float]:
    """Return the mean over classes of the means of values (n,), and its variance."""
    each = [values[labels == c] for c in np.unique(labels)]
    mean = float(np.mean([one.mean() for one in each]))
    variances = [one.var(ddof=1) / len(one) if len(one) > 1 else float("nan") for one in each]
    return mean, float(np.sum(variances)) / len(each) ** 2
