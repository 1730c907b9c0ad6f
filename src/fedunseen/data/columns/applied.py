"""Tables turned into features by stated columns, block by block."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError, ExperimentError, MissingDependencyError, counted
from fedunseen.core.originals import Originals
from fedunseen.data.columns.rows import originals_of
from fedunseen.data.columns.settings import Column, check_columns
from fedunseen.data.columns.texts import ENCODER, encode_cells
from fedunseen.data.columns.treatment import (
    MISSING,
    CellError,
    encode,
    feature_names,
    is_missing,
    sides_of,
    text_of,
)
from fedunseen.data.io.tables import Block, Table
from fedunseen.data.names import LONG, LONGEST, did_you_mean


class Examples(NamedTuple):
    """Some rows of a table.

    Attributes:
        features: (n, d).
        labels: (n,) class names, "" where the cell is missing; None without a column of labels.
        split: (n,) the text of the column that says what is for tests; None without one.
        block: says the place of each row, for messages.
        originals: the rows as the table holds them; None where no one asks.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.str_] | None
    split: NDArray[np.str_] | None
    block: Block
    originals: Originals | None = None


@dataclass(frozen=True)
class Treatment:
    """How tables become features.

    Attributes:
        columns: in the order of their features; others are ignored.
        missing: texts that stand for a missing cell.
        text_encoder: reads columns of texts.
    """

    columns: tuple[Column, ...]
    missing: tuple[str, ...] = MISSING
    text_encoder: str = ENCODER

    def __post_init__(self) -> None:
        check_columns(self.columns)
        if not self.columns:
            raise ExperimentError(
                "data.columns is empty, so that no column becomes a feature: let `fedunseen init` "
                "write the columns of a table",
                "no-columns",
            )

    @cached_property
    def feature_names(self) -> list[str]:
        """The names of the features, in order."""
        return [name for column in self.columns for name in feature_names(column)]

    def read(
        self,
        table: Table,
        label: str = "",
        split: str = "",
        whole: bool = False,
        asked: bool = False,
    ) -> Iterator[Examples]:
        """Yield the features of a table, some thousand rows at a time.

        Args:
            table: has all columns, in any order.
            label: the column with the classes; "": none is read.
            split: the column that says what is for tests; "": none is read.
            whole: read all other columns too, for ``originals``.
            asked: a model is asked about the rows: values that no vocabulary has are counted.

        Raises:
            DataError: a column is missing or of another type, a cell cannot be read, or there is no
                row.
        """
        names = [column.name for column in self.columns]
        wanted = list(dict.fromkeys(name for name in (*names, label, split) if name))
        self._check_names(table, wanted)
        everything = [name for name in table.names if name not in table.other] if whole else []
        rows = 0
        odd = dict.fromkeys(names, 0)
        for block in table.blocks(list(dict.fromkeys((*wanted, *everything)))):
            features_each = [self._features(table, block, column, odd) for column in self.columns]
            features = np.concatenate(features_each, axis=1)
            texts = [cell_texts(block, table, name) if name else None for name in (label, split)]
            rows += block.rows
            originals = None
            if whole:
                given = everything, self.columns, self.missing, features_each
                originals = originals_of(block, *given, labels=(label, split))
            yield Examples(features, texts[0], texts[1], block, originals)
        if not rows:
            raise DataError(
                f"{table.source} has a header, but no row: give one for each sample", "empty-table"
            )
        for column in self.columns:
            _warn_of_odd(table, column, odd[column.name], asked)

    def _check_names(self, table: Table, wanted: Sequence[str]) -> None:
        """Refuse a table without a column that is needed, or with cells that are not read."""
        used = {column.name for column in self.columns}
        for name in wanted:
            if name not in table.names:
                others = [other for other in table.names if other not in used]
                hint = did_you_mean(name, others).removeprefix(": ")
                missing = f"{name!r} ({hint})" if hint else repr(name)
                raise DataError(
                    f"{table.source} has no column {missing}: add it, or rename the one that has "
                    "its cells",
                    "missing-column",
                )
            if name in table.other:
                raise DataError(
                    f"{table.source}, column {name!r}: its cells are of the type "
                    f"{table.other[name]}: save numbers, texts, booleans or dates",
                    "wrong-type",
                )

    def _features(
        self, table: Table, block: Block, column: Column, odd: dict[str, int]
    ) -> NDArray[np.float32]:
        """Return the features (n, width) of one column, and count its cells beyond bounds or a
        vocabulary.
        """
        distinct, places = block.cells[column.name]
        try:
            if column.kind == "text":
                return self._text_features(table, column, distinct)[places]
            features = encode(column, distinct, self.missing)
            if column.kind in ("number", "date"):
                _, sides, _ = sides_of(column, distinct, self.missing)
                odd[column.name] += int((sides != 0)[places].sum())
            if column.kind == "category":
                odd[column.name] += int(features[places, len(column.values)].sum())
        except CellError as error:
            _refuse(table, block, column.name, error)
        return features[places]

    def _text_features(
        self, table: Table, column: Column, cells: Sequence[Any] | NDArray[Any]
    ) -> NDArray[np.float32]:
        """Return what the encoder makes of a column's texts; say of which column, if it cannot."""
        try:
            return encode_cells(column, cells, self.missing, self.text_encoder)
        except MissingDependencyError as error:
            raise MissingDependencyError(
                f"{table.source}, column {column.name!r} holds texts: {error}, or leave the column "
                "out",
                error.code,
            ) from None


def cell_texts(block: Block, table: Table, name: str) -> NDArray[np.str_]:
    """Return the texts (n,) of a column of names, "" where a cell is missing.

    Raises:
        DataError: a text is no name, but far longer (code ``long-name``).
    """
    cells = block.cells[name]
    listed = cells.distinct
    distinct = listed.tolist() if isinstance(listed, np.ndarray) else listed
    texts = [text_of(value) if not is_missing(value, ("",)) else "" for value in distinct]
    for place, text in enumerate(texts):
        if len(text) > LONGEST:
            problem = f"a name of {len(text):,} characters, and {LONGEST:,} are the most"
            _refuse(table, block, name, CellError(place, problem, "shorten it", LONG))
    return np.array(texts, dtype=np.str_)[cells.places]


def _refuse(table: Table, block: Block, name: str, error: CellError) -> NoReturn:
    """Refuse a cell, by the first row that has it."""
    row = int(np.argmax(block.cells[name].places == error.place))
    place = f"{table.source}, {block.where(row)}, column {name!r}"
    raise DataError(f"{place}: {error}", error.code) from None


def _warn_of_odd(table: Table, column: Column, count: int, asked: bool) -> None:
    """Say how many cells are outside of the bounds of their column, or of its vocabulary."""
    place = f"{table.source}, column {column.name!r}: {counted(count, 'cell')}"
    if count and column.kind in ("number", "date"):
        warnings.warn(
            f"{place} outside of its bounds in data.columns, and clipped: widen the bounds before "
            "training if they are right",
            stacklevel=4,
        )
    if count and column.kind == "category" and asked:
        warnings.warn(
            f"{place} not among its values in data.columns, and read as 'other': correct their "
            "spelling, or add the values before training",
            stacklevel=4,
        )
