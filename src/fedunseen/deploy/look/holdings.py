"""What a party's folder holds, as counts: samples of each class, and what a table's columns have.

No class table and no experiment is needed. A sample that is there twice counts once, in each of its
classes and in each column, and what a table or arrays mark as ``test`` does not count.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.arrays import load_arrays
from fedunseen.core.errors import DataError, ExperimentError, unknown
from fedunseen.core.files import check_ordinary
from fedunseen.data.benchmarks.image_folder import UNLABELLED, ImageFolder, holds_texts
from fedunseen.data.benchmarks.text_folder import TextFolder
from fedunseen.data.class_table import class_names
from fedunseen.data.columns.first_look import kind_of, label_column
from fedunseen.data.columns.rows import row_digests
from fedunseen.data.columns.treatment import is_missing, text_of
from fedunseen.data.io.tables import SPLIT, Block, Cells, Table, find_table, open_table
from fedunseen.data.names import composed
from fedunseen.experiment.class_folders import class_folders

KINDS = ("missing", "numbers", "booleans", "dates", "texts")
"""What cells of a column can be."""

GUESSED = "guessed-label"

_EDGES = 10.0 ** (np.arange(-60, 91) / 10)  # of the cells of positive numbers
CELLS = 2 * (len(_EDGES) + 1) + 1
"""Cells of a histogram of numbers. Its bounds are the same for all data: ten cells for each power
of ten from 1e-6 to 1e9, for negative numbers too, one for 0, and open ones at the ends."""


def cells_of(numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return in which cell of a histogram (:data:`CELLS`) each number (n,) is."""
    size = 1 + np.searchsorted(_EDGES, np.abs(numbers), side="right")
    return CELLS // 2 + np.where(numbers == 0, 0, np.sign(numbers) * size).astype(np.int64)


def bounds_of(cell: int) -> tuple[float, float]:
    """Return between which numbers a cell is.

    Example:
        >>> low, high = bounds_of(int(cells_of(np.array([2.1]))[0]))
        >>> round(low, 3), round(high, 3)
        (1.995, 2.512)
    """
    side = cell - CELLS // 2
    if not side:
        return 0.0, 0.0
    ends = [0.0, *_EDGES.tolist(), np.inf]
    low = ends[abs(side) - 1]
    high = ends[abs(side)]
    return (low, high) if side > 0 else (-high, -low)


@dataclass
class ColumnCounts:
    """How many rows have what in a column.

    Attributes:
        kinds: of :data:`KINDS` -> rows.
        cells: (CELLS,) rows with a number in each cell of the histogram.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    cells: NDArray[np.int64] = field(default_factory=lambda: np.zeros(CELLS, dtype=np.int64))

    def add(self, cells: Cells, rows: NDArray[np.bool_]) -> None:
        """Count the cells of some ``rows`` (n,) of a block."""
        distinct: Any = cells.distinct
        counts = np.bincount(cells.places[rows], minlength=len(distinct))
        if isinstance(distinct, np.ndarray) and distinct.dtype.kind == "f":
            finite = np.isfinite(distinct)
            self.kinds["missing"] += int(counts[np.isnan(distinct)].sum())
            self.kinds["texts"] += int(counts[np.isinf(distinct)].sum())
            self._add_numbers(distinct[finite].astype(np.float64), counts[finite])
            return
        if isinstance(distinct, np.ndarray):
            distinct = distinct.astype("datetime64[us]").tolist()
        numbers = np.full(len(distinct), np.nan)
        for i in np.flatnonzero(counts).tolist():
            kind, number = kind_of(distinct[i])
            if kind == "numbers":
                numbers[i] = number
            else:
                self.kinds[kind] += int(counts[i])
        found = ~np.isnan(numbers)
        self._add_numbers(numbers[found], counts[found])

    def _add_numbers(self, numbers: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
        """Count ``numbers`` (n,), each of which so many rows have."""
        self.kinds["numbers"] += int(counts.sum())
        np.add.at(self.cells, cells_of(numbers), counts)


@dataclass(frozen=True)
class Holdings:
    """What a folder holds.

    Attributes:
        samples: class -> its different samples.
        unlabelled: different samples without a class.
        columns: column of a table -> its counts.
        label: the column of a table with the classes.
    """

    samples: Mapping[str, int]
    unlabelled: int
    columns: Mapping[str, ColumnCounts] = field(default_factory=dict)
    label: str = ""


def holdings_of(folder: Path, label: str = "", known: Collection[str] = ()) -> Holdings:
    """Return what a folder holds.

    Args:
        folder: with a table, with ``features.npz``, or with a folder of pictures or texts for each
            class.
        label: of a table: the column with the classes; "": it is recognized by its name.
        known: names of classes, by which that column may be guessed.

    Raises:
        DataError: it is none of these, or damaged; a column is only guessed (code
            ``guessed-label``).
        ExperimentError: the column ``label`` is not there.
    """
    if (table := find_table(folder)) is not None:
        return _of_table(open_table(table), label, known)
    if label:
        raise ExperimentError(f"--label {label}: {folder} holds no table: leave it out")
    if (folder / "features.npz").is_file():
        return _of_arrays(folder)
    return _of_files(folder)


def _of_table(table: Table, label: str, known: Collection[str]) -> Holdings:
    if label and label not in table.names:
        raise ExperimentError(
            f"{table.source}: {unknown('column', label, table.names)}", "missing-column"
        )
    label = label or _label(table, known)
    read = [name for name in table.names if name not in table.other]
    columns = {name: ColumnCounts() for name in read if name not in (label, SPLIT)}
    samples: dict[bytes, frozenset[str]] = {}  # digest of its other cells -> its classes
    for block in table.blocks(read):
        rows = _different(block, label, list(columns), samples)
        for name, counts in columns.items():
            counts.add(block.cells[name], rows)
    classes = Counter(name for names in samples.values() for name in names)
    unlabelled = classes.pop("", 0)
    return Holdings(dict(sorted(classes.items())), unlabelled, columns, label)


def _label(table: Table, known: Collection[str]) -> str:
    """Return the column with the classes by its name: who writes a plan chooses ``known``, and so
    whose values would be counted.
    """
    try:
        return label_column(table, ())
    except DataError:
        guessed = label_column(table, known)
    raise DataError(
        f"{table.source} has no column 'label', and only the plan's class names say that "
        f"{guessed!r} has the classes: give --label {guessed!r} if the owner agrees",
        GUESSED,
    )


def _different(
    block: Block, label: str, columns: Sequence[str], samples: dict[bytes, frozenset[str]]
) -> NDArray[np.bool_]:
    """Return (n,) which rows to train on are new ``samples``, and add them.

    A row that is saved under two labels is one sample of two classes.
    """
    trains = np.ones(block.rows, dtype=np.bool_)
    if SPLIT in block.cells:
        cells = block.cells[SPLIT]
        tests = np.array([str(value).strip() == "test" for value in cells.distinct], dtype=np.bool_)
        trains = ~tests[cells.places]
    new = np.zeros(block.rows, dtype=np.bool_)
    names = [
        frozenset(["" if is_missing(value, ("",)) else composed(text_of(value))])
        for value in block.cells[label].distinct
    ]
    places = block.cells[label].places
    digests = row_digests(block, columns)
    for i in np.flatnonzero(trains).tolist():
        mark = digests[i].tobytes()
        before = samples.get(mark, frozenset())
        new[i] = not before
        samples[mark] = before | names[places[i]] if before else names[places[i]]
    return new


def _of_arrays(folder: Path) -> Holdings:
    path = folder / "features.npz"
    arrays = load_arrays(path, ("features", "labels", "split"))
    if missing := {"features", "labels"} - arrays.keys():
        raise DataError(f"{path} has no array {min(missing)!r}: save it too")
    labels = np.atleast_1d(arrays["labels"]).ravel()
    features = np.atleast_1d(arrays["features"])
    split = np.atleast_1d(arrays.get("split", np.full(len(labels), "train"))).ravel()
    if not len(features) == len(labels) == len(split):
        raise DataError(f"{path}: features, labels and split have different lengths: save one each")
    if labels.dtype.kind in "iu":
        names = np.array([*class_names(folder / "classes.csv", "minilm"), ""])
        if not ((labels >= -1) & (labels < len(names) - 1)).all():
            raise DataError(f"{path}: a label is no row of classes.csv: write names instead")
        labels = names[labels]
    if labels.dtype.kind not in "US":
        raise DataError(
            f"{path}: the labels are of type {labels.dtype}, neither class names nor row numbers"
        )
    texts = [label.decode() if isinstance(label, bytes) else label for label in labels.tolist()]
    train = [str(word) not in ("test", "b'test'") for word in split.tolist()]
    marks = (hashlib.sha256(np.ascontiguousarray(row).data).digest() for row in features)
    return _counted((composed(text), mark) for text, mark, taken in
                    zip(texts, marks, train, strict=True) if taken)  # fmt: skip


def _of_files(folder: Path) -> Holdings:
    kind = TextFolder if holds_texts(folder) else ImageFolder
    classes = class_folders(folder)
    pool = folder / UNLABELLED
    unlabelled = [pool / file for file in kind.files_of(pool)] if pool.is_dir() else []
    if not classes and not unlabelled:
        raise DataError(
            f"{folder} holds no samples: give a table, features.npz, or a folder of pictures or "
            "texts for each class"
        )
    files = [(composed(name), file) for name, listed in classes.items() for file in listed]
    files += [("", file) for file in unlabelled]
    try:
        return _counted((name, _digest(file)) for name, file in files)
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read ({error.strerror}): restore it") from None


def _digest(path: Path) -> bytes:
    """Return the digest of a file, of which few bytes are held at once."""
    check_ordinary(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _counted(samples: Iterable[tuple[str, bytes]]) -> Holdings:
    """Return what samples are, each given by its class and a digest; "" is no class."""
    classes = Counter(name for name, _ in set(samples))
    unlabelled = classes.pop("", 0)
    return Holdings(dict(sorted(classes.items())), unlabelled)
