"""The files of sweeps, those of the package among them, found without waiting for PyTorch."""

from importlib.resources import files
from pathlib import Path

from fedunseen.core.errors import ExperimentError, unknown
from fedunseen.core.presets import is_shipped, names_in, readable_text

SWEEPS = files("fedunseen.research.sweeps")


def sweep_names() -> list[str]:
    """Return the sweeps shipped in the package."""
    return names_in(SWEEPS)


def sweep_text(name: str) -> str:
    """Return a shipped sweep's TOML text."""
    return (SWEEPS / f"{name}.toml").read_text("utf-8")


def sweep_source(source: str | Path) -> tuple[str, Path | None]:
    """Return the TOML text of a shipped sweep or a file, and the file's folder."""
    path = Path(source)
    if not is_shipped(path):
        remedy = f"name a sweep file or a shipped sweep ({', '.join(sweep_names())})"
        return readable_text(path, remedy), path.parent
    if str(source) not in sweep_names():
        raise ExperimentError(
            unknown("sweep", str(source), sweep_names()) + "; a sweep file ends in .toml"
        )
    return sweep_text(str(source)), None
