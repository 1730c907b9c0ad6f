"""The experiment files that come with the package, found without waiting for PyTorch."""

from __future__ import annotations

import difflib
import os
from functools import cache
from importlib.resources import files
from pathlib import Path

from fedunseen.core.errors import ExperimentError, unknown

__all__ = ["experiment_text", "preset_names", "preset_text"]


def preset_names() -> list[str]:
    """Return the presets shipped in the package."""
    return list(_names())


@cache
def _names() -> tuple[str, ...]:
    folder = files("fedunseen") / "experiment" / "presets"
    return tuple(sorted(Path(item.name).stem for item in folder.iterdir() if item.name.endswith(".toml")))


@cache
def preset_text(name: str) -> str:
    """Return a preset's TOML text."""
    return (files("fedunseen") / "experiment" / "presets" / f"{name}.toml").read_text("utf-8")


def experiment_text(source: str | Path) -> tuple[str, Path]:
    """Return the TOML text of a preset or a file, and the folder that paths in it are relative to.

    Raises:
        ExperimentError: there is no such preset or file, or it is no text.
    """
    path = Path(source)
    if path.suffix != ".toml" and not os.path.isfile(path):  # a folder may well have a preset's name
        if str(source) in preset_names():
            return preset_text(str(source)), Path()
        raise ExperimentError(unknown("preset", str(source), preset_names()) + "; an experiment file ends in .toml")
    try:
        return path.read_text("utf-8-sig"), path.parent  # some editors begin a file with a byte order mark
    except FileNotFoundError:
        near = ", ".join(difflib.get_close_matches(path.stem, preset_names(), 3, 0.0))
        raise ExperimentError(
            f"{source} is missing: name an experiment file that is there, or a preset (the nearest: {near})"
        ) from None
    except OSError as error:
        raise ExperimentError(f"{source} cannot be read ({error.strerror}): name an experiment file") from None
    except UnicodeDecodeError:
        raise ExperimentError(f"{source} is not a text file in UTF-8: save it as UTF-8") from None
