"""A calibration factor that few validation classes would leave to chance: every seen class plays the unseen one once.

Of nine seen classes two are for validation, and whether these two lie near the others decides by how much seen classes
are lowered. A method in closed form is solved in no time, so that all seen classes can take turns: as many at a time as
there are validation classes, the harmonic mean being averaged over the turns.

Where classes are few, those left out are predicted from fewer still, and may ask for an offset that the final model's
seen classes cannot bear. So the training samples, which lie beside the real unseen classes, bound it (:func:`bounded`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedunseen.core.errors import FedUnseenError
from fedunseen.core.parameters import Params
from fedunseen.core.random import stream
from fedunseen.core.registry import find
from fedunseen.data import Benchmark
from fedunseen.experiment.assemble import assemble
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.federation import Federation
from fedunseen.federation.partition import Partition
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.metrics import best_factor

FEW = 5  # validation classes from which on one turn says enough
MOST = 8  # turns
KEPT, KEPT_TRAINED = 0.5, 0.1
"""Share of the training samples that are right without calibration, which each seen class keeps with it. On few classes
of AWA1_LAMPERT and CIFAR100_MBV2 a half raises the harmonic mean of ridge regression, and lowers that of FedZSL."""
_BELOW = 0.99  # of the gap that bounds it: samples that are alike differ by rounding
_TRIED = 200  # training samples of a class on which a factor is bounded


def calibration_folds(benchmark: Benchmark, seed: int) -> list[Benchmark]:
    """Return the benchmark once for each turn, with other validation classes each time; the first has its own."""
    space = benchmark.space
    if len(space.validation) >= FEW:
        return [benchmark]
    others = stream(seed, "turns of validation classes").permutation(space.train)
    groups = [others[i : i + len(space.validation)] for i in range(0, len(others), len(space.validation))]
    if len(groups) > 1 and len(groups[-1]) < len(space.validation):
        groups[-2:] = [np.concatenate(groups[-2:])]  # a rest of fewer classes would have an easier turn
    spaces = [replace(space, validation=np.sort(group)) for group in groups[: MOST - 1]]
    return [benchmark, *(replace(benchmark, space=one) for one in spaces)]


def bounded(factor: float, federation: Federation, model: Params) -> tuple[float, str]:
    """Return at most the factor that leaves every seen class a part of its training samples, and the class that bounds.

    The class is "" where the factor is low enough. The model is the final one, beside the real unseen classes.
    """
    benchmark, bounds = federation.benchmark, {-1: np.inf}
    kept = KEPT_TRAINED if federation.method.trained else KEPT
    own = [benchmark.train[benchmark.labels[benchmark.train] == c][:_TRIED] for c in benchmark.space.seen]
    answers = federation.answers(model, np.concatenate(own))
    right = (answers.best_seen == answers.labels) & (answers.gap >= 0)
    for c in np.unique(answers.labels[right]).tolist():
        gaps = answers.gap[right & (answers.labels == c)]
        bounds[c] = _BELOW * float(np.quantile(gaps, 1 - kept, method="lower"))
    if not federation.method.trained:
        factor = max(0.0, factor)  # below, the classes taken for unseen ones were too easy: unseen ones would vanish
    lowest = min(bounds, key=lambda c: bounds[c])
    return (factor, "") if factor <= bounds[lowest] else (bounds[lowest], benchmark.space.names[lowest])


def factor_of_folds(experiment: Experiment, benchmark: Benchmark, partition: Partition) -> dict[str, Any] | None:
    """Return the best factor from all seen classes taking ``turns``: as ``wanted``, and bounded as ``factor``.

    ``bounded_by`` is the class that the first would have all but emptied.

    None where the validation classes are enough, nothing is calibrated, or the method takes time or parties elsewhere.
    """
    method, evaluation = find("method", experiment.method.name), experiment.evaluation
    calibrates = evaluation.calibration == "stacking" and evaluation.factor is None and method.zero_shot
    quick = not method.trained and experiment.engine.name == "in-process" and experiment.strategy.rounds == 1
    free = experiment.privacy.name == "none"  # every turn would be another release, which no accountant counts
    turns = calibration_folds(benchmark, experiment.run.seed) if calibrates and quick and free else []
    if len(turns) < 2:
        return None
    # Each turn would choose its own settings of how large scores are, and factors could not be compared: with few
    # samples one turn's scores were ten times as large as another's. No test sample takes part.
    final, models = _solved(experiment, benchmark, partition)
    if isinstance(final.method, ClosedForm) and final.strategy.one_model:
        units = final.method.units(models[0])
        experiment = experiment.with_overrides({f"method.{key}": value for key, value in units.items()})
    answered = []
    for turn in turns:
        selection = turn.for_selection(experiment.run.seed)
        try:
            restricted = partition.restricted_to(selection.train)
            federation, solved = _solved(experiment, selection, restricted, selection=True)
        except FedUnseenError:  # someone would be left without classes: the others' turns have to do
            continue
        answered.append([federation.answers(model) for model in solved])
    wanted = best_factor([answers for many in answered for answers in many])
    factor, at_stake = bounded(wanted, final, models[0]) if final.strategy.one_model else (wanted, "")
    found = {"factor": factor, "turns": len(answered), "wanted": wanted}
    return {**found, "bounded_by": at_stake} if at_stake else found


def _solved(
    experiment: Experiment, benchmark: Benchmark, partition: Partition, selection: bool = False
) -> tuple[Federation, Sequence[Params]]:
    """Return a federation and its models after one round."""
    federation = assemble(experiment, experiment.task.client_data(benchmark), partition, selection)
    state, _ = federation.round(federation.start())
    return federation, federation.models(state)
