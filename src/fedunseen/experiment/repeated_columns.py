"""Columns of a table that repeat others of it in all but few rows of a class: these get what the
other column says (:mod:`fedunseen.experiment.relations`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.originals import ABSENT, Originals
from fedunseen.core.samples import RoundingScaler
from fedunseen.data import Benchmark
from fedunseen.experiment.relations import (
    FEW_VALUES,
    Broken,
    Flags,
    Numbers,
    breaking_codes,
    breaking_groups,
    breaking_lines,
)

Search = Callable[[NDArray[np.int64], list[int]], Iterator[Broken]]
"""Rows and columns -> what breaks a relation, by places among these."""


def without_breaks(
    changed: Benchmark,
    places: Sequence[tuple[Any, slice]],
    rows: NDArray[np.int64],
    minimum: int,
    scaler: RoundingScaler | None = None,
) -> bool:
    """Let no few rows of a class break what two columns say of each other otherwise, in place.

    Relations are looked for in features, and in the whole numbers that sums are of: bounds and
    coarse steps make relations where cells have none.

    Args:
        changed: its features and originals change.
        places: each column, and where its features are.
        rows: of the class.
        minimum: rows that are not few.
        scaler: what makes whole numbers of features; None: the features are summed.

    Returns:
        Whether a cell has changed.
    """
    width = changed.features.shape[1]
    views: list[RoundingScaler | None] = [None]
    if scaler is not None and scaler.quantization is not None and scaler.width(width) == width:
        views.append(scaler)
    found = [_Class(changed, places, rows, minimum, view).search() for view in views]
    return any(found)


class _Class:
    """The different rows of a class.

    Args:
        changed: its features and originals change.
        places: each column, and where its features are.
        rows: of the class.
        minimum: rows that are not few.
        scaler: what makes numbers of features that relations are looked for in; None: nothing.
    """

    def __init__(
        self,
        changed: Benchmark,
        places: Sequence[tuple[Any, slice]],
        rows: NDArray[np.int64],
        minimum: int,
        scaler: RoundingScaler | None,
    ) -> None:
        assert changed.originals is not None
        self.changed = changed
        self.originals: Originals = changed.originals
        self.places = places
        self.minimum = minimum
        self.scaler = scaler
        self.rows = rows
        samples = [sample.tobytes() for sample in changed.told_apart(rows)]
        _, self.first, self.which = np.unique(
            np.array(samples, dtype=object), return_index=True, return_inverse=True
        )
        self.view = self._viewed(rows[self.first])
        kinds = [column.kind for column, _ in places]
        self.numbers = [i for i, k in enumerate(kinds) if k in ("number", "date", "boolean")]
        self.categories = [i for i, kind in enumerate(kinds) if kind in ("category", "text")]
        self.known_codes: dict[int, NDArray[np.int64]] = {}
        self.any_change = False

    def search(self) -> bool:
        """Change what breaks a relation; return whether anything has."""
        every = np.arange(len(self.first))
        if len(every) < self.minimum:
            return False
        for column, _ in enumerate(self.places):
            for groups in self._groups(column):
                self._search_numbers(self._others(column), every, self._grouped(groups()))
                if self.scaler is None:
                    self._search_codes(column, groups)
            if column in self.numbers:
                later = [other for other in self.numbers if other > column]
                self._search_numbers(later, every, self._lined(column))
                here = self._present(column)
                if not here.all() and here.any():
                    self._search_numbers(later, np.flatnonzero(here), self._lined(column))
        return self.any_change

    def _viewed(self, rows: NDArray[np.int64]) -> Numbers:
        """Return (n, d) the numbers of rows in which relations are looked for."""
        features = self.changed.features[rows]
        if self.scaler is not None:
            features = self.scaler.codes(features)[0]
        viewed: Numbers = features.astype(np.float64)
        return viewed

    def _present(self, column: int) -> Flags:
        """Return (n,) which rows have a number in a column."""
        start = self.places[column][1].start
        present: Flags = self.originals.sides[self.rows[self.first], start] != ABSENT
        return present

    def _values(self, rows: NDArray[np.int64], columns: list[int]) -> Numbers:
        """Return (n, p) the numbers of some columns."""
        starts = [self.places[column][1].start for column in columns]
        values: Numbers = self.view[np.ix_(rows, starts)]
        return values

    def _codes(self, column: int) -> NDArray[np.int64]:
        """Return (n,) which value each row has in a column; the same if most rows have their own,
        as in free texts.
        """
        if column not in self.known_codes:
            cells = np.ascontiguousarray(self.view[:, self.places[column][1]])
            cells += 0.0  # no negative zeros
            width = cells.dtype.itemsize * cells.shape[1]
            whole = cells.view(np.dtype((np.void, width)))[:, 0]
            values, codes = np.unique(whole, return_inverse=True)
            many = len(values) > len(codes) // self.minimum + self.minimum
            self.known_codes[column] = np.zeros_like(codes) if many else codes
        return self.known_codes[column]

    def _groups(self, column: int) -> Iterator[Callable[[], NDArray[np.int64]]]:
        """Yield what tells rows apart by a column: its values if they are few, and whether it has
        one.
        """
        if column in self.categories:
            yield lambda: self._codes(column)
        elif column in self.numbers:
            start = self.places[column][1].start
            most = min(FEW_VALUES, len(self.view) // self.minimum)
            if len(np.unique(self.view[:, start])) <= most:
                yield lambda: self._codes(column)
            if not self._present(column).all():
                yield lambda: self._present(column).astype(np.int64)

    def _grouped(self, groups: NDArray[np.int64]) -> Search:
        return lambda rows, columns: breaking_groups(
            groups[rows], self._values(rows, columns), columns, self.minimum
        )

    def _lined(self, column: int) -> Search:
        return lambda rows, columns: breaking_lines(
            self._values(rows, [column])[:, 0], self._values(rows, columns), columns, self.minimum
        )

    def _others(self, column: int) -> list[int]:
        """Return the other columns of numbers."""
        return [other for other in self.numbers if other != column]

    def _search_numbers(self, columns: list[int], rows: NDArray[np.int64], search: Search) -> None:
        """Change numbers of columns; of those that some rows lack, also among the others."""
        if columns:
            self._change(rows, search(rows, columns))
        for other in columns:
            here = self._present(other)[rows]
            if not here.all() and here.any():
                self._change(rows[here], search(rows[here], [other]))

    def _search_codes(self, column: int, groups: Callable[[], NDArray[np.int64]]) -> None:
        """Change categories of other columns, and whether rows have a number."""
        every = np.arange(len(self.first))
        for other, _ in enumerate(self.places):
            if other == column:
                continue
            if other in self.categories:
                codes = self._codes(other)
            elif other in self.numbers and not self._present(other).all():
                codes = self._present(other).astype(np.int64)
            else:
                continue
            self._change(every, breaking_codes(groups(), codes, other, self.minimum))

    def _change(self, rows: NDArray[np.int64], found: Iterator[Broken]) -> None:
        """Let rows have what another column says; ``rows``: those that places are among."""
        for broken in found:
            column, place = self.places[broken.column]
            for i, (row, source) in enumerate(zip(broken.rows, broken.sources, strict=True)):
                here = self.rows[self.which == rows[row]]
                there = self.rows[self.first[rows[source]]]
                arrays = (self.changed.features, self.originals.cells, self.originals.sides)
                for array in arrays:
                    array[here, place] = array[there, place]
                exact = self.scaler is None and column.kind != "boolean"
                absent = self.originals.sides[there, place.start] == ABSENT
                if broken.numbers is not None and exact and not absent:
                    number = float(np.clip(broken.numbers[i], 0, 1))
                    self.changed.features[here, place.start] = number
                    if 0 < number < 1:
                        self.originals.sides[here, place.start] = 0
            self.known_codes.pop(broken.column, None)
            self.view[rows[broken.rows]] = self._viewed(self.rows[self.first[rows[broken.rows]]])
            self.any_change = True
