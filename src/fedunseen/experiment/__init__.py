"""The experiment file, the orchestrator and the run directory."""

from fedunseen.experiment.orchestrator import Progress, run
from fedunseen.experiment.run import Prediction, Run, load_run
from fedunseen.experiment.schema import Experiment, preset_names

__all__ = ["Experiment", "Prediction", "Progress", "Run", "load_run", "preset_names", "run"]
