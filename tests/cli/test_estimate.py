"""``fedunseen estimate``: what it counts, against the run's own files; how long things take is not asserted."""

import json

import pytest

from fedunseen import Experiment, run
from fedunseen.tools.estimate import estimate
from processes import sets

SMALL = {"data.train_per_class": 10, "data.test_per_class": 4, "strategy.rounds": 2, "run.device": "cpu"}


@pytest.mark.slow
def test_what_travels_and_how_many_trainings_are_those_of_the_run(tmp_path):
    settings = {**SMALL, "evaluation.choose": {"method.kl": [0.0, 1.0, 3.0]}, "run.seeds": 2}
    variant = estimate(Experiment.load("digit-pairs", settings))
    assert variant.stages == 2 * (3 + 1)  # each seed: three to choose from, and the run itself
    per_round = variant.seconds_round + variant.seconds_evaluation
    clients = 2 * 2 * 10 * variant.seconds_evaluation  # two seeds, two rounds, ten clients' own models
    assert variant.seconds_run == pytest.approx(8 * 2 * per_round + clients)
    done = run(Experiment.load("digit-pairs", {**SMALL, "evaluation.selection": "last"}), tmp_path / "run")
    assert variant.parameters == sum(done.result["parameters"].values())
    line = json.loads((done.path / "metrics.jsonl").read_text().splitlines()[0])
    assert variant.bytes_round == (line["bytes_down"] + line["bytes_up"]) // len(line["participants"])
    assert variant.device == "cpu"
    assert variant.device_bytes is None


def test_a_round_of_more_samples_is_estimated_from_the_same_batches(monkeypatch):
    """With a clock that counts its readings, time per sample is fixed, so that samples alone decide."""
    readings = iter(range(1000))
    monkeypatch.setattr("fedunseen.tools.estimate._now", lambda on_gpu: float(next(readings)))
    one, three, half = (
        estimate(Experiment.load("digit-pairs", {**SMALL, "strategy.local_epochs": epochs, "strategy.fraction": share}))
        for epochs, share in ((1, 1.0), (3, 1.0), (1, 0.5))
    )
    assert three.seconds_round == pytest.approx(3 * one.seconds_round)
    assert half.seconds_round == pytest.approx(one.seconds_round / 2)


def test_the_command_says_it_in_five_lines_or_in_json(works):
    words = "estimate", "digit-pairs", *sets(SMALL)
    assert "4 trainings of 2 rounds" in works(*words, "--set", "run.seeds=2").out
    assert works(*words, "--json").answer["stages"] == 2


@pytest.mark.slow
def test_rounds_that_are_left_out_are_not_counted_as_measured(tmp_path):
    settings = {**SMALL, "strategy.rounds": 7, "evaluation.every": 3, "evaluation.selection": "last"}
    variant = estimate(Experiment.load("digit-pairs", settings))
    done = run(Experiment.load("digit-pairs", settings), tmp_path / "run")
    lines = [json.loads(line) for line in (done.path / "metrics.jsonl").read_text().splitlines()]
    measured = sum("zsl" in line for line in lines)
    assert measured == 4  # rounds 1, 3, 6 and 7
    measured += sum(len(line["clients"]["zsl"]) for line in lines if "clients" in line)
    assert variant.seconds_run == pytest.approx(7 * variant.seconds_round + measured * variant.seconds_evaluation)
