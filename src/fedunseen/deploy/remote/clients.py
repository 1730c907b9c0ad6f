"""The clients at the other end of a link: who is connected, how they are greeted and dismissed.

:class:`Workers` are the worker processes of a simulation, which need no greeting. :class:`Parties`
are greeted with the experiment: they check the versions and the class space, and answer with what
they hold. :class:`MaskedParties` answer with a weight alone, and sign a plan.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fedunseen import __version__
from fedunseen.core.bounds import ANY_LENGTH
from fedunseen.core.errors import FedUnseenError, QuorumError, RefusedError, counted
from fedunseen.core.parameters import Params, to_device, under
from fedunseen.core.party_names import FEDERATION
from fedunseen.core.text import printable
from fedunseen.data.class_space import LARGEST
from fedunseen.deploy.remote import wire
from fedunseen.deploy.remote.link import HEADER, Content, Letter, barred, exchange, revoked
from fedunseen.deploy.remote.wire import NotFiniteError, PartyError, WireError
from fedunseen.federation.engine import PartyStatus, Session, needed
from fedunseen.federation.server_step import diverged
from fedunseen.strategies import Instruction, Strategy

if TYPE_CHECKING:  # the libraries of cryptography are loaded where they are used
    from fedunseen.deploy.remote.masking import SecAggSession
    from fedunseen.deploy.secagg.enrolment import Enrolment
    from fedunseen.deploy.secagg.masks import Masks

_log = logging.getLogger("fedunseen.federation")
# seconds between two lines about who is waited for: each twice the last, at most so long
_FIRST_WORD = 10.0
_LAST_WORD = 600.0
_LATE = 15.0  # seconds in which parties find a coordinator again that was killed at the end
_ROOM = 5.0  # seconds until a party whose disk is full is greeted again
_RANGE = 10  # times the coordinator's largest description: parties may bring such numbers
_GREETED = HEADER - 2**16  # bytes of a greeting's header, without what later versions add
_DESCRIBED = 2**23  # numbers that describe all classes that parties have brought: 64 MiB
_FAREWELL = 120.0  # seconds for parties to receive the end of the run and to store the model
RECEIPT = "round"  # a deployment's client state at the coordinator: the last merged round alone


@dataclass(frozen=True, eq=False)
class Deployment:
    """The greeting for a party that joins."""

    experiment: Mapping[str, Any]
    space: Mapping[str, str]
    shape: Sequence[int]
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    validation: Sequence[int] | None = None
    announced: Mapping[str, Any] | None = None
    semantics: Tensor | None = None
    own: int = 0  # of the announced classes, the first: those that the coordinator describes
    largest: float = 0.0  # absolute value of a number that describes a class of a party
    extra: Mapping[str, Any] = field(default_factory=dict)  # what a removal says besides
    classes: Sequence[str] = ()  # names of all classes; parties have their own table


def event(kind: str, party: str, **fields: Any) -> dict[str, Any]:
    """Return what a log for machines says of a party beside the message."""
    return {"fields": {"event": kind, "party": party, **fields}}


class Clients:
    """Who is at the other end of a link.

    Attributes:
        meeting: the link, and who is at its other end.
        parties: in the order of the clients.
        simulated: the clients are worker processes of a simulation.
        masks: how they mask what they send, if they do.
        patience: seconds to wait for a quorum.
        pause: seconds between two looks at who is connected.
    """

    simulated: ClassVar[bool]
    masks: Masks | None = None
    pause: ClassVar[float] = 0.2

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.meeting = Session(None, [])
        self.parties: list[PartyStatus] = []
        self._kept_out: Mapping[str, str] = {}
        self._shut_out: frozenset[str] = frozenset()

    def connect(self, meeting: Session, strategy: Strategy, timeout: float) -> None:
        """Set the link that reaches the parties, and greet all of them again."""
        # their greeting may be of another job, such as a run on validation classes
        meeting.greeted.clear()
        self.seat(meeting)

    def seat(self, meeting: Session) -> None:
        """Set who the parties are, without a greeting."""
        self.meeting = meeting
        self.parties = meeting.parties

    def look(self) -> None:
        """Update who is connected."""
        self._mark(self.meeting.link.present())

    def _mark(self, connected: Mapping[str, str]) -> None:
        """Note who is connected, and can take part."""
        kept_out = barred(self.meeting.link)
        gone = frozenset(revoked(self.meeting.link))
        for party in self.parties:
            if party.name in gone and not party.revoked:
                words = "%s was revoked, and is not waited for any more"
                _log.warning(words, party.name, extra=event("revoked", party.name))
            party.revoked = party.name in gone
            available = party.name in connected and party.ready
            why = kept_out.get(party.name, "")
            if why and party.refused != why:
                words = "%s is kept out: %s"
                _log.warning(words, party.name, why, extra=event("kept-out", party.name))
            elif party.connected and not available:
                _log.warning("%s is gone", party.name, extra=event("gone", party.name))
            if party.refused == self._kept_out.get(party.name):
                party.refused = ""  # its certificate is valid again
            party.refused = why or party.refused
            party.connected = available
        self._kept_out = kept_out
        if gone != self._shut_out:
            self.meeting.shut_out(gone)
            self._shut_out = gone

    def expected(self, clients: Sequence[int]) -> list[int]:
        """Return which of the clients were not revoked.

        Raises:
            QuorumError: all of them were.
        """
        expected = [client for client in clients if not self.parties[client].revoked]
        if clients and not expected:
            raise QuorumError(
                "all parties of this round were revoked: add others with `fedunseen certs add`, "
                "and continue with --resume"
            )
        return expected

    def wait(
        self, clients: Sequence[int], need: Callable[[], int], patience: float | None = None
    ) -> list[int]:
        """Return the connected clients, as soon as ``need()`` of them are there or ``patience`` is
        over.
        """
        patience = self.patience if patience is None else patience
        began = time.monotonic()
        said = 0.0
        rest = _FIRST_WORD
        while True:
            self.look()
            connected = [client for client in clients if self.parties[client].connected]
            if len(connected) >= need() or time.monotonic() - began > patience:
                return connected
            if time.monotonic() - said > rest:
                rest = min(2 * rest, _LAST_WORD) if said else rest
                names = ", ".join(
                    self.parties[client].name
                    for client in self.expected(clients)
                    if client not in connected
                )
                _log.info("waiting for %d more of: %s", need() - len(connected), names)
                said = time.monotonic()
            time.sleep(self.pause)

    def message(
        self, header: Mapping[str, Any], client_state: Mapping[str, Tensor], body: wire.Body
    ) -> bytes | Letter:
        """Return the message of an instruction; ``client_state`` is what the coordinator keeps."""
        raise NotImplementedError

    def declared(self, client: int) -> tuple[int, int] | None:
        """Return how many classes and samples a client has declared, if it has."""
        raise NotImplementedError

    def kept(self, client_state: Params, round: int, device: torch.device) -> Params:
        """Return what the coordinator keeps of the state of a client after ``round``."""
        raise NotImplementedError

    def check_lost(self, error: WireError, client: int, round: int) -> None:
        """Raise FedUnseenError where a refused reply ends the run."""

    def finish(self, result: Mapping[str, Any], params: Params, deliver: bool) -> None:
        """Send the parties the end of the run, and the merged model if they may have it."""

    def finish_late(self, result: Mapping[str, Any], params: Params, deliver: bool) -> None:
        """Do what :meth:`finish` does for parties that look for a coordinator whose run is over."""

    def too_few(
        self,
        round: int,
        need: int,
        clients: Sequence[int],
        answers: Iterable[int],
        refused: Mapping[int, str],
    ) -> QuorumError:
        """Return the error of a round that lacks a quorum: which clients are missing, and why."""
        replies = set(answers)
        missing = [
            self.parties[client]
            for client in self.expected(clients)
            if client not in replies and client not in refused
        ]
        reasons = [
            f"the reply of {self.parties[client].name} is refused ({why})"
            for client, why in refused.items()
        ]
        reasons += [
            f"{party.name} could not take part ({party.refused})"
            for party in missing
            if party.refused
        ]
        silent = [party for party in missing if not party.refused]
        away = [party.name for party in silent if not party.connected]
        present = [party.name for party in silent if party.connected]
        if away and present:  # perhaps no one was asked yet
            reasons += [f"no connection to {', '.join(away)} ({', '.join(present)} connected)"]
        elif silent:
            reasons += [f"{', '.join(party.name for party in silent)} did not answer"]
        return QuorumError(
            f"round {round + 1} has {len(replies)} of the {need} replies that it needs: "
            f"{'; '.join(reasons)}: fix that, or change engine.quorum, engine.timeout or "
            "engine.patience, and continue with --resume"
        )


class Workers(Clients):
    """Worker processes of a simulation: each message carries all that they need.

    Args:
        patience: seconds to wait for a quorum.
        experiment: what each of them sets up to stand in for any client.
        selection: validation classes play the unseen ones.
        masks: how replies are added up, if they are.
        drop_non_finite: a reply that is not finite is left out; otherwise it ends the run.
    """

    simulated = True

    def __init__(
        self,
        patience: float,
        experiment: Mapping[str, Any],
        selection: bool,
        masks: Masks | None,
        drop_non_finite: bool,
    ) -> None:
        super().__init__(patience)
        self._job = {"experiment": experiment, "selection": selection}
        self._drop_non_finite = drop_non_finite
        self.masks = masks

    def connect(self, meeting: Session, strategy: Strategy, timeout: float) -> None:
        """Set the link that reaches the processes, all of which can take part."""
        super().connect(meeting, strategy, timeout)
        for party in self.parties:
            party.ready = True

    def message(
        self, header: Mapping[str, Any], client_state: Mapping[str, Tensor], body: wire.Body
    ) -> bytes:
        """Return the message of an instruction, with the experiment and the client's state."""
        tensors = {**body.tensors, **under("state/", client_state)}
        return wire.pack({**header, **self._job}, tensors)

    def declared(self, client: int) -> None:
        """Return None: a worker process declares nothing."""
        return None

    def kept(self, client_state: Params, round: int, device: torch.device) -> Params:
        """Return the client's state: a worker process keeps nothing."""
        return to_device(client_state, device)

    def check_lost(self, error: WireError, client: int, round: int) -> None:
        """Raise FedUnseenError where training has diverged."""
        if isinstance(error, NotFiniteError) and not self._drop_non_finite:
            diverging = "the update" if "update" in str(error) else "a loss"
            raise FedUnseenError(diverged(diverging, client, round)) from None


class Parties(Clients):
    """Greets the parties of a deployment.

    Args:
        patience: seconds to wait for a quorum.
        job: what they are greeted with.

    Attributes:
        enrolment: what the coordinator's credentials list, if it has any.
    """

    simulated = False

    def __init__(self, patience: float, job: Deployment) -> None:
        super().__init__(patience)
        self.job = job
        self.enrolment: Enrolment | None = None
        # who did not answer a greeting, or had no room on its disk -> when it may be greeted again
        self._deaf: dict[str, float] = {}

    def connect(self, meeting: Session, strategy: Strategy, timeout: float) -> None:
        """Set the link that reaches the parties, and greet all of them again."""
        super().connect(meeting, strategy, timeout)
        self.enrolment = None
        if meeting.kit is not None and (meeting.kit / FEDERATION).exists():
            from fedunseen.deploy.secagg.enrolment import Enrolment

            self.restrict(Enrolment.load(meeting.kit), strategy)

    def restrict(self, enrolment: Enrolment, strategy: Strategy) -> None:
        """Let ``strategy`` refuse statistics of classes that federation.json does not let a party
        send.
        """
        self.enrolment = enrolment
        if not enrolment.classes:
            return
        place = {name: c for c, name in enumerate(self.job.classes)}
        allowed = {
            k: {place[name] for name in enrolment.classes.get(party.name, ()) if name in place}
            for k, party in enumerate(self.parties)
        }
        strategy.restrict(allowed, self.job.classes)

    def announce_classes(self, announced: Mapping[str, Any], semantics: Tensor, own: int) -> None:
        """Greet parties with the present class space, and its semantics (C, attributes), from now
        on; the first ``own`` classes are the coordinator's.
        """
        largest = min(_RANGE * float(semantics[:own].abs().max()), LARGEST)
        self.job = replace(
            self.job, announced=announced, semantics=semantics, own=own, largest=largest
        )

    def message(
        self, header: Mapping[str, Any], client_state: Mapping[str, Tensor], body: wire.Body
    ) -> Letter:
        """Return the message of an instruction, with the last round that was merged of the client.

        The party then continues from the state that it kept after that round.
        """
        after = int(client_state[RECEIPT]) if client_state else -1
        return Letter(wire.join({**header, "after": after, **body.shared}, b""), body.content)

    def declared(self, client: int) -> tuple[int, int]:
        """Return how many classes and samples a party has declared."""
        party = self.parties[client]
        return party.classes, party.samples

    def kept(self, client_state: Params, round: int, device: torch.device) -> Params:
        """Return a receipt: the party keeps its state."""
        return {RECEIPT: torch.tensor(round)}

    def hello(self) -> tuple[dict[str, Any], Params]:
        """Return what all parties are greeted with."""
        job = self.job
        fixed = self.enrolment if self.enrolment is not None and self.enrolment.classes else None
        hello = {
            "kind": "hello",
            "protocol": wire.PROTOCOL,
            "version": __version__,
            "experiment": job.experiment,
            "clients": len(self.parties),
            "run": self.meeting.run,
            "space": job.space,
            "shape": list(job.shape),
            **({} if job.validation is None else {"validation": list(job.validation)}),
            **({} if job.announced is None else {"growing": job.announced}),
            **({} if fixed is None else {"classes": fixed.classes_digest}),
            **job.extra,
        }
        return hello, {
            **job.statistics,
            **({} if job.semantics is None else {wire.SEMANTICS: job.semantics}),
        }

    def look(self) -> None:
        """Update who is connected, and greet those that have joined or come back."""
        connected = dict(self.meeting.link.present())
        greeted = self.meeting.greeted
        now = time.monotonic()
        names = {name for name, token in connected.items() if greeted.get(name) != token}
        new = [p for p in self.parties if p.name in names and now > self._deaf.get(p.name, 0.0)]
        if new:
            self._greet(new, connected)
        self._mark(connected)

    def _greet(self, new: Iterable[PartyStatus], tokens: Mapping[str, str]) -> None:
        place = {party.name: k for k, party in enumerate(self.parties)}
        hello, tensors = self.hello()
        messages = {p.name: wire.pack({**hello, "client": place[p.name]}, tensors) for p in new}
        for name, answer in exchange(self.meeting.link, messages, self.meeting.greeting):
            party = self.parties[place[name]]
            party.classes = 0
            party.samples = 0
            party.brought = {}
            party.ready = False
            if answer is None:  # perhaps it is busy with an earlier request: greet it again later
                self._deaf[name] = time.monotonic() + self.meeting.greeting
                continue
            self.meeting.greeted[name] = tokens[name]
            try:
                holds = self._read_hello(party, answer)
                self._check_declared(party)
                party.refused = ""
                party.ready = True
                _log.info("%s has joined: %s", name, holds, extra=event("joined", name))
            except WireError as error:
                if party.refused != str(error):
                    _log.warning("%s is refused: %s", name, error, extra=event("refused", name))
                party.refused = str(error)
                if isinstance(error, PartyError) and error.full:
                    del self.meeting.greeted[name]
                    self._deaf[name] = time.monotonic() + _ROOM

    def _read_hello(self, party: PartyStatus, answer: Content) -> str:
        """Read what a party declares; return it in words."""
        if self.job.announced is not None:
            party.classes, party.samples, party.held, brought = wire.read_holdings(
                answer, self.job.announced, self.job.largest
            )
            ever = self.meeting.ever_brought.get(party.name, frozenset()) | brought.keys()
            wire.check_brought(ever, "has brought")
            self._check_room(brought)
            self.meeting.ever_brought[party.name] = ever
            party.brought = brought
        else:
            party.classes, party.samples = wire.read_counts(
                wire.unpack_answer(answer, 2**20)[0], len(self.job.classes)
            )
        return f"{counted(party.samples, 'sample')} of {counted(party.classes, 'class')}"

    def _check_room(self, brought: Iterable[str]) -> None:
        """Refuse new classes with which the greeting would be longer than any party reads."""
        announced = self.job.announced
        semantics = self.job.semantics
        assert announced is not None
        assert semantics is not None
        known = set(announced["classes"])
        new = {*brought, *(name for other in self.parties for name in other.brought)} - known
        classes = len(known) + len(new)
        numbers = (classes - self.job.own) * semantics.shape[1]
        if new and (
            classes > ANY_LENGTH
            or numbers > _DESCRIBED
            or len(json.dumps(self.hello()[0])) + wire.greeted_bytes(new) > _GREETED
        ):
            raise WireError(
                f"it brings new classes, and the greeting of all parties has no room for "
                f"{classes:,} classes"
            )

    def _check_declared(self, party: PartyStatus) -> None:
        """Refuse a party that declares classes that are not its own, or more classes than it may
        send.
        """
        if self.enrolment is None or not self.enrolment.classes:
            return
        allowed = self.enrolment.classes.get(party.name, ())
        if party.classes > len(allowed):
            raise WireError(
                f"it declares {counted(party.classes, 'class')}, and {FEDERATION} lets it send "
                f"{len(allowed)}: leave it out, or allow more with `fedunseen certs --classes`"
            )
        if stray := [name for name in party.held if name not in allowed]:
            raise WireError(
                f"it holds samples of {printable(stray[0], 80)!r}, a class that {FEDERATION} does "
                "not let it send: leave it out, or allow the class with `fedunseen certs --classes`"
            )

    def finish(self, result: Mapping[str, Any], params: Params, deliver: bool) -> None:
        """Send the parties the end of the run, and the merged model if they may have it."""
        self.look()  # a nested run has greeted them with its own experiment
        present = self.meeting.link.present()
        self._dismiss(
            [party for party in self.parties if party.name in present], result, params, deliver
        )

    def finish_late(self, result: Mapping[str, Any], params: Params, deliver: bool) -> None:
        """Do what :meth:`finish` does for parties that look for a coordinator whose run is over
        already.

        It waits a little for them to find it, and greets those that are new.
        """
        greeted: set[str] = set()
        end = time.monotonic() + _LATE
        self.look()
        here = [party for party in self.parties if not party.revoked]
        while len(greeted) < len(here) and time.monotonic() < end:
            self.look()
            new = [party for party in self.parties if party.connected and party.name not in greeted]
            self._dismiss(new, result, params, deliver)
            greeted.update(party.name for party in new)
            time.sleep(self.pause)
        if missing := [party.name for party in here if party.name not in greeted]:
            _log.warning(
                "not there to be offered the model, which they may have: %s", ", ".join(missing)
            )

    def _dismiss(
        self,
        parties: Sequence[PartyStatus],
        result: Mapping[str, Any],
        params: Params,
        deliver: bool,
    ) -> None:
        final_model = (result, to_device(params, torch.device("cpu"))) if deliver else ()
        message = wire.farewell(*final_model)
        for name, answer in exchange(
            self.meeting.link, {party.name: message for party in parties}, _FAREWELL
        ):
            try:
                if wire.unpack_answer(answer, 2**20)[0].get("kept") is True:
                    _log.info("%s has the model", name)
            except WireError as error:
                _log.warning("%s perhaps lacks the model: %s", name, error)


class MaskedParties(Parties):
    """Greets parties that mask what they send, and lets them sign the plan of the run."""

    def __init__(self, patience: float, job: Deployment, masks: Masks) -> None:
        super().__init__(patience, job)
        self.masks = masks
        self._session: SecAggSession | None = None

    @property
    def session(self) -> SecAggSession:
        """The masked sums of the run; a new one for each link."""
        assert self._session is not None
        return self._session

    def connect(self, meeting: Session, strategy: Strategy, timeout: float) -> None:
        """Set the link that reaches the parties; refuse credentials that list no parties."""
        self._session = None
        super().connect(meeting, strategy, timeout)
        from fedunseen.deploy.remote.masking import SecAggSession
        from fedunseen.deploy.secagg.enrolment import Enrolment

        if meeting.kit is None or meeting.folder is None:
            raise RefusedError(
                "masked sums need credentials, whose federation.json lists the parties: host "
                "with --kit, without --insecure"
            )
        assert self.masks is not None
        names = [party.name for party in self.parties]
        enrolment = Enrolment.load(meeting.kit)
        self._session = SecAggSession(
            meeting.link, names, enrolment, meeting.folder, self.masks, strategy, timeout
        )

    def _mark(self, connected: Mapping[str, str]) -> None:
        """Note who is connected; those that are new sign the plan, once there is one."""
        super()._mark(connected)
        session = self.session
        if session.plan is None:
            return
        refused = session.agree(
            {party.name: connected[party.name] for party in self.parties if party.connected}
        )
        for party in self.parties:
            party.refused = refused.get(party.name, party.refused)

    def hello(self) -> tuple[dict[str, Any], Params]:
        """Return the greeting with all names: a party masks with the keys of the others."""
        hello, tensors = super().hello()
        return {**hello, "names": [party.name for party in self.parties]}, tensors

    def _read_hello(self, party: PartyStatus, answer: Content) -> str:
        """Read the weight of a party; it says nothing else of its data."""
        header, _ = wire.unpack_answer(answer, 2**20)
        weight = header.get("weight")
        if (
            header.get("masked") is not True
            or not isinstance(weight, int | float)
            or not 1 <= weight <= 2**24
        ):
            raise WireError("it does not say that it masks what it sends")
        party.weight = float(weight)
        return "masks what it sends"

    def agree_on_plan(
        self, strategy: Strategy, quorum: int | float, sent: Instruction, clients: Sequence[int]
    ) -> None:
        """Let all parties that are there sign the plan of the run and accept it."""
        from fedunseen.deploy.remote.masking import plan_facts

        session = self.session
        if session.plan is None:
            hello, tensors = self.hello()
            sums = strategy.adds, strategy.rounds
            facts = plan_facts(json.loads(json.dumps(hello)), tensors, session.enrolment, *sums)
            if not session.stored_plan(facts):
                uniform = strategy.settings.weights == "uniform"
                share = quorum if uniform else 1.0  # all, whose weights the plan fixes

                def need() -> int:
                    least = session.enrolment.threshold
                    return max(needed(share, len(self.expected(clients))), least)

                signers = self._signers(clients, need, uniform)
                weights = (
                    {}
                    if uniform
                    else {self.parties[k].name: self.parties[k].weight for k in signers}
                )
                session.new_plan(facts, weights, sent)
        self.look()
        if session.unsigned:  # a party did not answer: it may come back
            there = self.parties
            self.wait(
                clients, lambda: 1 + sum(p.connected for p in there) if session.unsigned else 0
            )
        if session.unsigned:
            raise QuorumError(session.unsigned)

    def _signers(self, clients: Sequence[int], need: Callable[[], int], uniform: bool) -> list[int]:
        """Return the clients that are there to sign a new plan; raise QuorumError for too few."""
        connected = self.wait(clients, need)
        if len(connected) < need():
            missing = ", ".join(
                self.parties[client].name for client in clients if client not in connected
            )
            raise QuorumError(
                f"the plan of the masked sums needs {need()} parties, but lacks {missing}: "
                "wait until all join"
                + (
                    ""
                    if uniform
                    else ", or set strategy.weights = 'uniform', which fixes no weights before"
                )
            )
        return connected
