"""What a run shows of itself while it trains: an observer of rounds and log lines that changes
nothing.
"""

import logging
import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedunseen.core import validity
from fedunseen.core.errors import QuorumError
from fedunseen.evaluation.measures import SHORT
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.engine import PartyStatus, needed
from fedunseen.federation.run_directory import RunDirectory

if TYPE_CHECKING:
    from fedunseen.deploy.site import Site

Phase = Literal[
    "preparing", "waiting", "training", "finishing", "complete", "paused", "interrupted", "failed"
]

_EVENTS = 100_000  # rounds that are remembered
_LINES = 500  # of the log
_RELEASES = 200  # lines of a site's history of releases
_NAMED = 20  # clients of a round whose replies were left out, with the reason
_SHOWN = 200  # parties that are listed; the numbers of all others are in the sums


class Monitor(logging.Handler):
    """Keeps log lines and the phase of a run for the live page; a subclass adds what it shows."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.id = uuid.uuid4().hex
        self.started = _now()
        self.engine: Path | None = None  # where an engine keeps when certificates are valid
        self.last_request = -math.inf  # monotonic seconds of the last request
        self.end_was_shown = threading.Event()
        self._guard = threading.Lock()
        self._phase: Phase = "preparing"
        self._why = ""
        self._count = 0
        self._events: deque[dict[str, Any]] = deque(maxlen=_EVENTS)
        self._log: deque[dict[str, Any]] = deque(maxlen=_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line of the log."""
        self.note(record.levelname.lower(), record.getMessage(), _now(record.created))

    def note(self, level: str, text: str, when: str | None = None) -> None:
        """Keep a line that was written for the user."""
        with self._guard:
            self._count += 1
            self._log.append(
                {"seq": self._count, "time": when or _now(), "level": level, "message": text}
            )

    def end(self, error: BaseException | None) -> None:
        """Keep that the run is over, and why if it was not finished."""
        with self._guard:
            if error is None:
                self._phase = "complete"
            elif isinstance(error, QuorumError):
                self._phase = "paused"
            else:
                self._phase = "failed" if isinstance(error, Exception) else "interrupted"
            self._why = str(error) if isinstance(error, Exception) else ""

    def phase(self) -> Phase:
        """Return what the run is doing."""
        with self._guard:
            return self._now_phase()

    def certificates(self) -> dict[str, validity.Validity]:
        """Return when the certificates of a federation are valid: holder -> a ``Validity``."""
        return {} if self.engine is None else validity.read(self.engine)

    def numbers(self) -> dict[str, int]:
        """Return what monitoring reads: rounds, parties, and replies that were left out."""
        with self._guard:
            return self._numbers()

    def state(self, since: int = 0) -> dict[str, Any]:
        """Return how the run is, and what has happened after the event of number ``since``, as
        plain JSON.
        """
        with self._guard:
            self.last_request = time.monotonic()
            state: dict[str, Any] = {
                "id": self.id,
                "time": _now(),
                "started": self.started,
                "phase": self._now_phase(),
            }
            state |= {"why": self._why, **self._numbers(), **self._facts(), "seq": self._count}
            said = validity.warnings(self.certificates(), datetime.now(UTC))
            state["certificates"] = [
                f"The certificate of {who} {why}." for who, why in said.items()
            ]
            state["events"], state["log"] = ([event for event in kept if event["seq"] > since]
                                             for kept in (self._events, self._log))  # fmt: skip
        if self._phase in ("complete", "paused", "interrupted", "failed"):
            self.end_was_shown.set()
        return state

    def _now_phase(self) -> Phase:
        return self._phase

    def _numbers(self) -> dict[str, int]:
        raise NotImplementedError

    def _facts(self) -> dict[str, Any]:
        """Return what the page shows beside numbers, events and the log; called with the lock
        held.
        """
        raise NotImplementedError


class RunMonitor(Monitor):
    """Shows what a run does, whose directory has the rounds before a resume."""

    def __init__(self, experiment: Experiment, path: Path) -> None:
        super().__init__()
        self.experiment = experiment
        self.path = path
        self.engine = path / "engine"
        self._stage = ""
        self._round = 0
        self._rounds = 0
        self._parties: Sequence[PartyStatus] = ()
        self._merged: dict[int, int] = {}
        self._seconds: dict[int, float] = {}
        self._refused: dict[
            int, tuple[int, str]
        ] = {}  # client -> the last round without its reply, and why
        self._left_out = 0
        self._accuracies = list(experiment.task.evaluator.accuracies)
        self.deployed = experiment.deployed

    def meet(self, parties: Sequence[PartyStatus]) -> None:
        """Take note of the parties, in the order of the clients. Members of a deployment change
        while it runs.
        """
        with self._guard:
            self._parties = parties

    def on_round(self, stage: str, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        """Take note of a round, counted from 1; its signature is that of ``Progress``."""
        with self._guard:
            first = stage != self._stage
            if first:
                self._merged = {}
                self._seconds = {}
                self._refused = {}
                self._left_out = 0
            self._stage = stage
            self._round = round
            self._rounds = rounds
            self._phase = "finishing" if stage == "training" and round == rounds else "training"
            if line is None:
                return
            if (
                first and stage == "training"
            ):  # after a resume, earlier rounds are in the run directory alone
                for earlier in RunDirectory(self.path).metrics()[: round - 1]:
                    self._add(stage, rounds, earlier, None)
            self._add(stage, rounds, line, _now())

    def _facts(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment.name,
            "choices": self._choices(),
            "run": str(self.path),
            "stage": self._stage,
            "deployed": self.deployed,
            "parties": [
                self._party(client, party) for client, party in enumerate(self._parties[:_SHOWN])
            ],
            "budget": getattr(self.experiment.privacy, "epsilon", None),
        }

    def _numbers(self) -> dict[str, int]:
        connected = sum(party.connected for party in self._parties)
        counts = {"round": self._round, "rounds": self._rounds, "connected": connected}
        return {**counts, "clients": len(self._parties), "left_out": self._left_out}

    def _now_phase(self) -> Phase:
        settings = self.experiment.engine
        if self.deployed and self._phase in ("preparing", "training") and settings.distributed:
            connected = sum(party.connected for party in self._parties)
            may = sum(not party.revoked for party in self._parties)
            if connected < needed(getattr(settings, "quorum", 1.0), may or 1):
                return "waiting"
        return self._phase

    def _choices(self) -> dict[str, str]:
        """Return what was chosen, in the words of the experiment file."""
        chosen = self.experiment
        facts = {
            "data": chosen.data.name,
            "method": chosen.method.name,
            "strategy": chosen.strategy.name,
        }
        facts |= {
            "partition": chosen.partition.kind,
            "engine": chosen.engine.name,
            "seed": str(chosen.run.seed),
        }
        for section in ("defence", "privacy", "attack"):
            name = getattr(getattr(chosen, section), "name", "none")
            facts |= {} if name == "none" else {section: name}
        return facts

    def _party(self, client: int, party: PartyStatus) -> dict[str, Any]:
        missed = self._refused.get(client)
        return {
            "name": party.name, "connected": party.connected, "classes": party.classes, "samples": party.samples,
            "rounds": self._merged.get(client, 0), "seconds": self._seconds.get(client), "refused": party.refused,
            "missed": None if missed is None else {"round": missed[0], "why": missed[1]},
        }  # fmt: skip

    def _add(self, stage: str, rounds: int, line: Mapping[str, Any], when: str | None) -> None:
        """Keep a round's line of metrics; call it with the lock held."""
        self._count += 1
        out = {**line.get("dropped", {}), **line.get("defence", {}).get("dropped", {})}
        for client in line.get("participants", ()):
            if str(client) not in out:
                self._merged[client] = self._merged.get(client, 0) + 1
        self._seconds |= {
            int(client): seconds for client, seconds in line.get("client_seconds", {}).items()
        }
        self._refused |= {int(client): (line["round"], why) for client, why in out.items()}
        self._left_out += len(out)
        self._events.append(
            {
                "seq": self._count,
                "time": when,
                "stage": stage,
                "round": line["round"],
                "rounds": rounds,
                "seconds": line.get("seconds"),
                "losses": {name: _finite(value) for name, value in line.get("losses", {}).items()},
                "accuracies": {
                    SHORT.get(name, name): line[name] for name in self._accuracies if name in line
                },
                "merged": len(line.get("participants", ())),
                "out": [
                    {"client": int(client), "why": why}
                    for client, why in islice(out.items(), _NAMED)
                ],
                "out_count": len(out),
                "epsilon": line.get("privacy", {}).get("epsilon"),
            }
        )


class SiteMonitor(Monitor):
    """Shows a party's connection, rounds, traffic and history of releases."""

    def __init__(self, name: str, samples: int, classes: int, site: "Site") -> None:
        super().__init__()
        self.name = name
        self.samples = samples
        self.classes = classes
        self.site = site
        self.engine = site.state / "engine"

    def _now_phase(self) -> Phase:
        if self._phase == "preparing":
            return "training" if self.site.experiment else "waiting"
        return self._phase

    def _numbers(self) -> dict[str, int]:
        done = self.site.events[-1]["round"] if self.site.events else 0
        connected = int(bool(self.site.experiment))
        return {
            "round": done,
            "rounds": self.site.rounds,
            "connected": connected,
            "clients": 1,
            "left_out": 0,
        }

    def _facts(self) -> dict[str, Any]:
        experiment = self.site.experiment
        for event in self.site.events[len(self._events) :]:
            self._count += 1
            numbers = {
                "seq": self._count,
                "stage": "training",
                "accuracies": {},
                "merged": 1,
                "out": [],
                "out_count": 0,
            }
            self._events.append(
                {**event, **numbers, "rounds": self._numbers()["rounds"], "epsilon": None}
            )
        sections = ("data", "method", "strategy", "privacy", "engine")
        result = self.site.result
        party = {
            "name": self.name,
            "connected": bool(experiment),
            "classes": self.classes,
            "samples": self.samples,
        }
        party |= {"rounds": len(self._events), "seconds": None, "refused": "", "missed": None}
        return {
            "experiment": f"{self.name}: "
            f"{experiment.get('method', {}).get('name', 'no coordinator yet')}",
            "choices": {
                key: experiment[key]["name"]
                for key in sections
                if experiment.get(key, {}).get("name")
            },
            "run": "",
            "stage": "training",
            "deployed": True,
            "parties": [party],
            "budget": self.site.releases.limit,
            "site": self._history()
            | {"result": {SHORT[key]: result[key] for key in SHORT if key in result}},
        }

    def _history(self) -> dict[str, Any]:
        """Return traffic, spent privacy and the newest lines of the history; infinite epsilon is
        None.
        """
        site = self.site
        epsilon = _finite(self.site.releases.spent()[0])
        newest = site.releases.lines[-_RELEASES:]
        return {
            "received": site.received,
            "sent": site.sent,
            "epsilon": epsilon,
            "releases": newest,
        }


def _now(seconds: float | None = None) -> str:
    """Return a time with date and zone, in ISO 8601."""
    moment = datetime.now() if seconds is None else datetime.fromtimestamp(seconds)
    return moment.astimezone().isoformat(timespec="milliseconds")


def _finite(value: float) -> float | None:
    """Return a number as JSON knows it: what is not finite is null."""
    return value if math.isfinite(value) else None
