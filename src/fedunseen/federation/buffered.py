r"""Buffered asynchronous merging (FedBuff, Nguyen et al. 2022), simulated: a "round" is a merge of
``buffer`` updates.

A client that is done begins again at once. Its update may be of a model :math:`\tau` merges old,
and counts :math:`(1 + \tau)^{-a}` of a fresh one. A local update takes the client's factor, drawn
once, times its samples over the mean client's. Who is at work, since when and from
which model is part of the server's state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedunseen.core.errors import FedUnseenError
from fedunseen.core.parameters import ClientStates, Params, under, wire_size, within
from fedunseen.core.random import stream
from fedunseen.federation.in_process import InProcess, InProcessSettings
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


class BufferedSettings(InProcessSettings):
    """Settings of buffered asynchronous merging."""

    name: Literal["buffered"] = "buffered"  # type: ignore[assignment]
    buffer: int = Field(10, ge=1, le=1_000_000)
    """Merge as soon as so many replies have come, K, and count those that come later in a later
    round (FedBuff). Unset: rounds are synchronous, with a `quorum`."""
    staleness: float = Field(0.5, ge=0, le=100)
    """With `buffer`, a: an update of a model t merges old counts (1 + t)^-a of a fresh one; 0: as
    much."""
    spread: float = Field(1.0, ge=0, le=10)
    """Standard deviation of the logarithm of the clients' factors of simulated time, which are
    log-normal with mean 1; 0: all are equally fast."""


def durations(settings: BufferedSettings, samples: Sequence[int], seed: int) -> NDArray[np.float64]:
    """Return (K,) how long each client's local update takes, in local updates of the mean
    client.
    """
    rng = stream(seed, "speeds")
    count = len(samples)
    factors = np.exp(settings.spread * rng.standard_normal(count) - settings.spread**2 / 2)
    return np.asarray(factors * np.array(samples) / max(1.0, float(np.mean(samples))))


class Buffered(InProcess):
    """Runs a merge: let clients finish in the order of simulated time until enough updates have
    come.

    The server's state holds, under ``clock/``, the time ``now``; of every client at work
    ``client``, ``end``, the merge ``version`` that it began after, and of all how many local
    updates they have begun; and ``model/V/`` of the versions that someone still works from.
    """

    Settings = BufferedSettings

    def __init__(
        self, strategy: Strategy, worker: Worker, settings: BufferedSettings, seed: int
    ) -> None:
        super().__init__(strategy, worker)
        self.settings = settings
        self.takes = durations(settings, [len(rows) for rows in worker.samples], seed)

    def round(
        self,
        round: int,
        state: Params,
        params: Params,
        client_states: ClientStates,
        clients: Sequence[int],
    ) -> RoundResult:
        """Run until merge ``round`` (counted from 0), with ``clients``, in ascending order."""
        clock = _Clock.of(within("clock/", state), len(self.takes))
        state = {name: value for name, value in state.items() if not name.startswith("clock/")}
        clock.models[round] = params
        instructions: dict[int, Instruction] = {}
        states: dict[int, Mapping[str, Tensor]] = {}
        came: list[tuple[Reply, Instruction, int]] = []
        down = up = 0
        while len(came) < self.settings.buffer:
            for client in clock.who_begins(clients):
                clock.begin(client, float(self.takes[client]), round)
                instruction = self._instruction(state, clock.models, instructions, round)
                down += bytes_sent(self.strategy, instruction)
            client, version = clock.next_done()
            instruction = self._instruction(state, clock.models, instructions, version)
            client_state = dict(states.get(client, client_states.get(client, {})).items())
            work = Work(
                client, self.strategy.recall(instruction, client_state, version), client_state
            )
            ((reply, after),) = self.worker.round([work], clock.begun[client])
            clock.begun[client] += 1
            if diverging := not_finite(reply, after):
                raise FedUnseenError(diverged(diverging, client, round))
            up += wire_size(reply.update)
            states |= {client: self.kept(after)} if after else {}
            update = self.strategy.decode(reply.update, instruction)
            came.append((replace(reply, update=update), instruction, version))
        # In client order; a client's own in the order of time.
        came.sort(key=lambda arrival: arrival[0].client)
        replies = [reply for reply, _, _ in came]
        ages = [round - version for _, _, version in came]
        arrived = Arrivals(
            replies, lambda place: came[place][1].params, states, down, up, ages=ages,
            staleness=self.settings.staleness, clock={"time": clock.now, "ages": ages},
        )  # fmt: skip
        result = server_step(self.strategy, state, params, arrived, round)
        return replace(result, state=result.state | under("clock/", clock.packed()))

    def _instruction(
        self,
        state: Params,
        models: Mapping[int, Params],
        instructions: dict[int, Instruction],
        version: int,
    ) -> Instruction:
        """Return what clients that begin after ``version`` merges are sent; made once a round."""
        if version not in instructions:
            instructions[version] = self.strategy.instruct(state, models[version], version)
        return instructions[version]


@dataclass
class _Clock:
    """The simulated clock between two merges.

    Attributes:
        now: in local updates of the mean client.
        begun: (K,) local updates that each client has begun.
        work: client at work -> when it is done, the merge that it began after.
        models: merge -> the parameters after it, of those that a client still works from.
    """

    now: float
    begun: list[int]
    work: dict[int, tuple[float, int]]
    models: dict[int, Params]

    @staticmethod
    def of(state: Params, count: int) -> "_Clock":
        """Read the clock of a server's state; before the first merge, all of ``count`` clients are
        free.
        """
        if not state:
            return _Clock(0.0, [0] * count, {}, {})
        columns = (state[name].tolist() for name in ("client", "end", "version"))
        work = {client: (end, version) for client, end, version in zip(*columns, strict=True)}
        models = {version: within(f"model/{version}/", state) for _, version in work.values()}
        return _Clock(float(state["now"]), state["begun"].tolist(), work, models)

    def who_begins(self, clients: Sequence[int]) -> list[int]:
        """Return the free ones of ``clients``; none while a client is done now, which comes
        first.
        """
        if self.work and min(self.work.values())[0] <= self.now:
            return []
        return [client for client in clients if client not in self.work]

    def begin(self, client: int, takes: float, version: int) -> None:
        """Let a client begin a local update of the model after merge ``version``."""
        self.work[client] = (self.now + takes, version)

    def next_done(self) -> tuple[int, int]:
        """Move to when the next client is done; return it and the merge that it began after."""
        client = min(self.work, key=lambda candidate: (self.work[candidate][0], candidate))
        self.now, version = self.work.pop(client)
        return client, version

    def packed(self) -> Params:
        """Return the clock as tensors: see :class:`Buffered`."""
        busy = sorted(self.work)
        ends = [self.work[client][0] for client in busy]
        versions = [self.work[client][1] for client in busy]
        tensors = {
            "now": torch.tensor(self.now, dtype=torch.float64),
            "begun": torch.tensor(self.begun),
            "client": torch.tensor(busy, dtype=torch.int64),
            "end": torch.tensor(ends, dtype=torch.float64),
            "version": torch.tensor(versions, dtype=torch.int64),
        }
        for version in set(versions):
            tensors |= under(f"model/{version}/", self.models[version])
        return tensors
