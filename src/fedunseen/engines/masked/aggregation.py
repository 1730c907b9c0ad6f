"""What is summed under masks, and the whole protocol in one process, as a simulation runs it.

A party's words hold its update times its weight, the weight, how many classes and samples it holds, and its losses
times the weight. The coordinator makes one reply of the sums, that of everybody, which the strategy merges as it would
the weighted mean of single ones; where the method is in closed form, it is the total of the parties' sums.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from fedunseen.core.errors import OTHER_SPACE
from fedunseen.core.parameters import Params
from fedunseen.engines.masked.party import PartyHalf, least
from fedunseen.engines.masked.primitives import MaskError, Words
from fedunseen.engines.masked.server import SMALLEST, ServerHalf
from fedunseen.engines.masked.words import Field, Layout, RangeError
from fedunseen.strategies import Reply, Strategy
from fedunseen.strategies.base import MASKED
from fedunseen.strategies.summed import is_sum

__all__ = ["EVERYBODY", "Gathered", "MaskError", "MaskedSum", "Masks", "RangeError", "in_one_process", "size"]

EVERYBODY = -1
"""The client of the reply that is the sum of all."""

SESSION = 16  # bytes of its name
_SAMPLES = 2.0**24  # samples by which an update may be weighted at most
_LOSSES = 256  # so many losses may be told

Stage = Literal["keys", "shares", "masked", "unmask"]
Drops = Callable[[Stage, int], bool]


def size(message: Mapping[str, Any] | Words) -> int:
    """Return the bytes that a message takes on the wire, but for its frame."""
    return int(message.nbytes) if isinstance(message, np.ndarray) else len(json.dumps(message))


@dataclass(frozen=True, eq=False)
class MaskedSum:
    """What a masked round leaves behind: the sum, and who took part.

    Attributes:
        reply: of everybody: the weighted mean of the updates, or the total of the sums; how many classes and samples
            they hold in all; mean losses.
        clients: who is part of the sum, in ascending order.
        refused: client -> why it is not.
        bytes_down, bytes_up: that the protocol has taken, the parameters on their way down left out.
    """

    reply: Reply
    clients: Sequence[int]
    refused: Mapping[int, str] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0


@dataclass(frozen=True)
class Masks:
    """How the parties of a federation mask what they send.

    Attributes:
        threshold: share of the holders of a party's secrets that have to answer.
        neighbours: with how many others each party shares masks; None: with all.
        range: the largest number that an update may hold.
        clients, classes: how many there are in the federation.
        noisy: each party adds a part of the noise of private merging, so that a sum of few would have too little.
    """

    threshold: float
    neighbours: int | None
    range: float
    clients: int
    classes: int
    noisy: bool = False

    @property
    def smallest(self) -> int:
        """Of how many parties a sum has to be at least."""
        return max(SMALLEST, least(self.threshold, self.clients)) if self.noisy else SMALLEST

    def layout(self, strategy: Strategy, expected: Params, losses: Iterable[str]) -> Layout:
        """Return which numbers of a reply stand where.

        Args:
            strategy: says how updates are weighted, and whether they are sums.
            expected: tensors of the names, shapes and types of the update.
            losses: names of all losses of the round, whoever has them.
        """
        heaviest = {"uniform": 1.0, "classes": float(self.classes), "samples": _SAMPLES}[strategy.settings.weights]
        fields = []
        for name in sorted(expected):
            value = expected[name]
            where = f"update/{name}", tuple(value.shape)
            if not value.is_floating_point():
                fields.append(Field(*where, "whole" if is_sum(value) else "same"))
            elif strategy.adds:
                fields.append(Field(*where, "sum"))
            else:
                fields.append(Field(*where, "number", self.range * heaviest))
        counts = [Field(name, (), "sum") for name in ("weight", "classes", "samples")]
        told = [Field(f"{kind}/{name}", (), "sum") for name in sorted(set(losses)) for kind in ("loss", "having")]
        return Layout((*fields, *counts, *told), self.clients)

    def words(self, strategy: Strategy, layout: Layout, reply: Reply, session: bytes, round: int = 0) -> Words:
        """Return a party's reply as words, with its part of the noise if merging is private.

        No party helps to unmask a sum of fewer than ``smallest``; so many parts are noise enough.

        Raises:
            RangeError: a number is beyond the range.
        """
        if self.noisy:
            reply = strategy.blurred(reply, self.smallest, round)
        by = strategy.settings.weights
        weight = {"uniform": 1, "classes": reply.classes, "samples": reply.samples}[by]
        if by == "samples" and weight > _SAMPLES:
            raise RangeError(f"it holds more samples than the {_SAMPLES:.0f} that masks can weight by")
        values: dict[str, Any] = {"weight": weight, "classes": reply.classes, "samples": reply.samples}
        for name, value in sorted(reply.update.items()):
            weighted = value.is_floating_point() and not strategy.adds
            if weighted and not bool((value.abs() <= self.range).all()):  # nor if one is not a number
                raise RangeError(f"'update/{name}' holds a number beyond the range of the masks")
            values[f"update/{name}"] = value.detach().cpu().double() * weight if weighted else value
        for one in layout.fields:
            kind, _, name = one.name.partition("/")
            if kind == "loss":
                values[one.name] = weight * reply.terms.get(name, 0.0)
            elif kind == "having":
                values[one.name] = weight if name in reply.terms else 0
        return layout.words(values, session)

    def reply(
        self, strategy: Strategy, layout: Layout, words: Words, clients: int, session: bytes, expected: Params
    ) -> Reply:
        """Return the reply of everybody, from the sum of the words of so many clients.

        Raises:
            MaskError: the words are not the sum of what so many honest clients may have sent.
        """
        sums = layout.numbers(words, clients, session)
        weight = float(sums["weight"])
        if not weight > 0 or not clients <= sums["classes"] <= sums["samples"]:
            raise MaskError("the sums of weights, classes or samples are impossible: one of the parties lies")
        update: Params = {}
        for name, like in expected.items():
            total = sums[f"update/{name}"]
            if not is_sum(like):
                own = like.cpu().numpy().astype(np.int64)
                if not np.array_equal(total, own * clients):
                    raise MaskError(OTHER_SPACE.format("the sums of some parties"))
                update[name] = like
                continue
            mean = total if strategy.adds else total / weight
            update[name] = torch.from_numpy(np.ascontiguousarray(mean)).to(dtype=like.dtype, device=like.device)
        names = [field.name.partition("/")[2] for field in layout.fields if field.name.startswith("loss/")]
        having = {name: float(sums[f"having/{name}"]) for name in names}
        terms = {name: float(sums[f"loss/{name}"]) / having[name] for name in names if having[name] > 0}
        notes = {MASKED: float(clients)}
        return Reply(EVERYBODY, update, int(sums["classes"]), int(sums["samples"]), terms, notes=notes)

    def server(self, need: int) -> ServerHalf:
        """Begin a session: the coordinator's half."""
        return ServerHalf(secrets.token_bytes(SESSION), self.threshold, self.neighbours, max(need, self.smallest))

    def party(self, client: int, session: bytes) -> PartyHalf:
        """Begin a session: a party's half."""
        return PartyHalf(client, session, self.threshold, self.smallest)

    def sum(
        self, strategy: Strategy, replies: Sequence[Reply], expected: Params, need: int, round: int = 0
    ) -> MaskedSum:
        """Return the sum of replies that are all in this process, by the whole protocol.

        Raises:
            MaskError: there are too few.
            RangeError: a number is beyond the range; says whose.
        """
        layout = self.layout(strategy, expected, (name for reply in replies for name in reply.terms))
        server = self.server(need)
        words = {}
        for reply in replies:
            try:
                words[reply.client] = self.words(strategy, layout, reply, server.session, round)
            except RangeError as error:
                raise RangeError(f"client {reply.client}: {error}") from None
        done = in_one_process(self, server, words)
        found = self.reply(strategy, layout, done.words, len(done.clients), server.session, expected)
        return MaskedSum(found, done.clients, done.refused, done.bytes_down, done.bytes_up)


@dataclass(frozen=True, eq=False)
class Gathered:
    """The sum of words.

    Attributes:
        words: the sum.
        clients: whose words are part of it.
        refused: client -> why not.
        bytes_down, bytes_up: of all messages.
        heard: all that has reached the coordinator, in order: stage, client, message.
    """

    words: Words
    clients: list[int]
    refused: dict[int, str]
    bytes_down: int
    bytes_up: int
    heard: list[tuple[Stage, int, Any]]


def in_one_process(
    masks: Masks,
    server: ServerHalf,
    words: Mapping[int, Words],
    drops: Drops = lambda stage, client: False,
    change: Callable[[Stage, int, Any], Any] = lambda stage, client, message: message,
) -> Gathered:
    """Run the protocol among parties that are all in this process, message by message.

    Args:
        masks: as the federation has agreed.
        server: the coordinator's half, in a new session.
        words: client -> what it adds.
        drops: whether a client goes before it answers at a stage; it does not come back.
        change: what reaches the coordinator in the place of a client's message: a lie.

    Raises:
        MaskError: too few are left, or masks cannot be taken off.
    """
    halves = {client: masks.party(client, server.session) for client in sorted(words)}
    refused: dict[int, str] = {}
    heard: list[tuple[Stage, int, Any]] = []
    down = up = 0
    length = len(next(iter(words.values())))

    def answers(stage: Stage, asked: Mapping[int, Any], take: Callable[[int, Any], None]) -> None:
        nonlocal down, up
        for client, told in asked.items():
            if client not in halves or drops(stage, client):
                halves.pop(client, None)
                continue
            down += size(told)
            try:
                own = _said(halves[client], stage, told, words[client])
                message = change(stage, client, own)
                up += size(message)
                heard.append((stage, client, message))
                take(client, message)
            except MaskError as error:
                refused[client] = str(error)
                halves.pop(client, None)

    answers("keys", {client: {} for client in halves}, server.take_keys)
    answers("shares", server.ask_shares(), server.take_shares)
    answers("masked", server.ask_masked(), lambda client, own: server.take_masked(client, own, length))
    answers("unmask", server.ask_unmask(), server.take_unmasked)
    return Gathered(server.total(), sorted(server.sent), refused, down, up, heard)


def _said(half: PartyHalf, stage: Stage, told: Mapping[str, Any], words: Words) -> Any:
    """Return what a party answers at a stage."""
    if stage == "keys":
        return half.keys()
    if stage == "shares":
        return half.shares(told)
    return half.masked(told, words) if stage == "masked" else half.unmask(told)
