"""A link carries bytes from the coordinator to the parties, and their answers back.

A party is a client of a federation, on a machine of its own (deployment) or in a worker process
(simulation). :mod:`fedunseen.deploy.remote.wire` says what the bytes mean. The coordinator decides
whether it believes an answer. Requests over a link have time-outs, and what gets lost is sent
again. Nothing here starts a thread: a link completes the futures of :meth:`Link.ask`. A party
computes the answer to a message that comes again only once
(:meth:`~fedunseen.deploy.remote.party.Party.answer`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from fedunseen.federation.engine import PartyStatus

Key = TypeVar("Key")

_log = logging.getLogger("fedunseen.federation")

Answer = Callable[[bytes], bytes]
"""A party's answer to a message. It never raises: an error is part of the answer."""


LENGTH = 4
"""Bytes of an answer that say how long its header is, the largest part first."""
HEADER = 2**20
"""Bytes that a header may have at most."""
_NAMES_LENGTH = 8  # bytes

SPOOLED = 2**20
"""Bytes from which on an answer waits on disk until it is read."""


@dataclass(frozen=True, eq=False)
class Letter:
    """A message whose body is that of the messages to others too, and in memory once."""

    head: bytes
    body: memoryview

    def __len__(self) -> int:
        return len(self.head) + len(self.body)


class Spooled:
    """An answer whose tensors are on disk, in a file without a name that is gone with the process.
    The header, which comes first with its length before it, stays in memory, so that tensors are
    read where they lie: a copy of them would need the disk twice.

    Args:
        folder: where; None: where temporary files are.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self.head = bytearray()
        self._missing = LENGTH  # bytes of the head that have not come yet

    def add(self, piece: bytes) -> None:
        """Append bytes.

        Raises:
            OSError: the disk is full.
        """
        rest = memoryview(piece)
        while rest and self._missing:
            part = rest[: self._missing]
            self.head += part
            rest = rest[len(part) :]
            self._missing -= len(part)
            if not self._missing and len(self.head) == LENGTH:
                length = int.from_bytes(self.head, "big")
                self._missing = length if length <= HEADER else 0  # no header is longer
        while rest:
            rest = rest[self.file.write(rest) :]

    def __len__(self) -> int:
        return len(self.head) + os.fstat(self.file.fileno()).st_size

    def __bytes__(self) -> bytes:
        return bytes(self.head) + self._stored(0, len(self))

    def first(self) -> bytes:
        """Return the header and its length, and the length of the names of tensors after it."""
        return bytes(self.head) + self._stored(0, _NAMES_LENGTH)

    def _stored(self, first: int, count: int) -> bytes:
        return os.pread(self.file.fileno(), count, first)

    @property
    def tensors(self) -> Path:
        """The file of all that comes after the header, as long as this object is there."""
        return Path(f"/dev/fd/{self.file.fileno()}")


Content = bytes | Spooled
"""A party's answer."""


class PartyGone(Exception):
    """No answer will come: the party is not connected, its process ended, or it crashed."""


class MessageLost(Exception):
    """The message or its answer got lost, and the party is still connected: ask it again."""


class Link(Protocol):
    """Reaches the parties of a federation from the coordinator: the interface that each carrier
    implements.

    At a party, a carrier passes each message that arrives to an :data:`Answer`, and sends back what
    it returns.
    """

    def present(self) -> Mapping[str, str]:
        """Return the parties that are connected now: name -> a token that changes when the party
        starts again.
        """

    def ask(self, name: str, message: bytes) -> Future[Any]:
        """Send a party a message. A link with an attribute ``letters`` gets a :class:`Letter` too.

        Returns:
            Its answer, bytes or :class:`Spooled`, in a future that fails with :class:`PartyGone`
            or :class:`MessageLost` as soon as that is known. Canceling it gives the message up; a
            later answer is dropped.
        """


def barred(link: Any) -> Mapping[str, str]:
    """Return which parties a link keeps out, and why; most carriers leave that to others."""
    reasons = getattr(link, "barred", None)
    return {} if reasons is None else reasons()


def revoked(link: Any) -> Collection[str]:
    """Return which parties a link lets in no more; most carriers leave that to others."""
    found = getattr(link, "revoked", None)
    return () if found is None else found()


def may_return(link: Any) -> bool:
    """Return whether a party that has refused can start anew; at most carriers it can."""
    return bool(getattr(link, "may_return", True))


def complete(future: Future[Any], result: Content | Exception) -> None:
    """Complete a future of :meth:`Link.ask` with an answer or an error, unless it is cancelled or
    complete already.
    """
    with contextlib.suppress(InvalidStateError):
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


class Counted:
    """A link that counts the messages of each party; it takes letters where the counted one does."""

    def __init__(self, link: Any, parties: Sequence[PartyStatus]) -> None:
        self.link = link
        if hasattr(link, "letters"):
            self.letters = link.letters
        self.traffic = {party.name: party.traffic for party in parties}

    def present(self) -> Mapping[str, str]:
        """Return the parties that are connected now."""
        parties: Mapping[str, str] = self.link.present()
        return parties

    def barred(self) -> Mapping[str, str]:
        """Return which parties are kept out, and why."""
        return barred(self.link)

    def revoked(self) -> Collection[str]:
        """Return which parties are let in no more."""
        return revoked(self.link)

    def ask(self, name: str, message: bytes | Letter) -> Future[Any]:
        """Send a party a message."""
        traffic = self.traffic[name]
        traffic.asked += 1
        traffic.sent += len(message)

        def count(done: Future[Any]) -> None:
            if done.cancelled() or done.exception() is not None:
                traffic.lost += 1
                return
            traffic.received += len(done.result())
            traffic.heard = time.time()

        future: Future[Any] = self.link.ask(name, message)
        future.add_done_callback(count)
        return future


@dataclass(frozen=True)
class Host:
    """Where a coordinator listens."""

    folder: Path
    address: str
    port: int
    kit: Path | None
    parties: tuple[str, ...]


def untold(connected: bool, text: str) -> None:
    """Take what no one wants to know."""


@dataclass(frozen=True)
class Join:
    """Where a party finds its coordinator."""

    folder: Path
    address: str
    port: int
    kit: Path | None
    name: str
    patience: float
    told: Callable[[bool, str], None] = untold
    """Takes whether the coordinator is reached, and what to say of it."""


@dataclass(eq=False)
class _Request:
    name: str
    message: bytes | Letter
    deadline: float
    future: Future[Any]


class PendingRequests(Generic[Key]):
    """Sends messages and returns the answers as they arrive, also those to earlier rounds."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.pending: dict[Key, _Request] = {}
        self._done: queue.SimpleQueue[tuple[Key, Future[Any]]] = queue.SimpleQueue()

    def send(self, key: Key, name: str, message: bytes | Letter, timeout: float) -> None:
        """Ask a party; :meth:`next` returns its answer, or that there is none, with ``key``."""
        assert key not in self.pending
        request = _Request(name, message, time.monotonic() + timeout, Future())
        self.pending[key] = request
        self._ask(key, request)

    def _ask(self, key: Key, request: _Request) -> None:
        letters: Any = hasattr(self.link, "letters")
        message: Any = request.message
        if isinstance(message, Letter) and not letters:
            message = message.head + message.body
        request.future = future = self.link.ask(request.name, message)
        future.add_done_callback(lambda done: self._done.put((key, done)))

    def next(self, patience: float = float("inf")) -> tuple[Key, Content | None] | None:
        """Return the next answer, None in place of one that will not come; None if nothing comes in
        ``patience`` s.
        """
        end = time.monotonic() + patience
        while True:
            due = min(self.pending.items(), key=lambda item: item[1].deadline, default=None)
            now = time.monotonic()
            first = end if due is None else min(end, due[1].deadline)
            try:
                key, future = self._done.get(
                    timeout=None if first == float("inf") else max(0.0, first - now)
                )
            except queue.Empty:
                if due is not None and due[1].deadline <= time.monotonic():
                    self.pending.pop(due[0]).future.cancel()
                    return due[0], None
                if end <= time.monotonic():
                    return None
                continue
            request = self.pending.get(key)
            if request is None or request.future is not future:
                continue  # given up
            error = future.exception()
            if isinstance(error, MessageLost) and time.monotonic() < request.deadline:
                _log.info(
                    "%s is asked again, since the message or its answer was lost", request.name
                )
                self._ask(key, request)
                continue
            del self.pending[key]
            return key, None if error is not None else future.result()

    def close(self) -> None:
        """Give up what has no answer yet."""
        while self.pending:
            self.pending.popitem()[1].future.cancel()


def exchange(
    link: Link, messages: Mapping[str, bytes | Letter], timeout: float
) -> Iterator[tuple[str, Content | None]]:
    """Send each party its message, all at once, and yield the answers in order of arrival."""
    requests: PendingRequests[str] = PendingRequests(link)
    try:
        for name, message in messages.items():
            requests.send(name, name, message, timeout)
        while requests.pending and (answer := requests.next()) is not None:
            yield answer
    finally:
        requests.close()
