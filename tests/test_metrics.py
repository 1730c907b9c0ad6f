"""The metrics on plain arrays, against scikit-learn and slow loops; intervals of differences."""

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, confusion_matrix

from fedunseen import metrics
from fedunseen.core.errors import ArgumentError
from known_names import refuses

# Classes 1, 4, 5 and 7 are seen, 0, 3 and 6 unseen; 2 is neither.
SEEN, UNSEEN = [1, 4, 5, 7], [0, 3, 6]


def problem(n=300, seed=0):
    """Draw scores (n, 8) that are right more often than not and favor seen classes, and labels
    (n,).
    """
    rng = np.random.default_rng(seed)
    labels = rng.choice(SEEN + UNSEEN, n, p=[0.3, 0.1, 0.05, 0.05, 0.2, 0.25, 0.05])
    scores = rng.normal(size=(n, 8))
    scores[np.arange(n), labels] += 1.5
    scores[:, SEEN] += 0.7
    scores[:, 2] += 100  # a class that no one may answer
    return scores, labels


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("factor", [0.0, 0.5, -0.3])
def test_accuracies_are_scikit_learns_balanced_accuracy(factor):
    scores, labels = problem()
    calibrated = scores.copy()
    calibrated[:, SEEN] -= factor
    calibrated[:, 2] = -np.inf
    unseen = np.isin(labels, UNSEEN)
    u = 100 * balanced_accuracy_score(labels[unseen], calibrated[unseen].argmax(1))
    s = 100 * balanced_accuracy_score(labels[~unseen], calibrated[~unseen].argmax(1))
    zsl = 100 * balanced_accuracy_score(
        labels[unseen], np.array(UNSEEN)[calibrated[unseen][:, UNSEEN].argmax(1)]
    )
    assert metrics.generalized(scores, labels, SEEN, UNSEEN, factor) == pytest.approx(
        (u, s, 2 * u * s / (u + s))
    )
    mask = np.isin(np.arange(8), UNSEEN)
    assert metrics.zsl(scores.tolist(), labels.tolist(), mask) == metrics.zsl(
        scores, labels, UNSEEN[::-1]
    )
    of_answers = metrics.accuracies(
        metrics.answers_of(scores, labels, np.array(SEEN), np.array(UNSEEN)), factor
    )
    assert metrics.zsl(scores, labels, UNSEEN) == of_answers.zsl == pytest.approx(zsl)
    assert 0 < u < zsl


def test_samples_of_classes_that_are_neither_seen_nor_unseen_do_not_count():
    scores, labels = problem()
    more = np.concatenate([scores, scores[:5]]), np.concatenate([labels, [2] * 5])
    assert metrics.generalized(*more, SEEN, UNSEEN) == metrics.generalized(
        scores, labels, SEEN, UNSEEN
    )
    assert metrics.zsl(*more, UNSEEN) == metrics.zsl(scores, labels, UNSEEN)


def test_confusions_by_hand_of_samples_and_of_episodes():
    assert metrics.confusion([7, 5], [7, 7], [5, 7]).tolist() == [[0, 100], [0, 100]]
    labels = np.array([[[3, 3], [5, 5]], [[3, 3], [8, 8]]])
    answers = np.array([[[5, 3], [5, 5]], [[3, 3], [8, 3]]])
    table, together = metrics.episode_confusion(labels, answers, np.array([3, 5, 8]))
    nan = float("nan")
    np.testing.assert_array_equal(table, [[75, 50, 0], [0, 100, nan], [50, nan, 50]])
    assert together.tolist() == [[2, 1, 1], [1, 1, 0], [1, 0, 1]]


def test_confusions_are_shares_of_each_class_s_samples():
    rng = np.random.default_rng(0)
    names = np.array(["ant", "bee", "cat", "dog"])
    labels, answers = names[rng.integers(0, 3, 60)], names[rng.integers(0, 4, 60)]
    order = ["cat", "dog", "ant"]  # answers may be "bee" too, and nothing is a "dog"
    expected = (
        100 * confusion_matrix(labels, answers, labels=[*order, "bee"], normalize="true")[:3, :3]
    )
    expected[1] = np.nan
    found = metrics.confusion(labels, answers, order)
    np.testing.assert_allclose(found, expected)
    np.testing.assert_array_equal(metrics.per_class(labels, answers, order), np.diag(found))
    assert np.isnan(metrics.confusion([], [], ["cat"])).all()


def harmonic(answers, factor):
    """The harmonic mean of per-class accuracies, the slow way."""
    right = (
        np.where(answers.gap >= factor, answers.best_seen, answers.best_unseen) == answers.labels
    )
    u, s = (
        np.mean([right[answers.labels == c].mean() for c in classes if c in answers.labels])
        for classes in (UNSEEN, SEEN)
    )
    return 2 * u * s / (u + s) if u + s else 0.0


def sweep(many):
    """Try a factor between every two gaps, and beyond the outermost."""
    gaps = sorted({float(g) for answers in many for g in answers.gap})
    factors = [gaps[0] - 1, *((a + b) / 2 for a, b in itertools.pairwise(gaps)), gaps[-1] + 1]
    return max(np.mean([harmonic(answers, f) for answers in many]) for f in factors)


@st.composite
def small_answers(draw):
    labels = np.array([draw(st.sampled_from(UNSEEN)), draw(st.sampled_from(SEEN))])
    labels = np.append(labels, draw(st.lists(st.sampled_from(SEEN + UNSEEN), max_size=12))).astype(
        np.int64
    )

    def each(values):
        return np.array(draw(st.lists(values, min_size=len(labels), max_size=len(labels))))

    best_seen, best_unseen = each(st.sampled_from(SEEN)), each(st.sampled_from(UNSEEN))
    right, gap = each(st.booleans()), each(st.integers(-6, 6)) / 4  # few values: many ties
    unseen = np.isin(labels, UNSEEN)
    best_unseen = np.where(right & unseen, labels, best_unseen)
    best_seen = np.where(right & ~unseen, labels, best_seen)
    return metrics.Answers(labels, best_seen, best_unseen, gap, unseen, best_unseen)


@given(st.lists(small_answers(), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_the_best_offset_is_as_good_as_any(many):
    factor = metrics.best_offset(many)
    assert np.mean([harmonic(answers, factor) for answers in many]) == pytest.approx(
        sweep(many), abs=1e-12
    )
    mean = np.mean([metrics.accuracies(answers, factor).gzsl_harmonic for answers in many])
    assert mean == pytest.approx(100 * sweep(many), abs=1e-9)


def test_of_equally_good_factors_the_nearest_to_none_is_taken():
    # Both right at the factors between -1 and 0.5, and nowhere else: the middle of that interval.
    unseen, no = np.array([0, 0]), np.array([True, False])
    answers = metrics.Answers(
        np.array([0, 1]), np.array([1, 1]), unseen, np.array([-1.0, 0.5]), no, unseen
    )
    assert metrics.best_offset([answers]) == -0.25
    # Never right: all are as good, and 0 lies below the lowest gap.
    unseen = np.array([3, 3])
    wrong = metrics.Answers(
        np.array([0, 1]), np.array([4, 4]), unseen, np.array([1.0, 3.0]), no, unseen
    )
    assert metrics.best_offset([wrong]) == pytest.approx(1.0, abs=1e-5)


def test_many_gaps_are_thinned_out_at_little_cost(monkeypatch):
    scores, labels = problem(3000)
    answers = metrics.answers_of(scores, labels, np.array(SEEN), np.array(UNSEEN))
    exact = metrics.best_offset([answers])
    assert metrics.calibrate(scores, labels, SEEN, UNSEEN) == exact
    monkeypatch.setattr(metrics, "_CANDIDATES", 200)
    thinned = metrics.best_offset([answers])
    best = max(
        metrics.accuracies(answers, factor).gzsl_harmonic for factor in np.unique(answers.gap)[::3]
    )
    assert metrics.accuracies(answers, exact).gzsl_harmonic > best - 0.2
    assert metrics.accuracies(answers, thinned).gzsl_harmonic > best - 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s, y: metrics.zsl(s[:3], y, UNSEEN),
         "scores have the shape (3, 8) and labels (300,): give (n, C) and (n,)"),
        (lambda s, y: metrics.zsl(s, y, ["0"]), "unseen are not a list of whole numbers: give "
                                                "columns of the scores"),
        (lambda s, y: metrics.zsl(s, y, [8]), "unseen name class 8, but the scores have the "
                                              "columns 0 to 7"),
        (lambda s, y: metrics.zsl(s, -y, UNSEEN), "labels name class -7, but the scores have the "
                                                  "columns 0 to 7"),
        (lambda s, y: metrics.zsl(s, y, [2]), "no sample is of an unseen class: there is nothing "
                                              "to measure"),
        (lambda s, y: metrics.zsl(s * np.inf, y, UNSEEN),
         "scores hold what is not a finite number: a class that must not win is left out of the "
         "ids"),
        (lambda s, y: metrics.generalized(s, y, [2], UNSEEN),
         "no sample is of a seen class: there is nothing to measure"),
        (lambda s, y: metrics.calibrate(s, y, [0, 1], UNSEEN),
         "class 0 is both seen and unseen: it can be one of them only"),
        (lambda s, y: metrics.confusion(y, y[:2], SEEN), "there are 300 labels, but 2 answers: "
                                                         "give one a sample"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(call, message):
    with refuses(message, ArgumentError):
        call(*problem())


def test_the_interval_over_seeds_is_student_s_and_none_of_one_seed_and_no_wider_for_what_both_find_hard():
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(60, 5, 12), rng.normal(58, 5, 12)
    mean, half = metrics.paired_difference(ours, theirs)
    interval = scipy.stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((interval.low, interval.high))
    np.testing.assert_equal(
        metrics.paired_difference(np.array([3.0]), np.array([1.0])), (2, np.nan)
    )
    assert np.isfinite(metrics.paired_difference(np.array([3.0, 1.0]), np.zeros(2))[1])
    hard = np.random.default_rng(1).normal(50, 20, 200)
    assert metrics.paired_difference(hard + 1, hard) == (
        pytest.approx(1),
        pytest.approx(0, abs=1e-9),
    )


def test_the_difference_is_that_of_per_class_accuracies():
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(5), rng.integers(40, 90, 5))
    ours, theirs = rng.random((2, len(labels))) < 0.6
    gaps = [100 * (ours[labels == c].mean() - theirs[labels == c].mean()) for c in range(5)]
    squares = [
        (100.0 * ours - 100.0 * theirs)[labels == c].var(ddof=1) / (labels == c).sum()
        for c in range(5)
    ]
    expected = (np.mean(gaps), 1.96 * np.sqrt(sum(squares)) / 5)
    assert metrics.class_difference(labels, ours, theirs) == pytest.approx(expected)


def test_the_harmonic_interval_adds_up_those_of_seen_and_unseen_classes():
    """By the slopes of the harmonic mean, its finite differences; a model that recognizes nothing
    has the mean 0.
    """
    labels, seen = np.repeat([0, 1], 10), np.arange(20) < 10
    right, wrong = (
        np.r_[np.arange(10) < 6, np.arange(10) < 3],
        np.zeros(20, dtype=bool),
    )  # S = 60, U = 30
    halves = [
        metrics.class_difference(labels[side], right[side], wrong[side])[1]
        for side in (seen, ~seen)
    ]
    assert halves == pytest.approx([196 * (0.6 * 0.4 / 9) ** 0.5, 196 * (0.3 * 0.7 / 9) ** 0.5])
    step = 1e-4
    slopes = (
        np.array(
            [metrics.harmonic_mean(30, 60 + step) - 40, metrics.harmonic_mean(30 + step, 60) - 40]
        )
        / step
    )
    found = metrics.harmonic_difference(labels, seen, right, wrong)
    assert found == pytest.approx((40, np.linalg.norm(slopes * halves)), rel=1e-4)
    other = np.r_[np.arange(10) < 8, np.arange(10) < 5]
    there, back = (
        metrics.harmonic_difference(labels, seen, *pair)
        for pair in ((right, other), (other, right))
    )
    assert (-back[0], back[1]) == pytest.approx(there)
    assert metrics.harmonic_difference(labels, seen, other, other) == (0, 0)


def test_where_the_lowered_seen_class_ties_it_is_the_answer():
    """A gap of exactly the offset: README's rule that a seen class wins over an unseen one."""
    scores = [[0.75, 0.25], [0.75, 0.5]]
    at = metrics.generalized(scores, [0, 1], seen=[0], unseen=[1], offset=0.5)
    assert at == (100.0, 100.0, 100.0)
    past = metrics.generalized(scores, [0, 1], seen=[0], unseen=[1], offset=0.5 + 2**-30)
    assert past == (100.0, 0.0, 0.0)


def test_intervals_hold_the_accuracies_of_other_draws_of_few_test_samples():
    rng = np.random.default_rng(0)
    likely = np.r_[rng.uniform(0.2, 0.7, 4), rng.uniform(0.4, 0.95, 10)]
    seen_class = np.arange(14) >= 4
    counts = np.r_[[1, 6, 12, 20], rng.integers(1, 12, 10)]
    labels = np.repeat(np.arange(14), counts)
    seen = seen_class[labels]
    u, s = 100 * likely[:4].mean(), 100 * likely[4:].mean()
    true = {"gzsl_unseen": u, "gzsl_seen": s, "gzsl_harmonic": metrics.harmonic_mean(u, s)}
    true |= {"gzsl_accuracy": 100 * likely.mean()}
    inside = dict.fromkeys(true, 0)
    for _ in range(400):
        right = rng.random(len(labels)) < likely[labels]
        found = metrics.accuracy_intervals(labels, seen, right, right)
        for name, value in true.items():
            inside[name] += found[name][0] <= value <= found[name][1]
    assert all(370 <= count <= 400 for count in inside.values()), inside
    assert metrics.accuracy_intervals(labels, seen | True, right, right) == {}


def test_a_class_with_one_test_sample_is_no_certainty():
    labels = np.arange(8)
    right = np.ones(8, dtype=bool)
    found = metrics.accuracy_intervals(labels, labels >= 4, right, right)
    low, high = found["gzsl_unseen"]
    assert (low, high) == (pytest.approx(100 - 196 * (2 / 9 / 4) ** 0.5, abs=0.1), 100)
