"""The experiment file, the path of a run, and finished runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedunseen.core.registry import lazily

if TYPE_CHECKING:
    from fedunseen.core.presets import preset_names
    from fedunseen.experiment.result.run import Run, load_run
    from fedunseen.experiment.running import run
    from fedunseen.experiment.schema import Experiment
    from fedunseen.federation.callbacks import Progress
    from fedunseen.tasks.base import Prediction

__all__ = ["Experiment", "Prediction", "Progress", "Run", "load_run", "preset_names", "run"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Experiment": "fedunseen.experiment.schema:Experiment",
        "Prediction": "fedunseen.tasks.base:Prediction",
        "Progress": "fedunseen.federation.callbacks:Progress",
        "Run": "fedunseen.experiment.result.run:Run",
        "load_run": "fedunseen.experiment.result.run:load_run",
        "preset_names": "fedunseen.core.presets:preset_names",
        "run": "fedunseen.experiment.running:run",
    },
)
