"""A bench: every method of a sweep file on every data set, tuned alike, with examples and pools,
over several seeds.

A row's settings, its number of rounds and its calibration offset are chosen on validation classes
with the first seed: every combination of ``evaluation.choose`` is one validation run, and every row
has the same number of them. The other seeds train once with what was chosen. A bench's directory
has ``cells/`` (a run directory for each cell and seed), ``measured/`` (what was measured of each)
and ``failed/`` (why a cell failed, until it succeeds).
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import ExperimentError, FedUnseenError, unknown
from fedunseen.core.files import write_json
from fedunseen.core.registry import find
from fedunseen.core.runs import read_json
from fedunseen.experiment.result.run import Run
from fedunseen.experiment.running import run
from fedunseen.experiment.schema import Experiment
from fedunseen.metrics import harmonic_mean, t_critical
from fedunseen.research.papers.conditions import POOL, PerClass, measured
from fedunseen.research.papers.tuning import Found, at_edges, search
from fedunseen.research.sweep import Cell, Sweep, read_sweep
from fedunseen.research.sweep.runner import alone_in, begin
from fedunseen.research.sweep.schema import Bench, Step

SHIPPED = Path(__file__).with_name("bench.toml")
KEYS = ("zsl", "gzsl_harmonic")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A number, and half of its 95 % interval over seeds and classes; None with one seed."""

    value: float
    half: float | None = None


@dataclass(frozen=True)
class Line:
    """What became of a row of the leaderboard: one cell under one condition.

    Attributes:
        values: axis -> value; ``condition`` is the number of examples of each unseen class, or
            ``pool``.
        status: ``done``, ``partial`` (not all seeds), ``failed``, ``refused`` or ``not run``;
            ``problem`` says why.
        numbers: ``zsl`` and ``gzsl_harmonic`` in percent.
        against: the same less those of the reference row; none of the reference itself.
        cost: ``seconds`` of the processor and ``bytes`` up and down of one client, both of one
            whole training, and ``rounds``. Examples and pools cost extra rounds of sums, which are
            not counted.
        settings: what was chosen on validation classes.
        edges: the settings of which no smaller or no larger value was tried, or ``strategy.rounds``
            where it is the most that was allowed: a better one may lie beyond.
    """

    values: Mapping[str, str]
    status: str
    problem: str = ""
    seeds: int = 0
    numbers: Mapping[str, Interval] | None = None
    against: Mapping[str, Interval] | None = None
    cost: Mapping[str, float] | None = None
    settings: Mapping[str, Any] | None = None
    seen_test: str = ""
    edges: tuple[str, ...] = ()


def read_bench(
    source: str | Path = SHIPPED, overrides: Mapping[str, Any] | None = None, against: str = ""
) -> tuple[Sweep, Bench]:
    """Read a sweep file with a table ``[bench]``, and check that its rows are tuned alike.

    ``against`` takes the place of the file's reference.

    Raises:
        ExperimentError: as :func:`read_sweep`; or the file has no such table (``bench-table``), no
            axis ``method`` (``bench-method``), a row with another number of validation runs
            (``bench-budget``), one that chooses nothing on validation classes
            (``bench-choice``), or one with a model for each client (``bench-models``).
    """
    sweep = read_sweep(source, overrides=overrides)
    bench = sweep.file.bench
    if bench is None:
        raise ExperimentError(
            f"{source} has no table [bench]: add one with validation_runs = N", "bench-table"
        )
    methods = sweep.axes.get("method")
    if methods is None:
        raise ExperimentError(
            f"{source}: axes: there is no axis 'method': add one, with a row each", "bench-method"
        )
    bench = bench.model_copy(update={"reference": against or bench.reference or methods[0]})
    for name in (bench.reference, *bench.seen_test):
        if name not in methods:
            raise ExperimentError(
                f"{source}: bench: {unknown('method', name, methods)}", "bench-method"
            )
    for cell in sweep.cells:
        if cell.experiment is None:
            continue
        choose = cell.experiment.evaluation.choose
        tried = cell.experiment.evaluation.combinations
        if tried != bench.validation_runs and (choose or not _steps(cell, bench)):
            raise ExperimentError(
                f"{source}: {cell.key}: evaluation.choose has {tried} combinations: give every row "
                f"as many as bench.validation_runs says, {bench.validation_runs}",
                "bench-budget",
            )
        if not cell.experiment.task.evaluator.chooses_apart(cell.experiment.evaluation):
            raise ExperimentError(
                f"{source}: {cell.key}: nothing is chosen on validation classes: take a zero-shot "
                "method, with evaluation.selection = 'validation'",
                "bench-choice",
            )
        strategy = cell.experiment.strategy.name
        if not find("strategy", strategy).one_model:
            raise ExperimentError(
                f"{source}: {cell.key}: under strategy.name = {strategy!r} each client has a model "
                "of its own, and a row is one model: leave it out, or take a strategy that merges",
                "bench-models",
            )
    return sweep, bench


def run_bench(
    sweep: Sweep,
    bench: Bench,
    out: Path,
    cells: Sequence[Cell],
    budget: float = math.inf,
    say: Callable[[str], None] = lambda words: None,
    executor: Executor | None = None,
) -> bool:
    """Run what is not done yet, cell by cell; return whether a cell has failed.

    Args:
        sweep: what :func:`read_bench` returned.
        bench: its table.
        out: the bench's directory; what it holds already is kept.
        cells: which cells to run, in order.
        budget: seconds after which no further run is started.
        say: called with a line for every run that ended.
        executor: runs the cells, in place of this process; its workers reach ``out``.

    Raises:
        RunDirectoryError: another process has ``out``, or it holds something else, or a bench with
            other settings.
    """
    end = time.time() + budget
    tasks = [(cell, cell.experiment, out, bench, end) for cell in cells if cell.experiment]
    with alone_in(sweep, out, resume=True):
        begin(sweep, out, resume=True)
        if executor is not None:
            return not all(_submitted(executor, tasks, say))
        failed = False
        for task in tasks:
            failed |= not _run_cell(*task, say)
        return failed


_Task = tuple[Cell, Experiment, Path, Bench, float]
"""What :func:`_run_cell` takes, but for who hears of it."""


def _submitted(
    executor: Executor, tasks: Sequence[_Task], say: Callable[[str], None]
) -> list[bool]:
    """Return for each cell whether it has not failed, on an executor; a worker that dies fails its
    cell.
    """
    futures = {executor.submit(_told, task): task for task in tasks}
    done = []
    for future in as_completed(futures):
        cell, _, out, *_ = futures[future]
        try:
            whole, lines = future.result()
        except Exception as error:  # of the executor: a cell records its own
            whole = False
            lines = [f"{cell.key}: its worker has failed: {error}"]
            write_json(out / "failed" / f"{cell.folder}.json", {"problem": lines[0]})
        say("\n".join(lines))
        done.append(whole)
    return done


def _told(task: _Task) -> tuple[bool, list[str]]:
    """Run a cell in a worker; return what it says, too."""
    lines: list[str] = []
    return _run_cell(*task, lines.append), lines


def _run_cell(
    cell: Cell,
    experiment: Experiment,
    out: Path,
    bench: Bench,
    end: float,
    say: Callable[[str], None],
) -> bool:
    """Run the seeds that are not done yet; return whether none has failed."""
    record = out / "failed" / f"{cell.folder}.json"
    kept = _stored(cell, bench, out)
    for seed in _seeds(experiment, bench):
        if seed in kept and kept[seed]["conditions"].keys() >= set(_conditions(bench)):
            continue
        if time.time() > end:
            break
        try:
            outcome = _run_seed(cell, experiment, out, seed, bench, say)
        except (
            Exception
        ) as error:  # an error in a method, perhaps another package's: the other cells continue
            kind = "" if isinstance(error, FedUnseenError) else f"{type(error).__name__}: "
            write_json(record, {"problem": f"{kind}{error}"})
            say(f"{cell.key}: seed {seed}: failed: {kind}{error}")
            return False
        seconds = (
            outcome["seconds"] or kept.get(seed, outcome)["seconds"]
        )  # of a run that was measured before
        write_json(_file(out, cell, seed), outcome | {"seconds": seconds})
        record.unlink(missing_ok=True)
        say(f"{cell.key}: seed {seed}: ZSL {outcome['zsl']:.1f}  H {outcome['gzsl_harmonic']:.1f}")
    return True


def _steps(cell: Cell, bench: Bench) -> list[Step]:
    """Return the steps of a row's search, none where a grid chooses."""
    if cell.experiment is None or cell.experiment.evaluation.choose:
        return []
    return [step for step in bench.steps if not step.rows or cell.values["method"] in step.rows]


def _seeds(experiment: Experiment, bench: Bench) -> range:
    return range(experiment.run.seed, experiment.run.seed + bench.seeds)


def _file(out: Path, cell: Cell, seed: int) -> Path:
    return out / "measured" / f"{cell.folder}--{seed}.json"


def _run_seed(
    cell: Cell,
    experiment: Experiment,
    out: Path,
    seed: int,
    bench: Bench,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Run one seed of a cell, what chooses before it, and measure it."""
    first = experiment.with_overrides({"run.seeds": 1})
    path = out / "cells" / f"{cell.folder}--{seed}"
    steps = _steps(cell, bench)
    seconds: float | None
    if steps:
        chosen = search(first, steps, bench.validation_runs, out / "searched" / cell.folder, say)
    else:
        tuned, seconds = _timed(first, out / "cells" / f"{cell.folder}--{first.run.seed}")
        chosen = Found.of(tuned.result["chosen_on_validation"])
    settings = {
        **chosen.settings,
        "strategy.rounds": chosen.round,
        "evaluation.factor": chosen.factor,
    }
    if not steps and seed == first.run.seed:
        seed_run = tuned
        seconds = None  # those of a run that tunes hold its validation runs
    else:
        again = {
            "evaluation.selection": "last",
            "evaluation.choose": {},
            "evaluation.every": chosen.round,
            "run.seed": seed,
        }
        seed_run, seconds = _timed(first.with_overrides({**settings, **again}), path)
    result = seed_run.result
    return {
        "zsl": result["zsl"],
        "gzsl_harmonic": result["gzsl_harmonic"],
        "settings": settings,
        "tried": chosen.tried,
        "rounds_allowed": chosen.settings.get("strategy.rounds", first.strategy.rounds),
        "rounds": result["rounds"],
        "bytes": (result["bytes_up"] + result["bytes_down"]) * result["rounds"],
        "seconds": seconds,
        "conditions": measured(seed_run, bench.examples, bench.pool),
    }


def _timed(experiment: Experiment, path: Path) -> tuple[Run, float | None]:
    """Run, or continue with a run; return it and its seconds of the processor, None if some passed
    before.
    """
    resume = (path / "manifest.json").exists()
    begun = time.process_time()
    done = run(experiment, path, resume=resume)
    return done, None if resume else time.process_time() - begun


def lines(sweep: Sweep, bench: Bench, out: Path) -> list[Line]:
    """Return the rows of the leaderboard from a bench's directory alone, those that are not run
    among them.
    """
    stored = {tuple(cell.values.items()): _stored(cell, bench, out) for cell in sweep.cells}
    leaderboard = []
    for cell, records in zip(sweep.cells, stored.values(), strict=True):
        reference = stored.get(tuple({**cell.values, "method": bench.reference}.items()), {})
        for condition in _conditions(bench):
            leaderboard.append(
                _line(
                    cell, bench, condition, records, {} if reference is records else reference, out
                )
            )
    return leaderboard


def _conditions(bench: Bench) -> list[str]:
    return [*map(str, bench.examples), *([POOL] if bench.pool else [])]


def _stored(cell: Cell, bench: Bench, out: Path) -> dict[int, dict[str, Any]]:
    """Return seed -> what was measured."""
    if cell.experiment is None:
        return {}
    wanted = ("conditions", "settings", "seconds", "bytes", "rounds")
    return {
        seed: read_json(path, f"{path} is damaged: delete it, and run the bench again", wanted)
        for seed in _seeds(cell.experiment, bench)
        if (path := _file(out, cell, seed)).exists()
    }


def _line(
    cell: Cell,
    bench: Bench,
    condition: str,
    records: Mapping[int, Mapping[str, Any]],
    reference: Mapping[int, Mapping[str, Any]],
    out: Path,
) -> Line:
    values = {**cell.values, "condition": condition}
    failure_file = out / "failed" / f"{cell.folder}.json"
    records, reference = (
        {seed: record for seed, record in side.items() if condition in record["conditions"]}
        for side in (records, reference)
    )
    problem = (
        str(read_json(failure_file, f"{failure_file} is damaged: delete it", ())["problem"])
        if failure_file.exists()
        else ""
    )
    if not records:
        if cell.refused is not None:
            return Line(values, "refused", cell.refused)
        return Line(values, "failed" if problem else "not run", problem)
    ours = [record["conditions"][condition] for record in records.values()]
    pair = [
        [side[seed]["conditions"][condition] for seed in records if seed in reference]
        for side in (records, reference)
    ]
    seconds = [record["seconds"] for record in records.values() if record["seconds"] is not None]
    last = list(records.values())[-1]
    cost = {"rounds": float(last["rounds"]), "bytes": float(last["bytes"])}
    return Line(
        values,
        "done" if len(records) == bench.seeds else "partial",
        problem,
        seeds=len(ours),
        numbers={key: interval(ours, (), key) for key in KEYS},
        against={key: interval(pair[0], pair[1], key) for key in KEYS} if pair[0] else None,
        cost=cost | ({"seconds": float(np.mean(seconds))} if seconds else {}),
        settings=last["settings"],
        seen_test=bench.seen_test.get(cell.values["method"], ""),
        edges=_edges(cell, next(iter(records.values()))),
    )


def _edges(cell: Cell, record: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings of a record that lie at an edge of what was tried."""
    assert cell.experiment is not None
    trained = find("method", cell.experiment.method.name).trained
    allowed = record.get("rounds_allowed", cell.experiment.strategy.rounds)
    rounds = allowed if trained else None
    return tuple(at_edges(record["settings"], record.get("tried", []), rounds))


def interval(ours: Sequence[PerClass], theirs: Sequence[PerClass], key: str) -> Interval:
    """Return the mean over seeds of a number, less that of others with the same seeds if any, with
    its 95 % interval.

    The variance is that of the mean over the seeds plus that of the mean over the classes (the
    jackknife that leaves out one class), so that the interval is about other seeds and other
    classes. The degrees of freedom are Welch's.
    """
    theirs = theirs or [
        {name: [0.0] * len(values) for name, values in own_seed.items()} for own_seed in ours
    ]
    each = np.array(
        [
            number(own_seed, key) - number(other_seed, key)
            for own_seed, other_seed in zip(ours, theirs, strict=True)
        ]
    )
    if len(each) < 2:
        return Interval(float(each[0]))
    mean, other_mean = (
        {name: np.mean([of_seed[name] for of_seed in side], 0) for name in side[0]}
        for side in (ours, theirs)
    )
    without = [a - b for a, b in zip(left_out(mean, key), left_out(other_mean, key), strict=True)]
    over_seeds = float(each.var(ddof=1)) / len(each)
    over_classes = sum((len(group) - 1) * float(group.var()) for group in without)
    if over_seeds + over_classes == 0:
        return Interval(float(each.mean()), 0.0)
    freedom = over_seeds**2 / (len(each) - 1) + over_classes**2 / sum(
        len(group) - 1 for group in without
    )
    variance = over_seeds + over_classes
    return Interval(float(each.mean()), t_critical(variance**2 / freedom) * variance**0.5)


def number(accuracies: Mapping[str, Sequence[float] | Floats], key: str) -> float:
    """Return ZSL accuracy or the harmonic mean from the accuracies of classes."""
    u, s = (
        float(np.mean(accuracies[name])) for name in ("zsl" if key == "zsl" else "unseen", "seen")
    )
    return u if key == "zsl" else harmonic_mean(u, s)


def left_out(accuracies: Mapping[str, Floats], key: str) -> list[Floats]:
    """Return a number with each unseen class left out and, of the harmonic mean, with each seen
    one.
    """
    without = {
        name: (values.sum() - values) / (len(values) - 1) for name, values in accuracies.items()
    }
    if key == "zsl":
        return [without["zsl"]]
    u = float(np.mean(accuracies["unseen"]))
    s = float(np.mean(accuracies["seen"]))
    first = np.array([harmonic_mean(value, s) for value in without["unseen"]])
    return [first, np.array([harmonic_mean(u, value) for value in without["seen"]])]
