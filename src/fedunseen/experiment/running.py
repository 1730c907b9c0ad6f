"""The path of one run: set up, then stage by stage: select, warm start, train, adapt, report;
several seeds in turn.

With ``evaluation.selection = "validation"`` a run in ``selection/`` comes first, in which
validation classes play the unseen ones: the second training reports its best round, calibration
offset and settings.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedunseen.core.errors import RunDirectoryError
from fedunseen.core.memory import enough_memory, libraries_set_aside
from fedunseen.data import Benchmark
from fedunseen.experiment import stages
from fedunseen.experiment.assemble import partition_of
from fedunseen.experiment.fit_confidence import fit_confidence
from fedunseen.experiment.manifest import free_directory, manifest
from fedunseen.experiment.result.run import Run, load_run
from fedunseen.experiment.rules import StartFacts, check
from fedunseen.experiment.schema import Experiment
from fedunseen.experiment.setup import Setup, Stage
from fedunseen.federation.callbacks import Progress
from fedunseen.federation.loop import Callback

STAGES: tuple[Stage, ...] = (
    stages.select, stages.warm_start, stages.train, fit_confidence, stages.adapt_unlabelled, stages.report,
)  # fmt: skip
_SAME = (
    "bytes_down",
    "bytes_up",
    "parameters",
    "parameters_shared",
    "gzsl_head",
)  # (nearly) equal for all seeds


@enough_memory("lower method.batch_size, the sizes of the model, or how much data is loaded")
def run(
    experiment: Experiment,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    meeting: stages.Meet | None = None,
    present: stages.Present | None = None,
    benchmark: Benchmark | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Run an experiment and return it, as :func:`load_run` would.

    Args:
        experiment: what to run.
        out: the run directory; by default ``runs/NAME-seedN``, with a number added while that is
            taken.
        resume: continue with the run that ``out`` holds.
        progress: called after every round.
        meeting: opens the link to parties elsewhere, once everything else has been checked.
        present: called before the first round with who the clients are and how much each holds.
        benchmark: samples that are in memory, of an experiment whose ``data.name`` is ``arrays``.
        callbacks: act between rounds. Where validation classes choose the number of rounds,
            ``loop.stop`` ends only the rounds that choose.

    Raises:
        FedUnseenError: something is wrong with the experiment, the data or the directory; nothing
            is half-written.

    Example:
        >>> import tempfile
        >>> experiment = Experiment.load("digit-pairs", {"strategy.rounds": 1, "evaluation.selection": "last"})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run(experiment, Path(folder) / "first").result
        >>> result["rounds"], result["zsl"] > 20
        (1, True)
    """
    if resume and out is None:
        raise RunDirectoryError("--resume needs --out: say which run directory to continue with")
    path = Path(out) if out is not None else free_directory(experiment)
    check(StartFacts(experiment, deployed_here=meeting is not None, arrays=benchmark is not None))
    setup = Setup.of(experiment, path, progress or (lambda *line: None), benchmark, callbacks)
    directory = setup.directory
    several = experiment.run.seeds > 1
    recorded = experiment if several else setup.experiment
    directory.check(recorded.to_dict(), setup.fingerprint, resume)
    if directory.complete():
        stages.finish_late(setup, meeting)
        return load_run(path)
    _check_seeds(experiment, setup.whole)
    setup = stages.prepare(setup.assembled())
    content = {**manifest(recorded, setup.fingerprint, setup.whole), "fitted": setup.fitted}
    setup = replace(setup, manifest=content)
    go = partial(_run_stages, setup, meeting, present)
    if several:
        once = partial(
            run, meeting=meeting, present=present, benchmark=benchmark, callbacks=callbacks
        )
        go = partial(_run_seeds, setup, experiment, once)
    _run_locked(setup, recorded, resume, meeting is not None, go)
    return load_run(path)


def _run_locked(
    setup: Setup, recorded: Experiment, resume: bool, keep: bool, go: Callable[[], None]
) -> None:
    """Write the manifest and run, while no other process uses the directory; ``keep`` the directory
    where the run fails.
    """
    directory = setup.directory
    with directory.locked(), libraries_set_aside():
        # Again: another process may have been quicker.
        directory.check(recorded.to_dict(), setup.fingerprint, resume)
        with directory.begun(setup.manifest, keep=keep):
            go()


def _run_stages(setup: Setup, meeting: stages.Meet | None, present: stages.Present | None) -> None:
    """Run the stages of one seed, each on what those before it have made, unless they are
    complete.
    """
    if setup.directory.complete():
        return
    with stages.met(setup, meeting, present) as setup:
        for stage in STAGES:
            setup = stage(setup)


def _check_seeds(experiment: Experiment, benchmark: Benchmark) -> None:
    """Refuse samples that cannot be dealt with one of the further seeds."""
    for seed in range(1, experiment.run.seeds):
        partition_of(experiment, benchmark, experiment.run.seed + seed)


def _run_seeds(setup: Setup, experiment: Experiment, once: Callable[..., Run]) -> None:
    """Run each seed by ``once``, or continue with it, and write mean and deviation."""
    results = []
    for seed in range(experiment.run.seed, experiment.run.seed + experiment.run.seeds):

        def show(
            stage: str, round: int, rounds: int, line: Mapping[str, Any] | None, seed: int = seed
        ) -> None:
            setup.progress(f"seed {seed}: {stage}", round, rounds, line)

        path = setup.directory.path / f"seed-{seed}"
        settings = experiment.with_overrides({"run.seed": seed, "run.seeds": 1})
        results.append(once(settings, path, resume=path.exists(), progress=show).result)
    setup.directory.finish({**_summary(experiment, results), "run": str(setup.directory.path)})


def _summary(experiment: Experiment, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the seeds report together."""
    task = experiment.task
    first = experiment.run.seed
    summary: dict[str, Any] = {}
    for name in results[0]:
        wanted = name in task.evaluator.accuracies or any(
            fnmatchcase(name, pattern) for pattern in task.also_averaged
        )
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
