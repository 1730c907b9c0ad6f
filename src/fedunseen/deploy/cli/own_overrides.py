"""The option ``--set`` of a party."""

from typing import Any

from fedunseen.cli.console import overrides_of
from fedunseen.deploy.own_settings import check_own


def own_overrides(overrides: list[str] | None) -> dict[str, Any]:
    """Return the settings of ``--set`` by dotted key; refuse those that a party cannot decide."""
    settings = overrides_of(overrides)
    check_own(settings)
    return settings
