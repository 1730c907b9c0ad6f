"""A link carries bytes from the coordinator to the parties, and their answers back.

A party is a client of a federation, on a machine of its own (deployment) or in a worker process (simulation).
:mod:`fedunseen.engines.remote.wire` says what the bytes mean. The coordinator decides whether it believes an answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Answer = Callable[[bytes], bytes]
"""A party's answer to a message. It never raises: an error is part of the answer."""

LOOKING: Mapping[str, bool] = {"looking": True}
"""Marks a line of the log that says that a party cannot reach its coordinator just now."""


class PartyGone(Exception):
    """No answer will come: the party is not connected, its process ended, or it crashed."""


class MessageLost(Exception):
    """The message or its answer got lost, and the party is still connected: ask it again."""


class Link(Protocol):
    """Reaches the parties of a federation from the coordinator: the interface that each carrier implements.

    At a party, a carrier passes each message that arrives to an :data:`Answer`, and sends back what it returns.
    """

    def present(self) -> Mapping[str, str]:
        """Return the parties that are connected now: name -> a token that changes when the party starts again."""

    def ask(self, name: str, message: bytes) -> Future[bytes]:
        """Send a party a message.

        Returns:
            Its answer, in a future that fails with :class:`PartyGone` or :class:`MessageLost` as soon as that is known.
            Canceling it gives the message up; a later answer is dropped.
        """


def complete(future: Future[bytes], result: bytes | Exception) -> None:
    """Complete a future of :meth:`Link.ask` with an answer or an error, unless it is cancelled or complete already."""
    with contextlib.suppress(InvalidStateError):
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


@dataclass(frozen=True)
class Host:
    """Where a coordinator listens."""

    folder: Path
    address: str
    port: int
    kit: Path | None
    parties: tuple[str, ...]


@dataclass(frozen=True)
class Join:
    """Where a party finds its coordinator."""

    folder: Path
    address: str
    port: int
    kit: Path | None
    name: str
    patience: float
