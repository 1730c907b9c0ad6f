"""Several seeds of one experiment: a run directory for each inside one directory, with means and deviations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from fedunseen.data import Benchmark
from fedunseen.experiment.assemble import partition_of
from fedunseen.experiment.manifest import manifest
from fedunseen.experiment.result.run import Run, load_run
from fedunseen.experiment.schema import Experiment
from fedunseen.experiment.setup import Present, Setup
from fedunseen.experiment.stages.select import prepare
from fedunseen.experiment.traits import task_of
from fedunseen.federation import Callback
from fedunseen.federation.callbacks import Progress
from fedunseen.federation.run_directory import RunDirectory

_SAME = ("bytes_down", "bytes_up", "parameters", "parameters_shared", "gzsl_head")  # (nearly) equal for all seeds


@dataclass(frozen=True, eq=False)
class RunGroup:
    """Runs of several seeds; the attributes are those of :func:`fedunseen.run`."""

    experiment: Experiment
    path: Path
    progress: Progress
    benchmark: Benchmark | None
    callbacks: Sequence[Callback]
    present: Present | None

    def run(self, run: Callable[..., Run], resume: bool) -> Run:
        """Run each seed by ``run``, and write mean and deviation."""
        experiment, directory = self.experiment, RunDirectory(self.path)
        first, settings = experiment.run.seed, experiment.to_dict()
        setup = Setup.of(experiment, self.path, self.progress, self.benchmark)
        directory.check(settings, setup.fingerprint, resume)
        if directory.complete():
            return load_run(self.path)
        for seed in range(first + 1, first + experiment.run.seeds):
            partition_of(experiment, setup.whole, seed)  # refuses before anything is written
        prepare(setup.assembled())
        with directory.locked():
            directory.check(settings, setup.fingerprint, resume)  # again: another process may have been quicker
            directory.create(manifest(experiment, setup.fingerprint, setup.whole))
            results = [self._one(run, first + i).result for i in range(experiment.run.seeds)]
            directory.finish(self._summary(results))
        return load_run(self.path)

    def _one(self, run: Callable[..., Run], seed: int) -> Run:
        """Run a seed, or continue with it."""

        def show(stage: str, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
            self.progress(f"seed {seed}: {stage}", round, rounds, line)

        own = self.path / f"seed-{seed}"
        settings = self.experiment.with_overrides({"run.seed": seed, "run.seeds": 1})
        how = {"present": self.present, "benchmark": self.benchmark, "callbacks": self.callbacks}
        return run(settings, own, resume=own.exists(), progress=show, **how)

    def _summary(self, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return what the seeds report together."""
        task, first = task_of(self.experiment), self.experiment.run.seed
        summary: dict[str, Any] = {}
        for name in results[0]:
            wanted = name in task.accuracies or any(fnmatchcase(name, pattern) for pattern in task.also_averaged)
            if wanted and all(name in result for result in results):
                values = [result[name] for result in results]
                summary |= {name: float(np.mean(values)), f"{name}_sd": float(np.std(values, ddof=1))}
        return {
            **summary,
            **task.of_seeds(results, summary),
            **{name: results[0][name] for name in _SAME if name in results[0]},
            "rounds": max(result["rounds"] for result in results),
            "selection": self.experiment.evaluation.selection,
            "seeds": list(range(first, first + len(results))),
            "seconds": round(sum(result["seconds"] for result in results), 3),
            "run": str(self.path),
        }
