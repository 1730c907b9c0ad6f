"""The road of one run: choose on validation classes, train round by round, measure, write the run directory.

With ``evaluation.selection = "validation"`` a run has two stages. The first is a run of its own, in ``selection/``: the
validation classes play the unseen ones, no test sample takes part, and its best round and calibration factor (and, of
``evaluation.choose``, its best settings) are what the second stage reports. With ``best-on-test`` the second stage
makes the same choice on the test set itself, as many papers do.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import scipy.stats
import torch

from fedunseen.core.errors import ExperimentError, FedUnseenError, RunDirectoryError
from fedunseen.core.files import write_json, write_tensors
from fedunseen.core.memory import keep_pages
from fedunseen.core.parameters import Params
from fedunseen.data import Benchmark, Partition, fit_semantics, make_partition
from fedunseen.data.episodes import for_episodes
from fedunseen.data.partition import elsewhere
from fedunseen.engines import Distributed, DistributedSettings, RoundResult
from fedunseen.engines.remote.coordinator import Meeting, Member, dismiss_late
from fedunseen.engines.remote.link import Simulate
from fedunseen.evaluation import Answers, best_factor, metrics
from fedunseen.evaluation.measures import ZERO_SHOT
from fedunseen.experiment.directory import Checkpoint, RunDirectory, is_whole, load_params
from fedunseen.experiment.encoding import encode
from fedunseen.experiment.federation import Federation, check_participants, check_presence, mean_terms
from fedunseen.experiment.few_shot import FewShot
from fedunseen.experiment.party import simulated
from fedunseen.experiment.registry import find, traits
from fedunseen.experiment.run import Run, load_run
from fedunseen.experiment.schema import Experiment
from fedunseen.experiment.summary import observe_round, summary_tensors
from fedunseen.experiment.threat_log import observe_threats, threat_line, threat_result

__all__ = ["Progress", "free_directory", "in_process", "partition_of", "prepared", "run"]

SAME = ("bytes_down", "bytes_up", "parameters", "parameters_shared", "gzsl_head")  # of every seed, or nearly so
SHARED = ("few_shot", "few_shot_base", "few_shot_pixels", "few_shot_random")  # of a few-shot run, in place of NAMES
NAMES = ZERO_SHOT


class Progress(Protocol):
    """Hears of every round."""

    def __call__(self, stage: str, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
        """Hear that ``round`` of ``rounds`` of a stage is done; ``line`` is its line of metrics, None at the start."""


Meet = Callable[[], AbstractContextManager[Meeting]]
"""Opens the link to the parties of a deployment."""


class Judge(Protocol):
    """Measures a round's models, and compares rounds."""

    def measure(
        self, round: int, result: RoundResult, models: Sequence[Params], client_states: dict[int, Params]
    ) -> dict[str, Any]:
        """Return the line of metrics of a round, counted from 0."""

    def observe(self, directory: RunDirectory, round: int, result: RoundResult, kept: bool) -> None:
        """Write down what only exists while a round runs; ``kept``: its model is the run's so far."""

    def merit(self, line: Mapping[str, Any]) -> tuple[float, float]:
        """Return what orders rounds: the higher, the better."""

    def numbers(self, line: Mapping[str, Any], model_path: Path) -> dict[str, Any]:
        """Return what a run reports, from the line of the chosen round and the model written for it."""


@dataclass(frozen=True)
class Choice:
    """Which round's model is reported, and with which calibration factor; None: what is best on this stage's tests."""

    round: int | None
    factor: float | None


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    meeting: Meet | None = None,
) -> Run:
    """Run an experiment and return it, as :func:`load_run` would.

    Args:
        experiment: what to run.
        out: the run directory; by default ``runs/NAME-seedN``, with a number added while that is taken.
        resume: go on with the run that ``out`` holds.
        progress: hears of every round.
        meeting: opens the link to the parties of a deployment, once everything else has been checked.

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
    hear = progress or (lambda stage, round, rounds, line: None)
    _check_engine(experiment, meeting)
    if experiment.run.seeds > 1:
        return _run_seeds(experiment, path, resume, hear)
    started = time.perf_counter()
    benchmark = _load_data(experiment, experiment.run.seed)
    if meeting is None:
        partition = partition_of(experiment, benchmark, experiment.run.seed)
    else:
        partition = elsewhere(experiment.partition)
    fingerprint = _fingerprint(experiment, benchmark)
    directory = RunDirectory(path)
    directory.check(experiment.to_dict(), fingerprint, resume)
    if directory.complete():
        if meeting is not None:  # it was killed before it could say goodbye
            with meeting() as met:
                dismiss_late(met)
        return load_run(path)
    if find("method", experiment.method.name).episodic:
        return _run_few_shot(experiment, benchmark, partition, fingerprint, directory, resume, hear, started, meeting)
    federation = Federation.make(experiment, benchmark, partition)
    selection = _selection_benchmark(experiment, benchmark, partition)
    with directory.locked(), keep_pages():
        directory.check(experiment.to_dict(), fingerprint, resume)  # again: another process may have been quicker
        directory.create(_manifest(experiment, fingerprint, benchmark))
        if directory.complete():
            return load_run(path)
        with _met(experiment, directory, len(federation.partition.clients), meeting) as met:
            chosen: dict[str, Any] = {}
            if selection is None:
                own = experiment.evaluation
                best = own.selection == "best-on-test"
                calibrated = best and _calibrates(experiment)
                choice = Choice(
                    None if best else experiment.strategy.rounds,
                    own.factor if own.factor is not None else None if calibrated else 0.0,
                )
            else:
                choice, chosen = _select(experiment, selection, partition, directory, hear, met)
            if chosen.get("settings"):
                federation = Federation.make(experiment.with_overrides(chosen["settings"]), benchmark, partition)
            judge = _ZeroShot(federation, choice.factor)
            result = _train(federation, directory, choice, judge, "training", hear, observed=True, met=met)
            result |= {"seconds": round(time.perf_counter() - started, 3), "run": str(path)}
            if chosen:
                result["chosen_on_validation"] = chosen
            _write_summary(federation, directory, result)
            directory.finish(result)
            _say_goodbye(federation)
    return load_run(path)


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


@contextmanager
def _met(
    experiment: Experiment, directory: RunDirectory, clients: int, meeting: Meet | None
) -> Iterator[Meeting | None]:
    """Yield the parties of a deployment, or those of a simulation in worker processes; None if all is in-process."""
    settings = experiment.engine
    if meeting is not None:
        with meeting() as met:
            met.run = directory.identity()
            yield met
    elif isinstance(settings, DistributedSettings):
        adapter = importlib.import_module(find("engine", settings.name).adapter)
        threads = str(max(1, torch.get_num_threads() // settings.processes))
        place = Simulate(directory.path / "engine", clients, settings.processes, simulated, threads)
        with adapter.simulate(place) as link:
            yield Meeting(link, [Member(str(client)) for client in range(clients)])
    else:
        yield None


def _say_goodbye(federation: Federation) -> None:
    if isinstance(federation.engine, Distributed):
        federation.engine.finish()


def in_process(experiment: Experiment) -> Experiment:
    """Return the experiment on the default engine, one client at a time: what stands behind every other engine."""
    if experiment.engine.name != "in-process":
        keep = {f"engine.{key}": getattr(experiment.engine, key) for key in ("memory", "precision")}
        experiment = experiment.with_overrides({"engine.name": "in-process", **keep})
    return experiment.with_overrides({"engine.mode": "one-at-a-time"})


def prepared(experiment: Experiment, selection: bool) -> tuple[Benchmark, Partition]:
    """Return the benchmark and the partition that a run trains on, as a simulation's worker process needs them.

    Args:
        experiment: on any engine.
        selection: those on which rounds and settings are chosen.
    """
    seed = experiment.run.seed
    benchmark = _load_data(experiment, seed)
    partition = partition_of(experiment, benchmark, seed)
    if find("method", experiment.method.name).episodic:
        return for_episodes(benchmark), partition
    if not selection:
        return benchmark, partition
    chosen = benchmark.for_selection(seed)
    return chosen, partition.restricted_to(chosen.train)


def _load_data(experiment: Experiment, seed: int) -> Benchmark:
    benchmark: Benchmark = find("data", experiment.data.name).load(experiment.data, seed)
    return encode(experiment, benchmark)


def _fingerprint(experiment: Experiment, benchmark: Benchmark) -> str:
    """Return the hash of all files that a result depends on: the benchmark's, and the one that says who holds what."""
    holders = experiment.partition.file.read_bytes() if experiment.partition.file else b""
    return hashlib.sha256(benchmark.fingerprint().encode() + holders).hexdigest()


def _selection_benchmark(experiment: Experiment, benchmark: Benchmark, partition: Partition) -> Benchmark | None:
    """Return what to choose on, None if nothing is chosen there, checked before anything is written."""
    if experiment.evaluation.selection != "validation":
        return None
    try:
        selection = benchmark.for_selection(experiment.run.seed)
        fit_semantics(selection.space, experiment.data.semantics)
        if not find("strategy", experiment.strategy.name).pools:
            restricted = partition.restricted_to(selection.train)
            check_presence(restricted, experiment.strategy.rounds)
            check_participants(experiment, restricted)
    except FedUnseenError as error:
        raise type(error)(f"{error}; or choose nothing, with evaluation.selection = 'last'") from None
    return selection


def _calibrates(experiment: Experiment) -> bool:
    """Say whether a calibration factor is to be chosen."""
    method = find("method", experiment.method.name)
    evaluation = experiment.evaluation
    return bool(evaluation.calibration == "stacking" and evaluation.factor is None and method.zero_shot)


def _select(
    experiment: Experiment,
    benchmark: Benchmark,
    partition: Partition,
    parent: RunDirectory,
    hear: Progress,
    met: Meeting | None,
) -> tuple[Choice, dict[str, Any]]:
    """Choose round, calibration factor and settings by runs on validation classes."""
    partition = partition.restricted_to(benchmark.train)
    grid = experiment.evaluation.choose
    candidates = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    results: list[dict[str, Any]] = []
    judge = experiment  # whose criterion compares the candidates: that of a zero-shot method, if one is among them
    for i, settings in enumerate(candidates):
        candidate = experiment.with_overrides({**settings, "evaluation.choose": {}, "evaluation.clients": False})
        judge = candidate if find("method", candidate.method.name).zero_shot else judge
        directory = RunDirectory(
            parent.path / "selection" / str(i) if len(candidates) > 1 else parent.path / "selection"
        )
        stage = "choosing on validation classes" + (f" {i + 1}/{len(candidates)}" if len(candidates) > 1 else "")
        result = directory.result()
        if result is None:
            federation = Federation.make(candidate, benchmark, partition, selection=True)
            directory.create({**_manifest(candidate, benchmark.fingerprint(), benchmark), "stage": "selection"})
            fixed = experiment.evaluation.factor
            choice = Choice(None, fixed if fixed is not None else None if _calibrates(candidate) else 0.0)
            result = _train(federation, directory, choice, _ZeroShot(federation, choice.factor), stage, hear, met=met)
            write_json(directory.result_path, result)
        results.append(result)
    best = max(range(len(results)), key=lambda i: (*_merit(results[i], judge), -i))
    result = results[best]
    found = {
        "settings": candidates[best],
        "round": result["selected_round"],
        "factor": result["calibration_factor"],
        "validation": {name: result[name] for name in NAMES},
    }
    if len(candidates) > 1:
        found["tried"] = [
            {"settings": settings, **{name: one[name] for name in NAMES}}
            for settings, one in zip(candidates, results, strict=True)
        ]
    return Choice(result["selected_round"], result["calibration_factor"]), found


def _merit(line: Mapping[str, Any], experiment: Experiment) -> tuple[float, float]:
    """Order rounds: by the criterion, then by seen accuracy; by that alone if the method knows no unseen class.

    What such a method answers on unseen classes is chance: before its outputs for them have learnt to be low, they even
    win now and then, and the criterion would choose the round that is trained least.
    """
    if not find("method", experiment.method.name).zero_shot:
        return (line["gzsl_seen"], 0.0)
    by_zsl = experiment.evaluation.criterion == "zsl"
    return (line["zsl"] if by_zsl else line["gzsl_harmonic"], line["gzsl_seen"])


def _train(
    federation: Federation,
    directory: RunDirectory,
    choice: Choice,
    judge: Judge,
    stage: str,
    hear: Progress,
    observed: bool = False,
    met: Meeting | None = None,
) -> dict[str, Any]:
    """Run all rounds, from the newest checkpoint on, and return the final numbers.

    If ``observed``, what only exists while a round runs is written down for the report.
    """
    experiment = federation.experiment
    rounds = experiment.strategy.rounds
    if met is not None and isinstance(federation.engine, Distributed):
        federation.engine.connect(met)
    state, params = federation.initial()
    order = list(params)
    client_states: dict[int, Params] = {}
    done = 0
    checkpoint = directory.newest_checkpoint(federation.device)
    if checkpoint and (choice.round or 1) <= checkpoint.rounds and not is_whole(directory.model_path):
        checkpoint = None  # the model of the chosen round is lost: only training again makes it
    if checkpoint:
        done, state, client_states = checkpoint.rounds, checkpoint.state, checkpoint.client_states
        _check_shapes(directory, checkpoint, params)
        params = {name: checkpoint.params[name] for name in order}
    directory.rewind(done)
    lines = directory.metrics()
    best = max((judge.merit(line) for line in lines), default=(-1.0, -1.0))
    hear(stage, done, rounds, lines[-1] if lines else None)
    for current in range(done, rounds):
        started = time.perf_counter()
        result = federation.engine.round(current, state, params, client_states, federation.participants(current))
        client_states.update(result.client_states)
        models = federation.models(result.params, client_states)
        line = judge.measure(current, result, models, client_states)
        state, params = result.state, result.params
        line |= federation.engine.strategy.notes(state)
        if result.dropped:
            line["dropped"] = {str(client): why for client, why in result.dropped.items()}
        if result.seconds:
            line["client_seconds"] = {str(client): seconds for client, seconds in result.seconds.items()}
        line["seconds"] = round(time.perf_counter() - started, 4)
        merit = judge.merit(line)
        lines.append(line)
        directory.add_metrics(line)
        if federation.partition.remote and isinstance(federation.engine, Distributed):
            directory.note_parties(federation.engine.parties)
        kept = choice.round == current + 1 or (choice.round is None and merit >= best)
        if observed:
            judge.observe(directory, current, result, kept)
            observe_threats(federation, directory, current, result.params)
        if kept:
            write_tensors(directory.model_path, _model_tensors(federation, models, client_states))
        best = max(best, merit)
        directory.save_checkpoint(Checkpoint(current + 1, params, state, client_states))
        hear(stage, current + 1, rounds, line)
    selected = choice.round
    if selected is None:  # of equally good rounds the last, which has learnt most
        selected = 1 + max(range(rounds), key=lambda i: (*judge.merit(lines[i]), i))
    return {
        **judge.numbers(lines[selected - 1], directory.model_path),
        **threat_result(federation, lines, selected),
        **({"epsilon": lines[-1]["privacy"]["epsilon"]} if "privacy" in lines[-1] else {}),
        **_traffic(federation, lines),
        "rounds": rounds,
        "selected_round": selected,
        "selection": experiment.evaluation.selection,
        "seed": experiment.run.seed,
    }


@dataclass(frozen=True, eq=False)
class _ZeroShot:
    """Judges by ZSL and generalised accuracies, with a fixed calibration factor or (None) each round's best."""

    federation: Federation
    factor: float | None

    def measure(
        self, round: int, result: RoundResult, models: Sequence[Params], client_states: dict[int, Params]
    ) -> dict[str, Any]:
        return _measure(self.federation, round, result, models, client_states, self.factor)

    def observe(self, directory: RunDirectory, round: int, result: RoundResult, kept: bool) -> None:
        observe_round(self.federation, directory, round, result, kept)

    def merit(self, line: Mapping[str, Any]) -> tuple[float, float]:
        return _merit(line, self.federation.experiment)

    def numbers(self, line: Mapping[str, Any], model_path: Path) -> dict[str, Any]:
        names = (*NAMES, *(f"uncalibrated_{name}" for name in NAMES[1:]), "calibration_factor")
        return {name: line[name] for name in names}


def partition_of(experiment: Experiment, benchmark: Benchmark, seed: int) -> Partition:
    """Deal the training samples; in a few-shot run validation classes are nobody's.

    Raises:
        FedUnseenError: the samples do not suffice, or the file that says who holds what is missing or damaged.
    """
    episodic = find("method", experiment.method.name).episodic
    return make_partition(experiment.partition, for_episodes(benchmark) if episodic else benchmark, seed)


def _run_few_shot(
    experiment: Experiment,
    benchmark: Benchmark,
    partition: Partition,
    fingerprint: str,
    directory: RunDirectory,
    resume: bool,
    hear: Progress,
    started: float,
    meeting: Meet | None,
) -> Run:
    """Train on episodes; choose the round on those of validation classes; report those of classes that nobody had."""
    federation = Federation.make(experiment, for_episodes(benchmark), partition)
    judge = FewShot.make(federation, benchmark)
    with directory.locked(), keep_pages():
        directory.check(experiment.to_dict(), fingerprint, resume)  # again: another process may have been quicker
        directory.create(_manifest(experiment, fingerprint, benchmark))
        if directory.complete():
            return load_run(directory.path)
        with _met(experiment, directory, len(federation.partition.clients), meeting) as met:
            last = experiment.evaluation.selection == "last"
            choice = Choice(experiment.strategy.rounds if last else None, None)
            result = _train(federation, directory, choice, judge, "training", hear, observed=True, met=met)
            result |= {"seconds": round(time.perf_counter() - started, 3), "run": str(directory.path)}
            _write_inputs(federation, benchmark, directory)
            write_tensors(directory.path / "evaluation.safetensors", judge.summary())
            directory.finish(result)
            _say_goodbye(federation)
    return load_run(directory.path)


def _check_shapes(directory: RunDirectory, checkpoint: Checkpoint, params: Params) -> None:
    """Refuse a checkpoint of another model: a text encoder, say, that has changed since."""
    for name, value in params.items():
        found = checkpoint.params.get(name)
        if found is None or found.shape != value.shape:
            shape = "none" if found is None else f"one of shape {tuple(found.shape)}"
            raise RunDirectoryError(
                f"{directory.checkpoints}: the parameter {name!r} has the shape {tuple(value.shape)} now, but the "
                f"checkpoint holds {shape}: restore the encoder or the files that the run was started with"
            )


def _traffic(federation: Federation, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Say what travels: bytes of a client in a round, on average, and how many parameters of each module there are."""
    parts = sum(len(line["participants"]) + len(line.get("dropped", ())) for line in lines)
    found: dict[str, Any] = {
        way: round(sum(line[way] for line in lines) / max(parts, 1), 1) for way in ("bytes_down", "bytes_up")
    }
    modules: dict[str, int] = {}
    for name, count in federation.sizes.items():
        modules[name.split(".")[0]] = modules.get(name.split(".")[0], 0) + count
    found["parameters"] = modules
    strategy = federation.engine.strategy
    travel = federation.first if strategy.merges and not strategy.pools else {}
    found["parameters_shared"] = sum(value.numel() for value in travel.values())
    if federation.method.generates:
        real = "real seen and synthetic unseen features"
        found["gzsl_head"] = real if strategy.pools else "synthetic features of all classes"
    return found


def _measure(
    federation: Federation,
    round: int,
    result: RoundResult,
    models: Sequence[Params],
    client_states: dict[int, Params],
    factor: float | None,
) -> dict[str, Any]:
    """Measure the run's models, and each client's own before merging; return the round's line of metrics."""
    experiment, replies = federation.experiment, result.replies
    many = [federation.answers(model) for model in models]
    factor = best_factor(many) if factor is None else factor
    line: dict[str, Any] = {"round": round + 1, **_mean_metrics(many, factor)}
    plain = _mean_metrics(many, 0.0)
    line |= {f"uncalibrated_{name}": plain[name] for name in NAMES[1:]}
    line["calibration_factor"] = factor
    line["losses"] = mean_terms(federation.engine.strategy.reply_weights(replies), replies)
    line["participants"] = [reply.client for reply in replies]
    line["bytes_down"], line["bytes_up"] = result.bytes_down, result.bytes_up
    line |= threat_line(federation, round, result, models, factor)
    own_too = experiment.evaluation.clients
    if own_too or (own_too is None and not federation.method.generates):
        if federation.engine.strategy.merges:
            own = [federation.answers(federation.complete(result.models(i))) for i in range(len(replies))]
        else:  # all clients' models have been asked
            answers = dict(zip(sorted(client_states), many, strict=True))
            own = [answers[reply.client] for reply in replies]
        measured = [metrics(one, factor) for one in own]
        line["clients"] = {name: [getattr(one, name) for one in measured] for name in NAMES}
    return line


def _mean_metrics(many: Sequence[Answers], factor: float) -> dict[str, float]:
    each = [asdict(metrics(answers, factor)) for answers in many]
    return {name: float(np.mean([one[name] for one in each])) for name in NAMES}


def _model_tensors(federation: Federation, models: Sequence[Params], client_states: dict[int, Params]) -> Params:
    """Return the merged model; where nothing merges, every client's, under ``client/K/``."""
    if federation.engine.strategy.merges:
        return models[0]
    clients = zip(sorted(client_states), models, strict=True)
    return {f"client/{k}/{name}": value for k, own in clients for name, value in own.items()}


def _write_summary(federation: Federation, directory: RunDirectory, result: Mapping[str, Any]) -> None:
    """Write what ``predict`` and the report need, so that neither needs the data."""
    _write_inputs(federation, federation.benchmark, directory)
    params = load_params(directory.model_path, federation.device)
    write_tensors(
        directory.path / "evaluation.safetensors",
        summary_tensors(federation, params, result["calibration_factor"]),
    )


def _write_inputs(federation: Federation, benchmark: Benchmark, directory: RunDirectory) -> None:
    """Write the class space and how features are scaled."""
    benchmark.space.save(directory.path / "classes.csv")
    statistics = dict(federation.feature_scaler.statistics) or {"none": np.zeros(1, dtype=np.float32)}
    write_tensors(directory.path / "scaling.safetensors", statistics)


def _manifest(experiment: Experiment, fingerprint: str, benchmark: Benchmark) -> dict[str, Any]:
    versions = {}
    for package in ("fedunseen", "torch", "numpy", "scikit-learn", "scipy", "safetensors"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    image = {"image_shape": list(benchmark.image_shape)} if benchmark.image_shape else {}
    if benchmark.pictures is not None:
        image = {"picture_shape": list(benchmark.pictures.shape[1:])}
    return {
        "experiment": experiment.to_dict(),
        **traits(experiment),
        "seed": experiment.run.seed,
        "data_fingerprint": fingerprint,
        "benchmark": benchmark.name,
        "input_shape": list(benchmark.features.shape[1:]),
        **({} if benchmark.answers is None else {"answers": benchmark.answers.tolist()}),
        **image,
        "versions": versions,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def free_directory(experiment: Experiment, kind: str = "") -> Path:
    """Return where a run goes that is not told where: ``runs/NAME-seedN``, with a number added while that is taken.

    Args:
        experiment: says name and seed.
        kind: put before the name, of what is no run.
    """
    base = Path("runs") / f"{kind}{experiment.name}-seed{experiment.run.seed}"
    candidates = itertools.chain([base], (base.with_name(f"{base.name}-{i}") for i in itertools.count(2)))
    return next(path for path in candidates if not path.exists())


def _run_seeds(experiment: Experiment, path: Path, resume: bool, hear: Progress) -> Run:
    """Run several seeds, each in a run directory of its own within this one, and write mean and deviation."""
    directory = RunDirectory(path)
    first = experiment.run.seed
    benchmark = _load_data(experiment, first)
    partitions = [partition_of(experiment, benchmark, first + i) for i in range(experiment.run.seeds)]
    fingerprint = _fingerprint(experiment, benchmark)
    directory.check(experiment.to_dict(), fingerprint, resume)
    if directory.complete():
        return load_run(path)
    # What is wrong is said before anything is written.
    if find("method", experiment.method.name).episodic:
        FewShot.make(Federation.make(experiment, for_episodes(benchmark), partitions[0]), benchmark)
    else:
        Federation.make(experiment, benchmark, partitions[0])
        _selection_benchmark(experiment, benchmark, partitions[0])
    with directory.locked():
        directory.check(experiment.to_dict(), fingerprint, resume)  # again: another process may have been quicker
        directory.create(_manifest(experiment, fingerprint, benchmark))
        results = []
        for seed in range(first, first + experiment.run.seeds):

            def hear_seed(
                stage: str, round: int, rounds: int, line: Mapping[str, Any] | None, seed: int = seed
            ) -> None:
                hear(f"seed {seed}: {stage}", round, rounds, line)

            one = experiment.with_overrides({"run.seed": seed, "run.seeds": 1})
            done = run(one, path / f"seed-{seed}", resume=(path / f"seed-{seed}").exists(), progress=hear_seed)
            results.append(done.result)
        summary: dict[str, Any] = {}
        names = [
            name
            for name in results[0]
            if name in (*NAMES, *SHARED) or name.startswith(("uncalibrated_", "backdoor"))
            if all(name in result for result in results)
        ]
        for name in names:
            values = [result[name] for result in results]
            summary |= {name: float(np.mean(values)), f"{name}_sd": float(np.std(values, ddof=1))}
        if "few_shot" in names:  # of one run the interval is that of its episodes, of several that of the seeds
            half = scipy.stats.t.ppf(0.975, len(results) - 1) * summary["few_shot_sd"] / len(results) ** 0.5
            summary["few_shot_ci95"] = float(half)
        summary |= {
            **{name: results[0][name] for name in SAME if name in results[0]},
            "rounds": experiment.strategy.rounds,
            "selection": experiment.evaluation.selection,
            "seeds": list(range(first, first + experiment.run.seeds)),
            "seconds": round(sum(result["seconds"] for result in results), 3),
            "run": str(path),
        }
        directory.finish(summary)
    return load_run(path)
