"""The metrics on plain arrays, against scikit-learn and slow loops."""

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score

from fedunseen import metrics
from fedunseen.core.errors import ArgumentError

SEEN, UNSEEN = [1, 4, 5], [0, 3]  # class 2 is neither


def problem(n=200, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.choice(SEEN + UNSEEN, n, p=[0.3, 0.2, 0.1, 0.1, 0.3])
    scores = rng.normal(size=(n, 6))
    scores[np.arange(n), labels] += 1.5
    scores[:, SEEN] += 0.7
    scores[:, 2] += 100
    return scores, labels


def balanced(labels, answers):
    return 100 * np.mean([np.mean(answers[labels == c] == c) for c in np.unique(labels)])


def test_zsl_chooses_among_unseen_classes_only():
    scores, labels = problem()
    mine = np.isin(labels, UNSEEN)
    answers = np.array(UNSEEN)[scores[mine][:, UNSEEN].argmax(1)]
    assert metrics.zsl(scores, labels, UNSEEN) == pytest.approx(100 * balanced_accuracy_score(labels[mine], answers))
    mask = np.isin(np.arange(6), UNSEEN)
    assert metrics.zsl(scores.tolist(), labels.tolist(), mask) == metrics.zsl(scores, labels, UNSEEN[::-1])


@pytest.mark.parametrize("factor", [0.0, 0.6, -1.0])
def test_generalized_chooses_among_seen_and_unseen_classes_with_the_seen_ones_lowered(factor):
    scores, labels = problem()
    lowered = scores.copy()
    lowered[:, SEEN] -= factor
    lowered[:, 2] = -np.inf
    answers, unseen = lowered.argmax(1), np.isin(labels, UNSEEN)
    u, s = balanced(labels[unseen], answers[unseen]), balanced(labels[~unseen], answers[~unseen])
    found = metrics.generalized(scores, labels, SEEN, UNSEEN, factor)
    assert found == pytest.approx((u, s, 2 * u * s / (u + s)))


def test_no_factor_is_better_than_the_calibrated_one():
    scores, labels = problem()
    best = metrics.generalized(scores, labels, SEEN, UNSEEN, metrics.calibrate(scores, labels, SEEN, UNSEEN))
    tried = [metrics.generalized(scores, labels, SEEN, UNSEEN, f).harmonic for f in np.linspace(-5, 5, 401)]
    assert best.harmonic >= max(tried)
    assert best.harmonic > metrics.generalized(scores, labels, SEEN, UNSEEN).harmonic


def test_samples_of_classes_that_are_neither_seen_nor_unseen_do_not_count():
    scores, labels = problem()
    more = np.concatenate([scores, scores[:5]]), np.concatenate([labels, [2] * 5])
    assert metrics.generalized(*more, SEEN, UNSEEN) == metrics.generalized(scores, labels, SEEN, UNSEEN)
    assert metrics.zsl(*more, UNSEEN) == metrics.zsl(scores, labels, UNSEEN)


def test_confusions_of_single_samples_are_0_or_100():
    assert metrics.confusion([7, 5], [7, 7], [5, 7]).tolist() == [[0, 100], [0, 100]]
    labels, answers = np.array([[[3], [5]], [[3], [8]]]), np.array([[[5], [5]], [[3], [8]]])
    table, together = metrics.episode_confusion(labels, answers, np.array([3, 5, 8]))
    nan = float("nan")
    np.testing.assert_array_equal(table, [[50, 100, 0], [0, 100, nan], [0, nan, 100]])
    assert together.tolist() == [[2, 1, 1], [1, 1, 0], [1, 0, 1]]


def test_confusions_are_shares_of_each_class_s_samples():
    rng = np.random.default_rng(0)
    names = np.array(["ant", "bee", "cat", "dog"])
    labels, answers = names[rng.integers(0, 3, 60)], names[rng.integers(0, 4, 60)]
    order = ["cat", "dog", "ant"]  # answers may be "bee" too, and nothing is a "dog"
    found = metrics.confusion(labels, answers, order)
    for i, c in enumerate(order):
        for j, other in enumerate(order):
            own = answers[labels == c]
            expected = 100 * np.mean(own == other) if len(own) else np.nan
            assert found[i, j] == pytest.approx(expected, nan_ok=True)
    np.testing.assert_array_equal(metrics.per_class(labels, answers, order), np.diag(found))
    assert np.isnan(metrics.confusion([], [], ["cat"])).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda s, y: metrics.zsl(s[:3], y, UNSEEN),
            "scores have the shape (3, 6) and labels (200,): give (n, C) and (n,)",
        ),
        (lambda s, y: metrics.zsl(s, y, ["0"]), "unseen are not a list of whole numbers: give columns of the scores"),
        (lambda s, y: metrics.zsl(s, y, [6]), "unseen name class 6, but the scores have the columns 0 to 5"),
        (lambda s, y: metrics.zsl(s, -y, UNSEEN), "labels name class -5, but the scores have the columns 0 to 5"),
        (lambda s, y: metrics.zsl(s, y, [2]), "no sample is of an unseen class: there is nothing to measure"),
        (
            lambda s, y: metrics.zsl(s * np.inf, y, UNSEEN),
            "scores hold what is not a finite number: a class that must not win is left out of the ids",
        ),
        (
            lambda s, y: metrics.generalized(s, y, [2], UNSEEN),
            "no sample is of a seen class: there is nothing to measure",
        ),
        (
            lambda s, y: metrics.calibrate(s, y, [0, 1], UNSEEN),
            "class 0 is both seen and unseen: it can be one of them only",
        ),
        (lambda s, y: metrics.confusion(y, y[:2], SEEN), "there are 200 labels, but 2 answers: give one a sample"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    scores, labels = problem()
    with pytest.raises(ArgumentError) as caught:
        call(scores, labels)
    assert str(caught.value) == message
