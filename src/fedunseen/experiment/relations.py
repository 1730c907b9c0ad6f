"""Rows of a class that alone break what two columns of a table say of each other.

Where a column repeats another, its sum is known from the other's but for the rows in which they
differ, and these are read exactly. So few such rows get what the other column says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FOLLOWS = 0.01
"""Share of a column's variance, up to which what another column leaves of it counts as nothing."""

_EXACT = 1e-10
"""The same where many rows of a small class may break a relation: by chance, few numbers follow."""

_SAMPLED = 64
"""Rows in which relations are looked for; those that are found are tested in all rows."""

_STARTS = 32
"""Pairs of rows through which lines are drawn; one without a row that breaks the line is enough."""

FEW_VALUES = 10
"""Different numbers, up to which each counts as the value of a category."""

_ROUNDING = 1e-6

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Broken:
    """Rows that break a relation.

    Attributes:
        column: whose cells change.
        rows: (b,) those rows.
        sources: (b,) for each, a row that has what the other column says, or is nearest to it.
        numbers: (b,) what the other column says; None: what ``sources`` have.
    """

    column: int
    rows: NDArray[np.int64]
    sources: NDArray[np.int64]
    numbers: Numbers | None = None


def few_breaking(residuals: Numbers, values: Numbers, minimum: int) -> Flags | None:
    """Return (n,) which rows break a relation that all others satisfy, if these are few.

    Args:
        residuals: (n,) what the relation leaves of the values.
        values: (n,) of different rows.
        minimum: rows that are not few.

    Returns:
        None if the relation does not hold, or holds for all rows.

    Example:
        >>> values = np.arange(20.0)
        >>> residuals = np.where(values == 3, 5.0, 0.0)
        >>> np.flatnonzero(few_breaking(residuals, values, 5)).tolist()
        [3]
        >>> few_breaking(values, values, 5) is None
        True
    """
    for kept, rounding, holds in _held(residuals, values, minimum):
        far = np.abs(residuals)
        broken: Flags = far > 2 * far[kept].max() + rounding
        if holds and broken.any():
            return broken
    return None


def follows(residuals: Numbers, values: Numbers, minimum: int) -> bool:
    """Return whether a relation holds in all rows but few: see :func:`few_breaking`."""
    return any(holds for _, _, holds in _held(residuals, values, minimum))


def _held(
    residuals: Numbers, values: Numbers, minimum: int
) -> Iterator[tuple[NDArray[np.int64], float, bool]]:
    """Yield rows without the few that are farthest from a relation, what rounding makes of their
    numbers, and whether it holds for these.
    """
    far = np.abs(residuals)
    ordered = np.argsort(far, kind="stable")
    for dropped, share in _tiers(len(values), minimum):
        kept = ordered[: len(ordered) - dropped]
        spread = np.square(values[kept] - values[kept].mean()).sum()
        rounding = _ROUNDING * float(np.abs(values[kept]).max())
        left = np.square(np.maximum(far[kept] - rounding, 0)).sum()
        yield kept, rounding, bool(left <= share * spread)


def _tiers(count: int, minimum: int) -> Iterator[tuple[int, float]]:
    """Yield how many rows may break a relation, and what it may leave of the others."""
    few = min(minimum - 1, (count - 1) // 4)
    more = min(minimum - 1, (count - 1) // 2)
    if few > 0:
        yield few, FOLLOWS
    if more > few:
        yield more, _EXACT


def middles(groups: NDArray[np.int64], values: Numbers) -> NDArray[np.int64]:
    """Return (n, p) a row of the same group that has the middle of its values (n, p)."""
    found = np.empty(values.shape, dtype=np.int64)
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        place = (len(rows) - 1) // 2
        found[rows] = rows[np.argpartition(values[rows], place, axis=0)[place]]
    return found


def breaking_groups(
    groups: NDArray[np.int64], values: Numbers, columns: list[int], minimum: int
) -> Iterator[Broken]:
    """Yield rows whose numbers are not those of their group, where the others' are.

    Args:
        groups: (n,) of different rows, those with the same value of a column.
        values: (n, p) the numbers of ``columns``.
        columns: (p,) what to call them.
        minimum: rows that are not few.
    """
    some = _sample(len(values))
    guessed = values[some] - np.take_along_axis(
        values[some], middles(groups[some], values[some]), axis=0
    )
    likely = np.flatnonzero(_likely(guessed, values[some], minimum))
    if not len(likely):
        return
    sources = middles(groups, values[:, likely])
    for place, column in enumerate(likely):
        given = values[:, column]
        source = sources[:, place]
        broken = few_breaking(given - given[source], given, minimum)
        if broken is not None:
            rows = np.flatnonzero(broken)
            yield Broken(columns[column], rows, source[rows])


def breaking_codes(
    groups: NDArray[np.int64], codes: NDArray[np.int64], column: int, minimum: int
) -> Iterator[Broken]:
    """Yield rows whose category is not that of their group, where the others' are."""
    table = np.zeros((groups.max() + 1, codes.max() + 1), dtype=np.int64)
    np.add.at(table, (groups, codes), 1)
    rows = np.flatnonzero(codes != table.argmax(1)[groups])
    if 0 < len(rows) <= max((few for few, _ in _tiers(len(codes), minimum)), default=0):
        usual = table.argmax(1)[groups[rows]]
        pairs = zip(groups[rows], usual, strict=True)
        sources = [np.flatnonzero((groups == g) & (codes == c))[0] for g, c in pairs]
        yield Broken(column, rows, np.array(sources))


def breaking_lines(
    given: Numbers, values: Numbers, columns: list[int], minimum: int
) -> Iterator[Broken]:
    """Yield rows whose numbers are not on the line through another column on which the others' are.

    Args:
        given: (n,) the numbers of the other column, in different rows.
        values: (n, p) the numbers of ``columns``.
        columns: (p,) what to call them.
        minimum: rows that are not few.
    """
    if len(given) < 4 or np.ptp(given) == 0:
        return
    slopes, offsets, likely = _lines(given, values, minimum)
    for place in np.flatnonzero(likely):
        number = values[:, place]
        slope = slopes[place]
        offset = offsets[place]
        dropped = max((few for few, _ in _tiers(len(given), minimum)), default=0)
        for _ in range(3):
            far = np.abs(number - slope * given - offset)
            kept = np.argsort(far, kind="stable")[: len(far) - dropped]
            around = given[kept] - given[kept].mean()
            if not around.any():
                break
            slope = around @ number[kept] / (around @ around)
            offset = number[kept].mean() - slope * given[kept].mean()
        wanted = slope * given + offset
        broken = few_breaking(number - wanted, number, minimum)
        if broken is not None:
            rows = np.flatnonzero(broken)
            others = np.flatnonzero(~broken)
            away = np.abs(number[others][None] - wanted[rows][:, None])
            yield Broken(columns[place], rows, others[away.argmin(1)], wanted[rows])


def _lines(given: Numbers, values: Numbers, minimum: int) -> tuple[Numbers, Numbers, Flags]:
    """Return (p,) slopes and offsets of lines on which most of the values may be, and whether they
    may.
    """
    some = np.union1d(_sample(len(given)), _one_of_each(given))
    given = given[some]
    values = values[some]
    draws = np.random.default_rng(0)
    first, second = draws.integers(len(given), size=(2, _STARTS))
    _, one_each = np.unique(given, return_index=True)
    first[::2], second[::2] = one_each[draws.integers(len(one_each), size=(2, _STARTS // 2))]
    first[0] = given.argmin()
    second[0] = given.argmax()
    apart = given[first] != given[second]
    first = first[apart]
    second = second[apart]
    slopes = (values[second] - values[first]) / (given[second] - given[first])[:, None]
    offsets = values[first] - slopes * given[first][:, None]
    left = np.stack(
        [
            _trimmed(values - given[:, None] * slope - offset, minimum)
            for slope, offset in zip(slopes, offsets, strict=True)
        ]
    )
    best = left.argmin(0)[None]
    slope, offset = (np.take_along_axis(array, best, 0)[0] for array in (slopes, offsets))
    return slope, offset, _likely(values - given[:, None] * slope - offset, values, minimum)


def _likely(residuals: Numbers, values: Numbers, minimum: int) -> Flags:
    """Return (p,) whether a relation may leave little of the values (n, p) of some rows."""
    spread = _trimmed(values - np.median(values, axis=0), minimum)
    rounding = len(values) * np.square(_ROUNDING * np.abs(values).max(0))
    likely: Flags = _trimmed(residuals, minimum) <= 5 * FOLLOWS * spread + rounding
    return likely


def _trimmed(residuals: Numbers, minimum: int) -> Numbers:
    """Return (p,) the sum of squares without the largest."""
    dropped = max((few for few, _ in _tiers(len(residuals), minimum)), default=0)
    squares = np.square(residuals)
    if dropped:
        squares = np.partition(squares, len(squares) - dropped, axis=0)[: len(squares) - dropped]
    total: Numbers = squares.sum(0)
    return total


def _one_of_each(given: Numbers) -> NDArray[np.int64]:
    """Return rows with different numbers, the smallest and the largest among them: most rows may
    have the same.
    """
    first = np.unique(given, return_index=True)[1]
    return first[np.linspace(0, len(first) - 1, min(len(first), _SAMPLED)).astype(np.int64)]


def _sample(count: int) -> NDArray[np.int64]:
    """Return which rows of a class relations are looked for in."""
    if count <= _SAMPLED:
        return np.arange(count)
    return np.sort(np.random.default_rng(1).choice(count, _SAMPLED, replace=False))
