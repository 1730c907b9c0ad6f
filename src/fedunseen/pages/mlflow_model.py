"""A model in MLflow's format ``pyfunc``: the file that :meth:`fedunseen.Model.save` writes, read by
this module. Nothing is pickled.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.model import Model


class Answers:
    """What ``mlflow.pyfunc`` asks."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def predict(self, model_input: Any, params: Any = None) -> NDArray[np.str_]:
        """Return the answer (n,) for each row of a data frame, or of an array (n, ...)."""
        values = model_input.to_numpy() if hasattr(model_input, "to_numpy") else model_input
        rows = np.asarray(values, dtype=np.float32)
        return np.array([ranking[0].name for ranking in self.model.rank(rows, top=1)])


def save_pyfunc(model: Model, folder: Path) -> None:
    """Write a model to a new folder that ``mlflow.pyfunc.load_model`` reads."""
    import mlflow.pyfunc

    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "model.safetensors"
        model.save(file)
        mlflow.pyfunc.save_model(
            str(folder),
            loader_module=__name__,
            data_path=str(file),
            pip_requirements=["fedunseen"],
        )


def _load_pyfunc(path: str) -> Answers:
    """Return what answers; ``mlflow.pyfunc`` calls it by this name."""
    return Answers(Model.load(path))
