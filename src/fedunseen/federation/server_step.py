"""The server's step, shared by all engines: merge what has arrived, and return what a round leaves
behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedunseen.core.parameters import ClientStates, Params, Scaled, finite, size_in_bytes
from fedunseen.strategies import Instruction, Reply, Strategy


@dataclass(frozen=True, eq=False)
class MaskedSum:
    """What a masked round leaves behind: the sum, and who took part."""

    reply: Reply
    clients: Sequence[int]
    refused: Mapping[int, str] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0


@dataclass(frozen=True, eq=False)
class Arrivals:
    """What has reached the server in a round.

    Attributes:
        replies: in client order; of those that were left out only because they are not finite,
            there is none. Under masks there is none at all.
        start: the model that each reply's client began with.
        client_states: the new states of the clients that have one.
        bytes_down, bytes_up: of all clients together.
        dropped: clients whose reply was left out, and why.
        seconds: that each client's local update took, where the engine knows.
        masked: under masks, all that the server knows of the clients' replies.
        ages, staleness: where late replies count, how many merges old the model was that each reply
            began with, and how much less it then counts.
        clock: where late replies count, ``ages``; where time is simulated too, ``time``, when the
            merge was.
    """

    replies: Sequence[Reply]
    start: Callable[[int], Params]
    client_states: ClientStates
    bytes_down: int
    bytes_up: int
    dropped: Mapping[int, str] = field(default_factory=dict)
    seconds: Mapping[int, float] = field(default_factory=dict)
    masked: MaskedSum | None = None
    ages: Sequence[int] | None = None
    staleness: float = 0.0
    clock: Mapping[str, Any] | None = None

    @property
    def participants(self) -> list[int]:
        """The clients whose replies are merged."""
        return (
            [reply.client for reply in self.replies]
            if self.masked is None
            else list(self.masked.clients)
        )

    def hidden(self, masked: MaskedSum) -> Arrivals:
        """Return what the server knows under masks: the sum instead of the replies."""
        down = self.bytes_down + masked.bytes_down
        return replace(self, replies=[], bytes_down=down, bytes_up=masked.bytes_up, masked=masked)

    @property
    def merged(self) -> Sequence[Reply]:
        """The replies as they are merged."""
        if self.masked is not None:
            return [self.masked.reply]
        return (
            self.replies
            if self.ages is None
            else staleness_weighted(self.replies, self.ages, self.staleness)
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundResult(Arrivals):
    """What a round leaves behind: what has arrived, and what became of it.

    Attributes:
        state, params: the server's.
        models: the model that each reply's client ended with; not kept for longer than the round.
    """

    state: Params
    params: Params
    models: Callable[[int], Params]


def server_step(
    strategy: Strategy, state: Params, params: Params, arrived: Arrivals, round: int
) -> RoundResult:
    """Merge what has arrived in ``round`` (counted from 0), and return what the round leaves
    behind.
    """
    state, params = strategy.merge(state, params, arrived.merged, round)

    def model(place: int) -> Params:
        return strategy.local_model(arrived.start(place), arrived.replies[place].update)

    kept = {
        client: client_state
        for client, client_state in sorted(arrived.client_states.items())
        if client_state
    }
    return RoundResult(
        **vars(arrived) | {"client_states": kept}, state=state, params=params, models=model
    )


def staleness_weighted(
    replies: Sequence[Reply], ages: Sequence[int], staleness: float
) -> list[Reply]:
    """Return replies as they are merged: an update of a model t merges old counts (1 + t)^-a of a
    fresh one.
    """
    factors = [float((1 + age) ** -staleness) for age in ages]
    pairs = zip(replies, factors, strict=True)
    return [
        reply if f == 1 else replace(reply, update=Scaled(dict(reply.update), f))
        for reply, f in pairs
    ]


def diverged(diverging: str, client: int, round: int) -> str:
    """Return what is said of a client whose reply is not finite."""
    return (
        f"training diverged: {diverging} of client {client} in round {round + 1} is not finite; "
        "lower method.lr or scale the features (data.features)"
    )


def not_finite(reply: Reply, client_state: Params) -> str:
    """Say what of a reply, or of what its client keeps, is not finite; nothing if all is."""
    if not (finite(reply.update) and finite(client_state)):
        return "the update"
    lost = [name for name, value in sorted(reply.terms.items()) if not math.isfinite(value)]
    return f"the loss {lost[0]!r}" if lost else ""


def bytes_sent(strategy: Strategy, instruction: Instruction) -> int:
    """Return what an instruction takes on its way to one client.

    Each tensor counts once (FedProx's pull is towards where it starts from). Nothing travels where
    all data lie in one place, and so does the model, nor where nothing merges: there every client
    has drawn the first model by itself.
    """
    if strategy.pools or not strategy.merges:
        return 0
    return size_in_bytes(
        {
            id(value): value
            for value in (*instruction.params.values(), *instruction.extras.values())
        }.values()
    )
