"""The baseline that knows no attributes: an ordinary classifier with an output for every class of the space.

It cannot recognise a class that nobody holds: the outputs of unseen classes only ever learn to be low.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from fedunseen.core.parameters import Params, linear_layer
from fedunseen.core.phases import Batch, Context, Phase, Terms
from fedunseen.data import ClassSpace
from fedunseen.encoders.backbone import Backbone
from fedunseen.losses import semantic_cross_entropy
from fedunseen.methods.base import Method, MethodSettings
from fedunseen.methods.networks import linear, mlp, mlp_init

__all__ = ["Classifier", "ClassifierSettings"]


class ClassifierSettings(MethodSettings):
    """Settings of the attribute-free classifier."""

    name: Literal["classifier"] = "classifier"
    hidden: tuple[PositiveInt, ...] = ()
    """Widths of the layers between the inputs and the class outputs."""


class Classifier(Method):
    """Softmax over all classes of the space, trained with cross-entropy."""

    Settings = ClassifierSettings
    zero_shot = False

    def __init__(self, settings: ClassifierSettings, space: ClassSpace, semantics: Tensor, backbone: Backbone) -> None:
        super().__init__(settings, space, semantics, backbone)
        self.hidden = settings.hidden

    def init(self, rng: np.random.Generator) -> Params:
        """Draw the layers f and the class outputs."""
        widths = [self.width, *self.hidden]
        layers = mlp_init("f", widths, rng) | linear_layer("head", widths[-1], len(self.space.names), rng)
        return self.backbone.init(rng) | layers

    def phases(self) -> Sequence[Phase]:
        """One phase: all parameters."""
        return (Phase("local", self.loss, self.optimiser()),)

    def context(self) -> Context:
        """Every class competes in the softmax."""
        return {"mask": torch.ones(len(self.space.names), dtype=torch.bool)}

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """Cross-entropy: FedZSL Eq. 3 with free class outputs in the place of semantics."""
        features = mlp(params, "f", self.backbone(params, batch["inputs"], training=True))
        logits = linear(params, "head", features)
        loss = semantic_cross_entropy(logits, batch["labels"], batch["weights"], context["mask"])
        return loss, {"loss": loss, "representation": features if self.trains_features else logits}

    @property
    def trains_features(self) -> bool:
        """Say whether training changes the features, or the class outputs alone."""
        return self.backbone.trained or bool(self.hidden)

    def represent(self, params: Params, inputs: Tensor) -> Tensor:
        """Return the features below the class outputs, or the outputs where the features are frozen."""
        features = mlp(params, "f", self.backbone(params, inputs))
        return features if self.trains_features else linear(params, "head", features)

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Return the class outputs; semantics are ignored."""
        return linear(params, "head", mlp(params, "f", self.backbone(params, inputs)))
