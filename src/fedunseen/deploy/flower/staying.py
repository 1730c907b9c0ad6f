"""A party's process that stays, with its data in memory and the secrets of masked sums.

Flower starts a process for each message. That one passes the message on, by a Unix socket that a
file in the party's state folder names, to the process that stays, and starts it unless it runs.
Nothing is pickled: a message is bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from fedunseen.core.errors import FedUnseenError
from fedunseen.core.files import parse_json
from fedunseen.deploy.existing_federation import logged_to

PARTITION = {"partition-id", "num-partitions"}
"""What Flower's simulation writes into a node's configuration."""
START = 600.0  # seconds in which a party's process has to have read its data
IDLE = 3600.0  # seconds without a message after which it ends
# in a party's state folder
RELAY = "flower-relay.json"
LOG = "party.log"
_ENDED = (
    EOFError,
    OSError,
    AuthenticationError,
)  # what a connection raises when its other end has gone


def state_of(place: Mapping[str, Any]) -> Path:
    """Return the state folder of the party that a node's configuration describes."""
    return Path(str(place.get("state") or f"fedunseen-{place['name']}"))


def options_of(place: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a node's configuration decides for its site."""
    others = {"name", "parent", *PARTITION}  # the last are for other apps of the same node
    return {key: value for key, value in place.items() if key not in others}


def be_party(serve: Callable[[Mapping[str, Any]], None]) -> None:
    """Be the process of a party: serve by its node's configuration, the first argument, as JSON."""
    config = json.loads(sys.argv[1])
    try:
        with logged_to(sys.stderr):
            serve(config)
    except FedUnseenError as error:
        sys.exit(str(error))


def ask_party(party: str, place: Mapping[str, Any], message: bytes) -> bytes:
    """Pass a message on to the party's process, which is started unless it runs, and return its
    answer.

    Args:
        party: ``module:function`` of the process, which is called with the node's configuration as
            JSON in its first argument, and calls :func:`serve_party`.
        place: the node's configuration.
        message: for the party.
    """
    if not place.get("name"):
        raise FedUnseenError(
            "the node's configuration lacks the party's name: --node-config 'name=\"north\" ...'"
        )
    state = state_of(place)
    connection = _dial(state) or _start(party, place, state)
    with connection:
        try:
            connection.send_bytes(message)
            return connection.recv_bytes()
        except _ENDED:
            raise FedUnseenError(
                f"the process of party {place['name']} ended; {LOG} in its state folder says why"
            ) from None


def _dial(state: Path) -> Connection[Any, Any] | None:
    try:
        where = parse_json((state / RELAY).read_bytes())
        return Client(where["path"], family="AF_UNIX", authkey=bytes.fromhex(where["key"]))
    except (KeyError, ValueError, *_ENDED):
        return None


def _start(party: str, place: Mapping[str, Any], state: Path) -> Connection[Any, Any]:
    """Start a party's process, and wait until it has its data."""
    state.mkdir(parents=True, exist_ok=True)
    module, _, name = party.partition(":")
    arguments = json.dumps({**place, "parent": os.getppid()})
    with open(state / LOG, "ab") as log:
        command = [sys.executable, "-c", f"from {module} import {name}; {name}()", arguments]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    end = time.monotonic() + START
    while (connection := _dial(state)) is None:
        if process.poll() is not None or time.monotonic() > end:
            last = (state / LOG).read_text("utf-8", "replace").strip().rpartition("\n")[2]
            print(
                last, file=sys.stderr, flush=True
            )  # for this party alone: it may name its folders
            raise FedUnseenError(
                f"the process of party {place['name']} does not start; {LOG} in its state folder "
                "says why"
            )
        time.sleep(0.05)
    return connection


def serve_party(
    state: Path, answer: Callable[[bytes], bytes], done: threading.Event, parent: int
) -> None:
    """Answer what a node's short-lived processes pass on, until the run is over or the node's
    process has ended.
    """
    relay = state / RELAY
    beside = state / f"{RELAY}.new"
    socket = _Socket(answer)
    threading.Thread(target=socket.accept, daemon=True).start()
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump({"path": socket.listener.address, "key": socket.key.hex()}, file)
    beside.replace(relay)
    while not done.wait(0.5) and time.monotonic() - socket.last < IDLE and _runs(parent):
        pass
    relay.unlink(missing_ok=True)
    while socket.open and time.monotonic() - socket.last < 60:  # the last answer is on its way
        time.sleep(0.05)
    socket.listener.close()


class _Socket:
    """Answers messages, one at a time, of processes of the same user that have the key."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self.answer = answer
        self.key = secrets.token_bytes(32)
        self.listener = Listener(
            family="AF_UNIX", backlog=64, authkey=self.key
        )  # in a new folder of mode 0700
        self.turn = threading.Lock()
        self.open = 0  # connections
        self.last = time.monotonic()

    def accept(self) -> None:
        """Take connections, each in a thread of its own; all end with the process."""
        while True:
            try:
                connection = self.listener.accept()
            except _ENDED:
                time.sleep(0.01)
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection[Any, Any]) -> None:
        self.open += 1
        try:
            with connection, contextlib.suppress(*_ENDED):
                message = connection.recv_bytes()
                with self.turn:
                    reply = self.answer(message)
                self.last = time.monotonic()
                connection.send_bytes(reply)
        finally:
            self.open -= 1


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True
