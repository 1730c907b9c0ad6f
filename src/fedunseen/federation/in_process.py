"""The default engine: all clients in this process, batched where that is faster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Literal

from torch import Tensor

from fedunseen.core.errors import FedUnseenError
from fedunseen.core.parameters import ClientStates, Params, size_in_bytes, wire_size
from fedunseen.core.settings import NamedSettings
from fedunseen.core.tensor_store import TensorStore
from fedunseen.federation.engine import Engine, EngineSettings, Masking
from fedunseen.federation.server_step import (
    Arrivals,
    RoundResult,
    bytes_sent,
    diverged,
    not_finite,
    server_step,
)
from fedunseen.federation.worker import Work, Worker
from fedunseen.strategies import Instruction, Reply, Strategy

# clients in a round whose updates stay in memory, and in all whose states do; of more, they go to disk
_MANY = 100
# the part of its memory that an engine takes for updates on their way to disk is one in so many
_PART = 16


class InProcessSettings(NamedSettings, EngineSettings):
    """Settings of the in-process engine."""

    name: Literal["in-process"] = "in-process"
    mode: Literal["auto", "batched", "one-at-a-time"] = "auto"
    """How the clients of a round train; ``auto`` takes the faster way."""


class InProcess(Engine):
    """Runs a round: instruct once for all, recall for each client, the clients' rounds, merge.

    Args:
        strategy: what is sent and how replies merge.
        worker: does the clients' rounds.
        drop_non_finite: drop a reply that is not finite, and continue: for runs in which a client
            may be malicious.
        masks: add the replies up under masks, as parties elsewhere would; None: the server sees
            each of them.
    """

    Settings: ClassVar[type[EngineSettings]] = InProcessSettings

    def __init__(
        self,
        strategy: Strategy,
        worker: Worker,
        drop_non_finite: bool = False,
        masks: Masking | None = None,
    ) -> None:
        self.strategy = strategy
        self.worker = worker
        self.drop_non_finite = drop_non_finite
        self.masks = masks

    @cached_property
    def store(self) -> TensorStore:
        """Where updates and states of many clients are."""
        return TensorStore(self.worker.device)

    def round(
        self,
        round: int,
        state: Params,
        params: Params,
        client_states: ClientStates,
        clients: Sequence[int],
    ) -> RoundResult:
        """Run ``round`` (counted from 0) with ``clients``, in ascending order.

        Of more than 100 clients in the round, updates are read from disk when they are asked for,
        so that memory holds those of a part of the clients at once, for any rule of merging. So are
        the states of more than 100 clients in all; a checkpoint then writes those that have
        changed.

        Raises:
            FedUnseenError: a client's update or one of its losses is not finite, unless it is
                dropped.
            QuorumError: too few clients are there for a sum under masks.
        """
        instruction = self.strategy.instruct(state, params, round)
        many = len(clients) > _MANY
        dropped: dict[int, str] = {}
        replies: list[Reply] = []
        states: dict[int, Mapping[str, Tensor]] = {}
        up = 0
        model_size = max(
            1, size_in_bytes(instruction.params), size_in_bytes(self.strategy.expects(instruction))
        )
        part = max(1, self.worker.memory // (_PART * model_size)) if many else max(1, len(clients))
        for start in range(0, len(clients), part):
            for reply, client_state in self._part(
                clients[start : start + part], instruction, client_states, round
            ):
                up += wire_size(reply.update)
                if diverging := not_finite(reply, client_state):
                    if not self.drop_non_finite:
                        raise FedUnseenError(diverged(diverging, reply.client, round))
                    dropped[reply.client] = f"{diverging} is not finite"
                    continue
                update = self.strategy.decode(reply.update, instruction)
                if self.drop_non_finite and (
                    why := self.strategy.check(replace(reply, update=update))
                ):
                    dropped[reply.client] = why
                    continue
                replies.append(replace(reply, update=self.store.put(update) if many else update))
                if client_state:
                    states[reply.client] = self.kept(client_state)
        down = len(clients) * bytes_sent(self.strategy, instruction)
        up = 0 if self.strategy.pools else up
        arrived = Arrivals(replies, lambda place: instruction.params, states, down, up, dropped)
        if self.masks is not None:
            arrived = arrived.hidden(
                self.masks.hidden_sum(self.strategy, instruction, replies, round)
            )
        return server_step(self.strategy, state, params, arrived, round)

    def kept(self, client_state: Params) -> Mapping[str, Tensor]:
        """Return what a client keeps as it is kept until its next round: on disk where there are
        many clients.
        """
        return self.store.put(client_state) if len(self.worker.samples) > _MANY else client_state

    def _part(
        self,
        clients: Sequence[int],
        instruction: Instruction,
        client_states: ClientStates,
        round: int,
    ) -> Iterable[tuple[Reply, Params]]:
        """Let some clients do their round."""
        works = []
        for client in clients:
            client_state = dict(client_states.get(client, {}).items())
            works.append(
                Work(client, self.strategy.recall(instruction, client_state, round), client_state)
            )
        return self.worker.round(works, round) if works else []
