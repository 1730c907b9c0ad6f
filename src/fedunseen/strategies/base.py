"""What a strategy is: pure functions over dictionaries of tensors, ``init / instruct / correct / finish / merge``.

A strategy never sees data, methods or engines. What the server remembers between rounds is its ``state``; what a client
remembers is its ``client_state``, an explicit value that goes into a round and comes out of it, so that any engine can
keep it and a resume can restore it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import Field

from fedunseen.core.parameters import Params, add_scaled, difference
from fedunseen.core.phases import GradientFunction
from fedunseen.core.settings import NamedSettings
from fedunseen.core.trainer import LocalResult

__all__ = ["Instruction", "Reply", "Strategy", "StrategySettings"]


class StrategySettings(NamedSettings):
    """Settings that every strategy has."""

    rounds: int = Field(50, ge=1)
    """Communication rounds, T."""
    local_epochs: int = Field(2, ge=1)
    """Passes over a client's data in a round, E."""
    fraction: float = Field(1.0, gt=0, le=1)
    """Share of the present clients that take part in a round, drawn anew each round; at least one does."""
    weights: Literal["classes", "samples", "uniform"] = "classes"
    """What a client's update counts by (FedZSL Eq. 2: classes; FedAvg: samples), among those of its round."""
    server_lr: float = Field(1.0, gt=0)
    """Step of the server along the merged update, eta in Eq. 2."""
    update_scale: float = Field(1.0, gt=0)
    """Factor on every client's update, beta in Algorithm 1, line 26."""


@dataclass(frozen=True, eq=False)
class Instruction:
    """What a client is given: the parameters to start from and whatever its gradient function needs beside them."""

    params: Params
    extras: Params = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Reply:
    """What leaves a client: its update, counts, and losses for the log; its state stays with it."""

    client: int
    update: Params
    classes: int
    samples: int
    terms: dict[str, float] = field(default_factory=dict)


class Strategy:
    """Federated averaging, and the base of all strategies: they override what they do differently.

    Attributes:
        merges: replies become one model; otherwise every client keeps its own.
        pools: all data are put together at one client before the run (no federation at all).
    """

    Settings: ClassVar[type[StrategySettings]] = StrategySettings
    merges: ClassVar[bool] = True
    pools: ClassVar[bool] = False

    def __init__(self, settings: StrategySettings) -> None:
        self.settings = settings

    def init(self, params: Params) -> Params:
        """Return the server's state before round 0."""
        return {}

    def instruct(self, state: Params, params: Params, client_state: Params, round: int) -> Instruction:
        """Return what a client is sent in ``round`` (counted from 0)."""
        return Instruction(params)

    def correct(self, gradient: GradientFunction) -> GradientFunction:
        """Wrap the gradient function of a local step. Must be pure: it is mapped over clients."""
        return gradient

    def finish(self, instruction: Instruction, result: LocalResult, client_state: Params) -> tuple[Params, Params]:
        """Return a client's update and its state for the next round (FedZSL Algorithm 1, line 26)."""
        return difference(result.params, instruction.params, self.settings.update_scale), client_state

    def merge(self, state: Params, params: Params, replies: Sequence[Reply], round: int) -> tuple[Params, Params]:
        """Merge the replies, in the order given (client order): FedZSL Eq. 2. Returns the new state and parameters."""
        step = self.server_step(round)
        weights = [step * weight for weight in self.reply_weights(replies)]
        return state, add_scaled(params, [reply.update for reply in replies], weights)

    def server_step(self, round: int) -> float:
        """Return the server's learning rate in ``round``."""
        return self.settings.server_lr

    def reply_weights(self, replies: Sequence[Reply]) -> list[float]:
        """Return what each reply counts; the weights of a round sum to one."""
        by = self.settings.weights
        raw = [1 if by == "uniform" else reply.classes if by == "classes" else reply.samples for reply in replies]
        total = sum(raw)
        return [value / total for value in raw]
