"""Pictures of samples in the plane: their first principal components, or t-SNE; and how far classes
lie apart.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def plane(points: Floats, kind: str) -> NDArray[np.float32]:
    """Return points (n, d) in the plane (n, 2)."""
    if kind == "tsne":
        from sklearn.manifold import TSNE  # two processor seconds, only where it is asked for
        from threadpoolctl import threadpool_limits

        if points.shape[1] < 2:  # it begins at the first two principal components
            points = np.pad(points, ((0, 0), (0, 1)))
        tsne = TSNE(
            perplexity=min(30.0, (len(points) - 1) / 3), init="pca", max_iter=500, random_state=0
        )
        with threadpool_limits(
            1, "openmp"
        ):  # threads add their parts in an order that is not fixed
            return np.asarray(tsne.fit_transform(points), dtype=np.float32)
    centered = points - points.mean(axis=0)
    _, _, directions = np.linalg.svd(centered, full_matrices=False)
    signs = np.sign(directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)])
    components = np.zeros((len(points), 2), dtype=np.float32)
    result = (centered @ (directions * signs[:, None])[:2].T)[:, :2]
    components[:, : result.shape[1]] = result
    return components


def silhouette(points: Floats, labels: NDArray[np.int64]) -> float:
    """Return the mean silhouette of points (n, d) by their classes (n,), at least two."""
    centered = points - points.mean(axis=0)
    norms = (centered**2).sum(axis=1)
    squared = np.maximum(norms[:, None] + norms - 2 * centered @ centered.T, 0.0)
    np.fill_diagonal(squared, 0.0)
    distances = np.sqrt(squared)
    members = (labels[:, None] == np.unique(labels)).astype(np.float64)
    counts = members.sum(axis=0)
    of_class = members.argmax(axis=1)
    sums = distances @ members
    rows = np.arange(len(points))
    within = sums[rows, of_class] / np.maximum(counts[of_class] - 1, 1)
    means = sums / counts
    means[rows, of_class] = np.inf
    nearest = means.min(axis=1)
    scores = (nearest - within) / np.maximum(np.maximum(nearest, within), 1e-300)
    return float(np.where(counts[of_class] > 1, scores, 0.0).mean())
