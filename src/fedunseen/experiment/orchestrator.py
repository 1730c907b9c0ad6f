"""The road of one run: choose on validation classes, train round by round, measure, write the run directory.

With ``evaluation.selection = "validation"`` a run has two stages. The first is a run of its own, in ``selection/``: the
validation classes play the unseen ones, no test sample takes part, and its best round and calibration factor (and, of
``evaluation.choose``, its best settings) are what the second stage reports. With ``best-on-test`` the second stage
makes the same choice on the test set itself, as many papers do.
"""

from __future__ import annotations

import hashlib
import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedunseen.core.errors import DataError, ExperimentError, FedUnseenError, RunDirectoryError
from fedunseen.core.files import write_json, write_tensors
from fedunseen.core.memory import enough_memory, keep_pages, libraries_set_aside
from fedunseen.core.registry import find
from fedunseen.data import Benchmark, Partition, fit_semantics
from fedunseen.data.partition import NEVER, elsewhere
from fedunseen.engines import Distributed, DistributedSettings
from fedunseen.engines.carriers import carrier
from fedunseen.engines.remote.coordinator import Meeting, Member
from fedunseen.engines.remote.link import Simulate
from fedunseen.evaluation.misplaced import misplaced_files
from fedunseen.experiment.assemble import assemble, load_data, partition_of, settled
from fedunseen.experiment.encoding import encode
from fedunseen.experiment.finished import Run, load_run
from fedunseen.experiment.growth import Deployed, growth_of, known_first
from fedunseen.experiment.party import simulated
from fedunseen.experiment.record import encoder_of, manifest, write_inputs
from fedunseen.experiment.rules import PRESENCE, Presence, obey
from fedunseen.experiment.schema import Experiment
from fedunseen.experiment.stages import train
from fedunseen.experiment.traits import task_of
from fedunseen.experiment.turns import turns
from fedunseen.experiment.weights import carry, carry_text
from fedunseen.federation import Callback, Federation
from fedunseen.federation.callbacks import Choice, Progress
from fedunseen.federation.directory import RunDirectory, load_params
from fedunseen.methods.closed_form import ClosedForm
from fedunseen.metrics import best_factor
from fedunseen.tasks import Task

__all__ = ["Progress", "free_directory", "run", "unused"]

SAME = ("bytes_down", "bytes_up", "parameters", "parameters_shared", "gzsl_head")  # (nearly) equal for all seeds

Meet = Callable[[], AbstractContextManager[Meeting]]
"""Opens the link to the parties of a deployment."""

Present = Callable[[Sequence[Member]], None]
"""Hears who the clients are, once they are known."""


@enough_memory("lower method.batch_size, the sizes of the model, or how much data is loaded")
def run(
    experiment: Experiment,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    meeting: Meet | None = None,
    present: Present | None = None,
    benchmark: Benchmark | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Run an experiment and return it, as :func:`load_run` would.

    Args:
        experiment: what to run.
        out: the run directory; by default ``runs/NAME-seedN``, with a number added while that is taken.
        resume: go on with the run that ``out`` holds.
        progress: called after every round.
        meeting: opens the link to the parties of a deployment, once everything else has been checked.
        present: called before the first round with who the clients are and how much each holds. Those of a deployment
            change while it runs: who is connected, say.
        benchmark: samples that are in memory, of an experiment whose ``data.name`` is ``arrays``.
        callbacks: act between the rounds that choose on validation classes and between those that are reported. The
            second have as many rounds as the first chose, so ``loop.stop`` ends only the first.

    Raises:
        FedUnseenError: something is wrong with the experiment, the data or the directory; nothing is half-written.

    Example:
        >>> import tempfile
        >>> experiment = Experiment.load("digit-pairs", {"strategy.rounds": 1, "evaluation.selection": "last"})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run(experiment, Path(folder) / "first").result
        >>> result["rounds"], result["zsl"] > 20
        (1, True)
    """
    if resume and out is None:
        raise RunDirectoryError("--resume needs --out: say which run directory to go on with")
    path = Path(out) if out is not None else free_directory(experiment)
    on_round = progress or (lambda stage, round, rounds, line: None)
    _check_engine(experiment, meeting)
    _check_arrays(experiment, benchmark)
    if experiment.run.seeds > 1:
        return _run_seeds(experiment, path, resume, on_round, present, benchmark, callbacks)
    started = time.perf_counter()
    benchmark = load_data(experiment, experiment.run.seed) if benchmark is None else encode(experiment, benchmark)
    if meeting is None:
        partition = partition_of(experiment, benchmark, experiment.run.seed)
    else:
        partition = elsewhere(experiment.partition)
    given, experiment = experiment, settled(experiment, known_first(experiment, benchmark, partition))
    fingerprint = _fingerprint(experiment, benchmark)
    directory = RunDirectory(path)
    directory.check(experiment.to_dict(), fingerprint, resume)
    if directory.complete():
        done = load_run(path)
        if meeting is not None:  # the last coordinator was killed before it told the parties that the run is over
            late = growth_of(done.experiment, benchmark, partition, directory)
            federation = _made(done.experiment, benchmark, partition)[0] if late is None else late.at(NEVER)[0]
            assert isinstance(federation.engine, Distributed)
            with meeting() as met:
                _connect(federation, met, directory)
                federation.engine.finish_late(done.result, done.params)
        return done
    growth = growth_of(experiment, benchmark, partition, directory)
    federation, task = _made(experiment, benchmark, partition) if growth is None else growth.at(0)
    selection = _selection_benchmark(experiment, benchmark, partition)
    with directory.locked(), keep_pages(), libraries_set_aside():
        directory.check(experiment.to_dict(), fingerprint, resume)  # again: another process may have been quicker
        directory.create(manifest(experiment, fingerprint, benchmark))
        if directory.complete():
            return load_run(path)
        with _met(experiment, directory, len(federation.partition.clients), meeting) as met:
            if present is not None:
                present(met.parties if meeting is not None and met is not None else _clients(federation))
            rounds, stop_after = experiment.strategy.rounds, experiment.strategy.stop_after
            chosen: dict[str, Any] = {}
            if selection is None:
                choice = task.choice(experiment.evaluation, type(federation.method), rounds)
            else:
                choice, chosen = _select(given, benchmark, selection, partition, directory, on_round, met, callbacks)
                if rivals := getattr(experiment.method, "rivals", ()):
                    chosen["rivals"] = _rivals(rivals, given, selection, partition, directory, on_round)
            if chosen.get("settings"):
                before, experiment = experiment, settled(given.with_overrides(chosen["settings"]), benchmark)
                chosen["settings"] |= _followed(before, experiment)
                rounds, stop_after = experiment.strategy.rounds, experiment.strategy.stop_after
                federation, task = _made(experiment, benchmark, partition)
            if (stop_after is not None or (callbacks and selection is not None)) and choice.round is not None:
                # No later round can be the one that is reported, and gains on test samples are nobody's business.
                rounds, stop_after = choice.round, None
            start = _begin(experiment, federation, benchmark, partition, directory, on_round, met)
            _connect(federation, met, directory)
            if isinstance(growth, Deployed) and met is not None:
                growth.meet(met)
            result = train(
                federation,
                task,
                directory,
                rounds,
                choice,
                on_round,
                observed=True,
                stop_after=stop_after,
                personal_epochs=experiment.strategy.personal_epochs,
                growth=growth,
                forgettable=experiment.run.forgettable,
                callbacks=callbacks,
                stoppable=selection is None,
            )
            result |= {"start": start} if start else {}
            if growth is not None:
                federation, task, benchmark = growth.federation, growth.task, growth.federation.benchmark
            result |= {
                "selection": experiment.evaluation.selection,
                "seed": experiment.run.seed,
                "seconds": round(time.perf_counter() - started, 3),
                "run": str(path),
            }
            if chosen:
                result["chosen_on_validation"] = chosen
                result |= {"stopped": chosen["stopped"]} if "stopped" in chosen else {}
            if meeting is None and (groups := misplaced_files(benchmark)):  # a coordinator's warnings go to the parties
                result["misplaced"] = groups
            write_inputs(federation.scaler, benchmark.space, directory.path)
            carry(encoder_of(experiment, benchmark), directory.path)
            carry_text(experiment.data, experiment.encoder, directory.path)
            merged = federation.strategy.one_model
            params = load_params(directory.model_path, federation.device) if merged else {}
            write_tensors(directory.path / "evaluation.safetensors", task.summary(params, result))
            directory.finish(result)
            if isinstance(federation.engine, Distributed):
                federation.engine.finish(directory.result() or {}, params)
    return load_run(path)


def _made(
    experiment: Experiment, benchmark: Benchmark, partition: Partition, selection: bool = False
) -> tuple[Federation, Task]:
    """Return the federation and what judges it.

    Args:
        experiment: the choices.
        benchmark: the whole one, or its version for selection.
        partition: who holds what of it.
        selection: it is the version for selection.

    Raises:
        FedUnseenError: something does not fit together.
    """
    kind = task_of(experiment)
    federation = assemble(experiment, kind.held(benchmark), partition, selection)
    return federation, kind(federation, benchmark, experiment.evaluation)


def _clients(federation: Federation) -> list[Member]:
    """Return the clients of a simulation, and how much each holds."""
    labels = federation.labels.cpu().numpy()
    return [
        Member(f"client {client}", True, len(np.unique(labels[ids])), len(ids))
        for client, ids in enumerate(federation.partition.clients)
    ]


def _connect(federation: Federation, met: Meeting | None, directory: RunDirectory) -> None:
    """Let the rounds of a run, or of the one that chooses for it, be those of the parties."""
    if met is not None and isinstance(federation.engine, Distributed):
        met.run = directory.identity()  # parties keep the states of each apart
        federation.engine.connect(met)


def _begin(
    experiment: Experiment,
    federation: Federation,
    benchmark: Benchmark,
    partition: Partition,
    parent: RunDirectory,
    on_round: Progress,
    met: Meeting | None,
    selection: bool = False,
) -> dict[str, Any]:
    """Let a federation begin with the closed form, where its method is to: parties send sums before they train.

    Args:
        experiment: the run's, or that of one which chooses for it.
        federation: of that experiment, whose first parameters change.
        benchmark: what it is measured on.
        partition: who holds what of it.
        parent: of the directory ``start``, where the closed form's run is kept.
        on_round: called after the round.
        met: the parties of a deployment.
        selection: the benchmark is its version for selection.

    Returns:
        What the closed form reaches on the benchmark's test samples, and the bytes that a client sends for it.
    """
    if getattr(experiment.method, "start", "random") != "closed-form":
        return {}
    quiet = {"selection": "last", "clients": False, "theory": False, "embedding": False, "choose": {}}
    strategy = {"strategy.name": "fedavg", "strategy.fraction": 1.0, "strategy.stop_after": None}
    closed = experiment.with_overrides(
        {"method.name": "gaussian", **strategy, **{f"evaluation.{key}": value for key, value in quiet.items()}}
    )
    directory = RunDirectory(parent.path / "start")
    result = directory.result()
    if result is None:
        first, task = _made(closed, benchmark, partition, selection)
        directory.create({**manifest(closed, benchmark.fingerprint(), benchmark), "stage": "start"})
        _connect(first, met, directory)
        result = train(first, task, directory, 1, Choice(1, 0.0), on_round, "beginning with the closed form")
        result |= {"selection": "last", "seed": closed.run.seed}
        write_json(directory.result_path, result)
    model = load_params(directory.model_path, federation.device)
    bias = model["bias"] - model["weight"] @ model["centre"]
    federation.first = federation.method.begin(federation.first, model["weight"], bias)
    return {name: result[name] for name in (*task_of(experiment).accuracies, "bytes_up")}


def _check_engine(experiment: Experiment, meeting: Meet | None) -> None:
    """Refuse to run here what is meant for parties elsewhere, or the other way round.

    Raises:
        ExperimentError: says what to do instead.
    """
    if meeting is None and getattr(experiment.data, "part", False):
        raise ExperimentError(
            "data.part = true is for one party's folder, or the coordinator's, which `fedunseen join` and `fedunseen "
            "host` read: leave it out"
        )
    settings = experiment.engine
    deployed = isinstance(settings, DistributedSettings) and settings.mode == "deployment"
    if deployed and meeting is None:
        raise ExperimentError(
            "engine.mode = 'deployment' waits for parties elsewhere, which `fedunseen host` does: use that, or set "
            "engine.mode to 'simulation'"
        )


def _check_arrays(experiment: Experiment, benchmark: Benchmark | None) -> None:
    """Refuse arrays of an experiment that names other data, and engines whose processes could not read them.

    Raises:
        ExperimentError: says what to set.
    """
    if benchmark is None:
        return
    if experiment.data.name != "arrays":
        raise ExperimentError(
            f"a benchmark is given, but data.name = {experiment.data.name!r} names other data: set it to 'arrays'"
        )
    if experiment.engine.name != "in-process":
        raise ExperimentError(
            f"engine.name = {experiment.engine.name!r} works in processes of its own, which have no arrays of this "
            "one: set it to 'in-process'"
        )


@contextmanager
def _met(
    experiment: Experiment, directory: RunDirectory, clients: int, meeting: Meet | None
) -> Iterator[Meeting | None]:
    """Yield the parties of a deployment, or those of a simulation in worker processes; None if all is in-process."""
    settings = experiment.engine
    if meeting is not None:
        with meeting() as met:
            yield met
    elif isinstance(settings, DistributedSettings):
        threads = str(max(1, torch.get_num_threads() // settings.processes))
        place = Simulate(directory.path / "engine", clients, settings.processes, simulated, threads)
        with carrier(settings.name).simulate(place) as link:
            yield Meeting(link, [Member(str(client)) for client in range(clients)])
    else:
        yield None


def _fingerprint(experiment: Experiment, benchmark: Benchmark) -> str:
    """Return the hash of all files that a result depends on: the benchmark's, and the one that says who holds what."""
    holders = experiment.partition.file.read_bytes() if experiment.partition.file else b""
    corrected = b"".join(_bytes(path) for path in experiment.growth.files().values())
    return hashlib.sha256(benchmark.fingerprint().encode() + holders + corrected).hexdigest()


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ExperimentError(f"growth.corrected: {path} cannot be read ({error.strerror}): name a CSV file") from None


def _selection_benchmark(experiment: Experiment, benchmark: Benchmark, partition: Partition) -> Benchmark | None:
    """Return the benchmark of the run on validation classes, checked before anything is written; None without one."""
    if not task_of(experiment).chooses_apart(experiment.evaluation):
        return None
    try:
        selection = benchmark.for_selection(experiment.run.seed)
        for word, rows in (("validation", selection.test_unseen), ("other seen", selection.test_seen)):
            if not len(rows):  # of a part, as a coordinator has one
                raise DataError(
                    f"{benchmark.name} has no sample of its {word} classes to choose on: give the coordinator some of "
                    "its own, marked 'train'"
                )
        fit_semantics(selection.space, experiment.data.semantics)
        if not find("strategy", experiment.strategy.name).pools:
            obey(PRESENCE, Presence(experiment, partition.restricted_to(selection.train)))
    except FedUnseenError as error:
        raise type(error)(f"{error}; or choose nothing, with evaluation.selection = 'last'") from None
    return selection


def _followed(before: Experiment, now: Experiment) -> dict[str, Any]:
    """Return what follows from the data otherwise than before, since settings have been chosen."""
    pairs = {
        "data.features": (before.data.features, now.data.features),
        "method.lr": tuple(getattr(one.method, "lr", None) for one in (before, now)),
    }
    return {key: new for key, (old, new) in pairs.items() if new != old and new is not None}


def _select(
    experiment: Experiment,
    whole: Benchmark,
    benchmark: Benchmark,
    partition: Partition,
    parent: RunDirectory,
    on_round: Progress,
    met: Meeting | None,
    callbacks: Sequence[Callback],
) -> tuple[Choice, dict[str, Any]]:
    """Choose round, calibration factor and settings by runs on validation classes.

    Args:
        experiment: as it was given; what it leaves to the data follows from the ``whole`` benchmark, as in the run.
        whole: the benchmark of the run.
        benchmark: its version for selection.
        partition: who holds what of the whole one.
        parent: the run's directory.
        on_round: called after every round.
        met: the parties of a deployment.
        callbacks: act between rounds.
    """
    everyone, partition = partition, partition.restricted_to(benchmark.train)
    grid = experiment.evaluation.choose
    candidates = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    results: list[dict[str, Any]] = []
    judge = find("method", experiment.method.name)  # by whose order candidates are compared
    for i, settings in enumerate(candidates):
        candidate = experiment.with_overrides({**settings, "evaluation.choose": {}, "evaluation.clients": False})
        candidate = settled(candidate, whole)
        method = find("method", candidate.method.name)
        judge = method if method.zero_shot else judge  # one that knows unseen classes, if there is one
        several = len(candidates) > 1
        directory = RunDirectory(parent.path / "selection" / str(i) if several else parent.path / "selection")
        stage = "choosing on validation classes" + (f" {i + 1}/{len(candidates)}" if several else "")
        result = directory.result()
        if result is None:
            federation, task = _made(candidate, benchmark, partition, selection=True)
            directory.create({**manifest(candidate, benchmark.fingerprint(), benchmark), "stage": "selection"})
            choice = task.choice(candidate.evaluation, method, candidate.strategy.rounds, selecting=True)
            _begin(candidate, federation, benchmark, partition, directory, on_round, met, selection=True)
            _connect(federation, met, directory)
            own = candidate.strategy
            how: dict[str, Any] = {"stop_after": own.stop_after, "callbacks": callbacks}
            result = train(federation, task, directory, own.rounds, choice, on_round, stage, **how)
            result |= {"selection": candidate.evaluation.selection, "seed": candidate.run.seed}
            write_json(directory.result_path, result)
        results.append(result)
    task_class = task_of(experiment)
    orders = [task_class.order(result, experiment.evaluation, judge) for result in results]
    best = max(range(len(results)), key=lambda i: (*orders[i], -i))
    result = results[best]
    names = task_class.accuracies
    found: dict[str, Any] = {
        "settings": candidates[best],
        "round": result["selected_round"],
        "factor": result["calibration_factor"],
        **{name: result[name] for name in ("rounds", "stopped") if name in result},
        "validation": {name: result[name] for name in names},
    }
    turned = _factor_of_turns(settled(experiment.with_overrides(candidates[best]), whole), whole, everyone)
    if turned is not None:
        found |= {"factor": turned[0], "turns": turned[1]}
    if len(candidates) > 1:
        found["tried"] = [
            {"settings": settings, **{name: one[name] for name in names}}
            for settings, one in zip(candidates, results, strict=True)
        ]
    return Choice(result["selected_round"], found["factor"]), found


def _factor_of_turns(experiment: Experiment, benchmark: Benchmark, partition: Partition) -> tuple[float, int] | None:
    """Return the calibration factor from all seen classes taking turns, and how many turns there were.

    None where the validation classes are enough, nothing is calibrated, or the method takes time or parties elsewhere.
    """
    method, own = find("method", experiment.method.name), experiment.evaluation
    calibrates = own.calibration == "stacking" and own.factor is None and method.zero_shot
    quick = not method.trained and experiment.engine.name == "in-process" and experiment.strategy.rounds == 1
    free = experiment.privacy.name == "none"  # every turn would be a release more, which no accountant knows of
    some = turns(benchmark, experiment.run.seed) if calibrates and quick and free else []
    if len(some) < 2:
        return None
    experiment = _in_units(experiment, benchmark, partition)
    answered = []
    for turn in some:
        selection = turn.for_selection(experiment.run.seed)
        try:
            federation, _ = _made(experiment, selection, partition.restricted_to(selection.train), selection=True)
        except FedUnseenError:  # somebody would be left without classes: the others' turns have to do
            continue
        state, _ = federation.round(federation.start())
        answered.append([federation.answers(model) for model in federation.models(state)])
    return best_factor([one for many in answered for one in many]), len(answered)


def _in_units(experiment: Experiment, benchmark: Benchmark, partition: Partition) -> Experiment:
    """Return the experiment with the settings in force that say how large the scores of its final model will be.

    Each turn would choose its own, and their factors could not be compared: with few samples one turn's scores were
    ten times as large as another's. No test sample takes part.
    """
    federation, _ = _made(experiment, benchmark, partition)
    if not isinstance(federation.method, ClosedForm) or not federation.strategy.one_model:
        return experiment
    state, _ = federation.round(federation.start())
    (model,) = federation.models(state)
    return experiment.with_overrides({f"method.{key}": value for key, value in federation.method.units(model).items()})


def _rivals(
    names: Sequence[str],
    given: Experiment,
    benchmark: Benchmark,
    partition: Partition,
    parent: RunDirectory,
    on_round: Progress,
) -> dict[str, dict[str, float]]:
    """Return what trained methods reach on the validation classes on which the run has been chosen.

    Args:
        names: of the methods. One that cannot be trained on these data is left out.
        given: the run's experiment as it was given: what it leaves to the data follows each method's own needs.
        benchmark: its version for selection.
        partition: who holds what.
        parent: the run's directory.
        on_round: called after every round.
    """
    found = {}
    for name in names:
        directory = RunDirectory(parent.path / "selection" / f"rival-{name}")
        result = directory.result()
        if result is None:
            rounds = given.method.rival_rounds  # type: ignore[attr-defined]
            more = {"strategy.rounds": rounds, "engine.name": "in-process"}
            quick = {"evaluation.choose": {}, "evaluation.clients": False, "evaluation.theory": False}
            try:
                rival = settled(given.with_overrides({"method.name": name, **more, **quick}), benchmark)
                federation, task = _made(rival, benchmark, partition.restricted_to(benchmark.train), selection=True)
                directory.create({**manifest(rival, benchmark.fingerprint(), benchmark), "stage": "selection"})
                choice = task.choice(rival.evaluation, type(federation.method), rounds, selecting=True)
                result = train(federation, task, directory, rounds, choice, on_round, f"beside it: {name}")
            except FedUnseenError as error:
                warnings.warn(
                    f"method.name = {name!r} could not be tried beside the closed form: {error}", stacklevel=2
                )
                continue
            result |= {"selection": rival.evaluation.selection, "seed": rival.run.seed}
            write_json(directory.result_path, result)
        found[name] = {accuracy: result[accuracy] for accuracy in task_of(given).accuracies}
    return found


def free_directory(experiment: Experiment, kind: str = "") -> Path:
    """Return where a run goes that is not told where: ``runs/NAME-seedN``, with a number added while that is taken.

    Args:
        experiment: says name and seed.
        kind: put before the name where it is for something else than a run.
    """
    return unused(Path("runs") / f"{kind}{experiment.name}-seed{experiment.run.seed}")


def unused(base: Path) -> Path:
    """Return a path at which nothing is: the given one, or that with a number added."""
    candidates = itertools.chain([base], (base.with_name(f"{base.name}-{i}") for i in itertools.count(2)))
    return next(path for path in candidates if not path.exists())


def _run_seeds(
    experiment: Experiment,
    path: Path,
    resume: bool,
    on_round: Progress,
    present: Present | None,
    arrays: Benchmark | None,
    callbacks: Sequence[Callback],
) -> Run:
    """Run several seeds, each in a run directory of its own within this one, and write mean and deviation."""
    directory = RunDirectory(path)
    first = experiment.run.seed
    benchmark = load_data(experiment, first) if arrays is None else encode(experiment, arrays)
    partitions = [partition_of(experiment, benchmark, first + i) for i in range(experiment.run.seeds)]
    fingerprint = _fingerprint(experiment, benchmark)
    directory.check(experiment.to_dict(), fingerprint, resume)
    if directory.complete():
        return load_run(path)
    _, task = _made(experiment, benchmark, partitions[0])  # refuses before anything is written
    _selection_benchmark(experiment, benchmark, partitions[0])
    with directory.locked():
        directory.check(experiment.to_dict(), fingerprint, resume)  # again: another process may have been quicker
        directory.create(manifest(experiment, fingerprint, benchmark))
        results = []
        for seed in range(first, first + experiment.run.seeds):

            def hear_seed(
                stage: str, round: int, rounds: int, line: Mapping[str, Any] | None, seed: int = seed
            ) -> None:
                on_round(f"seed {seed}: {stage}", round, rounds, line)

            one = experiment.with_overrides({"run.seed": seed, "run.seeds": 1})
            own = path / f"seed-{seed}"
            given: dict[str, Any] = {"present": present, "benchmark": arrays, "callbacks": callbacks}
            done = run(one, own, resume=own.exists(), progress=hear_seed, **given)
            results.append(done.result)
        summary: dict[str, Any] = {}
        averaged = [
            name
            for name in results[0]
            if name in task.accuracies or any(fnmatchcase(name, pattern) for pattern in task.also_averaged)
            if all(name in result for result in results)
        ]
        for name in averaged:
            values = [result[name] for result in results]
            summary |= {name: float(np.mean(values)), f"{name}_sd": float(np.std(values, ddof=1))}
        summary |= task.of_seeds(results, summary)
        summary |= {
            **{name: results[0][name] for name in SAME if name in results[0]},
            "rounds": max(result["rounds"] for result in results),
            "selection": experiment.evaluation.selection,
            "seeds": list(range(first, first + experiment.run.seeds)),
            "seconds": round(sum(result["seconds"] for result in results), 3),
            "run": str(path),
        }
        directory.finish(summary)
    return load_run(path)
