"""DeViSE: a trained method of one loss (Frome et al. 2013)."""

import torch
from pydantic import Field

from fedunseen.core.parameters import linear_layer
from fedunseen.core.phases import Phase, weighted_mean
from fedunseen.methods import Method, MethodSettings
from fedunseen.methods.networks import linear


class DeViSESettings(MethodSettings):
    """What the experiment file may say about it; `fedunseen settings` lists it."""

    margin: float = Field(0.1, gt=0)
    """By how much the right class has to lead."""


class DeViSE(Method, name="devise"):
    """Every wrong class that comes within a margin of the right one costs its violation."""

    Settings = DeViSESettings

    def init(self, rng):
        return self.backbone.init(rng) | linear_layer("g", self.width, self.semantics.shape[1], rng)

    def phases(self):
        return (Phase("local", self.loss, self.optimiser()),)

    def context(self):
        seen = torch.zeros(len(self.space.names), dtype=torch.bool)
        seen[torch.from_numpy(self.space.seen)] = True
        return {"semantics": self.semantics, "seen": seen}

    def loss(self, params, batch, context):
        attributes = linear(params, "g", self.backbone(params, batch["inputs"], training=True))
        scores = attributes @ context["semantics"].T
        right = scores.gather(-1, batch["labels"].unsqueeze(-1))
        late = torch.relu(self.settings.margin + scores - right) * context["seen"]
        loss = weighted_mean(late.sum(-1) - self.settings.margin, batch["weights"])
        return loss, {"loss": loss}

    def attributes(self, params, inputs):
        return linear(params, "g", self.backbone(params, inputs))

    def scores(self, params, inputs, semantics):
        return self.attributes(params, inputs) @ semantics.T
