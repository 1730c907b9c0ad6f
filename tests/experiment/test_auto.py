"""Closed forms are compared on classes left out of the sums; the automatic choice is the better one."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedunseen import Experiment, ZeroShotClassifier, load_run, run
from fedunseen.core.errors import ExperimentError
from fedunseen.data import Benchmark
from fedunseen.evaluation.diagnosis import outdone

SEGMENTS = (126, 48, 109, 121, 51, 91, 95, 112, 127, 123)  # of ten digits, a bit each


def lit_digits(unseen=(1, 3, 9)):
    """Return handwritten digits, their names, which to train on, and which of seven segments each digit lights."""
    digits = load_digits()
    rows, names = (digits.data / 16).astype(np.float32), digits.target.astype(str)
    train = ~np.isin(digits.target, unseen) & (np.arange(len(rows)) % 10 < 7)
    return rows, names, train, {str(i): [float(lit) for lit in f"{bits:07b}"] for i, bits in enumerate(SEGMENTS)}


def segments(method, out, **evaluation):
    """Run on handwritten digits that are described by seven segments."""
    rows, names, train, table = lit_digits()
    settings = {
        "data": {"name": "arrays"}, "method": {"name": method}, "partition": {"clients": 2},
        "evaluation": {"selection": "last", "embedding": False, **evaluation},
    }  # fmt: skip
    given = Benchmark.from_arrays(
        rows[train], names[train], table, test=(rows[~train], names[~train]), validation=2 if evaluation else ()
    )
    return run(Experiment.from_dict(settings), out, benchmark=given)


def test_a_closed_form_that_does_worse_than_another_warns_and_auto_chooses(tmp_path):
    """Applying the remedy makes the warning go."""
    gaussian = segments("gaussian", tmp_path / "gaussian")
    (warning,) = (one for one in gaussian.result["warnings"] if "left out" in one["what"])
    assert "method.name = 'ridge', or 'auto'" in warning["remedy"]
    ridge, auto = (segments(name, tmp_path / name) for name in ("ridge", "auto"))
    assert auto.result["form"] == "ridge"
    assert ridge.result["zsl"] == auto.result["zsl"] > gaussian.result["zsl"] + 10
    for done in (ridge, auto):
        assert not any("left out" in one["what"] for one in done.result["warnings"])
    sample = load_digits().data[:1] / 16
    assert load_run(auto.path).predict(sample)[0][0] == ridge.predict(sample)[0][0]
    assert load_run(auto.path).learn({"new": [1.0, 0, 0, 0, 0, 0, 0]}).predict(sample, among="unseen")
    with pytest.raises(ExperimentError, match=r"method\.name = .gaussian."):
        auto.learn(examples={"1": sample})


def test_the_estimator_warns_of_the_same_lead():
    rows, names, train, table = lit_digits()

    def warned(method):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ZeroShotClassifier(method).fit(rows[train], names[train], classes=table)
        return [text for one in caught if "left out" in (text := str(one.message))]

    (text,) = warned("gaussian")
    assert "Set method = 'ridge', or 'auto'" in text
    assert warned("ridge") == warned("auto") == []


def test_the_run_on_validation_classes_and_the_final_one_take_the_same_form(tmp_path):
    done = segments("auto", tmp_path / "run", selection="validation")
    assert done.result["chosen_on_validation"]["settings"]["method.form"] == done.result["form"]


@pytest.mark.parametrize(("lead", "half", "said"), [(2.9, 1.0, False), (3.1, 1.0, True), (5.0, 5.1, False)])
def test_a_lead_counts_from_three_points_and_its_interval_on(lead, half, said):
    rival = {"ridge": {"accuracy": 50.0 + lead, "lead": lead, "ci95": half}}
    found = outdone({"left_out_accuracy": {"0": 50.0}, "left_out_rivals": rival})
    assert (found is not None) == said
    assert outdone({}) is None


def test_a_trained_preset_becomes_a_closed_form_by_its_name_alone():
    experiment = Experiment.load("digit-pairs", {"method.name": "gaussian"})
    assert experiment.strategy.rounds == 1
    assert Experiment.load("digit-pairs").with_overrides({"method.name": "ridge"}).strategy.rounds == 1
    with pytest.raises(
        ExperimentError, match=r"^method.name = 'gaussian' is solved from sums, which clients send once"
    ):
        Experiment.load("digit-pairs", {"method.name": "gaussian", "strategy.rounds": 3})
