"""A model without a party, or a part of it, is that of the other samples, bit for bit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedunseen import Experiment, ZeroShotClassifier, load_model, run
from fedunseen.core.errors import DataError, ExperimentError, FedUnseenError

PICTURE = Path(__file__).parents[2] / "examples" / "digit-pairs" / "47.png"
RNG = np.random.default_rng(0)
TABLE = {f"animal {c}": RNG.random(5).tolist() for c in range(8)}
NAMES = np.repeat(list(TABLE)[:6], 20)
MIXING = RNG.normal(size=(5, 7))
X = np.array([TABLE[name] for name in NAMES]) @ MIXING + 0.2 * RNG.normal(size=(120, 7))
PARTIES = np.repeat(["a", "b", "c"], 40)  # two classes each
PLAIN = {"features": ("l2",), "calibration": 0.25}
"""Nothing is fitted to samples beside the statistics."""


def model_of(rows, method="gaussian", groups=PARTIES):
    classifier = ZeroShotClassifier(method, **PLAIN)
    fitted = classifier.fit(X[rows], NAMES[rows], classes=TABLE, groups=groups[rows])
    return fitted._model


@pytest.fixture(scope="module", params=["gaussian", "ridge", "eszsl", "sae", "auto"])
def method(request):
    return request.param


@pytest.fixture(scope="module")
def whole(method):
    return model_of(np.ones(len(X), dtype=bool), method)


def test_a_party_is_taken_out(whole, method):
    left = whole.forget(1)
    never = model_of(PARTIES != "b", method)
    np.testing.assert_array_equal(left.scores(X), never.scores(X))
    assert left.seen_mask.tolist() == never.seen_mask.tolist()
    assert left.seen_mask.sum() == whole.seen_mask.sum() - 2
    assert left.calibration == whole.calibration
    assert not np.array_equal(left.scores(X), whole.scores(X))
    np.testing.assert_array_equal(
        left.forget(0).scores(X), model_of(PARTIES == "c", method, PARTIES).scores(X)
    )


def test_some_samples_of_a_party_are_taken_out(whole, method):
    gone = (PARTIES == "b") & (np.arange(len(X)) % 2 == 0)
    ids = np.array([whole.space.names.index(name) for name in NAMES[gone]])
    part = whole.method.statistics(whole.scaled(X[gone]), torch.from_numpy(ids))
    left = whole.forget(1, part)
    np.testing.assert_array_equal(left.scores(X), model_of(~gone, method).scores(X))
    with pytest.raises(DataError, match="was never a part of the sums"):
        left.forget(1, part)


def test_it_forgets_after_it_was_loaded(whole, tmp_path):
    whole.save(tmp_path / "model", statistics=True)
    loaded = load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.forget(2).scores(X), whole.forget(2).scores(X))
    whole.save(tmp_path / "alone")
    with pytest.raises(FedUnseenError, match="no sums of single parties are kept") as caught:
        load_model(tmp_path / "alone").forget(2)
    assert caught.value.code == "no-statistics"


@pytest.mark.slow
def test_a_run_forgets_a_party(tmp_path):
    settings = {
        "partition.clients": 3,
        "evaluation.selection": "last",
        "evaluation.embedding": False,
    }
    settings |= {"data.train_per_class": 6, "data.test_per_class": 2}
    done = run(Experiment.load("digit-pairs-gaussian", settings), tmp_path / "run")
    left = load_model(tmp_path / "run").forget(1)
    again = {**settings, "partition.without": [1]}
    never = run(Experiment.load("digit-pairs-gaussian", again), tmp_path / "never")
    rows = done.read_inputs([PICTURE])
    assert not np.array_equal(left.scores(rows), done.model.scores(rows))
    np.testing.assert_array_equal(left.scores(rows), never.model.scores(rows))


@pytest.mark.slow
def test_a_run_of_totals_says_why_it_forgets_no_one(tmp_path):
    settings = {"partition.clients": 3, "method.retention": "total", "evaluation.selection": "last"}
    run(Experiment.load("digit-pairs-gaussian", settings), tmp_path / "run")
    with pytest.raises(FedUnseenError) as caught:
        load_model(tmp_path / "run").forget(1)
    assert caught.value.code == "no-statistics"


def test_who_is_not_there_or_the_only_one_stays(whole):
    with pytest.raises(FedUnseenError, match="no sums of client 7 are kept"):
        whole.forget(7)
    with pytest.raises(FedUnseenError, match="client 0 is the only one"):
        whole.forget(1).forget(2).forget(0)


def test_what_came_in_later_has_no_statistics(whole):
    assert whole.statistics
    assert not whole.learn({"new": [0.3] * 5}).statistics


def test_a_trained_model_forgets_no_one(whole):
    trained = ZeroShotClassifier("fedzsl", rounds=1).fit(X, NAMES, classes=TABLE, groups=PARTIES)
    with pytest.raises(ExperimentError, match="every party is in every parameter"):
        trained._model.forget(0)


def test_statistics_that_are_not_whole_numbers_lose_no_part(whole):
    floats = replace(whole)
    floats.method.quantization, before = None, floats.method.quantization
    try:
        with pytest.raises(ExperimentError, match="has summed float64 numbers"):
            floats.forget(0, {})
    finally:
        floats.method.quantization = before
