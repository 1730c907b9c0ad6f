"""A table of samples to ``features.npz``: one column names the class, numbers are the features."""

import sys
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError
from fedunseen.core.files import check_ordinary, replacing
from fedunseen.data.io.csv_io import iter_csv, number, read_csv
from fedunseen.experiment.dataset_checks import Remark

_LABELS = ("label", "class", "name")
_IDS = (
    "", "#", "id", "idx", "index", "key", "no", "no.", "nr", "nr.", "number", "row", "row id",
    "sample", "sample id", "unnamed: 0", "uuid",
)  # fmt: skip
_COUNTED = 8  # lines: numbers that rise by one in fewer of them may be a measurement

Unseen = Callable[[Sequence[str]], Sequence[str]]
"""Chooses unseen classes among all names."""


def convert(table: Path, folder: Path, unseen: Unseen) -> tuple[Path, list[Remark]]:
    """Write ``folder/features.npz``; return its path and remarks on columns that are left out.

    The column ``split`` is optional. Without it, samples of unseen classes and every fifth of a
    seen one are for tests.
    """
    rows = _read_table(table)
    _, header = next(rows)
    label = next((word for word in _LABELS if word in header), None)
    if label is None:
        raise DataError(
            f"{table} has no column {_LABELS[0]!r}: name the column with the classes so"
        )
    columns = [_Column(table, i, word) for i, word in enumerate(header) if word != "split"]
    columns = [column for column in columns if column.name != label]
    names = []
    split = []
    for line, row in rows:
        names.append(sys.intern(row[header.index(label)]))
        split.append(sys.intern(row[header.index("split")]) if "split" in header else "")
        for column in columns:
            column.add(line, row)
    kept = [column for column in columns if not column.remark()]
    if not kept or not names:
        raise DataError(
            f"{table} has no sample, or no column of numbers: give a line for each sample"
        )
    values = np.stack([column.numbers() for column in kept], axis=1)
    if "split" not in header:
        _draw(names, split, _unseen(folder, names, unseen))
    path = folder / "features.npz"
    if path.exists():
        raise DataError(f"{path} is there already: name the folder {folder} instead of {table}")
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(
            file, allow_pickle=False, features=values, labels=np.array(names), split=np.array(split)
        )
    return path, [remark for column in columns if (remark := column.remark())]


class _Column:
    """A column that may hold a feature.

    Its name or its values may say that it only tells the lines apart: the values of such a column
    reveal the class where a file is sorted.
    """

    def __init__(self, table: Path, place: int, name: str) -> None:
        self.name = name
        self._table = table
        self._place = place
        self._is_id = name.lower().replace("_", " ") in _IDS
        self._cells: list[tuple[int, str]] = []  # where the name says that it is an id
        self._numbers = array("f")
        self._last: float | None = None
        self._counts = True

    def add(self, line: int, row: Sequence[str]) -> None:
        """Take the cell of the next line."""
        cell = row[self._place]
        if self._is_id:
            self._cells.append((line, cell))
            return
        value = number(cell, "{}, line {}, column {!r}", self._table, line, self.name)
        if self._counts and self._last is not None:
            self._counts = value == self._last + 1
        self._last = value
        self._numbers.append(value)

    def remark(self) -> Remark | None:
        """Return why the column is no feature; None if it is one."""
        name = f"column {self.name!r}" if self.name else "the column without a name"
        what = f"{name} left out"
        if self._is_id and len({cell for _, cell in self._cells}) == len(self._cells):
            return Remark(what, "it has another value in each line, so it says nothing of a class")
        if self._counts and len(self._numbers) >= _COUNTED:
            return Remark(what, "it counts the lines, so it says nothing of a class")
        return None

    def numbers(self) -> NDArray[np.float32]:
        """Return the values (samples,)."""
        cells = self._cells
        self._is_id = False
        self._cells = []
        for line, cell in cells:
            self.add(line, [""] * self._place + [cell])
        return np.frombuffer(self._numbers, dtype=np.float32)


def _unseen(folder: Path, names: Sequence[str], unseen: Unseen) -> set[str]:
    """Return the unseen classes, as the class table marks them if there is one."""
    if not (folder / "classes.csv").is_file():
        return set(unseen(sorted(set(names) - {""})))
    (_, heads), *classes = read_csv(folder / "classes.csv")
    place, mark = (heads.index(word) if word in heads else 0 for word in ("name", "split"))
    return {row[place] for _, row in classes if row[mark] == "unseen"}


def _draw(names: Sequence[str], split: list[str], unseen: set[str]) -> None:
    """Mark samples for tests: every fifth of a seen class, from the third on."""
    so_far: dict[str, int] = defaultdict(int)
    for i, name in enumerate(names):
        split[i] = "test" if name in unseen or so_far[name] % 5 == 2 else "train"
        so_far[name] += 1


def _read_table(table: Path) -> Iterator[tuple[int, list[str]]]:
    """Read a CSV file with commas; or with semicolons, as some spreadsheets write it."""
    check_ordinary(table)
    first = ""
    with suppress(OSError), table.open(encoding="utf-8-sig", errors="replace") as file:
        first = file.readline(2**20)
    yield from iter_csv(table, ";" if first.count(";") > first.count(",") else ",")
