"""Find a benchmark, encoder, method, strategy, attack or defence by name: our own, or another package's.

A package adds a method with one line of its own ``pyproject.toml``::

    [project.entry-points."fedunseen.methods"]
    mine = "my_package.mine:Mine"
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedunseen.core.errors import ExperimentError, unknown
from fedunseen.core.plugins import added
from fedunseen.data import BENCHMARKS
from fedunseen.encoders import ENCODERS
from fedunseen.engines import ENGINES
from fedunseen.experiment.keys import keys_of
from fedunseen.methods import METHODS
from fedunseen.strategies import STRATEGIES
from fedunseen.tasks import TASKS
from fedunseen.threats import ATTACKS, SCREENINGS
from fedunseen.threats.defences import DEFENCES

if TYPE_CHECKING:
    from fedunseen.experiment.schema import Experiment
    from fedunseen.tasks import Task

__all__ = ["carrier", "find", "is_own", "names", "own_keys", "task_of", "traits"]

_OWN = {
    "data": BENCHMARKS,
    "encoder": {**ENCODERS, "run": "fedunseen.experiment.run_encoder:RunEncoder"},
    "method": METHODS,
    "strategy": STRATEGIES,
    "attack": ATTACKS,
    "screening": SCREENINGS,
    "defence": DEFENCES,
    "engine": ENGINES,
    "task": TASKS,
}
_GROUP = {
    "data": "fedunseen.benchmarks",
    "encoder": "fedunseen.encoders",
    "method": "fedunseen.methods",
    "strategy": "fedunseen.strategies",
    "attack": "fedunseen.attacks",
    "screening": "fedunseen.screenings",
    "defence": "fedunseen.defences",
    "engine": "fedunseen.engines",
    "task": "fedunseen.tasks",
}


def names(section: str) -> list[str]:
    """Return the known names of a section (``data``, ``encoder``, ``method``, ``strategy``, ``attack`` ...)."""
    return sorted({*_OWN[section], *added(section), *(entry.name for entry in entry_points(group=_GROUP[section]))})


def is_own(section: str, name: str) -> bool:
    """Say whether a name of a section is one of this package."""
    return name in _OWN[section]


def own_keys(section: str, name: str) -> list[str] | None:
    """Return the settings' keys of one of this package's choices without loading it; None for another's."""
    return keys_of(_OWN[section][name]) if is_own(section, name) else None


def find(section: str, name: str) -> type[Any]:
    """Return the class registered as ``name`` in a section.

    Raises:
        ExperimentError: the name is unknown.

    Example:
        >>> find("strategy", "fedprox").__name__
        'FedProx'
    """
    if place := _OWN[section].get(name):
        module, _, attribute = place.partition(":")
        found: type[Any] = getattr(importlib.import_module(module), attribute)
        return found
    if (registered := added(section).get(name)) is not None:
        return registered
    for entry in entry_points(group=_GROUP[section]):
        if entry.name == name:
            try:
                loaded: type[Any] = entry.load()
            except Exception as error:  # another package's code: it may raise anything
                package = entry.dist.name if entry.dist else "another package"
                raise ExperimentError(
                    f"{section}.name: {name!r} of {package} cannot be loaded ({type(error).__name__}: {error}): "
                    "mend or update that package"
                ) from error
            return loaded
    raise ExperimentError(
        f"{section}.name: " + unknown("benchmark" if section == "data" else section, name, names(section))
    )


def carrier(engine: str) -> ModuleType:
    """Import the module that carries a distributed engine's messages (:mod:`fedunseen.engines.carriers`).

    Raises:
        ExperimentError: the engine is unknown.
    """
    return importlib.import_module(find("engine", engine).adapter)


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
