"""Whether the one file of a run's model says what the experiment and the class table beside it
say.

What is checked is the experiment, and what is computed follows from the model. A directory of
which the two differ was not written by a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedunseen.core.errors import RunDirectoryError
from fedunseen.core.registry import find
from fedunseen.data import ClassSpace
from fedunseen.encoders.backbone import EncoderSettings
from fedunseen.experiment.scales import bits_of
from fedunseen.experiment.schema import Experiment
from fedunseen.model import Model


def check_agreement(path: Path, experiment: Experiment, space: ClassSpace, model: Model) -> None:
    """Refuse a run directory whose model's file has other settings than its experiment, or other
    classes than its table.

    A network of the file alone would choose what of a sample counts.

    Raises:
        RunDirectoryError: they differ.
    """
    method = model.method
    encoder = method.backbone.encoder
    if method.frozen and method.backbone.trained:
        raise RunDirectoryError(
            f"{path}: the model's file brings a network, and method.name = {experiment.method.name!r} "
            "trains none: take the run directory as it was written"
        )
    quantization = model.scaler.quantization
    pairs: Mapping[str, tuple[Any, Any]] = {
        "data.features": (tuple(experiment.data.features or ()), model.scaler.steps),
        "data.quantization": (bits_of(experiment), quantization.bits if quantization else 0),
        "data.semantics": (tuple(experiment.data.semantics), model.semantics_scaler.steps),
        "[method]": (experiment.method, method.settings),
        "[encoder]": (
            None if encoder is None else _architecture(encoder.settings),
            None if encoder is None else _architecture(experiment.encoder),
        ),
        "class table": (_table(space), _table(model.space)),
    }
    for name, (stated, stored) in pairs.items():
        if stated != stored:
            raise RunDirectoryError(
                f"{path}: the model's file has another {name} than the experiment or the class "
                "table beside it: take the run directory as it was written"
            )
    if not np.allclose(space.semantics, model.space.semantics, equal_nan=True):
        raise RunDirectoryError(
            f"{path}: the model's file describes its classes otherwise than classes.csv beside it: "
            "take the run directory as it was written"
        )


def _table(space: ClassSpace) -> tuple[Any, ...]:
    return tuple(space.names), tuple(space.attribute_names), space.seen.tolist()


def _architecture(settings: EncoderSettings) -> dict[str, Any]:
    """Return an encoder's settings without where its files are."""
    place = getattr(find("encoder", settings.name), "setting", "").rpartition(".")[2]
    return {key: v for key, v in settings.model_dump(mode="json").items() if key != place}
