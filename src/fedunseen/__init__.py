"""FedUnseen: federated learning that recognizes classes which no one holds.

>>> from fedunseen import Experiment, run
>>> experiment = Experiment.load("digit-pairs", {"run.seed": 1})
>>> experiment.partition.clients
10

``run(experiment, "runs/mine")`` trains it; ``load_run("runs/mine").predict(...)`` ranks classes for
new inputs.

Without an experiment: :class:`ZeroShotClassifier` has scikit-learn's interface, :class:`Federation`
makes a training loop of one's own, and ``losses``, ``metrics``, ``partitions`` and ``strategies``
work on plain arrays and tensors.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedunseen import losses, methods, metrics, partitions, strategies
    from fedunseen.core.errors import FedUnseenError
    from fedunseen.core.registry import register
    from fedunseen.data import Benchmark, ClassSpace
    from fedunseen.estimator import ZeroShotClassifier
    from fedunseen.experiment.result.run import Run, load_model, load_run
    from fedunseen.experiment.running import run
    from fedunseen.experiment.schema import Experiment
    from fedunseen.federation.federation import Federation
    from fedunseen.federation.loop import Callback, fit
    from fedunseen.federation.partition import Partition
    from fedunseen.model import Model, Prediction
    from fedunseen.statistics import Statistics

__all__ = [
    "Benchmark",
    "Callback",
    "ClassSpace",
    "Experiment",
    "FedUnseenError",
    "Federation",
    "Model",
    "Partition",
    "Prediction",
    "Run",
    "Statistics",
    "ZeroShotClassifier",
    "fit",
    "load_model",
    "load_run",
    "losses",
    "methods",
    "metrics",
    "partitions",
    "register",
    "run",
    "strategies",
]
__version__ = "0.1.0"

_HOMES = {
    "core.errors": ["FedUnseenError"],
    "core.registry": ["register"],
    "data": ["Benchmark", "ClassSpace"],
    "estimator": ["ZeroShotClassifier"],
    "experiment.result.run": ["Run", "load_model", "load_run"],
    "experiment.running": ["run"],
    "experiment.schema": ["Experiment"],
    "federation.federation": ["Federation"],
    "federation.loop": ["Callback", "fit"],
    "federation.partition": ["Partition"],
    "model": ["Model", "Prediction"],
    "statistics": ["Statistics"],
}
"""Module -> what can be imported from here; all other names of ``__all__`` are modules."""


def __getattr__(name: str) -> object:
    """Import what is asked for: the command answers ``--help`` without waiting for PyTorch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"fedunseen.{module}"), name)
    return importlib.import_module(f"fedunseen.{name}")


def __dir__() -> list[str]:
    """List what can be imported, before any of it is."""
    return [*__all__, "__version__"]
