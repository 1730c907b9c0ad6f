"""f-VAEGAN (Xian et al. 2019, the inductive part of "f-VAEGAN-D2"): its decoder is the generator of
a Wasserstein GAN.

Sizes and losses follow the code of TF-VAEGAN without its feedback, but the encoder's Adam has the
other networks' decay rates, and the weight of the gradient penalty is fixed, as in the papers.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.core.phases import Batch, Context, Phase, Terms, weighted_mean
from fedunseen.core.settings import NamedSettings
from fedunseen.losses import posterior_divergence, precise, reconstruction
from fedunseen.methods.generative import (
    PENALTY,
    Generative,
    GenerativeSettings,
    critic,
    critic_init,
    normal_layer,
)
from fedunseen.methods.networks import linear


class VAEGANSettings(GenerativeSettings):
    """Settings of f-VAEGAN."""

    output: Literal["relu", "sigmoid", "linear"] = "sigmoid"
    """Last activation of the generator, which must fit the features: `linear` where some are
    negative. In `vaegan` and `free`, `sigmoid` is trained by binary cross-entropy and needs
    features in [0, 1]; the others by half the squared error."""
    gamma: float = Field(10.0, ge=0)
    """Weight of the adversarial losses (gamma_D = gamma_G)."""


class VAEGAN(Generative, name="vaegan"):
    """Phases: ``critic`` (several fresh batches), ``generator`` (with the encoder)."""

    Settings: ClassVar[type[NamedSettings]] = VAEGANSettings
    training_only: ClassVar[tuple[str, ...]] = ("critic.*", "encoder.*")
    settings: VAEGANSettings

    def init(self, rng: np.random.Generator) -> Params:
        """Draw generator, encoder and critic."""
        z = self.noise
        hidden = self.hidden
        params = self.generator_init(rng)
        params |= normal_layer("encoder.0", self.width + self.attribute_count, hidden, rng)
        params |= normal_layer("encoder.1", hidden, 2 * z, rng)
        params |= normal_layer("encoder.mean", 2 * z, z, rng) | normal_layer(
            "encoder.logvar", 2 * z, z, rng
        )
        return params | critic_init(self.width, self.attribute_count, hidden, rng)

    def phases(self) -> Sequence[Phase]:
        """Critic, then encoder and generator, in turns."""
        generator = Phase(
            "generator", self.generator_loss, self.adam(), ("generator.*", "encoder.*")
        )
        return self.critic_phase(), generator

    def encode(self, params: Params, features: Tensor, attributes: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and logarithm of the variance (B, z) of the posterior."""
        hidden = torch.cat([features, attributes], dim=-1)
        for layer in ("encoder.0", "encoder.1"):
            hidden = F.leaky_relu(linear(params, layer, hidden), 0.2)
        return precise(linear(params, "encoder.mean", hidden)), precise(
            linear(params, "encoder.logvar", hidden)
        )

    def decode(
        self, params: Params, batch: Batch, context: Context, phase: str
    ) -> tuple[Tensor, Tensor]:
        """Return features (B, d) decoded from the posterior, and its divergence from the noise."""
        mean, logvar = self.encode(
            params, self.features(params, batch["inputs"]), self.described(batch, context)
        )
        noise = mean + torch.exp(0.5 * logvar) * batch[f"{phase}.noise"]
        decoded = self.generate(params, self.condition(batch, context, phase, noise))
        return decoded, posterior_divergence(mean, logvar, batch["weights"])

    def critic_loss(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """Gamma times the Wasserstein loss with gradient penalty."""
        fake, _ = self.decode(params, batch, context, "critic")
        distance, penalty = self.deviations(params, fake, batch, context)
        loss = self.settings.gamma * (distance + PENALTY * penalty)
        return loss, {"critic": loss, "wasserstein": -distance, "penalty": penalty}

    def generator_loss(
        self, params: Params, batch: Batch, context: Context
    ) -> tuple[Tensor, Terms]:
        """Return the negative variational bound less gamma times the critic's value."""
        loss, terms, _ = self.bound(params, batch, context)
        return loss, terms

    def bound(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms, Tensor]:
        """Return the generator's loss, its terms, and the features (B, d) that it generated.

        They are not a ``representation``: models that a strategy contrasts would not decode them
        from the same noise.
        """
        decoded, divergence = self.decode(params, batch, context, "generator")
        real = self.features(params, batch["inputs"])
        weights = batch["weights"]
        error = reconstruction(decoded, real, weights, self.settings.output)
        value = weighted_mean(critic(params, decoded, self.described(batch, context)), weights)
        loss = error + divergence - self.settings.gamma * value
        return loss, {"generator": loss, "reconstruction": error, "divergence": divergence}, decoded
