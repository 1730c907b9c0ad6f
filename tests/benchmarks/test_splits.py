"""Drawn class splits: what a row was given by its bench, and which classes are unseen."""

import numpy as np

import splits
from fedunseen.data.benchmarks.digit_pairs import VALIDATION_SHIFTS, DigitPairs, class_space
from fedunseen.research.papers.bench import read_bench


def test_a_row_gets_the_values_that_its_bench_printed():
    assert splits.chosen(splits.LEADERBOARD, "distzsl", "CIFAR100_MBV2") == {
        "method.lr": 0.00333,
        "method.optimiser": "adam",
        "strategy.rounds": 11,
        "evaluation.factor": 0.49615829778260256,
    }


def test_no_unseen_shift_of_a_drawn_split_was_a_validation_shift_and_no_source_digit_leaks():
    drawn = [splits.unseen_shifts(k) for k in range(1, 11)]
    assert len(set(drawn)) == 10
    assert (3, 7) not in drawn
    assert not {shift for pair in drawn for shift in pair} & set(VALIDATION_SHIFTS)
    sweep, _ = read_bench()
    data = next(cell.experiment for cell in sweep.cells if cell.values["data"] == "digit-pairs")
    published = DigitPairs.load(data.data, 0)
    other = splits.drawn(data, published, 1)
    unseen = other.labels[other.test_unseen]
    assert {int(shift) for shift in (unseen - unseen // 10) % 10} == set(drawn[0])
    assert not set(other.train) & {*other.test_seen, *other.test_unseen}
    # the images of a class that is seen in both splits are the same, so tests keep their sources
    both = np.intersect1d(other.space.seen, published.space.seen)
    rows = [one.train[np.isin(one.labels[one.train], both)] for one in (other, published)]
    np.testing.assert_array_equal(other.features[rows[0]], published.features[rows[1]])
    assert len(class_space(drawn[0], ()).validation) == 0
