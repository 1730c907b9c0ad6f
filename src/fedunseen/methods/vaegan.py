"""f-VAEGAN (Xian et al. 2019, the inductive part of "f-VAEGAN-D2"): its decoder is the generator of a Wasserstein GAN.

Sizes and losses follow the code of TF-VAEGAN without its feedback, but the encoder's Adam has the other networks' decay
rates, and ``adaptive_penalty`` (off by default) reads the last batch of a turn instead of the mean over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.core.phases import SGD, Batch, Context, Phase, Terms, weighted_mean
from fedunseen.core.settings import NamedSettings
from fedunseen.losses import posterior_divergence, precise, reconstruction
from fedunseen.methods.critic import critic, critic_init, normal_layer, wasserstein
from fedunseen.methods.generative import Generative, GenerativeSettings
from fedunseen.methods.networks import linear


class VAEGANSettings(GenerativeSettings):
    """Settings of f-VAEGAN."""

    name: Literal["vaegan"] = "vaegan"
    output: Literal["relu", "sigmoid", "linear"] = "sigmoid"
    """Last activation of the generator: `sigmoid` is trained by binary cross-entropy and needs features in [0, 1];
    the others by half the squared error."""
    gamma: float = Field(10.0, ge=0)
    """Weight of the adversarial losses (gamma_D = gamma_G)."""
    encoded_noise: bool = True
    """Features for the critic are decoded from the encoder's posterior; otherwise from noise alone."""
    adaptive_penalty: bool = False
    """Adapt the weight of the gradient penalty as the code of TF-VAEGAN does: after a turn whose penalty is above 1.05,
    it grows by a tenth, after one below 1.001 it shrinks by a tenth. The papers keep it fixed."""


class VAEGAN(Generative):
    """Phases: ``critic`` (several fresh batches), perhaps ``penalty``, ``generator`` (with the encoder)."""

    Settings: ClassVar[type[NamedSettings]] = VAEGANSettings
    training_only: ClassVar[tuple[str, ...]] = ("critic.*", "encoder.*")
    settings: VAEGANSettings

    def init(self, rng: np.random.Generator) -> Params:
        """Draw generator, encoder and critic."""
        z, hidden = self.noise, self.hidden
        params = self.generator_init(rng)
        params |= normal_layer("encoder.0", self.width + self.attribute_count, hidden, rng)
        params |= normal_layer("encoder.1", hidden, 2 * z, rng)
        params |= normal_layer("encoder.mean", 2 * z, z, rng) | normal_layer("encoder.logvar", 2 * z, z, rng)
        params |= critic_init(self.width, self.attribute_count, hidden, rng)
        if self.settings.adaptive_penalty:
            params["critic.penalty"] = torch.zeros(())  # how many tenths it has grown by, in logarithms
        return params

    def phases(self) -> Sequence[Phase]:
        """Critic, then the penalty's weight, then encoder and generator, in turns."""
        critic_phase = Phase(
            "critic", self.critic_loss, self.adam(), ("critic.[01].*",),
            repeats=self.settings.critic_steps, fresh=True, contrasted=False,
        )  # fmt: skip
        penalty = Phase("penalty", self.penalty_loss, SGD(1.0), ("critic.penalty",), contrasted=False)
        generator = Phase("generator", self.generator_loss, self.adam(), ("generator.*", "encoder.*"))
        return (critic_phase, penalty, generator) if self.settings.adaptive_penalty else (critic_phase, generator)

    def encode(self, params: Params, features: Tensor, attributes: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and logarithm of the variance (B, z) of the posterior."""
        hidden = torch.cat([features, attributes], dim=-1)
        for layer in ("encoder.0", "encoder.1"):
            hidden = F.leaky_relu(linear(params, layer, hidden), 0.2)
        return precise(linear(params, "encoder.mean", hidden)), precise(linear(params, "encoder.logvar", hidden))

    def fake(self, params: Params, batch: Batch, context: Context, phase: str) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return generated features, reconstructed ones where ``phase`` needs them, and the posterior's divergence."""
        real, attributes = self.features(params, batch["inputs"]), self.described(batch, context)
        if phase == "critic" and not self.settings.encoded_noise:
            return self.generate(params, self.condition(batch, context, phase)), None, torch.zeros(())
        mean, logvar = self.encode(params, real, attributes)
        noise = mean + torch.exp(0.5 * logvar) * batch[f"{phase}.noise"]
        decoded = self.generate(params, self.condition(batch, context, phase, noise))
        divergence = posterior_divergence(mean, logvar, batch["weights"])
        if self.settings.encoded_noise:
            return decoded, decoded, divergence
        return self.generate(params, self.condition(batch, context, phase)), decoded, divergence

    def deviations(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Tensor]:
        """Return the two parts of the critic's loss."""
        real, attributes = self.features(params, batch["inputs"]), self.described(batch, context)
        fake, _, _ = self.fake(params, batch, context, "critic")
        return wasserstein(params, real, fake, attributes, batch["critic.mix"], batch["weights"])

    def critic_loss(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """Gamma times the Wasserstein loss with gradient penalty."""
        distance, penalty = self.deviations(params, batch, context)
        weight = self.settings.penalty * torch.ones_like(penalty)
        if "critic.penalty" in params:
            weight = weight * 1.1 ** params["critic.penalty"]
        loss = self.settings.gamma * (distance + weight * penalty)
        return loss, {"critic": loss, "wasserstein": -distance, "penalty": penalty}

    def penalty_loss(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """Return a loss whose gradient is -1, 1 or 0: SGD with rate 1 adds a tenth, takes one away, or does neither."""
        _, penalty = self.deviations(params, batch, context)
        up, down = (penalty > 1.05).to(penalty.dtype), (penalty < 1.001).to(penalty.dtype)
        return -params["critic.penalty"] * (up - down).detach(), {}

    def generator_loss(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """Return the negative variational bound less gamma times the critic's value."""
        loss, terms, _ = self.bound(params, batch, context)
        return loss, terms

    def bound(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms, Tensor]:
        """Return the generator's loss, its terms, and the features (B, d) that it generated.

        They are not a ``representation``: models that a strategy contrasts would not decode them from the same noise.
        """
        fake, decoded, divergence = self.fake(params, batch, context, "generator")
        assert decoded is not None  # only the critic's phase goes without
        real, weights = self.features(params, batch["inputs"]), batch["weights"]
        error = reconstruction(decoded, real, weights, self.settings.output)
        value = weighted_mean(critic(params, fake, self.described(batch, context)), weights)
        loss = error + divergence - self.settings.gamma * value
        terms = {"generator": loss, "reconstruction": error, "divergence": divergence}
        return loss, terms, fake
