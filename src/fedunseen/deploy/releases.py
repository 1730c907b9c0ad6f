"""What a site has ever sent, and how much privacy its owner has allowed to be spent.

``STATE/releases.jsonl`` has a line for every message that leaves the site, written before it
leaves. The file is read by ``fedunseen ledger`` and by the site's page. What its runs have spent
counts for the whole ``--state`` folder, so that no other path or name of the data starts at zero.

The file and the ledger of masked sums beside it note each other's state. Lines may be newer than
what the ledger has noted of them, and the ledger newer than what the lines have noted of it, since
a kill can part two writes. A file that is older has been lost, or restored from a backup.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedunseen.core.errors import DataError, MissingDependencyError, RefusedError
from fedunseen.core.files import holding, parse_json

if TYPE_CHECKING:  # the libraries of cryptography are loaded where they are used
    from fedunseen.deploy.secagg.ledger import Ledger

_FILE = "releases.jsonl"
IN_CLEAR = "in_clear"
"""The key of a line of samples in clear that the ledger has kept."""
_LOCK = ".releases.lock"  # of a process that writes a line


class Releases:
    """The history of a site's releases, append-only."""

    def __init__(self, folder: Path, limit: float | None = None, delta_limit: float = 1.0) -> None:
        self.path = folder / _FILE
        self.limit = limit
        self.delta_limit = delta_limit
        self.lines: list[dict[str, Any]] = []
        self._whole: int | None = None  # bytes of the file before a cut line
        # of the whole lines
        self._size = 0
        self._digest = hashlib.sha256()
        self._ledger: Ledger | None = None
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return
        whole, _, cut = text.rpartition(b"\n")
        try:
            self.lines = [parse_json(line) for line in whole.splitlines()]
            if not all(
                isinstance(line, dict) and {"time", "run", "kind"} <= line.keys()
                for line in self.lines
            ):
                raise ValueError
        except ValueError:
            raise DataError(f"{self.path} is damaged: restore the newest copy") from None
        self._count(text[: len(text) - len(cut)])
        # a killed process wrote it, and that message has not left; only the next writer removes it
        if cut:
            self._whole = len(text) - len(cut)

    def add(self, run: str, kind: str, **facts: Any) -> None:
        """Write a line durably."""
        line = {
            "time": datetime.now().astimezone().isoformat(timespec="seconds"),
            "run": run,
            "kind": kind,
            **facts,
            **({} if self._ledger is None else {"ledger": self._ledger.writes or 0}),
        }
        text = json.dumps(line).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with holding(self.path.parent, _LOCK) as held, open(self.path, "ab", 0) as file:
            if not held or (self._whole is None and file.tell() != self._size):
                raise RefusedError(
                    f"{self.path} is in use by another process: end it, and start this one again",
                    "history-in-use",
                )
            if self._whole is not None:
                file.truncate(self._whole)
                self._whole = None
            try:
                if file.write(text) < len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError as error:  # a full disk, which names no file
                self._whole = self._size  # the next line takes the place of this one's begin
                error.filename = str(self.path)
                raise
        self.lines.append(line)
        self._count(text)

    def _count(self, text: bytes) -> None:
        self._size += len(text)
        self._digest.update(text)

    def _noted(self) -> dict[str, Any]:
        return {"bytes": self._size, "sha256": self._digest.hexdigest()}

    def _has(self, noted: Mapping[str, Any]) -> bool:
        text = self.path.read_bytes()[: noted["bytes"]] if self.path.exists() else b""
        return bool(hashlib.sha256(text).hexdigest() == noted["sha256"])

    def bind(self, ledger: Ledger) -> None:
        """Let a ledger and this history note each other's state from now on, once they agree.

        Raises:
            RefusedError: one of the two files is older than what the other has noted of it.
        """
        noted = ledger.noted
        home = self.path.parent
        remedy = (
            f"restore the newest copy of the whole folder {home}, or start with a new --state if "
            "no sum of this data was ever released"
        )
        if noted and not self._has(noted):
            raise RefusedError(
                f"{self.path} lacks lines that {home / 'ledger'} has counted, so privacy that was "
                f"spent would not count: {remedy}",
                "history-older",
            )
        if max((line.get("ledger", 0) for line in self.lines), default=0) > (ledger.writes or 0):
            raise RefusedError(
                f"{home / 'ledger'} is older than {self.path}, so a sum could be opened twice: "
                f"{remedy}",
                "ledger-older",
            )
        if ledger.writes is None and self._unpaid(ledger):
            raise RefusedError(
                f"{self.path} lacks lines of sums that {home / 'ledger'} has opened, so privacy "
                f"that was spent would not count: {remedy}",
                "history-older",
            )
        self._ledger = ledger
        ledger.history = self._noted
        ledger.in_clear = self._in_clear

    def begin_ledger(self, data: str) -> None:
        """Bind the ledger beside this history, a new one if there is none; nothing without the
        library that it needs.

        Args:
            data: the folder of the samples.
        """
        with suppress(MissingDependencyError):
            if self._ledger is None:
                self.bind(_ledger_of(self, data))

    def _unpaid(self, ledger: Ledger) -> bool:
        """Say whether a ledger of the first version, which noted nothing, has opened sums that no
        line is about.
        """
        paid = {line.get("plan") for line in self.lines if line["kind"] == "budget"}
        opened = {plan: record for plan, record in ledger.plans.items() if record["opened"]}
        by_file = {
            plan for plan, record in opened.items() if (record.get("offline") or {}).get("answer")
        }
        over_network = any("offline" not in record for record in opened.values())
        return bool(by_file - paid) or (over_network and not self.lines)

    def _in_clear(self) -> dict[str, bool]:
        """Return the runs that had greetings or rounds answered in clear over a network -> whether
        the ledger has kept the samples of all of them; earlier versions kept none of greetings.
        """
        rounds = [line for line in self.lines if line["kind"] == "round" and "samples" in line]
        unknown = {str(line["run"]) for line in rounds if not line.get(IN_CLEAR)}
        hellos = [line for line in self.lines if line["kind"] == "hello" and line.get(IN_CLEAR)]
        return {run: run not in unknown for run in (str(line["run"]) for line in hellos + rounds)}

    @property
    def ledger(self) -> Ledger | None:
        """The ledger of masked sums beside this history, if there is one."""
        return self._ledger

    def spent(self, lines: Sequence[Mapping[str, Any]] | None = None) -> tuple[float, float]:
        """Return the sums of epsilon and delta (basic composition) of all runs, or of those in
        ``lines``.
        """
        lines = self.lines if lines is None else lines
        budgets = [line for line in lines if line["kind"] == "budget"]
        epsilons = [
            math.inf if line["epsilon"] is None else float(line["epsilon"]) for line in budgets
        ]
        return sum(epsilons), sum(float(line["delta"]) for line in budgets)

    def check(
        self, cost: tuple[float, float], before: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Refuse what would spend more than the owner's limits after all lines, or those
        ``before``.
        """
        (epsilon, delta), (spent, risked), limit = cost, self.spent(before), self.limit
        if limit is None:
            return
        if math.isinf(epsilon):
            raise RefusedError(
                f"--epsilon-limit {limit:g}: nothing bounds what this run reveals of this party: "
                "agree on privacy.aggregation = 'masked' with privacy.name = 'sample-level' or "
                "'client-level'",
                "epsilon-unbounded",
            )
        if spent + epsilon > limit:
            raise RefusedError(
                f"--epsilon-limit {limit:g}: this run would spend an epsilon of {epsilon:.3g} "
                f"after {spent:.3g} of earlier runs: agree on a smaller privacy.epsilon, or raise "
                "the limit",
                "epsilon-limit",
            )
        if risked + delta > self.delta_limit:
            raise RefusedError(
                f"--delta-limit {self.delta_limit:g}: this run would spend a delta of {delta:.3g} "
                f"after {risked:.3g} of earlier runs: agree on a smaller privacy.delta, or raise "
                "the limit",
                "delta-limit",
            )

    def reserved(self, run: str, plan: str | None = None) -> int | None:
        """Return the place of the first line that reserves what a run spends, under any plan or
        this one; None without one.
        """
        lines = enumerate(self.lines)
        budgets = (
            place for place, line in lines if (line["kind"], line["run"]) == ("budget", run)
            and plan in (None, line.get("plan", ""))
        )  # fmt: skip
        return next(budgets, None)

    @property
    def balance(self) -> str:
        """Return how much of the owner's limit is spent, and where that is counted, on one line."""
        return (
            f"budget: {self.spent()[0]:.3g} of an epsilon of {self.limit:g} spent, counted in "
            f"{self.path.parent.resolve()}: name it with --state in every run"
        )

    def charge(self, run: str, cost: tuple[float, float], plan: str = "") -> None:
        """Reserve the privacy that a run will spend, unless that was done for the same plan of
        masked sums.

        A party opens each sum of a plan once. The same run under another plan releases other noise.
        What was reserved is compared with today's limits: the owner may have set them since.
        """
        place = self.reserved(run, plan)
        self.check(cost, self.lines[:place])
        if place is not None:
            return
        epsilon = None if math.isinf(cost[0]) else cost[0]
        delta = cost[1]
        self.add(
            run,
            "budget",
            epsilon=epsilon,
            delta=delta,
            **({"plan": plan} if plan else {}),
        )


def checked(releases: Releases) -> Releases:
    """Return a history that agrees with the ledger beside it, if there is one or was one.

    Raises:
        RefusedError: see :meth:`Releases.bind`.
    """
    folder = releases.path.parent / "ledger"
    if folder.is_dir() or any("ledger" in line for line in releases.lines):
        # whose data it is, is judged where masks are used
        releases.bind(_ledger_of(releases, None))
    return releases


def _ledger_of(releases: Releases, data: str | None) -> Ledger:
    from fedunseen.deploy.secagg.ledger import Ledger

    return Ledger(releases.path.parent / "ledger", data)
