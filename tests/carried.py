"""A coordinator's place on a carrier, and parties in threads of this process that answer with their name."""

import contextlib
import datetime
import threading
from types import SimpleNamespace

import pytest

from fedunseen.core.errors import FedUnseenError
from fedunseen.engines.carriers import websocket
from fedunseen.engines.remote.link import Host, Join
from processes import GUARD, command, free_port, until

HERE = "127.0.0.1"


class Joined:
    """A party in a thread; it ends when it is sent ``b"last"``, or by an error."""

    def __init__(self, place, answer=None):
        self.done, self.error, self.said = threading.Event(), None, answer or self.named
        self.place = place
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def named(self, message):
        if message == b"last":
            self.done.set()
        return f"{self.place.name}:".encode() + message

    def _work(self):
        try:
            websocket.join(self.place, lambda message: self.said(message), self.done)
        except FedUnseenError as error:
            self.error = error

    def ended(self):
        """Wait for its end; return the error with which it ended."""
        self.thread.join(GUARD)
        assert not self.thread.is_alive()
        return self.error


class Place:
    """Where a coordinator listens, and the credentials of its parties."""

    def __init__(self, folder, names, secure=True, authority=None):
        self.folder, self.names, self.port, self.kit = folder, names, free_port(), None
        self.joined = []
        if secure:
            self.kit = folder / "kit"
            kept = [] if authority is None else ["--authority", authority]
            command("certs", "--parties", ",".join(names), "--days", 2, "--out", self.kit, *kept)

    def host(self, folder="host", address=HERE, names=None):
        kit = self.kit and self.kit / "coordinator"
        return websocket.host(Host(self.folder / folder, address, self.port, kit, names or self.names))

    def at(self, name, kit="", folder="", address=HERE, patience=GUARD):
        if kit == "":
            kit = self.kit and self.kit / name
        return Join(self.folder / (folder or name), address, self.port, kit, name, patience)

    def join(self, name, answer=None, **how):
        self.joined.append(Joined(self.at(name, **how), answer))
        return self.joined[-1]

    @contextlib.contextmanager
    def hosting(self, name, answer=None):
        """Host, with one party that has joined."""
        with self.host() as link:
            self.join(name, answer)
            until(link.present)
            yield link

    def end(self):
        """End all parties; how they end is of no interest any more."""
        for party in self.joined:
            party.done.set()
            party.ended()

    def refused(self, name, patience=0.5, **how):
        """Return why a party cannot join."""
        with pytest.raises(FedUnseenError) as error:
            websocket.join(self.at(name, patience=patience, **how), bytes, threading.Event())
        return f"{type(error.value).__name__}: {error.value}"


def days_ago(days):
    """Return what a carrier needs of ``datetime``, on a machine whose clock is behind."""
    past = SimpleNamespace(now=lambda zone: datetime.datetime.now(zone) - datetime.timedelta(days=days))
    return SimpleNamespace(**{**vars(datetime), "datetime": past})
