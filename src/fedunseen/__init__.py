"""FedUnseen: federated learning that recognises classes which nobody holds.

>>> from fedunseen import Experiment, run
>>> experiment = Experiment.load("digit-pairs", {"run.seed": 1})
>>> experiment.partition.clients
10

``run(experiment, "runs/mine")`` trains it; ``load_run("runs/mine").predict(...)`` ranks classes for new inputs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedunseen.core.errors import FedUnseenError
    from fedunseen.data import ClassSpace
    from fedunseen.experiment import Experiment, Prediction, Run, load_run
    from fedunseen.experiment.orchestrator import run

__all__ = ["ClassSpace", "Experiment", "FedUnseenError", "Prediction", "Run", "load_run", "run"]
__version__ = "0.1.0"

_HOMES = {"FedUnseenError": "core.errors", "ClassSpace": "data"}


def __getattr__(name: str) -> object:
    """Import what is asked for: the command answers ``--help`` without waiting for PyTorch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedunseen.{_HOMES.get(name, 'experiment')}"), name)
