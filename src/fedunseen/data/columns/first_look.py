"""A first look at a table: which column has the classes, which columns become features, and how.

It is for one machine, and reads the table once. What it suggests is written down where people can
edit it; between machines all parties take it from there.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError, ExperimentError, counted, unknown
from fedunseen.data.columns.settings import KINDS, Column, Kind
from fedunseen.data.columns.treatment import (
    MISSING,
    as_boolean,
    as_days,
    as_number,
    is_missing,
    text_of,
)
from fedunseen.data.io.tables import SPLIT, Block, Cells, Table
from fedunseen.data.names import composed

RARE = 5
"""A category of fewer rows counts as ``other``: naming it would point at these rows."""
MOST = 64
"""Categories of a vocabulary, at most; the most frequent ones."""

_LABELS = ("label", "class", "target", "name")
_IDS = (
    "", "#", "id", "idx", "index", "key", "no", "no.", "nr", "nr.", "number", "row", "row id",
    "rowid", "sample", "sample id", "sample number", "unnamed: 0", "uuid",
)  # fmt: skip
_COUNTED = 8  # rows: numbers that rise by one in fewer of them may be a measurement
_DISTINCT = 2**16  # values of a column that are counted: of more, each has too few rows
_KEPT = 2**16  # numbers that a median is taken of
_EPOCH_DAY = datetime(1970, 1, 1)
_WORDS = 6  # of a text, on average; names and addresses have fewer
_UNIQUE = 0.5  # share of a column's texts that are told apart
_MIXED = 0.5  # share of numbers or dates from which other texts look like mistakes
_CODES = 0.8  # up to this share, texts that hardly repeat do not: ticket numbers have letters, too
_FEWEST_CODES = 5  # so many texts, at least


class Note(NamedTuple):
    """What was decided, in a few words, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class Found:
    """What a table holds.

    Attributes:
        label: the column with the classes; "" where none was looked for.
        names: the classes, sorted, without rows that have none.
        rows: how many there are.
        unlabelled: rows without a class.
        columns: that become features.
        notes: on what is left out or counts as another value.
    """

    label: str
    names: tuple[str, ...]
    rows: int
    unlabelled: int
    columns: tuple[Column, ...]
    notes: tuple[Note, ...]


def look(
    table: Table,
    label: str = "",
    ids: Collection[str] = (),
    kinds: Mapping[str, Kind] | None = None,
    known: Collection[str] = (),
    labelled: bool = True,
) -> Found:
    """Look at a table.

    Args:
        table: is read once, or twice where its class column is found by ``known`` classes.
        label: the column with the classes; "": it is found by its name or by ``known``.
        ids: columns that name the row, and are left out.
        kinds: column -> what its cells are, where that is not to be found out.
        known: names of the classes, where they are known.
        labelled: whether there is a column with the classes.

    Raises:
        DataError: there is no column with the classes, no row, or no column that can be used; a
            column has cells of several kinds.
        ExperimentError: a named column is not there.
    """
    kinds = dict(kinds or {})
    _check_named(table, [label, *ids, *kinds], kinds)
    if labelled and not label:
        label = label_column(table, known, ids)
    used = [name for name in table.names if name not in (label, SPLIT, *ids)]
    seen = {name: _Seen(name, table.source) for name in used if name not in table.other}
    classes: Counter[str] = Counter()
    rows = 0
    for block in table.blocks([*seen, *([label] if label else [])]):
        rows += block.rows
        for column in seen.values():
            column.add(block.cells[column.name], block)
        if label:
            classes.update(_counts(block.cells[label]))
    if not rows:
        raise DataError(
            f"{table.source} has a header, but no row: give one for each sample", "empty-table"
        )
    notes = [Note(_left_out(name), "it names the row") for name in ids]
    notes += [
        Note(_left_out(name), f"its cells are of the type {kind}")
        for name, kind in table.other.items()
        if name in used
    ]
    columns = []
    for column in seen.values():
        suggested, said = column.suggested(kinds.get(column.name))
        columns += [suggested] if suggested else []
        notes += said
    if not columns:
        raise DataError(
            f"{table.source} has no column that can be a feature: give one of numbers, categories, "
            "booleans, dates or texts",
            "no-columns",
        )
    unlabelled = classes.pop("", 0)
    return Found(label, tuple(sorted(classes)), rows, unlabelled, tuple(columns), tuple(notes))


def _check_named(table: Table, named: Iterable[str], kinds: Mapping[str, str]) -> None:
    """Refuse to name a column or a kind that there is not."""
    for name in named:
        if name and name not in table.names:
            raise ExperimentError(
                f"{table.source}: {unknown('column', name, table.names)}", "missing-column"
            )
    for name, kind in kinds.items():
        if kind not in KINDS:
            raise ExperimentError(f"column {name!r}: {unknown('kind', kind, KINDS)}")
        if name in table.other:
            raise ExperimentError(
                f"{table.source}, column {name!r}: its cells are of the type {table.other[name]}: "
                "save numbers, texts, booleans or dates",
                "wrong-type",
            )


def label_column(table: Table, known: Collection[str], ids: Collection[str] = ()) -> str:
    """Return the column with the classes: by its name, or because all its cells are ``known``.

    Args:
        table: is read once where no name says it.
        known: names of classes.
        ids: columns that name the row.

    Raises:
        DataError: there is no such column (code ``no-label-column``).
    """
    for word in _LABELS:
        if word in table.names:
            return word
    names = {composed(name) for name in known}
    left = (
        [name for name in table.names if name not in (*table.other, *ids, SPLIT)] if names else []
    )
    met: set[str] = set()
    for block in table.blocks(left) if left else ():
        for name in list(left):
            cells = {composed(text) for text in _counts(block.cells[name])} - {"", *MISSING}
            met |= {name} if cells else set()
            if not cells <= names:
                left.remove(name)
    left = [name for name in left if name in met]
    if len(left) == 1:
        return left[0]
    raise DataError(
        f"{table.source} has no column {_LABELS[0]!r}: name the column with the classes so, or "
        "give --label COLUMN",
        "no-label-column",
    )


def _counts(cells: Cells) -> Counter[str]:
    """Return how many rows have each text; "" is a missing cell."""
    distinct = cells.distinct.tolist() if isinstance(cells.distinct, np.ndarray) else cells.distinct
    counts: Counter[str] = Counter()
    for value, count in zip(
        distinct, np.bincount(cells.places, minlength=len(distinct)).tolist(), strict=True
    ):
        if count:
            counts["" if is_missing(value, ("",)) else text_of(value)] += count
    return counts


def _left_out(name: str) -> str:
    return f"column {name!r} left out" if name else "the column without a name left out"


def kind_of(value: Any) -> tuple[str, float]:
    """Return what a cell is, and its number; NaN if it has none.

    Example:
        >>> kind_of("2.5"), kind_of("yes"), kind_of("NA")[0], kind_of("ripe")[0]
        (('numbers', 2.5), ('booleans', 1.0), 'missing', 'texts')
    """
    if is_missing(value):
        return "missing", np.nan
    if isinstance(value, bool):
        return "booleans", float(value)
    if (number := as_number(value)) is not None and np.isfinite(number):
        return "numbers", number
    if (days := as_days(value)) is not None:
        return "dates", days
    if (truth := as_boolean(value)) is not None:
        return "booleans", truth
    return "texts", np.nan


@dataclass
class _Seen:
    """What was seen of a column."""

    name: str
    source: str
    missing: int = 0
    numbers: int = 0
    booleans: int = 0
    dates: int = 0
    texts: int = 0
    words: int = 0  # of the texts
    low: float = np.inf
    high: float = -np.inf
    first: dict[str, tuple[str, str]] = field(default_factory=dict)  # kind -> a cell, and where
    counts: Counter[str] = field(default_factory=Counter)
    many: bool = False  # more values than are counted
    kept: array[float] = field(default_factory=lambda: array("d"))
    every: int = 1
    rows: int = 0
    last: float | None = None
    rises: bool = True  # by one, row by row

    def add(self, cells: Cells, block: Block) -> None:
        """Take the cells of the next rows."""
        distinct = cells.distinct
        if isinstance(distinct, np.ndarray):
            if distinct.dtype.kind == "f" and not np.isinf(distinct).any():
                self._take(self._add_floats(distinct[cells.places], block))
                return
            distinct = (
                distinct.astype("datetime64[us]") if distinct.dtype.kind == "M" else distinct
            ).tolist()
        counts = np.bincount(cells.places, minlength=len(distinct))
        values = np.full(len(distinct), np.nan)
        for i, value in enumerate(distinct):
            if not (count := int(counts[i])):
                continue
            kind, number = kind_of(value)
            if kind not in self.first:
                row = int(np.argmax(cells.places == i))
                self.first[kind] = (str(value)[:60], block.where(row))
            setattr(self, kind, getattr(self, kind) + count)
            values[i] = number
            if kind == "texts":
                self.words += count * len(str(value).split())
            if kind != "missing" and not self.many:
                self.counts[text_of(value)] += count
                self.many = len(self.counts) > _DISTINCT
        self._take(values[cells.places])

    def _add_floats(self, values: NDArray[np.float64], block: Block) -> NDArray[np.float64]:
        """Count floats (n,) as :meth:`add` counts other values, all at once, and return them."""
        missing = np.isnan(values)
        for kind, where in (("missing", missing), ("numbers", ~missing)):
            if count := int(where.sum()):
                row = int(np.argmax(where))
                self.first.setdefault(kind, (str(values[row]), block.where(row)))
                setattr(self, kind, getattr(self, kind) + count)
        if not self.many:
            numbers, counts = np.unique(values[~missing], return_counts=True)
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
                self.counts[text_of(number)] += count
            self.many = len(self.counts) > _DISTINCT
        return values

    def _take(self, values: Any) -> None:
        """Keep some numbers for a median, the extremes, and whether they count the rows."""
        finite = values[np.isfinite(values)]
        if len(finite):
            self.low = min(self.low, float(finite.min()))
            self.high = max(self.high, float(finite.max()))
        if self.rises:
            joined = values if self.last is None else np.concatenate([[self.last], values])
            self.rises = bool((np.diff(joined) == 1).all())
            self.last = float(values[-1])
        row = -self.rows % self.every
        while row < len(values):
            taken = values[row :: self.every][: _KEPT - len(self.kept)]
            self.kept.extend(taken.tolist())
            row += self.every * len(taken)
            if len(self.kept) >= _KEPT:  # every second one stays, whatever the blocks
                self.kept = self.kept[::2]
                row += -(self.rows + row) % (2 * self.every)
                self.every *= 2
        self.rows += len(values)

    def suggested(self, kind: Kind | None) -> tuple[Column | None, list[Note]]:
        """Return the column as a feature, or None; and what there is to say of it."""
        present = self.rows - self.missing
        why = ""
        if not present:
            why = "all its cells are missing"
        elif kind is None:
            why = self._no_feature(present)
        if why:
            return None, [Note(_left_out(self.name), why)]
        kind = kind or self._found_kind(present)
        if kind == "category":
            return self._category(present)
        if kind == "text":
            column = Column(name=self.name, kind="text", indicator=self.missing > 0)
            return column, self._missing_note("marked")
        if kind != "boolean" and not self.low < self.high:
            return None, [Note(_left_out(self.name), "it has one value in all rows")]
        self._check_kind(kind, present)
        ends: dict[str, Any] = {}
        if kind != "boolean":
            ends = {"bounds": (self._stated(kind, self.low), self._stated(kind, self.high))}
        middle = self._median()
        if kind == "boolean":
            middle = float(round(middle))
        column = Column(
            name=self.name,
            kind=kind,
            fill=self._stated(kind, middle),
            indicator=self.missing > 0,
            **ends,
        )
        return column, self._missing_note(f"filled with {column.fill}")

    def _no_feature(self, present: int) -> str:
        """Return why a column says nothing of a class; "" if it may."""
        is_id = self.name.lower().replace("_", " ") in _IDS
        if is_id and present == self.rows and (self.many or len(self.counts) == self.rows):
            return "it has another value in each line, so it says nothing of a class"
        if self.rises and self.rows >= _COUNTED and self.numbers == self.rows:
            return "it counts the lines, so it says nothing of a class"
        return "it has one value in all rows" if len(self.counts) == 1 and not self.many else ""

    def _found_kind(self, present: int) -> Kind:
        """Return what the cells are; refuse a few texts among numbers or dates."""
        for kind, count in (
            ("number", self.numbers), ("date", self.dates), ("boolean", self.booleans),
        ):  # fmt: skip
            if count == present:
                return kind  # type: ignore[return-value]
        for kind, count in (("number", self.numbers), ("date", self.dates)):
            if count > _MIXED * present and not self._are_codes(present):
                self._check_kind(kind, present)  # type: ignore[arg-type]
        unique = self.many or len(self.counts) >= _UNIQUE * present
        return "text" if unique and self.words >= _WORDS * present else "category"

    def _are_codes(self, present: int) -> bool:
        """Return whether many cells are texts, nearly each another one."""
        texts = sum(as_number(value) is None and as_days(value) is None for value in self.counts)
        fewest = max(_FEWEST_CODES, (1 - _CODES) * present)
        return self.texts >= fewest and texts >= _UNIQUE * self.texts

    def _check_kind(self, kind: Kind, present: int) -> None:
        """Refuse cells of another kind than the column's."""
        fits = {"number": self.numbers + self.booleans, "date": self.dates, "boolean": present}[
            kind
        ]
        if fits >= present:
            return
        odd = next(
            name for name in ("texts", "dates", "booleans", "numbers")
            if name in self.first and name != f"{kind}s"
        )  # fmt: skip
        value, where = self.first[odd]
        form = "a date as 2024-05-17" if kind == "date" else f"a {kind}"
        comma = value.replace(",", ".", 1)
        if kind == "number" and as_number(comma) is not None:
            form = comma
        raise DataError(
            f"{self.source}, {where}, column {self.name!r}: {value!r} is no {kind}, as most of its "
            f"cells are: write {form}, leave the cell empty, or give --as '{self.name}=category' "
            f"or --id '{self.name}'",
            "mixed-types",
        )

    def _category(self, present: int) -> tuple[Column | None, list[Note]]:
        frequent = [value for value, count in self.counts.most_common() if count >= RARE]
        kept = sorted(frequent[:MOST])
        covered = sum(self.counts[value] for value in kept)
        if not kept or 2 * covered < present:
            why = f"most of its values have fewer than {RARE} rows"
            return None, [Note(_left_out(self.name), why)]
        notes = []
        if rare := len(self.counts) - len(kept):
            why = f"fewer than {RARE} rows have them, and naming them would point at these rows"
            if len(frequent) > len(kept):
                why = f"a vocabulary has the {MOST} most frequent ones"
            what = f"column {self.name!r}: {rare} rare values count as 'other'"
            notes.append(Note(what, why))
        if len(kept) == 1 and not rare and not self.missing:
            return None, [Note(_left_out(self.name), "it has one value in all rows")]
        column = Column(
            name=self.name, kind="category", values=tuple(kept), indicator=self.missing > 0
        )
        return column, [*notes, *self._missing_note("marked")]

    def _missing_note(self, how: str) -> list[Note]:
        if not self.missing:
            return []
        what = f"column {self.name!r}: {counted(self.missing, 'missing cell')}"
        marked = "" if how == "marked" else ", and marked"
        return [Note(what, f"{how}{marked} in a feature of its own")]

    def _median(self) -> float:
        values = np.frombuffer(self.kept, dtype=np.float64)
        return float(np.nanmedian(values)) if np.isfinite(values).any() else self.low

    def _stated(self, kind: Kind, value: float) -> float | str:
        """Return a number as an experiment states it."""
        if kind != "date":
            return value
        stated = _EPOCH_DAY + timedelta(days=value)
        whole = stated.time() == stated.min.time()
        return stated.date().isoformat() if whole else stated.isoformat()
