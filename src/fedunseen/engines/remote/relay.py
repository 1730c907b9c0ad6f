"""The relay: a Unix socket between FedUnseen's processes ("ours") and those of a carrier, and a Link over it.

Standard library only, since a carrier's process imports it; nothing is pickled: a frame is a small JSON object and
bytes. Ours has a :class:`Port` that serves a :class:`RelayServer` (at the coordinator, whose docstring has the frames)
or :func:`answering` (at a party); the carrier's calls :func:`dial`, whose environment is :attr:`Port.environment`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from fedunseen.engines.remote.link import PartyGone, complete

ENDED = (EOFError, OSError, AuthenticationError)
"""What a channel raises when its other end has gone."""

PATH, KEY = "FEDUNSEEN_RELAY", "FEDUNSEEN_RELAY_KEY"  # names in the environment
LONGEST = 100  # characters of a Unix socket's path; the system takes 107


class Channel:
    """A connection that carries frames; any thread may send, one receives."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.connection = connection
        self.sending = threading.Lock()

    def send(self, head: Mapping[str, Any], body: bytes | memoryview = b"") -> None:
        """Send a frame; raises one of :data:`ENDED` if no one is there."""
        first, second = json.dumps(dict(head)).encode(), memoryview(body)  # a bad half: neither is sent
        with self.sending:
            self.connection.send_bytes(first)
            self.connection.send_bytes(second)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Wait for a frame; raises one of :data:`ENDED` if no one is there."""
        head = json.loads(self.connection.recv_bytes())
        return head, self.connection.recv_bytes()

    def close(self) -> None:
        """End the connection."""
        self.connection.close()


def dial(environment: Mapping[str, str] = os.environ) -> Channel:
    """Connect a carrier's process to ours; raises one of :data:`ENDED` if ours has gone."""
    return Channel(Client(environment[PATH], family="AF_UNIX", authkey=bytes.fromhex(environment[KEY])))


class Port:
    """Where a carrier's processes reach ours."""

    def __init__(self, folder: Path, serve: Callable[[Channel], None]) -> None:
        self.serve = serve
        self.own: Path | None = None
        folder.mkdir(parents=True, exist_ok=True)
        if len(str(folder.resolve())) + 8 > LONGEST:
            folder = self.own = Path(tempfile.mkdtemp(prefix="fedunseen-"))
        folder.chmod(0o700)
        self.path = folder.resolve() / "relay"
        self.path.unlink(missing_ok=True)  # of a process that was killed
        key = secrets.token_bytes(32)
        self.environment = {PATH: str(self.path), KEY: key.hex()}
        self.listener = Listener(str(self.path), family="AF_UNIX", backlog=64, authkey=key)
        self.closed = False
        self.channels: set[Channel] = set()
        self.thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Port:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.closed = True
        with contextlib.suppress(*ENDED):
            dial(self.environment).close()  # wakes the thread that waits for connections
        self.thread.join(1)
        self.listener.close()
        for channel in list(self.channels):
            with contextlib.suppress(OSError):
                channel.close()
        if self.own is not None:
            with contextlib.suppress(OSError):
                self.own.rmdir()

    def _accept(self) -> None:
        while not self.closed:
            try:
                channel = Channel(self.listener.accept())
            except ENDED:
                time.sleep(0.01)
                continue
            threading.Thread(target=self._serve, args=(channel,), daemon=True).start()

    def _serve(self, channel: Channel) -> None:
        self.channels.add(channel)
        try:
            with contextlib.suppress(*ENDED):
                self.serve(channel)
        finally:  # on any error: the other end would wait for ever
            self.channels.discard(channel)
            with contextlib.suppress(OSError):
                channel.close()


def answering(answer: Callable[[bytes], bytes]) -> Callable[[Channel], None]:
    """Return what a party's :class:`Port` serves: it answers messages, one at a time."""
    turn = threading.Lock()

    def serve(channel: Channel) -> None:
        while True:
            _, message = channel.receive()
            with turn:
                reply = answer(message)
            channel.send({}, reply)

    return serve


def forward(channel: Channel, ask: Callable[[str, bytes], Future[bytes]]) -> None:
    """Be the relay of a :class:`RelayServer`: pass its messages on by ``ask``, and answers back, until it ends."""
    waiting: dict[int, Future[bytes]] = {}

    def resolve(number: int, done: Future[bytes]) -> None:
        waiting.pop(number, None)
        with contextlib.suppress(CancelledError, *ENDED):
            if done.exception() is None:
                channel.send({"id": number}, done.result())
            else:
                channel.send({"id": number, "lost": True})

    with contextlib.suppress(*ENDED):
        while True:
            head, body = channel.receive()
            if not head.get("drop"):
                waiting[head["id"]] = future = ask(head["to"], body)
                future.add_done_callback(partial(resolve, head["id"]))
            elif (given_up := waiting.get(head["id"])) is not None:
                given_up.cancel()


class RelayServer:
    """A Link over the relay that a carrier runs at the coordinator.

    Frames to the relay: ``{"id": n, "to": name}`` with a message; ``{"id": n, "drop": true}`` when no one waits for its
    answer any more. Frames from the relay: ``{"parties": {name: token}}`` whenever who is connected changes (who is not
    named has gone, and its open messages with it); ``{"id": n}`` with an answer; ``{"id": n, "lost": true}`` if none
    will come. Relays may come and go; the last one that dialled is used.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.numbers = itertools.count()
        self.channel: Channel | None = None
        self.connected: dict[str, str] = {}
        self.open: dict[int, tuple[str, str, Future[bytes]]] = {}  # party, token, answer

    def present(self) -> Mapping[str, str]:
        """Return the parties that are connected now: name -> a token that changes when the party starts again."""
        with self.lock:
            return dict(self.connected)

    def ask(self, name: str, message: bytes) -> Future[bytes]:
        """Send a party a message; see :class:`~fedunseen.engines.remote.link.Link`."""
        future: Future[bytes] = Future()
        number = next(self.numbers)
        with self.lock:
            channel, token = self.channel, self.connected.get(name)
            if channel is not None and token is not None:
                self.open[number] = (name, token, future)
        if channel is None or token is None:
            complete(future, PartyGone(name))
            return future
        future.add_done_callback(lambda done: self._drop(number) if done.cancelled() else None)
        try:
            channel.send({"id": number, "to": name}, message)
        except ENDED:
            self._resolve(number, PartyGone(name))
        return future

    def _drop(self, number: int) -> None:
        """Tell the relay that no one waits for the answer to a message any more."""
        with self.lock:
            channel, dropped = self.channel, self.open.pop(number, None)
        if channel is not None and dropped is not None:
            with contextlib.suppress(*ENDED):
                channel.send({"id": number, "drop": True})

    def _resolve(self, number: int, result: bytes | Exception) -> None:
        with self.lock:
            found = self.open.pop(number, None)  # a late answer finds nothing
        if found is not None:
            complete(found[2], result)

    def _now(self, present: dict[str, str]) -> None:
        with self.lock:
            self.connected = present
            gone = [(number, name) for number, (name, token, _) in self.open.items() if present.get(name) != token]
        for number, name in gone:
            self._resolve(number, PartyGone(name))

    def serve(self, channel: Channel) -> None:
        """Run a connection to a relay until it ends."""
        with self.lock:
            self.channel = channel
        try:
            while True:
                head, body = channel.receive()
                if self.channel is not channel:
                    return
                if "parties" in head:
                    self._now({str(name): str(token) for name, token in head["parties"].items()})
                else:
                    self._resolve(head["id"], PartyGone("its carrier lost it") if head.get("lost") else body)
        finally:
            with self.lock:
                last = self.channel is channel
                if last:
                    self.channel = None
            if last:
                self._now({})
