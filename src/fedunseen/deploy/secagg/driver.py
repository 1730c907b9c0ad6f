"""One masked sum from the first key to the opening, over any transport; and with all parties in one
process.
"""

import itertools
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedunseen.core.errors import RefusedError
from fedunseen.deploy.secagg.party import Message, SecAggClient
from fedunseen.deploy.secagg.plan import Plan
from fedunseen.deploy.secagg.primitives import Elements, SecAggError
from fedunseen.deploy.secagg.server import AttemptError, MaskedTotal, SecAggServer, grouped

_log = logging.getLogger("fedunseen.federation")

Stage = Literal["keys", "shares", "masked", "open"]
Answer = Message | Elements | None
Exchange = Callable[[Stage, Mapping[str, Message]], Iterable[tuple[str, Answer]]]
"""Sends each party its request, and yields each party's answer once: None if none will come. A
refusal is a message with the key ``error``, and ``final`` if it is not to be asked for often."""

_WHAT = {"keys": "its keys", "shares": "its shares", "masked": "its masked elements"}


def masked_total(
    server: SecAggServer,
    names: Iterable[str],
    exchange: Exchange,
    length: Callable[[Sequence[str]], int],
) -> MaskedTotal:
    """Lead the parties through an attempt, up to the masked total."""
    request = {
        "plan": server.plan,
        "k": server.k,
        "attempt": server.attempt,
        "instruction": server.instruction,
    }
    _ask(server, exchange, "keys", dict.fromkeys(names, request), server.take_keys)
    request = server.ask_shares()
    _ask(
        server, exchange, "shares", dict.fromkeys(sorted(server.keys), request), server.take_shares
    )
    expected = length(server.extra)

    def take(name: str, answer: Any) -> None:
        if isinstance(answer, np.ndarray):
            server.take_masked(name, answer, expected)
        else:
            server.take_complaint(name, answer)

    _ask(server, exchange, "masked", server.ask_masked(), take)
    return server.total()


def _ask(
    server: SecAggServer,
    exchange: Exchange,
    stage: Stage,
    requests: Mapping[str, Message],
    take: Callable[[str, Any], None],
) -> None:
    for name, answer in exchange(stage, requests) if requests else ():
        if answer is None:
            server.absent[name] = f"it has not answered when it was asked for {_WHAT[stage]}"
        elif isinstance(answer, dict) and "error" in answer:
            server.absent[name] = str(answer["error"])
            if answer.get("final"):
                server.final.add(name)
        else:
            try:
                take(name, answer)
            except SecAggError as error:
                server.faulty[name] = str(error)


def gather(
    start: Callable[[int], SecAggServer],
    names: Sequence[str],
    exchange: Exchange,
    length: Callable[[Sequence[str]], int],
    left_out: dict[str, str],
    again: Callable[[], bool] = lambda: False,
) -> MaskedTotal:
    """Repeat attempts until all members of a roster have sent masked elements.

    A party that is at fault, or that has failed two attempts, is left out of the next one. One
    that the sum needs is asked for as long as ``again``, which may pause, says so, unless it has
    refused for good.
    """
    failed: dict[str, int] = {}
    first = time.time_ns() // 10**6  # larger than all attempts before a restart
    for attempt in itertools.count():
        server = start(first + attempt)
        try:
            total = masked_total(
                server, [name for name in names if name not in left_out], exchange, length
            )
        except AttemptError as error:
            _log.warning("%s", error)
            late = {name: why for name, why in server.absent.items() if name in server.keys}
            failed |= {name: failed.get(name, 0) + 1 for name in late}
            often = {name: why for name, why in late.items() if failed[name] > 1}
            before = dict(left_out)
            left_out.update(error.faulty)
            rest = {*names} - left_out.keys() - often.keys()
            waits = often and len(rest) < server.quorum and server.final.isdisjoint(often)
            if not (waits and again()):
                left_out.update(often)
            if not (error.faulty or late):
                raise AttemptError("".join([str(error), *grouped(before)]), left_out) from None
            continue
        missing = {**server.absent, **server.faulty}
        left_out.update({name: why for name, why in missing.items() if name not in total.roster})
        return total
    raise AssertionError("unreachable")


def open_total(total: MaskedTotal, exchange: Exchange) -> Elements:
    """Open a masked total that has been stored. May be repeated, also after a restart, until enough
    parties answer.
    """
    why: dict[str, str] = {}
    for name, answer in exchange("open", dict.fromkeys(total.roster, total.ask_open())):
        try:
            if not isinstance(answer, dict):
                raise SecAggError("it has not answered")
            if "error" in answer:
                raise SecAggError(str(answer["error"]))
            total.take_open(name, answer)
        except SecAggError as error:
            why[name] = str(error)
    try:
        return total.sum()
    except SecAggError as error:
        raise SecAggError("".join([f"sum {total.k + 1}: {error}", *grouped(why)])) from None


def agree_on(plan: Plan, clients: Mapping[str, SecAggClient]) -> None:
    """Let all parties of one process sign and accept a plan."""
    signatures = {name: client.sign(plan) for name, client in clients.items()}
    for client in clients.values():
        client.accept(plan, signatures)


@dataclass(frozen=True, eq=False)
class Opened:
    """A sum of ring elements, who is in it, and the bytes of all messages."""

    elements: Elements
    rho: str
    roster: Sequence[str]
    left_out: Mapping[str, str]
    bytes_down: int
    bytes_up: int


class InOneProcess:
    """Carries the messages of parties that are all in this process, and counts their bytes."""

    def __init__(
        self,
        clients: Mapping[str, SecAggClient],
        encode: Callable[[str, bytes, Sequence[str]], Elements],
    ) -> None:
        self.clients = clients
        self.encode = encode
        self.down = 0
        self.up = 0

    def answer(self, stage: Stage, name: str, request: Message) -> Answer:
        """Return a party's answer, None if none will come."""
        client = self.clients[name]
        if stage == "keys":
            return client.keys(**request)
        if stage == "shares":
            return client.shares(request)
        if stage == "masked":
            return client.masked(
                request, self.encode(name, bytes.fromhex(client.rho), client.extra)
            )
        return client.open(request)

    def exchange(
        self, stage: Stage, requests: Mapping[str, Message]
    ) -> Iterable[tuple[str, Answer]]:
        """Send each party its request, and yield its answer."""
        for name, request in requests.items():
            self.down += len(json.dumps(request))
            try:
                answer = self.answer(stage, name, request)
            except (SecAggError, RefusedError) as error:
                answer = {"error": str(error)}
            if answer is not None:
                self.up += (
                    answer.nbytes if isinstance(answer, np.ndarray) else len(json.dumps(answer))
                )
            yield name, answer

    def sum(self, plan: Plan, k: int, instruction: str) -> Opened:
        """Run a sum, with as many attempts as it takes."""
        first = next(iter(self.clients.values()))
        left_out = dict[str, str]()

        def start(attempt: int) -> SecAggServer:
            return SecAggServer(first.enrolment, plan.digest, k, attempt, instruction)

        def length(names: Sequence[str]) -> int:
            return len(self.encode(first.name, b"", names))

        total = gather(start, list(self.clients), self.exchange, length, left_out)
        elements = open_total(total, self.exchange)
        return Opened(elements, total.rho, total.roster, left_out, self.down, self.up)
