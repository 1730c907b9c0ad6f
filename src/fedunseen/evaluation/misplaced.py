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

A large group widens the spread of A's differences and hides in it. Where that ratio finds none,
confident learning looks again (Northcutt et al. 2021): a logistic regression of A against B answers
for pictures that it was not fitted to. A picture of A counts for B where it is as likely B's as the
pictures of B are on average. Two classes alike stray both ways, so that a group must be clearly
more than what strays from B to A.

Single pictures of several classes are no group. Of each, the ratio of how likely its difference is
in B and in A says whether it is one of B's. Clear ones are taken for B's, and all are asked again,
so that they do not hide each other.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedunseen.data import Benchmark
from fedunseen.evaluation.lighting import answered, badly_lit
from fedunseen.evaluation.summary import BOTH_WAYS

LEAST = 3  # samples of a group
FIRST = 3  # samples to look at first, of a class beside another
ENOUGH = 8  # samples of a class that give a median and a spread
MANY = 20_000  # samples: of more, none are looked for
STRENGTH = 0.01  # of the ridge regression, times the number of samples
FREEDOM = 3.0  # degrees of freedom of the Student distributions
SHARES = np.array([0.05, 0.1, 0.15, 0.2, 0.3, 0.4])  # of a class that may be another's
# of the log likelihood: two of 80 draws of 12 of 30 classes of CIFAR-100 (the even ones of sixty) have more
LEAD = 1.5
USUAL = 132  # pairs of 12 classes, for which that lead was chosen; more pairs find more by chance
LIGHTER = 8.0  # degrees of freedom for single pictures
CLEAR = 5.0  # log ratio from which one is named: of 900 of CIFAR-100 in order, three have more
COMPARED = 14  # other classes, for which that limit was chosen; of more, more look alike by chance
BY_CHANCE = 0.004  # of the pictures of folders in order, at most about so many are named
REPEATS = 2
INVERSE_STRENGTH = 10.0  # of the logistic regression of two classes
FOLDS = 5
SHUFFLES = 5  # of samples over folds, whose probabilities are averaged
TOGETHER = 15.0  # percent of both, on average, from which on they are alike
LARGE = 2_000  # samples of two classes: of more, no regression is fitted
ONE_WAY = 2.0  # times the share that strays back
CLEARLY = (
    2.0  # standard deviations above it: 0.6 to 1.4 for trees alike, 2.0 to 3.9 for wrong labels
)


class Group(NamedTuple):
    """Samples of one class that look like another's."""

    place: int
    like: int
    rows: NDArray[np.int64]


class Pair(NamedTuple):
    """Two classes of which many samples of either look like the other's.

    Attributes:
        first, second: the classes.
        taken: percent of the samples of each that look like the other.
    """

    first: int
    second: int
    taken: tuple[float, float]


class Stray(NamedTuple):
    """A sample of one class that looks like another's."""

    row: int
    place: int
    like: int


def misplaced(features: NDArray[Any], labels: NDArray[np.int64]) -> list[Group]:
    """Return groups of samples that look as if they were in a wrong class, the clearest first."""
    labeled, names, classes, large = _classes_of(labels)
    if large.sum() < 2 or len(labeled) > MANY:
        return []
    rows = _directions(features[labeled], classes)
    answers = _left_out(rows)(classes)
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
        found = lead > least and members.sum() >= LEAST
        back = int(((classes == b) & (nearest == a)).sum())
        one_way = count * len(rows_of[b]) > back * len(rows_of[a])
        if not found and one_way and len(rows_of[a]) + len(rows_of[b]) <= LARGE:
            lead, posterior = _confident(rows, rows_of[a], rows_of[b])
            members = posterior > 0
        if lead > least and members.sum() >= LEAST:
            order = np.argsort(-posterior[members], kind="stable")
            result.append(
                (lead, Group(int(names[a]), int(names[b]), labeled[rows_of[a][members][order]]))
            )
    return [group for _, group in sorted(result, key=lambda scored: -scored[0])]


def strays(features: NDArray[Any], labels: NDArray[np.int64]) -> list[Stray]:
    """Return single samples that look as if they were in a wrong class, the clearest first."""
    labeled, names, classes, large = _classes_of(labels)
    if large.sum() < 2 or len(labeled) > MANY:
        return []
    answers_for = _left_out(_directions(features[labeled], classes))
    taken_for = classes
    clear = CLEAR + np.log(max(1.0, (large.sum() - 1) / COMPARED))
    for _ in range(REPEATS + 1):
        ratios, like = _ratios(answers_for(taken_for), classes, taken_for, large)
        taken_for = np.where(ratios > clear, like, classes)
    far = np.flatnonzero(ratios > clear)
    return [
        Stray(int(labeled[i]), int(names[classes[i]]), int(names[like[i]]))
        for i in far[np.argsort(-ratios[far], kind="stable")]
    ]


def most_alike(features: NDArray[Any], labels: NDArray[np.int64]) -> list[Group]:
    """Return, for each two classes of which several samples of the first look like the second, the
    few that do most. That is no sign of a mistake: samples of classes alike look so, too.
    """
    labeled, names, classes, large = _classes_of(labels)
    if large.sum() < 2 or len(labeled) > MANY:
        return []
    answers = _left_out(_directions(features[labeled], classes))(classes)
    nearest = answers.argmax(1)
    result = []
    for a, b in np.unique(np.stack([classes, nearest], 1)[classes != nearest], axis=0):
        rows = np.flatnonzero((classes == a) & (nearest == b))
        if len(rows) >= LEAST and large[a] and large[b]:
            margins = answers[rows, b] - answers[rows, a]
            first = rows[np.argsort(-margins, kind="stable")[:FIRST]]
            result.append(Group(int(names[a]), int(names[b]), labeled[first]))
    return result


def alike(features: NDArray[Any], labels: NDArray[np.int64]) -> list[Pair]:
    """Return the pairs of classes that look alike, the most alike first.

    Classes alike stray both ways. One that strays one way alone, as wrong labels do, is paired only
    where nearly a third of it does. In a pair, one class is what most strays of the other look
    like: where two kinds of trees look like a third one, they are not blamed on each other.
    """
    labeled, names, classes, large = _classes_of(labels)
    if large.sum() < 2 or len(labeled) > MANY:
        return []
    nearest = _left_out(_directions(features[labeled], classes))(classes).argmax(1)
    counts = np.zeros((len(names), len(names)))
    np.add.at(counts, (classes, nearest), 1.0)
    taken = 100 * counts / counts.sum(1, keepdims=True)
    strays = counts * (1 - np.eye(len(names)))
    most = (strays == strays.max(1, keepdims=True)) & (strays > 0)
    either = np.minimum(counts, counts.T) >= LEAST
    clear = (np.minimum(taken, taken.T) >= BOTH_WAYS) & (taken + taken.T >= 2 * TOGETHER)
    one_way = most & (counts >= 2 * LEAST) & (taken >= 2 * TOGETHER)
    pairs_of = (either & clear & (most | most.T)) | one_way | one_way.T
    found = np.argwhere(np.triu(pairs_of & large & large[:, None], 1))
    pairs = [
        Pair(int(names[a]), int(names[b]), (float(taken[a, b]), float(taken[b, a])))
        for a, b in found
    ]
    return sorted(pairs, key=lambda pair: -sum(pair.taken))


def misplaced_files(benchmark: Benchmark) -> dict[str, Any]:
    """Return what looks misplaced in a benchmark of one's own pictures, once a frozen encoder has
    made features of them: groups (``misplaced``) and single ones (``strays``); and classes with
    pictures that are almost black or white (``badly_lit``). Only what there is.
    """
    if benchmark.files is None or benchmark.pictures is None:
        return {}
    names = benchmark.space.names
    vectors = _vectors_of(benchmark)
    labels = _read_labels(benchmark)
    groups = misplaced(vectors, labels)
    grouped = {row for group in groups for row in group.rows.tolist()}
    remarks: dict[str, Any] = {
        "misplaced": _named(groups, benchmark),
        "strays": [
            {"place": names[place], "like": names[like], "file": benchmark.files[row]}
            for row, place, like in strays(vectors, labels)
            if row not in grouped
        ],
    }
    if remarks["strays"]:
        remarks["strays_by_chance"] = round(BY_CHANCE * float((labels >= 0).sum()), 2)
    found = {key: items for key, items in remarks.items() if items}
    return found | badly_lit(benchmark.pictures, benchmark.files, labels, names)


def lit_tests(
    result: Mapping[str, Any], benchmark: Benchmark, answers: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    """Return ``badly_lit`` of a result with how often test pictures of these classes are wrong;
    empty without files or answers.

    ``answers``: those to the test samples, unseen classes first.
    """
    if benchmark.files is None or "gzsl_answers" not in answers:
        return {}
    rows = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    right = answers["labels"] == answers["gzsl_answers"]
    files = [benchmark.files[row] for row in rows]
    names = [benchmark.space.names[c] for c in benchmark.labels[rows]]
    return {"badly_lit": answered(result["badly_lit"], files, names, right)}


def most_alike_files(benchmark: Benchmark) -> dict[str, Any]:
    """Return what helps where a model confuses two classes of a benchmark: ``most_alike``, pictures
    to look at first (:func:`most_alike`), and ``alike``, classes that look alike (:func:`alike`).
    Nothing where there are none.
    """
    if benchmark.files is None or benchmark.pictures is None:
        return {}
    vectors = _vectors_of(benchmark)
    labels = _read_labels(benchmark)
    names = benchmark.space.names
    pairs = [
        {
            "names": [names[pair.first], names[pair.second]],
            "taken": [round(share, 1) for share in pair.taken],
        }
        for pair in alike(vectors, labels)
    ]
    found = {"most_alike": _named(most_alike(vectors, labels), benchmark), "alike": pairs}
    return {key: items for key, items in found.items() if items}


def _vectors_of(benchmark: Benchmark) -> NDArray[Any]:
    """Return one vector of features a sample (n, d): of maps of places, their mean."""
    features = benchmark.features
    return features if features.ndim == 2 else features.reshape(*features.shape[:2], -1).mean(-1)


def _read_labels(benchmark: Benchmark) -> NDArray[np.int64]:
    """Return the labels, below 0 for samples in no split: pictures that cannot be read, which are
    black.
    """
    labels = np.full_like(benchmark.labels, -1)
    read = np.concatenate([benchmark.train, benchmark.test_seen, benchmark.test_unseen])
    labels[read] = benchmark.labels[read]
    return labels


def _named(groups: Sequence[Group], benchmark: Benchmark) -> list[dict[str, Any]]:
    """Return groups by the names of classes and files."""
    assert benchmark.files is not None
    names = benchmark.space.names
    return [
        {
            "place": names[place],
            "like": names[like],
            "files": [benchmark.files[i] for i in rows],
        }
        for place, like, rows in groups
    ]


def _classes_of(
    labels: NDArray[np.int64],
) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.intp], NDArray[np.bool_]]:
    """Return the labeled rows (n,), their classes' labels (C,), the place of each row's class among
    these (n,), and which classes have enough samples (C,).
    """
    labeled = np.flatnonzero(labels >= 0)
    names, classes = np.unique(labels[labeled], return_inverse=True)
    return labeled, names, classes, np.bincount(classes, minlength=len(names)) >= ENOUGH


def _directions(features: NDArray[Any], classes: NDArray[np.intp]) -> NDArray[np.float64]:
    """Centre rows by the mean of the classes' means, and bring them to unit length."""
    rows = np.asarray(features, dtype=np.float64)
    rows = rows - np.mean([rows[classes == c].mean(0) for c in range(classes.max() + 1)], axis=0)
    directions: NDArray[np.float64] = rows / np.maximum(
        np.linalg.norm(rows, axis=1, keepdims=True), 1e-12
    )
    return directions


def _left_out(
    rows: NDArray[np.float64],
) -> Callable[[NDArray[np.intp]], NDArray[np.float64]]:
    """Return a function of the rows' classes (n,): what the ridge regression of all other samples
    answers for each (n, classes).
    """
    n, d = rows.shape
    strength = STRENGTH * n
    if n <= d:
        hat = np.linalg.solve(rows @ rows.T + strength * np.eye(n), rows @ rows.T).T
        leverage = np.diag(hat)[:, None]
    else:
        turned = np.linalg.solve(rows.T @ rows + strength * np.eye(d), rows.T).T
        leverage = (turned * rows).sum(1)[:, None]

    def answers_for(classes: NDArray[np.intp]) -> NDArray[np.float64]:
        wanted = np.eye(classes.max() + 1)[classes]
        answers = hat @ wanted if n <= d else turned @ (rows.T @ wanted)
        left_out: NDArray[np.float64] = (answers - leverage * wanted) / (1 - leverage)
        return left_out

    return answers_for


def _ratios(
    answers: NDArray[np.float64],
    classes: NDArray[np.intp],
    taken_for: NDArray[np.intp],
    large: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return (n,) by how much the log likelihood of a sample is higher in the nearest class, and
    (n,) that class; minus infinity where the nearest is its own.

    ``taken_for``: the classes by whose samples the others are judged.
    """
    nearest = answers.argmax(1)
    ratios = np.full(len(classes), -np.inf)
    for a, b in np.unique(np.stack([classes, nearest], 1)[classes != nearest], axis=0):
        rows = np.flatnonzero((classes == a) & (nearest == b))
        members = [np.flatnonzero(taken_for == c) for c in (a, b)]
        if large[a] and large[b] and min(map(len, members)) >= LEAST:
            centres, widths, _ = _spreads(answers, members[0], members[1], a, b)
            margins = (answers[rows, b] - answers[rows, a])[:, None]
            near, other = (
                _t_log_density((margins - centres) / widths, LIGHTER).T - np.log(widths)[:, None]
            )
            ratios[rows] = other - near
    return ratios, nearest


def _spreads(
    answers: NDArray[np.float64], rows_a: NDArray[np.intp], rows_b: NDArray[np.intp], a: int, b: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return centers and widths (2,) of the differences of answers b and a in both classes, and the
    differences of a's.
    """
    margins = [answers[rows, b] - answers[rows, a] for rows in (rows_a, rows_b)]
    centres = [float(np.median(values)) for values in margins]
    widths = [
        max(1.4826 * float(np.median(np.abs(values - centre))), 1e-9)
        for values, centre in zip(margins, centres, strict=True)
    ]
    return np.array(centres), np.array(widths), margins[0]


def _mixture(
    answers: NDArray[np.float64], rows_a: NDArray[np.intp], rows_b: NDArray[np.intp], a: int, b: int
) -> tuple[float, NDArray[np.float64]]:
    """Return by how much the log likelihood of class a gains where some samples are b's, and how
    surely each is.
    """
    (middle, far), widths, own_margins = _spreads(answers, rows_a, rows_b, a, b)
    if far <= middle:
        return 0.0, np.zeros(len(rows_a))
    near, other = (
        _t_log_density((own_margins - centre) / width, FREEDOM) - np.log(width)
        for centre, width in zip((middle, far), widths, strict=True)
    )
    ratio = np.exp(other - near)
    gains = np.log(1 - SHARES[:, None] + SHARES[:, None] * ratio).sum(1)
    share = SHARES[gains.argmax()]
    return float(gains.max()), share * ratio / (1 - share + share * ratio)


def _confident(
    rows: NDArray[np.float64], rows_a: NDArray[np.intp], rows_b: NDArray[np.intp]
) -> tuple[float, NDArray[np.float64]]:
    """Return how clear a group of b's samples in class a is, 0 where nothing is, and of each sample
    of a the probability of b, 0 where it is none of the group.
    """
    from sklearn.linear_model import LogisticRegression  # only where two classes are alike
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    both = np.concatenate([rows_a, rows_b])
    is_b = np.arange(len(both)) >= len(rows_a)
    probability = np.mean(
        [
            cross_val_predict(
                LogisticRegression(C=INVERSE_STRENGTH, max_iter=200),
                rows[both],
                is_b,
                cv=StratifiedKFold(FOLDS, shuffle=True, random_state=shuffle),
                method="predict_proba",
            )[:, 1]
            for shuffle in range(SHUFFLES)
        ],
        axis=0,
    )
    strays = (probability >= max(probability[is_b].mean(), 0.5))[~is_b]
    back = (1 - probability >= max((1 - probability)[~is_b].mean(), 0.5))[is_b]
    there = float(strays.sum())
    expected = float(back.mean()) * len(rows_a)
    deviation = float(np.sqrt(there + back.sum()))
    if there <= ONE_WAY * expected or there - expected < CLEARLY * deviation:
        return 0.0, np.zeros(len(rows_a))
    return np.inf, np.where(strays, probability[~is_b], 0.0)


def _t_log_density(x: NDArray[np.float64], freedom: float) -> NDArray[np.float64]:
    """Return the logarithm of Student's density but for a constant."""
    density: NDArray[np.float64] = -(freedom + 1) / 2 * np.log1p(x * x / freedom)
    return density
