"""The side of the clients: it answers the coordinator where the data are.

In a deployment a :class:`Party` answers, and all that its client keeps between rounds stays with it. In a simulation
:func:`stand_in` answers: a worker process that has all data, and receives what the client keeps with every request.
"""

from __future__ import annotations

import json
import re
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

from fedunseen.core.errors import FedUnseenError, RefusedError, counted
from fedunseen.core.files import write_tensors
from fedunseen.core.parameters import Params, finite, within
from fedunseen.engines.local.in_process import InProcess
from fedunseen.engines.local.worker import Work
from fedunseen.engines.remote import wire
from fedunseen.engines.remote.wire import WireError, failure, pack
from fedunseen.strategies import Instruction, Reply

if TYPE_CHECKING:  # the libraries of cryptography are loaded where they are used
    from fedunseen.engines.remote.masking import PartySession
    from fedunseen.secagg.party import SecAggClient

_ROUND = "fedunseen/round"  # a tensor in the file of a client's state: the round after which it was written
_RUN = re.compile("[0-9a-f]{16}")  # the name of a run, and of the folder with its states
_MASKING = ("plan", "signed", "shares", "masked", "open")  # the kinds of messages that masked sums add
_HINTS = 8  # refusals that may depend on data, after which a party under masks leaves
_PLANS = 8  # masked experiments that a process takes: from many, made for it, a coordinator could read single samples
_KEPT = 4  # states that a client keeps, since a coordinator may resume from the checkpoint before the last


@dataclass(frozen=True, eq=False)
class Ready:
    """A party that knows the experiment, and can train."""

    engine: InProcess | None
    classes: int
    samples: int
    keep: Callable[[Mapping[str, Any], Params], Path] | None = None
    held: tuple[str, ...] = ()
    brought: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    raw: Callable[[], Iterable[bytes]] = tuple


Prepare = Callable[[Mapping[str, Any], Params], Ready]
"""Makes a party ready, from a greeting's header and the statistics that features are scaled with.

Raises a FedUnseenError if the party cannot take part."""


@dataclass(frozen=True, eq=False)
class _Joined:
    """A greeting that was accepted (its header, and its statistics as bytes), and what the party is ready for since."""

    greeting: tuple[dict[str, Any], bytes]
    ready: Ready
    session: PartySession | None


class Party:
    """Answers the coordinator of a deployment."""

    def __init__(
        self,
        prepare: Prepare,
        state: Path,
        say: Callable[[str], None],
        folders: Mapping[str, Path] | None = None,
        kit: Path | None = None,
        consent: Iterable[str] = (),
    ) -> None:
        self.prepare, self.state, self.say, self.kit, self.consent = prepare, state, say, kit, tuple(consent)
        self.folders = {**(folders or {}), "STATE": state}
        self.done = threading.Event()
        self.error: FedUnseenError | None = None
        self.home: Path | None = None
        self._secagg: SecAggClient | None = None  # lives as long as the process, over all runs
        self._joined: _Joined | None = None
        self._plans = 0  # experiments under masks
        self._hints = 0  # refusals under masks that may depend on data
        self._last: tuple[bytes, bytes] | None = None  # the last message and its answer, unless it was a failure

    def answer(self, message: bytes) -> bytes:
        """Do what the coordinator asks for, and return the answer. An error is part of the answer, never raised.

        A message that comes twice in a row was lost, or its answer was: it gets the answer that it had.
        """
        if self._last is None or self._last[0] != message:
            self._last = None
            answer = self._answer(message)
            if wire.is_failure(answer):
                return answer
            self._last = message, answer
        return self._last[1]

    def _answer(self, message: bytes) -> bytes:
        if self._hints >= _HINTS:
            return failure("this party has left the run")
        try:
            return self._dispatched(*wire.unpack(message))
        except WireError as error:
            return failure(f"the message cannot be read: {error}")
        except Exception as error:
            # A library failed on this one message: the party reports it and stays.
            self.say(f"this message could not be answered ({type(error).__name__}: {error})")
            if self._joined is not None and self._joined.session is not None:  # the text of an error may show data
                return self._hint(f"{type(error).__name__}; the party's own messages say more")
            return failure(self._discreet(f"{type(error).__name__}: {error}"))

    def _dispatched(self, header: dict[str, Any], tensors: Params) -> bytes:
        kind, joined = header.get("kind"), self._joined
        if kind == "hello":
            return self._greeted(header, tensors)
        if kind == "stop":
            return self._stop(header, tensors)
        if kind == "round" and (joined is None or joined.ready.engine is None):
            return failure("this party has not been greeted")
        if kind == "round" or kind in _MASKING:
            if joined is not None and joined.session is not None:
                return self._masked(joined, joined.session, header, tensors)
            if joined is not None and kind == "round":
                return self._round(joined, header, tensors)
            return failure("this party takes part in no masked sums")
        return failure(f"{kind!r} is not a request")

    def _hint(self, why: str) -> bytes:
        """Refuse under masks for a reason that may depend on data; a refusal is a bit about them, so few are sent."""
        self._hints += 1
        if self._hints == _HINTS:
            self.error = RefusedError(
                f"this party has refused {_HINTS} messages since its update was out of range or could not be made, and "
                "from many refusals a coordinator could read data: look at privacy.range and the messages above"
            )
            self.done.set()
        return failure(why)

    def _discreet(self, text: str) -> str:
        """Replace the paths of the party's folders in a text that is sent."""
        for name, folder in self.folders.items():
            for path in (folder.resolve(), folder):
                text = text.replace(str(path), name)
        return text

    def _greeted(self, header: dict[str, Any], statistics: Params) -> bytes:
        """Join, unless that has been done; answer how much this party holds."""
        greeting = header, pack({}, dict(sorted(statistics.items())))
        try:
            if self._joined is None or self._joined.greeting != greeting:  # nothing of a refused greeting stays
                self._joined = self._join(header, statistics, greeting)
        except FedUnseenError as error:
            self.error = error
            self.done.set()
            return failure(self._discreet(str(error)))
        ready, session = self._joined.ready, self._joined.session
        held = f"joined with {counted(ready.samples, 'sample')} of {counted(ready.classes, 'class')}"
        if session is not None:
            self.say(f"{held}, which stays here: only sums of several parties can be read")
            return pack({"masked": True, "weight": session.weight})
        self.say(held + (f", {len(ready.brought)} of them new to the coordinator" if ready.brought else ""))
        answer: dict[str, Any] = {"classes": ready.classes, "samples": ready.samples}
        if not ready.held:
            return pack(answer)
        brought = [torch.from_numpy(np.array(row, dtype=np.float64)) for row in ready.brought.values()]
        answer |= {"held": list(ready.held), "brings": list(ready.brought)}
        return pack(answer, {"brought": torch.stack(brought)} if brought else {})

    def _join(self, header: dict[str, Any], statistics: Params, greeting: tuple[dict[str, Any], bytes]) -> _Joined:
        """Prepare for the experiment of a greeting."""
        if (header.get("protocol"), header.get("version")) != (wire.PROTOCOL, wire.installed()):
            other = wire.plain(header.get("version"), 40)
            raise RefusedError(
                f"this party has fedunseen {wire.installed()} and the coordinator fedunseen {other}: "
                "install the same version on both sides"
            )
        if not _RUN.fullmatch(str(header["run"])):
            raise RefusedError("the coordinator's greeting names no run: start it again with `fedunseen host`")
        ready = self.prepare(header, statistics)
        return _Joined(greeting, ready, self._masked_sums(header, statistics, ready))

    def _masked_sums(self, header: Mapping[str, Any], statistics: Params, ready: Ready) -> PartySession | None:
        """Return this party's side of the run's masked sums; None without masks."""
        if ready.engine is None or ready.engine.masks is None:
            return None
        from fedunseen.engines.remote import masking
        from fedunseen.secagg.masks import weight_of

        if self._secagg is None:
            self._secagg = masking.client_of(self.kit, self.state, self.folders.get("DATA"), self.consent)
        self._plans += 1
        if self._plans > _PLANS:
            raise RefusedError(
                f"this party has taken {_PLANS} masked experiments, and many of them could be made to single out a "
                "sample: join again if these were yours"
            )
        names, client, own = header.get("names"), int(header["client"]), self._secagg.name
        if not isinstance(names, list) or not set(self._secagg.enrolment.parties) <= set(map(str, names)):
            raise RefusedError("the coordinator's list of parties lacks one of federation.json: look at its kit")
        if len(set(map(str, names))) < len(names) or len(names) != int(header["clients"]):
            raise RefusedError("the coordinator's list of parties is damaged, or names one twice: look at its kit")
        if not 0 <= client < len(names) or names[client] != own:
            raise RefusedError(f"the coordinator takes this party, {own}, for another: look at its kit and at this one")
        strategy = ready.engine.strategy
        facts = masking.plan_facts(header, statistics, self._secagg.enrolment, strategy.adds, strategy.rounds)
        weight = float(weight_of(strategy, Reply(0, {}, ready.classes, ready.samples)))
        if facts["dropouts"]:
            self.say("privacy.dropouts = 'allow': sums of nearly the same parties may be opened and compared")
        return masking.PartySession(self._secagg, ready.engine, facts, weight, ready.raw)

    def _round(self, joined: _Joined, header: Mapping[str, Any], tensors: Params) -> bytes:
        engine, session = joined.ready.engine, joined.session
        assert engine is not None
        client, round, after = int(header["client"]), int(header["round"]), int(header["after"])
        sent = wire.read_instruction(tensors, engine.worker.device)
        if session is not None and (learnt := session.known_reply(header, tensors)) is not None:
            return session.keys(header, tensors, sent, learnt)
        folder = self.state / str(joined.greeting[0]["run"])
        before = self._saved_state(folder, after, engine.worker.device)
        reply, now, seconds = _timed_update(engine, client, sent, before or {}, round)
        # A file is written even if nothing is remembered: one that is missing later has been lost.
        write_tensors(folder / f"after-{round:06d}.safetensors", now | {_ROUND: torch.tensor(round)})
        # The newest by time, not by round: a late message may have asked for a round that is long over.
        known = sorted(folder.glob("after-*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
        for path in known[:-_KEPT]:
            if int(path.stem.partition("-")[2]) != after:
                path.unlink()
        losses = ", ".join(f"{name} {value:.4g}" for name, value in sorted(reply.terms.items()))
        self.say(f"round {round + 1}: {seconds:.1f} s{losses and f', {losses}'}")
        if session is None:
            return wire.reply_message(reply, None, round, seconds, before is None)
        if not finite(reply.update):
            return self._hint("the update is not finite")
        return session.keys(header, tensors, sent, reply)

    def _masked(self, joined: _Joined, session: PartySession, header: Mapping[str, Any], tensors: Params) -> bytes:
        """Answer a message of a masked sum, or train for one."""
        from fedunseen.secagg.primitives import SecAggError
        from fedunseen.secagg.ring import RangeError

        kind = header["kind"]
        try:
            if kind == "round":
                if header["client"] != joined.greeting[0]["client"]:  # another one's place in the partition is empty
                    raise SecAggError("the instruction is for another party")
                return self._round(joined, header, tensors)
            answer = session.answer_plan(header) if kind in _MASKING[:2] else session.answer(header)
        except RangeError as error:
            self.say(str(error))
            return self._hint(str(error))
        except (SecAggError, RefusedError) as error:
            self.say(str(error))
            return failure(str(error))
        if kind == "open":
            self.say(f"round {int(header['content']['k']) + 1}: opened the sum")
        return answer

    def _stop(self, header: Mapping[str, Any], model: Params) -> bytes:
        """End, with the merged model where it came along."""
        keep = None if self._joined is None else self._joined.ready.keep
        try:
            self.say("the run is over")
            if not model or keep is None:
                return pack({})
            self.home = keep(header, model)
            return pack({"kept": True})
        except (FedUnseenError, WireError, OSError) as error:
            self.error = RefusedError(f"the run is over, but its model is not here: {error}")
            return failure(self._discreet(str(error)))
        finally:
            self.done.set()

    def _saved_state(self, folder: Path, after: int, device: torch.device) -> Params | None:
        """Return the client's state after the last of its rounds that was merged; None if it is lost."""
        path = folder / f"after-{after:06d}.safetensors"
        try:
            state = {} if after < 0 else load_file(path, device=str(device))
        except (OSError, SafetensorError):
            self.say(f"warning: {path} is missing or damaged: this party has forgotten what it knew, and starts again")
            return None
        return {name: value for name, value in state.items() if name != _ROUND}


def stand_in(make: Callable[[Mapping[str, Any]], InProcess]) -> Callable[[str, bytes], bytes]:
    """Return what answers for any client of a simulation, in a worker process."""

    @lru_cache(maxsize=2)
    def made(text: str) -> InProcess:
        return make(json.loads(text))

    def answer(name: str, message: bytes) -> bytes:
        try:
            header, tensors = wire.unpack(message)
            engine = made(json.dumps({key: header[key] for key in ("experiment", "selection")}, sort_keys=True))
            sent, before = wire.read_instruction(tensors, engine.worker.device), within("state/", tensors)
            reply, now, seconds = _timed_update(engine, header["client"], sent, before, header["round"])
            return wire.reply_message(reply, now, header["round"], seconds)
        except (FedUnseenError, WireError) as error:
            return failure(str(error))
        except Exception as error:  # a library failed; the process continues with the next client
            return failure(f"{type(error).__name__}: {error}")

    return answer


def _timed_update(
    engine: InProcess, client: int, sent: Instruction, before: Params, round: int
) -> tuple[Reply, Params, float]:
    """Return a client's reply, what it keeps from now on, and the seconds that took, to the millisecond."""
    began = time.monotonic()
    reply, now = local_update(engine, client, sent, before, round)
    seconds = time.monotonic() - began
    return reply, now, float(f"{seconds:.3f}")


def local_update(engine: InProcess, client: int, sent: Instruction, before: Params, round: int) -> tuple[Reply, Params]:
    """Do one client's round: return its reply, and what it keeps from now on."""
    sent = engine.strategy.recall(sent, before, round)
    (done,) = engine.worker.round([Work(client, sent, before)], round)
    return done
