"""FREE (Chen et al. 2021, "Feature refinement for generalized zero-shot learning"): f-VAEGAN with
refined features.

A refining network predicts attributes, with SAMC (a margin loss around class centres) and a
semantic cycle. Classifiers see feature, hidden layer and prediction. Unlike in the official code,
one step on real features ends a turn, instead of the critic and generator training this network,
and classifiers see the mean instead of a draw.
"""

import warnings
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.core.phases import Batch, Context, Phase, Plan, Terms
from fedunseen.core.settings import NamedSettings
from fedunseen.losses import margin_loss, weighted_l1
from fedunseen.methods.generative import normal_layer
from fedunseen.methods.networks import linear
from fedunseen.methods.vaegan import VAEGAN, VAEGANSettings

PASSES = 2
"""Passes over the data that count as one epoch (``loop`` in the official code)."""
_REFINE_LR = 1e-4  # of the refining network and the centres; the official code gives these ``lr``
_CENTER = 0.5  # weight of SAMC


class FREESettings(VAEGANSettings):
    """Settings of FREE; those of the refinement are as for AWA2 in the official code."""

    critic_steps: int = Field(1, ge=1)
    """Steps of the critic for each of the generator, on batches of their own."""
    margin: float = Field(50.0, ge=0)
    """Delta of SAMC."""
    balance: float = Field(0.5, ge=0, le=1)
    """Weight of the distance to the own centre in SAMC, against that to another's."""
    cycle: float = Field(0.001, ge=0)
    """Weight of the semantic cycle."""
    contrast: Literal["nearest", "random"] = "nearest"
    """The other centre of SAMC: the nearest wrong one (AWA, aPY), or any of the client's classes,
    perhaps the own one (CUB, FLO, SUN)."""


class FREE(VAEGAN, name="free"):
    """Phases: ``critic``, ``generator`` (with the encoder), ``refine``."""

    Settings: ClassVar[type[NamedSettings]] = FREESettings
    training_only: ClassVar[tuple[str, ...]] = ("critic.*", "encoder.*", "centres.*")
    uniform = ("critic.mix", "refine.other")
    settings: FREESettings

    @property
    def refined_width(self) -> int:
        """Those of the feature, the hidden layer and the predicted attributes."""
        return self.width + self.hidden + self.attribute_count

    def init(self, rng: np.random.Generator) -> Params:
        """Draw f-VAEGAN, the refining network and the centres, N(0, 1)."""
        hidden = self.hidden
        attributes = self.attribute_count
        params = super().init(rng)
        params |= normal_layer("refine.0", self.width, hidden, rng) | normal_layer(
            "refine.1", hidden, 2 * attributes, rng
        )
        centres = rng.standard_normal((len(self.space.names), attributes), dtype=np.float32)
        return params | {"centres.all": torch.from_numpy(centres)}

    def phases(self) -> Sequence[Phase]:
        """f-VAEGAN's in turns with the refinement."""
        refine = Phase(
            "refine",
            self.refine_loss,
            self.adam(_REFINE_LR),
            ("refine.*", "centres.*"),
            contrasted=False,
        )
        return (*super().phases(), refine)

    def plan(
        self, phase: str, labels: NDArray[np.int64], epochs: int, rng: np.random.Generator
    ) -> Plan:
        """Plan turns for ``PASSES`` times the samples an epoch."""
        return super().plan(phase, labels, epochs * PASSES, rng)

    def check_inputs(self, inputs: Tensor) -> None:
        """Warn of attributes that the refining network's sigmoid cannot reach, too."""
        super().check_inputs(inputs)
        if bool((self.semantics < 0).any()):
            warnings.warn(
                "some attributes are negative, which free, whose predictions lie in [0, 1], cannot "
                "reach: leave data.semantics out, or set ['min-max']",
                stacklevel=2,
            )

    def draw_shapes(self) -> dict[str, tuple[int, ...]]:
        """Add what the refinement draws."""
        attributes = (self.attribute_count,)
        shapes: dict[str, tuple[int, ...]] = {
            "refine.noise": attributes, "generator.refine": attributes, "refine.other": ()
        }  # fmt: skip
        return super().draw_shapes() | shapes

    def client_context(self, classes: NDArray[np.int64]) -> Context:
        """Add (C,) ``peers``: the client's classes, over and over, and how many they are."""
        peers = torch.from_numpy(np.resize(classes, len(self.space.names)))
        return super().client_context(classes) | {
            "peers": peers,
            "peer_count": torch.tensor(float(len(classes))),
        }

    def predict(self, params: Params, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the hidden layer (B, hidden), and mean and deviation (B, attributes) of the
        predicted attributes.
        """
        hidden = F.leaky_relu(linear(params, "refine.0", features), 0.2)
        mean, spread = linear(params, "refine.1", hidden).tensor_split(2, dim=-1)
        return hidden, mean, torch.sigmoid(spread)

    def cycle(
        self, params: Params, features: Tensor, batch: Batch, context: Context, noise: str
    ) -> Tensor:
        """Return the mean semantic cycle loss of features, their attributes drawn with
        ``noise``.
        """
        _, mean, spread = self.predict(params, features)
        predicted = torch.sigmoid(mean + spread * batch[noise])
        attributes = context["semantics"][batch["labels"]]
        all_attributes = torch.ones_like(attributes[0], dtype=torch.bool)
        return weighted_l1(predicted, attributes, batch["weights"], all_attributes)

    def generator_loss(
        self, params: Params, batch: Batch, context: Context
    ) -> tuple[Tensor, Terms]:
        """f-VAEGAN's, and the semantic cycle of the generated features."""
        loss, terms, fake = self.bound(params, batch, context)
        cycle = self.cycle(params, fake, batch, context, "generator.refine")
        loss = loss + self.settings.cycle * cycle
        return loss, {**terms, "generator": loss, "generated cycle": cycle}

    def refine_loss(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """SAMC and the semantic cycle of real features."""
        features = self.features(params, batch["inputs"])
        labels = batch["labels"]
        _, mean, _ = self.predict(params, features)
        peer = None
        if self.settings.contrast == "random":
            place = (batch["refine.other"] * context["peer_count"]).long()
            peer = context["peers"][place.clamp_max(len(self.space.names) - 1)]
        s = self.settings
        samc = margin_loss(
            mean,
            params["centres.all"],
            labels,
            context["held"],
            s.margin,
            s.balance,
            peer,
            batch["weights"],
        )
        cycle = self.cycle(params, features, batch, context, "refine.noise")
        loss = _CENTER * samc + s.cycle * cycle
        return loss, {"refine": loss, "samc": samc, "real cycle": cycle}

    def refine(self, params: Params, features: Tensor) -> Tensor:
        """Return (n, d + hidden + attributes): the feature, the hidden layer, the predicted
        attributes' means.
        """
        hidden, mean, _ = self.predict(params, features)
        refined: Tensor = torch.cat([features, hidden, torch.sigmoid(mean)], dim=-1)
        return refined
