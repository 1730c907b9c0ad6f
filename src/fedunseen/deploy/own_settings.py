"""The settings that a party decides itself."""

from collections.abc import Iterable

from fedunseen.core.errors import ExperimentError

_SECTIONS = ("data", "run", "encoder", "engine", "method")


def check_own(settings: Iterable[str]) -> None:
    """Raise an ExperimentError for settings, by dotted key, that a party cannot decide itself."""
    if stray := [key for key in settings if key.split(".")[0] not in _SECTIONS]:
        raise ExperimentError(
            f"--set {stray[0]}: a party can set only data, encoder, method, engine and run"
        )
