"""Several seeds of one experiment: a run directory for each inside one directory, with means and deviations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from fedunseen.data import Benchmark
from fedunseen.experiment.assemble import partition_of
from fedunseen.experiment.result.run import Run
from fedunseen.experiment.schema import Experiment
from fedunseen.experiment.setup import Setup

_SAME = ("bytes_down", "bytes_up", "parameters", "parameters_shared", "gzsl_head")  # (nearly) equal for all seeds


def check_seeds(experiment: Experiment, benchmark: Benchmark) -> None:
    """Refuse samples that cannot be dealt with one of the further seeds."""
    for seed in range(1, experiment.run.seeds):
        partition_of(experiment, benchmark, experiment.run.seed + seed)


def run_seeds(setup: Setup, experiment: Experiment, run: Callable[..., Run]) -> None:
    """Run each seed by ``run``, or continue with it, and write mean and deviation."""
    results = []
    for seed in range(experiment.run.seed, experiment.run.seed + experiment.run.seeds):

        def show(stage: str, round: int, rounds: int, line: Mapping[str, Any] | None, seed: int = seed) -> None:
            setup.progress(f"seed {seed}: {stage}", round, rounds, line)

        path = setup.directory.path / f"seed-{seed}"
        settings = experiment.with_overrides({"run.seed": seed, "run.seeds": 1})
        results.append(run(settings, path, resume=path.exists(), progress=show).result)
    setup.directory.finish({**_summary(experiment, results), "run": str(setup.directory.path)})


def _summary(experiment: Experiment, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the seeds report together."""
    task, first = experiment.task, experiment.run.seed
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
        "selection": experiment.evaluation.selection,
        "seeds": list(range(first, first + len(results))),
        "seconds": round(sum(result["seconds"] for result in results), 3),
    }
