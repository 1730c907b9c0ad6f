"""Open the link to the parties of a run, before its stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import torch

from fedunseen.engines import DistributedSettings
from fedunseen.engines.carriers import carrier
from fedunseen.engines.remote.coordinator import PartyStatus, Session
from fedunseen.engines.remote.link import Simulate
from fedunseen.experiment.client_data import simulated
from fedunseen.experiment.manifest import clients_of
from fedunseen.experiment.setup import Setup

Meet = Callable[[], AbstractContextManager[Session]]  # opens the link to the parties of a deployment
Present = Callable[[Sequence[PartyStatus]], None]  # is called with the clients before the first round


def connect(setup: Setup) -> None:
    """Let the rounds be those of the parties, wherever they are."""
    if setup.meeting is not None:
        setup.meeting.run = setup.directory.identity()  # parties keep the states of each run apart
        setup.meeting.folder = setup.directory.path / "secagg"
        setup.federation.engine.connect(setup.meeting)
        if setup.growth is not None:
            setup.growth.meet(setup.meeting)


@contextmanager
def met(setup: Setup, meet: Meet | None, present: Present | None) -> Iterator[Setup]:
    """Yield the setup with the link to its parties, if any; ``present`` is called with who the clients are."""
    settings, clients = setup.experiment.engine, len(setup.federation.partition.clients)
    show = present or (lambda members: None)
    if meet is not None:
        with meet() as meeting:
            show(meeting.parties)
            yield replace(setup, meeting=meeting)
        return
    show(clients_of(setup.federation))
    if not isinstance(settings, DistributedSettings):
        yield setup
        return
    threads = str(max(1, torch.get_num_threads() // settings.processes))
    place = Simulate(setup.directory.path / "engine", clients, settings.processes, simulated, threads)
    with carrier(settings.name).simulate(place) as link:
        yield replace(setup, meeting=Session(link, [PartyStatus(str(client)) for client in range(clients)]))
