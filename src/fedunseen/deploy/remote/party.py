"""The side of the clients: it answers the coordinator where the data are.

In a deployment a :class:`Party` answers, and all that its client keeps between rounds stays with
it. In a simulation :func:`stand_in` answers: a worker process that has all data, and receives what
the client keeps with every request.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file

from fedunseen import __version__
from fedunseen.core.bounds import TEXT, check_header, check_model, check_run
from fedunseen.core.errors import FedUnseenError, RefusedError, counted
from fedunseen.core.files import write_tensors
from fedunseen.core.parameters import Params, within
from fedunseen.core.party_names import FEDERATION
from fedunseen.core.text import printable
from fedunseen.deploy.remote import declared, refusals, wire
from fedunseen.deploy.remote.refusals import HINTS, PLANS, Hints, again_command
from fedunseen.deploy.remote.wire import WireError, failure, pack
from fedunseen.federation.in_process import InProcess
from fedunseen.federation.worker import Work
from fedunseen.strategies import Instruction, Reply

if TYPE_CHECKING:  # the libraries of cryptography are loaded where they are used
    from fedunseen.deploy.remote.masking import PartySession
    from fedunseen.deploy.secagg.enrolment import Enrolment
    from fedunseen.deploy.secagg.ledger import Sample
    from fedunseen.deploy.secagg.party import SecAggClient
    from fedunseen.deploy.site import Site

# a tensor in the file of a client's state: the round after which it was written
_ROUND = "fedunseen/round"
_MASKING = tuple(  # the kinds of messages that masked sums add
    kind for kind in declared.KINDS if kind not in ("hello", "round", "stop")
)
# states that a client keeps, since a coordinator may resume from the checkpoint before the last
_KEPT = 4


@dataclass(frozen=True, eq=False)
class Ready:
    """A party that knows the experiment, and can train."""

    engine: InProcess | None
    classes: int
    samples: int
    keep: Callable[[Mapping[str, Any], Params], Path] | None = None
    held: tuple[str, ...] = ()
    brought: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    raw: Callable[[], Iterable[Sample]] = tuple
    present: Callable[[], Iterable[Sample] | None] = lambda: None
    """Returns all rows of a table, whose cells may change; None of samples that are files."""
    names: tuple[str, ...] = ()  # of the classes whose samples take part; () where no labels do
    left_out: str = ""  # what this party alone reads of classes that are in no sum
    check_removal: Callable[..., None] = lambda ledger, plan, content: None
    """Raises a RefusedError where a removal under a plan shows few samples, or leaves some in."""


Prepare = Callable[[Mapping[str, Any], Params], Ready]
"""Makes a party ready, from a greeting's header and the statistics that features are scaled with.

Raises a FedUnseenError if the party cannot take part."""


@dataclass(frozen=True, eq=False)
class _Joined:
    """A greeting that was accepted (its header, and its statistics as bytes), and what the party is
    ready for since.
    """

    greeting: tuple[dict[str, Any], bytes]
    mark: str  # of the count of answers
    ready: Ready
    session: PartySession | None
    in_clear: frozenset[bytes] = frozenset()  # digests of the samples that answers in clear take


class Party:
    """Answers the coordinator of a deployment at its site, which writes all answers down."""

    def __init__(
        self,
        prepare: Prepare,
        site: Site,
    ) -> None:
        self.prepare = prepare
        self.site = site
        self.say = site.say
        self.owner = owner = site.owner
        self.folders = {"STATE": site.state} | ({} if owner.data is None else {"DATA": owner.data})
        self.done = threading.Event()
        self.error: FedUnseenError | None = None
        self.home: Path | None = None
        self._secagg: SecAggClient | None = None  # lives as long as the process, over all runs
        self.joined: _Joined | None = None  # by a greeting, of which later messages may ask
        self._masked_run = False  # the last greeting was of a masked experiment
        self._left_out = ""  # what was last said to the owner of classes that are in no sum
        self._hints = Hints(site.state, owner.data)
        self._last: tuple[bytes, bytes] | None = (
            None  # the last message and its answer, unless it was a failure
        )

    @property
    def spent(self) -> tuple[float, float] | None:
        """The (epsilon, delta) of the run, from the noise that this party draws; None without
        masks.
        """
        joined = self.joined
        return None if joined is None or joined.session is None else joined.session.spent

    @property
    def accepted(self) -> str:
        """The digest of the plan of masked sums that the party has accepted; "" before."""
        joined = self.joined
        return "" if joined is None or joined.session is None else joined.session.accepted

    def answer(self, message: bytes) -> bytes:
        """Do what the coordinator asks for, and return the answer, which the site has written down.
        An error is part of the answer, never raised.
        """
        return self.site.answered(message, self)

    def reply(self, message: bytes) -> bytes:
        """Return the answer to a message, for the site alone.

        A message that comes twice in a row was lost, or its answer was: it gets the answer that it
        had.
        """
        if self._last is None or self._last[0] != message:
            self._last = None
            answer = self._answer(message)
            if wire.is_failure(answer):
                return answer
            self._last = message, answer
        return self._last[1]

    def _answer(self, message: bytes) -> bytes:
        if self._hints.spent:
            return self._leave()
        try:
            header, tensors = wire.unpack(message)
            answer = self._dispatched(header, tensors, message)
        except WireError as error:
            return self._refusal(WireError(f"the message cannot be read: {error}"), message)
        except Exception as error:
            # A library failed on this one message: the party reports it and stays.
            reason = printable(f"{type(error).__name__}: {error}")
            self.say(f"this message could not be answered ({reason})")
            return self._refusal(error, message)
        masked = self.joined is not None and self.joined.session is not None
        if stray := declared.undeclared(header.get("kind"), masked, *wire.fields(answer)):
            self.say(f"this message is not answered, since {stray[0]!r} is not declared")
            return failure(refusals.DATA)
        return answer

    def _dispatched(self, header: dict[str, Any], tensors: Params, message: bytes) -> bytes:
        kind = header.get("kind")
        joined = self.joined
        if kind == "hello":
            return self._greeted(header, tensors, message)
        if kind == "stop":
            return self._stop(header, tensors, message)
        if kind == "round" and (joined is None or joined.ready.engine is None):
            raise RefusedError("this party has not been greeted", refusals.MESSAGE)
        if kind == "round" or kind in _MASKING:
            if joined is not None and joined.session is not None:
                return self._masked(joined, joined.session, header, tensors, message)
            if joined is not None and kind == "round":
                return self._round(joined, header, tensors)
            raise RefusedError("this party takes part in no masked sums", refusals.MESSAGE)
        raise RefusedError(f"{printable(kind, 40)!r} is not a request", refusals.MESSAGE)

    def refusal(self, error: Exception, message: bytes) -> bytes:
        """Return what is sent for an error of the site, before the party has read the message."""
        return self._leave() if self._hints.spent else self._refusal(error, message)

    def _refusal(self, error: Exception, message: bytes) -> bytes:
        """Return what is sent for an error: its code; its text only in clear, and if it does not
        depend on samples.

        A refusal may be a bit about the data, so that a party under masks sends few of them.
        """
        code = refusals.code_of(error)
        private = self.owner.guarded or self._masked_run
        if private and code == refusals.DATA:
            self._hints.add(message)
            if self._hints.spent:
                self._leave()
        text = "" if private or code == refusals.DATA else self._discreet(str(error))
        return failure(code, text)

    def leave(self, error: FedUnseenError) -> None:
        """Take no further part, for a reason that its owner reads."""
        self.error = error
        self.site.refused(error)
        self.done.set()

    def forget(self) -> None:
        """Forget the greeting that was accepted, and its answer."""
        self.joined = self._last = None

    def _leave(self) -> bytes:
        """Refuse everything from now on, since more answers could reveal data."""
        if self.error is None:
            self.leave(
                RefusedError(
                    f"{HINTS} times this party has refused something under masks or was asked for "
                    "a sum that was not opened, and from many such answers a coordinator could "
                    "read data: look at the messages above, and if they were in order give "
                    f"{again_command(self.site.state)}, and start the party again",
                    refusals.LEFT,
                )
            )
        self.done.set()
        return failure(refusals.LEFT)

    def _discreet(self, text: str) -> str:
        """Replace the paths of the party's folders in a text that is sent."""
        for name, folder in self.folders.items():
            for path in (folder.resolve(), folder):
                text = text.replace(str(path), name)
        return text

    def _greeted(self, header: dict[str, Any], statistics: Params, message: bytes) -> bytes:
        """Join, unless that has been done; answer how much this party holds."""
        greeting = header, pack({}, dict(sorted(statistics.items())))
        self._masked_run = _is_masked(header)
        try:
            if (
                self.joined is None or self.joined.greeting != greeting
            ):  # nothing of a refused greeting stays
                self.joined = self._join(header, statistics, greeting, message)
        except FedUnseenError as error:
            self.leave(error)
            return self._refusal(error, message)
        ready = self.joined.ready
        session = self.joined.session
        if session is None:
            self.site.takes_in_clear(self.joined.in_clear)
        held = (
            f"joined with {counted(ready.samples, 'sample')} of {counted(ready.classes, 'class')}"
        )
        if session is not None:
            self.say(f"{held}, which stays here: only sums of several parties can be read")
            return pack({"masked": True, "weight": session.weight})
        self.say(
            held
            + (f", {len(ready.brought)} of them new to the coordinator" if ready.brought else "")
        )
        answer: dict[str, Any] = {"classes": ready.classes, "samples": ready.samples}
        if not ready.held:
            return pack(answer)
        brought = [
            torch.from_numpy(np.array(row, dtype=np.float64)) for row in ready.brought.values()
        ]
        answer |= {"held": list(ready.held), "brings": list(ready.brought)}
        return pack(answer, {"brought": torch.stack(brought)} if brought else {})

    def _join(
        self,
        header: dict[str, Any],
        statistics: Params,
        greeting: tuple[dict[str, Any], bytes],
        message: bytes,
    ) -> _Joined:
        """Prepare for the experiment of a greeting."""
        if (header.get("protocol"), header.get("version")) != (wire.PROTOCOL, __version__):
            theirs, protocol = (printable(header.get(k), 40) for k in ("version", "protocol"))
            raise RefusedError(
                f"this party has fedunseen {__version__} (messages {wire.PROTOCOL}) and the "
                f"coordinator fedunseen {theirs} (messages {protocol}): install the same version "
                "on both sides",
                "refused-version",
            )
        check_run(header)
        fixed = self._fixed_classes(header)
        # before the samples are looked at
        mark = self._hints.add(message) if self._masked_run else ""
        ready = self.prepare(header, statistics)
        if ready.left_out and ready.left_out != self._left_out:  # once for all parts of a run
            self._left_out = ready.left_out
            self.say(ready.left_out)
        self._check_classes(fixed, bool(header.get("removing")), ready)
        session = self._masked_sums(header, statistics, ready)
        if session is not None and session.opened:
            self._hints.remove(mark)
        in_clear = frozenset[bytes]()
        if session is None:
            in_clear = self._samples_in_clear(header, ready)
        return _Joined(greeting, mark, ready, session, in_clear)

    def _fixed_classes(self, header: Mapping[str, Any]) -> Enrolment | None:
        """Return the list that fixes who may send which class; None where nothing does.

        Raises:
            RefusedError: the coordinator's list is not this party's.
        """
        said = header.get("classes", "")
        kit = self.owner.kit
        path = None if kit is None else kit / FEDERATION
        if kit is None or path is None or not path.exists():
            if said:
                raise RefusedError(
                    "the coordinator fixes who may send which class, and this party lacks "
                    f"{FEDERATION}: join with the credentials that `fedunseen certs` made",
                    refusals.CLASSES,
                )
            return None
        from fedunseen.deploy.secagg.enrolment import Enrolment

        mine = Enrolment.load(kit)
        if said != mine.classes_digest:
            raise RefusedError(
                "the coordinator does not fix who may send which class as this party's "
                f"{path} does: copy the newest {FEDERATION} everywhere",
                refusals.CLASSES,
            )
        return mine if mine.classes else None

    def _check_classes(self, fixed: Enrolment | None, removing: bool, ready: Ready) -> None:
        """Refuse samples of a class that this party must not send; a removal takes back any."""
        if fixed is None or removing or self.owner.kit is None:
            return
        from fedunseen.deploy.secagg.enrolment import Credentials

        fixed.check_classes(Credentials.load(self.owner.kit).name, ready.names)

    def _masked_sums(
        self, header: Mapping[str, Any], statistics: Params, ready: Ready
    ) -> PartySession | None:
        """Return this party's side of the run's masked sums; None without masks."""
        if ready.engine is None or ready.engine.masks is None:
            return None
        from fedunseen.deploy.remote import masking
        from fedunseen.deploy.secagg.ledger import ASKING
        from fedunseen.deploy.secagg.masks import weight_of

        if self._secagg is None:
            owner = self.owner
            client = masking.client_of(owner.kit, self.site.state, owner.data, owner.consent)
            self.site.releases.bind(client.ledger)  # a disagreement keeps the party out of the run
            client.ledger.tell = self.say
            self._secagg = client
        names = header.get("names")
        place = int(header["client"])
        party_name = self._secagg.name
        if not isinstance(names, list) or not set(self._secagg.enrolment.parties) <= set(
            map(str, names)
        ):
            raise RefusedError(
                "the coordinator's list of parties lacks one of federation.json: look at its kit",
                refusals.SUM,
            )
        if len(set(map(str, names))) < len(names) or len(names) != int(header["clients"]):
            raise RefusedError(
                "the coordinator's list of parties is damaged, or names one twice: look at its kit",
                refusals.SUM,
            )
        if not 0 <= place < len(names) or names[place] != party_name:
            raise RefusedError(
                f"the coordinator takes this party, {party_name}, for another: look at its kit and "
                "at this one",
                refusals.SUM,
            )
        strategy = ready.engine.strategy
        facts = masking.plan_facts(
            header, statistics, self._secagg.enrolment, strategy.adds, strategy.rounds
        )
        weight = float(weight_of(strategy, Reply(0, {}, ready.classes, ready.samples)))
        asks = facts["confidence"] == ASKING
        if not self._hints.take(facts["experiment"], asks):
            raise RefusedError(
                f"this party has taken {PLANS} masked experiments, and many of them could be made "
                "to single out a sample: if these were yours, give "
                f"{again_command(self.site.state)}, and start the party again",
                refusals.LEFT,
            )
        if facts["dropouts"]:
            self.say(
                "privacy.dropouts = 'allow': sums of nearly the same parties may be opened and "
                "compared"
            )
        checks = ready.raw, ready.check_removal, ready.present
        return masking.PartySession(self._secagg, ready.engine, facts, weight, *checks)

    def _samples_in_clear(self, header: Mapping[str, Any], ready: Ready) -> frozenset[bytes]:
        """Return the digests of samples that are sent in clear, unless the ledger refuses it."""
        ledger = self.site.ledger
        if ledger is None:
            return frozenset()
        ledger.tell = self.say
        samples = ledger.digests(ready.raw())
        ledger.compare_with(ready.present())
        removing = bool(header.get("removing"))
        ledger.check_in_clear(str(header["run"]), samples, removing, self.owner.consent)
        return samples

    def _round(self, joined: _Joined, header: Mapping[str, Any], tensors: Params) -> bytes:
        check_header(header)
        check_model(tensors)
        engine = joined.ready.engine
        session = joined.session
        assert engine is not None
        client = int(header["client"])
        round = int(header["round"])
        after = int(header["after"])
        sent = wire.read_instruction(tensors, engine.worker.device)
        if session is not None and (learnt := session.known_reply(header, tensors)) is not None:
            return session.keys(header, tensors, sent, learnt)
        if session is not None and self._has_tried(session, header, tensors):
            return self._leave()
        folder = self.site.state / str(joined.greeting[0]["run"])
        before = self._saved_state(folder, after, engine.worker.device)
        reply, now, seconds = _timed_update(engine, client, sent, before or {}, round)
        if why := engine.worker.left_out_of(client):
            self.say(why)
        # A file is written even if nothing is remembered: one that is missing later has been lost.
        try:
            write_tensors(
                folder / f"after-{round:06d}.safetensors", now | {_ROUND: torch.tensor(round)}
            )
        except (OSError, SafetensorError) as error:
            raise FedUnseenError(f"this party's state: {error}", refusals.STORAGE) from None
        # The newest by time, not by round: a late message may have asked for a round that is long
        # over.
        written = folder / f"after-{round:06d}.safetensors"
        states = sorted(
            folder.glob("after-*.safetensors"),
            key=lambda path: (path == written, path.stat().st_mtime_ns),
        )
        newest = max(path.stat().st_mtime_ns for path in states)
        os.utime(written, ns=(newest + 1, newest + 1))  # a clock may have been moved back
        for path in states[:-_KEPT]:
            if int(path.stem.partition("-")[2]) != after:
                path.unlink()
        losses = ", ".join(f"{name} {value:.4g}" for name, value in sorted(reply.terms.items()))
        self.say(f"round {round + 1}: {seconds:.1f} s{losses and f', {losses}'}")
        if session is None:
            return wire.reply_message(reply, None, round, seconds, before is None)
        self._say_what_is_cut(session, engine, reply, round)
        return session.keys(header, tensors, sent, reply)

    def _has_tried(self, session: PartySession, header: Mapping[str, Any], tensors: Params) -> bool:
        """Count an instruction for a masked sum; return whether there were too many."""
        from fedunseen.deploy.remote.masking import instruction_digest

        digest = instruction_digest(int(header["round"]), tensors)
        self._hints.instruct(session.accepted, int(header["k"]), digest)
        return self._hints.spent

    def _say_what_is_cut(
        self, session: PartySession, engine: InProcess, reply: Reply, round: int
    ) -> None:
        """Tell the owner alone of numbers that do not fit: a refusal would say something of
        samples.
        """
        if cut := session.masks.cut(engine.strategy, reply)[1]:
            self.say(
                f"round {round + 1}: {counted(cut, 'number')} of the update did not fit under "
                "the masks, and the nearest ones that do are summed: ask the coordinator to raise "
                "privacy.range or to lower method.lr"
            )

    def _masked(
        self,
        joined: _Joined,
        session: PartySession,
        header: Mapping[str, Any],
        tensors: Params,
        message: bytes,
    ) -> bytes:
        """Answer a message of a masked sum, or train for one."""
        from fedunseen.deploy.secagg.primitives import SecAggError

        kind = header["kind"]
        try:
            check_header(header)
            if kind == "round":
                if (
                    header["client"] != joined.greeting[0]["client"]
                ):  # another one's place in the partition is empty
                    raise SecAggError("the instruction is for another party")
                return self._round(joined, header, tensors)
            answer = session.answer_plan(header) if kind in _MASKING[:2] else session.answer(header)
        except (SecAggError, FedUnseenError) as error:
            self.say(printable(error, TEXT))  # all reasons of the ledger, and the words at the end
            return self._refusal(error, message)
        if kind == "open":
            content = header["content"]  # perhaps of an earlier plan, whose answer is repeated
            self._hints.opened(content["plan"], session.last_opened(content["plan"]))
            if session.opened:
                self._hints.remove(joined.mark)
            self.say(f"round {int(header['content']['k']) + 1}: opened the sum")
        return answer

    def _stop(self, header: Mapping[str, Any], model: Params, message: bytes) -> bytes:
        """End, with the merged model where it came along."""
        keep = None if self.joined is None else self.joined.ready.keep
        try:
            self.say("the run is over")
            if model and keep is not None:
                self.home = keep(header, model)
            self.site.finished("the run is over")
            return pack({} if self.home is None else {"kept": True})
        except (FedUnseenError, WireError, OSError) as error:
            self.leave(RefusedError(f"the run is over, but its model is not here: {error}"))
            return self._refusal(error, message)
        finally:
            self.done.set()

    def _saved_state(self, folder: Path, after: int, device: torch.device) -> Params | None:
        """Return the client's state after the last of its rounds that was merged; None if it is
        lost.
        """
        path = folder / f"after-{after:06d}.safetensors"
        try:
            state = {} if after < 0 else load_file(path, device=str(device))
        except (OSError, SafetensorError):
            self.say(
                f"warning: {path} is missing or damaged: this party has forgotten what it knew, "
                "and starts again"
            )
            return None
        return {name: value for name, value in state.items() if name != _ROUND}


def _is_masked(greeting: Mapping[str, Any]) -> bool:
    """Return whether a greeting is of a masked experiment."""
    experiment = greeting.get("experiment")
    privacy = experiment.get("privacy") if isinstance(experiment, dict) else None
    return isinstance(privacy, dict) and privacy.get("aggregation") == "masked"


def stand_in(make: Callable[[Mapping[str, Any]], InProcess]) -> Callable[[str, bytes], bytes]:
    """Return what answers for any client of a simulation, in a worker process."""

    @lru_cache(maxsize=2)
    def engine_of(text: str) -> InProcess:
        return make(json.loads(text))

    def answer(name: str, message: bytes) -> bytes:
        try:
            header, tensors = wire.unpack(message)
            engine = engine_of(
                json.dumps(
                    {key: header[key] for key in ("experiment", "selection")}, sort_keys=True
                )
            )
            sent = wire.read_instruction(tensors, engine.worker.device)
            before = within("state/", tensors)
            reply, now, seconds = _timed_update(
                engine, header["client"], sent, before, header["round"]
            )
            return wire.reply_message(reply, now, header["round"], seconds)
        except (
            FedUnseenError,
            WireError,
        ) as error:  # its text may travel: all data are in one place
            return failure(refusals.code_of(error), str(error))
        except Exception as error:  # a library failed; the process continues with the next client
            return failure(refusals.DATA, f"{type(error).__name__}: {error}")

    return answer


def _timed_update(
    engine: InProcess, client: int, sent: Instruction, before: Params, round: int
) -> tuple[Reply, Params, float]:
    """Return a client's reply, what it keeps from now on, and the seconds that took, to the
    millisecond.
    """
    began = time.monotonic()
    reply, now = local_update(engine, client, sent, before, round)
    seconds = time.monotonic() - began
    return reply, now, float(f"{seconds:.3f}")


def local_update(
    engine: InProcess, client: int, sent: Instruction, before: Params, round: int
) -> tuple[Reply, Params]:
    """Do one client's round: return its reply, and what it keeps from now on."""
    sent = engine.strategy.recall(sent, before, round)
    (done,) = engine.worker.round([Work(client, sent, before)], round)
    return done
