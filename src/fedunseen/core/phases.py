"""Phases: a local update is a schedule of phases, each a pure loss with its own parameters and
optimiser.

One phase covers FedZSL (all parameters, one loss); several cover adversarial methods (a critic five
times, then a generator). Losses are pure functions of their arguments, so that the trainer can
differentiate them for one client or, with ``torch.func.vmap``, for all clients of a round at once.
Random numbers of a loss arrive in the batch.
"""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fedunseen.core.parameters import Params, is_statistic
from fedunseen.core.sizes import PLAN, check_size

Batch = dict[str, Tensor]
"""``inputs`` (B, d), ``labels`` (B,), ``weights`` (B,): 1, or 0 where a sample is dropped; and a
plan's extras.
"""

Context = dict[str, Tensor]
"""What a loss knows beside its batch: semantics, similarities, masks; shared by all clients or a
client's own.
"""

PEER_COUNTS = "peers_count"
"""In the context beside a peer model that does not count in every round: 1, or 0 before the first
in which it does.
"""

Terms = dict[str, Tensor]
"""The loss and its named parts, each a scalar, for the log."""

Loss = Callable[[Params, Batch, Context], tuple[Tensor, Terms]]
"""``(params, batch, context) -> (scalar, terms)``. The term ``representation``, if there is one, is
not logged: it is the batch's features (B, d), so that a strategy that contrasts them need not
compute them again."""

Represent = Callable[[Params, Batch, Context], Tensor]
"""``(params, batch, context) -> (B, d)``: what a strategy contrasts, computed as in evaluation."""


class Step(NamedTuple):
    """What one gradient step sees beside the parameters that it updates."""

    batch: Batch
    context: Context
    extras: Params  # what the strategy gave this client: the global model, control variates, ...
    fixed: Params  # parameters outside the phase's group


GradientFunction = Callable[[Params, Step], tuple[Params, Terms]]
"""Gradients of the loss by the phase's parameters. Strategies wrap it (``Strategy.correct``)."""


POISONED = "poisoned"
"""The extra of a plan that marks the places of a batch that an attack has filled: 1, else 0. It is
only counted.
"""


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum and weight decay: the update rule of
    ``torch.optim.SGD``.

    Parameters and state, of one client or stacked, are changed in place, which saves memory and
    time. Gradients are only read: two parameters may share one.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def init(self, params: Mapping[str, Tensor]) -> list[list[Tensor]]:
        """Return the momentum before the first step: zeros."""
        return [[torch.zeros_like(value) for value in params.values()]] if self.momentum else []

    def step_length(self, steps: int) -> float:
        """Return how far ``steps`` steps along a constant gradient of one move a parameter: lr * a.

        With momentum rho, a = (steps - rho (1 - rho^steps) / (1 - rho)) / (1 - rho): FedNova's
        ||a||_1.
        """
        rho = self.momentum
        return self.lr * (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: list[list[Tensor]], step: int
    ) -> None:
        """Take one step in place; ``step`` counts from 1.

        The fused update passes over memory once, in 0.4 of the time. It rounds numbers beyond its
        last vector of 16 differently: only where rows have no such rest does a client get the same
        bits alone as among others.
        """
        fused = [value.shape[-1:].numel() % 16 == 0 for value in params]
        for kind in (True, False):
            chosen = (
                [v for v, is_fused in zip(of, fused, strict=True) if is_fused is kind]
                for of in (params, grads, *state)
            )
            values, gradients, *velocity = chosen
            if values:
                sgd(
                    values,
                    _laid_out(gradients, values) if kind else gradients,
                    [*velocity[0]] if velocity else [None] * len(values),
                    fused=kind,
                    foreach=not kind,
                    lr=self.lr,
                    momentum=self.momentum,
                    weight_decay=self.weight_decay,
                    dampening=0.0,
                    nesterov=False,
                    maximize=False,
                )


@dataclass(frozen=True)
class Adam:
    """Adam with weight decay added to the gradient: the update rule of ``torch.optim.Adam``."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def init(self, params: Mapping[str, Tensor]) -> list[list[Tensor]]:
        """Return the state of the first step."""
        return [[torch.zeros_like(value) for value in params.values()] for _ in range(2)]

    def step_length(self, steps: int) -> float:
        """Return how far ``steps`` steps along a constant gradient move a parameter of any size: lr
        * steps.
        """
        return self.lr * steps

    def update(
        self, params: list[Tensor], grads: list[Tensor], state: list[list[Tensor]], step: int
    ) -> None:
        """Take one step in place; ``step`` counts from 1."""
        (first, second), (beta1, beta2) = state, self.betas
        before = [torch.tensor(step - 1.0, device=value.device) for value in params]
        adam(
            params,
            _laid_out(grads, params),
            first,
            second,
            [],
            before,
            fused=True,
            lr=self.lr,
            beta1=beta1,
            beta2=beta2,
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )


def _laid_out(grads: list[Tensor], params: list[Tensor]) -> list[Tensor]:
    """Return gradients laid out in memory as the parameters are, which fused updates (2.4 times as
    fast) need.
    """
    pairs = zip(grads, params, strict=True)
    return [
        g if g.stride() == value.stride() else torch.empty_like(value).copy_(g)
        for g, value in pairs
    ]


Optimiser = SGD | Adam


@dataclass(frozen=True)
class Phase:
    """One part of a local update.

    Attributes:
        name: for the log; its terms are logged under their own names.
        loss: pure; returns the scalar to minimize and its named parts.
        optimiser: fresh at the start of every round.
        updates: patterns (``fnmatch``) of the parameters that this phase changes.
        repeats: how often it runs before the next phase's turn, each time on a batch of its own (a
            critic's steps); the phases after it continue with the last one.
        before_round: run over a plan of its own before the other phases start (a classifier that
            must exist first).
        once: it runs before the first round that a client takes part in, and not before later ones
            (only with ``before_round``). The parameters that it trains have to stay with the
            client.
        contrasted: MOON, and other strategies that contrast representations, add their term to this
            phase's loss.
        among: says of a parameter's name whether it may change in this phase, beside ``updates``;
            None: all may.
    """

    name: str
    loss: Loss
    optimiser: Optimiser
    updates: Sequence[str] = ("*",)
    repeats: int = 1
    before_round: bool = False
    once: bool = False
    contrasted: bool = True
    among: Callable[[str], bool] | None = None

    def owns(self, name: str) -> bool:
        """Say whether this phase updates the parameter ``name``; no phase updates running
        statistics.
        """
        if is_statistic(name) or (self.among is not None and not self.among(name)):
            return False
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.updates)


@dataclass(frozen=True, eq=False)
class Plan:
    """Which of a client's samples each step sees, drawn before the round from the client's own
    stream.

    Attributes:
        index: (steps, batch) positions among the client's samples.
        weight: (steps, batch) 1, or 0 for a place that only pads a short batch.
        extras: name -> (steps, batch, ...) other values of a batch, one for each of its places.
        draws: step -> name -> (batch, ...): extras too large to hold for all steps at once, such as
            a generator's noise. Two calls with the same step return the same numbers.
    """

    index: NDArray[np.int64]
    weight: NDArray[np.float32]
    extras: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    draws: Callable[[int], Mapping[str, NDArray[np.float32]]] | None = None

    @property
    def steps(self) -> int:
        """The number of batches."""
        return len(self.index)


def draws_of(
    rng: np.random.Generator,
    batch: int,
    shapes: Mapping[str, tuple[int, ...]],
    uniform: Sequence[str] = (),
) -> Callable[[int], dict[str, NDArray[np.float32]]]:
    """Return a plan's ``draws`` of (batch, *shape): standard normal numbers, or for ``uniform``
    names from U(0, 1).
    """
    key = rng.integers(2**63, size=2, dtype=np.uint64)

    def draws(step: int) -> dict[str, NDArray[np.float32]]:
        # The counter's third word: a step would have to draw 2^128 numbers to run into the next
        # one's.
        generator = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, step, 0]))
        return {
            name: generator.random((batch, *shape), dtype=np.float32)
            if name in uniform
            else generator.standard_normal((batch, *shape), dtype=np.float32)
            for name, shape in shapes.items()
        }

    return draws


def epochs_plan(samples: int, batch_size: int, epochs: int, rng: np.random.Generator) -> Plan:
    """Plan ``epochs`` passes over all samples in a new random order each; the last batch of a pass
    may be short.
    """
    steps = -(-samples // batch_size)
    check_size(
        "a client's round",
        epochs * steps * batch_size,
        PLAN,
        "lower strategy.local_epochs or method.batch_size",
    )
    index = np.zeros((epochs, steps * batch_size), dtype=np.int64)
    weight = np.zeros((epochs, steps * batch_size), dtype=np.float32)
    for epoch in range(epochs):
        index[epoch, :samples] = rng.permutation(samples)
    weight[:, :samples] = 1.0
    shape = (epochs * steps, batch_size)
    return Plan(index.reshape(shape), weight.reshape(shape))


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Return the mean of ``values`` (B,), each as much as its weight (B,) from 0; 0 if all weights
    are 0. A value of weight 0 may be anything, NaN as well.
    """
    total = weights.sum()
    kept = torch.where(weights == 0, 0.0, values * weights)
    return kept.sum() / torch.where(total > 0, total, 1.0)
