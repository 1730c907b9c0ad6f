"""A run whose class space grows: for each version a federation of its own, and the state carried
from one to the next.

Nothing is trained again when a class arrives. Parameters that are not about single classes stay as
they are, and sums get a row more. What is made again is what follows from the class space alone:
what a loss knows of the classes, who is asked for what, and the task that measures it.
"""

from dataclasses import replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.errors import DataError, RunDirectoryError
from fedunseen.data import Benchmark, Scaler
from fedunseen.data.names import by_folded, folded
from fedunseen.experiment.assemble import assemble
from fedunseen.experiment.rules import PresenceFacts, check
from fedunseen.experiment.schema import Experiment
from fedunseen.federation import growth
from fedunseen.federation.engine import DeployedEngine, Session
from fedunseen.federation.evaluator import Evaluator
from fedunseen.federation.federation import Federation, State
from fedunseen.federation.partition import Partition
from fedunseen.federation.run_directory import RunDirectory


class SpaceVersions:
    """The versions of a run's class space, one at a time; those of a simulation follow from the
    experiment.
    """

    version: growth.Version
    federation: Federation
    task: Evaluator
    meeting: Session | None = None  # the link to the parties of a deployment

    def __init__(
        self,
        experiment: Experiment,
        benchmark: Benchmark,
        partition: Partition,
        directory: RunDirectory,
    ) -> None:
        self.experiment = experiment
        self.benchmark = benchmark
        self.partition = partition
        self.directory = directory
        check(PresenceFacts(experiment, partition))
        self.scaler: Scaler | None = None  # fitted on what is known first
        if partition.remote:
            self.begun = growth.first_version(benchmark.space)
        else:
            self.timeline = growth.Timeline(experiment.growth, benchmark, partition)
            for round in self.timeline.rounds():
                self.timeline.version(round)  # refuses before anything is written
            self.begun = self.timeline.version(0)

    def _next(self, round: int) -> growth.Version:
        """Return the version in which ``round`` (counted from 0) is trained."""
        return self.timeline.version(round)

    def at(self, rounds: int) -> tuple[Federation, Evaluator]:
        """Go to the version in which the state after ``rounds`` rounds was made, and forget all
        later ones.
        """
        stored = self.directory.space_before(rounds)
        try:
            version = growth.Version.from_dict(stored) if stored is not None else self.begun
        except (DataError, KeyError, TypeError, ValueError):
            raise RunDirectoryError(
                f"{self.directory.spaces} holds a damaged class space: restore it, or run the "
                "experiment again in another --out"
            ) from None
        self._enter(version)
        return self.federation, self.task

    def before(self, state: State) -> tuple[Federation, State]:
        """Go to the version in which the next round is trained; return the state as one of that
        version.
        """
        version = self._next(state.round)
        if version.hash() != self.version.hash():
            self._enter(version)
            state = self._carried(state)
        self.version = version
        self.task.groups = version.groups()
        self.directory.save_space(self.version.round, self.version.to_dict())
        return self.federation, state

    def without(self, ids: NDArray[np.int64]) -> tuple[Federation, Evaluator]:
        """Go to the class space in which no one has ever held some seen classes: they are
        unseen.
        """
        version = self.version
        space = self.version.space
        seen = np.setdiff1d(space.seen, ids)
        validation = np.setdiff1d(space.validation, ids)
        space = replace(
            space, seen=seen, validation=validation, unseen=np.union1d(space.unseen, ids)
        )
        names = {space.names[c] for c in ids}
        held = {name: round for name, round in version.held.items() if name not in names}
        self._enter(
            replace(
                version,
                space=space,
                held=held,
                left=tuple(n for n in version.left if n not in names),
            )
        )
        return self.federation, self.task

    def _enter(self, version: growth.Version) -> None:
        """Make federation and task for a version."""
        kind = self.experiment.task
        experiment = self.experiment
        benchmark = kind.client_data(growth.seen_through(self.benchmark, version.space))
        partition = (
            self.partition
            if self.partition.remote
            else self.partition.restricted_to(benchmark.train)
        )
        self.federation = assemble(
            experiment, benchmark, partition, scaler=self.scaler, whole=False
        )
        self.scaler = self.federation.scaler
        self.task = kind.evaluator(self.federation, benchmark, experiment.evaluation)
        self.task.groups = version.groups()
        self.version = version

    def _carried(self, state: State) -> State:
        """Return a state of the version before as one of this version."""
        expand = self.federation.method.expand_classes
        with torch.no_grad():
            server = self.federation.strategy.expand_classes(state.server, expand)
            return replace(state, server=server, params=expand(state.params))


class DeployedVersions(SpaceVersions):
    """The versions of a deployment, which parties change when they take part."""

    def _next(self, round: int) -> growth.Version:
        """Ask the clients of ``round`` what they hold, and add what is new."""
        engine = cast(DeployedEngine, self.federation.engine)
        version = self.version
        present = engine.expected(self.partition.present(round))
        members = engine.gather(round, present)
        added: dict[str, NDArray[np.float64]] = {}
        folded_names = by_folded(version.space.names)
        for _, member in sorted(members.items()):
            for name, row in member.brought.items():
                try:
                    growth.check_new_name(name, folded_names)
                except DataError:
                    # someone has brought it before: this party is greeted again, and compares
                    continue
                added[name] = row
                folded_names[folded(name)] = name
        class_names = {*version.space.names, *added}
        held = {name for member in members.values() for name in member.held} & class_names
        still = {
            name for client in engine.expected(present) for name in engine.parties[client].held
        }
        files = self.experiment.growth.files()
        now = [
            path for at, path in files.items() if at == round or (version.round < 0 and at <= round)
        ]
        corrected = {
            name: row
            for path in now
            for name, row in growth.corrections(path, version.space, round).items()
        }
        new = growth.next_version(
            version, round, held=held, holders=still, added=added, corrected=corrected
        )
        return version if new.hash() == version.hash() and new.left == version.left else new

    def _enter(self, version: growth.Version) -> None:
        super()._enter(version)
        engine = cast(DeployedEngine, self.federation.engine)
        space = version.space
        test_space = self.benchmark.space
        announced = {
            **growth.space_dict(space),
            "former": {name: list(hashes) for name, hashes in version.former.items()},
            "tested": [test_space.names[c] for c in test_space.unseen],
            "open": self.experiment.growth.name == "unknown",
        }
        own = len(self.begun.space.names)
        engine.announce_classes(announced, torch.from_numpy(space.semantics), own)
        if self.meeting is not None:
            self.meeting.greeted.clear()  # everyone receives the present classes
            engine.connect(self.meeting)


def initial_benchmark(
    experiment: Experiment, benchmark: Benchmark, partition: Partition
) -> Benchmark:
    """Return what of a benchmark is known in the first round: what scalings and learning rates may
    be fitted to.
    """
    if experiment.growth.name == "none" or partition.remote:
        return benchmark
    return growth.seen_through(
        benchmark, growth.Timeline(experiment.growth, benchmark, partition).version(0).space
    )


def versions_of(
    experiment: Experiment, benchmark: Benchmark, partition: Partition, directory: RunDirectory
) -> SpaceVersions | None:
    """Return the versions of a run's class space; None where it does not grow."""
    if experiment.growth.name == "none":
        return None
    kind = DeployedVersions if partition.remote else SpaceVersions
    return kind(experiment, benchmark, partition, directory)
