"""A calibration factor that few validation classes would leave to chance: every seen class plays the unseen one once.

Of nine seen classes two are for validation, and whether these two lie near the others decides by how much seen classes
are lowered. A method in closed form is solved in no time, so that all seen classes can take turns: as many at a time as
there are validation classes, the harmonic mean being averaged over the turns.
"""

from collections.abc import Sequence
from dataclasses import replace

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
    method, evaluation = find("method", experiment.method.name), experiment.evaluation
    calibrates = evaluation.calibration == "stacking" and evaluation.factor is None and method.zero_shot
    quick = not method.trained and experiment.engine.name == "in-process" and experiment.strategy.rounds == 1
    free = experiment.privacy.name == "none"  # every turn would be another release, which no accountant counts
    turns = calibration_folds(benchmark, experiment.run.seed) if calibrates and quick and free else []
    if len(turns) < 2:
        return None
    # Each turn would choose its own settings of how large scores are, and factors could not be compared: with few
    # samples one turn's scores were ten times as large as another's. No test sample takes part.
    federation, models = _solved(experiment, benchmark, partition)
    if isinstance(federation.method, ClosedForm) and federation.strategy.one_model:
        units = federation.method.units(models[0])
        experiment = experiment.with_overrides({f"method.{key}": value for key, value in units.items()})
    answered = []
    for turn in turns:
        selection = turn.for_selection(experiment.run.seed)
        try:
            restricted = partition.restricted_to(selection.train)
            federation, models = _solved(experiment, selection, restricted, selection=True)
        except FedUnseenError:  # someone would be left without classes: the others' turns have to do
            continue
        answered.append([federation.answers(model) for model in models])
    return best_factor([answers for many in answered for answers in many]), len(answered)


def _solved(
    experiment: Experiment, benchmark: Benchmark, partition: Partition, selection: bool = False
) -> tuple[Federation, Sequence[Params]]:
    """Return a federation and its models after one round."""
    federation = assemble(experiment, experiment.task.client_data(benchmark), partition, selection)
    state, _ = federation.round(federation.start())
    return federation, federation.models(state)
