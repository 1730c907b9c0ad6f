"""How a column of a table becomes numbers between 0 and 1.

A column has a ``kind``: ``number``, ``category``, ``boolean`` or ``date``. Numbers and dates are
placed between two stated bounds, and clipped there. A category has a feature for each value of a
stated vocabulary, and one for all others. A missing cell takes the stated ``fill``; with
``indicator``, one more feature marks it. Nothing here is fitted to samples. The fifth kind,
``text``, needs a sentence encoder, and is elsewhere.

This file needs NumPy alone: an exported model carries a copy of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

MISSING = ("", "NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None")
"""Texts that stand for a missing cell."""

OTHER = "other"
ABSENT = "missing"
"""What follows the column's name in the names of two features."""

_TRUE = ("true", "t", "yes", "y", "1")
_FALSE = ("false", "f", "no", "n", "0")
_EPOCH = datetime(1970, 1, 1)
_DAY = 86_400_000_000  # microseconds
_FIRST = (datetime(1, 1, 1) - _EPOCH).days
_LAST = (datetime(9999, 12, 31) - _EPOCH).days
_WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))\.0+")
_PER_DAY = {
    "D": 1, "h": 24, "m": 1440, "s": 86_400, "ms": 86_400_000, "us": _DAY, "ns": 1000 * _DAY,
}  # fmt: skip


class CellError(ValueError):
    """A cell is not what its column says.

    Attributes:
        place: of the cell among the values that were given.
        problem: what is wrong, as the end of a sentence.
        remedy: what to do.
        code: ``wrong-type``, ``not-finite`` or ``date-out-of-range``.
    """

    def __init__(self, place: int, problem: str, remedy: str, code: str) -> None:
        super().__init__(f"{problem}: {remedy}")
        self.place = place
        self.problem = problem
        self.remedy = remedy
        self.code = code


def text_of(value: Any) -> str:
    """Return a cell as the text by which categories and classes are compared.

    A whole number is written without a point, whichever type a file stores it in.

    Example:
        >>> [text_of(value) for value in (3, 3.0, "3.0", True, " Dream ", "007")]
        ['3', '3', '3', 'true', 'Dream', '007']
    """
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (float, np.floating)) and math.isfinite(value) and value == int(value):
        return str(int(value))
    text = str(value).strip()
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def is_missing(value: Any, words: Sequence[str] = MISSING) -> bool:
    """Return whether a cell is missing: None, NaN, NaT, ``pandas.NA``, or a text of ``words``."""
    if isinstance(value, str):
        return value.strip() in words
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas.NA: its comparison is neither true nor false
        return True


def as_number(value: Any) -> float | None:
    """Return a cell as a float; None if it is none."""
    if isinstance(value, (date, timedelta)):
        return None
    try:
        return float(value)
    except (OverflowError, TypeError, ValueError):
        return None


def as_boolean(value: Any) -> float | None:
    """Return 1.0 or 0.0; None if a cell is neither."""
    text = text_of(value).casefold()
    return 1.0 if text in _TRUE else 0.0 if text in _FALSE else None


def as_days(value: Any) -> float | None:
    """Return a date as days since 1970-01-01, in UTC; None if a cell is no ISO date.

    Example:
        >>> as_days("1970-01-02T12:00"), as_days(date(1970, 1, 3)), as_days("3 May")
        (1.5, 2.0, None)
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            return None
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            value = value.astimezone(UTC).replace(tzinfo=None)
        return float((value - _EPOCH) // timedelta(microseconds=1)) / _DAY
    return float((value - _EPOCH.date()).days) if isinstance(value, date) else None


def width(column: Any) -> int:
    """Return how many features a column has."""
    return len(feature_names(column))


def feature_names(column: Any) -> list[str]:
    """Return the names of a column's features, in order; a text has one for all that its encoder
    makes of it.
    """
    names = [column.name]
    if column.kind == "category":
        names = [f"{column.name}: {value}" for value in (*column.values, OTHER)]
    return [*names, *([f"{column.name}: {ABSENT}"] if column.indicator else [])]


def encode(
    column: Any, cells: Sequence[Any] | NDArray[Any], words: Sequence[str] = MISSING
) -> NDArray[np.float32]:
    """Return the features of cells.

    Args:
        column: has ``name``, ``kind``, ``values``, ``bounds``, ``fill`` and ``indicator``.
        cells: (n,) values: an array of floats or ``datetime64``, or any Python objects.
        words: texts that stand for a missing cell.

    Returns:
        Shape (n, width), within [0, 1].

    Raises:
        CellError: a cell is of another kind than the column.

    Example:
        >>> from fedunseen.data.columns.settings import Column
        >>> size = Column(name="size", kind="number", bounds=(0, 10), fill=5, indicator=True)
        >>> encode(size, ["2", "", 99]).tolist()
        [[0.20000000298023224, 0.0], [0.5, 1.0], [1.0, 0.0]]
    """
    if column.kind == "category":
        features, missing = _one_hot(column, cells, words)
    else:
        numbers, missing = _numbers(column, cells, words)
        low, high, fill = _stated(column)
        placed = (np.where(missing, fill, numbers) - low) / (high - low)
        features = np.clip(placed, 0.0, 1.0)[:, None].astype(np.float32)
    if column.indicator:
        features = np.column_stack([features, missing.astype(np.float32)])
    return features


def sides_of(
    column: Any, cells: Sequence[Any] | NDArray[Any], words: Sequence[str] = MISSING
) -> tuple[NDArray[np.float64], NDArray[np.int8], NDArray[np.bool_]]:
    """Return the numbers (n,) of a column of numbers or dates, before they are clipped; which are
    below its bounds (-1) and above (1); and which are missing.
    """
    numbers, missing = _numbers(column, cells, words)
    low, high, fill = _stated(column)
    numbers = np.where(missing, fill, numbers)
    sides = (numbers > high).astype(np.int8) - (numbers < low).astype(np.int8)
    return numbers, sides, missing


def _one_hot(
    column: Any, cells: Sequence[Any] | NDArray[Any], words: Sequence[str]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return one-hot features (n, values + 1) and which cells are missing; these have zeros alone
    where an indicator marks them.
    """
    places = {value: i for i, value in enumerate(column.values)}
    features = np.zeros((len(cells), len(places) + 1), dtype=np.float32)
    missing = np.zeros(len(cells), dtype=np.bool_)
    for i, value in enumerate(_objects(cells)):
        text = text_of(value)
        missing[i] = text not in places and is_missing(value, words)
        if not (missing[i] and column.indicator):
            features[i, places.get(text, len(places))] = 1.0
    return features, missing


def _objects(cells: Sequence[Any] | NDArray[Any]) -> Sequence[Any]:
    return cells.tolist() if isinstance(cells, np.ndarray) else cells


def _stated(column: Any) -> tuple[float, float, float]:
    """Return the bounds and the fill of a column as numbers."""
    if column.kind == "boolean":
        low = 0.0
        high = 1.0
    else:
        low, high = (_stated_number(column, value) for value in column.bounds)
    fill = (low + high) / 2 if column.fill is None else _stated_number(column, column.fill)
    return low, high, fill


def _stated_number(column: Any, value: Any) -> float:
    number = as_days(value) if column.kind == "date" else as_number(value)
    assert number is not None  # the settings are checked when they are read
    return number


def _numbers(
    column: Any, cells: Sequence[Any] | NDArray[Any], words: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return cells as numbers (n,), and which are missing."""
    if isinstance(cells, np.ndarray):
        wanted = "M" if column.kind == "date" else "f"
        if cells.dtype.kind == wanted:
            return _of_array(column.kind, cells)
        if wanted == "M" or cells.dtype.kind == "M":
            stored = "dates" if cells.dtype.kind == "M" else "numbers"
            raise CellError(0, f"the cells are {stored}", *_remedy(column.kind))
        cells = cells.tolist()
    read = {"number": as_number, "boolean": as_boolean, "date": as_days}[column.kind]
    numbers = np.zeros(len(cells))
    missing = np.zeros(len(cells), dtype=np.bool_)
    for i, value in enumerate(cells):
        missing[i] = is_missing(value, words)
        number = 0.0 if missing[i] else read(value)
        if number is None:
            raise CellError(i, f"{_shown(value)} is no {column.kind}", *_remedy(column.kind))
        numbers[i] = number
    _check_finite(numbers, cells)
    return numbers, missing


def _shown(value: Any) -> str:
    return (repr(value) if isinstance(value, str) else str(value))[:60]


def _remedy(kind: str) -> tuple[str, str]:
    article = {"number": "a number", "boolean": "true or false", "date": "a date as 2024-05-17"}
    return f"write {article[kind]}, or leave the cell empty", "wrong-type"


def _of_array(kind: str, cells: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return floats, or dates as days, and which are missing."""
    if kind != "date":
        numbers = cells.astype(np.float64)
        missing = np.isnan(numbers)
        numbers[missing] = 0.0
        _check_finite(numbers, cells)
        if kind == "boolean" and (wrong := (numbers != 0) & (numbers != 1)).any():
            first = int(np.argmax(wrong))
            raise CellError(first, f"{numbers[first]:g} is no boolean", *_remedy(kind))
        return numbers, missing
    missing = np.isnat(cells)
    unit, many = np.datetime_data(cells.dtype)
    whole = np.where(missing, 0, cells.astype(np.int64))
    if unit not in _PER_DAY:
        raise CellError(0, f"dates are counted in {unit}", *_remedy(kind))
    per_day = _PER_DAY[unit]
    days = whole / per_day * many
    if (outside := (days < _FIRST) | (days > _LAST + 1)).any():
        raise CellError(
            int(np.argmax(outside)),
            "a date lies outside of the years 1 to 9999",
            "correct the cell, or leave it empty",
            "date-out-of-range",
        )
    micro = (
        whole * many // (per_day // _DAY) if per_day > _DAY else whole * many * (_DAY // per_day)
    )
    return micro / _DAY, missing


def _check_finite(numbers: NDArray[np.float64], cells: Any) -> None:
    if not (good := np.isfinite(numbers)).all():
        first = int(np.argmin(good))
        raise CellError(
            first,
            f"{cells[first]!s} is not a finite number",
            "write a number, or leave the cell empty",
            "not-finite",
        )


def encode_rows(
    columns: Sequence[Any], rows: Mapping[str, Sequence[Any]], words: Sequence[str] = MISSING
) -> NDArray[np.float32]:
    """Return the features (n, width) of whole columns of cells, by name."""
    return np.column_stack([encode(column, rows[column.name], words) for column in columns])
