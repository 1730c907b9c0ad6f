"""The exceptions that users meet: each says in one sentence what is wrong, where, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "OTHER_SPACE",
    "ArgumentError",
    "ConnectionLost",
    "DataError",
    "ExperimentError",
    "FedUnseenError",
    "MissingDependencyError",
    "QuorumError",
    "RefusedError",
    "RunDirectoryError",
    "unknown",
]


OTHER_SPACE = (
    "{} are of another class space or another quantization: all parties need the same classes with the same "
    "descriptions, in the same order, and the same [data]"
)


class FedUnseenError(Exception):
    """Base of every error that the user can mend; the command prints it and exits with code 2."""


class ExperimentError(FedUnseenError):
    """The experiment file or an override is wrong: mend the named key."""


class ArgumentError(FedUnseenError, ValueError):
    """An argument of a function of the library is wrong: mend the one that the message names."""


class DataError(FedUnseenError):
    """A data file is missing, damaged or inconsistent: mend the named file."""


class RunDirectoryError(FedUnseenError):
    """The run directory cannot be used: choose another or mend what the message names."""


class ConnectionLost(FedUnseenError):
    """The coordinator cannot be reached: mend the address or the network, or start it again."""


class RefusedError(FedUnseenError):
    """The other side does not accept this one: mend the certificate, the version or the data that the message names."""


class QuorumError(FedUnseenError):
    """Too few parties answered: let them come back and go on with ``--resume``."""


class MissingDependencyError(FedUnseenError):
    """An optional library is needed: install the extra that the message names."""


FEW = 12
"""So many known names are listed whole; of more, only the nearest."""


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Say that ``name`` is unknown: with the nearest known name and all others, or with the nearest three of many.

    Example:
        >>> unknown("method", "fedzls", ["fedzsl", "classifier"])
        "unknown method 'fedzls': did you mean 'fedzsl'? (known: classifier, fedzsl)"
        >>> unknown("method", "resnet", ["fedzsl", "classifier"])
        "unknown method 'resnet' (known: classifier, fedzsl)"
        >>> unknown("preset", "sun-fedzls", [f"{data}-{method}" for data in ("awa2", "cub", "sun", "apy")
        ...                                  for method in ("fedzsl", "distzsl", "free", "clswgan")])
        "unknown preset 'sun-fedzls': did you mean 'sun-fedzsl'? (the nearest: sun-fedzsl, cub-fedzsl, sun-free)"
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f": did you mean {close[0]!r}?" if close else ""
    if len(names) > FEW:
        return (
            f"unknown {kind} {name!r}{hint} (the nearest: {', '.join(difflib.get_close_matches(name, names, 3, 0.0))})"
        )
    return f"unknown {kind} {name!r}{hint} (known: {', '.join(names)})"
