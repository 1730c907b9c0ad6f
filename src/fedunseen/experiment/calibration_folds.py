"""A calibration offset that few validation classes would leave to chance: every seen class plays
the unseen one once.

Of nine seen classes two are for validation, and whether these two lie near the others decides by
how much seen classes are lowered. A method in closed form is solved in no time, so that all seen
classes can take turns: as many at a time as there are validation classes, the harmonic mean being
averaged over the turns.

Where classes are few, those left out are predicted from fewer still, and may ask for an offset that
the final model's seen classes cannot bear. So the training samples, which lie beside the real
unseen classes, bound it (:func:`choose_offset`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedunseen.confidence import Prior, offset_for
from fedunseen.confidence.priors import PRIORS, asked_unseen
from fedunseen.core.errors import FedUnseenError
from fedunseen.core.parameters import Params
from fedunseen.core.random import stream
from fedunseen.core.registry import find
from fedunseen.data import Benchmark
from fedunseen.experiment.assemble import assemble
from fedunseen.experiment.hooks import hides_samples
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.federation import Federation
from fedunseen.federation.partition import Partition
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.metrics import Answers

FEW = 5  # validation classes from which on one turn says enough
MOST = 8  # turns
KEPT = 0.5
KEPT_TRAINED = 0.1
"""Share of the training samples that are right without calibration, which each seen class keeps
with it. On few classes of AWA1_LAMPERT and CIFAR100_MBV2 a half raises the harmonic mean of ridge
regression, and lowers that of FedZSL."""
_BELOW = 0.99  # of the gap that bounds it: samples that are alike differ by rounding
_TRIED = 200  # training samples of a class on which an offset is bounded


def calibration_folds(benchmark: Benchmark, seed: int) -> list[Benchmark]:
    """Return the benchmark once for each turn, with other validation classes each time; the first
    has its own.
    """
    space = benchmark.space
    if len(space.validation) >= FEW:
        return [benchmark]
    shuffled = stream(seed, "turns of validation classes").permutation(space.train)
    groups = [
        shuffled[i : i + len(space.validation)]
        for i in range(0, len(shuffled), len(space.validation))
    ]
    if len(groups) > 1 and len(groups[-1]) < len(space.validation):
        groups[-2:] = [
            np.concatenate(groups[-2:])
        ]  # a rest of fewer classes would have an easier turn
    spaces = [replace(space, validation=np.sort(group)) for group in groups[: MOST - 1]]
    return [benchmark, *(replace(benchmark, space=fold_space) for fold_space in spaces)]


class ChosenOffset(NamedTuple):
    """A calibration offset.

    Attributes:
        offset: what the scores of seen classes are lowered by.
        wanted: the best one, before it was bounded.
        bounded_by: the class that ``wanted`` would have all but emptied; "" without one.
    """

    offset: float
    wanted: float
    bounded_by: str


def choose_offset(
    answers: Sequence[Answers], final: Federation, model: Params | None, prior: Prior
) -> ChosenOffset:
    """Return the offset that suits a prior best, for answers of models without validation classes.

    With ``model``, the final one, beside the real unseen classes: at most the offset that leaves
    every seen class a part of its training samples.
    """
    wanted = offset_for(answers, prior, asked_unseen(prior, final.benchmark.space))
    if model is None:
        return ChosenOffset(wanted, wanted, "")
    offset, at_stake = _bounded(wanted, final, model)
    return ChosenOffset(offset, wanted, at_stake)


def _bounded(offset: float, federation: Federation, model: Params) -> tuple[float, str]:
    """Return at most the offset that leaves every seen class a part of its training samples, and
    the class that bounds; "" where the offset is low enough.
    """
    benchmark = federation.benchmark
    bounds = {-1: np.inf}
    kept = KEPT_TRAINED if federation.method.trained else KEPT
    samples_of_class = [
        benchmark.train[benchmark.labels[benchmark.train] == c][:_TRIED]
        for c in benchmark.space.seen
    ]
    answers = federation.answers(model, np.concatenate(samples_of_class))
    right = (answers.best_seen == answers.labels) & (answers.gap >= 0)
    for c in np.unique(answers.labels[right]).tolist():
        gaps = answers.gap[right & (answers.labels == c)]
        bounds[c] = _BELOW * float(np.quantile(gaps, 1 - kept, method="lower"))
    if not federation.method.trained:
        # below, the classes taken for unseen ones were too easy: unseen ones would vanish
        offset = max(0.0, offset)
    lowest = min(bounds, key=lambda c: bounds[c])
    if offset <= bounds[lowest]:
        return offset, ""
    return bounds[lowest], benchmark.space.names[lowest]


def offset_of_folds(
    experiment: Experiment, benchmark: Benchmark, partition: Partition
) -> dict[str, Any] | None:
    """Return the best offset from all seen classes taking ``turns``: as ``wanted``, and bounded as
    ``factor``.

    ``bounded_by`` is the class that the first would have all but emptied. ``offsets`` are what
    each prior by name would choose.

    None where the validation classes are enough, nothing is calibrated, or the method takes time or
    parties elsewhere.
    """
    turns = _folds_of(experiment, benchmark)
    if len(turns) < 2:
        return None
    # Each turn would choose its own settings of how large scores are, and offsets could not be
    # compared: with few samples one turn's scores were ten times as large as another's. No test
    # sample takes part.
    final, models = _solved(experiment, benchmark, partition)
    if isinstance(final.method, ClosedForm) and final.strategy.one_model:
        units = final.method.units(models[0])
        experiment = experiment.with_overrides(
            {f"method.{key}": value for key, value in units.items()}
        )
    answered = []
    for turn in turns:
        selection = turn.for_selection(experiment.run.seed)
        try:
            restricted = partition.restricted_to(selection.train)
            federation, solved = _solved(experiment, selection, restricted, selection=True)
        except (
            FedUnseenError
        ):  # someone would be left without classes: the others' turns have to do
            continue
        answered.append([federation.answers(model) for model in solved])
    many = [answers for each in answered for answers in each]
    model = models[0] if final.strategy.one_model else None
    chosen = choose_offset(many, final, model, experiment.evaluation.prior)
    offsets = {prior: choose_offset(many, final, model, prior).offset for prior in PRIORS}
    numbers = {
        "factor": chosen.offset,
        "turns": len(answered),
        "wanted": chosen.wanted,
        "offsets": offsets,
    }
    return {**numbers, "bounded_by": chosen.bounded_by} if chosen.bounded_by else numbers


def _folds_of(experiment: Experiment, benchmark: Benchmark) -> list[Benchmark]:
    """Return the folds of a run; none where it does not calibrate by them."""
    method = find("method", experiment.method.name)
    evaluation = experiment.evaluation
    calibrates = (
        evaluation.calibration == "stacking" and evaluation.factor is None and method.zero_shot
    )
    quick = (
        not method.trained
        and experiment.engine.name == "in-process"
        and experiment.strategy.rounds == 1
    )
    # Under privacy every turn would be another release, which no accountant counts.
    free = not hides_samples(experiment)
    return (
        calibration_folds(benchmark, experiment.run.seed) if calibrates and quick and free else []
    )


def _solved(
    experiment: Experiment, benchmark: Benchmark, partition: Partition, selection: bool = False
) -> tuple[Federation, Sequence[Params]]:
    """Return a federation and its models after one round."""
    federation = assemble(experiment, experiment.task.client_data(benchmark), partition, selection)
    state, _ = federation.round(federation.start())
    return federation, federation.models(state)
