"""What every engine shares with the rest: its interface, its common settings, and who its clients
are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedunseen.core.parameters import ClientStates, Params
from fedunseen.core.settings import Named, Settings
from fedunseen.federation.server_step import MaskedSum, RoundResult
from fedunseen.strategies import Instruction, Reply, Strategy


class EngineSettings(Settings):
    """Settings that every engine has.

    A kind of engine derives from :class:`NamedSettings` first, and is a family of its own: a new
    engine keeps the settings that it has in common with the old one within a family alone.
    """

    name: str = ""

    distributed: ClassVar[bool] = False
    """Clients are in other processes."""

    memory: int = Field(256, ge=1)
    """MiB that a client, or a batch of clients in this process, may take beside the data. More than
    the default is faster on a GPU only."""

    @property
    def deployed(self) -> bool:
        """Clients are parties elsewhere."""
        return self.distributed and getattr(self, "mode", "") == "deployment"


def needed(quorum: int | float, clients: int) -> int:
    """Return how many of ``clients`` have to answer."""
    return (
        min(quorum, clients)
        if isinstance(quorum, int)
        else max(1, math.ceil(quorum * clients - 1e-9))
    )


@dataclass(eq=False)
class Traffic:
    """What has gone between the coordinator and a party.

    Attributes:
        sent, received: bytes of messages and of answers.
        asked, lost: messages, and those without an answer.
        heard: when the last answer came, in Unix time; 0: none has.
    """

    sent: int = 0
    received: int = 0
    asked: int = 0
    lost: int = 0
    heard: float = 0.0


@dataclass(eq=False)
class PartyStatus:
    """What the server has learned about a client.

    Attributes:
        name: of the party, or ``client N`` in a simulation.
        connected, ready: whether its process is connected, and has accepted the experiment.
        classes, samples: how many it holds.
        rounds: in how many it took part.
        seconds: of its last local update.
        weight: of its update under masks.
        refused: why its last answer was refused; "" if it was not.
        held: names of the classes that it holds, where the class space grows.
        brought: new classes and their descriptions, each (attributes,).
        traffic: its messages, where the carrier counts them.
        revoked: it may not take part any more, and is not waited for.
    """

    name: str
    connected: bool = False
    classes: int = 0
    samples: int = 0
    rounds: int = 0
    seconds: float = 0.0
    weight: float = 1.0
    refused: str = ""
    ready: bool = False
    held: tuple[str, ...] = ()
    brought: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    revoked: bool = False


@dataclass(eq=False)
class Session:
    """A link to the parties of a deployment, who they are, and which run it is about.

    Attributes:
        link: carries messages; its type is the carrier's own.
        parties: in the order of the clients.
        run: identifier of the run.
        greeted: party -> the connection that was greeted.
        ever_brought: party -> the new classes that it has brought in all its greetings.
        kit: folder with the coordinator's credentials.
        folder: where the server's part of masked sums is stored.
        greeting: seconds that a party may take to accept the experiment.
        written: called with the run directory once its result is there, before parties, which may
            be slow, are told that the run is over.
        shut_out: called with the parties that are revoked, as soon as others are, or fewer.
    """

    link: Any
    parties: list[PartyStatus]
    run: str = ""
    greeted: dict[str, str] = field(default_factory=dict)
    ever_brought: dict[str, frozenset[str]] = field(default_factory=dict)
    kit: Path | None = None
    folder: Path | None = None
    greeting: float = 20.0
    written: Callable[[Path], None] = lambda path: None
    shut_out: Callable[[Set[str]], None] = lambda names: None


class Masking(Protocol):
    """Adds replies up so that no single one can be read."""

    def hidden_sum(
        self, strategy: Strategy, instruction: Instruction, replies: Sequence[Reply], round: int
    ) -> MaskedSum:
        """Return the sum of replies that are all in this process."""


class Engine(Named):
    """Runs the rounds of a federation's clients, wherever they are.

    Attributes:
        strategy: what is sent and how replies merge.
        parties: those of a deployment, in the order of the clients; none in a simulation.
    """

    Settings: ClassVar[type[EngineSettings]] = EngineSettings  # type: ignore[assignment]
    strategy: Strategy

    @property
    def parties(self) -> Sequence[PartyStatus]:
        """The parties of a deployment, in the order of the clients."""
        return ()

    @property
    def asks_again(self) -> bool:
        """Whether clients can be sent the merged sums, and be asked about them."""
        return True

    def connect(self, meeting: Session) -> None:
        """Take the link to the parties; nothing where all clients are in this process."""

    def expected(self, clients: Sequence[int]) -> list[int]:
        """Return which of the clients may still take part: in a simulation all of them."""
        return list(clients)

    def round(
        self,
        round: int,
        state: Params,
        params: Params,
        client_states: ClientStates,
        clients: Sequence[int],
    ) -> RoundResult:
        """Run ``round`` (counted from 0) with ``clients``, in ascending order."""
        raise TypeError(f"{type(self).__name__} defines no round")

    def finish(self, result: Mapping[str, Any], params: Params) -> None:
        """Send the parties the merged model and its numbers; nothing where there are none."""

    def finish_late(self, result: Mapping[str, Any], params: Params) -> None:
        """Send them what an earlier process could not."""


class DeployedEngine(Protocol):
    """An engine whose clients are parties that hold classes of their own."""

    @property
    def parties(self) -> Sequence[PartyStatus]:
        """The parties, in the order of the clients."""

    def connect(self, meeting: Session) -> None:
        """Take the link to the parties, and greet all of them."""

    def expected(self, clients: Sequence[int]) -> list[int]:
        """Return which of the clients may still take part."""

    def gather(self, round: int, clients: Sequence[int]) -> Mapping[int, PartyStatus]:
        """Wait for a quorum of the clients of ``round``; return what those that are there hold."""

    def announce_classes(self, announced: Mapping[str, Any], semantics: Tensor, own: int) -> None:
        """Send all parties the present class space, and its semantics (C, attributes); the first
        ``own`` classes are the server's.
        """
