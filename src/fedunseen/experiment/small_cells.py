"""Cells of a table that few rows of a class have, or lack, under columns that a coordinator states.

In the sums of a class they would say which value these rows have. Where a value is left out, what
the others lack says it too: so rows of rare values count as other ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.originals import ABSENT, Originals
from fedunseen.core.samples import RoundingScaler
from fedunseen.data import Benchmark
from fedunseen.data.columns.treatment import feature_names
from fedunseen.experiment.relations import follows, middles
from fedunseen.experiment.repeated_columns import without_breaks

_PASSES = 4
"""How often the rules of small cells follow each other, each on what the others have changed."""


@dataclass(frozen=True, eq=False)
class _Recounted:
    """Rows of a class that count as others, since few have their value.

    Attributes:
        rows: (n,) all rows of the class.
        which: (n,) which value each row has.
        few: (n,) which rows count as others.
        most: the value that these count as.
    """

    rows: NDArray[np.int64]
    which: NDArray[np.int64]
    few: NDArray[np.bool_]
    most: int


def without_small_cells(
    benchmark: Benchmark,
    settings: object,
    rows: NDArray[np.int64],
    labels: NDArray[np.int64],
    minimum: int,
    scaler: RoundingScaler | None = None,
) -> Benchmark:
    """Return a part of a table whose classes have no cell that fewer than ``minimum`` rows have.

    - Of a category, values of few rows become ``other`` if enough rows are that then, or else the
      most common value. So do those of a boolean; if all are of few, none is true or false.
    - Of a number, a date or a text, the middle of the others stands for the missing cells of few
      rows; where few rows have a cell, all are missing.
    - Numbers of rows that count as the most common value of another column are within those of the
      class but for few, and where a number says the same as that column, they are its number too:
      what the others have would be known from the other column, and leave these alone.
    - Few rows that break what two columns say of each other otherwise get what the other says.

    Equal rows count once.

    Args:
        benchmark: with :attr:`~fedunseen.data.Benchmark.originals`; otherwise it comes back.
        settings: of ``[data]``, with the columns that the coordinator has stated.
        rows: the samples that sums are of.
        labels: (n,) their classes; the same for all where these are unknown.
        minimum: rows that a cell must have.
        scaler: what makes whole numbers of features; None: sums are of features.
    """
    originals = benchmark.originals
    if originals is None or minimum == 1:
        return benchmark
    features = benchmark.features.copy()
    before = replace(originals, cells=originals.cells.copy(), sides=originals.sides.copy())
    changed = replace(benchmark, features=features, originals=before)
    places = list(_places(getattr(settings, "columns", ()), features.shape[1]))
    for label in np.unique(labels):
        some = rows[labels == label]
        given = originals
        for _ in range(_PASSES):
            _hide_cells(places, changed, given, some, minimum)
            if not without_breaks(changed, places, some, minimum, scaler):
                break
            given = replace(before, cells=before.cells.copy(), sides=before.sides.copy())
    return changed


def _hide_cells(
    places: Sequence[tuple[Any, slice]],
    changed: Benchmark,
    originals: Originals,
    rows: NDArray[np.int64],
    minimum: int,
) -> None:
    """Hide cells of few rows of a class, each column by itself, and numbers beside them; in place.

    ``originals``: what was there before.
    """
    recounted = []
    for column, place in places:
        if column.kind in ("category", "boolean"):
            recounted.append(_hide_values(column, changed, rows, place, minimum))
        else:
            _hide_missing(column, changed, rows, place, minimum)
    for others in filter(None, recounted):
        for column, place in places:
            if column.kind in ("number", "date"):
                _hide_numbers(changed, originals, others, place, minimum)


def _places(columns: Sequence[Any], width: int) -> Iterator[tuple[Any, slice]]:
    """Yield each column with the place of its features; a text has as many as its encoder makes."""
    widths = [len(feature_names(column)) for column in columns]
    texts = [column.kind == "text" for column in columns]
    more = (width - sum(widths)) // max(1, sum(texts))
    start = 0
    for column, numbers, text in zip(columns, widths, texts, strict=True):
        stop = start + numbers + text * more
        yield column, slice(start, stop)
        start = stop


def _hide_values(
    column: Any, changed: Benchmark, rows: NDArray[np.int64], place: slice, minimum: int
) -> _Recounted | None:
    """Let rows with a value of few have another, in place; return them if that is one that others
    have.
    """
    values, which = np.unique(changed.features[rows, place], axis=0, return_inverse=True)
    which = which.ravel()
    counts = np.array([_distinct(changed, rows[which == i]) for i in range(len(values))])
    few = counts < minimum
    if not few.any():
        return None
    other = np.zeros(values.shape[1], dtype=np.float32)
    if column.kind == "category":
        other[len(column.values)] = 1.0
        pooled = rows[few[which] | (values[which] == other).all(1)]
        enough = _distinct(changed, pooled) >= minimum
    else:
        other[0] = 0.5
        enough = False
    most = int(counts.argmax())
    pooled_alone = enough or bool(few.all())
    assert changed.originals is not None
    for array in (changed.features, changed.originals.cells):
        array[rows[few[which]], place] = other if pooled_alone else values[most]
    return None if pooled_alone else _Recounted(rows, which, few[which], most)


def _hide_numbers(
    changed: Benchmark, originals: Originals, others: _Recounted, place: slice, minimum: int
) -> None:
    """Let numbers of rows that count as others be no farther than some others, or where they follow
    from the value, those of the value that the rows count as; in place.
    """
    here = originals.sides[others.rows, place.start] != ABSENT
    cells = originals.cells[others.rows, place.start]
    kept = np.flatnonzero(here & ~others.few)
    told = np.flatnonzero(here & others.few)
    if len(kept) < minimum or not len(told):
        return
    ordered = kept[np.argsort(cells[kept], kind="stable")]
    middle = ordered[len(ordered) // 2]
    enough = len(ordered) >= 2 * minimum
    least = ordered[minimum - 1] if enough else middle
    most = ordered[-minimum] if enough else middle
    sent = changed.features[others.rows, place.start].astype(np.float64)
    if any(_follow(numbers[kept], others.which[kept], minimum) for numbers in (cells, sent)):
        same = ordered[others.which[ordered] == others.most]
        least = most = same[len(same) // 2] if len(same) else middle
    assert changed.originals is not None
    for row in told:
        source = least if cells[row] < cells[least] else most if cells[row] > cells[most] else row
        for array in (changed.features, changed.originals.cells, changed.originals.sides):
            array[others.rows[row], place] = array[others.rows[source], place]


def _follow(numbers: NDArray[np.float64], groups: NDArray[np.int64], minimum: int) -> bool:
    """Return whether numbers of all but few rows say the same as the groups that these are in."""
    groups = np.unique(groups, return_inverse=True)[1].ravel()
    residuals = numbers - numbers[middles(groups, numbers[:, None])[:, 0]]
    return follows(residuals, numbers, minimum)


def _hide_missing(
    column: Any, changed: Benchmark, rows: NDArray[np.int64], place: slice, minimum: int
) -> None:
    """Let no few rows miss a cell, or have one, in place."""
    before = changed.originals
    assert before is not None
    numbers = slice(place.start, place.stop - column.indicator)
    absent = before.sides[rows, place.start] == ABSENT
    missing = rows[absent]
    filled = rows[~absent]
    if not len(missing):
        return
    if not len(filled) or _distinct(changed, filled) < minimum:
        for array in (changed.features, before.cells, before.sides):
            array[filled, place] = array[missing[0], place]
    elif _distinct(changed, missing) < minimum:
        for array in (changed.features, before.cells):
            array[missing, numbers] = np.median(array[filled, numbers], axis=0)
        before.sides[missing, numbers] = 0
        changed.features[missing, numbers.stop : place.stop] = 0


def _distinct(benchmark: Benchmark, rows: NDArray[np.int64]) -> int:
    """Return how many different rows there are."""
    return len({sample.tobytes() for sample in benchmark.told_apart(rows)})
