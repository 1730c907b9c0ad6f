"""What parties may be called."""

import re
from collections.abc import Sequence

from fedunseen.core.errors import ExperimentError

COORDINATOR = "coordinator"
"""The name of the folder that no party may have."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")  # what may stand in a certificate, a folder's name and a host's


def party_names(names: Sequence[str]) -> list[str]:
    """Return the names of parties, checked: one rule for their folders and for their certificates."""
    found = [name.strip() for name in names]
    for name in found:
        if not _NAME.fullmatch(name) or name.casefold() == COORDINATOR:
            raise ExperimentError(
                f"{name!r} cannot be a party's name: take up to 63 letters, digits and hyphens, no hyphen at the "
                f"beginning, and not {COORDINATOR!r}"
            )
    if len({name.casefold() for name in found}) != len(found):
        raise ExperimentError(f"two of the parties {', '.join(found)} have the same name: rename one")
    return found
