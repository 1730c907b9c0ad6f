"""FedUnseen: federated learning that recognises classes which nobody holds.

>>> from fedunseen import Experiment, run
>>> experiment = Experiment.load("digit-pairs", {"run.seed": 1})
>>> experiment.partition.clients
10

``run(experiment, "runs/mine")`` trains it; ``load_run("runs/mine").predict(...)`` ranks classes for new inputs.
"""

from fedunseen.core.errors import FedUnseenError
from fedunseen.data import ClassSpace
from fedunseen.experiment import Experiment, Prediction, Run, load_run, run

__all__ = ["ClassSpace", "Experiment", "FedUnseenError", "Prediction", "Run", "load_run", "run"]
__version__ = "0.1.0"
