"""A party's site: what its owner has decided, and what it keeps of all that left.

No party exists without one: :class:`~fedunseen.deploy.remote.party.Party` and
:class:`~fedunseen.deploy.offline.party.Answering` answer through it, whatever carries the messages.
In the ``--state`` folder it keeps

- ``releases.jsonl``: a line for every message, written before it leaves, and the privacy that was
  spent (:mod:`fedunseen.deploy.releases`);
- ``status.json``: whether the party reaches its coordinator, which ``fedunseen health`` reads;
- ``messages.log``: what was said to the owner, and to no one else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedunseen.core.bounds import NUMBERS, check_header, check_model, check_run
from fedunseen.core.errors import ArgumentError, FedUnseenError, RefusedError
from fedunseen.core.extensions import added, at
from fedunseen.core.files import holding, write_json
from fedunseen.deploy.releases import IN_CLEAR, Releases, checked
from fedunseen.deploy.remote import declared
from fedunseen.deploy.remote.refusals import DATA, STORAGE
from fedunseen.deploy.remote.wire import WireError, is_failure, split, unpack

if TYPE_CHECKING:  # the libraries of cryptography are loaded where they are used
    from fedunseen.deploy.secagg.ledger import Ledger

STATUS = "status.json"
MESSAGES = "messages.log"
ONE_STATE = "wait for it, or name the --state of this data folder"
_SENT = tuple(kind for kind in declared.KINDS if kind != "stop")  # whose answers are releases


@dataclass(frozen=True)
class Owner:
    """What the owner of a site has decided.

    Attributes:
        data: the folder of the samples.
        kit: the credentials folder.
        consent: what the owner agrees to.
        masked: whether the owner insists on masks.
        epsilon_limit: how much privacy all runs together may spend; None: it is not limited.
        delta_limit: the same of delta; it counts beside ``epsilon_limit`` alone.
    """

    data: Path | None = None
    kit: Path | None = None
    consent: tuple[str, ...] = ()
    masked: bool = False
    epsilon_limit: float | None = None
    delta_limit: float = 1e-4

    @property
    def guarded(self) -> bool:
        """Whether few refusals may leave the site, since each may say something of its samples."""
        return self.masked or self.epsilon_limit is not None

    def check(self, samples: int) -> None:
        """Raise an ArgumentError where limits of privacy let a run give one of so many samples
        away.
        """
        if self.epsilon_limit is not None and self.delta_limit * samples >= 1:
            raise ArgumentError(
                f"--delta-limit {self.delta_limit:g} is not below one over {samples}, the number "
                "of your samples, so that a run may give one of them away: give a smaller one"
            )


@contextlib.contextmanager
def at_site(state: Path, owner: Owner, say: Callable[[str], None], remedy: str) -> Iterator[Site]:
    """Hold a party's folder, which no one else may read, against a second process, and yield its
    site.
    """
    state.mkdir(parents=True, exist_ok=True)
    state.chmod(0o700)  # what a party keeps there says something of its data
    with holding(state) as held:
        if not held:
            raise FedUnseenError(f"{state} is in use by another process: {remedy}")
        site = Site(state, owner, say)
        site.new = not (site.releases.lines or (state / "ledger").exists())
        try:
            yield site
        except FedUnseenError as error:
            site.refused(error)
            raise


class Answers(Protocol):
    """What a site asks of the party that answers."""

    def reply(self, message: bytes) -> bytes:
        """Return the answer to a message; an error is part of it."""

    def refusal(self, error: Exception, message: bytes) -> bytes:
        """Return what is sent for an error."""

    def leave(self, error: FedUnseenError) -> None:
        """Answer nothing more."""

    def forget(self) -> None:
        """Forget the greeting that was accepted, so that no round is answered before another."""

    @property
    def joined(self) -> object:
        """What the greeting that was accepted has made ready; None without one."""

    @property
    def spent(self) -> tuple[float, float] | None:
        """The (epsilon, delta) of the run, from the noise that the party draws."""

    @property
    def accepted(self) -> str:
        """The digest of the plan of masked sums that the party has accepted."""


class Site:
    """Stands before a party: every answer is written down before it leaves.

    Args:
        state: the folder that it keeps.
        owner: what the owner has decided.
        say: takes what the owner may read, and no one else.
    """

    def __init__(
        self,
        state: Path,
        owner: Owner | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.state = state
        self.owner = owner or Owner()
        self.releases = checked(Releases(state, self.owner.epsilon_limit, self.owner.delta_limit))
        self.new = False  # the owner has yet to read that nothing is known of earlier answers
        self.received = self.sent = 0
        self.heard = 0.0  # when the last message came, in Unix time
        self.connected = False
        self.events: list[dict[str, Any]] = []
        self.experiment: dict[str, Any] = {}
        self.rounds = 0
        self.result: dict[str, Any] = {}
        self._say = say
        self._refused: BaseException | None = None
        self._lacking = False  # room for what it is told
        self._run = ""
        self._in_clear = False  # the ledger has kept the samples that the run takes in clear
        self._cost = (0.0, 0.0)
        self._guard = threading.Lock()
        state.mkdir(parents=True, exist_ok=True)
        self.told(False, "started")

    def say(self, text: str) -> None:
        """Tell the owner, while the coordinator is reached."""
        self.told(True, text)
        self._say(text)

    def told(self, connected: bool, text: str, over: bool = False) -> None:
        """Keep a message, and whether the coordinator is reached; a full disk keeps nothing."""
        self.connected = connected
        try:
            write_json(self.state / STATUS, {"connected": connected, "message": text, "over": over})
            _note(self.state, "INFO", text)
        except OSError as error:
            if not self._lacking:
                place = error.filename or self.state / MESSAGES
                self._say(
                    f"warning: {place} cannot be written ({error.strerror}): messages are lost"
                )
            self._lacking = True
        else:
            self._lacking = False

    def finished(self, text: str) -> None:
        """Keep that nothing more is to be done."""
        self.told(False, text, over=True)

    def refused(self, error: BaseException) -> None:
        """Keep why the party takes no further part, once."""
        if error is not self._refused:
            self._refused = error
            keep_refusal(self.state, error)

    def answered(self, message: bytes, party: Answers) -> bytes:
        """Answer the coordinator as the party does, within the owner's budget, and write the answer
        down first.
        """
        with self._guard:
            header = header_of(message)
            kind = header.get("kind")
            self.received += len(message)
            self.heard = time.time()
            answer = b""
            try:
                if kind == "hello":
                    self._greeted(header)
                elif kind == "round" and party.joined is not None:
                    self._charge(header, message, party)
                reply = party.reply(message)
                if kind == "hello":
                    self._settled(reply, party)
                self._written(header, reply)
                answer = reply
            except RefusedError as error:
                party.leave(error)
                answer = party.refusal(error, message)
            except OSError as error:
                answer = party.refusal(
                    FedUnseenError(
                        "the party cannot write its history of releases "
                        f"({error.strerror or error})",
                        STORAGE,
                    ),
                    message,
                )
            finally:  # no later message may ask of a greeting of which no line tells
                if kind == "hello" and (not answer or is_failure(answer)):
                    party.forget()
            self.sent += len(answer)
            return answer

    @property
    def ledger(self) -> Ledger | None:
        """The ledger of samples, begun if there is none; None without the library that it needs."""
        self.releases.begin_ledger(
            "" if self.owner.data is None else str(self.owner.data.resolve())
        )
        return self.releases.ledger

    def takes_in_clear(self, samples: frozenset[bytes]) -> None:
        """Let the ledger keep which samples (digests) answers in the coordinator's run take in
        clear: rounds, and greetings, whose counts of large classes show those of each.
        """
        if self.ledger is not None:
            self.ledger.release_in_clear(self._run, samples)
            self._in_clear = True

    def wrote(self, run: str, content: bytes, counts: Mapping[str, int]) -> None:
        """Write down an answer by file, unless the same bytes were given before."""
        facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        self.sent += len(content)
        self._tell_new()
        if not any(line.items() >= facts.items() for line in self.releases.lines):
            self.releases.add(run, "file", **facts, **counts)

    def _tell_new(self) -> None:
        """Tell the owner, once, that the folder knows of nothing that left before."""
        if self.new:
            self.new = False
            self.say(
                f"note: {self.state} is new and knows of no earlier sums: if these "
                "samples were in a federation before, stop and name its --state"
            )

    def _greeted(self, header: Mapping[str, Any]) -> None:
        run, cost, rounds = planned(header)
        # refuses now what it would refuse later
        self.releases.check(cost, self.releases.lines[: self.releases.reserved(run)])
        if run != self._run:  # a greeting that comes twice is answered once, and its samples kept
            self._in_clear = False
        self._run = run
        self._cost = cost
        self.rounds = rounds
        self.experiment = header["experiment"]

    def _settled(self, answer: bytes, party: Answers) -> None:
        """Reserve what a greeting costs that nothing bounds, if its answer may say something of
        samples: no refusal by settings alone does.
        """
        refused = is_failure(answer)
        if math.isinf(self._cost[0]) and (not refused or header_of(answer)["error"] == DATA):
            self.releases.charge(self._run, self._cost)
        # after a refusal, what it answers to may be of the greeting before
        self._cost = (math.inf, 0.0) if refused else party.spent or self._cost

    def _charge(self, header: Mapping[str, Any], message: bytes, party: Answers) -> None:
        """Reserve what a round costs, unless the party will not train on its numbers.

        It refuses a round of a plan that it has not accepted.
        """
        plan = "" if math.isinf(self._cost[0]) else party.accepted
        if not math.isinf(self._cost[0]) and (not plan or header.get("plan") != plan):
            return
        try:
            _, tensors = unpack(message)
        except WireError:
            return  # the party refuses it
        check_header(header)
        check_model(tensors)
        self.releases.charge(self._run, self._cost, plan)

    def _written(self, header: Mapping[str, Any], answer: bytes) -> None:
        kind = header.get("kind")
        if kind == "stop" and isinstance(header.get("result"), dict):
            self.result = dict(header["result"])
        if kind not in _SENT:
            return
        self._tell_new()
        reply_header = header_of(answer)
        facts: dict[str, Any] = {"bytes": len(answer), "sha256": hashlib.sha256(answer).hexdigest()}
        round = header.get("round")
        if isinstance(round, int) and NUMBERS["round"].holds(round):
            facts["round"] = round
        facts |= {
            key: reply_header[key]
            for key in ("classes", "samples")
            if isinstance(reply_header.get(key), int)
        }
        facts |= {IN_CLEAR: True} if self._in_clear and kind in ("hello", "round") else {}
        release = {
            "run": self._run,
            "kind": "refusal" if is_failure(answer) else str(kind),
            **facts,
        }
        if self.releases.lines and self.releases.lines[-1].items() >= release.items():
            return  # the same answer again, since the first one was lost on its way
        self.releases.add(**release)
        if kind == "round" and isinstance(reply_header.get("terms"), dict):
            event = {
                "round": int(header["round"]) + 1,
                "seconds": reply_header.get("seconds"),
                "losses": reply_header["terms"],
            }
            self.events.append({**event, "time": self.releases.lines[-1]["time"]})


def keep_refusal(state: Path, error: BaseException) -> None:
    """Keep why a party refuses in its own file; a full disk keeps nothing."""
    with contextlib.suppress(OSError):
        state.mkdir(parents=True, exist_ok=True)
        state.chmod(0o700)
        _note(state, "ERROR", str(error))


def _note(state: Path, level: str, text: str) -> None:
    """Add a line to a site's messages, whose file may have been rotated since the last one."""
    when = datetime.now().astimezone().isoformat(timespec="seconds")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with os.fdopen(os.open(state / MESSAGES, flags, 0o600), "a", encoding="utf-8") as file:
        file.write(f"{when} {level:<7} {text}\n")


def plan_cost(experiment: Mapping[str, Any]) -> tuple[float, float]:
    """Return (epsilon, delta) of a whole run, as what adds noise computes it; unbounded without."""
    for place in added("COST"):
        cost: tuple[float, float] = at(place)(experiment)
        return cost
    return math.inf, 0.0


def planned(greeting: Mapping[str, Any]) -> tuple[str, tuple[float, float], int]:
    """Return what a greeting says of its run: its name with the digest of its experiment, its cost,
    its rounds.
    """
    check_header(greeting)
    check_run(greeting)
    experiment = greeting.get("experiment")
    try:
        if not isinstance(experiment, dict):
            raise TypeError("it is not a table")
        spends = plan_cost(experiment)
        rounds = int(experiment.get("strategy", {}).get("rounds", 0))
    except (
        FedUnseenError,
        ValueError,
        TypeError,
        AttributeError,
        KeyError,
        OverflowError,
    ) as error:
        why = f"the privacy of the coordinator's experiment cannot be computed: {error}"
        raise RefusedError(why, "epsilon-unknown") from None
    digest = hashlib.sha256(json.dumps(experiment, sort_keys=True).encode()).hexdigest()
    return f"{greeting['run']}/{digest}", spends, rounds


def header_of(message: bytes) -> dict[str, Any]:
    """Return the header of a message; empty where it has none that a party would read."""
    try:
        return split(message)[0]
    except WireError:
        return {}
