"""A coordinate search on validation classes: optimizers of server and clients, learning rates,
weights and rounds.

A search takes steps. A step fixes some settings and climbs along one number: from where it starts
up by a factor as long as validation gains, else down; so the best value ends between two that are
worse. What is best so far passes on to the next step. Each point is one validation run, which ends
when validation has not gained for a quarter of the rounds run. Validation classes play the unseen
ones; no sample of an unseen class takes part.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from fedunseen.core.errors import FedUnseenError
from fedunseen.core.files import write_json
from fedunseen.core.registry import find
from fedunseen.core.runs import read_json
from fedunseen.experiment import stages
from fedunseen.experiment.assemble import resolve_defaults
from fedunseen.experiment.schema import Experiment
from fedunseen.experiment.setup import Setup
from fedunseen.federation.loop import NOT_MEASURED, Callback, Loop
from fedunseen.research.sweep.schema import Step

_SHORTEST = 8  # rounds without gain that never end a run: early ones are noisy
_NUMBERS = ("selected_round", "calibration_factor", "rounds", "zsl", "gzsl_harmonic", "gzsl_seen")
Point = dict[str, Any]


class QuarterWithoutGain(Callback):
    """Stops when validation has not gained for a quarter of the rounds run, and for eight."""

    def before_round(self, loop: Loop) -> None:
        """Stop by what the history says."""
        patience = max(_SHORTEST, len(loop.history) / 4)
        if loop.rounds_since_best >= patience and loop.scores[-1] != NOT_MEASURED:
            loop.stop("no gain on validation classes for a quarter of the rounds run")


@dataclass(frozen=True)
class Found:
    """What a search has chosen.

    Attributes:
        settings: key -> value.
        round, factor: round and calibration offset that its validation run chose.
        tried: the points in order, each with its numbers on validation classes.
    """

    settings: Point
    round: int
    factor: float
    tried: list[dict[str, Any]]

    @classmethod
    def of(cls, chosen: Mapping[str, Any]) -> Self:
        """Return what a run chose from a grid, by its ``chosen_on_validation``."""
        tried = chosen.get("tried", [])
        return cls(chosen["settings"], chosen["round"], chosen["factor"], tried)


def search(
    experiment: Experiment, steps: Sequence[Step], runs: int, path: Path, say: Callable[[str], None]
) -> Found:
    """Search with at most ``runs`` validation runs, and those that steps add; points that ``path``
    holds are not run again.

    Raises:
        FedUnseenError: no point could be trained.
    """
    trials = _Trials(experiment, path, say)
    best: Point = {}
    for step in steps:
        runs += step.runs
        if len(trials.tried) >= runs:
            continue
        best = _climb(trials, step, best, runs)
    if trials.result(best) is None:
        raise FedUnseenError(f"{path}: no point of the search could be trained: lower its starts")
    chosen = trials.result(best) or {}
    return Found(
        best, chosen["selected_round"], chosen["calibration_factor"], list(trials.tried.values())
    )


def _climb(trials: "_Trials", step: Step, best: Point, runs: int) -> Point:
    """Return the better of ``best`` and the best point of one step."""
    if step.start is None and step.key not in best:
        return best
    start = best[step.key] if step.start is None else step.start
    point = _joined(best, {**step.set, step.key: start})
    trials.run(point)
    for factor in (step.factor, 1 / step.factor):
        climbed = False
        while len(trials.tried) < runs:
            further = point | {step.key: _scaled(point[step.key], factor)}
            if trials.run(further) <= trials.score(point):
                break
            point = further
            climbed = True
        if climbed:
            break
    return point if not best or trials.score(point) > trials.score(best) else best


def _joined(best: Point, changed: Point) -> Point:
    """Return ``best`` with changes; another strategy takes none of the settings of the old one."""
    if changed.get("strategy.name", best.get("strategy.name")) != best.get("strategy.name"):
        best = {key: value for key, value in best.items() if not key.startswith("strategy.")}
    return {**best, **changed}


def _scaled(value: float, factor: float) -> float:
    """Return the neighboring value: of a whole number a whole one, else three significant digits,
    so that the same point has the same name.
    """
    if isinstance(value, int):
        return max(1, round(value * factor))
    return float(f"{value * factor:.3g}")


class _Trials:
    """The validation runs of a search."""

    def __init__(self, experiment: Experiment, path: Path, say: Callable[[str], None]) -> None:
        self.experiment = experiment
        self.path = path
        self.say = say
        self.tried: dict[str, dict[str, Any]] = {}
        self.setup: Setup | None = None

    def score(self, point: Point) -> tuple[float, float]:
        """Return what points are compared by; a point that diverged is below all others."""
        result = self.result(point)
        if result is None:
            return NOT_MEASURED
        task = self.experiment.task.evaluator
        method = find("method", self.experiment.method.name)
        return task.order(result, self.experiment.evaluation, method)

    def result(self, point: Point) -> dict[str, Any] | None:
        """Return the numbers of a point on validation classes, None where training diverged."""
        numbers = self.tried.get(_name(point), {})
        return numbers if "zsl" in numbers else None

    def run(self, point: Point) -> tuple[float, float]:
        """Run a point, unless it has been run, and return its score."""
        name = _name(point)
        file = self.path / f"{name}.json"
        if name not in self.tried:
            if not file.exists():
                write_json(file, {"settings": point, **self._measured(name, point)})
                self.say(f"{self.path.name}: {json.loads(file.read_text('utf-8'))}")
            self.tried[name] = dict(read_json(file, f"{file} is damaged: delete it", ["settings"]))
        return self.score(point)

    def _measured(self, name: str, point: Point) -> dict[str, Any]:
        """Train on the validation split with a point's settings."""
        if self.setup is None:
            setup = Setup.of(self.experiment, self.path, lambda *line: None)
            setup = replace(setup, callbacks=(QuarterWithoutGain(),))
            self.setup = stages.prepare(setup.assembled())
        setup = self.setup
        assert setup.apart is not None
        experiment = resolve_defaults(self.experiment.with_overrides(point), setup.whole)
        quiet = experiment.evaluation.model_copy(update={"choose": {}, "clients": False})
        kind = find("method", experiment.method.name)
        rounds = experiment.strategy.rounds
        try:
            result = setup.sub_run(
                f"runs/{name}",
                (stages.warm_start, stages.train),
                experiment=experiment.model_copy(update={"evaluation": quiet}),
                benchmark=setup.apart,
                partition=setup.partition.restricted_to(setup.apart.train),
                rounds=rounds,
                choice=experiment.task.evaluator.choice(quiet, kind, rounds, selecting=True),
                selection=True,
            )
        except FedUnseenError as error:
            return {"problem": str(error)}
        return {key: result[key] for key in _NUMBERS}


def _name(point: Point) -> str:
    text = json.dumps(dict(sorted(point.items())))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def at_edges(
    settings: Mapping[str, Any], tried: Sequence[Mapping[str, Any]], most: int | None
) -> list[str]:
    """Return the chosen numbers that have no tried value on both sides, and so may not be best.

    Args:
        settings: what was chosen, ``strategy.rounds`` among it.
        tried: points, each with ``settings``; values count where all words of the point
            (optimizers) are the chosen ones.
        most: the largest number of rounds that was allowed; None where they are not trained.
    """
    words = {key: value for key, value in settings.items() if isinstance(value, str)}
    edges = []
    for key, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if key == "strategy.rounds":
            edges += [key] if most is not None and value >= most else []
            continue
        others = [
            point["settings"][key]
            for point in tried
            if key in point["settings"]
            and all(point["settings"].get(word, name) == name for word, name in words.items())
        ]
        if others and not min(others) < value < max(others):
            edges.append(key)
    return edges
