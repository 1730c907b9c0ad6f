"""What a first look warns about: names that clash, classes of few samples, units that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations
from typing import NamedTuple

from fedunseen.core.text import rough
from fedunseen.data.names import plain
from fedunseen.deploy.look.alike import alike
from fedunseen.deploy.look.coordinator import ColumnPart, Look

_FACTOR = 2.0  # of two medians
_SHARE = 0.1  # of the rows that a group of numbers has at least
_HALF = 0.5
_MOST = 50  # findings of a kind that are shown
_SPELLINGS = 5  # of a name


class Finding(NamedTuple):
    """A warning.

    Attributes:
        code: stable name of the kind.
        what: is to be looked at.
        remedy: what to do.
    """

    code: str
    what: str
    remedy: str


def findings(look: Look, few: int) -> list[Finding]:
    """Return all warnings of a look, classes first.

    Args:
        look: what parties have shown.
        few: a class that one party alone holds with fewer samples is worth a warning.
    """
    found = chain(_clashes(look, "class"), _classes(look, few), _pools(look))
    return list(_shown(chain(found, _clashes(look, "column"), _columns(look))))


def _shown(found: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the first findings of each kind, and how many more there are: a party's names make as
    many as it likes.
    """
    counts = Counter[str]()
    for finding in found:
        counts[finding.code] += 1
        if counts[finding.code] <= _MOST:
            yield finding
    for code, count in counts.items():
        if count > _MOST:
            yield Finding(
                code, f"{count - _MOST:,} more are like this: {code}.", "Correct the others first."
            )


def _clashes(look: Look, kind: str) -> Iterator[Finding]:
    """Yield names that may be one, unless the plan lists all of them."""
    ours = frozenset(look.question.classes if kind == "class" else look.question.columns)
    names = look.classes if kind == "class" else look.columns
    given = look.given_classes if kind == "class" else look.given_columns
    bare = {name: _bare(name) for name in names}
    spellings: dict[str, list[str]] = {}
    for name in names:
        spellings.setdefault(bare[name], []).append(name)
    same = [group for group in spellings.values() if len(group) > 1]
    near = [list(pair) for pair in alike(names) if bare[pair[0]] != bare[pair[1]]]
    for group in same + near:
        if ours.issuperset(group):
            continue
        *others, last = [
            f"{name!r} ({'the plan' if name in ours else ', '.join(given[name])})"
            for name in group[:_SPELLINGS]
        ]
        if len(group) > _SPELLINGS:
            others.append(last)
            last = f"{len(group) - _SPELLINGS:,} more"
        remedy = f"Agree on one spelling before the run, unless they are different {_plural(kind)}."
        what = f"{', '.join(others)} and {last} may be one {kind}."
        yield Finding(f"{kind}-clash", what, remedy)


def _bare(name: str) -> str:
    """Return a name's letters and digits alone."""
    return "".join(letter for letter in plain(name) if letter.isalnum()) or name


def _plural(kind: str) -> str:
    return "classes" if kind == "class" else "columns"


def _classes(look: Look, few: int) -> Iterator[Finding]:
    for name in look.classes:
        samples = look.samples(name)
        if samples is not None and not samples:
            yield Finding(
                "class-without-samples",
                f"No party shows a sample of {name!r}: each has none, or fewer than its "
                "--min-samples.",
                "Mark the class as unseen, or correct its name at the party that has it.",
            )
        elif samples is not None and look.holders(name) == 1 and samples < few:
            who = look.who(name)
            yield Finding(
                "one-party-few-samples",
                f"{who[0] if who else 'One party'} alone holds {name!r}, with about "
                f"{samples} samples, fewer than {few}.",
                "Find more samples, or expect that the class is recognized badly.",
            )


def _pools(look: Look) -> Iterator[Finding]:
    for part in look.parts:
        if part.unlabelled_only:
            who = f"{part.unlabelled_only} of {len(look.answered)} parties"
            yield Finding(
                "only-unlabelled",
                f"Only samples without a class at {who if look.masked else part.name}.",
                "Such samples only adapt a model: let the party label some.",
            )


def _columns(look: Look) -> Iterator[Finding]:
    for name in look.columns:
        parts = {part.name: part.columns[name] for part in look.parts if name in part.columns}
        if name in look.question.columns:
            yield from _absent(look, name, parts)
        here = {who: part for who, part in parts.items() if part.parties}
        yield from _cells(look, name, here)
        yield from _units(name, here)
        if look.masked:
            yield from _two_groups(name, here)


def _absent(look: Look, name: str, parts: dict[str, ColumnPart]) -> Iterator[Finding]:
    total = len(look.answered)
    if look.masked:
        lacking = total - sum(part.parties for part in parts.values())
        who = f"{lacking} of {total} parties" if lacking else ""
    else:
        who = ", ".join(party for party, part in parts.items() if not part.parties)
    if who:
        yield Finding(
            "missing-column",
            f"There is no column {name!r} at {who}.",
            "Let the party rename its column, or leave the column out of the experiment.",
        )


def _cells(look: Look, name: str, parts: dict[str, ColumnPart]) -> Iterator[Finding]:
    """Yield columns whose cells are of two kinds, or mostly missing."""
    kinds: dict[str, list[str]] = {}
    for who, part in parts.items():
        for kind, rows in part.kinds.items():
            if rows and kind != "missing":
                kinds.setdefault(kind, []).append(who)
        if part.rows and part.kinds["missing"] > _HALF * part.rows:
            share = round(100 * part.kinds["missing"] / part.rows)
            yield Finding(
                "mostly-missing",
                f"{share} % of the cells of {name!r} are missing at {who}.",
                "Leave the column out of the experiment, or fill it.",
            )
    if len(kinds) > 1:
        said = "; ".join(
            kind if look.masked else f"{kind} at {', '.join(who)}" for kind, who in kinds.items()
        )
        yield Finding(
            "mixed-kinds",
            f"The cells of {name!r} are of several kinds: {said}.",
            "Agree on one kind, such as numbers without units.",
        )


def _units(name: str, parts: dict[str, ColumnPart]) -> Iterator[Finding]:
    """Yield columns whose medians at two parties differ by a factor, where their ranges part."""
    shown = [(who, part.quantiles) for who, part in parts.items() if part.quantiles is not None]
    widest: tuple[float, str, float, str, float] | None = None
    for (first, one), (second, two) in combinations(shown, 2):
        assert one is not None
        assert two is not None
        factor = max(two[1] / one[1], one[1] / two[1]) if one[1] * two[1] > 0 else 0.0
        apart = one[2] < two[0] or two[2] < one[0]
        if apart and factor >= _FACTOR and (widest is None or factor > widest[0]):
            widest = factor, first, one[1], second, two[1]
    if widest is not None:
        factor, first, low, second, high = widest
        yield Finding(
            "range-factor",
            f"{name!r} is about {rough(low)} at {first} and {rough(high)} at {second}, a factor of "
            f"about {rough(factor)}.",
            "Compare the units. Parties with other classes may also differ so.",
        )


def _two_groups(name: str, parts: dict[str, ColumnPart]) -> Iterator[Finding]:
    for part in parts.values():
        rows = int(part.cells.sum())
        groups: Sequence[tuple[float, float, int]] = [
            group for group in part.groups() if group[2] >= _SHARE * rows
        ]
        if len(groups) > 1:
            first = groups[0][1]
            second = groups[-1][0]
            yield Finding(
                "two-groups",
                f"{name!r} has numbers up to {rough(first)} and from {rough(second)} on, and few "
                "between.",
                "Ask the parties for their units.",
            )
