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
from fedunseen.experiment.schema import Experiment
from fedunseen.model import Model


def check_agreement(path: Path, experiment: Experiment, model: Model) -> None:
    """Refuse a run directory whose model's file has other settings than its experiment.

    A network of the file alone would choose what of a sample counts.

    Raises:
        RunDirectoryError: they differ.
    """
    method = model.method
    encoder = method.backbone.encoder
    if method.frozen and method.backbone.trained:
        raise RunDirectoryError(
            f"{path}: the model's file brings a network, and method.name = "
            f"{experiment.method.name!r} trains none: take the run directory as it was written"
        )
    data = experiment.data
    quantization = model.scaler.quantization
    pairs: Mapping[str, tuple[Any, Any]] = {
        "data.features": (tuple(data.features or ()), model.scaler.steps),
        "data.semantics": (tuple(data.semantics), model.semantics_scaler.steps),
        "[method]": (experiment.method, method.settings),
    }
    if not method.trained:
        bits = quantization.bits if quantization is not None else "none"
        pairs = {**pairs, "data.quantization": (data.quantization or "none", bits)}
    if encoder is not None:
        settings = (_architecture(experiment.encoder), _architecture(encoder.settings))
        pairs = {**pairs, "[encoder]": settings}
    for name, (stated, stored) in pairs.items():
        if stated != stored:
            raise _differs(path, f"has another {name} than the experiment")


def check_same_classes(path: Path, space: ClassSpace, other: ClassSpace) -> None:
    """Refuse a run directory whose model's file has other classes than its table.

    Raises:
        RunDirectoryError: they differ.
    """
    if _table(space) != _table(other):
        raise _differs(path, "has another class table than classes.csv")
    if not np.allclose(space.semantics, other.semantics, equal_nan=True):
        raise _differs(path, "describes its classes otherwise than classes.csv")


def _differs(path: Path, how: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"{path}: the model's file {how} beside it: take the run directory as it was written"
    )


def _table(space: ClassSpace) -> tuple[Any, ...]:
    return tuple(space.names), tuple(space.attribute_names), space.seen.tolist()


def _architecture(settings: EncoderSettings) -> dict[str, Any]:
    """Return an encoder's settings without where its files are."""
    place = getattr(find("encoder", settings.name), "setting", "").rpartition(".")[2]
    return {key: v for key, v in settings.model_dump(mode="json").items() if key != place}
