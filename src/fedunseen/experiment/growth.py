"""A run whose class space grows: for each version a federation of its own, and the state carried from one to the next.

Nothing is trained anew when a class arrives. Parameters that are not about single classes stay as they are, and sums
get a row more. What is made anew is what follows from the class space alone: what a loss knows of the classes, who is
asked for what, and the task that measures it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from fedunseen.core.errors import DataError, RunDirectoryError
from fedunseen.data import Benchmark, Partition, Scaler
from fedunseen.data.growth import Timeline, Version, seen_through
from fedunseen.experiment.assemble import assemble
from fedunseen.experiment.registry import task_of
from fedunseen.experiment.schema import Experiment
from fedunseen.federation import Federation, State
from fedunseen.federation.directory import RunDirectory
from fedunseen.tasks import Task

__all__ = ["Growth", "Simulated", "growth_of"]


class Growth(ABC):
    """The versions of a run's class space, one at a time.

    Args:
        experiment: with a section ``[growth]``.
        benchmark: all samples that are here.
        partition: who holds which training samples.
        directory: where versions are kept, for a resume.

    Attributes:
        version: the one in force.
        federation, task: made for it.
    """

    version: Version
    federation: Federation
    task: Task

    def __init__(
        self, experiment: Experiment, benchmark: Benchmark, partition: Partition, directory: RunDirectory
    ) -> None:
        self.experiment, self.benchmark, self.partition = experiment, benchmark, partition
        self.directory = directory
        self.scaler: Scaler | None = None  # fitted on what is known first

    @abstractmethod
    def _begun(self) -> Version:
        """Return the version before round 0."""

    @abstractmethod
    def _next(self, round: int) -> Version:
        """Return the version in which ``round`` (counted from 0) is trained."""

    def at(self, rounds: int) -> tuple[Federation, Task]:
        """Go to the version in which the state after ``rounds`` rounds was made, and forget all later ones."""
        stored = self.directory.space_before(rounds)
        try:
            version = Version.from_dict(stored) if stored is not None else self._begun()
        except (DataError, KeyError, TypeError, ValueError):
            raise RunDirectoryError(
                f"{self.directory.spaces} holds a damaged class space: restore it, or run the experiment again in "
                "another --out"
            ) from None
        self._enter(version)
        return self.federation, self.task

    def before(self, state: State) -> tuple[Federation, Task, State]:
        """Go to the version in which the next round is trained; return the state as one of that version."""
        version = self._next(state.round)
        if version.hash() != self.version.hash():
            self._enter(version)
            state = self._carried(state)
        self.version, self.task.groups = version, version.groups()
        self.directory.save_space(self.version.round, self.version.to_dict())
        return self.federation, self.task, state

    def line(self) -> dict[str, Any]:
        """Return what a round's metrics say of the class space."""
        return {"space": self.version.line()}

    def _enter(self, version: Version) -> None:
        """Make federation and task for a version."""
        kind, experiment = task_of(self.experiment), self.experiment
        benchmark = kind.held(seen_through(self.benchmark, version.space))
        partition = self.partition if self.partition.remote else self.partition.restricted_to(benchmark.train)
        self.federation = assemble(experiment, benchmark, partition, scaler=self.scaler, whole=False)
        self.scaler = self.federation.scaler
        self.task = kind(self.federation, benchmark, experiment.evaluation, experiment.strategy.rounds)
        self.task.groups = version.groups()
        self.version = version

    def _carried(self, state: State) -> State:
        """Return a state of the version before as one of this version."""
        method, strategy = self.federation.method, self.federation.strategy
        with torch.no_grad():
            return State(
                state.round, strategy.grown(state.server, method.grown), method.grown(state.params), state.clients
            )


class Simulated(Growth):
    """The versions of a simulation, which follow from the experiment."""

    def __init__(
        self, experiment: Experiment, benchmark: Benchmark, partition: Partition, directory: RunDirectory
    ) -> None:
        super().__init__(experiment, benchmark, partition, directory)
        self.timeline = Timeline(experiment.growth, benchmark, partition)
        for round in self.timeline.rounds():
            self.timeline.version(round)  # refuses before anything is written

    def _begun(self) -> Version:
        return self.timeline.version(0)

    def _next(self, round: int) -> Version:
        return self.timeline.version(round)


def growth_of(
    experiment: Experiment, benchmark: Benchmark, partition: Partition, directory: RunDirectory
) -> Growth | None:
    """Return how the class space of a run grows; None where it does not.

    Raises:
        FedUnseenError: it cannot grow as the experiment says.
    """
    if experiment.growth.name == "none":
        return None
    return Simulated(experiment, benchmark, partition, directory)
