"""Points of a feature space in the plane, and how far classes lie apart: t-SNE and silhouettes of some hundreds.

scikit-learn has both, but importing it takes as long as PyTorch, and its approximation of t-SNE (Barnes-Hut) is made
for many thousands of points: of 300 the exact forces take a fifth of its time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["silhouette", "tsne"]

Floats = NDArray[np.floating]

_EARLY, _LATE = 250, 250  # steps with exaggerated affinities, and after them
_EXAGGERATION = 12.0
_LEAST_GAIN = 0.01
_HALVINGS, _NEAR = 64, 1e-5  # at most so many for a Gaussian's width, or until its entropy is so near (scikit-learn's)


def tsne(points: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the exact t-SNE (n, 2) of points (n, d): van der Maaten and Hinton 2008, begun from principal components.

    The first 50 principal components take part, as is usual, with perplexity 30 (less for fewer than 91 points).
    Nothing is drawn at random. It takes time and memory quadratic in n: meant for hundreds of points.

    Args:
        points: at least four, finite, not all the same.
    """
    centred = points - points.mean(axis=0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    components = (u * s)[:, :50]
    first = components[:, :2]
    if first.shape[1] < 2:
        first = np.concatenate([first, np.zeros_like(first)], axis=1)
    # A component's sign is arbitrary: the one with the greatest coordinate above zero is the same on all machines.
    first = first * np.where(first[np.abs(first).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0)
    place = (first / max(float(first[:, 0].std()), 1e-300) * 1e-4).astype(np.float32)
    affine = affinities(_squares(components).astype(np.float64), min(30.0, (len(points) - 1) / 3)).astype(np.float32)
    velocity, gains = np.zeros_like(place), np.ones_like(place)
    rate = np.float32(max(len(points) / _EXAGGERATION / 4, 50.0))
    for steps, factor, momentum in ((_EARLY, _EXAGGERATION, 0.5), (_LATE, 1.0, 0.8)):
        drawn = affine * np.float32(factor)
        for _ in range(steps):
            slope = gradient(place, drawn)
            gains = np.maximum(np.where(velocity * slope < 0, gains + 0.2, gains * 0.8), _LEAST_GAIN)
            velocity = momentum * velocity - rate * gains * slope
            place = place + velocity
    return np.asarray(place, dtype=np.float32)


def affinities(squares: NDArray[np.float64], perplexity: float) -> NDArray[np.float64]:
    """Return (n, n) the probabilities p_ij of t-SNE: symmetric, zero on the diagonal, their sum one.

    Each point's Gaussian is as wide as its row needs to have the perplexity asked for; the width is found by bisection.

    Args:
        squares: (n, n) squared distances.
        perplexity: 2 to the entropy of each row in bits, between 1 and n - 1.
    """
    others = squares + np.where(np.eye(len(squares), dtype=bool), np.inf, 0.0)
    others = others - others.min(axis=1, keepdims=True)  # changes no row's probabilities, and none vanishes altogether
    scale = np.where(np.isfinite(others), others, 0.0).mean(axis=1)
    precision = 1 / np.maximum(scale, 1e-300)
    low, high = np.zeros(len(squares)), np.full(len(squares), np.inf)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for _ in range(_HALVINGS):
            row = np.exp(-others * precision[:, None])
            row /= row.sum(axis=1, keepdims=True)
            entropy = -np.where(row > 0, row * np.log(row), 0.0).sum(axis=1)
            if np.abs(entropy - np.log(perplexity)).max() < _NEAR:
                break
            wide = entropy > np.log(perplexity)  # too many neighbours: a narrower Gaussian, a higher precision
            low, high = np.where(wide, precision, low), np.where(wide, high, precision)
            precision = np.where(np.isinf(high), 2 * precision, (low + high) / 2)
    joint = row + row.T
    return np.asarray(joint / joint.sum())


def gradient(place: Floats, affine: Floats) -> Floats:
    """Return (n, 2) the gradient of the divergence sum p log(p / q), q from Student's t with one degree of freedom.

    Args:
        place: (n, 2) points in the plane.
        affine: (n, n) what :func:`affinities` returns, perhaps exaggerated.
    """
    near = _squares(place)
    near += 1
    np.reciprocal(near, out=near)
    np.fill_diagonal(near, 0)
    pull = near * (-1 / near.sum())
    pull += affine
    pull *= near
    return np.asarray(4 * (pull.sum(axis=1, keepdims=True) * place - pull @ place))


def silhouette(points: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Return the mean silhouette (Rousseeuw 1987) of points (n, d) of at least two classes, in [-1, 1].

    A sample's is (b - a) / max(a, b): a its mean distance to the other samples of its class, b the least mean distance
    to another class's; 0 where it is alone in its class.

    Example:
        >>> silhouette(np.array([[0.0], [1.0], [10.0], [11.0]]), np.array([0, 0, 1, 1]))
        0.899749373433584
    """
    distances = np.sqrt(_squares(points - points.mean(axis=0)))
    np.fill_diagonal(distances, 0)
    known, place, counts = np.unique(labels, return_inverse=True, return_counts=True)
    totals = distances @ np.eye(len(known))[place]
    own = np.arange(len(labels)), place
    inside = totals[own] / np.maximum(counts[place] - 1, 1)
    means = totals / counts
    means[own] = np.inf
    outside = means.min(axis=1)
    each = (outside - inside) / np.maximum(np.maximum(inside, outside), 1e-300)
    return float(np.where(counts[place] > 1, each, 0.0).mean())


def _squares(points: Floats) -> Floats:
    """Return (n, n) the squared distances between points (n, d)."""
    lengths = (points**2).sum(axis=1)
    found = points @ (-2 * points.T)
    found += lengths
    found += lengths[:, None]
    return np.asarray(np.maximum(found, 0, out=found))
