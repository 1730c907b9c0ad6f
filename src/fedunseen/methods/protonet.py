"""Prototypical networks (Snell et al. 2017), a baseline: a class is the mean of its examples."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import Params
from fedunseen.core.phases import Context, Terms
from fedunseen.core.settings import Widths
from fedunseen.data.episodes import Tasks
from fedunseen.methods.episodic import Episodic, EpisodicSettings, accuracy, answers_of
from fedunseen.methods.networks import mlp, mlp_init


class ProtoNet(Episodic, name="protonet"):
    """One phase: cross-entropy of minus the squared distances from the prototypes (their Eq. 2)."""

    class Settings(EpisodicSettings):
        """Settings of prototypical networks."""

        hidden: Widths = ()
        """Widths of the trained layers on top of the features; empty: none."""

    settings: Settings

    def prepare(self) -> None:
        """Refuse, too, to train nothing."""
        super().prepare()
        if not self.backbone.trained and not self.settings.hidden:
            raise ExperimentError(
                "method.name = 'protonet' has nothing to train on frozen features: add layers with "
                "method.hidden, or name a trained encoder, for example conv4"
            )

    def init(self, rng: np.random.Generator) -> Params:
        """Draw the features' network f and the layers on top of it."""
        return super().init(rng) | mlp_init("top", [self.width, *self.settings.hidden], rng)

    def represent(self, params: Params, inputs: Tensor) -> Tensor:
        """Return what prototypes are means of (n, d)."""
        return mlp(params, "top", self.backbone(params, inputs, training=True))

    def answer(self, params: Params, task: Tasks) -> Tensor:
        """Return minus the squared distance (N * Q, N) of a task's queries from the prototypes."""
        support, queries = (
            self.represent(params, side) for side in task
        )  # apart: norms see one side alone
        return prototype_logits(support, queries, self.settings.ways)

    def of_task(self, params: Params, task: Tasks, context: Context) -> Terms:
        """Return the queries' cross-entropy."""
        logits = self.answer(params, task)
        answers = answers_of(task.queries, self.settings.ways)
        return {"loss": F.cross_entropy(logits, answers), "accuracy": accuracy(logits, answers)}

    def classify(self, params: Params, tasks: Tasks) -> Tensor:
        """Answer each task's queries by the nearest prototype."""
        with torch.no_grad():
            return torch.stack(
                [self.answer(params, Tasks(*pair)) for pair in zip(*tasks, strict=True)]
            )

    def recognise(self, params: Params, support: Tensor, answers: Tensor, inputs: Tensor) -> Tensor:
        """Answer by the nearest mean of a class's examples."""
        with torch.no_grad():
            examples = self.represent(params, support)
            features = self.represent(params, inputs)
            means = torch.stack(
                [examples[answers == n].mean(0) for n in range(int(answers.max()) + 1)]
            )
            return -torch.cdist(features, means).square()


def prototype_logits(support: Tensor, queries: Tensor, ways: int) -> Tensor:
    """Return minus the squared distance (n, N) of queries (n, d) from the means of the support (N *
    P, d), by class.
    """
    prototypes = support.reshape(ways, -1, *support.shape[1:]).mean(1)
    logits: Tensor = -(queries[:, None] - prototypes).square().sum(-1)
    return logits
