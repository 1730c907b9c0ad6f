"""Probabilities of models that have changed since they were fitted."""

from dataclasses import replace

import numpy as np
import pytest

from fedunseen import Experiment, ZeroShotClassifier, load_run, run
from fedunseen.confidence import Confidence
from fedunseen.model import ClassSum

CLASSES = 15
SEEN = 11


def fitted(rng):
    """Return a classifier, and a function that draws samples of given classes."""
    described = rng.normal(size=(CLASSES, 5))
    means = described @ rng.normal(size=(5, 20)) + 0.6 * rng.normal(size=(CLASSES, 20))

    def drawn(labels):
        return (means[labels] + rng.normal(size=(len(labels), 20))).astype(np.float32)

    labels = np.repeat(np.arange(SEEN), 40)
    model = ZeroShotClassifier(prior="balanced")
    return model.fit(drawn(labels), labels, classes=dict(enumerate(described))), drawn


@pytest.mark.slow
def test_unlabelled_samples_make_no_model_surer(tmp_path):
    model, drawn = fitted(np.random.default_rng(2))
    pool = drawn(np.repeat(np.arange(CLASSES), 60))
    before = model.predict_proba(pool).max(1).mean()
    adapted = model.adapt(pool)
    assert adapted.soft_counts_.sum() > 50
    plain = model._model.confidence
    scores = adapted.scores(pool)
    unseen = ~adapted._model.shown_mask
    assert plain.probabilities(scores, unseen).max(1).mean() > before  # without the rule
    stated = adapted.predict_proba(pool).max(1).mean()
    assert 0.9 * before < stated <= before
    adapted.save(tmp_path / "model")
    again = ZeroShotClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(pool), adapted.predict_proba(pool))


@pytest.mark.slow
def test_a_model_that_states_less_keeps_its_confidence():
    model, drawn = fitted(np.random.default_rng(2))
    rows = drawn(np.arange(SEEN))
    scores = model.scores(rows)
    sure = model._model.confidence
    assert sure.no_surer(1.0, scores, ~model.seen_) is sure
    assert sure.no_surer(0.0, scores[:0], ~model.seen_) is sure
    flat = sure.no_surer(0.0, scores, ~model.seen_)
    stated = [one.probabilities(scores, ~model.seen_).max(1).mean() for one in (flat, sure)]
    assert stated[0] < stated[1]


@pytest.mark.slow
def test_an_adapted_run_keeps_and_measures_its_own_confidence(tmp_path):
    settings = {"data.train_per_class": 20, "data.test_per_class": 10, "evaluation.theory": False}
    done = run(Experiment.load("digit-pairs-gaussian", settings), tmp_path / "run")
    rng = np.random.default_rng(0)
    benchmark = np.clip(rng.normal(0.3, 0.3, size=(200, 128)), 0, 1).astype(np.float32)
    adapted = done.adapt(benchmark, tmp_path / "adapted")
    before, after = done.model.confidence, adapted.model.confidence
    assert after.scale <= before.scale
    assert adapted.result["confidence"]["trade"] != []
    again = load_run(adapted.path)
    np.testing.assert_array_equal(
        again.model.probabilities(benchmark), adapted.model.probabilities(benchmark)
    )


@pytest.mark.slow
def test_a_learned_class_may_have_features_of_another_length(tmp_path):
    settings = {"data.train_per_class": 20, "data.test_per_class": 4, "evaluation.theory": False}
    model = run(Experiment.load("digit-pairs-gaussian", settings), tmp_path / "run").model
    dark = np.full((4, 128), 0.01, dtype=np.float32)
    dark[:, ::9] += 0.01 * np.arange(4)[:, None].astype(np.float32)
    assert model.unfamiliar(dark).max() < 0.01
    assert model.learn(examples={"dark": dark}).unfamiliar(dark).min() > 0.1
    total = model.scaled(dark).double().sum(0)
    for learned in (
        model.learn({"dark": np.zeros(model.space.attributes).tolist()}),
        model.learn(examples={"dark": ClassSum(4, total)}),
    ):
        assert not len(learned.confidence.lengths)  # nothing says how long its features are


def test_after_examples_of_a_usual_length_others_are_still_unusual():
    usual = np.log(np.array([8.0, 12.5]))
    levels = np.zeros(1)
    sure = Confidence(1.0, 1.0, np.zeros(6), levels, levels, levels, 3, 3, usual)
    same = sure.lengths_with([np.log(np.array([9.9, 10.1]))])
    np.testing.assert_allclose(same, usual, atol=1e-3)
    half = (usual[1] - usual[0]) / 2
    longer = sure.lengths_with([np.log(np.array([20.0, 20.0])), np.empty(0)])
    np.testing.assert_allclose(longer, [usual[0], np.log(20.0) + half])
    assert not len(replace(sure, lengths=np.empty(0)).lengths_with([np.zeros(2)]))
