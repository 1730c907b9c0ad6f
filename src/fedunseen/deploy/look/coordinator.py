"""The coordinator's side of a first look: it reads the answers and says what they hold.

In clear each party's counts are a part of their own. Under masks there is one part, the sum of all
parties, and beside it the names that parties have consented to give.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import QuorumError, RefusedError
from fedunseen.core.parameters import within
from fedunseen.deploy.look.holdings import CELLS, KINDS, bounds_of
from fedunseen.deploy.look.question import (
    Question,
    Values,
    question_of,
    rho_of,
)
from fedunseen.deploy.offline.files import Signed, sum_of_elements
from fedunseen.deploy.remote.wire import WireError
from fedunseen.deploy.secagg.primitives import SecAggError

ALL = "all parties"
_SHARES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class ColumnPart:
    """A column at one party, or at all under masks.

    Attributes:
        parties: how many have the column.
        kinds: what its cells are -> rows.
        cells: (CELLS,) rows with a number in each cell of the histogram.
    """

    parties: int
    kinds: Mapping[str, int]
    cells: NDArray[np.int64]

    @property
    def rows(self) -> int:
        """Rows that are shown, with missing cells."""
        return sum(self.kinds.values())

    @property
    def quantiles(self) -> tuple[float, float, float] | None:
        """The numbers below which about 10, 50 and 90 % are; None where no number is shown.

        Each is placed within its cell, whose bounds differ by a factor of 1.26, as if the cell's
        numbers were spread evenly.
        """
        if not self.cells.any():
            return None
        until = np.cumsum(self.cells)
        wanted = [at * int(until[-1]) for at in _SHARES]
        places = [int(np.searchsorted(until, rows - 1e-9)) for rows in wanted]
        low, middle, high = (
            _inside(cell, 1 - (int(until[cell]) - rows) / int(self.cells[cell]))
            for cell, rows in zip(places, wanted, strict=True)
        )
        return low, middle, high

    def groups(self) -> list[tuple[float, float, int]]:
        """Return (lowest number, highest number, rows) of numbers of one sign that two empty cells
        or more part: a factor of 1.58.
        """
        groups: list[tuple[float, float, int]] = []
        before = -CELLS
        for cell in np.flatnonzero(self.cells).tolist():
            low, high = bounds_of(cell)
            rows = int(self.cells[cell])
            crosses = (cell > CELLS // 2) != (before > CELLS // 2)
            if not groups or (cell - before > 2 and not crosses):
                groups.append((low, high, rows))
            else:
                groups[-1] = (groups[-1][0], high, groups[-1][2] + rows)
            before = cell
        return groups


@dataclass(frozen=True)
class Part:
    """What one party shows, or under masks all together.

    Attributes:
        name: of the party, or :data:`ALL`.
        samples: class -> samples; classes without any are left out.
        holders: class -> parties that hold it.
        others: samples of classes that have no name here.
        unlabelled: samples without a class.
        unlabelled_only: parties that show such samples alone.
        columns: column -> what it is.
    """

    name: str
    samples: Mapping[str, int]
    holders: Mapping[str, int]
    others: int
    unlabelled: int
    unlabelled_only: int
    columns: Mapping[str, ColumnPart]


@dataclass(frozen=True)
class Look:
    """What a first look shows.

    Attributes:
        question: the names of the plan.
        masked: whether counts are the sum over parties alone.
        answered: party -> the names that it has given beyond the plan's.
        minimum: party -> the number of which its counts are multiples.
        parts: each party's, or one of all.
        absent: parties that have not answered.
    """

    question: Question
    masked: bool
    answered: Mapping[str, Question]
    minimum: Mapping[str, int]
    parts: Sequence[Part]
    absent: Sequence[str] = ()

    @cached_property
    def given_classes(self) -> Mapping[str, list[str]]:
        """Class that the plan does not list -> the parties that give it."""
        return _givers({party: own.classes for party, own in self.answered.items()})

    @cached_property
    def given_columns(self) -> Mapping[str, list[str]]:
        """Column that the plan does not list -> the parties that give it."""
        return _givers({party: own.columns for party, own in self.answered.items()})

    @property
    def classes(self) -> list[str]:
        """All names of classes: those of the plan first."""
        return list(dict.fromkeys([*self.question.classes, *self.given_classes]))

    @property
    def columns(self) -> list[str]:
        """All names of columns: those of the plan first."""
        return list(dict.fromkeys([*self.question.columns, *self.given_columns]))

    @cached_property
    def _asked(self) -> frozenset[str]:
        return frozenset(self.question.classes)

    def holders(self, name: str) -> int:
        """Return how many parties are known to hold a class."""
        counted = sum(part.holders.get(name, 0) for part in self.parts)
        return counted or len(self.given_classes.get(name, ()))

    def who(self, name: str) -> list[str]:
        """Return the parties that are known by name to hold a class."""
        named = self.given_classes.get(name, [])
        shown = [part.name for part in self.parts if not self.masked and part.samples.get(name)]
        return list(dict.fromkeys([*shown, *named]))

    def samples(self, name: str) -> int | None:
        """Return a class's samples; None under masks where the plan does not list it."""
        if self.masked and name not in self._asked:
            return None
        return sum(part.samples.get(name, 0) for part in self.parts)


def read_look(plan: Signed, files: Iterable[tuple[object, Signed]]) -> Look:
    """Read the answers to a plan.

    Args:
        plan: that they answer.
        files: what errors call an answer, and the answer.

    Raises:
        RefusedError: one is damaged, or of another plan or kind.
        QuorumError: one is missing under masks, or all are.
    """
    came = dict(_gather(plan, files))
    answers = {name: came[name] for name in plan["parties"] if name in came}
    absent = [name for name in plan["parties"] if name not in answers]
    if absent and (plan["masked"] or not answers):
        why = "the others' masked counts have no sum without it" if answers else "none is there"
        raise QuorumError(f"no answer of {', '.join(absent)}, and {why}: wait for it")
    question = question_of(plan)
    own = {
        name: Question(tuple(answer["classes"]), tuple(answer["columns"]))
        for name, answer in answers.items()
    }
    if plan["masked"]:
        parts = [_part(ALL, question, _sum(plan, question, answers))]
    else:
        parts = [_in_clear(name, question, own[name], answer) for name, answer in answers.items()]
    minimum = {name: answer["minimum"] for name, answer in answers.items()}
    return Look(question, plan["masked"], own, minimum, parts, absent)


def _gather(plan: Signed, files: Iterable[tuple[object, Signed]]) -> Iterator[tuple[str, Signed]]:
    """Yield each party's answer."""
    first: dict[str, object] = {}
    for where, answer in files:
        name = answer.signer
        if answer["plan"] != plan.id.hex() or answer["masked"] != plan["masked"]:
            raise RefusedError(
                f"{where} answers another plan: leave it out, or ask {name} for its answer"
            )
        if answer.enrolment.digest != plan.enrolment.digest or name not in plan["parties"]:
            raise RefusedError(
                f"{where} is signed by {name}, whose key the plan does not know: leave it out"
            )
        if name in first:
            raise RefusedError(f"{where} and {first[name]} are both of {name}: give one of them")
        first[name] = where
        yield name, answer


def _sum(plan: Signed, question: Question, answers: Mapping[str, Signed]) -> Values:
    """Return the sum of masked counts."""
    layout = question.layout(len(plan["parties"]))
    total = sum_of_elements(answers, layout.length)
    try:
        return question.checked(layout.decode(total, len(answers), rho_of(plan)), len(answers))
    except (SecAggError, WireError) as error:
        raise RefusedError(
            f"the answers have no sum: {error}: start again with a new plan"
        ) from None


def _in_clear(name: str, question: Question, own: Question, answer: Signed) -> Part:
    """Return the part of a party that answers in clear."""
    try:
        counts = question.checked(within("counts/", answer.tensors))
        more = own.checked(within("own/", answer.tensors))
        if len(answer.tensors) != len(counts) + len(more):
            raise WireError("it holds more than counts")
    except WireError as error:
        raise RefusedError(f"the answer of {name} is refused: {error}") from None
    part = _part(name, question, counts)
    rest = _part(name, own, more)
    return Part(
        name,
        {**part.samples, **rest.samples},
        {**part.holders, **rest.holders},
        part.others - sum(rest.samples.values()),
        part.unlabelled,
        part.unlabelled_only,
        {**part.columns, **rest.columns},
    )


def _part(name: str, question: Question, counts: Values) -> Part:
    """Return counts by their names."""
    classes = list(zip(question.classes, counts["samples"].tolist(), strict=True))
    holds = dict(zip(question.classes, counts["holds"].tolist(), strict=True))
    others, unlabelled, only = counts["pools"].tolist()
    columns = {
        column: ColumnPart(has, dict(zip(KINDS, kinds.tolist(), strict=True)), cells)
        for column, has, kinds, cells in zip(
            question.columns, counts["has"].tolist(), counts["kinds"], counts["cells"], strict=True
        )
    }
    return Part(
        name,
        {one: count for one, count in classes if count},
        {one: count for one, count in holds.items() if count},
        others,
        unlabelled,
        only,
        columns,
    )


def _givers(given: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return name -> the parties that give it."""
    givers: dict[str, list[str]] = {}
    for party, names in given.items():
        for name in names:
            givers.setdefault(name, []).append(party)
    return givers


def _inside(cell: int, share: float) -> float:
    """Return the number below which a share of a cell's numbers are; of an open cell its bound."""
    low, high = bounds_of(cell)
    if low and high and np.isfinite(low * high):
        return float(low * (high / low) ** share)
    return high if np.isinf(low) else low or high


def facts_of(look: Look, warnings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what ``look.json`` holds: numbers and names alone."""
    asked = frozenset(look.question.classes)
    columns_asked = frozenset(look.question.columns)
    classes = [
        {
            "name": name,
            "planned": name in asked,
            "parties": look.holders(name),
            "who": look.who(name),
            "samples": look.samples(name),
        }
        for name in look.classes
    ]
    columns = [
        {
            "name": name,
            "planned": name in columns_asked,
            "at": part.name,
            "parties": part.columns[name].parties,
            "kinds": dict(part.columns[name].kinds),
            "quantiles": part.columns[name].quantiles,
        }
        for name in look.columns
        for part in look.parts
        if name in part.columns
    ]
    pools = [
        {
            "at": part.name,
            "samples": sum(part.samples.values()),
            "others": part.others,
            "unlabelled": part.unlabelled,
        }
        for part in look.parts
    ]
    return {
        "masked": look.masked,
        "answered": list(look.answered),
        "absent": list(look.absent),
        "minimum": dict(look.minimum),
        "names": {
            party: {"classes": list(own.classes), "columns": list(own.columns)}
            for party, own in look.answered.items()
        },
        "classes": classes,
        "columns": columns,
        "samples": pools,
        "warnings": [dict(warning) for warning in warnings],
    }
