"""How sure a run's answers are, as its directory keeps it."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedunseen.confidence import Confidence
from fedunseen.core.errors import RunDirectoryError
from fedunseen.core.files import write_tensors
from fedunseen.core.parameters import Params, under, within

_BESIDE = "confidence/"  # before a name, beside a model's tensors
FILE = "confidence.safetensors"


def write_confidence(folder: Path, confidence: Confidence) -> None:
    """Write a confidence to a run directory."""
    tensors = {name: torch.from_numpy(value) for name, value in confidence.arrays().items()}
    write_tensors(folder / FILE, tensors)


def with_confidence(model: Params, folder: Path) -> Params:
    """Return a model's tensors with those of the confidence of a run directory, for parties."""
    sure = read_confidence(folder)
    held = {} if sure is None else sure.arrays()
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


def read_confidence(folder: Path) -> Confidence | None:
    """Return the confidence of a run directory; None: it has none.

    Raises:
        RunDirectoryError: the file is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        return Confidence.of_arrays(load_file(path))
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise RunDirectoryError(
            f"{path} is damaged ({error}): run the experiment again, or delete the file and do "
            "without calibrated probabilities"
        ) from None
