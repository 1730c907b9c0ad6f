r"""Buffered asynchronous merging (FedBuff, Nguyen et al. 2022), simulated: a "round" is a merge of ``buffer`` updates.

A client that is done begins again at once. Its update may be of a model :math:`\tau` merges old, and counts
:math:`(1 + \tau)^{-a}` of a fresh one. A local update takes the client's factor, drawn once from ``speeds``, times its
samples over the mean client's. Who is at work, since when and from which model is part of the server's state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedunseen.core.errors import FedUnseenError
from fedunseen.core.parameters import ClientStates, Params, under, wire_size, within
from fedunseen.core.random import stream
from fedunseen.engines.local.in_process import EngineSettings, InProcess
from fedunseen.engines.local.worker import Work, Worker
from fedunseen.engines.round import Arrivals, RoundResult, bytes_sent, diverged, not_finite, server_step
from fedunseen.strategies import Instruction, Reply, Strategy


class BufferedSettings(EngineSettings):
    """Settings of buffered asynchronous merging."""

    name: Literal["buffered"] = "buffered"  # type: ignore[assignment]
    buffer: int = Field(10, ge=1, le=1_000_000)
    """Updates that the server waits for before it merges them, K."""
    staleness: float = Field(0.5, ge=0, le=100)
    """a: an update of a model t merges old counts (1 + t)^-a of a fresh one; 0: as much."""
    speeds: Literal["equal", "log-normal", "exponential"] = "log-normal"
    """What the clients' factors of simulated time are drawn from, with mean 1."""
    spread: float = Field(1.0, ge=0, le=10)
    """log-normal: standard deviation of the factors' logarithm."""


def durations(settings: BufferedSettings, samples: Sequence[int], seed: int) -> NDArray[np.float64]:
    """Return (K,) how long each client's local update takes, in local updates of the mean client."""
    rng, count = stream(seed, "speeds"), len(samples)
    if settings.speeds == "equal":
        factors = np.ones(count)
    elif settings.speeds == "exponential":
        factors = rng.exponential(size=count)
    else:
        factors = np.exp(settings.spread * rng.standard_normal(count) - settings.spread**2 / 2)
    return np.asarray(factors * np.array(samples) / max(1.0, float(np.mean(samples))))


class Buffered(InProcess):
    """Runs a merge: let clients finish in the order of simulated time until enough updates have come.

    The server's state holds, under ``clock/``, the time ``now``; of every client at work ``client``, ``end``, the merge
    ``version`` that it began after, and of all how many local updates they have begun; and ``model/V/`` of the versions
    that someone still works from.
    """

    Settings = BufferedSettings

    def __init__(self, strategy: Strategy, worker: Worker, settings: BufferedSettings, seed: int) -> None:
        super().__init__(strategy, worker)
        self.settings = settings
        self.takes = durations(settings, [len(rows) for rows in worker.samples], seed)

    def round(
        self, round: int, state: Params, params: Params, client_states: ClientStates, clients: Sequence[int]
    ) -> RoundResult:
        """Run until merge ``round`` (counted from 0), with ``clients``, in ascending order."""
        clock = within("clock/", state)
        state = {name: value for name, value in state.items() if not name.startswith("clock/")}
        now = float(clock["now"]) if clock else 0.0
        begun = clock["begun"].tolist() if clock else [0] * len(self.takes)
        work: dict[int, tuple[float, int]] = {}  # client -> when it is done, the version that it began with
        if clock:
            columns = (clock[name].tolist() for name in ("client", "end", "version"))
            work = {client: (end, version) for client, end, version in zip(*columns, strict=True)}
        models = {version: within(f"model/{version}/", clock) for _, version in work.values()} | {round: params}
        instructions: dict[int, Instruction] = {}
        states: dict[int, Mapping[str, Tensor]] = {}
        came: list[tuple[Reply, Instruction, int]] = []
        down = up = 0
        while len(came) < self.settings.buffer:
            free = [client for client in clients if client not in work]
            if free and (not work or min(work.values())[0] > now):  # time moves on: who is free begins first
                for client in free:
                    work[client] = (now + float(self.takes[client]), round)
                    down += bytes_sent(self.strategy, self._instruction(state, models, instructions, round))
                continue
            client = min(work, key=lambda one: (work[one][0], one))
            now, version = work.pop(client)
            instruction = self._instruction(state, models, instructions, version)
            own = dict(states.get(client, client_states.get(client, {})).items())
            recalled = self.strategy.recall(instruction, own, version)
            ((reply, after),) = self.worker.round([Work(client, recalled, own)], begun[client])
            begun[client] += 1
            if what := not_finite(reply, after):
                raise FedUnseenError(diverged(what, client, round))
            up += wire_size(reply.update)
            states |= {client: self.kept(after)} if after else {}
            came.append((replace(reply, update=self.strategy.decode(reply.update, instruction)), instruction, version))
        came.sort(key=lambda one: one[0].client)  # in client order; a client's own in the order of time
        replies = [reply for reply, _, _ in came]
        ages = [round - version for _, _, version in came]
        arrived = Arrivals(
            replies, lambda place: came[place][1].params, states, down, up, ages=ages,
            staleness=self.settings.staleness, clock={"time": now, "ages": ages},
        )  # fmt: skip
        result = server_step(self.strategy, state, params, arrived, round)
        return replace(result, state=result.state | under("clock/", _clock(now, begun, work, models)))

    def _instruction(
        self, state: Params, models: Mapping[int, Params], instructions: dict[int, Instruction], version: int
    ) -> Instruction:
        """Return what clients that begin after ``version`` merges are sent; made once a round."""
        if version not in instructions:
            instructions[version] = self.strategy.instruct(state, models[version], version)
        return instructions[version]


def _clock(
    now: float, begun: Sequence[int], work: Mapping[int, tuple[float, int]], models: Mapping[int, Params]
) -> Params:
    """Return the simulated clock as tensors: see :class:`Buffered`."""
    left = sorted(work)
    clock = {
        "now": torch.tensor(now, dtype=torch.float64),
        "begun": torch.tensor(begun),
        "client": torch.tensor(left, dtype=torch.int64),
        "end": torch.tensor([work[client][0] for client in left], dtype=torch.float64),
        "version": torch.tensor([work[client][1] for client in left], dtype=torch.int64),
    }
    for version in {version for _, version in work.values()}:
        clock |= under(f"model/{version}/", models[version])
    return clock
