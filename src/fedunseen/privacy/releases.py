"""What a site has ever sent, and how much privacy its owner has allowed to be spent.

``STATE/releases.jsonl`` has a line for every message that leaves the site, written before it leaves. The file is read
by ``fedunseen ledger`` and by the site's page.
"""

import hashlib
import json
import math
import os
import struct
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from fedunseen.core.errors import DataError, FedUnseenError, RefusedError
from fedunseen.engines.remote.party import Party
from fedunseen.engines.remote.wire import failure, is_failure

Cost = Callable[[Mapping[str, Any]], tuple[float, float]]
"""Returns (epsilon, delta) of a whole run from its experiment; epsilon is infinite where nothing bounds it."""

_FILE = "releases.jsonl"
_PLAN = 64  # digits of a plan's digest
_SENT = ("hello", "round", "plan", "signed", "shares", "masked", "open")  # kinds of messages whose answers are releases


class Releases:
    """The history of a site's releases, append-only."""

    def __init__(self, folder: Path, limit: float | None = None, delta_limit: float = 1.0) -> None:
        self.path, self.limit, self.delta_limit = folder / _FILE, limit, delta_limit
        self.lines: list[dict[str, Any]] = []
        self._whole: int | None = None  # bytes of the file before a cut line
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return
        whole, _, cut = text.rpartition(b"\n")
        try:
            self.lines = [json.loads(line) for line in whole.splitlines()]
            if not all(isinstance(line, dict) and {"time", "run", "kind"} <= line.keys() for line in self.lines):
                raise ValueError
        except ValueError:
            raise DataError(f"{self.path} is damaged: restore the newest copy") from None
        if cut:  # a killed process wrote it, and that message has not left; only the next writer removes it
            self._whole = len(text) - len(cut)

    def add(self, run: str, kind: str, **facts: Any) -> None:
        """Write a line durably."""
        line = {"time": datetime.now().astimezone().isoformat(timespec="seconds"), "run": run, "kind": kind, **facts}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab") as file:
            if self._whole is not None:
                file.truncate(self._whole)
                self._whole = None
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.lines.append(line)

    def spent(self, data: str) -> tuple[float, float]:
        """Return the sums of epsilon and delta of all runs on the same data (basic composition)."""
        budgets = [line for line in self.lines if line["kind"] == "budget" and line["data"] == data]
        epsilons = [math.inf if line["epsilon"] is None else float(line["epsilon"]) for line in budgets]
        return sum(epsilons), sum(float(line["delta"]) for line in budgets)

    def check(self, data: str, cost: tuple[float, float]) -> None:
        """Refuse what would spend more than the owner's limits."""
        (epsilon, delta), (spent, risked), limit = cost, self.spent(data), self.limit
        if limit is None:
            return
        if math.isinf(epsilon):
            raise RefusedError(
                f"--epsilon-limit {limit:g}: nothing bounds what this run reveals of this party: agree on "
                "privacy.aggregation = 'masked' with privacy.name = 'sample-level' or 'client-level'",
                "epsilon-unbounded",
            )
        if spent + epsilon > limit:
            raise RefusedError(
                f"--epsilon-limit {limit:g}: this run would spend an epsilon of {epsilon:.3g} after {spent:.3g} on the "
                "same data: agree on a smaller privacy.epsilon, or raise the limit",
                "epsilon-limit",
            )
        if risked + delta > self.delta_limit:
            raise RefusedError(
                f"--delta-limit {self.delta_limit:g}: this run would spend a delta of {delta:.3g} after {risked:.3g} "
                "on the same data: agree on a smaller privacy.delta, or raise the limit",
                "delta-limit",
            )

    def charge(self, run: str, data: str, cost: tuple[float, float], plan: str = "") -> None:
        """Reserve the privacy that a run will spend, unless that was done for the same plan of masked sums.

        A party opens each sum of a plan once. The same run under another plan releases other noise.
        """
        budgets = [line for line in self.lines if line["kind"] == "budget"]
        if any((line["run"], line["data"], line.get("plan", "")) == (run, data, plan) for line in budgets):
            return
        self.check(data, cost)
        epsilon, delta = None if math.isinf(cost[0]) else cost[0], cost[1]
        self.add(run, "budget", data=data, epsilon=epsilon, delta=delta, **({"plan": plan} if plan else {}))


class Site:
    """Stands before a party: every answer is written down before it leaves, and counted for the site's page."""

    def __init__(self, party: Party, releases: Releases, data: Path, cost: Cost) -> None:
        self.party, self.releases, self.cost = party, releases, cost
        self.data = data_mark(data)
        self.received = self.sent = 0
        self.events: list[dict[str, Any]] = []
        self.experiment: dict[str, Any] = {}
        self.rounds = 0
        self.result: dict[str, Any] = {}
        self._run, self._cost = "", (0.0, 0.0)
        self._guard = threading.Lock()

    def answer(self, message: bytes) -> bytes:
        """Answer the coordinator as the party does, within the owner's budget, and write the answer down first."""
        with self._guard:
            header = header_of(message)
            kind = header.get("kind")
            self.received += len(message)
            try:
                if kind == "hello":
                    self._greeted(header)
                elif kind == "round" and self._run:
                    plan = "" if math.isinf(self._cost[0]) else str(header.get("plan"))[:_PLAN]
                    self.releases.charge(self._run, self.data, self._cost, plan)
                answer = self.party.answer(message)
                if kind == "hello" and is_failure(answer):
                    self._cost = math.inf, 0.0  # what it answers to now may be of the greeting before
                self._written(header, answer)
            except RefusedError as error:
                self.party.error = error
                self.party.done.set()
                answer = failure(str(error))
            except OSError as error:
                answer = failure(f"the party cannot write its history of releases ({error.strerror or error})")
            self.sent += len(answer)
            return answer

    def _greeted(self, header: Mapping[str, Any]) -> None:
        run, cost, rounds = planned(header, self.cost)
        if math.isinf(cost[0]):
            self.releases.charge(run, self.data, cost)
        elif not any((line["kind"], line["run"]) == ("budget", run) for line in self.releases.lines):
            self.releases.check(self.data, cost)  # refuses now what it would refuse later
        self._run, self._cost, self.rounds, self.experiment = run, cost, rounds, header["experiment"]

    def _written(self, header: Mapping[str, Any], answer: bytes) -> None:
        kind = header.get("kind")
        if kind == "stop" and isinstance(header.get("result"), dict):
            self.result = dict(header["result"])
        if kind not in _SENT:
            return
        found = header_of(answer)
        facts: dict[str, Any] = {"bytes": len(answer), "sha256": hashlib.sha256(answer).hexdigest()}
        facts |= {key: header[key] for key in ("round",) if isinstance(header.get(key), int)}
        facts |= {key: found[key] for key in ("classes", "samples") if isinstance(found.get(key), int)}
        what = {"run": self._run, "kind": "refusal" if is_failure(answer) else str(kind), **facts}
        if self.releases.lines and self.releases.lines[-1].items() >= what.items():
            return  # the same answer again, since the first one was lost on its way
        self.releases.add(**what)
        if kind == "round" and isinstance(found.get("terms"), dict):
            event = {"round": int(header["round"]) + 1, "seconds": found.get("seconds"), "losses": found["terms"]}
            self.events.append({**event, "time": self.releases.lines[-1]["time"]})


def data_mark(data: Path) -> str:
    """Return the digest that names a data folder in a history of releases."""
    return hashlib.sha256(str(data.resolve()).encode()).hexdigest()[:16]


def planned(greeting: Mapping[str, Any], cost: Cost) -> tuple[str, tuple[float, float], int]:
    """Return what a greeting says of its run: its name with the digest of its experiment, its cost, its rounds."""
    experiment = greeting.get("experiment")
    try:
        if not isinstance(experiment, dict):
            raise TypeError("it is not a table")
        spends, rounds = cost(experiment), int(experiment.get("strategy", {}).get("rounds", 0))
    except (FedUnseenError, ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
        why = f"the privacy of the coordinator's experiment cannot be computed: {error}"
        raise RefusedError(why, "epsilon-unknown") from None
    digest = hashlib.sha256(json.dumps(experiment, sort_keys=True).encode()).hexdigest()
    return f"{greeting.get('run')}/{digest}", spends, rounds


def header_of(message: bytes) -> dict[str, Any]:
    """Return the header of a message; empty where it has none that can be read."""
    try:
        (length,) = struct.unpack(">I", message[:4])
        header = json.loads(message[4 : 4 + length])
    except (struct.error, ValueError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}
