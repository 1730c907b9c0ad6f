"""What few-shot methods have in common: episodes as batches, a network with a classifier, answers
to new episodes.

A batch holds one N-way P-shot Q-query task after the other (:mod:`fedunseen.data.episodes`), class
after class.
"""

from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import Params, is_statistic
from fedunseen.core.phases import SGD, Adam, Batch, Context, Optimiser, Plan, Terms
from fedunseen.core.settings import NamedSettings
from fedunseen.core.sizes import BoundedDraws
from fedunseen.data import Scaling
from fedunseen.data.episodes import Episodes, Size, Tasks, draw_episodes, split, turned
from fedunseen.methods.base import OneLoss


class EpisodicSettings(NamedSettings):
    """Settings that every few-shot method has: its episodes and its optimiser."""

    ways: int = Field(5, ge=2)
    """Classes of an episode (N)."""
    shots: int = Field(1, ge=1)
    """Labeled samples of each class (P)."""
    queries: int = Field(15, ge=1)
    """Samples of each class that are to be recognized (Q), in training and in tests."""
    episodes: int = Field(40, ge=1)
    """Episodes that a client draws in one local epoch."""
    tasks: int = Field(4, ge=1)
    """Episodes in one gradient step."""
    rotations: bool = False
    """In training, images turned by 90, 180 and 270 degrees count as classes of their own."""
    permute_labels: bool = True
    """Deal the answers again in each episode. Otherwise a class is always the same answer
    (negative, positive).
    """
    optimiser: Literal["adam", "sgd"] = "adam"
    """Of the outer steps: FedFSL's algorithms say SGD, its section 5.1 Adam. The state starts again
    each round.
    """
    lr: float = Field(0.001, gt=0)
    """Learning rate of the local updates; the optimizer's state starts again each round."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of SGD."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay of the local updates."""


class Episodic(OneLoss):
    """Base of the few-shot methods."""

    Settings: ClassVar[type[NamedSettings]] = EpisodicSettings
    task = "few-shot"
    scaling: ClassVar[tuple[Scaling, ...]] = ()
    limited: ClassVar[bool] = False
    batch_tasks: Literal["auto", "vmap", "loop"] = "auto"
    """Whether the tasks of a step run as one batch; ``auto`` loops over convolutions on a CPU,
    which gain nothing.
    """
    zero_shot = False
    settings: EpisodicSettings

    answers: NDArray[np.int64] | None = None
    """Each class's answer; None: episodes deal them again."""

    def prepare(self) -> None:
        """Refuse running statistics, and rotations of images that are not square."""
        statistics = [
            name
            for name in self.backbone.init(BoundedDraws(np.random.default_rng(0).bit_generator))
            if is_statistic(name)
        ]
        if statistics:  # an episode would leave them changed, and a test episode so the model
            raise ExperimentError(
                f"method.name = {self.settings.name!r} has no use for running statistics "
                f"({statistics[0]!r}): set encoder.norm to 'group' or 'batch-statistics', or name "
                "an encoder without BatchNorm"
            )
        shape = self.backbone.image_shape
        if self.settings.rotations and not (shape and turned(shape[1:])):
            raise ExperimentError(
                "method.rotations turns square images, and these samples are none: set "
                "method.rotations = false"
            )

    @property
    def step_samples(self) -> int:
        """The samples of a step's episodes."""
        s = self.settings
        return s.tasks * s.ways * (s.shots + s.queries)

    def draw(
        self, labels: NDArray[np.int64], count: int, rng: np.random.Generator, training: bool
    ) -> Episodes:
        """Draw episodes of samples with these labels, as the settings say; turned images in
        training only.
        """
        s = self.settings
        size = Size(s.ways, s.shots, s.queries, s.rotations and training)
        return draw_episodes(labels, count, size, rng, self.answers, s.permute_labels)

    def plan(
        self, phase: str, labels: NDArray[np.int64], epochs: int, rng: np.random.Generator
    ) -> Plan:
        """Draw a client's episodes of a round: ``epochs * episodes``, rounded up to full steps."""
        s = self.settings
        steps = epochs * -(-s.episodes // s.tasks)
        episodes = self.draw(labels, steps * s.tasks, rng, training=True)
        index = episodes.index.reshape(steps, -1)
        extras = {}
        if s.rotations:
            of_each = np.broadcast_to(episodes.quarters[..., None], episodes.index.shape)
            extras["quarters"] = of_each.reshape(steps, -1).astype(np.float32)
        return Plan(index, np.ones(index.shape, dtype=np.float32), extras)

    def tasks_of(self, batch: Batch) -> Tasks:
        """Lay out a batch as tasks."""
        inputs = self._turned(batch)
        s = self.settings
        return split(inputs.reshape(-1, s.ways, s.shots + s.queries, *inputs.shape[1:]), s.shots)

    def _turned(self, batch: Batch) -> Tensor:
        inputs = batch["inputs"]
        shape = self.backbone.image_shape
        if "quarters" not in batch:
            return inputs
        assert shape is not None  # asked for when the method was made
        return turn(inputs.reshape(-1, *shape), batch["quarters"])

    def contrast(self, params: Params, batch: Batch, context: Context) -> Tensor:
        """Return the features (B, d) of a batch's samples, turned as the loss sees them."""
        return self.represent(params, self._turned(batch))

    def init(self, rng: np.random.Generator) -> Params:
        """Draw the features' network f."""
        return self.backbone.init(rng)

    def loss(self, params: Params, batch: Batch, context: Context) -> tuple[Tensor, Terms]:
        """Return the mean over tasks of :meth:`of_task` (FedFSL Eq. 7)."""
        terms = self.means(lambda task: self.of_task(params, task, context), batch)
        return terms["loss"], terms

    def of_task(self, params: Params, task: Tasks, context: Context) -> Terms:
        """Return the ``loss`` of one task, its named parts and the ``accuracy`` in percent."""
        raise TypeError(f"{type(self).__name__} must say what it minimizes")

    def means(self, terms_of_task: Callable[[Tasks], Terms], batch: Batch) -> Terms:
        """Return the means of one task's terms over the tasks of a batch."""
        return {
            name: values.mean(0)
            for name, values in self.each_task(terms_of_task, self.tasks_of(batch)).items()
        }

    def each_task(self, terms_of_task: Callable[[Tasks], Terms], tasks: Tasks) -> Terms:
        """Return the terms (T, ...) of all tasks, run as one batch or one after the other."""
        choice = self.batch_tasks
        on_cpu = tasks.support.device.type == "cpu"
        if choice == "vmap" or (choice == "auto" and not (self.backbone.convolves and on_cpu)):
            return torch.func.vmap(terms_of_task)(tasks)
        each = [terms_of_task(Tasks(*pair)) for pair in zip(*tasks, strict=True)]
        return {name: torch.stack([terms[name] for terms in each]) for name in each[0]}

    def classify(self, params: Params, tasks: Tasks) -> Tensor:
        """Learn from each task's support set, and return the answers' logits of its queries (T, N *
        Q, N).
        """
        raise TypeError(f"{type(self).__name__} must say how it answers an episode")

    def recognise(self, params: Params, support: Tensor, answers: Tensor, inputs: Tensor) -> Tensor:
        """Learn new classes from examples, and return the answers' logits (n, M) of inputs (n,
        ...).
        """
        raise TypeError(f"{type(self).__name__} must say how it learns new classes")

    def optimiser(self) -> Optimiser:
        """Return the optimiser of the outer steps."""
        s = self.settings
        if s.optimiser == "adam":
            return Adam(s.lr, weight_decay=s.weight_decay)
        return SGD(s.lr, s.momentum, s.weight_decay)

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Refuse: without a support set there is nothing to score."""
        raise ExperimentError(
            f"{type(self).__name__} scores classes from examples alone: give a few of each class, "
            "with --support FOLDER or examples="
        )


def turn(images: Tensor, quarters: Tensor) -> Tensor:
    """Turn each of square images (n, C, side, side) by some quarters (n,), 0 to 3,
    counter-clockwise.
    """
    turned = images
    for k in (1, 2, 3):
        turned = torch.where(
            (quarters == k)[:, None, None, None], torch.rot90(images, k, (-2, -1)), turned
        )
    return turned


def answers_of(tasks_side: Tensor, ways: int) -> Tensor:
    """Return the right answers of one side of a task (N * k, ...): its samples stand class after
    class.
    """
    each = tasks_side.shape[0] // ways
    return torch.arange(ways, device=tasks_side.device).repeat_interleave(each)


def accuracy(logits: Tensor, answers: Tensor) -> Tensor:
    """Return the share of right answers in percent, a scalar."""
    return 100 * (logits.argmax(-1) == answers).float().mean()
