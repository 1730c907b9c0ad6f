"""The coordinator of a distributed engine: the in-process engine's round, with parties that may be slow, gone or lie.

What carries the messages is a :class:`~fedunseen.engines.remote.link.Link`: Flower's or NVFlare's, on one machine (a
simulation, whose worker processes have all data and are sent the client's state with its instruction) or between
organizations (a deployment: data and state stay with the party). Nothing else differs between them. Replies are merged
in client order, whoever answers first, so that the engine changes no result.

A round counts if a quorum of its clients has answered. Otherwise missing clients are asked again as soon as they are
back. After ``patience`` seconds without a quorum the run pauses; its checkpoint holds the last full round.

With ``buffer`` set, late replies count instead (FedBuff, Nguyen et al. 2022): all clients are at work at the same time,
and a "round" merges as soon as so many replies have come, of whatever age.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator
from torch import Tensor

from fedunseen.core.errors import FedUnseenError, QuorumError, RefusedError
from fedunseen.core.parameters import (
    ClientStates,
    Params,
    finite,
    is_statistic,
    length,
    to_device,
    under,
    wire_size,
)
from fedunseen.core.settings import NamedSettings
from fedunseen.engines.remote.link import Link
from fedunseen.engines.remote.requests import PendingRequests, exchange
from fedunseen.engines.remote.wire import (
    PROTOCOL,
    SEMANTICS,
    Expected,
    NotFiniteError,
    PartyError,
    WireError,
    farewell,
    installed,
    pack,
    plain,
    read_holdings,
    read_reply,
    unpack,
)
from fedunseen.engines.round import Arrivals, RoundResult, bytes_sent, diverged, hidden_sum, server_step
from fedunseen.strategies import Instruction, Reply, Strategy

if TYPE_CHECKING:  # the libraries of cryptography are loaded where they are used
    from fedunseen.engines.remote.masking import SecAggSession
    from fedunseen.secagg.masks import MaskedSum, Masks

Answer = TypeVar("Answer")

_log = logging.getLogger("fedunseen.federation")
_LATE = 15.0  # seconds in which parties find a coordinator again that has been killed when all was done
_FAREWELL = 120.0  # seconds that parties may take to hear that the run is over, and to write down the model
_ATTEMPTS = 5  # times that those who are missing are asked in one round
_PAUSE = 0.2  # seconds between two looks at who is connected
_RECEIPT = "round"  # a deployment's client state at the coordinator: the last merged round alone


class DistributedSettings(NamedSettings):
    """Settings that both distributed engines have."""

    mode: Literal["simulation", "deployment"] = "simulation"
    """Worker processes on this machine, or parties elsewhere: `fedunseen host` and `fedunseen join`."""
    quorum: int | float = 1.0
    """How many of a round's clients have to answer: a number (`2`) or a share (`0.66`; `1.0` is all of them)."""
    timeout: float = Field(600.0, gt=0)
    """Seconds that a client may take to answer; then the round continues without it."""
    patience: float = Field(300.0, ge=0)
    """Seconds to wait for a quorum; then the run pauses, to be gone on with by `--resume`."""
    buffer: int | None = Field(None, ge=1, le=1_000_000)
    """Merge as soon as so many replies have come, and count those that come later in a later round (FedBuff); in place
    of `quorum`. By default rounds are synchronous."""
    staleness: float = Field(0.5, ge=0, le=100)
    """With `buffer`, a: an update of a model t merges old counts (1 + t)^-a of a fresh one; 0: as much."""
    deliver: bool = True
    """deployment: at the end every party gets the merged model, as a run directory that is ready for `predict`."""
    processes: int = Field(2, ge=1)
    """simulation: worker processes, each with all data in its memory."""
    memory: int = Field(1024, ge=1)
    """MiB that a client may take beside the data."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: matrix products in bfloat16, parameters in float32."""

    @field_validator("quorum")
    @classmethod
    def _check_quorum(cls, value: int | float) -> int | float:
        if (isinstance(value, int) and value < 1) or (isinstance(value, float) and not 0 < value <= 1):
            raise ValueError(f"quorum = {value}: give a number of clients (1, 2, ...) or a share (0.5, at most 1.0)")
        return value


class FlowerSettings(DistributedSettings):
    """Settings of Flower."""

    name: Literal["flower"] = "flower"


class NVFlareSettings(DistributedSettings):
    """Settings of NVFlare."""

    name: Literal["nvflare"] = "nvflare"


class Flower:
    """Flower carries the messages (extra ``flower``)."""

    Settings = FlowerSettings
    adapter: ClassVar[str] = "fedunseen.engines.carriers.flower"


class NVFlare:
    """NVIDIA FLARE carries the messages (extra ``nvflare``)."""

    Settings = NVFlareSettings
    adapter: ClassVar[str] = "fedunseen.engines.carriers.nvflare"


def needed(quorum: int | float, clients: int) -> int:
    """Return how many of ``clients`` have to answer."""
    return min(quorum, clients) if isinstance(quorum, int) else max(1, math.ceil(quorum * clients - 1e-9))


@dataclass(eq=False)
class PartyStatus:
    """What the coordinator knows of a party."""

    name: str
    connected: bool = False
    classes: int = 0
    samples: int = 0
    rounds: int = 0
    seconds: float = 0.0
    weight: float = 1.0
    refused: str = ""
    ready: bool = False
    held: tuple[str, ...] = ()
    brought: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


@dataclass(eq=False)
class Session:
    """A link, who is at its other end, and which run it is about."""

    link: Link
    parties: list[PartyStatus]
    run: str = ""
    greeted: dict[str, str] = field(default_factory=dict)
    kit: Path | None = None
    folder: Path | None = None
    greeting: float = 20.0


@dataclass(frozen=True, eq=False)
class UpdateRequest:
    """An instruction that a client works at."""

    client: int
    round: int
    instruction: Instruction


@dataclass(frozen=True, eq=False)
class Arrived:
    """A reply that waits to be merged."""

    request: UpdateRequest
    reply: Reply
    size: int


@dataclass(frozen=True, eq=False)
class Simulation:
    """What a worker process needs to stand in for any client."""

    experiment: Mapping[str, Any]
    selection: bool


@dataclass(frozen=True, eq=False)
class Deployment:
    """What a party that joins is told."""

    experiment: Mapping[str, Any]
    space: Mapping[str, str]
    shape: Sequence[int]
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    validation: Sequence[int] | None = None
    growing: Mapping[str, Any] | None = None
    semantics: Tensor | None = None


class Distributed:
    """Runs a round over a link: instruct, wait for replies, check them, merge."""

    def __init__(
        self,
        strategy: Strategy,
        settings: DistributedSettings,
        clients: int,
        classes: int,
        job: Simulation | Deployment,
        drop_non_finite: bool = False,
        notes: Iterable[str] = (),
        masks: Masks | None = None,
    ) -> None:
        self.strategy, self.settings, self.classes, self.job = strategy, settings, classes, job
        self.drop_non_finite, self.notes = drop_non_finite, frozenset(notes)
        self.clients, self.masks = clients, masks
        self._meeting: Session | None = None
        self._masked_sums: SecAggSession | None = None
        self._requests: PendingRequests[UpdateRequest] | None = None  # to clients whose late replies count
        self._deaf: dict[str, float] = {}  # who did not answer a greeting -> when it may be greeted again

    def connect(self, meeting: Session) -> None:
        """Set the link that reaches the parties, all of whom are greeted again. Call this before the first round."""
        assert len(meeting.parties) == self.clients
        meeting.greeted.clear()  # they may have been told of another job, such as a run on validation classes
        self._meeting, self._masked_sums = meeting, None
        self._requests = PendingRequests(meeting.link)
        if self.masks is not None and isinstance(self.job, Deployment):
            self._session()  # refuses now what it would refuse later

    def _meet(self) -> Session:
        assert self._meeting is not None
        return self._meeting

    @property
    def link(self) -> Link:
        """What reaches the parties."""
        return self._meet().link

    @property
    def parties(self) -> list[PartyStatus]:
        """The parties, in the order of the clients."""
        return self._meet().parties

    def round(
        self,
        round: int,
        state: Params,
        params: Params,
        client_states: ClientStates,
        clients: Sequence[int],
    ) -> RoundResult:
        """Run ``round`` (counted from 0) with ``clients``, in ascending order.

        In a deployment ``client_states`` are receipts: the last round of which a client's reply was merged, so that a
        party knows which of the states that it has kept is the one to continue from.
        """
        if self.masks is not None and isinstance(self.job, Deployment):
            return self._masked_round(self.masks, round, state, params, client_states, clients)
        if self.settings.buffer is not None:
            return self._buffered_round(self.settings.buffer, round, state, params, client_states, clients)
        device = next(iter(params.values())).device
        told = self.strategy.instruct(state, params, round)
        states: dict[int, Params] = {}
        came: dict[int, int] = {}  # bytes of updates, as they came

        def read(client: int, answer: bytes) -> Reply:
            arrived, states[client] = self._arrived(UpdateRequest(client, round, told), answer, device)
            came[client] = arrived.size
            return arrived.reply

        replies, refused, asked = self._ask(round, told, client_states, clients, read)
        came_in = [replies[client] for client in sorted(replies)]
        seconds = {client: self.parties[client].seconds for client in sorted(replies)}
        for client in replies:
            self.parties[client].rounds += 1
        down = asked * bytes_sent(self.strategy, told)
        up = 0 if self.strategy.pools else sum(came[client] for client in replies)
        gone = {client: "it has not answered" for client in clients if client not in replies}
        arrived = Arrivals(came_in, lambda place: told.params, states, down, up, gone | refused, seconds)
        if self.masks is not None:  # a simulation: all replies are in this process
            arrived = arrived.hidden(hidden_sum(self.masks, self.strategy, told, came_in, round))
        return self._merged(state, params, arrived, round)

    def _merged(self, state: Params, params: Params, arrived: Arrivals, round: int) -> RoundResult:
        """Merge what has arrived, and refuse a result that is not finite."""
        result = server_step(self.strategy, state, params, arrived, round)
        replies = arrived.replies if arrived.masked is None else [arrived.masked.reply]
        self._check_merged(result.state, result.params, replies, round)
        return result

    def _ask(
        self,
        round: int,
        told: Instruction,
        client_states: ClientStates,
        clients: Sequence[int],
        read: Callable[[int, bytes], Answer],
        request: Mapping[str, Any] | None = None,
    ) -> tuple[dict[int, Answer], dict[int, str], int]:
        """Instruct clients until a quorum has answered; those that do not answer are asked again."""
        body = under("params/", told.params) | under("extras/", told.extras)
        answers: dict[int, Answer] = {}
        refused: dict[int, str] = {}
        need = needed(self.settings.quorum, len(clients))
        asked, patience = 0, self.settings.patience
        for attempt in range(_ATTEMPTS):
            missing = [client for client in clients if client not in answers and client not in refused]
            lacking = need - len(answers) - len(refused)  # a refused reply counts as an answer
            if lacking <= 0:
                break
            began = time.monotonic()
            if attempt:
                time.sleep(min(_PAUSE * 2**attempt, patience))
            there = self._wait(missing, lacking, patience)
            patience = max(0.0, patience - (time.monotonic() - began))
            if len(there) < lacking:
                break
            messages = {
                self.parties[client].name: self._message(client, round, client_states.get(client, {}), body, request)
                for client in there
            }
            asked += len(messages)
            places = {self.parties[client].name: client for client in there}
            for name, answer in exchange(self.link, messages, self.settings.timeout):
                self._take(round, places[name], answer, read, answers, refused)
        if clients and (len(answers) + len(refused) < need or not answers):
            raise QuorumError(self._too_few(round, need, clients, answers, refused))
        return answers, refused, asked

    def _take(
        self,
        round: int,
        client: int,
        answer: bytes | None,
        read: Callable[[int, bytes], Answer],
        answers: dict[int, Answer],
        refused: dict[int, str],
    ) -> None:
        """Add what has come from a client to ``answers``, or why it is refused to ``refused``; nothing may have."""
        party = self.parties[client]
        if answer is None:
            _log.warning("round %d: %s has not answered", round + 1, party.name)
            return
        try:
            answers[client] = read(client, answer)
        except PartyError as error:  # a full disk, say, or a process that is not the one that was greeted
            _log.warning("round %d: %s could not answer: %s", round + 1, party.name, error)
            self._meet().greeted.pop(party.name, None)
            party.refused = str(error)
            return
        except WireError as error:
            if isinstance(self.job, Simulation) and isinstance(error, NotFiniteError) and not self.drop_non_finite:
                what = "the update" if "update" in str(error) else "a loss"
                raise FedUnseenError(diverged(what, client, round)) from None
            refused[client] = party.refused = str(error)
            _log.warning("round %d: the reply of %s is refused: %s", round + 1, party.name, error)
        else:
            party.refused = ""

    def _arrived(self, request: UpdateRequest, answer: bytes, device: torch.device) -> tuple[Arrived, Params]:
        """Read a client's reply; return it, and what is kept of the client's state."""
        party = self.parties[request.client]
        expected = self._expected(request.client, request.round, request.instruction)
        reply, own, party.seconds, forgot = read_reply(answer, expected)
        if forgot:
            _log.warning("round %d: %s has lost what it remembered, and starts again", request.round + 1, party.name)
        found = self._decoded(_on(device, reply), request.instruction)
        if why := self.strategy.check(found):
            raise WireError(why)
        kept = self._kept(request.round, to_device(own, device))
        return Arrived(request, found, wire_size(reply.update)), kept

    def _buffered_round(
        self,
        buffer: int,
        round: int,
        state: Params,
        params: Params,
        client_states: ClientStates,
        clients: Sequence[int],
    ) -> RoundResult:
        """Merge as soon as ``buffer`` replies have come, whenever they were asked for.

        Every client is at work unless its reply waits for this merge; whoever has begun continues after it. A client
        whose answer does not come is asked again, with the model that there is then. Who is at work is not part of the
        state: a coordinator that resumes asks everyone again.
        """
        assert self._requests is not None
        requests, device = self._requests, next(iter(params.values())).device
        told = self.strategy.instruct(state, params, round)
        body = under("params/", told.params) | under("extras/", told.extras)
        need = min(buffer, len(clients))
        came: dict[int, Arrived] = {}
        states: dict[int, Params] = {}
        refused: dict[int, str] = {}
        tries: dict[int, int] = dict.fromkeys(clients, 0)
        rests = dict.fromkeys(clients, 0.0)  # until when a client that did not answer is left alone
        asked, quiet = 0, time.monotonic()
        while len(came) + len(refused) < need:
            self._look()
            now = time.monotonic()
            done = {*came, *refused, *(request.client for request in requests.pending)}
            left = [k for k in clients if k not in done and tries[k] < _ATTEMPTS]
            for client in left:
                if self.parties[client].connected and now >= rests[client]:
                    message = self._message(client, round, client_states.get(client, {}), body, None)
                    request, name = UpdateRequest(client, round, told), self.parties[client].name
                    requests.send(request, name, message, self.settings.timeout)
                    tries[client] += 1
                    asked += 1
            if requests.pending:
                quiet = now
            elif not left or now - quiet > self.settings.patience:
                break
            answered = requests.next(_PAUSE)
            if answered is None:
                continue
            request, answer = answered
            client = request.client

            def read(client: int, answer: bytes, request: UpdateRequest = request) -> Arrived:
                arrived, states[client] = self._arrived(request, answer, device)
                return arrived

            self._take(round, client, answer, read, came, refused)
            rests[client] = time.monotonic() + min(_PAUSE * 2 ** tries[client], self.settings.patience / 2)
        if clients and (len(came) + len(refused) < need or not came):
            raise QuorumError(self._too_few(round, need, clients, came, refused))
        arrived = [came[client] for client in sorted(came)]
        replies = [one.reply for one in arrived]
        for client in came:
            self.parties[client].rounds += 1
        ages = [round - one.request.round for one in arrived]
        seconds = {client: self.parties[client].seconds for client in sorted(came)}
        down, up = asked * bytes_sent(self.strategy, told), sum(one.size for one in arrived)
        arrivals = Arrivals(
            replies, lambda place: arrived[place].request.instruction.params, states, down, up, refused, seconds,
            ages=ages, staleness=self.settings.staleness, clock={"ages": ages},
        )  # fmt: skip
        return self._merged(state, params, arrivals, round)

    def _masked_round(
        self,
        masks: Masks,
        round: int,
        state: Params,
        params: Params,
        client_states: ClientStates,
        clients: Sequence[int],
    ) -> RoundResult:
        """Run a round whose replies are known by their sum alone."""
        told, session = self.strategy.instruct(state, params, round), self._session()
        clients = session.enrolled(clients)
        self._agree_on_plan(session, told, clients)
        masked, asked = self._masked_sum(session, told, round, client_states, clients)
        reply = _on(next(iter(params.values())).device, masked.reply)
        for client in masked.clients:
            self.parties[client].rounds += 1
        gone = {client: "it has not answered" for client in clients if client not in masked.clients}
        states = {client: self._kept(round, {}) for client in masked.clients}
        dropped = {client: masked.refused.get(client, why) for client, why in gone.items()}
        arrived = Arrivals([], lambda place: {}, states, asked * bytes_sent(self.strategy, told), 0, dropped)
        return self._merged(state, params, arrived.hidden(replace(masked, reply=reply)), round)

    def _masked_sum(
        self,
        session: SecAggSession,
        told: Instruction,
        round: int,
        client_states: ClientStates,
        clients: Sequence[int],
    ) -> tuple[MaskedSum, int]:
        """Return the sum of a masked round, and how many instructions were sent."""
        from fedunseen.secagg.primitives import SecAggError
        from fedunseen.secagg.server import grouped

        need, asked = needed(self.settings.quorum, len(clients)), 0
        place = {party.name: client for client, party in enumerate(self.parties)}

        def read(client: int, answer: bytes) -> Mapping[str, Any]:
            return session.read_keys(answer)

        def ask_keys(requests: Mapping[str, Mapping[str, Any]]) -> Iterable[tuple[str, Any]]:
            nonlocal asked
            who, request = sorted(place[name] for name in requests), next(iter(requests.values()))
            answers, refused, more = self._ask(round, told, client_states, who, read, request)
            asked += more
            for client in who:
                why = {"error": refused[client]} if client in refused else None
                yield self.parties[client].name, answers.get(client, why)

        def wait(who: Sequence[int], least: int) -> None:
            self._wait(who, least, self.settings.patience)

        try:
            return session.sum(round, told, need, clients, ask_keys, wait), asked
        except QuorumError as error:
            raise QuorumError("".join([str(error), *grouped(session.left_out)])) from None
        except SecAggError as error:  # whoever resumes the run decides; a stored total is opened then
            raise QuorumError(
                f"round {round + 1} has no sum under masks: {error}: fix that, or change engine.quorum or "
                "engine.timeout, and continue with --resume"
            ) from None

    def _session(self) -> SecAggSession:
        """Return the masked sums of the run; a new one for each link."""
        if self._masked_sums is None:
            from fedunseen.engines.remote.masking import SecAggSession
            from fedunseen.secagg.enrolment import Enrolment

            meeting = self._meet()
            assert self.masks is not None
            if meeting.kit is None or meeting.folder is None:
                raise RefusedError(
                    "masked sums need credentials, whose federation.json lists the parties: host with --kit, without "
                    "--insecure"
                )
            names, enrolment = [party.name for party in self.parties], Enrolment.load(meeting.kit)
            self._masked_sums = SecAggSession(
                self.link, names, enrolment, meeting.folder, self.masks, self.strategy, self.settings.timeout
            )
        return self._masked_sums

    def _agree_on_plan(self, session: SecAggSession, told: Instruction, clients: Sequence[int]) -> None:
        """Let all parties that are there sign the plan of the run and accept it."""
        from fedunseen.engines.remote.masking import plan_facts

        assert isinstance(self.job, Deployment)
        if session.plan is None:
            hello, tensors = self._hello(self.job)
            sums = self.strategy.adds, self.strategy.rounds
            facts = plan_facts(json.loads(json.dumps(hello)), tensors, session.enrolment, *sums)
            if not session.stored_plan(facts):
                uniform = self.strategy.settings.weights == "uniform"
                need = max(needed(self.settings.quorum, len(clients)), session.enrolment.threshold)
                need = need if uniform else len(clients)
                there = self._wait(clients, need, self.settings.patience)
                if len(there) < need:
                    missing = ", ".join(self.parties[client].name for client in clients if client not in there)
                    raise QuorumError(
                        f"the plan of the masked sums needs {need} parties, and {missing} has not joined: wait for it"
                        + ("" if uniform else ", or set strategy.weights = 'uniform', which fixes no weights before")
                    )
                weights = {} if uniform else {self.parties[k].name: self.parties[k].weight for k in there}
                session.new_plan(facts, weights, told)
        self._look()

    def gather(self, round: int, clients: Sequence[int]) -> dict[int, PartyStatus]:
        """Wait until a quorum of the clients of ``round`` (counted from 0) is there; return those that are."""
        need = needed(self.settings.quorum, len(clients))
        there = self._wait(clients, need, self.settings.patience)
        if len(there) < need:
            raise QuorumError(self._too_few(round, need, clients, dict.fromkeys(there), {}))
        return {client: self.parties[client] for client in there}

    def finish(self, result: Mapping[str, Any], params: Params) -> None:
        """Tell the parties of a deployment that the run is over, and hand them the merged model if they may have it."""
        if isinstance(self.job, Deployment):
            self._look()  # a nested run has greeted them with its own experiment
            self._dismiss([party for party in self.parties if party.name in self.link.present()], result, params)

    def finish_late(self, result: Mapping[str, Any], params: Params) -> None:
        """Do what :meth:`finish` does for parties that look for a coordinator whose run is over already.

        It waits a little for them to find it, and greets those that are new.
        """
        told: set[str] = set()
        end = time.monotonic() + _LATE
        while len(told) < len(self.parties) and time.monotonic() < end:
            self._look()
            new = [party for party in self.parties if party.connected and party.name not in told]
            self._dismiss(new, result, params)
            told.update(party.name for party in new)
            time.sleep(_PAUSE)
        if missing := [party.name for party in self.parties if party.name not in told]:
            _log.warning("not there, so that they have not heard that the run is over: %s", ", ".join(missing))

    def _dismiss(self, parties: Sequence[PartyStatus], result: Mapping[str, Any], params: Params) -> None:
        message = farewell(result, to_device(params, torch.device("cpu"))) if self.settings.deliver else farewell()
        for name, answer in exchange(self.link, {party.name: message for party in parties}, _FAREWELL):
            try:
                header, _ = unpack(answer, 2**20) if answer is not None else ({"error": "it has not answered"}, {})
                if "error" in header:
                    _log.warning("%s may not have the model: %s", name, plain(header["error"]))
                elif header.get("kept") is True:
                    _log.info("%s has the model", name)
            except WireError as error:
                _log.warning("%s may not have the model: its answer is refused: %s", name, error)

    def _message(
        self, client: int, round: int, own: Mapping[str, Tensor], body: Params, request: Mapping[str, Any] | None
    ) -> bytes:
        header: dict[str, Any] = {"kind": "round", "client": client, "round": round, **(request or {})}
        if isinstance(self.job, Simulation):
            header |= {"experiment": self.job.experiment, "selection": self.job.selection}
            return pack(header, body | under("state/", own))
        return pack(header | {"after": int(own[_RECEIPT]) if own else -1}, body)

    def _kept(self, round: int, state: Params) -> Params:
        return state if isinstance(self.job, Simulation) else {_RECEIPT: torch.tensor(round)}

    def _expected(self, client: int, round: int, told: Instruction) -> Expected:
        party, simulated = self.parties[client], isinstance(self.job, Simulation)
        update = self.strategy.expects(told)
        counts = None if simulated else (party.classes, party.samples)
        used = self.strategy.lengths != "nothing"
        lengths = [name for name in told.params if used and not is_statistic(name)]
        return Expected(client, round, update, frozenset(lengths), self.classes, self.notes, counts, simulated)

    def _decoded(self, reply: Reply, told: Instruction) -> Reply:
        """Return a reply with its update as the client made it."""
        try:
            update = self.strategy.decode(reply.update, told)
        except ValueError as error:
            raise WireError(str(error)) from None
        if not finite(dict(update)):
            raise NotFiniteError("the update is not finite")
        return replace(reply, update=update)

    def _wait(self, clients: Sequence[int], need: int, patience: float) -> list[int]:
        """Return the connected clients, as soon as ``need`` of them are there or ``patience`` is over."""
        began, said = time.monotonic(), 0.0
        while True:
            self._look()
            there = [client for client in clients if self.parties[client].connected]
            if len(there) >= need or time.monotonic() - began > patience:
                return there
            if time.monotonic() - said > 10:
                names = ", ".join(self.parties[client].name for client in clients if client not in there)
                _log.info("waiting for %d more of: %s", need - len(there), names)
                said = time.monotonic()
            time.sleep(_PAUSE)

    def _look(self) -> None:
        """See who is connected, and greet those that have joined or come back."""
        connected = dict(self.link.present())
        if isinstance(self.job, Deployment):
            new = [p for p in self.parties if p.name in connected and self._is_new(p.name, connected[p.name])]
            if new:
                self._greet(new, self.job, connected)
        for party in self.parties:
            there = party.name in connected and (isinstance(self.job, Simulation) or party.ready)
            if party.connected and not there:
                _log.warning("%s is gone", party.name)
            party.connected = there
        if (session := self._masked_sums) is not None and session.plan is not None:
            refused = session.agree({party.name: connected[party.name] for party in self.parties if party.connected})
            for party in self.parties:
                party.refused = refused.get(party.name, party.refused)

    def _is_new(self, name: str, token: str) -> bool:
        return self._meet().greeted.get(name) != token and time.monotonic() > self._deaf.get(name, 0.0)

    def _hello(self, job: Deployment) -> tuple[dict[str, Any], Params]:
        """Return what all parties are greeted with."""
        hello = {
            "kind": "hello",
            "protocol": PROTOCOL,
            "version": installed(),
            "experiment": job.experiment,
            "clients": len(self.parties),
            "run": self._meet().run,
            "space": job.space,
            "shape": list(job.shape),
            **({} if job.validation is None else {"validation": list(job.validation)}),
            **({} if job.growing is None else {"growing": job.growing}),
            **({} if self.masks is None else {"names": [party.name for party in self.parties]}),
        }
        return hello, {**job.statistics, **({} if job.semantics is None else {SEMANTICS: job.semantics})}

    def _greet(self, new: Iterable[PartyStatus], job: Deployment, tokens: Mapping[str, str]) -> None:
        place = {party.name: k for k, party in enumerate(self.parties)}
        hello, told = self._hello(job)
        messages = {p.name: pack({**hello, "client": place[p.name]}, told) for p in new}
        for name, answer in exchange(self.link, messages, self._meet().greeting):
            party = self.parties[place[name]]
            party.classes = party.samples = 0
            party.ready = False
            if answer is None:  # it is greeted again later, since it may be busy with an earlier request
                self._deaf[name] = time.monotonic() + self._meet().greeting
                continue
            self._meet().greeted[name] = tokens[name]
            try:
                if self.masks is not None:
                    party.weight = _read_masked_hello(answer)
                    _log.info("%s has joined, and masks what it sends", name)
                else:
                    if job.growing is None:
                        party.classes, party.samples = _read_hello(answer, self.classes)
                    else:
                        found = read_holdings(answer, job.growing)
                        party.classes, party.samples, party.held, party.brought = found
                    _log.info("%s has joined: %d samples of %d classes", name, party.samples, party.classes)
                party.refused, party.ready = "", True
            except WireError as error:
                party.refused = str(error)
                _log.warning("%s is refused: %s", name, error)

    def _too_few(
        self, round: int, need: int, clients: Sequence[int], replies: Mapping[int, Any], refused: Mapping[int, str]
    ) -> str:
        missing = [self.parties[client] for client in clients if client not in replies and client not in refused]
        reasons = [f"the reply of {self.parties[client].name} is refused ({why})" for client, why in refused.items()]
        reasons += [f"{party.name} could not take part ({party.refused})" for party in missing if party.refused]
        silent = [party.name for party in missing if not party.refused]
        reasons += [f"{', '.join(silent)} did not answer"] if silent else []
        return (
            f"round {round + 1} has {len(replies)} of the {need} replies that it needs: {'; '.join(reasons)}: "
            "fix that, or change engine.quorum, engine.timeout or engine.patience, and continue with --resume"
        )

    def _check_merged(self, state: Params, params: Params, replies: Sequence[Reply], round: int) -> None:
        """Refuse a merged model or state that is not finite: it would spoil every later round, and a resume."""
        # A state may hold other things too: what a defence has judged replies by, say.
        own = {name: value for name, value in state.items() if name.rpartition("/")[2] in params}
        if finite(own) and finite(params):
            return
        if self.masks is not None:
            raise FedUnseenError(
                f"the merged model of round {round + 1} is not finite, and masks hide whose update made it so: bound "
                "updates (privacy.range) in a new run"
            )
        worst = max(replies, key=lambda reply: (length(reply.update), -min(reply.step_lengths.values(), default=1.0)))
        raise FedUnseenError(
            f"the merged model of round {round + 1} is not finite; the largest update is that of "
            f"{self.parties[worst.client].name}: keep it out of the federation, or bound updates (defence.name = "
            "'norm-clip'), in a new run"
        )


def _read_hello(answer: bytes, classes: int) -> tuple[int, int]:
    """Return how many classes and samples a party says it holds."""
    header, _ = unpack(answer, 2**20)
    if "error" in header:
        raise WireError(plain(header["error"]))
    found = header.get("classes"), header.get("samples")
    for value in found:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**48:
            raise WireError(f"it says that it holds {plain(found[1], 40)} samples of {plain(found[0], 40)} classes")
    held, samples = int(found[0]), int(found[1])  # type: ignore[arg-type]
    if held > min(classes, samples):
        raise WireError(f"it says that it holds {samples} samples of {held} classes, and there are {classes}")
    return held, samples


def _read_masked_hello(answer: bytes) -> float:
    """Return the weight of a party that masks what it sends; it says nothing else of its data."""
    header, _ = unpack(answer, 2**20)
    if "error" in header:
        raise WireError(plain(header["error"]))
    weight = header.get("weight")
    if header.get("masked") is not True or not isinstance(weight, int | float) or not 1 <= weight <= 2**24:
        raise WireError("it does not say that it masks what it sends")
    return float(weight)


def _on(device: torch.device, reply: Reply) -> Reply:
    if device.type == "cpu":
        return reply
    update = to_device(dict(reply.update), device)
    return Reply(reply.client, update, reply.classes, reply.samples, reply.terms, reply.step_lengths, reply.notes)
