"""What a method is: parameters, a schedule of phases, and scores of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.core.phases import SGD, Context, Phase, Plan, epochs_plan
from fedunseen.core.settings import NamedSettings
from fedunseen.data import ClassSpace

__all__ = ["Method", "MethodSettings", "class_mask"]


class MethodSettings(NamedSettings):
    """Settings that every trained method has: its optimiser (SGD) and batches."""

    lr: float = Field(0.01, gt=0)
    """Learning rate of the clients' SGD (lambda in FedZSL's Algorithm 1)."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum; its state starts anew each round."""
    weight_decay: float = Field(1e-5, ge=0)
    """Weight decay."""
    batch_size: int = Field(64, ge=1)
    """Samples a step (B)."""


class Method:
    """Base of all methods: subclass, and register the class under its name (``fedunseen.methods`` entry points).

    A method never sees clients, rounds or strategies. It is made once a run, from its settings, the class space, the
    scaled semantics and the width of the features.

    Attributes:
        zero_shot: can score classes that it was never trained on, from their semantics alone.
        batched: its losses are pure, so that the clients of a round can train as one batch.
        trained: has phases; otherwise :meth:`solve` gives its parameters in closed form.
    """

    Settings: ClassVar[type[NamedSettings]] = MethodSettings
    zero_shot: ClassVar[bool] = True
    batched: ClassVar[bool] = True
    trained: ClassVar[bool] = True

    def __init__(self, settings: MethodSettings, space: ClassSpace, semantics: Tensor, width: int) -> None:
        self.settings, self.space, self.semantics, self.width = settings, space, semantics, width

    def init(self, rng: np.random.Generator) -> Params:
        """Draw the parameters of round 0."""
        raise TypeError(f"{type(self).__name__} must say how it is initialised")

    def phases(self) -> Sequence[Phase]:
        """Return the schedule of a local update; none for a method in closed form."""
        return ()

    def context(self) -> Context:
        """Return what every client's loss knows."""
        return {}

    def client_context(self, classes: NDArray[np.int64]) -> Context:
        """Return what one client's loss knows, from the ids of the classes that it holds."""
        return {}

    def plan(self, phase: str, labels: NDArray[np.int64], epochs: int, rng: np.random.Generator) -> Plan:
        """Plan the batches of a local update over samples with these ``labels`` (n,).

        ``phase`` is the name of a phase that runs before the round, or ``""`` for those that take turns.
        """
        return epochs_plan(len(labels), self.settings.batch_size, epochs, rng)

    def solve(self, inputs: Tensor, labels: Tensor) -> Params:
        """Return the parameters in closed form, for a method without phases."""
        raise TypeError(f"{type(self).__name__} is trained, not solved")

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Score classes: inputs (n, d) and class semantics (C, attributes) to (n, C); the highest is the answer."""
        raise TypeError(f"{type(self).__name__} must say how it scores classes")

    def optimiser(self) -> SGD:
        """Return the optimiser that the settings name."""
        s = self.settings
        return SGD(s.lr, s.momentum, s.weight_decay)


def class_mask(choice: str, space: ClassSpace, local: NDArray[np.int64]) -> Tensor:
    """Say which classes the denominator of a loss runs over: a named option, since the papers' equations leave it open.

    Args:
        choice: ``all``: every class of the space, unseen ones too (FedZSL Eq. 3 as printed); ``seen``: those that some
            client trains on; ``local``: those that the client itself holds.
        space: the class space.
        local: ids of the classes that the client holds.

    Returns:
        (C,) bool.
    """
    chosen = {"all": np.union1d(space.seen, space.unseen), "seen": space.seen, "local": local}[choice]
    mask = torch.zeros(len(space.names), dtype=torch.bool)
    mask[torch.from_numpy(chosen)] = True
    return mask
