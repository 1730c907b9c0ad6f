"""Small CSV files and lists of lines: read with errors that name the place, written at once."""

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fedunseen.core.arrays import is_number
from fedunseen.core.errors import DataError
from fedunseen.core.files import check_ordinary, write_text
from fedunseen.core.text import shown

LINES = 200_000
"""Lines that a table read whole may have; tables of features are read line by line, without such a
bound.
"""

_FORMULA = re.compile(r"[\s\u200b-\u200d\ufeff\ufffd]*[=+\-@\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|-?inf|nan", re.IGNORECASE)
_SEPARATOR = re.compile(r'"?sep=(.)"?[\r\n]*')  # a first line for spreadsheets
_DECIMAL = re.compile(r"[+-]?\d*,\d+(e[+-]?\d+)?", re.IGNORECASE)
_QUOTED = re.compile('[",;\\t\\r\\n]')

LARGEST = 2.0**128
"""Above what float32 holds."""


def number(text: str, where: str, *parts: object) -> float:
    """Return ``text`` as a number that float32 holds."""
    try:
        value = float(text)
        if abs(value) < LARGEST:
            return value
    except ValueError:
        value = None
    where = where.format(*parts) if parts else where
    if value is None:
        point = text.replace(",", ".", 1)
        if is_number(point):
            raise DataError(
                f"{where}: {text!r} has a comma where a number has a point: write {point}"
            )
        raise DataError(f"{where}: {text!r} is not a number: write one, or leave the line out")
    wrong = (
        "too large: float32 holds at most 3.4e38" if math.isfinite(value) else "not a finite number"
    )
    raise DataError(f"{where}: {text!r} is {wrong}")


def read_csv(path: Path) -> list[tuple[int, list[str]]]:
    """Return all that :func:`iter_csv` yields."""
    rows = []
    for row in iter_csv(path):
        rows.append(row)
        if len(rows) > LINES:
            raise DataError(f"{path} has more than {LINES:,} lines: is it the right table?")
    return rows


def iter_csv(path: Path, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of every line that is not blank, cells stripped of surrounding
    space.

    A first line such as ``sep=;`` replaces ``delimiter``. Commas in numbers become points, unless
    commas separate the cells.
    """
    check_ordinary(path)
    wanted = None
    try:
        # utf-8-sig: spreadsheets like to begin a file with a byte order mark
        with path.open(newline="", encoding="utf-8-sig") as file:
            separator = _SEPARATOR.fullmatch(file.readline(2**20))
            if separator is None:
                file.seek(0)
            else:
                delimiter = separator[1]
            reader = csv.reader(file, strict=True, delimiter=delimiter)
            for row in reader:
                if not any(row):
                    continue
                line = reader.line_num + (separator is not None)
                cells = [cell.strip() for cell in row]
                if delimiter != ",":
                    cells = [c.replace(",", ".") if _DECIMAL.fullmatch(c) else c for c in cells]
                if wanted is None:
                    wanted = len(cells)
                    if delimiter == ",":
                        _check_separator(path, cells)
                elif len(cells) != wanted:
                    raise DataError(
                        f"{path}, line {line}: {len(cells)} cells, but the first line has {wanted}"
                    )
                yield line, cells
    except FileNotFoundError:
        raise DataError(f"{path} is missing: correct its name") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not a text file in UTF-8: save it as CSV in UTF-8") from None
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV file ({error}): save it again as CSV") from None
    if wanted is None:
        raise DataError(f"{path} is empty")


def _check_separator(path: Path, first: Sequence[str]) -> None:
    for mark, called in ((";", "semicolons"), ("\t", "tabs")):
        if sum(cell.count(mark) for cell in first) > len(first) - 1:
            raise DataError(
                f"{path} separates its cells by {called}: save it with commas between them, points "
                "in numbers"
            )


def read_lines(path: Path, remedy: str = "unpack it again", blank: bool = False) -> list[str]:
    """Return the lines of a text file, stripped, without blank ones."""
    check_ordinary(path)
    try:
        lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    except FileNotFoundError:
        raise DataError(f"{path} is missing: correct its name") from None
    except (OSError, UnicodeDecodeError):
        raise DataError(f"{path} cannot be read as text: {remedy}") from None
    full = [i for i, line in enumerate(lines) if line]
    if not full:
        raise DataError(f"{path} is empty: {remedy}")
    return [line for line in lines[full[0] : full[-1] + 1] if line or blank]


def write_csv(path: Path, rows: Iterable[Iterable[str]], follow: bool = False) -> None:
    """Write ``rows`` for :func:`read_csv` at once: a reader sees the old file or the whole new one.

    Cells stay as they are; :func:`write_table` is for people. ``follow``: see
    :func:`fedunseen.core.files.replacing`.
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue(), follow)


def write_table(path: Path, rows: Iterable[Iterable[object]], follow: bool = False) -> None:
    """Write ``rows`` for people, whose spreadsheet must not calculate what a name says; None is
    empty. ``follow``: see :func:`fedunseen.core.files.replacing`.

    Numbers stay numbers, also those in texts. A text gets an apostrophe where a spreadsheet could
    take it for a formula: before ``=``, ``+``, ``-`` or ``@``, and before spaces and control
    characters in front of one.
    """
    lines = [",".join(map(_cell, row)) + "\n" for row in rows]
    write_text(path, "".join(lines), follow)


def _cell(value: object) -> str:
    """Return a cell of a table for people."""
    text = "" if value is None else shown(str(value))
    if _FORMULA.match(text) and not _NUMBER.fullmatch(text):
        text = f"'{text}"
    if _QUOTED.search(text):  # in some countries spreadsheets begin a new cell at a semicolon
        return '"' + text.replace('"', '""') + '"'
    return text
