"""Rows of a table as its owner holds them, whatever columns an experiment states.

What a coordinator states of a column makes different cells one value: bounds, a vocabulary, words
for missing cells. So what is hidden of few samples is decided by what the cells were before.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.originals import ABSENT, Originals
from fedunseen.data.columns.settings import Column
from fedunseen.data.columns.treatment import as_days, as_number, is_missing, sides_of, text_of
from fedunseen.data.io.tables import Block, Cells

_CODE = 16  # bytes of a cell, after one that says what it is
_MISSING, _NUMBER, _DATE, _TEXT = range(4)


def originals_of(
    block: Block,
    names: Sequence[str],
    columns: Sequence[Column],
    words: Sequence[str],
    features: Sequence[NDArray[np.float32]],
    labels: Collection[str] = (),
) -> Originals:
    """Return the rows of a block as the table holds them.

    Args:
        block: rows, with all columns of the table.
        names: of these columns.
        columns: those that become features.
        words: texts that stand for a missing cell.
        features: (n, width) of each of these.
        labels: the columns with the class of a row, and with what it is for.
    """
    parts = [
        _before(column, block.cells[column.name], words, block_features)
        for column, block_features in zip(columns, features, strict=True)
    ]
    cells, sides = (np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True))
    others = [name for name in names if name not in labels]
    exact = row_digests(block, names, {column.name: column.kind for column in columns})
    return Originals(row_digests(block, names), exact, row_digests(block, others), cells, sides)


def _before(
    column: Column, cells: Cells, words: Sequence[str], features: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """Return what the features (n, width) of a column were made of, and on which side of its bounds
    that is.
    """
    before = features.astype(np.float64)
    sides = np.zeros(features.shape, dtype=np.int8)
    last = features.shape[1] - column.indicator
    if column.kind in ("number", "date"):
        numbers, beyond, missing = sides_of(column, cells.distinct, words)
        before[:, 0] = numbers[cells.places]
        sides[:, 0] = np.where(missing, ABSENT, beyond)[cells.places]
    elif column.kind == "text":
        plain = features[:, :last]
        sides[:, :last] = (plain >= 1).astype(np.int8) - (plain <= 0).astype(np.int8)
        if column.indicator:
            sides[features[:, last] > 0, :last] = ABSENT
    return before, sides


def row_digests(
    block: Block, names: Sequence[str], kinds: Mapping[str, str] | None = None
) -> NDArray[np.uint8]:
    """Return the digest (n, 32) of each row of a block.

    A row is the same from a CSV, a Parquet or an Arrow file, in whatever order the columns are: 3,
    3.0 and "3.0" are one number, and an ISO date in a text is a date.

    Args:
        block: rows.
        names: all columns of the table.
        kinds: of the columns that become features. Cells of these are told apart where they become
            other features, though they say the same: of a category 7 and 07, or true and TRUE.
            Files of two formats may then differ.
    """
    codes = [_codes(block.cells[name], (kinds or {}).get(name, "")) for name in sorted(names)]
    whole = np.concatenate(codes, axis=1) if codes else np.zeros((block.rows, 0), np.uint8)
    digests = b"".join(hashlib.sha256(row.data).digest() for row in np.ascontiguousarray(whole))
    return np.frombuffer(digests, dtype=np.uint8).reshape(block.rows, 32)


def _codes(cells: Cells, kind: str) -> NDArray[np.uint8]:
    """Return bytes (n, 17) that are the same for the same cell, as a column of a kind reads it."""
    distinct = cells.distinct
    if isinstance(distinct, np.ndarray) and distinct.dtype.kind == "f":
        return _numbered(_NUMBER, distinct)[cells.places]
    if isinstance(distinct, np.ndarray):
        distinct = distinct.astype("datetime64[us]").tolist()
    codes = b"".join(map(_CODES.get(kind, _exact_code), distinct))
    return np.frombuffer(codes, dtype=np.uint8).reshape(-1, 1 + _CODE)[cells.places]


def _numbered(kind: int, numbers: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the codes of numbers; NaN is a missing cell."""
    values = numbers.astype("<f8") + 0.0  # there is one zero
    gone = np.isnan(values)
    values[gone] = 0.0
    codes = np.zeros((len(values), 1 + _CODE), dtype=np.uint8)
    codes[:, 0] = np.where(gone, _MISSING, kind)
    codes[:, 1:9] = values[:, None].view(np.uint8)
    return codes


def _exact_code(value: Any) -> bytes:
    """Return the code of one cell as a category, whichever words a coordinator takes for missing;
    of a number that is written as usual, as that number.
    """
    text = text_of(value)
    number = as_number(value)
    if isinstance(value, str) and (number is None or text_of(number) != text or number != number):
        return _of_text(text)
    return _of_text(text) if isinstance(value, date) else _code(value)


def _number_code(value: Any) -> bytes:
    """Return the code of one cell as a number, whichever words a coordinator takes for missing."""
    number = as_number(value)
    if number is None or not math.isfinite(number):
        return _exact_code(value)
    return _numbered(_NUMBER, np.array([number])).tobytes()


def _of_text(text: str) -> bytes:
    content = text.encode("utf-8", "surrogatepass")
    return bytes([_TEXT]) + hashlib.blake2b(content, digest_size=_CODE).digest()


def _code(value: Any) -> bytes:
    """Return the code of one cell."""
    if is_missing(value):
        return bytes(1 + _CODE)
    text = text_of(value)
    truth = text.casefold()
    if truth in ("true", "false"):  # as each program writes it
        text = truth
    elif (number := as_number(value)) is not None:
        return _numbered(_NUMBER, np.array([number])).tobytes()
    elif isinstance(value, (str, date)):
        with suppress(OverflowError):  # in UTC before the year 1
            if (days := as_days(value)) is not None:
                return _numbered(_DATE, np.array([days])).tobytes()
    return _of_text(text)


_CODES = {"": _code, "number": _number_code}
"""Kind of a column, "" if it becomes no feature -> the code of its cells; exact ones of others."""
