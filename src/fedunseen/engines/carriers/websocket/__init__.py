"""Engine "websocket": each party keeps one connection to the coordinator open, which carries messages both ways.

It is secured by TLS, and a party proves that it has its key. ``server.py`` is the coordinator's side, ``client.py`` a
party's, which opens no port.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from fedunseen.core.errors import MissingDependencyError
from fedunseen.engines.remote.link import Answer, Host, Join, Link

if TYPE_CHECKING:
    from cryptography import x509

    from fedunseen.engines.remote.authority import Authority

__all__ = ["certificates", "host", "join", "renewed"]


def _check_installed(*libraries: str) -> None:
    if lacking := [library for library in libraries if find_spec(library) is None]:
        raise MissingDependencyError(f"engine 'websocket' needs {lacking[0]}: pip install 'fedunseen[masked]'")


def host(place: Host) -> AbstractContextManager[Link]:
    """Listen for the parties of a federation."""
    _check_installed("cryptography", "websockets")
    from fedunseen.engines.carriers.websocket.server import serve

    return serve(place)


def join(place: Join, answer: Answer, done: Event) -> None:
    """Be a party: answer messages until ``done`` is set."""
    _check_installed("cryptography", "websockets")
    from fedunseen.engines.carriers.websocket.client import answer_messages

    answer_messages(place, answer, done)


def certificates(out: Path, host: str, parties: Sequence[str], days: int, authority: Path | None = None) -> None:
    """Write ``out/coordinator/`` and ``out/NAME/`` for each party; see :func:`make`."""
    _check_installed("cryptography")
    from fedunseen.engines.carriers.websocket.kit import make

    make(out, host, parties, days, authority)


def renewed(authority: "Authority", name: str, out: Path) -> "x509.Certificate":
    """Write ``out/NAME/`` with a new key, and what the coordinator needs of it; return the certificate."""
    _check_installed("cryptography")
    from fedunseen.engines.carriers.websocket.kit import renew

    return renew(authority, name, out)
