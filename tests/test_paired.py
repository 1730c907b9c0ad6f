"""Intervals of differences against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from fedunseen.metrics import class_difference, harmonic_difference, harmonic_mean, paired_difference


def test_the_interval_over_seeds_is_student_s():
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(60, 5, 12), rng.normal(58, 5, 12)
    mean, half = paired_difference(ours, theirs)
    interval = scipy.stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((interval.low, interval.high))


def test_of_one_seed_there_is_no_interval():
    mean, half = paired_difference(np.array([3.0]), np.array([1.0]))
    assert mean == 2
    assert np.isnan(half)
    assert np.isfinite(paired_difference(np.array([3.0, 1.0]), np.zeros(2))[1])


def test_what_both_find_hard_does_not_widen_the_interval():
    hard = np.random.default_rng(1).normal(50, 20, 200)
    assert paired_difference(hard + 1, hard) == (pytest.approx(1), pytest.approx(0, abs=1e-9))


def test_the_difference_is_that_of_per_class_accuracies():
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(5), rng.integers(40, 90, 5))
    ours, theirs = rng.random((2, len(labels))) < 0.6
    gaps = [100 * (ours[labels == c].mean() - theirs[labels == c].mean()) for c in range(5)]
    assert class_difference(labels, ours, theirs)[0] == pytest.approx(np.mean(gaps))
    squares = [(100.0 * ours - 100.0 * theirs)[labels == c].var(ddof=1) / (labels == c).sum() for c in range(5)]
    assert class_difference(labels, ours, theirs)[1] == pytest.approx(1.96 * np.sqrt(sum(squares)) / 5)


def test_a_model_that_recognises_nothing_has_the_harmonic_mean_0():
    labels, seen = np.array([0, 0, 1, 1]), np.array([True, True, False, False])
    right = np.array([True, False, True, False])
    mean, half = harmonic_difference(labels, seen, right, np.zeros(4, dtype=bool))
    assert mean == 50
    assert half > 0


def test_the_harmonic_interval_adds_up_those_of_seen_and_unseen_classes():
    """By the slopes of the harmonic mean, which are its finite differences."""
    labels, seen = np.repeat([0, 1], 10), np.arange(20) < 10
    right, wrong = np.r_[np.arange(10) < 6, np.arange(10) < 3], np.zeros(20, dtype=bool)  # S = 60, U = 30
    halves = [class_difference(labels[side], right[side], wrong[side])[1] for side in (seen, ~seen)]
    assert halves == pytest.approx([196 * (0.6 * 0.4 / 9) ** 0.5, 196 * (0.3 * 0.7 / 9) ** 0.5])
    step = 1e-4
    slopes = np.array([harmonic_mean(30, 60 + step) - 40, harmonic_mean(30 + step, 60) - 40]) / step
    found = harmonic_difference(labels, seen, right, wrong)
    assert found == pytest.approx((40, np.linalg.norm(slopes * halves)), rel=1e-4)
