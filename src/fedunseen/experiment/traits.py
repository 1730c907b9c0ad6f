"""The task of an experiment, and what pages must know of its method and strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedunseen.core.registry import find

if TYPE_CHECKING:
    from fedunseen.experiment.schema import Experiment
    from fedunseen.tasks import Task


def traits(experiment: Experiment) -> dict[str, Any]:
    """Return what a page must know of an experiment's method and strategy, so that it can be made without their code.

    Returns:
        For the manifest: ``task``; and ``traits``: whether the method can use descriptions (``zero_shot``), patterns of
        its parameters that never travel (``private``), whether the strategy ``merges`` replies, and ``pools`` the data,
        and the ``accuracies`` that the task reports.

    Example:
        >>> from fedunseen import Experiment
        >>> traits(Experiment.load("digit-pairs"))["traits"]
        {'zero_shot': True, 'private': [], 'merges': True, 'pools': False, 'accuracies': ['zsl', 'gzsl_unseen', ...]}
    """
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
