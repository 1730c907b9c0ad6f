"""Probabilities, sets and p-values on made-up scores whose truth is known."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from fedunseen import ZeroShotClassifier
from fedunseen.confidence import Confidence, HeldOut, UncalibratedWarning, fit
from fedunseen.confidence.confidence import features, log_lengths, log_softmax, with_largest
from fedunseen.confidence.held_out import class_weights
from fedunseen.core.errors import ArgumentError, ExperimentError

UNSEEN = np.arange(12) >= 9


def drawn(seed, samples=6000, scale=1.0, distance=True):
    """Return scores whose softmax is the truth times 1 / scale, and labels drawn from it."""
    rng = np.random.default_rng(seed)
    logits = 2.0 * rng.standard_normal((samples, 12))
    odds = np.exp(logits)
    odds /= odds.sum(1, keepdims=True)
    labels = (odds.cumsum(1) > rng.random((samples, 1))).argmax(1)
    apart = rng.chisquare(5, samples) if distance else None
    return HeldOut(logits * scale, labels, UNSEEN, apart)


@pytest.fixture(scope="module")
def confidence():
    return fit([drawn(0, scale=7.0), drawn(1, scale=7.0)], 0.0, share=0.25)


def test_the_scale_of_scores_that_are_seven_times_too_large_is_a_seventh(confidence):
    assert confidence.scale == pytest.approx(1 / 7, rel=0.05)


def test_of_answers_given_p_a_share_p_is_right(confidence):
    new = drawn(2, samples=40_000, scale=7.0)
    probabilities = confidence.probabilities(new.scores, UNSEEN)
    largest = probabilities.max(1)
    right = probabilities.argmax(1) == new.labels
    for low in np.arange(0.2, 0.9, 0.1):
        some = (largest >= low) & (largest < low + 0.1)
        assert right[some].mean() == pytest.approx(largest[some].mean(), abs=0.04)


def test_probabilities_add_up_and_keep_the_order_of_scores(confidence):
    new = drawn(3, samples=200, scale=7.0)
    probabilities = confidence.probabilities(new.scores, UNSEEN)
    np.testing.assert_allclose(probabilities.sum(1), 1.0, rtol=1e-12)
    order = np.argsort(new.scores, axis=1)
    assert (np.diff(np.take_along_axis(probabilities, order, 1), axis=1) >= 0).all()
    logs = log_softmax(new.scores, confidence.scale)
    wished = confidence.right(logs, UNSEEN)
    above = wished > 1.01 / 12
    np.testing.assert_allclose(probabilities.max(1)[above], wished[above], rtol=1e-6)


def test_a_sample_alone_has_the_probabilities_that_it_has_among_others(confidence):
    new = drawn(4, samples=50, scale=7.0)
    together = confidence.probabilities(new.scores, UNSEEN)
    alone = [confidence.probabilities(row[None], UNSEEN)[0] for row in new.scores]
    assert np.array_equal(together, np.array(alone))


def test_equal_scores_and_one_candidate(confidence):
    equal = confidence.probabilities(np.zeros((1, 12)), UNSEEN)
    np.testing.assert_allclose(equal, 1 / 12)
    assert confidence.probabilities(np.zeros((2, 1)), UNSEEN[:1]).tolist() == [[1.0], [1.0]]


def test_candidates_of_one_kind_are_scaled_alone(confidence):
    scores = drawn(5, samples=10, scale=7.0).scores
    seen = confidence.probabilities(scores[:, ~UNSEEN], UNSEEN[~UNSEEN])
    np.testing.assert_allclose(
        seen, np.exp(log_softmax(scores[:, ~UNSEEN], confidence.scale)), rtol=1e-12
    )
    unseen = confidence.probabilities(scores[:, UNSEEN], UNSEEN[UNSEEN])
    np.testing.assert_allclose(
        unseen, np.exp(log_softmax(scores[:, UNSEEN], confidence.scale_unseen)), rtol=1e-12
    )


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_sets_hold_the_true_label_as_often_as_asked(confidence, coverage):
    new = drawn(6, samples=40_000, scale=7.0)
    held = confidence.sets(new.scores, UNSEEN, coverage)[np.arange(40_000), new.labels]
    seen = ~new.asks_unseen
    weights = class_weights(new.labels, new.asks_unseen)
    share = weights[seen] @ held[seen] / weights[seen].sum()
    assert share == pytest.approx(coverage, abs=0.02)
    # three classes that played unseen ones leave a fourth anywhere: the sets are wider
    wished = min(1.0, coverage * 4 / 3)
    assert held[~seen].mean() == pytest.approx(wished, abs=0.02)


def test_a_set_has_the_answer_and_grows_with_coverage(confidence):
    new = drawn(7, samples=500, scale=7.0)
    small = confidence.sets(new.scores, UNSEEN, 0.1)
    large = confidence.sets(new.scores, UNSEEN, 0.95)
    assert small[np.arange(500), new.scores.argmax(1)].all()
    assert (large | ~small).all()
    assert large.sum() > small.sum()


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.1, 1.5, float("nan"), None, "most"])
def test_a_coverage_that_is_none_is_refused(confidence, coverage):
    with pytest.raises(ArgumentError, match="is not between 0 and 1"):
        confidence.sets(np.zeros((1, 12)), UNSEEN, coverage)


def test_false_alarms_are_held_at_their_level(confidence):
    apart = np.random.default_rng(8).chisquare(5, 50_000)
    values = confidence.unfamiliar(apart)
    for level in (0.01, 0.05, 0.2):
        assert (values <= level).mean() == pytest.approx(level, rel=0.2)
    assert confidence.unfamiliar(np.array([1e9]))[0] == pytest.approx(1 / 2001)
    assert confidence.unfamiliar(np.array([0.0]))[0] == 1.0


def test_features_of_an_unusual_length_are_farther_in_proportion():
    sure = replace(fit([drawn(0)], 0.0), lengths=np.log([10.0, 1000.0]))
    rows = np.array([10.0, 100.0, 1000.0, 1e5, 1e-1, 0.0])[:, None] * [0.6, 0.8]
    lengths = log_lengths(rows)
    farther = sure.farther(np.full(6, 2.0), lengths)
    np.testing.assert_allclose(farther, [2, 2, 2, 6, 6, 2 * 14], rtol=1e-12)  # 0 counts as 1e-12
    np.testing.assert_array_equal(sure.farther(np.ones(6), None), np.ones(6))
    alike = replace(sure, lengths=np.zeros(2)).farther(np.ones(3), np.array([0, 1e-6, -1e-6]))
    np.testing.assert_array_equal(alike, np.ones(3))  # rounding is no unusual length


def test_an_unusual_length_raises_an_alarm_and_no_false_ones(confidence):
    assert not len(confidence.lengths)  # its folds say nothing of lengths
    rng = np.random.default_rng(11)
    folds = [replace(drawn(k), lengths=0.1 * rng.standard_normal(6000)) for k in (12, 13)]
    folds[1] = replace(folds[1], lengths=folds[0].lengths)  # of the same samples
    sure = fit(folds, 0.0)
    np.testing.assert_allclose(sure.lengths, [-0.2576, 0.2576], atol=0.02)
    apart = rng.chisquare(5, 50_000)
    lengths = 0.1 * rng.standard_normal(50_000)
    values = sure.unfamiliar(sure.farther(apart, lengths))
    assert (values <= 0.01).mean() == pytest.approx(0.01, rel=0.2)
    near = sure.farther(np.array([5.0, 5.0]), np.log([1.0, 0.2]))
    usual, short = sure.unfamiliar(near)
    assert short <= 0.001 < 0.3 < usual


def test_arrays_of_a_version_without_lengths_are_read(confidence):
    arrays = {name: value for name, value in confidence.arrays().items() if name != "lengths"}
    apart = np.arange(20.0)
    older = Confidence.of_arrays(arrays)
    assert np.array_equal(older.unfamiliar(older.farther(apart, apart)), older.unfamiliar(apart))
    with pytest.raises(ValueError, match="lengths of its confidence are not two"):
        Confidence.of_arrays({**arrays, "lengths": np.ones(3)})


def test_arrays_and_back(confidence):
    again = Confidence.of_arrays(confidence.arrays())
    new = drawn(9, samples=20, scale=7.0)
    for one in (confidence, again):
        assert np.array_equal(
            one.probabilities(new.scores, UNSEEN), confidence.probabilities(new.scores, UNSEEN)
        )
    assert again.samples == confidence.samples > 0


@pytest.mark.parametrize(
    "name", ["scale", "samples", "coefficients", "seen_levels", "distances", "lengths"]
)
def test_arrays_of_another_shape_are_refused(name, confidence):
    arrays = confidence.arrays()
    arrays[name] = np.ones((2, 3))
    with pytest.raises(ValueError, match=f"{name} of its confidence has the shape"):
        Confidence.of_arrays(arrays)


@pytest.mark.parametrize(
    ("name", "value"),
    [("scale", -1.0), ("scale_unseen", 0.0), ("samples", -2), ("classes", -1), ("distances", [2.0, 1.0])],
)  # fmt: skip
def test_arrays_that_no_fit_finds_are_refused(name, value, confidence):
    """Samples of -2 would divide by zero, and a negative scale overflow."""
    arrays = confidence.arrays() | {name: np.array(value)}
    with pytest.raises(ValueError, match=f"{name} of its confidence is negative or not sorted"):
        Confidence.of_arrays(arrays)


def test_an_offset_is_in_place_when_confidence_is_fitted():
    fold = drawn(10, distance=False)
    lowered = fit([fold], 1.5)
    shifted = fit([HeldOut(fold.scores - 1.5 * ~UNSEEN, fold.labels, UNSEEN)], 0.0)
    assert lowered.scale == shifted.scale
    assert not len(lowered.distances)


def test_the_features_of_a_row():
    logs = np.log(np.array([[0.5, 0.3, 0.2]]))
    entropy = -sum(p * np.log(p) for p in (0.5, 0.3, 0.2))
    expected = [1, 0.0, 0, 0, np.log(5 / 3), entropy]
    np.testing.assert_allclose(
        features(logs, np.array([False, True, False]))[0], expected, atol=1e-12
    )
    expected = [1, 0.0, 1, 0.0, np.log(5 / 3), entropy]
    np.testing.assert_allclose(
        features(logs, np.array([True, False, False]))[0], expected, atol=1e-12
    )


def test_classes_weigh_alike_and_kinds_have_their_share():
    labels = np.array([0, 0, 0, 1, 2])
    weights = class_weights(labels, labels == 2, share=0.25)
    np.testing.assert_allclose(weights, [0.125, 0.125, 0.125, 0.375, 0.25])
    np.testing.assert_allclose(class_weights(labels, labels > 5), [1 / 9] * 3 + [1 / 3, 1 / 3])


@pytest.mark.parametrize("classes", [2, 3, 100])
@pytest.mark.parametrize("spread", [1e-6, 1.0, 1000.0])
def test_the_largest_probability_is_as_wished_and_rows_do_not_depend_on_each_other(classes, spread):
    rng = np.random.default_rng(0)
    logs = log_softmax(spread * rng.normal(size=(50, classes)), 1.0)
    wished = rng.random(50)
    found = with_largest(logs, wished)
    np.testing.assert_allclose(found.max(1), np.maximum(wished, 1.001 / classes), rtol=1e-14)
    np.testing.assert_array_equal(found.argmax(1), logs.argmax(1))
    alone = [with_largest(logs[i : i + 1], wished[i : i + 1])[0] for i in range(50)]
    np.testing.assert_allclose(found, alone, rtol=1e-13)
    equal = with_largest(np.log(np.array([[0.4, 0.4, 0.2]])), np.array([0.9]))
    np.testing.assert_allclose(equal, [[0.5, 0.5, 0.0]], atol=1e-12)


def few(seen, samples, classes=6):
    """Return arrays of so many seen classes, with so many samples each, and the table of all."""
    rng = np.random.default_rng(0)
    table = {f"c{i}": row for i, row in enumerate(rng.normal(size=(classes, 3)).tolist())}
    labels = np.repeat(list(table)[:seen], samples)
    rows = np.array([table[name] for name in labels]) @ rng.normal(size=(3, 8))
    return rows + 0.1 * rng.normal(size=rows.shape), labels, table


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gaussian", "ridge"])
def test_a_fit_to_two_seen_classes_says_once_what_is_not_promised(method):
    rows, labels, table = few(2, 10)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = ZeroShotClassifier(method).fit(rows, labels, classes=table)
    said = [str(one.message) for one in caught if one.category is UncalibratedWarning]
    assert len(said) == 1
    assert "fewer than three seen classes" in said[0]
    for call in (model.predict_set, model.unfamiliar):
        with pytest.raises(ExperimentError) as refused:
            call(rows)
        assert refused.value.code == "not-calibrated"
    rows, labels, table = few(3, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UncalibratedWarning)
        assert ZeroShotClassifier(method).fit(rows, labels, classes=table).predict_set(rows).any()


def test_where_nothing_is_held_out_no_other_method_is_named_for_alarms():
    rows, labels, table = few(4, 1)
    model = ZeroShotClassifier().fit(rows, labels, classes=table)
    with pytest.raises(ExperimentError, match="give more samples of each class") as refused:
        model.unfamiliar(rows)
    assert refused.value.code == "no-distance"
