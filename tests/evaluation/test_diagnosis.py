"""Runs that failed are said to have failed, word for word; runs that went well are not."""

import numpy as np
import pytest

from fedunseen.evaluation.diagnosis import (
    accuracy,
    at_chance,
    beside_nothing,
    diagnose,
    emptied,
    growing_loss,
    never_answered,
    worse_features,
)

NAMES = ("zebra", "cow", "tiger", "orca", "wolf", "hippo", "eel", "otter")
GOOD = {
    "zsl": 70.0, "gzsl_unseen": 60.0, "gzsl_seen": 65.0, "gzsl_harmonic": 62.4, "uncalibrated_gzsl_unseen": 20.0,
    "uncalibrated_gzsl_seen": 80.0, "uncalibrated_gzsl_harmonic": 32.0, "calibration_factor": 0.4,
}  # fmt: skip


def lines(*losses):
    return [{"round": i, "losses": {"loss": loss}} for i, loss in enumerate(losses, 1)]


def test_the_interval_is_that_of_many_draws():
    """The half width is 1.96 standard deviations of the accuracy of drawn answers."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 40)
    shares = np.array([0.9, 0.5, 0.2])
    drawn = [accuracy(labels, np.where(rng.random(120) < shares[labels], labels, 9)) for _ in range(2000)]
    values, halves = np.array(drawn).T
    assert values.mean() == pytest.approx(100 * shares.mean(), abs=0.3)
    assert halves.mean() == pytest.approx(1.96 * values.std(), rel=0.05)


def test_guessing_is_said():
    labels = np.repeat([5, 6, 7], 40)
    answers = np.full(120, 6)
    assert at_chance(labels, answers, 3).what.endswith("33.3 ± 2.0 % of them right, guessing 33.3 %.")
    assert at_chance(labels, labels, 3) is None
    solved = at_chance(labels, answers, 3, trained=False)  # no rate, no rounds: other advice
    assert "method.lr" not in solved.remedy
    assert not any("data.features" in item.remedy for item in (solved, at_chance(labels, answers, 3, scaled=True)))
    assert "more seen classes" in solved.remedy


def test_few_samples_prove_little():
    """40 of 100 right of three classes is no better than a third, but 400 of 1,000 is."""
    rng = np.random.default_rng(0)
    for count, warned in ((33, True), (1000, False)):
        labels = np.repeat([0, 1, 2], count)
        answers = labels.copy()
        wrong = rng.permutation(3 * count)[int(0.4 * 3 * count) :]
        answers[wrong] = (labels[wrong] + 1) % 3
        assert (at_chance(labels, answers, 3) is not None) == warned


def test_a_loss_that_grows_is_said():
    grown = growing_loss(lines(562.0, 900.0, 2000.0, 4786.0))
    assert grown.what == "The training loss grew from 562 to 4,786 in 4 rounds."
    assert growing_loss(lines(1.0, 2.0, float("inf"))).what.startswith("The training loss grew from 1 to inf")


@pytest.mark.parametrize(
    "losses", [(3.0, 2.0, 1.0), (1.0,), (), (1.0, 1.3, 1.2), (-1.0, 2.0, 5.0), (None, None), (2.0, 50.0, 1.0, 1.0)]
)
def test_losses_that_fall_or_say_nothing_are_none(losses):
    assert growing_loss(lines(*losses)) is None


def test_a_class_that_is_never_answered_is_named():
    labels = np.repeat([5, 6, 7], 5)
    one = never_answered(labels, np.repeat([5, 5, 7], 5), NAMES, "unseen")
    assert one.what == "1 of 3 unseen classes is never the answer: eel."
    assert never_answered(labels, np.repeat([5, 5, 5], 5), NAMES, "new").what == (
        "2 of 3 new classes are never the answer: eel, otter."
    )
    many = np.repeat(np.arange(8), 5)
    assert never_answered(many, np.zeros(40, dtype=int), NAMES, "unseen").what == (
        "7 of 8 unseen classes are never the answer: cow, tiger, orca, wolf, hippo and 2 more."
    )
    assert never_answered(labels, labels[::-1], NAMES, "unseen") is None
    assert never_answered(np.repeat([5, 6], 4), np.full(8, 5), NAMES, "unseen") is None  # too few to say


def test_a_calibration_that_empties_a_side_is_said():
    told = {**GOOD, "uncalibrated_gzsl_seen": 47.2, "gzsl_seen": 0.0}
    assert emptied(told).what == "Calibration empties the seen classes: S falls from 47.2 to 0.0 %."
    assert emptied({**GOOD, "gzsl_unseen": 1.0}).what == (
        "Calibration empties the unseen classes: U falls from 20.0 to 1.0 %."
    )
    assert emptied(GOOD) is None
    assert emptied({**GOOD, "uncalibrated_gzsl_seen": 3.0, "gzsl_seen": 0.0}) is None  # there was nothing to empty


def test_a_missing_calibration_is_said():
    missing = emptied({**GOOD, "calibration_factor": 0.0, "gzsl_unseen": 2.0})
    assert missing.what.endswith("U is 2.0 %, though among unseen classes alone 70.0 % are right.")
    assert emptied({**GOOD, "calibration_factor": 0.0}) is None


def test_of_two_pictures_of_a_class_nothing_is_chosen_and_more_are_asked_for():
    answers = {"labels": np.arange(7), "zsl_answers": np.arange(7)}
    told = {**GOOD, "calibration_factor": 0.0, "gzsl_unseen": 2.0}
    (result,) = (item for item in diagnose([], told, answers, NAMES, np.array([5, 6])) if "Bring" in item.remedy)
    more = "Bring more samples: of most classes one sample is tested, and on so few nothing can be chosen. Until then "
    assert result.remedy == f"{more}ask among new classes alone: fedunseen predict --classes FILE --among given."
    told = {**GOOD, "uncalibrated_gzsl_seen": 47.2, "gzsl_seen": 0.0}
    (result,) = (item for item in diagnose([], told, answers, NAMES, np.array([5, 6])) if "Bring" in item.remedy)
    assert result.remedy == f"{more}set evaluation.calibration = 'none'."
    assert emptied(told, tested=3) == emptied(told)


def test_features_worse_than_raw_ones_are_said():
    assert worse_features(0.05, 0.3).what.endswith("silhouette 0.05 instead of 0.30.")
    assert worse_features(0.25, 0.3) is None


def test_a_few_shot_model_worse_than_none_is_said():
    told = {"few_shot": 40.0, "few_shot_ci95": 1.0, "few_shot_pixels": 45.0, "few_shot_pixels_ci95": 1.0}
    told |= {"few_shot_random": 30.0, "few_shot_random_ci95": 1.0}
    assert beside_nothing(told).what.endswith("raw samples: 40.0 ± 1.0 %, without training 45.0 ± 1.0 %.")
    untrained = {**told, "few_shot_pixels": 30.0, "few_shot_random": 60.0}
    assert beside_nothing(untrained).what == (
        "The model is worse than its own features before training: 40.0 ± 1.0 %, without training 60.0 ± 1.0 %."
    )
    assert beside_nothing({**told, "few_shot_pixels": 41.5}) is None  # the intervals overlap


def test_a_good_run_is_told_nothing_and_a_bad_one_everything():
    unseen, labels = np.array([5, 6, 7]), np.repeat(np.arange(8), 10)
    good = {"labels": labels, "zsl_answers": labels, "silhouettes": np.array([0.4, 0.1])}
    assert diagnose(lines(3.0, 1.0), GOOD, good, NAMES, unseen) == []
    bad = {"labels": labels, "zsl_answers": np.full(80, 5), "silhouettes": np.array([0.0, 0.4])}
    told = diagnose(lines(1.0, 9.0), {**GOOD, "gzsl_seen": 0.0}, bad, NAMES, unseen)
    assert [item.what.split(" ")[1] for item in told] == ["training", "model", "of", "empties", "model's"]
    assert diagnose(lines(3.0, 1.0), {**GOOD, "zsl": 3.0}, bad, NAMES, unseen, descriptions=False) == []
    few = {"few_shot": 40.0, "few_shot_ci95": 1.0, "few_shot_pixels": 50.0, "few_shot_random": 50.0}
    told = diagnose(lines(3.0, 1.0), few, {"labels": labels, "answers": np.full(80, 5)}, NAMES, unseen)
    assert [item.what.split(" ")[0] for item in told] == ["The", "7"]
    assert diagnose([], GOOD, {}, NAMES, unseen) == []
