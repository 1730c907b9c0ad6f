"""The task of an experiment, and what pages must know of its method and strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedunseen.core.registry import find

if TYPE_CHECKING:
    from fedunseen.experiment.schema import Experiment
    from fedunseen.tasks import Task


def traits(experiment: Experiment) -> dict[str, Any]:
    """Return what a page must know of an experiment's method and strategy: for the manifest."""
    method, strategy = find("method", experiment.method.name), find("strategy", experiment.strategy.name)
    known = {
        "zero_shot": method.zero_shot, "private": list(method.private), "merges": strategy.merges,
        "pools": strategy.pools, "accuracies": list(task_of(experiment).accuracies),
    }  # fmt: skip
    return {"task": method.task, "traits": known}


def task_of(experiment: Experiment) -> type[Task]:
    """Return the task of the experiment's method."""
    found: type[Task] = find("task", find("method", experiment.method.name).task)
    return found
