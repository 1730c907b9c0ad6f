r"""Pictures that lie in another class's folder: found by their features, before a model learns from
them.

A ridge regression from features to classes answers for every sample without having seen it, in
closed form: with the hat matrix :math:`H = X (X^\top X + \lambda I)^{-1} X^\top` and labels
:math:`Y`, the answer is :math:`(HY - \mathrm{diag}(H) Y) / (1 - \mathrm{diag}(H))` (Allen 1974, the
PRESS statistic). For two classes A and B, the difference of a sample's answers says which it looks
like. Some samples of A always look like B, the more so the more alike the classes are. What is
looked for is a group of them in the midst of B: the likelihood ratio of two models of A's
differences, a mixture that has some of B's, and A's alone. Both are Student distributions, whose
heavy tails keep a few odd pictures from counting.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedunseen.data import Benchmark

LEAST = 3  # samples of a group
ENOUGH = 8  # samples of a class that give a median and a spread
MANY = 20_000  # samples: of more, none are looked for
STRENGTH = 0.01  # of the ridge regression, times the number of samples
FREEDOM = 3.0  # degrees of freedom of the Student distributions
SHARES = np.array([0.05, 0.1, 0.15, 0.2, 0.3, 0.4])  # of a class that may be another's
# of the log likelihood: two of 80 draws of 12 of 30 classes of CIFAR-100 (the even ones of sixty) have more
LEAD = 1.5
USUAL = 132  # pairs of 12 classes, for which that lead was chosen; more pairs find more by chance


class Group(NamedTuple):
    """Samples of one class that look like another's."""

    place: int
    like: int
    rows: NDArray[np.int64]


def misplaced(features: NDArray[Any], labels: NDArray[np.int64]) -> list[Group]:
    """Return groups of samples that look as if they were in a wrong class, the clearest first."""
    labeled = np.flatnonzero(labels >= 0)
    names, classes = np.unique(labels[labeled], return_inverse=True)
    counts = np.bincount(classes, minlength=len(names))
    large = counts >= ENOUGH
    if large.sum() < 2 or len(labeled) > MANY:
        return []
    answers = _left_out(_directions(features[labeled], classes), classes)
    nearest = answers.argmax(1)
    rows_of = [np.flatnonzero(classes == c) for c in range(len(names))]
    least = LEAD + np.log(max(1.0, large.sum() * (large.sum() - 1) / USUAL))
    result = []
    strays = np.unique(
        np.stack([classes, nearest], 1)[classes != nearest], axis=0, return_counts=True
    )
    for (a, b), count in zip(*strays, strict=True):
        if count < LEAST or not (large[a] and large[b]):
            continue
        lead, posterior = _mixture(answers, rows_of[a], rows_of[b], a, b)
        lead -= max(
            _mixture(answers, rows_of[b], rows_of[a], b, a)[0], 0.0
        )  # two classes alike stray both ways
        members = (posterior >= 0.5) & (nearest[rows_of[a]] == b)
        if lead > least and members.sum() >= LEAST:
            order = np.argsort(-posterior[members], kind="stable")
            result.append(
                (lead, Group(int(names[a]), int(names[b]), labeled[rows_of[a][members][order]]))
            )
    return [group for _, group in sorted(result, key=lambda scored: -scored[0])]


def misplaced_files(benchmark: Benchmark) -> list[dict[str, Any]]:
    """Return the groups of a benchmark of one's own pictures, once a frozen encoder has made
    features of them.
    """
    if benchmark.files is None or benchmark.pictures is None:
        return []
    features = benchmark.features
    names = benchmark.space.names
    vectors = features if features.ndim == 2 else features.reshape(*features.shape[:2], -1).mean(-1)
    return [
        {"place": names[place], "like": names[like], "files": [benchmark.files[i] for i in rows]}
        for place, like, rows in misplaced(vectors, benchmark.labels)
    ]


def _directions(features: NDArray[Any], classes: NDArray[np.intp]) -> NDArray[np.float64]:
    """Centre rows by the mean of the classes' means, and bring them to unit length."""
    rows = np.asarray(features, dtype=np.float64)
    rows = rows - np.mean([rows[classes == c].mean(0) for c in range(classes.max() + 1)], axis=0)
    directions: NDArray[np.float64] = rows / np.maximum(
        np.linalg.norm(rows, axis=1, keepdims=True), 1e-12
    )
    return directions


def _left_out(rows: NDArray[np.float64], classes: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return (n, classes) what the ridge regression of all other samples answers for each."""
    n, d = rows.shape
    wanted = np.eye(classes.max() + 1)[classes]
    strength = STRENGTH * n
    if n <= d:
        hat = np.linalg.solve(rows @ rows.T + strength * np.eye(n), rows @ rows.T).T
        leverage = np.diag(hat)[:, None]
        answers = hat @ wanted
    else:
        turned = np.linalg.solve(rows.T @ rows + strength * np.eye(d), rows.T).T
        leverage = (turned * rows).sum(1)[:, None]
        answers = turned @ (rows.T @ wanted)
    left_out: NDArray[np.float64] = (answers - leverage * wanted) / (1 - leverage)
    return left_out


def _mixture(
    answers: NDArray[np.float64], rows_a: NDArray[np.intp], rows_b: NDArray[np.intp], a: int, b: int
) -> tuple[float, NDArray[np.float64]]:
    """Return by how much the log likelihood of class a gains where some samples are b's, and how
    surely each is.
    """
    own_margins, other_margins = (answers[rows, b] - answers[rows, a] for rows in (rows_a, rows_b))
    middle = np.median(own_margins)
    far = np.median(other_margins)
    widths = [
        max(1.4826 * float(np.median(np.abs(x - m))), 1e-9)
        for x, m in ((own_margins, middle), (other_margins, far))
    ]
    if far <= middle:
        return 0.0, np.zeros(len(rows_a))
    ratio = (
        _t_density((own_margins - far) / widths[1])
        / widths[1]
        / (_t_density((own_margins - middle) / widths[0]) / widths[0])
    )
    gains = np.log(1 - SHARES[:, None] + SHARES[:, None] * ratio).sum(1)
    share = SHARES[gains.argmax()]
    return float(gains.max()), share * ratio / (1 - share + share * ratio)


def _t_density(x: NDArray[np.float64]) -> NDArray[np.float64]:
    density: NDArray[np.float64] = (1 + x * x / FREEDOM) ** (-(FREEDOM + 1) / 2)
    return density
