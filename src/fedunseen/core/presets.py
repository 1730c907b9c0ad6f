"""The files of experiments, those of the package among them, found without waiting for PyTorch."""

import difflib
import os
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from fedunseen.core.errors import ExperimentError, unknown
from fedunseen.core.files import check_ordinary

PRESETS = files("fedunseen") / "experiment" / "presets"


def names_in(folder: Traversable) -> list[str]:
    """Return the names of the TOML files in a folder of the package."""
    return sorted(Path(item.name).stem for item in folder.iterdir() if item.name.endswith(".toml"))


def preset_names() -> list[str]:
    """Return the presets shipped in the package."""
    return names_in(PRESETS)


@cache
def preset_text(name: str) -> str:
    """Return a preset's TOML text."""
    return (PRESETS / f"{name}.toml").read_text("utf-8")


def experiment_text(source: str | Path) -> tuple[str, Path]:
    """Return the TOML text of a preset or a file, and the folder that paths in it are relative
    to.
    """
    path = Path(source)
    if is_shipped(path):
        if str(source) not in preset_names():
            raise ExperimentError(
                unknown("preset", str(source), preset_names())
                + "; an experiment file ends in .toml"
            )
        return preset_text(str(source)), Path()
    preset = ""
    if difflib.get_close_matches(path.stem, preset_names(), 1, 0.75):  # others only mislead
        near = ", ".join(difflib.get_close_matches(path.stem, preset_names(), 3, 0.0))
        preset = f", or a preset (the nearest: {near})"
    remedy = f"name an experiment file that is there{preset}; fedunseen init FOLDER writes one"
    return readable_text(path, remedy), path.parent


def data_folder() -> Path:
    """Return where data sets are looked for: ``$FEDUNSEEN_DATA``, or ``data`` here."""
    return Path(os.environ.get("FEDUNSEEN_DATA", "data"))


def is_shipped(path: Path) -> bool:
    """Return whether a path is the name of a file of the package; a folder may well have such a
    name.
    """
    return path.suffix != ".toml" and not os.path.isfile(path)


def readable_text(path: Path, remedy: str) -> str:
    """Return a file's text without the byte-order mark that some editors begin it with."""
    try:
        check_ordinary(path)
        return path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise ExperimentError(f"{path} is missing: {remedy}") from None
    except OSError as error:
        raise ExperimentError(f"{path} cannot be read ({error.strerror}): {remedy}") from None
    except UnicodeDecodeError:
        raise ExperimentError(f"{path} is not a text file in UTF-8: save it as UTF-8") from None
