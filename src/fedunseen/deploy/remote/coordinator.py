"""The coordinator of a distributed engine: the in-process engine's round, with parties that may be
slow, gone or lie.

Replies are merged in client order, not in order of arrival, so that the engine changes no result.
:class:`Synchronous`: a round counts if a quorum has answered; without one the run pauses, and its
checkpoint holds the last full round. :class:`Buffered`: late replies count (FedBuff, Nguyen et al.
2022), and a round merges as soon as so many replies have come. Under masks the coordinator sees
sums alone: :mod:`fedunseen.deploy.remote.masked`. Who the clients are, and how they are greeted,
is in :mod:`fedunseen.deploy.remote.clients`.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, field_validator

from fedunseen.core.errors import FedUnseenError, StorageError
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
from fedunseen.core.tensor_store import TensorStore
from fedunseen.deploy.remote import wire
from fedunseen.deploy.remote.clients import Clients, Parties, event
from fedunseen.deploy.remote.link import (
    SPOOLED,
    Content,
    Letter,
    PendingRequests,
    exchange,
)
from fedunseen.deploy.remote.patience import Patience, pause_after
from fedunseen.deploy.remote.wire import Expected, NotFiniteError, PartyError, WireError
from fedunseen.federation.engine import Engine, EngineSettings, PartyStatus, Session, needed
from fedunseen.federation.server_step import Arrivals, RoundResult, bytes_sent, server_step
from fedunseen.strategies import Instruction, Reply, Strategy

_log = logging.getLogger("fedunseen.federation")


class DistributedSettings(NamedSettings, EngineSettings):
    """Settings of engines whose clients are elsewhere."""

    distributed: ClassVar[bool] = True

    mode: Literal["simulation", "deployment"] = "deployment"
    """Clients are parties, or the worker processes of Flower's own simulation."""
    quorum: int | float = 1.0
    """How many of a round's clients have to answer: a number (`2`) or a share (`0.66`; `1.0` is all
    of them).
    """
    timeout: float = Field(600.0, gt=0)
    """Seconds that a client may take to answer; then the round continues without it."""
    patience: float = Field(300.0, ge=0)
    """Seconds to wait for a quorum; then the run pauses, to be gone on with by `--resume`."""
    buffer: int | None = Field(None, ge=1, le=1_000_000)
    """Merge as soon as so many replies have come, K, and count those that come later in a later
    round (FedBuff). Unset: rounds are synchronous, with a `quorum`."""
    staleness: float = Field(0.5, ge=0, le=100)
    """With `buffer`, a: an update of a model t merges old counts (1 + t)^-a of a fresh one; 0: as
    much."""
    deliver: bool = True
    """At the end every party gets the merged model, as a run directory that is ready for
    `predict`.
    """
    memory: int = Field(1024, ge=1)
    """MiB that a client, or a batch of clients in this process, may take beside the data. More than
    the default is faster on a GPU only."""

    @field_validator("quorum")
    @classmethod
    def _check_quorum(cls, value: int | float) -> int | float:
        if (isinstance(value, int) and value < 1) or (
            isinstance(value, float) and not 0 < value <= 1
        ):
            raise ValueError(
                f"quorum = {value}: give a number of clients (1, 2, ...) or a share (0.5, at most "
                "1.0)"
            )
        return value


@dataclass(frozen=True, eq=False)
class UpdateRequest:
    """An instruction that a client works at, since ``round``."""

    client: int
    round: int
    instruction: Instruction
    device: torch.device


@dataclass(frozen=True, eq=False)
class Arrived:
    """A reply that waits to be merged, its bytes as sent, and what is kept of the client's
    state.
    """

    request: UpdateRequest
    reply: Reply
    size: int
    kept: Params


@dataclass(frozen=True, eq=False)
class Instructed:
    """A round that clients are asked for.

    Attributes:
        round: counted from 0.
        sent: what every client is instructed with.
        client_states: in a deployment receipts: the last round whose reply of a client was merged,
            so that a party knows which of the states that it has kept is the one to continue from.
        clients: in ascending order.
        device: where replies are merged.
    """

    round: int
    sent: Instruction
    client_states: ClientStates
    clients: Sequence[int]
    device: torch.device

    def messages(
        self, clients: Clients, recipients: Iterable[int], request: Mapping[str, Any]
    ) -> dict[int, bytes | Letter]:
        """Return the message for each client that is asked; ``request`` is added to its header."""
        sent = under("params/", self.sent.params) | under("extras/", self.sent.extras)
        packed = wire.pack({}, sent)
        shared, first = wire.split(packed)
        body = wire.Body(sent, shared, memoryview(packed)[first:])
        return {
            client: clients.message(
                {"kind": "round", "client": client, "round": self.round, **request},
                self.client_states.get(client, {}),
                body,
            )
            for client in recipients
        }

    def update_request(self, client: int) -> UpdateRequest:
        """Return what is asked of a client."""
        return UpdateRequest(client, self.round, self.sent, self.device)


@dataclass(eq=False)
class Answers:
    """The answers of a round by client, why others are refused, and how many were asked for."""

    read: dict[int, Any] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    requested: int = 0


class Distributed(Engine):
    """Runs a round over a link: instruct, wait for replies, check them, merge.

    Attributes:
        strategy: what is sent and how replies merge.
        settings: how long clients are waited for.
        classes: how many there are.
        clients: who is at the other end of the link.
        notes: what else a reply may say.
    """

    Settings = DistributedSettings

    def __init__(
        self,
        strategy: Strategy,
        settings: DistributedSettings,
        classes: int,
        clients: Clients,
        notes: Iterable[str] = (),
    ) -> None:
        self.strategy = strategy
        self.settings = settings
        self.classes = classes
        self.clients = clients
        self.notes = frozenset(notes)
        self._store: TensorStore | None = None

    @property
    def parties(self) -> list[PartyStatus]:
        """The parties, in the order of the clients."""
        return self.clients.parties

    def connect(self, meeting: Session) -> None:
        """Set the link that reaches the parties, and greet all of them again. Call this before the
        first round.
        """
        self.clients.connect(meeting, self.strategy, self.settings.timeout)
        self.clients.look()

    def announce_classes(
        self, announced: Mapping[str, Any], semantics: torch.Tensor, own: int
    ) -> None:
        """Greet parties with the present class space, and its semantics (C, attributes), from now
        on; the first ``own`` classes are the coordinator's.
        """
        assert isinstance(self.clients, Parties)
        self.clients.announce_classes(announced, semantics, own)

    def expected(self, clients: Sequence[int]) -> list[int]:
        """Return which of the clients were not revoked."""
        return self.clients.expected(clients)

    def quorum(self, clients: Sequence[int]) -> Callable[[], int]:
        """Return what counts how many of the clients have to answer: fewer once some are
        revoked.
        """
        return lambda: needed(self.settings.quorum, len(self.expected(clients)))

    def gather(self, round: int, clients: Sequence[int]) -> dict[int, PartyStatus]:
        """Wait until a quorum of the clients of ``round`` (counted from 0) is there; return those
        that are.
        """
        need = self.quorum(clients)
        connected = self.clients.wait(clients, need)
        if len(connected) < need():
            raise self.clients.too_few(round, need(), clients, connected, {})
        return {client: self.parties[client] for client in connected}

    def finish(self, result: Mapping[str, Any], params: Params) -> None:
        """Send the parties of a deployment the end of the run, and the merged model if they may
        have it.
        """
        if "run" in result:  # of a removal there is none yet
            self.clients.meeting.written(Path(result["run"]))
        # one that was started again after the last round has not waited for anyone yet
        late = "run" in result and not any(party.rounds for party in self.parties)
        finish = self.clients.finish_late if late else self.clients.finish
        finish(result, params, self.settings.deliver)

    def finish_late(self, result: Mapping[str, Any], params: Params) -> None:
        """Do what :meth:`finish` does for parties that look for a coordinator whose run is over
        already.
        """
        self.clients.finish_late(result, params, self.settings.deliver)

    @property
    def asks_again(self) -> bool:
        """Whether parties get the merged model anyway."""
        return self.settings.deliver

    def round(
        self,
        round: int,
        state: Params,
        params: Params,
        client_states: ClientStates,
        clients: Sequence[int],
    ) -> RoundResult:
        """Run ``round`` (counted from 0) with ``clients``, in ascending order."""
        sent = self.strategy.instruct(state, params, round)
        device = next(iter(params.values())).device
        arrived = self.arrivals(Instructed(round, sent, client_states, clients, device))
        result = server_step(self.strategy, state, params, arrived, round)
        self._check_merged(result, round)
        for client in result.participants:
            self.clients.parties[client].rounds += 1
        return result

    def _check_merged(self, result: RoundResult, round: int) -> None:
        """Refuse a merged model or state that is not finite: it would spoil every later round, and
        a resume.
        """
        params = result.params
        # A state may hold other things too: what a defence has judged replies by, say.
        of_params = {
            name: v for name, v in result.state.items() if name.rpartition("/")[2] in params
        }
        if not (finite(of_params) and finite(params)):
            raise FedUnseenError(
                f"the merged model of round {round + 1} is not finite{self.blame(result)}"
            )

    def arrivals(self, instructed: Instructed) -> Arrivals:
        """Return what clients have answered to the instruction of a round."""
        raise TypeError(f"{type(self).__name__} is the name of a carrier: it runs no round")

    def blame(self, arrived: Arrivals) -> str:
        """Return the end of a sentence: whose reply made the merged model not finite, and the
        remedy.
        """
        worst = max(
            arrived.replies,
            key=lambda r: (length(r.update), -min(r.step_lengths.values(), default=1.0)),
        )
        return (
            f"; the largest update is that of {self.parties[worst.client].name}: keep it out "
            "of the federation, or bound updates (defence.name = 'norm-clip'), in a new run"
        )

    def ask(self, instructed: Instructed, request: Mapping[str, Any]) -> Answers:
        """Instruct clients until a quorum has answered; those that do not answer are asked
        again.
        """
        answers = Answers()
        clients = instructed.clients
        need = self.quorum(clients)

        def lacking() -> int:  # a refused reply counts as an answer
            return need() - len(answers.read) - len(answers.refused)

        patience = Patience(self.settings.patience, self.clients.pause, self.clients.wait)
        for attempt in itertools.count():
            missing = [k for k in clients if k not in answers.read and k not in answers.refused]
            if lacking() <= 0:
                break
            if attempt and not patience.again():  # a full disk, say, which someone may empty
                break
            connected = patience.wait(missing, lacking)
            if len(connected) < lacking():
                break
            places = {self.clients.parties[client].name: client for client in connected}
            messages = instructed.messages(self.clients, connected, request)
            by_name = {name: messages[client] for name, client in places.items()}
            answers.requested += len(by_name)
            link = self.clients.meeting.link
            for name, answer in exchange(link, by_name, self.settings.timeout):
                self.take(instructed.update_request(places[name]), answer, answers)
        self.check_quorum(instructed, need(), answers)
        return answers

    def silence(self, client: int) -> str:
        """Say why there is no answer of a client."""
        return "it was revoked" if self.parties[client].revoked else "it has not answered"

    def check_quorum(self, instructed: Instructed, need: int, answers: Answers) -> None:
        """Raise QuorumError where too few clients have answered."""
        count = len(answers.read) + len(answers.refused)
        if instructed.clients and (count < need or not answers.read):
            raise self.clients.too_few(
                instructed.round, need, instructed.clients, answers.read, answers.refused
            )

    def take(self, request: UpdateRequest, answer: Content | None, answers: Answers) -> None:
        """Add what has come from a client to ``answers``, or why it is refused; nothing may have
        come.
        """
        client = request.client
        round = request.round
        party = self.clients.parties[client]
        if answer is None:
            said = event("silent", party.name, round=round + 1)
            _log.warning("round %d: %s has not answered", round + 1, party.name, extra=said)
            return
        try:
            answers.read[client] = self.read_answer(request, answer)
        except PartyError as error:  # a full disk, say, or another process than was greeted
            said = event("failed", party.name, round=round + 1)
            words = "round %d: %s could not answer: %s"
            _log.warning(words, round + 1, party.name, error, extra=said)
            self.clients.meeting.greeted.pop(party.name, None)
            party.refused = str(error)
            if error.final and self.clients.masks is not None:  # after some more it leaves
                answers.refused[client] = str(error)
        except (StorageError, OSError) as error:  # a full disk, which someone may empty
            said = event("silent", party.name, round=round + 1)
            words = "round %d: the reply of %s cannot be kept: %s"
            _log.warning(words, round + 1, party.name, error, extra=said)
        except WireError as error:
            self.clients.check_lost(error, client, round)
            answers.refused[client] = party.refused = str(error)
            said = event("refused", party.name, round=round + 1)
            words = "round %d: the reply of %s is refused: %s"
            _log.warning(words, round + 1, party.name, error, extra=said)
        else:
            party.refused = ""

    def read_answer(self, request: UpdateRequest, answer: Content) -> Any:
        """Read a client's reply; raises WireError if it is not what was asked for."""
        party = self.clients.parties[request.client]
        strategy = self.strategy
        sent = request.instruction
        used = strategy.lengths != "nothing"
        expected = Expected(
            request.client,
            request.round,
            strategy.expects(sent),
            frozenset(name for name in sent.params if used and not is_statistic(name)),
            self.classes,
            self.notes,
            self.clients.declared(request.client),
            self.clients.simulated,
        )
        reply, state, party.seconds, forgot = wire.read_reply(answer, expected)
        if forgot:
            _log.warning(
                "round %d: %s has lost what it remembered, and starts again",
                request.round + 1,
                party.name,
            )
        try:
            decoded = replace(
                reply, update=strategy.decode(to_device(dict(reply.update), request.device), sent)
            )
        except ValueError as error:
            raise WireError(str(error)) from None
        # What has arrived is finite; decompressed it may be too large for float32.
        if not finite(dict(decoded.update)):
            raise NotFiniteError("the update is not finite")
        if why := strategy.check(decoded):
            raise WireError(why)
        kept = self.clients.kept(state, request.round, request.device)
        if (size := wire_size(reply.update)) >= SPOOLED:
            decoded = self._stored(decoded, request)
        return Arrived(request, decoded, size, kept)

    def _stored(self, reply: Reply, request: UpdateRequest) -> Reply:
        """Return a reply that waits to be merged: on disk if it is large, so that memory holds one
        of a round's at once.
        """
        if self._store is None or self._store.device != str(request.device):
            folder = self.clients.meeting.folder  # which only masked sums need
            where = None if folder is None else folder.parent
            self._store = TensorStore(request.device, where)
        return replace(reply, update=self._store.put(reply.update))

    def arrivals_of(self, instructed: Instructed, answers: Answers) -> Arrivals:
        """Return replies that have been read, in client order."""
        arrived: list[Arrived] = [answers.read[client] for client in sorted(answers.read)]
        parties = self.clients.parties
        return Arrivals(
            [item.reply for item in arrived],
            lambda place: arrived[place].request.instruction.params,
            {item.reply.client: item.kept for item in arrived},
            answers.requested * bytes_sent(self.strategy, instructed.sent),
            0 if self.strategy.pools else sum(item.size for item in arrived),
            answers.refused,
            {item.reply.client: parties[item.reply.client].seconds for item in arrived},
        )


class Synchronous(Distributed):
    """A round waits for a quorum of its clients; a later answer is not merged."""

    def arrivals(self, instructed: Instructed) -> Arrivals:
        """Return the replies of a round."""
        answers = self.ask(instructed, {})
        silent = [k for k in instructed.clients if k not in answers.read]
        answers.refused = {k: self.silence(k) for k in silent} | answers.refused
        return self.arrivals_of(instructed, answers)


class AddedUp(Synchronous):
    """Adds the replies of a simulation up as masks do it: all replies are in this process."""

    def arrivals(self, instructed: Instructed) -> Arrivals:
        """Return the sum of a round."""
        assert self.clients.masks is not None
        arrived = super().arrivals(instructed)
        total = self.clients.masks.hidden_sum(
            self.strategy, instructed.sent, arrived.replies, instructed.round
        )
        return arrived.hidden(total)

    def blame(self, arrived: Arrivals) -> str:
        """Return the remedy: masks hide the rest."""
        return HIDDEN


HIDDEN = ", and masks hide whose update made it so: bound updates (privacy.range) in a new run"


class Buffered(Distributed):
    """A round merges as soon as ``buffer`` replies have come, also those to earlier rounds."""

    def connect(self, meeting: Session) -> None:
        """Set the link that reaches the parties, and forget what was asked over another one."""
        super().connect(meeting)
        self._requests: PendingRequests[UpdateRequest] = PendingRequests(meeting.link)

    def arrivals(self, instructed: Instructed) -> Arrivals:
        """Return the replies that a round merges, and how old each one is."""
        came = self._wait(instructed)
        requests = [came.read[client].request for client in sorted(came.read)]
        ages = [instructed.round - request.round for request in requests]
        return replace(
            self.arrivals_of(instructed, came),
            ages=ages,
            staleness=self.settings.staleness,
            clock={"ages": ages},
        )

    def _wait(self, instructed: Instructed) -> Answers:
        """Wait until ``buffer`` replies have come, whenever they were asked for.

        Every client is at work unless its reply waits for this merge; clients continue after it. A
        client whose answer does not come is asked again, with the model that there is then. Who is
        at work is not part of the state: a coordinator that resumes asks everyone again.
        """
        assert self.settings.buffer is not None
        clients = instructed.clients
        pause = self.clients.pause
        buffer = self.settings.buffer

        def need() -> int:
            return min(buffer, len(self.expected(clients)))

        came = Answers()
        tries: dict[int, int] = dict.fromkeys(clients, 0)
        failing: dict[int, float] = {}  # since when a client has not answered
        rests = dict.fromkeys(clients, 0.0)  # until when a client that did not answer is left alone
        quiet = time.monotonic()
        while len(came.read) + len(came.refused) < need():
            self.clients.look()
            now = time.monotonic()
            done = {
                *came.read,
                *came.refused,
                *(request.client for request in self._requests.pending),
            }
            late = now - self.settings.patience
            pending = [k for k in clients if k not in done and failing.get(k, now) >= late]
            idle = [k for k in pending if self.parties[k].connected and now >= rests[k]]
            self._send(instructed, idle)
            for client in idle:
                tries[client] += 1
            if self._requests.pending:
                quiet = now
            elif not pending or now - quiet > self.settings.patience:
                break
            if (answered := self._requests.next(pause)) is None:
                continue
            request, answer = answered
            self.take(request, answer, came)
            now = time.monotonic()
            failing.setdefault(request.client, now)
            tried = tries.get(request.client, 0)  # 0: it left since it was asked
            rest = min(pause_after(tried, pause), self.settings.patience / 2)
            rests[request.client] = now + rest
        self.check_quorum(instructed, need(), came)
        came.requested = sum(tries.values())
        return came

    def _send(self, instructed: Instructed, idle: Sequence[int]) -> None:
        for client, message in instructed.messages(self.clients, idle, {}).items():
            name = self.parties[client].name
            request = instructed.update_request(client)
            self._requests.send(request, name, message, self.settings.timeout)


class Carrier(Distributed):
    """The name of what carries the messages of a :class:`Synchronous`, :class:`Buffered` or masked
    engine.
    """


class WebSocket(Carrier, name="websocket"):
    """Each party keeps a connection to the coordinator (extra ``masked``): ``fedunseen host`` and
    ``join``.
    """


class Flower(Carrier, name="flower"):
    """Flower carries the messages (extra ``flower``): ``flwr run``."""


class NVFlare(Carrier, name="nvflare"):
    """NVIDIA FLARE carries the messages (extra ``nvflare``): ``nvflare job submit``."""
