"""f-CLSWGAN (Xian et al. 2018, "Feature generating networks for zero-shot learning"): FZSL's base
(its section 3.2).

Critic and generator are trained against each other (FZSL Eq. 1), with beta times the cross-entropy
that a softmax of the client's own classes, trained once and then frozen, has on generated features.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedunseen.core.parameters import Params, linear_layer
from fedunseen.core.phases import Batch, Context, Phase, Plan, Terms, epochs_plan, weighted_mean
from fedunseen.core.settings import NamedSettings
from fedunseen.losses import semantic_cross_entropy
from fedunseen.methods.generative import (
    PENALTY,
    Generative,
    GenerativeSettings,
    critic,
    critic_init,
)
from fedunseen.methods.networks import linear

_BATCH = 100  # of the seen-class softmax, as in the official code
_SOFTMAX_LR = 1e-3
SOFTMAX_EPOCHS = 50
"""Passes that the softmax is trained for, once, before the client's first round. FZSL's code does
it every round, from scratch on the same samples."""


class CLSWGANSettings(GenerativeSettings):
    """Settings of f-CLSWGAN."""

    beta: float = Field(0.01, ge=0)
    """Weight of the classification loss of generated features; 0 leaves the softmax out."""


class CLSWGAN(Generative, name="clswgan"):
    """Phases: ``softmax`` (once), ``critic`` (several fresh batches), ``generator``."""

    Settings: ClassVar[type[NamedSettings]] = CLSWGANSettings
    private: ClassVar[tuple[str, ...]] = ("softmax.*",)
    training_only: ClassVar[tuple[str, ...]] = ("critic.*",)
    settings: CLSWGANSettings

    def init(self, rng: np.random.Generator) -> Params:
        """Draw generator, critic and, with ``beta``, the softmax."""
        params = self.generator_init(rng)
        params |= critic_init(self.width, self.attribute_count, self.hidden, rng)
        if self.settings.beta:
            params |= linear_layer("softmax", self.width, len(self.space.names), rng)
        return params

    def phases(self) -> Sequence[Phase]:
        """Train the softmax before the first round, then critic and generator in turns."""
        softmax = Phase(
            "softmax", self.softmax_loss, self.adam(_SOFTMAX_LR), ("softmax.*",),
            before_round=True, once=True, contrasted=False,
        )  # fmt: skip
        turns = (
            self.critic_phase(),
            Phase("generator", self.generator_loss, self.adam(), ("generator.*",)),
        )
        return (softmax, *turns) if self.settings.beta else turns

    def plan(
        self, phase: str, labels: NDArray[np.int64], epochs: int, rng: np.random.Generator
    ) -> Plan:
        """Plan passes for the softmax, turns for the others."""
        if phase == "softmax":
            return epochs_plan(len(labels), _BATCH, SOFTMAX_EPOCHS, rng)
        return super().plan(phase, labels, epochs, rng)

    def softmax_loss(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """Cross-entropy among the classes that the client holds."""
        logits = linear(params, "softmax", self.features(params, batch["inputs"]))
        loss = semantic_cross_entropy(logits, batch["labels"], batch["weights"], context["held"])
        return loss, {"softmax": loss}

    def critic_loss(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """FZSL Eq. 1, the critic's part: the Wasserstein loss with gradient penalty."""
        fake = self.generate(params, self.condition(batch, context, "critic"))
        distance, penalty = self.deviations(params, fake, batch, context)
        loss = distance + PENALTY * penalty
        return loss, {"critic": loss, "wasserstein": -distance, "penalty": penalty}

    def generator_loss(
        self, params: Params, batch: Batch, context: Context
    ) -> tuple[Tensor, Terms]:
        """FZSL Eq. 1, the generator's part: minus the critic's value, and beta times the softmax's
        cross-entropy.
        """
        fake = self.generate(params, self.condition(batch, context, "generator"))
        loss = -weighted_mean(
            critic(params, fake, self.described(batch, context)), batch["weights"]
        )
        terms = {"generator": loss}
        if self.settings.beta:
            logits = linear(params, "softmax", fake)
            told_apart = semantic_cross_entropy(
                logits, batch["labels"], batch["weights"], context["held"]
            )
            loss = loss + self.settings.beta * told_apart
            terms |= {"generator": loss, "classification": told_apart}
        return loss, {**terms, "representation": fake}
