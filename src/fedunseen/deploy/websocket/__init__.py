"""Engine "websocket": each party keeps one connection to the coordinator open, which carries
messages both ways.

It is secured by TLS, and a party proves that it has its key. ``server.py`` is the coordinator's
side, ``client.py`` a party's, which opens no port; ``kit.py`` makes their certificates and keys.
"""

from contextlib import AbstractContextManager
from importlib.util import find_spec
from threading import Event

from fedunseen.core.errors import MissingDependencyError
from fedunseen.deploy.remote.link import Answer, Host, Join, Link

__all__ = ["check", "host", "join"]


def check_installed(*libraries: str) -> None:
    """Raise MissingDependencyError where one of these is not installed."""
    if lacking := [library for library in libraries if find_spec(library) is None]:
        raise MissingDependencyError(
            f"engine 'websocket' needs {lacking[0]}: pip install 'fedunseen[masked]'"
        )


def check(place: Host) -> None:
    """Refuse credentials that do not fit and an address at which nothing can listen, before
    anything is written.
    """
    check_installed("cryptography", "websockets")
    from fedunseen.deploy.websocket.server import check as check_host

    check_host(place)


def host(place: Host) -> AbstractContextManager[Link]:
    """Listen for the parties of a federation."""
    check_installed("cryptography", "websockets")
    from fedunseen.deploy.websocket.server import serve

    return serve(place)


def join(place: Join, answer: Answer, done: Event) -> None:
    """Be a party: answer messages until ``done`` is set."""
    check_installed("cryptography", "websockets")
    from fedunseen.deploy.websocket.client import answer_messages

    answer_messages(place, answer, done)
