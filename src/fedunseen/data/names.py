"""Names of classes: which two writings are the same name, and which known name a wrong one is near
to.
"""

import difflib
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from fedunseen.core.errors import DataError

LONGEST = 1000
"""Characters of a name at most: arrays of names give each as much room as the longest takes."""
LONG = "long-name"
"""Code of a name with more."""
_SHORT = 7  # letters of a name that one more may be a misspelling of

# Characters without width that Unicode counts as letters or accents: fillers and variation
# selectors.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def composed(name: str) -> str:
    r"""Return a name with each accent and its letter as one character: file systems and keyboards
    differ in this.

    Example:
        >>> composed("ze\u0300bre") == "z\u00e8bre"
        True
    """
    return unicodedata.normalize("NFC", name)


def class_name(key: Any) -> str:
    """Return the name that a class space has for a class of a table in Python.

    Example:
        >>> class_name(" horse "), class_name(3)
        ('horse', '3')
    """
    return str(key).strip()


def is_visible(name: str) -> bool:
    r"""Return whether a name shows all of its characters: no line end, control character or
    character without width.

    Example:
        >>> [is_visible(name) for name in ("zebra", "\u0437\u0435\u0431\u0440\u0430", "zebra\u00ad", "zeb\ufe0fra")]
        [True, True, False, False]
    """
    return name.isprintable() and not _INVISIBLE.search(name)


def folded(name: str) -> str:
    r"""Return a name as it is compared: case, full width and ligatures do not count.

    Example:
        >>> folded("\uff3aEBRA") == folded("zebra")
        True
    """
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def by_folded(names: Iterable[str]) -> dict[str, str]:
    """Return the names by what they are compared as; of several that are the same, the first."""
    table: dict[str, str] = {}
    for name in names:
        table.setdefault(folded(name), name)
    return table


def lookalike(name: str, names: Iterable[str]) -> str | None:
    """Return the first of the names that is the same when compared."""
    wanted = folded(name)
    return next((other for other in names if folded(other) == wanted), None)


def plain(name: str) -> str:
    """Return a class's name without the marks in which two writings of it differ.

    Example:
        >>> plain("Polar_Bear") == plain("polar+bear") == plain("polar  bear")
        True
    """
    return " ".join(folded(name).replace("_", " ").replace("+", " ").split())


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return a hint at the nearest known name, or nothing; for sets of names too long to list.

    Example:
        >>> did_you_mean("zebar", ["zebra", "horse"])
        ": did you mean 'zebra'?"
        >>> did_you_mean("teapot", ["zebra", "horse"])
        ''
    """
    close = difflib.get_close_matches(name, list(choices), n=1)
    return f": did you mean {close[0]!r}?" if close else ""


def misspelled(name: str, choices: Iterable[str]) -> str:
    """Return the known name that a new one may be a misspelling of: a letter apart, or two where
    it has more than seven; "" without one. Names with digits are numbered, not misspelled.

    Example:
        >>> misspelled("lionn", ["lion", "zebra"]), misspelled("lino", ["lion", "zebra"])
        ('lion', 'lion')
        >>> misspelled("tiger", ["lion", "zebra"])
        ''
    """
    wanted = plain(name)
    near = []
    for choice in choices:
        known = plain(choice)
        if known == wanted or any(letter.isdigit() for letter in wanted + known):
            continue
        allowed = 1 if len(known) <= _SHORT else 2
        if abs(len(known) - len(wanted)) <= allowed:
            distance = _edits(wanted, known)
            near += [(distance, choice)] if distance <= allowed else []
    return min(near, default=(0, ""))[1]


def _edits(a: str, b: str) -> int:
    """Return how many letters to add, drop, change or swap with the next take one to the other."""
    rows = [list(range(len(b) + 1))]
    for i, letter in enumerate(a):
        row = [i + 1]
        for j, other in enumerate(b):
            row.append(min(row[j] + 1, rows[i][j + 1] + 1, rows[i][j] + (letter != other)))
            if i and j and letter == b[j - 1] and a[i - 1] == other:
                row[-1] = min(row[-1], rows[i - 1][j - 1] + 1)
        rows.append(row)
    return rows[-1][-1]


def grouped(groups: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return each group's columns from the group of each column; "" is none.

    Example:
        >>> grouped(["size", "", "color", "size"])
        {'size': (0, 3), 'color': (2,)}
    """
    columns: dict[str, tuple[int, ...]] = {}
    for column, group in enumerate(groups):
        if group:
            columns[group] = (*columns.get(group, ()), column)
    return columns


def check_collisions(names: Iterable[str], kind: str) -> None:
    """Refuse names that differ only by case or by ``_`` and space."""
    first: dict[str, str] = {}
    for name in names:
        first_name = first.setdefault(plain(name), name)
        if first_name is not name:
            raise DataError(
                f"{kind} {first_name!r} and {name!r} collide (case, '_' and space do not count): "
                "rename one"
            )
