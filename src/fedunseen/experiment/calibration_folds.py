"""A calibration factor that few validation classes would leave to chance: every seen class plays the unseen one once.

Of nine seen classes two are for validation, and whether these two lie near the others decides by how much seen classes
are lowered. A method in closed form is solved in no time, so that all seen classes can take turns: as many at a time as
there are validation classes, the harmonic mean being averaged over the turns.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedunseen.core.errors import FedUnseenError
from fedunseen.core.random import stream
from fedunseen.core.registry import find
from fedunseen.data import Benchmark
from fedunseen.experiment.assemble import assemble
from fedunseen.experiment.schema import Experiment
from fedunseen.experiment.traits import task_of
from fedunseen.federation import Federation
from fedunseen.federation.partition import Partition
from fedunseen.methods.closed_form import ClosedForm
from fedunseen.metrics import best_factor

FEW = 5  # validation classes from which on one turn says enough
MOST = 8  # turns


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


def factor_of_folds(experiment: Experiment, benchmark: Benchmark, partition: Partition) -> tuple[float, int] | None:
    """Return the calibration factor from all seen classes taking turns, and how many turns there were.

    None where the validation classes are enough, nothing is calibrated, or the method takes time or parties elsewhere.
    """
    method, own = find("method", experiment.method.name), experiment.evaluation
    calibrates = own.calibration == "stacking" and own.factor is None and method.zero_shot
    quick = not method.trained and experiment.engine.name == "in-process" and experiment.strategy.rounds == 1
    free = experiment.privacy.name == "none"  # every turn would be a release more, which no accountant knows of
    some = calibration_folds(benchmark, experiment.run.seed) if calibrates and quick and free else []
    if len(some) < 2:
        return None
    experiment = _in_units(experiment, benchmark, partition)
    answered = []
    for turn in some:
        selection = turn.for_selection(experiment.run.seed)
        try:
            federation = _assembled(experiment, selection, partition.restricted_to(selection.train), selection=True)
        except FedUnseenError:  # someone would be left without classes: the others' turns have to do
            continue
        state, _ = federation.round(federation.start())
        answered.append([federation.answers(model) for model in federation.models(state)])
    return best_factor([one for many in answered for one in many]), len(answered)


def _in_units(experiment: Experiment, benchmark: Benchmark, partition: Partition) -> Experiment:
    """Return the experiment with the settings in force that say how large the scores of its final model will be.

    Each turn would choose its own, and their factors could not be compared: with few samples one turn's scores were
    ten times as large as another's. No test sample takes part.
    """
    federation = _assembled(experiment, benchmark, partition)
    if not isinstance(federation.method, ClosedForm) or not federation.strategy.one_model:
        return experiment
    state, _ = federation.round(federation.start())
    (model,) = federation.models(state)
    return experiment.with_overrides({f"method.{key}": value for key, value in federation.method.units(model).items()})


def _assembled(
    experiment: Experiment, benchmark: Benchmark, partition: Partition, selection: bool = False
) -> Federation:
    return assemble(experiment, task_of(experiment).client_data(benchmark), partition, selection)
