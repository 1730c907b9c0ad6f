"""FedUnseen: federated learning that recognizes classes which no one holds.

>>> from fedunseen import Experiment, run
>>> experiment = Experiment.load("digit-pairs", {"run.seed": 1})
>>> experiment.partition.clients
10

``run(experiment, "runs/mine")`` trains it; ``load_run("runs/mine").predict(...)`` ranks classes for new inputs.

Without an experiment: :class:`ZeroShotClassifier` has scikit-learn's interface, :class:`Federation` makes a training
loop of one's own, and ``losses``, ``metrics``, ``partitions`` and ``strategies`` work on plain arrays and tensors.
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
    from fedunseen.experiment import Experiment, Prediction, Run, load_run
    from fedunseen.experiment.running import run
    from fedunseen.federation import Callback, Federation, fit
    from fedunseen.federation.partition import Partition

__all__ = [
    "Benchmark",
    "Callback",
    "ClassSpace",
    "Experiment",
    "FedUnseenError",
    "Federation",
    "Partition",
    "Prediction",
    "Run",
    "ZeroShotClassifier",
    "fit",
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
    "Benchmark": "data",
    "Callback": "federation",
    "ClassSpace": "data",
    "FedUnseenError": "core.errors",
    "Federation": "federation",
    "fit": "federation",
    "Partition": "federation",
    "register": "core.registry",
    "ZeroShotClassifier": "estimator",
}
_MODULES = ("losses", "methods", "metrics", "partitions", "strategies")


def __getattr__(name: str) -> object:
    """Import what is asked for: the command answers ``--help`` without waiting for PyTorch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        return importlib.import_module(f"fedunseen.{name}")
    return getattr(importlib.import_module(f"fedunseen.{_HOMES.get(name, 'experiment')}"), name)


def __dir__() -> list[str]:
    """List what can be imported, before any of it is."""
    return [*__all__, "__version__"]
