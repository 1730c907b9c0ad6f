"""Offsets from a stated prior, beside a slow search."""

import numpy as np
import pytest

from fedunseen import Experiment
from fedunseen.confidence.priors import offset_for, share_of_unseen
from fedunseen.core.errors import ArgumentError, ExperimentError
from fedunseen.metrics import accuracies, answers_of, best_offset

NAMES = ["a", "b", "c", "d"]
UNSEEN = [False, False, True, True]


def answered(seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, 300)
    scores = rng.standard_normal((300, 10)) + 2.0 * np.eye(10)[labels]
    scores[:, :7] += 1.0  # of seen classes
    return answers_of(scores, labels, np.arange(7), np.arange(7, 10))


FOLDS = [answered(seed) for seed in range(3)]
TRIED = np.linspace(-5, 5, 801)


def curve(offset):
    found = [accuracies(fold, offset) for fold in FOLDS]
    return np.mean([one.gzsl_unseen for one in found]), np.mean([one.gzsl_seen for one in found])


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.3, 0.9])
def test_a_share_has_the_most_right_answers(share):
    best = max(share * curve(one)[0] + (1 - share) * curve(one)[1] for one in TRIED)
    unseen, seen = curve(offset_for(FOLDS, share, share))
    assert share * unseen + (1 - share) * seen == pytest.approx(best, abs=0.2)


@pytest.mark.slow
def test_auto_keeps_half_of_what_balanced_recognizes_of_unseen_classes():
    least = curve(best_offset(FOLDS))[0] / 2
    share = share_of_unseen("auto", list("abcdefghij"), np.arange(10) >= 7)
    assert share == pytest.approx(0.3)
    possible = [one for one in TRIED if curve(one)[0] >= least]
    best = max(share * curve(one)[0] + (1 - share) * curve(one)[1] for one in possible)
    unseen, seen = curve(offset_for(FOLDS, "auto", share))
    assert unseen >= least - 1e-9
    assert share * unseen + (1 - share) * seen == pytest.approx(best, abs=0.2)


def test_balanced_is_the_best_harmonic_mean():
    assert offset_for(FOLDS, "balanced", 0.5) == best_offset(FOLDS)


@pytest.mark.parametrize("prior", ["balanced", "auto", "uniform", 0.3])
def test_an_offset_that_gains_nothing_is_none(prior):
    scores = np.array([[3.0, 0.0], [0.0, 3.0], [2.8, 3.0]] * 100)
    labels = np.array([0, 1, 0] * 100)
    fold = answers_of(scores, labels, np.array([0]), np.array([1]))
    assert abs(best_offset([fold])) > 0  # where samples of the seen class just win
    assert accuracies(fold, best_offset([fold])).gzsl_seen == 100
    assert offset_for([fold], prior, 0.5) == best_offset([fold])
    few = answers_of(
        np.r_[scores[np.arange(300) % 3 < 2], scores[2:3]],
        np.r_[labels[np.arange(300) % 3 < 2], labels[2:3]],
        np.array([0]),
        np.array([1]),
    )
    assert best_offset([few]) < 0  # one sample of 101 of its class
    assert offset_for([few] * 3, prior, 0.5) == 0


def test_few_questions_about_unseen_classes_lower_seen_ones_less():
    offsets = [offset_for(FOLDS, share, share) for share in (0.02, 0.3, 0.98)]
    assert offsets[0] < offsets[1] < offsets[2]


@pytest.mark.parametrize(
    ("prior", "share"),
    [
        ("balanced", 0.5),
        ("uniform", 0.5),
        (0.2, 0.2),
        ({"a": 3, "b": 3, "c": 1, "d": 1}, 0.25),
    ],
)
def test_the_share_of_a_prior(prior, share):
    assert share_of_unseen(prior, NAMES, UNSEEN) == pytest.approx(share)


@pytest.mark.parametrize(
    "prior",
    [
        "even",
        -0.1,
        1.1,
        float("nan"),
        {"a": 1, "b": 1, "c": 1},
        {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1},
        {"a": 1, "b": 1, "c": 1, "d": -1},
        {"a": 1, "b": 1, "c": 1, "d": float("inf")},
        {"a": 0, "b": 0, "c": 0, "d": 0},
        None,
        True,
    ],
)
def test_a_prior_that_is_none_is_refused(prior):
    with pytest.raises(ArgumentError, match="prior"):
        share_of_unseen(prior, NAMES, UNSEEN)


@pytest.mark.parametrize("prior", [2, -0.1, "often", {"a": "often"}, [1]])
def test_an_experiment_with_another_prior_says_what_may_be_one(prior):
    with pytest.raises(ExperimentError, match=r"evaluation\.prior") as found:
        Experiment.load("digit-pairs-gaussian", {"evaluation.prior": prior})
    assert found.value.code == "experiment"
    assert isinstance(prior, str) or "'uniform', or input should be" in str(found.value)


@pytest.mark.parametrize("prior", ["auto", 0, 0.05, {"a": 1, "b": 40}])
def test_an_experiment_takes_each_kind_of_prior(prior):
    experiment = Experiment.load("digit-pairs-gaussian", {"evaluation.prior": prior})
    assert experiment.evaluation.prior == prior
