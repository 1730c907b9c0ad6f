"""A simulation as one job in NVFlare's simulator, whose client processes do the parties' work.

A party is always answered for by the same process. These classes are for the simulator alone: no site allows them.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from fedunseen.engines.carriers.nvflare.job import Coordinator, LocalParty, Place
from fedunseen.engines.remote.link import found


class Switch(Coordinator):
    """The controller of a simulation's job; it ends with any client process, and our process starts another job."""

    def __init__(self, parties: int, processes: int) -> None:
        super().__init__()
        self.count, self.processes = parties, processes

    def site(self, party: str) -> str:
        """Return the process that answers for a party."""
        return f"process-{int(party) % self.processes}"

    def parties(self) -> dict[str, str]:
        """Return all parties, once all processes are there."""
        ready, names = len(self.sites) == self.processes, map(str, range(self.count))
        return {name: self.sites[self.site(name)] for name in names} if ready else {}

    def _now(self, name: str, token: str | None) -> None:
        if token is None and name in self.sites:
            os._exit(1)
        super()._now(name, token)


class Worker(LocalParty):
    """The executor of a simulation's job: it answers one question after another.

    Args:
        factory: the address of a function to call once.
        argument: what to call it with.
    """

    def __init__(self, factory: str, argument: str) -> None:
        super().__init__()
        self.factory, self.argument = factory, argument

    def answering(self, place: Place) -> Callable[[str, bytes], bytes]:
        """Return what answers for any party."""
        return found(self.factory)(self.argument)
