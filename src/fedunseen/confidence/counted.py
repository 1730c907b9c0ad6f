"""Answers about held-out samples as whole numbers that add up over parties, and the fit to them.

The scale is not known before samples are scored. It is one of a few, which all parties count for:

- ``asked`` (2, C): answers about each class, while it was seen and while it played an unseen one
- ``levels`` (S, 3, L): for each scale the level of the true label (:meth:`~.Confidence.levels`):
  of seen classes, of those that play unseen ones, and of these among themselves alone
- ``right`` (S, 2, 2, 2, O): log-odds of the answer, by whether the true class is unseen, whether
  the answer is, and whether it is right
- ``distances`` (D,): how far samples of seen classes are from the nearest prototype
- ``lengths`` (N,): logarithms of how long features are before scaling, of each sample once

``levels`` and ``right`` count weights, by which classes weigh the same. Neighbors in a list
of samples are counted together, as many as ``method.min_samples`` says: where two lie, or at a
mean that no sample dominates. Right and wrong answers are two lists; a shorter one is counted with
another, since what is missing in one of two counts would be shown by their difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.confidence.confidence import Confidence, log_odds, log_softmax
from fedunseen.confidence.fit import POINTS, USUAL, logistic
from fedunseen.confidence.held_out import HeldOut
from fedunseen.core.parameters import Params

Floats = NDArray[np.float64]

SCALES = 9
UNIT = 2**32  # the weight of a class
MOST_FOLDS = 10  # in which a sample is asked about
_STEPS = 2  # scales in a factor of two
# times the spread of scores: the scale that fits best on AWA1_LAMPERT (2.3) and CIFAR100_MBV2 (3.1)
_USUAL = 2.7
_LEVELS = np.linspace(-36.0, 12.0, 161)
_ODDS = np.linspace(-10.0, 15.0, 51)
# times the number of features; with far fewer samples than these, held-out ones lie far away
_DISTANCES = np.r_[0.0, 2.0 ** (np.arange(801) / 40 - 8)]
_BEYOND = 0.005  # of distances may be beyond the last edge, or how far they are is not known
_LENGTHS = np.arange(-1024, 1025) / 32  # from e^-32 to e^32, so that any unit will do
_EQUAL = 1e-12
_SEEN = 0
_UNSEEN = 1
_AMONG = 2


def no_counts(classes: int) -> Params:
    """Return the counts of no answer."""
    shapes = {
        "asked": (2, classes),
        "levels": (SCALES, 3, len(_LEVELS) - 1),
        "right": (SCALES, 2, 2, 2, len(_ODDS) - 1),
        "distances": (len(_DISTANCES) - 1,),
        "lengths": (len(_LENGTHS) - 1,),
    }
    return {name: torch.zeros(shape, dtype=torch.int64) for name, shape in shapes.items()}


def scales_for(spread: float) -> Floats:
    """Return (S,) scales that are tried, for scores with this standard deviation over classes.

    They are powers of the square root of two, so that rounding does not change them.
    """
    middle = round(_STEPS * np.log2(_USUAL / spread)) if spread > 0 else 0
    return np.asarray(2.0 ** ((middle + np.arange(SCALES) - SCALES // 2) / _STEPS))


@dataclass(frozen=True, eq=False)
class Scored:
    """What is counted of the answers of one fold, for each scale.

    Attributes:
        labels: (n,) true classes.
        weights: (n,) whole numbers.
        unseen: (n,) bool, the true class plays an unseen one.
        chosen: (n,) bool, the answer plays an unseen one.
        right: (n,) bool.
        levels, among, odds: (S, n); ``among`` is NaN for seen classes.
        distance: (n,) in units of the number of features; empty without any.
        lengths: (n,) logarithms; empty where they are not known, or mean nothing.
    """

    labels: NDArray[np.int64]
    weights: NDArray[np.int64]
    unseen: NDArray[np.bool_]
    chosen: NDArray[np.bool_]
    right: NDArray[np.bool_]
    levels: Floats
    among: Floats
    odds: Floats
    distance: Floats
    lengths: Floats

    @classmethod
    def of(
        cls,
        fold: HeldOut,
        labels: NDArray[np.int64],
        weights: NDArray[np.int64],
        scales: Floats,
        offset: float,
        width: int,
    ) -> "Scored":
        """Return what is counted of a fold's scores; ``width``: how many features there are."""
        scores = fold.calibrated(offset)
        rows = np.arange(len(scores))
        answer = scores.argmax(1)
        of_unseen = fold.asks_unseen
        columns = np.flatnonzero(fold.unseen)
        place = np.searchsorted(columns, fold.labels[of_unseen])
        levels = np.empty((len(scales), len(rows)))
        odds = np.empty_like(levels)
        among = np.full_like(levels, np.nan)
        for k, scale in enumerate(scales):
            logs = log_softmax(scores, scale)
            levels[k] = logs[rows, fold.labels] + np.log(scores.shape[1])
            odds[k] = log_odds(logs[rows, answer])
            if len(columns) > 1 and of_unseen.any():
                logs = log_softmax(scores[np.ix_(of_unseen, columns)], scale)
                among[k, of_unseen] = logs[np.arange(len(logs)), place] + np.log(len(columns))
        distance = np.empty(0) if fold.distance is None else fold.distance / width
        lengths = np.empty(0) if fold.lengths is None or not len(distance) else fold.lengths
        right = answer == fold.labels
        chosen = fold.unseen[answer]
        return cls(
            labels, weights, of_unseen, chosen, right, levels, among, odds, distance, lengths
        )

    @classmethod
    def together(cls, parts: Sequence["Scored"]) -> "Scored":
        """Return the answers of the same fold about several parts of the samples."""
        fields = {
            name: np.concatenate([getattr(part, name) for part in parts], axis=-1)
            for name in cls.__dataclass_fields__
        }
        return cls(**fields)


def counted(folds: Sequence[Scored], classes: int, least: int) -> Params:
    """Return the counts of answers; ``least``: how many samples are counted together."""
    sums = {name: value.numpy() for name, value in no_counts(classes).items()}
    # a class plays an unseen one once, so that all folds together ask once about each sample
    pools = [(fold, ~fold.unseen, _SEEN) for fold in folds]
    together = Scored.together(folds)
    pools.append((together, together.unseen, _UNSEEN))
    once = _UNSEEN if together.unseen.any() else _SEEN
    for fold, mine, kind in pools:
        if mine.sum() < least:
            continue
        sums["asked"][kind] += np.bincount(fold.labels[mine], minlength=classes)
        for k in range(SCALES):
            sums["levels"][k, kind] += _histogram(
                fold.levels[k], fold.weights, mine, least, _LEVELS
            )
            if kind == _UNSEEN:
                alone = mine & ~np.isnan(fold.among[k])
                others = int(mine.sum() - alone.sum())
                if not 0 < others < least:
                    sums["levels"][k, _AMONG] += _histogram(
                        fold.among[k], fold.weights, alone, least, _LEVELS
                    )
            for (chosen, right), alike in _lists(fold, mine, least).items():
                sums["right"][k, kind, chosen, right] += _histogram(
                    fold.odds[k], fold.weights, alike, least, _ODDS
                )
        if kind == _SEEN and len(fold.distance):
            ones = np.ones(len(fold.distance), dtype=np.int64)
            sums["distances"] += _histogram(fold.distance, ones, mine, least, _DISTANCES)
        if kind == once and len(fold.lengths):
            ones = np.ones(len(fold.lengths), dtype=np.int64)
            sums["lengths"] += _histogram(fold.lengths, ones, mine, least, _LENGTHS)
    return {name: torch.from_numpy(value) for name, value in sums.items()}


def _lists(
    fold: Scored, mine: NDArray[np.bool_], least: int
) -> dict[tuple[int, int], NDArray[np.bool_]]:
    """Return which of the samples ``mine`` (n,) are in which list: by whether the answer plays an
    unseen class, and whether it is right.

    A list of fewer than ``least`` samples becomes part of the other one that is as right, or of the
    longest.
    """
    lists = {
        (chosen, right): mine & (fold.chosen == chosen) & (fold.right == right)
        for chosen in (0, 1)
        for right in (0, 1)
    }
    lists = {place: members for place, members in lists.items() if members.any()}
    while len(lists) > 1:
        shortest = min(lists, key=lambda place: int(lists[place].sum()))
        if lists[shortest].sum() >= least:
            break
        members = lists.pop(shortest)
        alike = (1 - shortest[0], shortest[1])
        if alike not in lists:
            alike = max(lists, key=lambda place: int(lists[place].sum()))
        lists[alike] = lists[alike] | members
    return lists


def _histogram(
    values: Floats,
    weights: NDArray[np.int64],
    mine: NDArray[np.bool_],
    least: int,
    edges: Floats,
) -> NDArray[np.int64]:
    """Return the weights (n,) in each bin of the values (n,), as (bins,).

    ``least`` neighbors in the list of values, or some more, are counted together: see
    :func:`_place`.
    """
    counts = np.zeros(len(edges) - 1, dtype=np.int64)
    places = np.flatnonzero(mine)
    if len(places) < least:
        return counts
    order = places[np.argsort(values[places], kind="stable")]
    starts = np.arange(0, len(order) - least + 1, least)
    groups = np.split(values[order], starts[1:])
    bins = np.array([_place(group, edges) for group in groups], dtype=np.int64)
    np.add.at(counts, bins, np.add.reduceat(weights[order], starts))
    return counts


def _place(group: Floats, edges: Floats) -> int:
    """Return the bin in which neighbors (m,), in order, are counted.

    A question can be made so that all of them but one are sure, and their mean would show that one.
    So they are counted where most of them are, if two or more are in one bin. Otherwise their mean
    counts, without those beyond a gap that is wider than all else.
    """
    bins, sizes = np.unique(_bins(group, edges), return_counts=True)
    if sizes.max() > 1:
        return int(bins[sizes.argmax()])
    while len(group) > 2:
        gaps = np.diff(group)
        widest = int(gaps.argmax())
        if 2 * gaps[widest] <= group[-1] - group[0]:
            break
        below = widest + 1
        # two sides of two: one of them, since no mean between both has a sample near it
        group = group[:below] if 2 * below >= len(group) else group[below:]
    return int(_bins(group.mean(), edges))


def _bins(values: Any, edges: Floats) -> NDArray[np.int64]:
    """Return the bins of values; those beyond the edges are in the outermost."""
    places = np.searchsorted(edges, values, side="right") - 1
    return np.asarray(np.clip(places, 0, len(edges) - 2))


def infeasible(sums: Params, classes: int) -> str:
    """Return why no answers about so many samples can have these counts, or "".

    Args:
        sums: of the names, types and shapes of :func:`no_counts`.
        classes: that the sender holds.
    """
    if any(bool((value < 0).any()) for value in sums.values()):
        return "a count is negative"
    numbers = {name: value.numpy() for name, value in sums.items()}
    totals = numbers["levels"].astype(np.float64).sum(2)  # sums of int64 may wrap
    answers = numbers["right"].astype(np.float64).sum((1, 2, 3, 4))
    most = 1.001 * UNIT * classes * MOST_FOLDS
    if (totals > most).any() or (answers > most).any():
        return "they weigh more than the answers about its classes"
    if any(
        not np.array_equal(by_scale, by_scale[:1].repeat(SCALES, 0))
        for by_scale in (totals, answers)
    ):
        return "scales have different answers"
    counts = numbers["asked"].astype(np.float64)
    if numbers["distances"].astype(np.float64).sum() > counts[_SEEN].sum():
        return "there are more distances than answers"
    if numbers["lengths"].astype(np.float64).sum() > counts.sum(1).max():
        return "there are more lengths than samples"
    return ""


def fit_counts(sums: Params, scales: Floats, share: float, width: int) -> Confidence | None:
    """Return the confidence that follows from counts; None where none were asked about.

    Args:
        sums: of all parties.
        scales: (S,) that the counts are of.
        share: of all questions, the part about unseen classes.
        width: how many features there are.
    """
    numbers = {name: value.cpu().numpy() for name, value in sums.items()}
    answered = numbers["asked"].sum(1)
    weights = np.array([1.0 - share, share]) * (answered > 0)
    if not answered[_SEEN]:
        return None
    weights /= weights.sum()
    levels = numbers["levels"].astype(np.float64)
    levels /= np.maximum(levels.sum(2, keepdims=True), 1.0)
    middle = (_LEVELS[1:] + _LEVELS[:-1]) / 2
    likely = levels @ middle  # (S, 3)
    best = int((likely[:, :2] @ weights).argmax())
    among = likely[:, _AMONG]
    cells = numbers["right"][best].astype(np.float64)
    apart = numbers["distances"]
    near = apart if apart[-1] <= _BEYOND * apart.sum() else apart[:0]
    distances = _quantiles(near, _DISTANCES, int(near.sum())) * width
    lengths = _usual_lengths(numbers["lengths"])
    sure = Confidence(
        scale=float(scales[best]),
        scale_unseen=float(scales[among.argmax()]) if among.any() else 1.0,
        coefficients=_coefficients(cells, weights),
        seen_levels=_quantiles(levels[best, _SEEN], _LEVELS),
        unseen_levels=_quantiles(levels[best, _UNSEEN], _LEVELS),
        distances=distances,
        samples=int(answered[_SEEN]),
        classes=int((numbers["asked"][_UNSEEN] > 0).sum()),
        lengths=lengths,
    )
    return replace(sure, distances=_farther(sure, numbers["lengths"]))


def _usual_lengths(counts: NDArray[np.int64]) -> Floats:
    """Return (2,) between which 99 of 100 lengths are; empty without any, or beyond all bins."""
    total = float(counts.sum())
    if total <= 0 or counts[0] or counts[-1]:
        return np.empty(0)
    shares = np.r_[0.0, np.cumsum(counts / total)]
    return np.asarray(np.interp(USUAL, shares, _LENGTHS))


def _farther(sure: Confidence, counts: NDArray[np.int64]) -> Floats:
    """Return the distances (m,) of a confidence as its samples' lengths make them larger.

    Which length belongs to which distance is not counted: they are taken as independent.
    """
    distances = sure.distances
    if not len(distances) or not len(sure.lengths):
        return distances
    bins = np.flatnonzero(counts)
    middle = (_LENGTHS[bins] + _LENGTHS[bins + 1]) / 2
    spread = np.repeat(distances, len(bins))
    values = sure.farther(spread, np.tile(middle, len(distances)))
    weights = np.tile(counts[bins], len(distances)).astype(np.float64)
    order = np.argsort(values, kind="stable")
    shares = np.cumsum(weights[order])
    wanted = (np.arange(len(distances)) + 1) / len(distances) * shares[-1]  # none is lower
    places = np.searchsorted(shares, wanted - _EQUAL * shares[-1])
    return np.asarray(values[order][places.clip(max=len(values) - 1)])


def _coefficients(cells: Floats, weights: Floats) -> Floats:
    """Return the logistic coefficients of "the answer is right" from cells (2, 2, 2, O).

    The ratio of the two largest probabilities and the entropy are not counted, so theirs are 0.
    """
    cells = cells / np.maximum(cells.sum((1, 2, 3), keepdims=True), 1.0)
    cells = (cells * weights[:, None, None, None]).sum(0)  # chosen, right, odds
    odds = np.broadcast_to((_ODDS[1:] + _ODDS[:-1]) / 2, cells.shape)
    chosen, right = (np.broadcast_to(axis, cells.shape) for axis in np.ogrid[:2, :2, :1][:2])
    zeros = np.zeros(cells.shape)
    columns = [np.ones(cells.shape), odds, chosen, odds * chosen, zeros, zeros]
    inputs = np.stack([column.ravel() for column in columns], axis=1).astype(np.float64)
    return logistic(inputs, right.ravel() > 0, cells.ravel())


def _quantiles(counts: NDArray[Any], edges: Floats, most: int = POINTS) -> Floats:
    """Return sorted values at evenly spaced shares of a histogram; none of an empty one."""
    total = float(counts.sum())
    if total <= 0:
        return np.empty(0)
    points = min(POINTS, most)
    wanted = (np.arange(points) + 0.5) / points
    shares = np.r_[0.0, np.cumsum(counts / total)]
    return np.asarray(np.interp(wanted, shares, edges))
