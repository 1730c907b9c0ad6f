"""The default engine: all clients in this process, batched where that is faster."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field
from torch import Tensor

from fedunseen.core.errors import FedUnseenError
from fedunseen.core.parameters import Params, finite, size_in_bytes
from fedunseen.core.settings import Settings
from fedunseen.engines.worker import Work, Worker
from fedunseen.strategies import Instruction, Reply, Strategy

__all__ = ["EngineSettings", "InProcess", "RoundResult"]


class EngineSettings(Settings):
    """Settings of the in-process engine."""

    name: Literal["in-process"] = "in-process"
    mode: Literal["auto", "batched", "one-at-a-time"] = "auto"
    """How the clients of a round train; ``auto`` takes the faster way."""
    memory: int = Field(1024, ge=1)
    """MiB that a batch of clients may take beside the data."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: matrix products in bfloat16, parameters in float32."""


@dataclass(frozen=True, eq=False)
class RoundResult:
    """What a round leaves behind.

    Attributes:
        state, params: the server's.
        replies: in client order.
        models: the model that each reply's client ended with; not kept for longer than the round.
        client_states: the new states of the clients that have one.
        bytes_down, bytes_up: of all clients together.
    """

    state: Params
    params: Params
    replies: Sequence[Reply]
    models: Callable[[int], Params]
    client_states: Mapping[int, Params]
    bytes_down: int
    bytes_up: int


class InProcess:
    """Runs a round: instruct, the clients' rounds, merge."""

    def __init__(self, strategy: Strategy, worker: Worker) -> None:
        self.strategy, self.worker = strategy, worker

    def round(
        self,
        round: int,
        state: Params,
        params: Params,
        client_states: Mapping[int, Params],
        clients: Sequence[int],
    ) -> RoundResult:
        """Run ``round`` (counted from 0) with ``clients``, in ascending order.

        Raises:
            FedUnseenError: a client's update or one of its losses is not finite.
        """
        works = []
        for client in clients:
            own = client_states.get(client, {})
            works.append(Work(client, self.strategy.instruct(state, params, own, round), own))
        done = self.worker.round(works, round)
        for reply, own in done:
            whole = finite(reply.update) and finite(own)
            lost = [name for name, value in sorted(reply.terms.items()) if not math.isfinite(value)]
            if lost or not whole:
                what = f"the loss {lost[0]!r}" if whole else "the update"
                raise FedUnseenError(
                    f"training diverged: {what} of client {reply.client} in round {round + 1} is not finite; "
                    "lower method.lr or scale the features (data.features)"
                )
        replies = [reply for reply, _ in done]
        state, params = self.strategy.merge(state, params, replies, round)
        states = {reply.client: own for reply, own in done if own}
        pooled = self.strategy.pools  # where all data lie in one place, so does the model
        down = 0 if pooled else sum(size_in_bytes(_sent(work.instruction)) for work in works)
        up = 0 if pooled else sum(size_in_bytes(reply.update) for reply in replies)

        def model(place: int) -> Params:
            return self.strategy.local_model(works[place].instruction.params, replies[place].update)

        return RoundResult(state, params, replies, model, states, down, up)


def _sent(told: Instruction) -> list[Tensor]:
    """Return the tensors of an instruction that travel, each once (FedProx's pull is towards where it starts from)."""
    return list({id(value): value for value in (*told.params.values(), *told.extras.values())}.values())
