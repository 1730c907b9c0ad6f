"""The automatic choice is the closed form; where validation classes prefer a trained method, the run says so."""

import pytest

from fedunseen import Experiment, run
from fedunseen.core.errors import ExperimentError
from fedunseen.evaluation.diagnosis import Finding, outdone

FEW = {"data.train_per_class": 10, "data.test_per_class": 4, "evaluation.embedding": False, "evaluation.theory": False}


@pytest.mark.slow
def test_auto_is_the_closed_form_and_tries_a_rival_on_validation_classes(tmp_path):
    settings = {**FEW, "method.name": "auto", "method.rival_rounds": 2}
    done = run(Experiment.load("digit-pairs-gaussian", settings), tmp_path / "auto")
    plain = run(Experiment.load("digit-pairs-gaussian", FEW), tmp_path / "gaussian")
    assert (done.path / "model.safetensors").read_bytes() == (plain.path / "model.safetensors").read_bytes()
    rival = done.result["chosen_on_validation"]["rivals"]["fedzsl"]
    assert rival.keys() == {"zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic"}
    assert done.result["rounds"] == 1
    # after two rounds of training the closed form leads by far here
    assert rival["gzsl_harmonic"] < done.result["chosen_on_validation"]["validation"]["gzsl_harmonic"]
    assert done.result["warnings"] == []
    last = run(Experiment.load("digit-pairs-gaussian", {**settings, "evaluation.selection": "last"}), tmp_path / "last")
    assert "chosen_on_validation" not in last.result


@pytest.mark.parametrize(("theirs", "said"), [(60.9, False), (61.0, True)])
def test_a_rival_has_to_lead_by_a_point(theirs, said):
    chosen = {"validation": {"gzsl_harmonic": 60.0}, "rivals": {"apn": {"gzsl_harmonic": 3.0},
              "fedzsl": {"gzsl_harmonic": theirs}}}  # fmt: skip
    found = outdone({"chosen_on_validation": chosen})
    assert found == (
        Finding(
            "On validation classes fedzsl reached H 61.0 %, and the closed form that was run 60.0 %.",
            "These data gain from training.",
            "Run method.name = 'fedzsl', and compare the two (fedunseen compare).",
        )
        if said
        else None
    )
    assert outdone({}) is None


def test_a_trained_preset_becomes_a_closed_form_by_its_name_alone():
    experiment = Experiment.load("digit-pairs", {"method.name": "gaussian"})
    assert experiment.strategy.rounds == 1
    assert Experiment.load("digit-pairs").with_overrides({"method.name": "ridge"}).strategy.rounds == 1
    with pytest.raises(
        ExperimentError, match=r"^method.name = 'gaussian' is solved from sums, which clients send once"
    ):
        Experiment.load("digit-pairs", {"method.name": "gaussian", "strategy.rounds": 3})
