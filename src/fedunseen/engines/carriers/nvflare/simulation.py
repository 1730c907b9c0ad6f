"""A simulation as one job in NVFlare's simulator, whose client processes do the parties' work.

A party is always answered for by the same process. These classes are for the simulator alone: no site allows them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from nvflare.apis.shareable import Shareable

from fedunseen.engines.carriers.nvflare.job import PATIENCE, Coordinator, LocalParty, Place
from fedunseen.engines.remote.link import found
from fedunseen.engines.remote.relay import ENDED


class Switch(Coordinator):
    """The controller of a simulation's job; it ends with any client process, and our process starts another job."""

    def __init__(self, parties: int, processes: int) -> None:
        super().__init__()
        self.parties = {str(party): f"process-{party % processes}" for party in range(parties)}
        self.workers: dict[str, str] = {}  # processes that are there -> their tokens

    def _now(self, name: str, token: str | None) -> None:
        with self.lock, contextlib.suppress(*ENDED):
            if self.workers.get(name) == token:
                return
            if token is None:
                os._exit(1)
            self.workers[name] = token
            if self.workers.keys() == set(self.parties.values()):
                self.sites = {party: self.workers[process] for party, process in self.parties.items()}
                self.channel.send({"parties": self.sites})

    def _ask(self, number: int, name: str, body: bytes) -> None:
        super()._ask(number, name, name.encode() + b" " + body)

    def _call(self, name: str, content: Mapping[str, Any], patience: float = PATIENCE) -> Shareable | None:
        return super()._call(self.parties.get(name, name), content, patience)


class Worker(LocalParty):
    """The executor of a simulation's job: it answers for any party.

    Args:
        factory: the address of a function to call once.
        argument: what to call it with.
    """

    def __init__(self, factory: str, argument: str) -> None:
        super().__init__()
        self.factory, self.argument = factory, argument

    def answering(self, place: Place) -> Callable[[bytes], bytes]:
        """Return what answers: to a party's name, a space and a message."""
        answer = found(self.factory)(self.argument)

        def to(question: bytes) -> bytes:
            name, _, message = question.partition(b" ")
            return answer(name.decode(), message)

        return to
