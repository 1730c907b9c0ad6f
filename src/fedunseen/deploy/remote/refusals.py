"""What a party says when it refuses: one code of a fixed list, so that a refusal names nothing of
its data.

The text of an error stays at the party. A text travels with the code only where updates travel in
clear, and only if the code is not :data:`DATA`.
"""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import suppress
from pathlib import Path
from shlex import quote

from fedunseen.core.array_cache import file_stamp
from fedunseen.core.bounds import MALFORMED, NOT_FINITE, OUTSIDE
from fedunseen.core.errors import DataError, FedUnseenError, RefusedError
from fedunseen.core.files import holding, parse_json, write_json

DATA = "refused-data"
"""The one code of all reasons that may depend on a party's samples, and of all errors without a
code below.
"""

CLASSES = "refused-classes"
CONSENT = "refused-consent"
LEFT = "refused-left"
MESSAGE = "refused-message"
STORAGE = "refused-storage"
SUM = "refused-sum"

REFUSALS = {
    "refused-budget": "its owner's limits of epsilon and delta do not allow the run",
    CONSENT: "its owner has not agreed to what is asked for",
    CLASSES: "its federation.json fixes other classes: copy the newest federation.json everywhere",
    DATA: "it cannot do that with its samples",
    LEFT: "it has refused too often, and leaves until its owner has looked",
    MESSAGE: "the message is damaged, or another one must come before it",
    "refused-scores": "the scores do not follow from a linear model of the classes and features",
    "refused-shape": "its samples have another shape than the coordinator's model takes",
    "refused-number": "a number of the experiment or of the message is beyond its bounds",
    "refused-settings": "its owner does not accept a setting of the experiment",
    "refused-space": "its class table is not the coordinator's: copy the coordinator's classes.csv",
    "refused-sums": "the sums do not fit the classes and features",
    STORAGE: "its disk is full, or cannot be written",
    SUM: "the message does not follow the plan that it has signed, or its ledger",
    "refused-version": "it has another version of fedunseen: install the same version on both "
    "sides",
}
"""Each code that may leave a party -> what the coordinator shows for it."""

HINTS = 8
"""So many refusals that may depend on data, and greetings without an opened sum, leave a party under
masks.
"""

PLANS = 8
"""So many masked experiments a party takes, and as many questions about answers: from many, made
for it, a coordinator could read single samples.
"""
_QUESTION = "question "
_COUNT = "refusals.json"  # in a party's state folder

_BUDGET = ("epsilon-unbounded", "epsilon-limit", "epsilon-unknown", "delta-limit")
_CONSENT = ("look-consent", "look-again", "plan-clear")
_LEDGER = ("dropouts-consent", "roster-differs", "history-older", "history-in-use", "ledger-older")
_NUMBER = (NOT_FINITE, OUTSIDE, MALFORMED, "noise-too-large", "noise-too-small")
_CODES = {
    **{code: code for code in REFUSALS},
    **dict.fromkeys(_CONSENT, CONSENT),
    **dict.fromkeys(_BUDGET, "refused-budget"),
    **dict.fromkeys(_NUMBER, "refused-number"),
    **dict.fromkeys(_LEDGER, SUM),
}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def code_of(error: BaseException) -> str:
    """Return the code of a refusal for an error: its own if it is of the list, else :data:`DATA`,
    as for each error about files and values, whatever its code.

    Example:
        >>> code_of(RefusedError("no name of a run", "refused-message")), code_of(ValueError("3.14"))
        ('refused-message', 'refused-data')
    """
    if isinstance(error, OSError) and error.errno in _FULL:
        return STORAGE
    if isinstance(error, (DataError, ValueError)):
        return DATA
    code = getattr(error, "code", "")
    return _CODES.get(code, DATA) if isinstance(code, str) else DATA


def described(code: object, text: str = "") -> str:
    """Return what a coordinator shows of a refusal: its text if one came, else the code's own
    sentence.
    """
    if text:
        return text
    known_code = code if isinstance(code, str) and code in REFUSALS else DATA
    return f"{REFUSALS[known_code]} [{known_code}]; its own messages say why"


class Hints:
    """The answers that may have revealed something of the data, counted over restarts.

    A greeting counts until a sum of its plan is opened, and so does the first instruction for each
    of its sums; a refusal counts always, and so does another instruction for one sum. Only a
    command of the owner starts the count again (:func:`count_again`), since a process that did so
    would be one that a coordinator's message can start.

    Args:
        state: the folder with the file of the count.
        data: the folder of the party's samples. A message that comes again counts again once that
            has changed, since the answer may be another; in each process, if it is not known.
    """

    def __init__(self, state: Path, data: Path | None = None) -> None:
        self.path = path = state / _COUNT
        self.data = data
        self._process = os.urandom(16)
        self._given = list[str]()
        self._taken = list[str]()
        try:
            stored = parse_json(path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError):
            stored = None
        lists = (
            (stored, [])
            if isinstance(stored, list)  # of an earlier version
            else (stored.get("answers"), stored.get("experiments"))
            if isinstance(stored, dict)
            else (None, None)
        )
        self._given, self._taken = (self._texts(part) for part in lists)

    @property
    def spent(self) -> bool:
        """Whether no more may be given."""
        return len(self._given) >= HINTS

    def add(self, message: bytes) -> str:
        """Count the answer to a message, durably, and return its mark."""
        mark = hashlib.sha256(message + self._stamp()).hexdigest()
        if mark not in self._given:
            self._write([*self._given, mark], self._taken)
        return mark

    def remove(self, mark: str) -> None:
        """Do not count a greeting any more, since a sum of its plan was opened."""
        if mark in self._given:
            self._write([counted for counted in self._given if counted != mark], self._taken)

    def instruct(self, plan: str, k: int, instruction: str) -> None:
        """Count an instruction for sum ``k`` of a plan, durably: a coordinator that lies would try
        many on the same samples.
        """
        place = f"{plan} {k} "
        first = place + instruction
        again = f"again {first}"
        if first in self._given or again in self._given:
            return
        asked = any(mark.startswith(place) for mark in self._given)
        self._write([*self._given, again if asked else first], self._taken)

    def opened(self, plan: str, k: int) -> None:
        """Do not count the first instructions for the sums of a plan up to ``k`` any more, which
        was opened.
        """
        kept = [mark for mark in self._given if not _is_instruction(mark, plan, k)]
        if len(kept) < len(self._given):
            self._write(kept, self._taken)

    def take(self, experiment: str, asks: bool = False) -> bool:
        """Count a masked experiment or a question, durably; return False if there were
        :data:`PLANS` of its kind before.
        """
        mark = f"{_QUESTION}{experiment}" if asks else experiment
        if mark in self._taken:
            return True
        if sum(taken.startswith(_QUESTION) == asks for taken in self._taken) >= PLANS:
            return False
        self._write(self._given, [*self._taken, mark])
        return True

    def _stamp(self) -> bytes:
        """Return what changes with the files of the samples."""
        if self.data is None:
            return self._process
        stamp = hashlib.sha256()
        for path in sorted([self.data, *self.data.rglob("*")]):
            with suppress(OSError):
                stamp.update(f"{path}\0{file_stamp(path)}\0".encode())
        return stamp.digest()

    def _texts(self, stored: object) -> list[str]:
        """Return a list of marks as it was stored."""
        if not isinstance(stored, list) or not all(isinstance(mark, str) for mark in stored):
            raise RefusedError(
                f"{self.path} is damaged, and it counts what coordinators were refused: restore "
                f"the newest copy, or give {again_command(self.path.parent)}"
            )
        return stored

    def _write(self, given: list[str], taken: list[str]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, {"answers": given, "experiments": taken})
        self._given = given
        self._taken = taken


def again_command(state: Path) -> str:
    """Return the command with which an owner starts the count again."""
    return f"`fedunseen ledger {quote(str(state))} --consent refusals`"


def count_again(state: Path) -> None:
    """Start the count of a party's state folder again.

    Raises:
        FedUnseenError: a process of the party is at work.
    """
    with holding(state) as held:
        if not held:
            raise FedUnseenError(f"{state} is in use by another process: end the party first")
        (state / _COUNT).unlink(missing_ok=True)


def _is_instruction(mark: str, plan: str, k: int) -> bool:
    """Say whether a mark is of the first instruction for a sum of a plan up to ``k``."""
    parts = mark.split(" ")
    return len(parts) == 3 and parts[0] == plan and int(parts[1]) <= k
