"""What a run works with: the benchmark, who holds what, the federation, and what measures it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.confidence import Confidence
from fedunseen.core.files import write_json
from fedunseen.core.parameters import Params
from fedunseen.data import Benchmark
from fedunseen.experiment.assemble import build_federation, dealt, load_data, resolve_defaults
from fedunseen.experiment.encoding import encode
from fedunseen.experiment.manifest import fingerprint_of, manifest
from fedunseen.experiment.schema import Experiment
from fedunseen.experiment.space_versions import SpaceVersions, initial_benchmark, versions_of
from fedunseen.federation.callbacks import Progress
from fedunseen.federation.engine import Session
from fedunseen.federation.evaluator import Choice, Evaluator
from fedunseen.federation.federation import Federation
from fedunseen.federation.in_process import InProcess
from fedunseen.federation.loop import Callback
from fedunseen.federation.partition import Partition
from fedunseen.federation.run_directory import RunDirectory
from fedunseen.methods import LEFT_TO_DATA
from fedunseen.statistics import Statistics

Stage = Callable[["Setup"], "Setup"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Setup:
    """Everything that the stages of a run share; a stage returns the setup of the next one."""

    experiment: Experiment
    unresolved: Experiment  # before anything was left to the data
    benchmark: Benchmark
    whole: Benchmark  # the run's, where ``benchmark`` is its version for selection
    partition: Partition  # of ``benchmark``
    directory: RunDirectory
    fingerprint: str  # of all files that the result depends on
    progress: Progress
    callbacks: Sequence[Callback] = ()
    label: str = "training"  # what the rounds are for
    choice: Choice = field(default_factory=Choice)
    rounds: int = 0
    versions: SpaceVersions | None = None
    meeting: Session | None = None  # the link to parties in other processes
    nested: bool = False  # this run chooses or prepares for another one, and reports nothing
    selection: bool = False  # validation classes play the unseen ones
    chosen: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)  # as the run directory has it
    apart: Benchmark | None = None  # what a run that selects measures
    # digest of the scaling -> client -> samples and sums
    known_sums: dict[str, dict[int, tuple[NDArray[np.int64], Statistics]]] = field(
        default_factory=dict
    )
    chosen_in: str = ""  # the folder of the run that chose, in this one's
    history: Sequence[Mapping[str, Any]] = ()  # the metrics of the rounds
    sums: Params | None = None  # of a closed form: what its model was solved from
    model: Params | None = None  # the final one, once a stage has read it
    confidence: Confidence | None = None  # of the final model
    started: float = field(default_factory=time.perf_counter)
    federation: Federation = None  # type: ignore[assignment]
    evaluator: Evaluator = None  # type: ignore[assignment]

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        path: Path,
        progress: Progress,
        benchmark: Benchmark | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> "Setup":
        """Load the data, deal them to clients, and resolve what the experiment leaves to the data;
        write nothing.
        """
        whole = (
            load_data(experiment, experiment.run.seed)
            if benchmark is None
            else encode(experiment, benchmark)
        )
        whole, partition = dealt(experiment, whole)
        settings = resolve_defaults(experiment, initial_benchmark(experiment, whole, partition))
        return cls(
            experiment=settings, unresolved=experiment, benchmark=whole, whole=whole,
            partition=partition, directory=RunDirectory(path),
            fingerprint=fingerprint_of(settings, whole), progress=progress,
            callbacks=callbacks, rounds=settings.strategy.rounds,
        )  # fmt: skip

    @property
    def fitted(self) -> list[str]:
        """The settings of the method that were left to the data."""
        settings = self.unresolved.method
        return [key for key in LEFT_TO_DATA if getattr(settings, key, 0.0) is None]

    def assembled(self) -> "Setup":
        """Return the setup with its federation and what measures it; nothing is written."""
        if not self.nested and (
            versions := versions_of(self.experiment, self.whole, self.partition, self.directory)
        ):
            federation, evaluator = versions.at(0)
            return replace(self, versions=versions, federation=federation, evaluator=evaluator)
        task = self.experiment.task
        federation = build_federation(
            self.experiment, task.client_data(self.benchmark), self.partition, self.selection
        )
        if isinstance(
            federation.engine, InProcess
        ):  # statistics of a run that selects are a part of the final ones
            scaling = federation.scaler.digest()
            statistics = self.known_sums.get(scaling, {})
            self.known_sums.clear()  # sums of features that were scaled otherwise are of no use
            federation.engine.worker.known_sums = self.known_sums[scaling] = statistics
            federation.engine.worker.keeps_sums = self.selection
        evaluator = task.evaluator(federation, self.benchmark, self.experiment.evaluation)
        return replace(self, versions=None, federation=federation, evaluator=evaluator)

    def sub_run(self, name: str, stages: Sequence[Stage], **changes: Any) -> Mapping[str, Any]:
        """Return the result of a run in the folder ``name`` of this one, from its directory if it
        is there already.
        """
        directory = RunDirectory(self.directory.path / name)
        if (stored := directory.result()) is not None:
            return stored
        setup = replace(self, directory=directory, nested=True, **changes).assembled()
        about = manifest(setup.experiment, setup.benchmark.fingerprint(), setup.benchmark)
        directory.create({**about, "stage": name.split("/")[0]})
        for step in stages:
            setup = step(setup)
        chosen = {
            "selection": setup.experiment.evaluation.selection,
            "seed": setup.experiment.run.seed,
        }
        write_json(directory.result_path, result := {**setup.result, **chosen})
        return result
