"""The baseline that knows no attributes: a classifier with an output for every class, untrained for
unseen ones.
"""

import numpy as np
import torch
from torch import Tensor

from fedunseen.core.parameters import Params, linear_layer
from fedunseen.core.phases import Batch, Context, Terms
from fedunseen.core.settings import Widths
from fedunseen.losses import semantic_cross_entropy
from fedunseen.methods.base import AutoRate, MethodSettings
from fedunseen.methods.networks import Layered, linear, mlp, mlp_init


class Classifier(Layered, name="classifier"):
    """Softmax over all classes of the space, trained with cross-entropy."""

    class Settings(MethodSettings):
        """Settings of the attribute-free classifier."""

        lr: AutoRate = None  # type: ignore[assignment]
        """Learning rate of the local updates. Unset or `"auto"`: half of the largest that is
        stable, from the lengths of features and semantics and the weights of the losses; for a
        trained encoder 0.01 at most, with `distzsl` 0.003."""
        hidden: Widths = ()
        """Widths of the trained layers on top of the features; empty: none."""

    settings: Settings
    zero_shot = False

    def init(self, rng: np.random.Generator) -> Params:
        """Draw the layers f and the class outputs."""
        widths = [self.width, *self.settings.hidden]
        layers = mlp_init("f", widths, rng) | linear_layer(
            "head", widths[-1], len(self.space.names), rng
        )
        return self.backbone.init(rng) | layers

    def steepness(self) -> float:
        """Return the curvature of the cross-entropy: a network can tell any two classes apart."""
        return 1 / len(self.space.names) if self.trains_features else 0.5

    def context(self) -> Context:
        """Every class competes in the softmax."""
        return {"mask": torch.ones(len(self.space.names), dtype=torch.bool)}

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """Cross-entropy: FedZSL Eq. 3 with free class outputs instead of semantics."""
        features = mlp(params, "f", self.backbone(params, batch["inputs"], training=True))
        logits = linear(params, "head", features)
        loss = semantic_cross_entropy(logits, batch["labels"], batch["weights"], context["mask"])
        return loss, {
            "loss": loss,
            "sce": loss,
            "representation": features if self.trains_features else logits,
        }

    def represent(self, params: Params, inputs: Tensor) -> Tensor:
        """Return the features below the class outputs, or the outputs where the features are
        frozen.
        """
        features = mlp(params, "f", self.backbone(params, inputs))
        return features if self.trains_features else linear(params, "head", features)

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Return the class outputs; semantics are ignored."""
        return linear(params, "head", mlp(params, "f", self.backbone(params, inputs)))
