"""The default engine: all clients in this process, batched where that is faster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fedunseen.core.errors import FedUnseenError
from fedunseen.core.parameters import ClientStates, Params, size_in_bytes, wire_size
from fedunseen.core.settings import NamedSettings
from fedunseen.core.tensor_store import TensorStore
from fedunseen.engines.local.worker import Work, Worker
from fedunseen.engines.round import Arrivals, RoundResult, bytes_sent, diverged, hidden_sum, not_finite, server_step
from fedunseen.strategies import Instruction, Reply, Strategy

if TYPE_CHECKING:  # the libraries of cryptography are loaded where they are used
    from fedunseen.secagg.masks import Masks

_MANY = 100  # clients in a round whose updates stay in memory, and in all whose states do; of more, they go to disk
_PART = 16  # the part of its memory that an engine takes for updates on their way to disk is one in so many


class EngineSettings(NamedSettings):
    """Settings of the in-process engine."""

    name: Literal["in-process"] = "in-process"
    mode: Literal["auto", "batched", "one-at-a-time"] = "auto"
    """How the clients of a round train; ``auto`` takes the faster way."""
    memory: int = Field(256, ge=1)
    """MiB that a batch of clients may take beside the data. More than the default is faster on a GPU only."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: matrix products in bfloat16, parameters in float32."""


class InProcess:
    """Runs a round: instruct once for all, recall for each client, the clients' rounds, merge.

    Args:
        strategy: what is sent and how replies merge.
        worker: does the clients' rounds.
        drop_non_finite: drop a reply that is not finite, and continue: for runs in which a client may be malicious.
        masks: add the replies up under masks, as parties elsewhere would; None: the server sees each of them.
    """

    Settings: ClassVar[type[EngineSettings]] = EngineSettings

    def __init__(
        self, strategy: Strategy, worker: Worker, drop_non_finite: bool = False, masks: Masks | None = None
    ) -> None:
        self.strategy, self.worker, self.drop_non_finite, self.masks = strategy, worker, drop_non_finite, masks

    @cached_property
    def store(self) -> TensorStore:
        """Where updates and states of many clients are."""
        return TensorStore(self.worker.device)

    def connect(self, meeting: object) -> None:
        """Do nothing: all clients are in this process."""

    def finish(self, result: Mapping[str, Any], params: Params) -> None:
        """Do nothing: no party waits for the result."""

    finish_late = finish

    def round(
        self, round: int, state: Params, params: Params, client_states: ClientStates, clients: Sequence[int]
    ) -> RoundResult:
        """Run ``round`` (counted from 0) with ``clients``, in ascending order.

        Of more than 100 clients in the round, updates are read from disk when they are asked for, so that memory holds
        those of a part of the clients at once, for any rule of merging. So are the states of more than 100 clients
        in all; a checkpoint then writes those that have changed.

        Raises:
            FedUnseenError: a client's update or one of its losses is not finite, unless it is dropped.
            QuorumError: too few clients are there for a sum under masks.
        """
        instruction = self.strategy.instruct(state, params, round)
        many = len(clients) > _MANY
        dropped: dict[int, str] = {}
        replies: list[Reply] = []
        states: dict[int, Mapping[str, Tensor]] = {}
        up = 0
        model_size = max(1, size_in_bytes(instruction.params), size_in_bytes(self.strategy.expects(instruction)))
        part = max(1, self.worker.memory // (_PART * model_size)) if many else max(1, len(clients))
        for start in range(0, len(clients), part):
            for reply, own in self._part(clients[start : start + part], instruction, client_states, round):
                up += wire_size(reply.update)
                if what := not_finite(reply, own):
                    if not self.drop_non_finite:
                        raise FedUnseenError(diverged(what, reply.client, round))
                    dropped[reply.client] = f"{what} is not finite"
                    continue
                update = self.strategy.decode(reply.update, instruction)
                if self.drop_non_finite and (why := self.strategy.check(replace(reply, update=update))):
                    dropped[reply.client] = why
                    continue
                replies.append(replace(reply, update=self.store.put(update) if many else update))
                if own:
                    states[reply.client] = self.kept(own)
        down = len(clients) * bytes_sent(self.strategy, instruction)
        up = 0 if self.strategy.pools else up
        arrived = Arrivals(replies, lambda place: instruction.params, states, down, up, dropped)
        if self.masks is not None:
            arrived = arrived.hidden(hidden_sum(self.masks, self.strategy, instruction, replies, round))
        return server_step(self.strategy, state, params, arrived, round)

    def kept(self, own: Params) -> Mapping[str, Tensor]:
        """Return what a client keeps as it is kept until its next round: on disk where there are many clients."""
        return self.store.put(own) if len(self.worker.samples) > _MANY else own

    def _part(
        self, clients: Sequence[int], instruction: Instruction, client_states: ClientStates, round: int
    ) -> Iterable[tuple[Reply, Params]]:
        """Let some clients do their round."""
        works = []
        for client in clients:
            own = dict(client_states.get(client, {}).items())
            works.append(Work(client, self.strategy.recall(instruction, own, round), own))
        return self.worker.round(works, round) if works else []
