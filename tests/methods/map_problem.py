"""A problem on maps that every method must solve: attribute j lights channel j at one cell, somewhere."""

from dataclasses import dataclass

import numpy as np
import torch

from fedunseen.core.trainer import Task, Trainer
from fedunseen.data import ClassSpace
from fedunseen.encoders.backbone import Backbone

GROUPS, VALUES = 3, 4  # three groups of four attributes, one of each group present: 64 classes
CHANNELS, HEIGHT, WIDTH = 16, 3, 4
UNSEEN = [c for c in range(64) if (c // 16 + c // 4 + c) % 4 == 1 and c % 16 < 10]  # each attribute in seen ones too


@dataclass
class Problem:
    space: ClassSpace
    semantics: torch.Tensor
    backbone: Backbone
    inputs: torch.Tensor
    labels: torch.Tensor
    test: torch.Tensor
    test_labels: torch.Tensor


def problem(per_class=20, seed=0):
    rng = np.random.default_rng(seed)
    digits = np.stack([np.arange(64) // 16, np.arange(64) // 4 % 4, np.arange(64) % 4], axis=1)
    present = digits + VALUES * np.arange(GROUPS)  # (64, 3) attribute columns
    semantics = np.zeros((64, GROUPS * VALUES))
    np.put_along_axis(semantics, present, 1.0, axis=1)
    seen = np.setdiff1d(np.arange(64), UNSEEN)
    names = [f"attribute {j}" for j in range(GROUPS * VALUES)]
    groups = {f"group {g}": tuple(range(g * VALUES, (g + 1) * VALUES)) for g in range(GROUPS)}
    space = ClassSpace([f"class {c}" for c in range(64)], semantics, names, seen, [], UNSEEN, groups)

    def maps(labels):
        cells = HEIGHT * WIDTH
        values = 0.3 * np.abs(rng.normal(size=(len(labels), CHANNELS, cells)))
        for i, c in enumerate(labels):
            values[i, present[c], rng.choice(cells, GROUPS, replace=False)] += 3.0
        return torch.from_numpy(values.reshape(-1, CHANNELS, HEIGHT, WIDTH).astype(np.float32))

    labels, test_labels = np.repeat(seen, per_class), np.repeat(UNSEEN, 20)
    return Problem(
        space, torch.from_numpy(semantics / np.sqrt(GROUPS)).float(), Backbone((CHANNELS, HEIGHT, WIDTH)),
        maps(labels), torch.from_numpy(labels), maps(test_labels), torch.from_numpy(test_labels),
    )  # fmt: skip


def make(kind, problem, **settings):
    return kind(kind.Settings(**settings), problem.space, problem.semantics, problem.backbone)


def train(method, problem, epochs):
    """Train on everything; return what training ends with."""
    labels = problem.labels.numpy()
    plan = method.plan("", labels, epochs, np.random.default_rng(0))
    own = method.client_context(np.unique(labels))
    task = Task(method.init(np.random.default_rng(0)), np.arange(len(labels)), {"": plan}, own, {})
    trainer = Trainer(method.phases(), problem.inputs, problem.labels, method.context(), lambda gradient: gradient)
    return trainer.one(task)


def unseen_accuracy(method, params, problem):
    """Percent of unseen classes' samples that are recognized among the unseen classes."""
    with torch.no_grad():
        scores = method.scores(params, problem.test, problem.semantics)[:, problem.space.unseen]
    answers = torch.from_numpy(problem.space.unseen)[scores.argmax(1)]
    return float(100 * (answers == problem.test_labels).float().mean())
