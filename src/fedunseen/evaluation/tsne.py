"""t-SNE and silhouette of a few hundred points, in NumPy.

scikit-learn has both, for any number of points. To import and run it took two seconds of every run; this takes a tenth.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["silhouette", "tsne"]

Floats = NDArray[np.float64]

_PERPLEXITY = 30.0
_EXAGGERATED, _FACTOR = 150, 12.0  # first iterations, in which clusters form
_ITERATIONS = 400


def tsne(points: Floats) -> NDArray[np.float32]:
    """Return the t-SNE embedding (n, 2) of points (n, d), the same bits at each call.

    van der Maaten and Hinton (2008), with scikit-learn's defaults: it begins at the first two principal components, and
    descends with momentum, gains and early exaggeration. The gradient is exact: O(n²) an iteration.

    Args:
        points: at least four, finite, not all the same.
    """
    joint = _affinities(_squared_distances(points), min(_PERPLEXITY, (len(points) - 1) / 3))
    places = _principal_components(points)
    rate = max(len(points) / _FACTOR / 4, 50.0)
    update, gains = np.zeros_like(places), np.ones_like(places)
    for iteration in range(_ITERATIONS):
        early = iteration < _EXAGGERATED
        gradient = _gradient(joint * _FACTOR if early else joint, places)
        gains = np.maximum(np.where(update * gradient < 0, gains + 0.2, gains * 0.8), 0.01)
        update = (0.5 if early else 0.8) * update - rate * gains * gradient
        places = places + update
    return places.astype(np.float32)


def silhouette(points: Floats, labels: NDArray[np.int64]) -> float:
    """Return the mean silhouette of points (n, d) by their classes (n,), of which there are at least two.

    Example:
        >>> round(silhouette(np.array([[0.0], [1.0], [10.0], [11.0]]), np.array([0, 0, 1, 1])), 3)
        0.9
    """
    distances = np.sqrt(_squared_distances(points))
    members = (labels[:, None] == np.unique(labels)).astype(np.float64)
    counts, of_class = members.sum(axis=0), members.argmax(axis=1)
    sums, rows = distances @ members, np.arange(len(points))
    within = sums[rows, of_class] / np.maximum(counts[of_class] - 1, 1)
    means = sums / counts
    means[rows, of_class] = np.inf
    nearest = means.min(axis=1)
    scores = (nearest - within) / np.maximum(np.maximum(nearest, within), 1e-300)
    return float(np.where(counts[of_class] > 1, scores, 0.0).mean())


def _squared_distances(points: Floats) -> Floats:
    """Return (n, n) squared Euclidean distances, with zeros on the diagonal."""
    centered = points - points.mean(axis=0)
    norms = (centered**2).sum(axis=1)
    squared = np.maximum(norms[:, None] + norms - 2 * centered @ centered.T, 0.0)
    np.fill_diagonal(squared, 0.0)
    return np.asarray(squared)


def _affinities(squared: Floats, perplexity: float) -> Floats:
    """Return (n, n) joint probabilities whose rows have a perplexity, by bisection of each row's log precision."""
    count = len(squared)
    others = ~np.eye(count, dtype=bool)
    excess = np.maximum(squared - np.where(others, squared, np.inf).min(axis=1, keepdims=True), 0.0)
    excess /= max(float(excess.mean()), 1e-300)
    low, high = np.full((count, 1), -64.0), np.full((count, 1), 64.0)
    for _ in range(50):
        precision = np.exp2((low + high) / 2)
        weights = np.exp(-excess * precision) * others
        sums = weights.sum(axis=1, keepdims=True)
        entropy = np.log(sums) + precision * (excess * weights).sum(axis=1, keepdims=True) / sums
        wide = entropy > np.log(perplexity)
        low, high = np.where(wide, (low + high) / 2, low), np.where(wide, high, (low + high) / 2)
    conditional = weights / sums
    return np.asarray((conditional + conditional.T) / (2 * count))


def _principal_components(points: Floats) -> Floats:
    """Return the first two principal components (n, 2), small; zeros for one that points do not have."""
    left, scale, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    signs = np.sign(left[np.abs(left).argmax(axis=0), np.arange(left.shape[1])])
    components = np.zeros((len(points), 2))
    components[:, : min(2, len(scale))] = (left * signs * scale)[:, :2]
    return components / max(float(components[:, 0].std()), 1e-300) * 1e-4


def _gradient(joint: Floats, places: Floats) -> Floats:
    """Return (n, 2) the gradient of the Kullback-Leibler divergence by the places."""
    kernel = 1 / (1 + _squared_distances(places))
    np.fill_diagonal(kernel, 0.0)
    force = (joint - kernel / kernel.sum()) * kernel
    return np.asarray(4 * (force.sum(axis=1)[:, None] * places - force @ places))
