"""The model of a run, as its directory keeps it and as parties get it.

``model.safetensors`` of a finished run is what :meth:`fedunseen.Model.save` writes. Directories of
older versions hold parameters alone there, how features are scaled in ``scaling.safetensors``, and
the confidence in ``confidence.safetensors``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedunseen.confidence import Confidence
from fedunseen.core.errors import RunDirectoryError
from fedunseen.core.parameters import Params, under, within
from fedunseen.core.registry import find
from fedunseen.data import ClassSpace, fit_semantics
from fedunseen.experiment.encoding import features_from
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.federation import Federation
from fedunseen.model import Calibration, Model

_BESIDE = "confidence/"  # before a name, beside a model's tensors
OLDER_CONFIDENCE = "confidence.safetensors"
MODEL_FILES = ("model.safetensors", "scaling.safetensors", OLDER_CONFIDENCE)
"""The model's file, and those that older directories have beside it."""


def trained_model(
    experiment: Experiment,
    federation: Federation,
    space: ClassSpace,
    params: Params,
    offset: float,
    confidence: Confidence | None,
    weights: Mapping[str, Any] | None,
) -> Model:
    """Return what a federation has trained as a model.

    Args:
        experiment: of the run.
        federation: whose method and scaling are the model's.
        space: the classes.
        params: the merged ones, on any device.
        offset: what scores of seen classes are lowered by.
        confidence: what held-out samples say of the answers; None: nothing.
        weights: of the encoder, as a manifest records them; None: it needs no files.
    """
    encoder = experiment.encoder.name
    frozen = encoder != "none" and federation.method.backbone.encoder is None
    return Model(
        space,
        federation.method,
        {name: value.cpu() for name, value in params.items()},
        federation.scaler,
        fit_semantics(space, experiment.data.semantics),
        Calibration(offset),
        experiment.run.seed,
        bool(find("strategy", experiment.strategy.name).pools),
        features_from(encoder, weights) if frozen else None,
        confidence=confidence,
    )


def with_confidence(model: Params, confidence: Confidence | None) -> Params:
    """Return a model's tensors with those of its confidence, for parties."""
    held = {} if confidence is None else confidence.arrays()
    return model | under(_BESIDE, {name: torch.from_numpy(value) for name, value in held.items()})


def parted(brought: Params) -> tuple[Params, Confidence | None]:
    """Return what :func:`with_confidence` has put together.

    Raises:
        ValueError: the confidence is damaged.
    """
    model = {name: value for name, value in brought.items() if not name.startswith(_BESIDE)}
    held = {name: value.cpu().numpy() for name, value in within(_BESIDE, brought).items()}
    try:
        return model, Confidence.of_arrays(held) if held else None
    except KeyError as error:
        raise ValueError(f"its confidence lacks {error}") from None


def older_confidence(folder: Path) -> Confidence | None:
    """Return the confidence beside the parameters of an older run directory; None: it has none.

    Raises:
        RunDirectoryError: the file is damaged.
    """
    path = folder / OLDER_CONFIDENCE
    if not path.is_file():
        return None
    try:
        return Confidence.of_arrays(load_file(path))
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise RunDirectoryError(
            f"{path} is damaged ({error}): run the experiment again, or delete the file and do "
            "without calibrated probabilities"
        ) from None
