"""The coordinator of a distributed engine: the in-process engine's round, with parties that may be slow, gone or lie.

Replies are merged in client order, not in order of arrival, so that the engine changes no result. A round counts if a
quorum has answered; without one the run pauses, and its checkpoint holds the last full round. With ``buffer`` late
replies count instead (FedBuff, Nguyen et al. 2022), and a round merges as soon as so many replies have come.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator
from torch import Tensor

from fedunseen.core.errors import FedUnseenError, QuorumError, RefusedError, counted
from fedunseen.core.parameters import ClientStates, Params, finite, is_statistic, length, to_device, under, wire_size
from fedunseen.core.settings import Named, NamedSettings
from fedunseen.engines.remote import wire
from fedunseen.engines.remote.link import Link, PendingRequests, exchange
from fedunseen.engines.remote.wire import Expected, NotFiniteError, PartyError, WireError
from fedunseen.engines.round import Arrivals, RoundResult, bytes_sent, diverged, hidden_sum, server_step
from fedunseen.strategies import Instruction, Reply, Strategy

if TYPE_CHECKING:  # the libraries of cryptography are loaded where they are used
    from fedunseen.engines.remote.masking import SecAggSession
    from fedunseen.secagg.masks import MaskedSum, Masks

Answer = TypeVar("Answer")

_log = logging.getLogger("fedunseen.federation")
_LATE = 15.0  # seconds in which parties find a coordinator again that has been killed when all was done
_FAREWELL = 120.0  # seconds for parties to receive the end of the run and to store the model
_ATTEMPTS = 5  # times that those who are missing are asked in one round
_PAUSE = 0.2  # seconds between two looks at who is connected
_RECEIPT = "round"  # a deployment's client state at the coordinator: the last merged round alone


class DistributedSettings(NamedSettings):
    """Settings of engines whose clients are elsewhere."""

    mode: Literal["simulation", "deployment"] = "deployment"
    """Clients are parties, or the worker processes of Flower's own simulation."""
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
    """At the end every party gets the merged model, as a run directory that is ready for `predict`."""
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
    """An instruction that a client works at, since ``round``."""

    client: int
    round: int
    instruction: Instruction


@dataclass(frozen=True, eq=False)
class Arrived:
    """A reply that waits to be merged, its bytes as sent, and what is kept of the client's state."""

    request: UpdateRequest
    reply: Reply
    size: int
    kept: Params


@dataclass(frozen=True, eq=False)
class Simulation:
    """What a worker process needs to stand in for any client."""

    experiment: Mapping[str, Any]
    selection: bool


@dataclass(frozen=True, eq=False)
class Deployment:
    """The greeting for a party that joins."""

    experiment: Mapping[str, Any]
    space: Mapping[str, str]
    shape: Sequence[int]
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    validation: Sequence[int] | None = None
    growing: Mapping[str, Any] | None = None
    semantics: Tensor | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # what a removal says besides


class Distributed(Named):
    """Runs a round over a link: instruct, wait for replies, check them, merge."""

    Settings = DistributedSettings

    def __init__(
        self,
        strategy: Strategy,
        settings: DistributedSettings,
        classes: int,
        job: Simulation | Deployment,
        drop_non_finite: bool = False,
        notes: Iterable[str] = (),
        masks: Masks | None = None,
    ) -> None:
        self.strategy, self.settings, self.classes, self.job = strategy, settings, classes, job
        self.drop_non_finite, self.notes = drop_non_finite, frozenset(notes)
        self.masks = masks
        self._meeting: Session | None = None
        self._masked_sums: SecAggSession | None = None
        self._requests: PendingRequests[UpdateRequest] | None = None  # to clients whose late replies count
        self._deaf: dict[str, float] = {}  # who did not answer a greeting -> when it may be greeted again

    def connect(self, meeting: Session) -> None:
        """Set the link that reaches the parties, and greet all of them again. Call this before the first round."""
        meeting.greeted.clear()  # their greeting may be of another job, such as a run on validation classes
        self._meeting, self._masked_sums = meeting, None
        self._requests = PendingRequests(meeting.link)
        if self.masks is not None and isinstance(self.job, Deployment):
            self._session()  # refuses now what it would refuse later

    @property
    def meeting(self) -> Session:
        """The link, and who is at its other end."""
        assert self._meeting is not None
        return self._meeting

    @property
    def parties(self) -> list[PartyStatus]:
        """The parties, in the order of the clients."""
        return self.meeting.parties

    def round(
        self, round: int, state: Params, params: Params, client_states: ClientStates, clients: Sequence[int]
    ) -> RoundResult:
        """Run ``round`` (counted from 0) with ``clients``, in ascending order.

        In a deployment ``client_states`` are receipts: the last round whose reply of a client was merged, so that a
        party knows which of the states that it has kept is the one to continue from.
        """
        sent = self.strategy.instruct(state, params, round)
        device = next(iter(params.values())).device
        arrivals = self._masked if self.masks is not None and isinstance(self.job, Deployment) else self._seen
        arrived = arrivals(round, sent, client_states, clients, device)
        result = server_step(self.strategy, state, params, arrived, round)
        replies = arrived.replies if arrived.masked is None else [arrived.masked.reply]
        self._check_merged(result.state, result.params, replies, round)
        for client in result.participants:
            self.parties[client].rounds += 1
        return result

    def _seen(
        self, round: int, sent: Instruction, client_states: ClientStates, clients: Sequence[int], device: torch.device
    ) -> Arrivals:
        """Return the replies of a round that the coordinator knows."""
        if buffered := self.settings.buffer is not None:
            came, dropped, asked = self._ask_buffered(round, sent, client_states, clients, device)
        else:

            def read(client: int, answer: bytes) -> Arrived:
                return self._arrived(UpdateRequest(client, round, sent), answer, device)

            came, refused, asked = self._ask(round, sent, client_states, clients, read)
            dropped = {client: "it has not answered" for client in clients if client not in came} | refused
        arrived = [came[client] for client in sorted(came)]
        replies, ages = [item.reply for item in arrived], [round - item.request.round for item in arrived]
        down = asked * bytes_sent(self.strategy, sent)
        up = 0 if self.strategy.pools else sum(item.size for item in arrived)
        states = {reply.client: item.kept for reply, item in zip(replies, arrived, strict=True)}
        seconds = {reply.client: self.parties[reply.client].seconds for reply in replies}
        late: dict[str, Any] = {"ages": ages, "staleness": self.settings.staleness, "clock": {"ages": ages}}
        arrivals = Arrivals(
            replies, lambda place: arrived[place].request.instruction.params, states, down, up, dropped, seconds,
            **(late if buffered else {}),
        )  # fmt: skip
        if self.masks is not None:  # a simulation: all replies are in this process
            arrivals = arrivals.hidden(hidden_sum(self.masks, self.strategy, sent, replies, round))
        return arrivals

    def _ask(
        self,
        round: int,
        sent: Instruction,
        client_states: ClientStates,
        clients: Sequence[int],
        read: Callable[[int, bytes], Answer],
        request: Mapping[str, Any] | None = None,
    ) -> tuple[dict[int, Answer], dict[int, str], int]:
        """Instruct clients until a quorum has answered; those that do not answer are asked again."""
        body = under("params/", sent.params) | under("extras/", sent.extras)
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
            for name, answer in exchange(self.meeting.link, messages, self.settings.timeout):
                self._take(round, places[name], answer, read, answers, refused)
        self._check_quorum(round, need, clients, answers, refused)
        return answers, refused, asked

    def _check_quorum(
        self, round: int, need: int, clients: Sequence[int], answers: Mapping[int, Any], refused: Mapping[int, str]
    ) -> None:
        if clients and (len(answers) + len(refused) < need or not answers):
            raise QuorumError(self._too_few(round, need, clients, answers, refused))

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
            self.meeting.greeted.pop(party.name, None)
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

    def _arrived(self, request: UpdateRequest, answer: bytes, device: torch.device) -> Arrived:
        """Read a client's reply; raises WireError if it is not what was asked for."""
        party, simulated, strategy = self.parties[request.client], isinstance(self.job, Simulation), self.strategy
        sent = request.instruction
        counts = None if simulated else (party.classes, party.samples)
        used = strategy.lengths != "nothing"
        lengths = frozenset(name for name in sent.params if used and not is_statistic(name))
        update = strategy.expects(sent)
        expected = Expected(request.client, request.round, update, lengths, self.classes, self.notes, counts, simulated)
        reply, own, party.seconds, forgot = wire.read_reply(answer, expected)
        if forgot:
            _log.warning("round %d: %s has lost what it remembered, and starts again", request.round + 1, party.name)
        try:
            decoded = replace(reply, update=strategy.decode(to_device(dict(reply.update), device), sent))
        except ValueError as error:
            raise WireError(str(error)) from None
        if not finite(dict(decoded.update)):
            raise NotFiniteError("the update is not finite")
        if why := strategy.check(decoded):
            raise WireError(why)
        kept = to_device(own, device) if simulated else {_RECEIPT: torch.tensor(request.round)}
        return Arrived(request, decoded, wire_size(reply.update), kept)

    def _ask_buffered(
        self, round: int, sent: Instruction, client_states: ClientStates, clients: Sequence[int], device: torch.device
    ) -> tuple[dict[int, Arrived], dict[int, str], int]:
        """Wait until ``buffer`` replies have come, whenever they were asked for; return what :meth:`_ask` does.

        Every client is at work unless its reply waits for this merge; clients continue after it. A client
        whose answer does not come is asked again, with the model that there is then. Who is at work is not part of the
        state: a coordinator that resumes asks everyone again.
        """
        assert self._requests is not None
        assert self.settings.buffer is not None
        requests, body = self._requests, under("params/", sent.params) | under("extras/", sent.extras)
        need = min(self.settings.buffer, len(clients))
        came: dict[int, Arrived] = {}
        refused: dict[int, str] = {}
        tries: dict[int, int] = dict.fromkeys(clients, 0)
        rests = dict.fromkeys(clients, 0.0)  # until when a client that did not answer is left alone
        quiet = time.monotonic()
        while len(came) + len(refused) < need:
            self._look()
            now = time.monotonic()
            done = {*came, *refused, *(request.client for request in requests.pending)}
            left = [k for k in clients if k not in done and tries[k] < _ATTEMPTS]
            for client in left:
                if self.parties[client].connected and now >= rests[client]:
                    message = self._message(client, round, client_states.get(client, {}), body, None)
                    request, name = UpdateRequest(client, round, sent), self.parties[client].name
                    requests.send(request, name, message, self.settings.timeout)
                    tries[client] += 1
            if requests.pending:
                quiet = now
            elif not left or now - quiet > self.settings.patience:
                break
            if (answered := requests.next(_PAUSE)) is None:
                continue
            request, answer = answered

            def read(client: int, answer: bytes, request: UpdateRequest = request) -> Arrived:
                return self._arrived(request, answer, device)

            self._take(round, request.client, answer, read, came, refused)
            pause = min(_PAUSE * 2 ** tries[request.client], self.settings.patience / 2)
            rests[request.client] = time.monotonic() + pause
        self._check_quorum(round, need, clients, came, refused)
        return came, refused, sum(tries.values())

    def _masked(
        self, round: int, sent: Instruction, client_states: ClientStates, clients: Sequence[int], device: torch.device
    ) -> Arrivals:
        """Return the sum of a round whose replies the coordinator cannot read."""
        session = self._session()
        clients = session.enrolled(clients)
        self._agree_on_plan(session, sent, clients)
        masked, asked = self._masked_sum(session, sent, round, client_states, clients)
        reply = replace(masked.reply, update=to_device(dict(masked.reply.update), device))
        gone = [client for client in clients if client not in masked.clients]
        states = {client: {_RECEIPT: torch.tensor(round)} for client in masked.clients}
        dropped = {client: masked.refused.get(client, "it has not answered") for client in gone}
        arrived = Arrivals([], lambda place: {}, states, asked * bytes_sent(self.strategy, sent), 0, dropped)
        return arrived.hidden(replace(masked, reply=reply))

    def _masked_sum(
        self, session: SecAggSession, sent: Instruction, round: int, client_states: ClientStates, clients: Sequence[int]
    ) -> tuple[MaskedSum, int]:
        """Return the sum of a masked round, and how many instructions were sent."""
        from fedunseen.secagg.primitives import SecAggError
        from fedunseen.secagg.server import grouped

        need, asked = needed(self.settings.quorum, len(clients)), 0
        place = {party.name: client for client, party in enumerate(self.parties)}

        def ask_keys(requests: Mapping[str, Mapping[str, Any]]) -> Iterable[tuple[str, Any]]:
            nonlocal asked
            who, request = sorted(place[name] for name in requests), next(iter(requests.values()))
            read = lambda client, answer: session.read_keys(answer)  # noqa: E731
            answers, refused, more = self._ask(round, sent, client_states, who, read, request)
            asked += more
            for client in who:
                why = {"error": refused[client]} if client in refused else None
                yield self.parties[client].name, answers.get(client, why)

        try:
            return session.sum(round, sent, need, clients, ask_keys, self._wait), asked
        except QuorumError as error:
            raise QuorumError("".join([str(error), *grouped(session.left_out)])) from None
        except SecAggError as error:  # a resume decides; a stored total is opened then
            raise QuorumError(
                f"round {round + 1} has no sum under masks: {error}: fix that, or change engine.quorum or "
                "engine.timeout, and continue with --resume"
            ) from None

    def _session(self) -> SecAggSession:
        """Return the masked sums of the run; a new one for each link."""
        if self._masked_sums is None:
            from fedunseen.engines.remote.masking import SecAggSession
            from fedunseen.secagg.enrolment import Enrolment

            meeting = self.meeting
            assert self.masks is not None
            if meeting.kit is None or meeting.folder is None:
                raise RefusedError(
                    "masked sums need credentials, whose federation.json lists the parties: host with --kit, without "
                    "--insecure"
                )
            names, enrolment = [party.name for party in self.parties], Enrolment.load(meeting.kit)
            self._masked_sums = SecAggSession(
                self.meeting.link, names, enrolment, meeting.folder, self.masks, self.strategy, self.settings.timeout
            )
        return self._masked_sums

    def _agree_on_plan(self, session: SecAggSession, sent: Instruction, clients: Sequence[int]) -> None:
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
                there = self._wait(clients, need)
                if len(there) < need:
                    missing = ", ".join(self.parties[client].name for client in clients if client not in there)
                    raise QuorumError(
                        f"the plan of the masked sums needs {need} parties, but lacks {missing}: wait until all join"
                        + ("" if uniform else ", or set strategy.weights = 'uniform', which fixes no weights before")
                    )
                weights = {} if uniform else {self.parties[k].name: self.parties[k].weight for k in there}
                session.new_plan(facts, weights, sent)
        self._look()

    def gather(self, round: int, clients: Sequence[int]) -> dict[int, PartyStatus]:
        """Wait until a quorum of the clients of ``round`` (counted from 0) is there; return those that are."""
        need = needed(self.settings.quorum, len(clients))
        there = self._wait(clients, need)
        if len(there) < need:
            raise QuorumError(self._too_few(round, need, clients, dict.fromkeys(there), {}))
        return {client: self.parties[client] for client in there}

    def finish(self, result: Mapping[str, Any], params: Params) -> None:
        """Tell the parties of a deployment that the run is over, and hand them the merged model if they may have it."""
        if isinstance(self.job, Deployment):
            self._look()  # a nested run has greeted them with its own experiment
            self._dismiss(
                [party for party in self.parties if party.name in self.meeting.link.present()], result, params
            )

    def finish_late(self, result: Mapping[str, Any], params: Params) -> None:
        """Do what :meth:`finish` does for parties that look for a coordinator whose run is over already.

        It waits a little for them to find it, and greets those that are new.
        """
        greeted: set[str] = set()
        end = time.monotonic() + _LATE
        while len(greeted) < len(self.parties) and time.monotonic() < end:
            self._look()
            new = [party for party in self.parties if party.connected and party.name not in greeted]
            self._dismiss(new, result, params)
            greeted.update(party.name for party in new)
            time.sleep(_PAUSE)
        if missing := [party.name for party in self.parties if party.name not in greeted]:
            _log.warning("not there to be offered the model, which they may have: %s", ", ".join(missing))

    def _dismiss(self, parties: Sequence[PartyStatus], result: Mapping[str, Any], params: Params) -> None:
        given = (result, to_device(params, torch.device("cpu"))) if self.settings.deliver else ()
        message = wire.farewell(*given)
        for name, answer in exchange(self.meeting.link, {party.name: message for party in parties}, _FAREWELL):
            try:
                if wire.unpack_answer(answer, 2**20)[0].get("kept") is True:
                    _log.info("%s has the model", name)
            except WireError as error:
                _log.warning("%s perhaps lacks the model: %s", name, error)

    def _message(
        self, client: int, round: int, own: Mapping[str, Tensor], body: Params, request: Mapping[str, Any] | None
    ) -> bytes:
        header: dict[str, Any] = {"kind": "round", "client": client, "round": round, **(request or {})}
        if isinstance(self.job, Simulation):
            header |= {"experiment": self.job.experiment, "selection": self.job.selection}
            return wire.pack(header, body | under("state/", own))
        return wire.pack(header | {"after": int(own[_RECEIPT]) if own else -1}, body)

    def _wait(self, clients: Sequence[int], need: int, patience: float | None = None) -> list[int]:
        """Return the connected clients, as soon as ``need`` of them are there or ``patience`` is over."""
        patience = self.settings.patience if patience is None else patience
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
        connected = dict(self.meeting.link.present())
        if isinstance(self.job, Deployment):
            greeted, now = self.meeting.greeted, time.monotonic()
            names = {name for name, token in connected.items() if greeted.get(name) != token}
            new = [p for p in self.parties if p.name in names and now > self._deaf.get(p.name, 0.0)]
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

    def _hello(self, job: Deployment) -> tuple[dict[str, Any], Params]:
        """Return what all parties are greeted with."""
        hello = {
            "kind": "hello",
            "protocol": wire.PROTOCOL,
            "version": wire.installed(),
            "experiment": job.experiment,
            "clients": len(self.parties),
            "run": self.meeting.run,
            "space": job.space,
            "shape": list(job.shape),
            **({} if job.validation is None else {"validation": list(job.validation)}),
            **({} if job.growing is None else {"growing": job.growing}),
            **({} if self.masks is None else {"names": [party.name for party in self.parties]}),
            **job.extra,
        }
        return hello, {**job.statistics, **({} if job.semantics is None else {wire.SEMANTICS: job.semantics})}

    def _greet(self, new: Iterable[PartyStatus], job: Deployment, tokens: Mapping[str, str]) -> None:
        place = {party.name: k for k, party in enumerate(self.parties)}
        hello, tensors = self._hello(job)
        messages = {p.name: wire.pack({**hello, "client": place[p.name]}, tensors) for p in new}
        for name, answer in exchange(self.meeting.link, messages, self.meeting.greeting):
            party = self.parties[place[name]]
            party.classes, party.samples, party.ready = 0, 0, False
            if answer is None:  # it is greeted again later, since it may be busy with an earlier request
                self._deaf[name] = time.monotonic() + self.meeting.greeting
                continue
            self.meeting.greeted[name] = tokens[name]
            try:
                if self.masks is not None:
                    party.weight = _read_masked_hello(answer)
                elif job.growing is not None:
                    party.classes, party.samples, party.held, party.brought = wire.read_holdings(answer, job.growing)
                else:
                    party.classes, party.samples = wire.read_counts(wire.unpack_answer(answer, 2**20)[0], self.classes)
                party.refused, party.ready = "", True
                samples = f"{counted(party.samples, 'sample')} of {counted(party.classes, 'class')}"
                held = "masks what it sends" if self.masks else samples
                _log.info("%s has joined: %s", name, held)
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
        away, there = ([p.name for p in missing if not p.refused and p.connected is here] for here in (False, True))
        if away and there:  # perhaps no one was asked yet
            reasons += [f"no connection to {', '.join(away)} ({', '.join(there)} connected)"]
        elif silent:
            reasons += [f"{', '.join(silent)} did not answer"]
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
            why = ", and masks hide whose update made it so: bound updates (privacy.range) in a new run"
        else:
            worst = max(replies, key=lambda r: (length(r.update), -min(r.step_lengths.values(), default=1.0)))
            why = (
                f"; the largest update is that of {self.parties[worst.client].name}: keep it out of the federation, or "
                "bound updates (defence.name = 'norm-clip'), in a new run"
            )
        raise FedUnseenError(f"the merged model of round {round + 1} is not finite{why}")


def _read_masked_hello(answer: bytes) -> float:
    """Return the weight of a party that masks what it sends; it says nothing else of its data."""
    header, _ = wire.unpack_answer(answer, 2**20)
    weight = header.get("weight")
    if header.get("masked") is not True or not isinstance(weight, int | float) or not 1 <= weight <= 2**24:
        raise WireError("it does not say that it masks what it sends")
    return float(weight)


class WebSocket(Distributed, name="websocket"):
    """Each party keeps a connection to the coordinator (extra ``masked``): ``fedunseen host`` and ``join``."""


class Flower(Distributed, name="flower"):
    """Flower carries the messages (extra ``flower``): ``flwr run``."""


class NVFlare(Distributed, name="nvflare"):
    """NVIDIA FLARE carries the messages (extra ``nvflare``): ``nvflare job submit``."""
