"""Tables as people have them, block by block: CSV, Parquet and Arrow files, folders of such parts,
what the library ``datasets`` saves, data frames, and rows in memory.

A block holds some rows of the wanted columns. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from numbers import Number
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError
from fedunseen.core.files import check_ordinary
from fedunseen.data.io import arrow
from fedunseen.data.io.csv_io import iter_csv

SUFFIXES = (".csv", ".parquet", ".arrow", ".feather", ".ipc")
"""Endings of files that hold a table."""

ROWS = 8192
"""Rows of a block, at most."""

SPLIT = "split"
"""The column that says which samples are for tests."""


class Cells(NamedTuple):
    """The cells of one column in some rows.

    Attributes:
        distinct: (m,) floats or ``datetime64``, or a list of other values; None: missing.
        places: (n,) which of them each row has.
    """

    distinct: Sequence[Any] | NDArray[Any]
    places: NDArray[np.int64]

    @classmethod
    def of_array(cls, array: NDArray[Any]) -> Cells:
        """Return the cells of an array of floats or dates."""
        return cls(array, np.arange(len(array)))

    @classmethod
    def of_list(cls, values: Iterable[Any]) -> Cells:
        """Return the cells of values of any types."""
        seen: dict[Any, int] = {}
        places = [seen.setdefault((type(value), value), len(seen)) for value in values]
        return cls([value for _, value in seen], np.array(places, dtype=np.int64))


class Block(NamedTuple):
    """Some rows of a table.

    Attributes:
        cells: column -> its cells.
        rows: how many there are.
        where: says which place of the table a row is, counted from 0 in this block.
    """

    cells: Mapping[str, Cells]
    rows: int
    where: Callable[[int], str]


@dataclass(frozen=True, eq=False)
class Table:
    """A table, read block by block as often as it is asked.

    Attributes:
        source: the file, the folder, or what else it is, for messages.
        names: of its columns.
        blocks: yields the rows of some columns.
        other: column -> its type, where its cells are no numbers, texts, booleans or dates.
    """

    source: str
    names: tuple[str, ...]
    blocks: Callable[[Sequence[str]], Iterator[Block]]
    other: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, count in Counter(self.names).items():
            if count > 1:
                raise DataError(
                    f"{self.source} has {count} columns {name!r}: rename all but one",
                    "repeated-column",
                )


def is_table(path: Path) -> bool:
    """Return whether a path is a table: a file of :data:`SUFFIXES`, or a folder of parts."""
    return path.suffix.lower() in SUFFIXES if not path.is_dir() else bool(_parts(path))


def find_table(folder: Path) -> Path | None:
    """Return the table that lies in a folder, or that the folder is; None: there is none."""
    if not folder.is_dir() or (folder / "features.npz").is_file():
        return None
    if parts := _parts(folder):
        return parts[0] if len(parts) == 1 and parts[0].parent == folder else folder
    inner = [child for child in sorted(folder.iterdir()) if child.is_dir()]
    return inner[0] if len(inner) == 1 and _is_saved(inner[0]) else None


def open_table(path: Path) -> Table:
    """Open a table: a file, or a folder of parts.

    Raises:
        DataError: it is missing, empty, damaged, encrypted or of another kind.
        MissingDependencyError: it needs the extra ``arrow``.
    """
    if path.is_dir():
        return _open_parts(path)
    check_ordinary(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(
            f"{path} is no table: give a file that ends in {', '.join(SUFFIXES)}", "no-table"
        )
    try:
        size = path.stat().st_size
    except OSError:
        raise DataError(f"{path} is missing: correct its name", "missing-table") from None
    if not size:
        raise DataError(f"{path} is empty: write it again", "empty-table")
    return _open_csv(path) if suffix == ".csv" else _open_arrow(path)


def is_frame(value: Any) -> bool:
    """Return whether a value is a data frame: it has named columns and a length."""
    return hasattr(value, "columns" if not hasattr(value, "column_names") else "column_names") and (
        hasattr(value, "__getitem__") and hasattr(value, "__len__")
    )


def of_frame(frame: Any, source: str = "the data frame") -> Table:
    """Return a data frame of pandas, polars, pyarrow or another library as a table."""
    listed = getattr(frame, "column_names", None)  # of pyarrow and datasets
    listed = list(frame.columns if listed is None else listed)
    names = tuple(str(name) for name in listed)
    keys = dict(zip(names, listed, strict=True))

    def blocks(wanted: Sequence[str]) -> Iterator[Block]:
        cells = {name: _of_series(frame[keys[name]]) for name in wanted}
        yield Block(cells, len(frame), _places("row", range(len(frame))))

    return Table(source, names, blocks)


def of_rows(rows: Sequence[Mapping[str, Any]], source: str = "the samples") -> Table:
    """Return rows, each a mapping of column -> cell, as a table; what a row lacks is missing."""
    names = tuple(dict.fromkeys(str(name) for row in rows for name in row))

    def blocks(wanted: Sequence[str]) -> Iterator[Block]:
        cells = {name: Cells.of_list(_plain(row.get(name)) for row in rows) for name in wanted}
        yield Block(cells, len(rows), _places("sample", range(len(rows))))

    return Table(source, names, blocks)


def plain_numbers(table: Table) -> bool:
    """Return whether all cells are numbers, and none is missing."""
    return all(
        not np.isnan(cells.distinct).any()
        if isinstance(cells.distinct, np.ndarray) and cells.distinct.dtype.kind == "f"
        else all(isinstance(value, Number) and value == value for value in cells.distinct)
        for block in table.blocks(table.names)
        for cells in block.cells.values()
    )


def _plain(value: Any) -> Any:
    """Return a value that can be compared: a list or a table becomes its text."""
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def _places(word: str, numbers: Sequence[int]) -> Callable[[int], str]:
    """Return what says where a row of a block is."""
    return lambda row: f"{word} {numbers[row]}"


def _of_series(series: Any) -> Cells:
    """Return the cells of a column of a data frame."""
    values = series.to_numpy() if hasattr(series, "to_numpy") else np.asarray(list(series), object)
    if values.dtype.kind in "iuf":
        return Cells.of_array(values.astype(np.float64))
    if values.dtype.kind == "M":
        return Cells.of_array(values)
    read = next((name for name in ("to_list", "to_pylist") if hasattr(series, name)), "")
    listed = getattr(series, read)() if read else values.tolist()
    try:
        return Cells.of_list(listed)
    except TypeError:  # lists, tables and arrays cannot be compared: each becomes its text
        return Cells.of_list(map(str, listed))


def _open_csv(path: Path) -> Table:
    """Open a CSV file with commas; or with semicolons, as some spreadsheets write it."""
    first = ""
    with suppress(OSError), path.open(encoding="utf-8-sig", errors="replace") as file:
        first = file.readline(2**20)
    delimiter = ";" if first.count(";") > first.count(",") else ","
    _, header = next(iter_csv(path, delimiter))

    def blocks(wanted: Sequence[str]) -> Iterator[Block]:
        places = [header.index(name) for name in wanted]
        lines = islice(iter_csv(path, delimiter), 1, None)
        while rows := list(islice(lines, ROWS)):
            numbers = [line for line, _ in rows]
            cells = {
                name: Cells.of_list(row[place] for _, row in rows)
                for name, place in zip(wanted, places, strict=True)
            }
            yield Block(cells, len(rows), _places("line", numbers))

    return Table(str(path), tuple(header), blocks)


def _open_arrow(path: Path) -> Table:
    """Open a Parquet or Arrow file."""
    names, other, classes = arrow.columns_of(path)

    def blocks(wanted: Sequence[str]) -> Iterator[Block]:
        start = 0
        for rows, columns in arrow.batches(path, wanted, ROWS):
            cells = {}
            for name, (distinct, places) in columns.items():
                if name in classes:
                    distinct = arrow.class_names(path, name, distinct, classes[name])
                cells[name] = (
                    Cells.of_array(distinct) if places is None else Cells(distinct, places)
                )
            yield Block(cells, rows, _places("row", range(start, start + rows)))
            start += rows

    return Table(str(path), tuple(names), blocks, other)


def _open_parts(folder: Path) -> Table:
    """Open the parts of a folder as one table, in the order of their names."""
    parts = _parts(folder)
    if not parts:
        raise DataError(
            f"{folder} holds no table: give a file, or a folder of parts as part-000.parquet",
            "no-table",
        )
    tables = [(part, open_table(part)) for part in parts]
    first = tables[0][1]
    for part, table in tables:
        if different := set(table.names) ^ set(first.names):
            raise DataError(
                f"{part} and {parts[0]} have different columns, such as {min(different)!r}: write "
                "all parts with the same columns",
                "parts-differ",
            )
    splits = _splits(folder)
    names = first.names if SPLIT in first.names or not splits else (*first.names, SPLIT)

    def blocks(wanted: Sequence[str]) -> Iterator[Block]:
        for part, table in tables:
            stored = [name for name in wanted if name in table.names]
            for block in table.blocks(stored):
                cells = dict(block.cells)
                if SPLIT in wanted and SPLIT not in stored:
                    cells[SPLIT] = Cells([splits[part]], np.zeros(block.rows, dtype=np.int64))

                def where(row: int, part: Path = part, block: Block = block) -> str:
                    return f"{part.name}, {block.where(row)}"

                yield Block(cells, block.rows, where)

    return replace(first, source=str(folder), names=names, blocks=blocks)


def _is_saved(folder: Path) -> bool:
    """Return whether ``datasets`` has saved a folder."""
    return (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()


def _splits(folder: Path) -> dict[Path, str]:
    """Return part -> ``train`` or ``test`` of a dictionary of data sets, from its folders' names;
    nothing of any other folder.
    """
    if not (folder / "dataset_dict.json").is_file():
        return {}
    return {part: "train" if part.parent.name == "train" else "test" for part in _parts(folder)}


def _parts(folder: Path) -> list[Path]:
    """Return the files of a folder that together are one table; none where they are several."""
    for name, key in (("dataset_dict.json", "splits"), ("state.json", "_data_files")):
        if (folder / name).is_file():
            listed = _listed(folder / name, key)
            if key == "splits":
                if any((folder / split / name).exists() for split in listed):  # perhaps a loop
                    raise DataError(
                        f"{folder / name} lists itself or another dictionary: save the data set "
                        "again",
                        "damaged-table",
                    )
                return [part for split in listed for part in _parts(folder / split)]
            return [folder / file for file in listed]
    if not folder.is_dir():
        return []
    files = [
        path
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in SUFFIXES
        and path.is_file()
        and path.name != "classes.csv"
        and not path.name.startswith((".", "_"))
    ]
    one_kind = len({path.suffix.lower() for path in files}) == 1
    parts = len(files) == 1 or all(path.name.startswith("part") for path in files)
    return files if one_kind and (parts or files[0].suffix.lower() != ".csv") else []


def _listed(path: Path, key: str) -> list[str]:
    """Return the names of files or folders that a JSON file of ``datasets`` lists."""
    try:
        items = json.loads(path.read_text("utf-8"))[key]
        names = [item["filename"] if isinstance(item, dict) else item for item in items]
        if not names or any(
            not isinstance(name, str) or Path(name).name != name or name in ("", "..")
            for name in names
        ):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{path} is damaged: save the data set again", "damaged-table") from None
    return names
