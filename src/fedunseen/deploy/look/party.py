"""A party's side of a first look: one answer to a plan, listed for its owner before it is written.

Two answers to one plan under masks would reveal their difference. So the site keeps the answer in
its ``--state`` folder, and the same bytes are written again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
from torch import from_numpy

from fedunseen.core.errors import RefusedError, counted
from fedunseen.core.files import replacing
from fedunseen.core.parameters import Params, under
from fedunseen.core.text import shown
from fedunseen.data.names import plain
from fedunseen.deploy.look.alike import alike
from fedunseen.deploy.look.holdings import Holdings, holdings_of
from fedunseen.deploy.look.question import (
    ANSWER,
    Question,
    first_names,
    further,
    large_classes,
    question_of,
    rho_of,
)
from fedunseen.deploy.offline.files import signed
from fedunseen.deploy.offline.party import Asked, pair_masks

NO_CONSENT = "look-consent"
AGAIN = "look-again"
_RUN = "look/"
_LISTED = 20  # names in a line for the owner


class Looking(Asked):
    """One party that answers one look; the ledger also keeps who takes part in a masked one, and
    that one in clear was answered.
    """

    what = "counts"

    @cached_property
    def question(self) -> Question:
        """What the plan asks for."""
        return question_of(self.plan)

    @property
    def run(self) -> str:
        """What the history calls the look."""
        return f"{_RUN}{self.plan.id.hex()}"

    @property
    def _place(self) -> Path:
        return self.site.state / "look" / f"{self.plan.id.hex()}.fedunseen"

    def stored(self) -> bytes | None:
        """Return the answer that has left before; None if none has.

        Raises:
            RefusedError: it was given, and is lost; a masked sum of other parties was answered
                (code ``roster-differs``); or the owner has not consented to what it shows together
                with earlier answers (code ``look-again``).
        """
        # an answer that is stored, but is not in the history, has not left: it is made again, since
        # the owner may agree to less today
        lines = [line for line in self.site.releases.lines if line["kind"] == "file"]
        mine = [line["sha256"] for line in lines if line["run"] == self.run]
        content = self._place.read_bytes() if self._place.is_file() else None
        recorded = content is not None and hashlib.sha256(content).hexdigest() in mine
        if mine and not recorded:
            raise RefusedError(
                f"{self._place} is missing or damaged, and another answer to the same plan could "
                "reveal counts: restore it from a copy, or ask for a new plan"
            )
        if recorded:
            return content
        if self.plan["masked"]:
            self.ledger.check_roster(self.plan["parties"], samples=None, consent=self.consent)
        others = {line["run"] for line in lines if line["run"].startswith(_RUN)} - {self.run}
        self._waive([*self._answered_before(bool(others))])
        return None

    def _answered_before(self, looked: bool) -> Iterator[tuple[str, str]]:
        """Yield why earlier answers need consent, and the word that gives it: together with those,
        counts may show samples, or the counts of parties that are asked for none.

        Args:
            looked: whether this party has answered another look.
        """
        if looked:
            yield (
                "this party has answered another look, and the difference of two can show single "
                "samples that came since",
                "again",
            )
        if not self.plan["masked"]:
            if hidden := self.ledger.in_masked_sums():
                yield (
                    f"masked sums of {_names(hidden)} and this party were answered, and counts in "
                    "clear show what the others' are, whose owners are not asked by this",
                    "again",
                )
            return
        yield from ((why, "again") for why in self.ledger.taken_in_clear(None))
        if others := self.ledger.in_other_federations(None):
            yield (
                f"in another federation {_names(others)} took part, and what is left of its sum "
                "and this one may be the counts of a single party, whose owner is not asked by "
                "this",
                "federations",
            )

    def _waive(self, reasons: Sequence[tuple[str, str]]) -> None:
        """Refuse without the words of consent, and say for what; with them, say what each allows.

        Args:
            reasons: why, and the word that allows it.
        """
        words = list(dict.fromkeys(word for _, word in reasons))
        if not set(words) <= self.consent:
            why = "; and ".join(why for why, _ in reasons)
            given = " ".join(f"--consent {word}" for word in words)
            raise RefusedError(f"{why}: give {given} if the owner agrees", AGAIN)
        for why, word in reasons:
            self.site.say(f"allowed by --consent {word}: {why}")

    def given(
        self, data: Path, label: str, minimum: int, say: Callable[[str], None]
    ) -> tuple[bytes, bool]:
        """Return the content of the answer, and whether it was given before.

        What would leave is said before consent is asked for.

        Args:
            data: of the party.
            label: of a table: the column with the classes.
            minimum: each count is a multiple of it.
            say: takes a line for the owner.

        Raises:
            RefusedError: as :meth:`stored` and :meth:`answer` say.
            DataError: the data cannot be read.
        """
        content = self.stored()
        if content is not None:
            self.record(content)
            return content, True
        holdings = holdings_of(data, label, self.plan["classes"])
        for line in self.listed(holdings, minimum):
            say(shown(line))
        return self.answer(holdings, minimum), False

    def listed(self, holdings: Holdings, minimum: int) -> Iterator[str]:
        """Yield what would leave, line by line, for the owner."""
        question = self.question
        hidden = "under masks, only the sum over all parties can be read"
        to = hidden if self.plan["masked"] else "in clear: whoever has the answer reads it"
        yield f"{self.credentials.name} would send, rounded down to multiples of {minimum} ({to}):"
        if holdings.label:
            yield f"- the classes are what is in the column {holdings.label!r}"
        large = large_classes(holdings, minimum)
        listed = frozenset(question.classes)
        asked = {name: large[name] for name in large if name in listed}
        yield f"- samples of {len(question.classes)} classes of the plan: {_counts(asked)}"
        others = sum(large.values()) - sum(asked.values())
        unlabelled = holdings.unlabelled // minimum * minimum
        yield f"- {others} samples of other classes; {unlabelled} without a class"
        here = [name for name in question.columns if name in holdings.columns]
        if question.columns:
            yield (
                f"- of {len(here)} of the plan's {counted(len(question.columns), 'column')}: how "
                "many cells are missing, numbers, dates or texts, and a histogram of the numbers"
            )
        own = further(question, holdings, minimum)
        if own.classes or own.columns:
            what = "with --consent names" if "names" not in self.consent else "as you consented"
            sent = "names" if self.plan["masked"] else "names and the same counts"
            fitting = first_names(own)
            yield (
                f"- {what}, the {sent} of what the plan does not list: classes "
                f"{_names(fitting.classes)}; columns {_names(fitting.columns)}"
            )
            if fitting != own:
                yield (
                    "left out, since an answer has room for few: all but "
                    f"{len(fitting.classes)} of {len(own.classes)} such classes, and all but "
                    f"{len(fitting.columns)} of {len(own.columns)} columns"
                )
        few = {name: count for name, count in holdings.samples.items() if name not in large}
        if few:
            yield f"left out, since fewer than {minimum} samples are here: {_counts(few)}"
        yield (
            "note: nothing bounds what counts reveal, so that a later run with --epsilon-limit and "
            "the same --state is refused"
        )
        for mine, theirs in islice(_near(large, question.classes), _LISTED):
            yield f"note: your class {mine!r} may be {theirs!r} of the plan: is it one class?"

    def answer(self, holdings: Holdings, minimum: int) -> bytes:
        """Return the content of the answer, once it is stored and written down.

        Raises:
            RefusedError: the owner has not consented (code ``look-consent``), or has limited the
                privacy that may be spent.
        """
        if "look" not in self.consent:
            raise RefusedError(
                "no answer was made: give --consent look if the owner agrees to what is listed "
                "above",
                NO_CONSENT,
            )
        content = self._content(holdings, minimum)
        self._place.parent.mkdir(mode=0o700, exist_ok=True)
        with replacing(self._place) as temporary:
            temporary.touch(0o600)
            temporary.write_bytes(content)
        self.record(content)
        return content

    def record(self, content: bytes) -> None:
        """Write down an answer before it leaves, unless that was done.

        Raises:
            RefusedError: a masked sum of other parties was answered (code ``roster-differs``).
        """
        self.site.releases.charge(self.run, (math.inf, 0.0))
        if self.plan["masked"]:
            self.ledger.keep_look(self.plan["parties"], self.consent)
        else:
            self.ledger.keep_look_in_clear()
        self.keep_one(self.plan.id.hex(), content)
        self.site.wrote(self.run, content, {})

    def _content(self, holdings: Holdings, minimum: int) -> bytes:
        plan = self.plan
        values = self.question.values(holdings, minimum)
        own = Question((), ())
        if "names" in self.consent:
            own = first_names(further(self.question, holdings, minimum))
        tensors: Params
        if plan["masked"]:
            elements = self.question.layout(len(plan["parties"])).encode(values, rho_of(plan))
            hidden = pair_masks(self.credentials, plan["parties"], rho_of(plan), elements)
            tensors = {"elements": from_numpy(hidden.view(np.int64))}
        else:
            more = own.values(holdings, minimum)
            tensors = under("counts/", {key: from_numpy(value) for key, value in values.items()})
            tensors |= under("own/", {key: from_numpy(value) for key, value in more.items()})
        fields = {
            "party": self.credentials.name,
            "plan": plan.id.hex(),
            "masked": plan["masked"],
            "minimum": minimum,
            "classes": list(own.classes),
            "columns": list(own.columns),
        }
        mine = self.credentials
        return signed(ANSWER, fields, tensors, mine.enrolment, mine.signing)


def _near(mine: Mapping[str, int], theirs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield own names and names of a plan that may be one class."""
    spelled: dict[str, list[str]] = {}
    for other in theirs:
        spelled.setdefault(plain(other), []).append(other)
    known = frozenset(theirs)
    own = {name: None for name in mine if name not in known}
    for name in own:
        yield from ((name, other) for other in spelled.get(plain(name), ()))
    for first, second in alike([*own, *theirs]):
        if plain(first) != plain(second) and (first in own) != (second in own):
            yield (first, second) if first in own else (second, first)


def _counts(counts: Mapping[str, int]) -> str:
    """Return classes and their counts on one line."""
    return _names([f"{name} ({count})" for name, count in counts.items()])


def _names(names: Sequence[str]) -> str:
    listed = ", ".join(list(names)[:_LISTED]) or "none"
    return f"{listed} and {len(names) - _LISTED} more" if len(names) > _LISTED else listed
