"""Which runs compare their answers with held-out samples, and what they keep of it."""

import json

import numpy as np
import pytest

from fedunseen import Experiment, load_run, run
from fedunseen.confidence import offset_for
from fedunseen.confidence.priors import PRIORS
from small_runs import KilledError, kill

FEW = {
    "data.train_per_class": 12,
    "data.test_per_class": 4,
    "evaluation.embedding": False,
    "evaluation.clients": False,
}
TRAINED = {**FEW, "strategy.rounds": 2}


def ran(preset, settings, folder):
    return run(Experiment.load(preset, settings), folder)


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    return ran("digit-pairs-gaussian", FEW, tmp_path_factory.mktemp("closed") / "run")


def test_a_closed_form_lets_all_seen_classes_take_turns(closed):
    numbers = closed.result["confidence"]
    assert numbers["classes"] == len(closed.space.seen)
    assert numbers["held_out"] > 0
    assert set(numbers["reliability"]) == {"seen", "unseen"}
    assert closed.model.confidence is not None
    assert json.loads((closed.path / "result.json").read_text())["confidence"] == numbers
    assert closed.result["gzsl_accuracy"] == pytest.approx(
        np.average(
            [closed.result["gzsl_unseen"], closed.result["gzsl_seen"]],
            weights=[len(closed.space.unseen), len(closed.space.seen)],
        )
    )


@pytest.mark.slow
def test_the_same_run_has_the_same_bits_of_confidence(closed, tmp_path):
    again = ran("digit-pairs-gaussian", FEW, tmp_path / "run")
    file = "model.safetensors"
    assert (again.path / file).read_bytes() == (closed.path / file).read_bytes()


@pytest.mark.slow
def test_a_trained_method_is_compared_on_validation_classes(tmp_path):
    done = ran("digit-pairs", TRAINED, tmp_path / "run")
    validation = len(done.space.validation)
    assert done.result["confidence"]["classes"] == validation
    assert "unfamiliar" not in done.result["confidence"]
    assert not done.model.finds_unfamiliar


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        ("digit-pairs", {"evaluation.selection": "last"}),
        ("digit-pairs-gaussian", {"evaluation.confidence": "none"}),
    ],
)
def test_others_have_none_and_answer_still(preset, settings, tmp_path):
    done = ran(preset, {**TRAINED, "strategy.rounds": 1, **settings}, tmp_path / "run")
    assert "confidence" not in done.result
    assert load_run(done.path).model.confidence is None
    rows = np.random.default_rng(0).random((2, 128)).astype(np.float32)
    (first, _) = done.predict(rows, top=None)
    assert sum(one.probability for one in first) == pytest.approx(1.0)


@pytest.mark.slow
def test_a_prior_moves_the_offset(tmp_path, monkeypatch):
    offsets, chosen = [], []

    def noted(folds, prior, share):
        offsets.append((prior, share, offset_for(folds, prior, share)))
        return offsets[-1][2]

    monkeypatch.setattr("fedunseen.tasks.zero_shot.offset_for", noted)
    for number, prior in enumerate((0.01, "balanced", 0.99)):
        settings = {**TRAINED, "strategy.rounds": 1, "evaluation.prior": prior}
        done = ran("digit-pairs", settings, tmp_path / str(number))
        assert offsets[-1][:2] == (prior, 0.5 if prior == "balanced" else prior)
        assert done.result["calibration_factor"] == offsets[-1][2]
        chosen.append(offsets[-1][2])
    assert chosen == sorted(chosen)
    assert chosen[0] < chosen[2]


@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        ("digit-pairs", {**TRAINED, "strategy.rounds": 1}),
        pytest.param("digit-pairs-gaussian", FEW, marks=pytest.mark.slow),
    ],
)
def test_what_a_prior_is_promised_to_bring_is_what_a_run_with_it_has(preset, settings, tmp_path):
    """By validation classes that choose once."""
    runs = {
        prior: ran(preset, {**settings, "evaluation.prior": prior}, tmp_path / prior).result
        for prior in PRIORS
    }
    for result in runs.values():
        for prior, (offset, unseen, seen) in result["confidence"]["priors"].items():
            reached = runs[prior]
            assert offset == pytest.approx(reached["calibration_factor"], abs=1e-9)
            assert (unseen, seen) == (reached["gzsl_unseen"], reached["gzsl_seen"])
    assert len({result["calibration_factor"] for result in runs.values()}) > 1


@pytest.mark.parametrize("prior", ["even", -0.5, 1.5])
def test_a_prior_that_is_none_is_refused(prior, refused):
    refused({"evaluation.prior": prior})


@pytest.fixture
def refused():
    from fedunseen.core.errors import ExperimentError

    def call(settings):
        with pytest.raises(ExperimentError, match="prior"):
            Experiment.load("digit-pairs", settings)

    return call


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "way"),
    [
        ({"evaluation.confidence": "histograms"}, "histograms"),
        ({"evaluation.confidence": "draws"}, "draws"),
        (
            {
                "privacy.name": "sample-level",
                "privacy.epsilon": 50.0,
                "privacy.clip": 1.0,
                "evaluation.selection": "last",
                "data.features": ["l2"],
            },
            "draws",
        ),
    ],
)
def test_a_closed_form_can_ask_its_clients_or_nothing(settings, way, closed, tmp_path):
    done = ran("digit-pairs-gaussian", {**FEW, **settings}, tmp_path / "run")
    numbers = done.result["confidence"]
    assert numbers["from"] == way
    assert done.model.finds_unfamiliar == (way == "histograms")
    assert (done.path / "confidence").exists() == (way == "histograms")
    assert numbers["classes"] == closed.result["confidence"]["classes"]


@pytest.mark.slow
def test_a_run_that_is_killed_after_its_clients_have_answered_asks_them_once(tmp_path, monkeypatch):
    settings = {**FEW, "evaluation.confidence": "histograms"}
    with monkeypatch.context() as patch:
        patch.setattr("fedunseen.experiment.fit_confidence.fit_counts", kill)
        with pytest.raises(KilledError):
            ran("digit-pairs-gaussian", settings, tmp_path / "run")
    monkeypatch.setattr("fedunseen.federation.worker.own_counts", kill)
    again = run(Experiment.load("digit-pairs-gaussian", settings), tmp_path / "run", resume=True)
    assert again.result["confidence"]["from"] == "histograms"
