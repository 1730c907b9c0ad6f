"""Small CSV files and whole-file writes: the habits that class spaces, features and partitions share."""

from __future__ import annotations

import csv
import difflib
import io
import math
from collections.abc import Iterable
from pathlib import Path

from fedunseen.core.errors import DataError
from fedunseen.core.files import write_text

__all__ = ["did_you_mean", "number", "read_csv", "write_csv"]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint at the nearest known name, or nothing; for sets of names too long to list.

    Example:
        >>> did_you_mean("zebar", ["zebra", "horse"])
        ": did you mean 'zebra'?"
        >>> did_you_mean("teapot", ["zebra", "horse"])
        ''
    """
    close = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean {close[0]!r}?" if close else ""


def number(text: str, where: str) -> float:
    """Return ``text`` as a finite number.

    Raises:
        DataError: if it is none; ``where`` starts the sentence.
    """
    try:
        value = float(text)
    except ValueError:
        raise DataError(f"{where}: {text!r} is not a number") from None
    if not math.isfinite(value):
        raise DataError(f"{where}: {text!r} is not a finite number")
    return value


def read_csv(path: Path) -> list[tuple[int, list[str]]]:
    """Return (line number, cells) of every line that is not blank, cells stripped of surrounding space.

    Raises:
        DataError: if the file is missing, unreadable, not UTF-8, not CSV, empty, or a line has more or fewer
            cells than the first.
    """
    try:
        # utf-8-sig: spreadsheets like to begin a file with a byte order mark
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(row)]
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not a text file in UTF-8: save it as CSV in UTF-8") from None
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV file: {error}") from None
    if not rows:
        raise DataError(f"{path} is empty")
    for line, row in rows:
        if len(row) != len(rows[0][1]):
            raise DataError(f"{path}, line {line}: {len(row)} cells, but the first line has {len(rows[0][1])}")
    return rows


def write_csv(path: Path, rows: Iterable[Iterable[str]]) -> None:
    """Write ``rows`` at once: a reader sees the old file or the whole new one, even if we are killed."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue())
