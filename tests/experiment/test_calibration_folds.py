"""Few validation classes: all seen classes take turns, so that no two of them decide the calibration."""

from __future__ import annotations

import numpy as np
import pytest

from fedunseen import Experiment, run
from fedunseen.experiment.assemble import load_data, resolve_defaults
from fedunseen.experiment.calibration_folds import calibration_folds
from fedunseen.metrics import accuracies, best_factor

SEEN = 9


@pytest.fixture
def tree(described, tmp_path):
    data = described(tmp_path, (SEEN + 3, 6, 24), 0.4, 16, unseen=3, seed=5)
    return {
        "data": {**data, "features": [], "quantization": "none"},
        "partition": {"kind": "iid", "clients": 2},
        "method": {"name": "gaussian", "shrinkage": 0.3},
        "evaluation": {"embedding": False},
    }


def test_every_seen_class_has_one_turn(tree):
    experiment = Experiment.from_dict(tree)
    benchmark = load_data(experiment, 0)
    some = calibration_folds(benchmark, 0)
    assert some[0] is benchmark
    everyone = np.concatenate([one.space.validation for one in some])
    assert sorted(everyone) == list(range(SEEN))
    assert {len(one.space.validation) for one in some} <= {2, 3}


def test_enough_validation_classes_have_one_turn():
    experiment = Experiment.load("digit-pairs-gaussian")
    benchmark = load_data(experiment, 0)
    assert calibration_folds(benchmark, 0) == [benchmark]


@pytest.mark.slow
def test_the_factor_is_the_best_on_average_over_turns(tree, tmp_path):
    """Against a run of its own for each turn, which chooses nothing else."""
    done = run(Experiment.from_dict(tree), tmp_path / "run")
    chosen = done.result["chosen_on_validation"]
    assert chosen["turns"] == len(calibration_folds(load_data(done.experiment, 0), 0)) == 4
    assert done.result["calibration_factor"] == chosen["factor"]
    from fedunseen.experiment.assemble import assemble, partition_of

    experiment = resolve_defaults(Experiment.from_dict(tree), load_data(done.experiment, 0))
    benchmark = load_data(experiment, 0)
    partition, answers = partition_of(experiment, benchmark, 0), []
    for turn in calibration_folds(benchmark, 0):
        selection = turn.for_selection(0)
        federation = assemble(experiment, selection, partition.restricted_to(selection.train), selection=True)
        state, _ = federation.round(federation.start())
        answers.append(federation.answers(federation.fit_heads(state.params)))
    tried = np.linspace(-20, 20, 801)
    harmonic = [np.mean([accuracies(one, factor).gzsl_harmonic for one in answers]) for factor in tried]
    own = np.mean([accuracies(one, chosen["factor"]).gzsl_harmonic for one in answers])
    assert own >= max(harmonic) - 1e-9
    assert chosen["factor"] != best_factor(answers[:1])


@pytest.mark.slow
def test_turns_have_the_units_of_the_final_model(tree, tmp_path):
    """Left to itself, each turn would find its own shrinkage, and scores of other lengths."""
    del tree["method"]["shrinkage"]
    done = run(Experiment.from_dict(tree), tmp_path / "run")
    found = float(done.params["kernel"][3])
    given = run(Experiment.from_dict(tree, {"method.shrinkage": found}), tmp_path / "given")
    own = [chosen.result["chosen_on_validation"]["factor"] for chosen in (done, given)]
    assert own[0] == pytest.approx(own[1], rel=1e-9)


TRAINED = {"method.name": "fedzsl", "strategy.name": "fedavg", "strategy.rounds": 1}


@pytest.mark.parametrize("change", [{"evaluation.calibration": "none"}, {"evaluation.factor": 1.0}, TRAINED])
def test_nothing_turns_where_nothing_is_chosen_or_training_takes_time(change, tree, tmp_path):
    done = run(Experiment.from_dict(tree, change), tmp_path / "run")
    assert "turns" not in done.result["chosen_on_validation"]
