"""Messages that are under way for longer than a round, so that late replies count; over any link.

A link's ``exchange`` ends with its slowest answer. Here each message is an exchange of its own, in a thread that only
waits, so that nobody waits for anybody else.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass

from fedunseen.engines.remote.link import Link
from fedunseen.strategies import Instruction, Reply

__all__ = ["Arrived", "Errand", "Errands"]


@dataclass(frozen=True, eq=False)
class Errand:
    """A client at work.

    Attributes:
        client: who.
        version: the round (counted from 0) in which it was asked.
        told: what it was told.
    """

    client: int
    version: int
    told: Instruction


@dataclass(frozen=True, eq=False)
class Arrived:
    """A reply that has been read, and waits to be merged.

    Attributes:
        errand: what it answers.
        reply: its update as the client made it.
        size: bytes of the update, as it came.
    """

    errand: Errand
    reply: Reply
    size: int


class Errands:
    """Sends messages, and gives the answers of any round as they come.

    Args:
        link: to the parties.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.under_way: dict[int, Errand] = {}
        self._came: queue.SimpleQueue[tuple[Errand, bytes | None]] = queue.SimpleQueue()

    def send(self, errand: Errand, name: str, message: bytes, timeout: float) -> None:
        """Ask a client that is not at work; its answer comes from :meth:`next`."""
        assert errand.client not in self.under_way
        self.under_way[errand.client] = errand

        def wait() -> None:
            answer = None
            try:
                ((_, answer),) = self.link.exchange({name: message}, timeout)
            finally:
                self._came.put((errand, answer))

        threading.Thread(target=wait, name=f"answer of {name}", daemon=True).start()

    def next(self, patience: float) -> tuple[Errand, bytes | None] | None:
        """Return the next answer, None in place of one that will not come; None if nothing comes in ``patience`` s."""
        try:
            errand, answer = self._came.get(timeout=patience)
        except queue.Empty:
            return None
        del self.under_way[errand.client]
        return errand, answer
