"""Membership inference: a client with a model's scores tells training samples from others of the
same classes.

This succeeds, and SECURITY.md gives the numbers. The attacker has the true classes, samples of the
same distribution and the method, and fits models of its own: likelihood ratios of the log-odds
(Carlini et al., 2022).
"""

import numpy as np
import pytest
import torch
from scipy.stats import norm, rankdata

from fedunseen import Experiment, ZeroShotClassifier
from fedunseen.experiment.setup import Setup

pytestmark = pytest.mark.slow
SHADOWS = 16


def auc(members, others):
    """Return the probability that a member's statistic is the larger one."""
    ranks = rankdata(np.concatenate([members, others]))[: len(members)]
    count = len(members)
    return float((ranks.sum() - count * (count + 1) / 2) / (count * len(others)))


def pool(preset, folder, count, **settings):
    """Return features, names and the class table of ``count`` samples of seen classes."""
    chosen = Experiment.load(
        preset, {key.replace("__", "."): value for key, value in settings.items()}
    )
    federation = Setup.of(chosen, folder, lambda *messages: None).assembled().federation
    benchmark, rng = federation.benchmark, np.random.default_rng(0)
    rows = np.concatenate([benchmark.train, benchmark.test_seen])
    rows = rng.permutation(rows)[:count]
    names, semantics = np.array(benchmark.space.names), benchmark.space.semantics
    features = federation.inputs[torch.from_numpy(rows)].numpy()
    return features, names[benchmark.labels[rows]], dict(zip(names, semantics, strict=True))


def log_odds(model, features, names, digits=None):
    """Return the log-odds (n,) of the true class in the probabilities that a service gives."""
    served = model.predict_proba(features)
    if digits is not None:
        served = np.round(served, digits)
    order = np.argsort(model.classes_)
    columns = order[np.searchsorted(model.classes_, names, sorter=order)]
    true = served[np.arange(len(names)), columns]
    least = 1e-30 if digits is None else 10.0**-digits / 2
    return np.log(true + least) - np.log(np.maximum(1 - true, 0) + least), served.argmax(
        1
    ) == columns


def attacked(features, names, classes, digits=None, shadows=SHADOWS, **settings):
    """Return the AUC of a threshold, of likelihood ratios, and of correctness alone."""
    rng = np.random.default_rng(1)
    inside = rng.random((shadows + 1, len(names))) < 0.5
    odds, right = [], []
    for rows in inside:
        model = ZeroShotClassifier(**settings).fit(features[rows], names[rows], classes=classes)
        one, correct = log_odds(model, features, names, digits)
        odds.append(one)
        right.append(correct)
    (target, *known), (member, *held) = odds, inside
    known, held = np.array(known), np.array(held)
    some = held.any(0) & ~held.all(0)
    with np.errstate(invalid="ignore"):
        means = [
            np.where(which, known, 0).sum(0) / np.maximum(which.sum(0), 1)
            for which in (held, ~held)
        ]
    deviation = np.sqrt((np.where(held, known - means[0], known - means[1]) ** 2).mean(0)) + 1e-9
    ratio = norm.logpdf(target, means[0], deviation) - norm.logpdf(target, means[1], deviation)
    shuffled = rng.permutation(member)
    return {
        "chance": auc(ratio[some & shuffled], ratio[some & ~shuffled]),
        "threshold": auc(target[member], target[~member]),
        "ratio": auc(ratio[some & member], ratio[some & ~member]),
        "label": auc(right[0][member].astype(float), right[0][~member].astype(float)),
    }


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A thousand pairs of digits, half of which a model is fitted to."""
    return pool("digit-pairs-gaussian", tmp_path_factory.mktemp("digits"), 1000)


def test_scores_of_a_closed_form_tell_members(digits):
    found = attacked(*digits)
    assert found["chance"] == pytest.approx(0.5, abs=0.06)
    assert found["threshold"] == pytest.approx(0.64, abs=0.06)
    assert found["ratio"] == pytest.approx(0.80, abs=0.06)
    assert found["label"] < 0.58


def test_two_digits_of_a_probability_tell_as_much(digits):
    assert attacked(*digits, digits=2)["ratio"] == pytest.approx(0.79, abs=0.06)


def test_scores_of_a_trained_method_tell_members(digits):
    found = attacked(*digits, shadows=8, method="fedzsl", rounds=10)
    assert found["chance"] == pytest.approx(0.5, abs=0.06)
    assert found["ratio"] == pytest.approx(0.73, abs=0.06)
    assert found["label"] < 0.60


def test_half_as_many_samples_as_features_give_all_members_away(real_data, tmp_path):
    """AWA1: a thousand samples of 2,048 features."""
    root = {"data__root": str(real_data / "xlsa17"), "data__dataset": "AWA1_LAMPERT"}
    found = attacked(*pool("awa1-gaussian", tmp_path, 2000, **root), shadows=8)
    assert found["chance"] == pytest.approx(0.5, abs=0.06)
    assert found["threshold"] == pytest.approx(0.92, abs=0.04)
    assert found["ratio"] > 0.95
