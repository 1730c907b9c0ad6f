"""Small CSV files and whole-file writes: the habits that class spaces, features and partitions share."""

from __future__ import annotations

import csv
import difflib
import io
import math
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from fedunseen.core.errors import DataError
from fedunseen.core.files import write_text

__all__ = [
    "check_widths",
    "composed",
    "did_you_mean",
    "is_number",
    "number",
    "plain",
    "read_csv",
    "read_lines",
    "write_csv",
]


def composed(name: str) -> str:
    r"""Return a name with each accent and its letter as one character: file systems and keyboards differ in this.

    Example:
        >>> composed("ze\u0300bre") == "z\u00e8bre"
        True
    """
    return unicodedata.normalize("NFC", name)


def plain(name: str) -> str:
    """Return a class's name without the marks in which two writings of it differ.

    Example:
        >>> plain("Polar_Bear") == plain("polar+bear") == plain("polar  bear")
        True
    """
    return " ".join(composed(name).casefold().replace("_", " ").replace("+", " ").split())


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
        point = text.replace(",", ".", 1)
        if is_number(point):
            raise DataError(f"{where}: {text!r} has a comma where a number has a point: write {point}") from None
        raise DataError(f"{where}: {text!r} is not a number") from None
    if not math.isfinite(value):
        raise DataError(f"{where}: {text!r} is not a finite number")
    return value


def is_number(text: str) -> bool:
    """Say whether Python reads a text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


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
    commas = len(rows[0][1]) - 1
    for mark, called in ((";", "semicolons"), ("\t", "tabs")):
        if sum(cell.count(mark) for cell in rows[0][1]) > commas:
            raise DataError(
                f"{path} separates its cells by {called}: save it with commas between them, points in numbers"
            )
    check_widths(path, rows)
    return rows


def check_widths(path: Path, rows: Sequence[tuple[int, list[str]]]) -> None:
    """Refuse lines (line number, cells) that have more or fewer cells than the first.

    Raises:
        DataError: naming the first of them, and what it may come from.
    """
    wanted = len(rows[0][1])
    for line, row in rows:
        if len(row) != wanted:
            numbers = [f"{one},{two}" for one, two in pairwise(row) if one.lstrip("-").isdecimal() and two.isdecimal()]
            comma = f": if {numbers[0]} is one number, write it with a point" if len(row) > wanted and numbers else ""
            raise DataError(f"{path}, line {line}: {len(row)} cells, but the first line has {wanted}{comma}")


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file, stripped, without blank ones.

    Raises:
        DataError: if it cannot be read as text, or is empty.
    """
    try:
        lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except (OSError, UnicodeDecodeError):
        raise DataError(f"{path} cannot be read as text: unpack it again") from None
    lines = [line for line in lines if line]
    if not lines:
        raise DataError(f"{path} is empty: unpack it again")
    return lines


def write_csv(path: Path, rows: Iterable[Iterable[str]]) -> None:
    """Write ``rows`` at once: a reader sees the old file or the whole new one, even if we are killed."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue())
