"""What parties may be called, and the file that lists them."""

import re
from collections.abc import Sequence

from fedunseen.core.errors import ExperimentError

COORDINATOR = "coordinator"
"""The name of the folder that no party may have."""

TAKEN = (COORDINATOR, "ca", "server")
"""Names that no party may have: a folder's, and those of certificates in it."""

FEDERATION = "federation.json"
"""The name of the signed list of parties, in every credentials folder."""

_NAME = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9-]{0,62}"
)  # what may stand in a certificate, a folder's name and a host's


def party_names(names: Sequence[str]) -> list[str]:
    """Return the names of parties, checked: one rule for their folders and for their
    certificates.
    """
    stripped = [name.strip() for name in names]
    for name in stripped:
        if not _NAME.fullmatch(name) or name.casefold() in TAKEN:
            raise ExperimentError(
                f"{name!r} cannot be a party's name: take up to 63 letters, digits and hyphens, no "
                f"hyphen at the beginning, and none of {', '.join(TAKEN)}"
            )
    if len({name.casefold() for name in stripped}) != len(stripped):
        raise ExperimentError(
            f"two of the parties {', '.join(stripped)} have the same name: rename one"
        )
    return stripped
