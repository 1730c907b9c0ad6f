"""Choose round, calibration factor and settings by runs on validation classes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedunseen.core.errors import DataError, FedUnseenError
from fedunseen.core.registry import find
from fedunseen.data import Benchmark, fit_semantics
from fedunseen.experiment.assemble import resolve_defaults
from fedunseen.experiment.calibration_folds import factor_of_folds
from fedunseen.experiment.rules import PresenceFacts, check
from fedunseen.experiment.schema import Experiment
from fedunseen.experiment.setup import Setup
from fedunseen.experiment.stages.train import train
from fedunseen.experiment.stages.warm_start import warm_start
from fedunseen.federation.evaluator import Choice


def prepare(setup: Setup) -> Setup:
    """Return the setup with the benchmark to select on, if any, checked before anything is written."""
    experiment, benchmark = setup.experiment, setup.whole
    if not experiment.task.evaluator.chooses_apart(experiment.evaluation):
        return setup
    try:
        apart = benchmark.for_selection(experiment.run.seed)
        for word, rows in (("validation", apart.test_unseen), ("other seen", apart.test_seen)):
            if not len(rows):  # of a part, as a coordinator has one
                raise DataError(
                    f"{benchmark.name} has no sample of its {word} classes to choose on: give the coordinator some of "
                    "its own, marked 'train'"
                )
        fit_semantics(apart.space, experiment.data.semantics)
        if not find("strategy", experiment.strategy.name).pools:
            check(PresenceFacts(experiment, setup.partition.restricted_to(apart.train)))
    except FedUnseenError as error:
        raise error.reworded(f"{error}; or choose nothing, with evaluation.selection = 'last'") from None
    return replace(setup, apart=apart)


def select(setup: Setup) -> Setup:
    """Choose on validation classes, where the task does so in runs apart; otherwise leave the choice to the rounds."""
    if setup.apart is None:
        evaluation, method = setup.experiment.evaluation, type(setup.federation.method)
        return replace(setup, choice=setup.evaluator.choice(evaluation, method, setup.rounds))
    choice, chosen = _choose(setup, setup.apart)
    if chosen["settings"]:
        before, now = setup.experiment, resolve_defaults(setup.given.with_overrides(chosen["settings"]), setup.whole)
        chosen["settings"] |= _followed(before, now)
        setup = replace(setup, experiment=now, rounds=now.strategy.rounds).assembled()
    return replace(setup, choice=choice, chosen=chosen)


def _choose(setup: Setup, benchmark: Benchmark) -> tuple[Choice, dict[str, Any]]:
    """Run every combination of settings on the validation classes, and return what the best one chose."""
    experiment, grid = setup.given, setup.given.evaluation.choose
    candidates = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    task, method = experiment.task, find("method", experiment.method.name)
    results: list[Mapping[str, Any]] = []
    for i, settings in enumerate(candidates):
        candidate = experiment.with_overrides({**settings, "evaluation.choose": {}, "evaluation.clients": False})
        candidate = resolve_defaults(candidate, setup.whole)
        own = find("method", candidate.method.name)
        method = own if own.zero_shot else method  # candidates are compared as one that scores unseen classes, if any
        several = len(candidates) > 1
        label = "choosing on validation classes" + (f" {i + 1}/{len(candidates)}" if several else "")
        rounds = candidate.strategy.rounds
        choice = candidate.task.evaluator.choice(candidate.evaluation, own, rounds, selecting=True)
        partition = setup.partition.restricted_to(benchmark.train)
        how = {"experiment": candidate, "benchmark": benchmark, "partition": partition, "rounds": rounds}
        how |= {"choice": choice, "label": label, "selection": True}
        results.append(setup.sub_run(f"selection/{i}" if several else "selection", (warm_start, train), **how))
    orders = [task.evaluator.order(result, experiment.evaluation, method) for result in results]
    best = max(range(len(results)), key=lambda i: (*orders[i], -i))
    result = results[best]
    form = {"method.form": result["form"]} if "form" in result else {}  # whose scores the factor is for
    found: dict[str, Any] = {
        "settings": {**candidates[best], **form},
        "round": result["selected_round"],
        "factor": result["calibration_factor"],
        **{name: result[name] for name in ("rounds", "stopped") if name in result},
        "validation": {name: result[name] for name in task.accuracies},
    }
    chosen = resolve_defaults(experiment.with_overrides(candidates[best]), setup.whole)
    if (folds := factor_of_folds(chosen, setup.whole, setup.partition)) is not None:
        found |= {"factor": folds[0], "turns": folds[1]}
    if len(candidates) > 1:
        found["tried"] = [
            {"settings": settings, **{name: one[name] for name in task.accuracies}}
            for settings, one in zip(candidates, results, strict=True)
        ]
    return Choice(result["selected_round"], found["factor"]), found


def _followed(before: Experiment, now: Experiment) -> dict[str, Any]:
    """Return what follows from the data otherwise than before, since settings have been chosen."""
    pairs = {
        "data.features": (before.data.features, now.data.features),
        "method.lr": tuple(getattr(one.method, "lr", None) for one in (before, now)),
    }
    return {key: new for key, (old, new) in pairs.items() if new != old and new is not None}
