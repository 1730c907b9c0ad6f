"""The exceptions that users meet: each says in one sentence what is wrong, where, and what to do
about it.
"""

import difflib
from collections.abc import Iterable
from typing import Self

OTHER_SPACE = (
    "{} are of another class space or another quantization: all parties need the same classes with "
    "the same descriptions, in the same order, and the same [data]"
)


class FedUnseenError(Exception):
    """The run cannot continue: follow the remedy that the message names.

    Base of every error that the user can fix; the command prints it and exits with code 2.

    Attributes:
        code: stable name of what is wrong; that of the class where the error has none of its own.
    """

    code: str = "failed"

    def __init__(self, message: str = "", code: str = "") -> None:
        super().__init__(message)
        if code:
            self.code = code

    def reworded(self, message: str) -> Self:
        """Return the error with another message and the same code."""
        return type(self)(message, self.code)


class ExperimentError(FedUnseenError):
    """The experiment file, an override or an option is wrong: correct the key or the option that
    the message names.
    """

    code = "experiment"


class ArgumentError(FedUnseenError, ValueError):
    """An argument of a function of the library is wrong: correct the one that the message names."""

    code = "argument"


class DataError(FedUnseenError):
    """A data file is missing, damaged or inconsistent: correct the file that the message names."""

    code = "data"


class RunDirectoryError(FedUnseenError):
    """The run directory cannot be used: choose another or correct what the message names."""

    code = "run-directory"


class ConnectionLost(FedUnseenError):
    """The coordinator cannot be reached: correct the address or the network, or start it again."""

    code = "connection-lost"


class RefusedError(FedUnseenError):
    """The other side does not accept this one: correct the certificate, version or data that the
    message names.
    """

    code = "refused"


class QuorumError(FedUnseenError):
    """Too few parties answered: let them come back and continue with ``--resume``."""

    code = "quorum"


class StorageError(FedUnseenError):
    """There is no room on a disk: make room where the message says."""

    code = "storage"


class MissingDependencyError(FedUnseenError):
    """An optional library is needed: install the extra that the message names."""

    code = "missing-dependency"


def counted(number: int, noun: str) -> str:
    """Return ``"1 sample"`` or ``"2 samples"``."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def part_of(number: int, of: int, kind: str) -> str:
    """Return how many things of a kind, a plural, as the subject of a sentence.

    Example:
        >>> part_of(2, 5, "seen classes"), part_of(1, 1, "seen classes")
        ('2 of 5 seen classes', 'The only seen class')
    """
    if of == 1:
        return f"The only {kind.removesuffix('es') if kind.endswith('sses') else kind[:-1]}"
    return f"{number} of {of} {kind}"


FEW = 12
"""So many known names are listed whole; of more, only the nearest."""

_LONGEST = 200  # characters of a name in a message


def shortened(name: str) -> str:
    """Return a name as it is compared and shown: one that was sent may have megabytes."""
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."


def unknown(kind: str, name: str, choices: Iterable[str]) -> str:
    """Say that ``name`` is unknown: with the nearest known name and all others, or with the nearest
    three of many.

    Example:
        >>> unknown("method", "fedzls", ["fedzsl", "classifier"])
        "unknown method 'fedzls': did you mean 'fedzsl'? (known: classifier, fedzsl)"
        >>> unknown("method", "resnet", ["fedzsl", "classifier"])
        "unknown method 'resnet' (known: classifier, fedzsl)"
        >>> unknown("preset", "sun-fedzls", [f"{data}-{method}" for data in ("awa2", "cub", "sun", "apy")
        ...                                  for method in ("fedzsl", "distzsl", "free", "clswgan")])
        "unknown preset 'sun-fedzls': did you mean 'sun-fedzsl'? (the nearest: sun-fedzsl,
        cub-fedzsl, sun-free)"
    """
    name = shortened(name)
    names = sorted(choices)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f": did you mean {close[0]!r}?" if close else ""
    if len(names) > FEW:
        nearest = ", ".join(difflib.get_close_matches(name, names, 3, 0.0))
        return f"unknown {kind} {name!r}{hint} (the nearest: {nearest})"
    return f"unknown {kind} {name!r}{hint} (known: {', '.join(names)})"
