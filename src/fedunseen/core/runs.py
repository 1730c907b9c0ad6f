"""What can be said of a run directory, and of a question to its model, without waiting for
PyTorch.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedunseen.core.errors import DataError, ExperimentError, RunDirectoryError
from fedunseen.core.files import DEEPEST, check_ordinary, depth, parse_json
from fedunseen.core.removed_settings import without_removed
from fedunseen.core.run_forms import FORMS, has_form

AMONG = ("all", "unseen", "given")
"""Which classes are ranked: all, those that no one trained on, or those that come with the
question.
"""

MANIFEST_KEYS = ("experiment", "data_fingerprint", "input_shape", "seed", "task", "traits")
"""Keys that a manifest must have."""


def check_is_run(run: Path) -> Path:
    """Return the path of a run directory; refuse another folder, whose manifest is missing."""
    if not (run / "manifest.json").exists():
        remedy = "name one that `fedunseen run` has made"
        if (run / "cells").is_dir():
            remedy = f"it is a sweep's, whose runs are in {run / 'cells'}"
        raise RunDirectoryError(f"{run} is not a run directory: {remedy}")
    return run


def read_manifest(run: Path) -> dict[str, Any]:
    """Read the manifest of a run directory."""
    path = check_is_run(run) / "manifest.json"
    problem = f"{path} is damaged: restore it, or run the experiment again in another --out"
    manifest = read_json(path, problem, MANIFEST_KEYS)
    shape = manifest["input_shape"]
    pictures = manifest.get("image_shape")
    if min(shape, default=0) < 1 or (
        pictures is not None
        and (len(pictures) not in (2, 3) or math.prod(pictures) != math.prod(shape))
    ):
        raise RunDirectoryError(problem)
    manifest["experiment"] = {
        name: without_removed(name, content) if isinstance(content, dict) else content
        for name, content in manifest["experiment"].items()
    }
    return manifest


def read_result(run: Path) -> dict[str, Any] | None:
    """Read the final numbers of a run directory; None while the run is not complete."""
    path = run / "result.json"
    if not path.exists():
        return None
    return read_json(
        path, f"{path} is damaged: delete it and resume the run", ("rounds", "selection")
    )


def check_question(among: str, top: int | None) -> None:
    """Refuse a question that no run can answer."""
    if among not in AMONG:
        raise ExperimentError(f"--among {among}: choose all, unseen or given")
    if top is not None and top < 1:
        raise ExperimentError(f"--top {top}: ask for at least 1 class")


def check_where(keys: Sequence[str]) -> None:
    """Refuse to change more of a finished run than where things are on this machine."""
    for key in keys:
        if key.split(".")[0] not in ("data", "encoder"):
            raise ExperimentError(
                f"--set {key}: a finished run takes settings of data and encoder alone"
            )


def read_json(path: Path, problem: str, needed: Sequence[str]) -> dict[str, Any]:
    """Read a table of a file, which must have some keys; ``problem`` says what to do if it is
    damaged.
    """
    try:
        check_ordinary(path)
        value = parse_json(path.read_bytes())
    except (OSError, ValueError, DataError):
        raise RunDirectoryError(problem) from None
    if (
        not isinstance(value, dict)
        or any(key not in value for key in needed)
        or depth(value) > DEEPEST
        or not has_form(value, FORMS.get(path.name, {}))
    ):
        raise RunDirectoryError(problem)
    return value
