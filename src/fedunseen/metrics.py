"""Zero-shot and few-shot accuracy as the field measures it, on plain arrays.

Accuracies are means over classes, in percent: every class counts the same, however many samples it
has (Xian et al. 2018). In generalized zero-shot learning U and S are the accuracies on samples of
unseen and of seen classes, and H is their harmonic mean. Calibrated stacking (Chao et al. 2016)
lowers the scores of seen classes by an offset gamma, in the method's own score units.

``scores`` (n, C) say how well each class fits each sample, the higher the better; ``labels`` (n,)
are true classes, as columns of the scores; ``seen`` and ``unseen`` are ids of classes, or (C,)
bool. What does not fit raises :class:`~fedunseen.core.errors.ArgumentError`.

A paired difference asks two models the same questions, which narrows its interval. It says nothing
of another seed: :func:`paired_difference` of the seeds' numbers does.

Example:
    >>> scores = np.array([[0.9, 0.1, 0.3], [0.2, 0.8, 0.6], [0.7, 0.1, 0.6]])  # three samples, three classes
    >>> labels, seen, unseen = [0, 1, 2], [0, 1], [2]
    >>> zsl(scores, labels, unseen)
    100.0
    >>> generalized(scores, labels, seen, unseen)
    Generalized(unseen=0.0, seen=100.0, harmonic=0.0)
    >>> generalized(scores, labels, seen, unseen, offset=calibrate(scores, labels, seen, unseen))
    Generalized(unseen=100.0, seen=100.0, harmonic=100.0)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedunseen.core.errors import ArgumentError

__all__ = [
    "Answers", "Generalized", "Metrics", "accuracies", "answers_of", "best_offset", "calibrate", "class_difference",
    "confidence", "confusion", "episode_accuracies", "episode_confusion", "forgetting", "generalized",
    "group_accuracies", "harmonic_difference", "harmonic_mean", "paired_difference", "per_class", "zsl",
]  # fmt: skip

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Right = NDArray[np.bool_]

_CANDIDATES = 2000  # calibration offsets tried
_Z = 1.96


class Generalized(NamedTuple):
    """Generalized zero-shot accuracies in percent: U, S and H."""

    unseen: float
    seen: float
    harmonic: float


# From scores


def zsl(scores: ArrayLike, labels: ArrayLike, unseen: ArrayLike) -> float:
    """Return the ZSL accuracy in percent: samples of unseen classes, answered among the unseen
    classes only.

    Samples of other classes do not count.

    Example:
        >>> zsl([[9.0, 0.1, 0.2], [9.0, 0.3, 0.2]], [1, 1], unseen=[1, 2])
        50.0
    """
    table, truth = _checked(scores, labels)
    candidates = _ids("unseen", unseen, table.shape[1])
    mine = _samples_of("unseen", truth, candidates)
    return _mean_per_class(
        candidates[table[np.ix_(mine, candidates)].argmax(1)] == truth[mine], truth[mine]
    )


def generalized(
    scores: ArrayLike, labels: ArrayLike, seen: ArrayLike, unseen: ArrayLike, offset: float = 0.0
) -> Generalized:
    """Return the generalized accuracies U, S and H in percent: all samples, answered among all
    classes.

    ``offset`` is gamma, what the scores of seen classes are lowered by; 0 changes none. Columns
    that are neither seen nor unseen are never the answer.

    Example:
        >>> generalized([[0.9, 0.1], [0.6, 0.5]], [0, 1], seen=[0], unseen=[1], offset=0.2)
        Generalized(unseen=100.0, seen=100.0, harmonic=100.0)
    """
    result = accuracies(_checked_answers(scores, labels, seen, unseen), offset)
    return Generalized(result.gzsl_unseen, result.gzsl_seen, result.gzsl_harmonic)


def calibrate(scores: ArrayLike, labels: ArrayLike, seen: ArrayLike, unseen: ArrayLike) -> float:
    """Return the calibration offset gamma with the highest harmonic mean; choose it on validation
    classes.

    On validation classes these play the unseen ones.

    Example:
        >>> calibrate([[0.9, 0.1], [0.6, 0.5]], [0, 1], seen=[0], unseen=[1])  # any between 0.1 and 0.8
        0.45
    """
    return best_offset([_checked_answers(scores, labels, seen, unseen)])


def lowered(scores: Any, seen: Any, offset: float) -> Any:
    """Return scores (..., C) that can be compared: those of ``seen`` (C,) classes are lowered by
    the offset.

    Scores are an array or a tensor. A linear model's biases (C,) may stand for its scores.

    Example:
        >>> lowered(np.array([0.9, 0.4]), np.array([True, False]), 0.6).round(1).tolist()
        [0.3, 0.4]
    """
    return scores - offset * seen


def harmonic_mean(unseen: float, seen: float) -> float:
    """Return 2US / (U + S), and 0 where both are 0.

    Example:
        >>> round(harmonic_mean(82.0, 89.9), 1)
        85.8
    """
    return 2 * unseen * seen / (unseen + seen) if unseen + seen else 0.0


# From answers


@dataclass(frozen=True)
class Metrics:
    """Per-class top-1 accuracies in percent."""

    zsl: float
    gzsl_unseen: float
    gzsl_seen: float
    gzsl_harmonic: float


@dataclass(frozen=True, eq=False)
class Answers:
    """What a model answers on the test samples, enough to know its accuracies under any calibration
    offset.

    Attributes:
        labels: (n,) true classes.
        best_seen, best_unseen: (n,) the best class among the seen and among the unseen.
        gap: (n,) score of the best seen class less that of the best unseen one; with offset gamma,
            the answer is the seen class where ``gap >= gamma``.
        unseen: (n,) bool, the sample's class is unseen.
        zsl: (n,) the answer among the unseen classes alone: ``best_unseen``, unless the model has
            scores for that.
    """

    labels: Ids
    best_seen: Ids
    best_unseen: Ids
    gap: Floats
    unseen: Right
    zsl: Ids

    def generalised(self, offset: float = 0.0) -> Ids:
        """Return (n,) the answers among all classes."""
        return np.where(self.gap >= offset, self.best_seen, self.best_unseen)


def answers_of(scores: NDArray[np.floating], labels: Ids, seen: Ids, unseen: Ids) -> Answers:
    """Turn scores (n, C) into answers; of equal scores the lower id wins, and a seen class over an
    unseen one.
    """
    among_seen = scores[:, seen]
    among_unseen = scores[:, unseen]
    best_unseen = unseen[among_unseen.argmax(1)]
    gap = (among_seen.max(1) - among_unseen.max(1)).astype(np.float64)
    return Answers(
        labels, seen[among_seen.argmax(1)], best_unseen, gap, np.isin(labels, unseen), best_unseen
    )


def accuracies(answers: Answers, offset: float = 0.0) -> Metrics:
    """Return the accuracies under calibration offset gamma = ``offset`` (0: none)."""
    u = answers.unseen
    s = ~answers.unseen
    right = answers.generalised(offset) == answers.labels
    unseen = _mean_per_class(right[u], answers.labels[u])
    seen = _mean_per_class(right[s], answers.labels[s])
    among_unseen = _mean_per_class(answers.zsl[u] == answers.labels[u], answers.labels[u])
    return Metrics(among_unseen, unseen, seen, harmonic_mean(unseen, seen))


def over_all(answers: Answers, offset: float = 0.0) -> float:
    """Return the accuracy over all classes that have test samples, each weighing the same, in
    percent.
    """
    right = per_class(answers.labels, answers.generalised(offset), np.unique(answers.labels))
    return float(right.mean())


def group_accuracies(
    answers: Answers, groups: Mapping[str, Ids], offset: float = 0.0
) -> dict[str, float]:
    """Return the per-class accuracy on groups of classes (name -> ids) in percent, all classes
    being candidates.

    A group without a test sample is left out of the result.

    Example:
        >>> answers = answers_of(np.eye(3)[[0, 0, 2]], np.array([0, 1, 2]), np.array([0, 1]), np.array([2]))
        >>> group_accuracies(answers, {"old": np.array([0]), "new": np.array([1]), "unseen": np.array([2])})
        {'old': 100.0, 'new': 0.0, 'unseen': 100.0}
    """
    right = answers.generalised(offset) == answers.labels
    members = {name: np.isin(answers.labels, ids) for name, ids in groups.items()}
    return {
        name: _mean_per_class(right[mine], answers.labels[mine])
        for name, mine in members.items()
        if mine.any()
    }


def forgetting(stages: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return by how much the accuracy on each group fell from its highest to its last (Chaudhry et
    al. 2018, Eq. 3).

    ``stages`` has the accuracies on groups of classes after each round, in percent. The result has
    percentage points of the groups that were measured after the last round and before it.

    Example:
        >>> forgetting([{"a": 80.0}, {"a": 90.0, "b": 50.0}, {"a": 70.0, "b": 60.0, "c": 10.0}])
        {'a': 20.0, 'b': -10.0}
    """
    result = {}
    for name, last in (stages[-1] if stages else {}).items():
        before = [stage[name] for stage in stages[:-1] if name in stage]
        if before:
            result[name] = max(before) - last
    return result


def best_offset(many: Sequence[Answers]) -> float:
    """Return the calibration offset with the highest harmonic mean, averaged over the given models'
    answers.

    Both accuracies are steps as functions of gamma, so that the gaps (or quantiles of many) are all
    there is to try.
    """
    gaps = np.unique(np.concatenate([answers.gap for answers in many]))
    if len(gaps) > _CANDIDATES:
        gaps = np.unique(np.quantile(gaps, np.linspace(0, 1, _CANDIDATES)))
    # Between two gaps nothing changes: the middle of the interval is the most robust choice.
    candidates = np.concatenate([[gaps[0] - 1e-6], (gaps[1:] + gaps[:-1]) / 2, [gaps[-1] + 1e-6]])
    total = np.zeros(len(candidates))
    for answers in many:
        unseen, seen = _unseen_and_seen(answers, candidates)
        total += np.divide(
            2 * unseen * seen, unseen + seen, out=np.zeros_like(total), where=unseen + seen > 0
        )
    best = np.flatnonzero(total >= total.max() - 1e-12)
    # Of a plateau, the offset nearest to none at all.
    return float(candidates[best[np.abs(candidates[best]).argmin()]])


def unseen_and_seen(answers: Answers, offsets: Floats) -> tuple[Floats, Floats]:
    """Return U and S (k,) in percent under each of many offsets, as :func:`accuracies` has them."""
    unseen, seen = _unseen_and_seen(answers, offsets)
    return 100 * unseen, 100 * seen


def _unseen_and_seen(answers: Answers, offsets: Floats) -> tuple[Floats, Floats]:
    s = ~answers.unseen
    unseen = _share_below(answers, answers.unseen, answers.best_unseen, offsets)
    seen = _share_below(answers, s, answers.best_seen, np.array([np.inf])) - _share_below(
        answers, s, answers.best_seen, offsets
    )
    return unseen, seen


def per_class(labels: ArrayLike, answers: ArrayLike, classes: ArrayLike) -> Floats:
    """Return (m,) the percentage of right answers among each class's samples; NaN where there are
    none.

    Arguments are as for :func:`confusion`.

    Example:
        >>> per_class(["cat", "cat", "dog"], ["cat", "dog", "dog"], ["cat", "dog", "eel"])
        array([ 50., 100.,  nan])
    """
    table = confusion(labels, answers, classes)
    return np.diagonal(table).copy()


def confusion(labels: ArrayLike, answers: ArrayLike, classes: ArrayLike) -> Floats:
    """Return (m, m) how often, in percent of row i's samples, class ``classes[i]`` is answered with
    ``classes[j]``.

    ``labels`` and ``answers`` (n,) are classes by id or by name, ``classes`` (m,) those wanted, in
    order. Samples of other classes do not count, an answer outside leaves its row below 100, and
    rows of classes without samples are NaN.

    Example:
        >>> confusion([7, 7, 5], [7, 5, 5], [5, 7])
        array([[100.,   0.],
               [ 50.,  50.]])
    """
    truth = np.asarray(labels)
    answered = np.asarray(answers)
    order = np.asarray(classes)
    if truth.shape != answered.shape:
        raise ArgumentError(
            f"there are {truth.size} labels, but {answered.size} answers: give one a sample"
        )
    if not np.isin(truth, order).any():
        return np.full((len(order), len(order)), np.nan)
    order_of_ids = np.argsort(order, kind="stable")
    counts = np.zeros((len(order), len(order)), dtype=np.int64)
    among = np.isin(truth, order) & np.isin(answered, order)
    rows, columns = (
        order_of_ids[np.searchsorted(order, ids[among], sorter=order_of_ids)]
        for ids in (truth, answered)
    )
    np.add.at(counts, (rows, columns), 1)
    totals = np.array([[(truth == item).sum()] for item in order])
    return np.where(totals > 0, 100.0 * counts / np.maximum(totals, 1), np.nan)


# From episodes


def episode_accuracies(answers: Ids) -> Floats:
    """Return (E,) the accuracies in percent of answers (E, N, Q) to E episodes of N classes with Q
    queries each.

    An answer is a class's place in its episode, 0..N - 1.

    Example:
        >>> episode_accuracies(np.array([[[0, 0], [1, 0]], [[0, 0], [1, 1]]])).tolist()
        [75.0, 100.0]
    """
    right = answers == np.arange(answers.shape[1])[:, None]
    return np.asarray(100 * right.mean((1, 2)))


def episode_confusion(labels: Ids, answers: Ids, ids: Ids) -> tuple[Floats, Ids]:
    """Return how often class ``ids[i]`` is answered with ``ids[j]`` in the episodes that have both,
    and in how many.

    ``labels`` and ``answers`` (E, N, Q) are the classes of N classes' Q queries in each episode,
    ``ids`` (m,) the classes that occur, sorted. Returns (m, m) percent, NaN where no episode has
    both, and (m, m) episodes.

    Example:
        >>> labels, answers = np.array([[[3, 3], [5, 5]]]), np.array([[[3, 5], [5, 5]]])
        >>> episode_confusion(labels, answers, np.array([3, 5]))[0]
        array([[ 50.,  50.],
               [  0., 100.]])
    """
    truth = np.searchsorted(ids, labels)
    answered = np.searchsorted(ids, answers)
    table = np.zeros((len(ids), len(ids)))
    np.add.at(table, (truth.ravel(), answered.ravel()), 1)
    together = np.zeros((len(ids), len(ids)), dtype=np.int64)
    present = truth[:, :, 0]
    np.add.at(together, (present[:, :, None], present[:, None, :]), 1)
    queries = together * labels.shape[2]
    return np.where(queries > 0, 100.0 * table / np.maximum(queries, 1), np.nan), together


def confidence(accuracies: Floats) -> tuple[float, float]:
    """Return the mean of episodes' accuracies (E,) and half of its 95 % interval, 1.96 sd /
    sqrt(E).

    Example:
        >>> confidence(np.array([40.0, 60.0]))[0], round(confidence(np.array([40.0, 60.0]))[1], 3)
        (50.0, 19.6)
    """
    spread = float(accuracies.std(ddof=1)) if len(accuracies) > 1 else float("nan")
    return float(accuracies.mean()), _Z * spread / len(accuracies) ** 0.5


# Between two models


def t_critical(freedom: float) -> float:
    """Return the 97.5 % point of Student's t: a 95 % interval is as many standard errors to either
    side.

    Example:
        >>> round(t_critical(2), 2), round(t_critical(1000), 2)
        (4.3, 1.96)
    """
    from scipy.special import stdtrit  # a quarter of a second to import

    return float(stdtrit(freedom, 0.975))


def paired_difference(ours: Floats, theirs: Floats) -> tuple[float, float]:
    """Return the mean of ``ours - theirs`` (n,) and half of its 95 % interval by Student's t; NaN
    of fewer than two.

    Example:
        >>> mean, half = paired_difference(np.array([61.0, 52.0, 73.0]), np.array([60.0, 50.0, 70.0]))
        >>> mean, round(half, 2)  # t(0.975; 2) = 4.30 times 1 / sqrt(3)
        (2.0, 2.48)
    """
    apart = ours - theirs
    if len(apart) < 2:
        return float(apart.mean()), float("nan")
    half = t_critical(len(apart) - 1) * apart.std(ddof=1) / len(apart) ** 0.5
    return float(apart.mean()), float(half)


def class_difference(labels: Ids, ours: Right, theirs: Right) -> tuple[float, float]:
    """Return the difference of two per-class accuracies in percent, and half of its 95 % interval.

    ``labels`` (n,) are true classes; ``ours`` and ``theirs`` (n,) say whether each model's answer
    is right. Classes are fixed, and the samples within each are drawn: the variance of the mean
    over C classes is the sum over classes of s_c^2 / n_c, over C^2. NaN where a class has but one
    sample.

    Example:
        >>> right = np.array([True, True, False, True]), np.array([False, True, False, True])
        >>> mean, half = class_difference(np.array([0, 0, 1, 1]), *right)
        >>> mean, round(half, 1)
        (25.0, 49.0)
    """
    mean, variance = _over_classes(labels, 100.0 * ours - 100.0 * theirs)
    return mean, _Z * variance**0.5


def harmonic_difference(
    labels: Ids, seen: Right, ours: Right, theirs: Right
) -> tuple[float, float]:
    """Return the difference of two harmonic means (S, U) in percent, and half of its 95 % interval.

    Arguments are as for :func:`class_difference`; ``seen`` (n,) says whether the true class is a
    seen one. To first order H = 2 S U / (S + U) changes by 2 U^2 / (S + U)^2 times S's change, and
    likewise by U's.
    """
    sides = (seen, ~seen)
    means, slopes = zip(*(_harmonic(labels, sides, right) for right in (ours, theirs)), strict=True)
    variance = 0.0
    for side, first, second in zip(sides, *slopes, strict=True):
        variance += _over_classes(
            labels[side], 100.0 * (first * ours[side] - second * theirs[side])
        )[1]
    return means[0] - means[1], _Z * variance**0.5


def accuracy_intervals(
    labels: Ids, seen: Right, zsl: Right, gzsl: Right
) -> dict[str, tuple[float, float]]:
    """Return 95 % intervals in percent of ZSL, U, S, H and the accuracy over all classes, by their
    names in ``result.json``.

    Classes are fixed, and the samples within each are drawn. A class of n samples, k of them right,
    has the variance p (1 - p) / n with p = (k + 1) / (n + 2): one with a single sample counts with
    nearly that of a coin. H is linear in S and U to first order.

    Args:
        labels: (n,) true classes.
        seen: (n,) bool, the true class is a seen one.
        zsl: (n,) bool, the answer among unseen classes is right; only those of unseen ones count.
        gzsl: (n,) bool, the answer among all classes is right.

    Example:
        >>> right = np.array([True, True, True, False])
        >>> seen = np.array([False, True, True, True])
        >>> found = accuracy_intervals(np.array([0, 1, 1, 1]), seen, right, right)
        >>> [round(end) for end in found["gzsl_seen"]]  # around 67
        [11, 100]
    """
    if seen.all() or not seen.any():
        return {}
    every = np.ones_like(seen)
    cases = {"zsl": (~seen, zsl), "gzsl_unseen": (~seen, gzsl), "gzsl_seen": (seen, gzsl)}
    estimates = {}
    for name, (rows, right) in {**cases, "gzsl_accuracy": (every, gzsl)}.items():
        _, places, counts = np.unique(labels[rows], return_inverse=True, return_counts=True)
        hits = np.bincount(places, right[rows], len(counts))
        share = (hits + 1) / (counts + 2)
        variance = 1e4 * float((share * (1 - share) / counts).sum()) / len(counts) ** 2
        estimates[name] = 100 * float((hits / counts).mean()), variance
    u, of_u = estimates["gzsl_unseen"]
    s, of_s = estimates["gzsl_seen"]
    slopes = (2 * u**2 / (s + u) ** 2, 2 * s**2 / (s + u) ** 2) if s + u else (1.0, 1.0)
    variance = slopes[0] ** 2 * of_s + slopes[1] ** 2 * of_u
    estimates["gzsl_harmonic"] = harmonic_mean(u, s), variance
    return {
        name: (max(0.0, mean - _Z * variance**0.5), min(100.0, mean + _Z * variance**0.5))
        for name, (mean, variance) in estimates.items()
    }


def _harmonic(
    labels: Ids, sides: tuple[Right, Right], right: Right
) -> tuple[float, tuple[float, float]]:
    """Return the harmonic mean, and its slopes along seen and unseen accuracy."""
    s, u = (
        _over_classes(labels[side], 100.0 * right[side].astype(np.float64))[0] for side in sides
    )
    if s + u == 0:
        return 0.0, (0.0, 0.0)
    return 2 * s * u / (s + u), (2 * u**2 / (s + u) ** 2, 2 * s**2 / (s + u) ** 2)


def _over_classes(labels: Ids, values: Floats) -> tuple[float, float]:
    """Return the mean over classes of the means of values (n,), and its variance."""
    each = [values[labels == c] for c in np.unique(labels)]
    mean = float(np.mean([item.mean() for item in each]))
    variances = [item.var(ddof=1) / len(item) if len(item) > 1 else float("nan") for item in each]
    return mean, float(np.sum(variances)) / len(each) ** 2


# What they share


def _share_below(answers: Answers, group: Right, answered: Ids, offsets: Floats) -> Floats:
    """Return per-class accuracy of ``answered`` within ``group`` counting only samples with gap <
    offset.
    """
    labels = answers.labels[group]
    right = (answered == answers.labels)[group]
    _, position, counts = np.unique(labels, return_inverse=True, return_counts=True)
    weight = 1.0 / counts[position] / len(counts)
    gap = answers.gap[group][right]
    order = np.argsort(gap)
    cumulative = np.concatenate([[0.0], np.cumsum(weight[right][order])])
    return cumulative[np.searchsorted(gap[order], offsets, side="left")]


def _mean_per_class(right: Right, labels: Ids) -> float:
    """Return the mean over classes of the share of right answers, in percent."""
    _, position, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return float(100 * (np.bincount(position, right) / counts).mean())


def _checked(scores: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.floating], Ids]:
    """Return scores (n, C) and labels (n,) as arrays, or raise ``ArgumentError`` if they do not
    fit.
    """
    table = np.asarray(scores)
    truth = np.asarray(labels)
    if table.ndim != 2 or truth.shape != table.shape[:1]:
        raise ArgumentError(
            f"scores have the shape {table.shape} and labels {truth.shape}: give (n, C) and (n,)"
        )
    if table.dtype.kind not in "fiu" or not np.isfinite(table).all():
        raise ArgumentError(
            "scores hold what is not a finite number: a class that must not win is left out of the "
            "ids"
        )
    return table, _ids("labels", truth, table.shape[1])


def _ids(role: str, columns: ArrayLike, classes: int) -> Ids:
    """Return ids of columns, from ids or from (C,) bool, or raise ``ArgumentError`` if they are
    none.
    """
    values = np.asarray(columns)
    if role != "labels" and values.dtype == bool and values.shape == (classes,):
        return np.flatnonzero(values)
    if values.ndim != 1 or (len(values) and values.dtype.kind not in "iu"):
        raise ArgumentError(f"{role} are not a list of whole numbers: give columns of the scores")
    if len(values) and not (values.min() >= 0 and values.max() < classes):
        wrong = values.min() if values.min() < 0 else values.max()
        raise ArgumentError(
            f"{role} name class {wrong}, but the scores have the columns 0 to {classes - 1}"
        )
    return values.astype(np.int64)


def _samples_of(side: str, labels: Ids, ids: Ids) -> Right:
    mine = np.isin(labels, ids)
    if not mine.any():
        raise ArgumentError(
            f"no sample is of {'an' if side == 'unseen' else 'a'} {side} class: there is nothing "
            "to measure"
        )
    return mine


def _checked_answers(
    scores: ArrayLike, labels: ArrayLike, seen: ArrayLike, unseen: ArrayLike
) -> Answers:
    table, truth = _checked(scores, labels)
    among = _ids("seen", seen, table.shape[1]), _ids("unseen", unseen, table.shape[1])
    if len(shared := np.intersect1d(*among)):
        raise ArgumentError(
            f"class {shared[0]} is both seen and unseen: it can be one of them only"
        )
    mine = _samples_of("seen", truth, among[0]) | _samples_of("unseen", truth, among[1])
    return answers_of(table[mine], truth[mine], *map(np.sort, among))
