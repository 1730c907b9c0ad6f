"""What a report shows of a confidence, on answers whose truth is known."""

import numpy as np
import pytest

from fedunseen.confidence import HeldOut, fit
from fedunseen.confidence.measured import measured
from fedunseen.metrics import accuracies

UNSEEN = np.arange(8) >= 6


def drawn(seed, samples):
    """Return scores whose softmax is the truth, and labels drawn from it."""
    rng = np.random.default_rng(seed)
    logits = 2.0 * rng.standard_normal((samples, 8))
    odds = np.exp(logits)
    odds /= odds.sum(1, keepdims=True)
    labels = (odds.cumsum(1) > rng.random((samples, 1))).argmax(1)
    return HeldOut(logits, labels, UNSEEN, rng.chisquare(4, samples))


@pytest.fixture(scope="module")
def found():
    tests = drawn(1, 20_000)
    return tests, measured(tests, fit([drawn(0, 20_000)], 0.0, share=0.25), 0.0)


def test_probabilities_that_hold_have_next_to_no_error(found):
    _, numbers = found
    assert numbers["ece"] < 2.0
    assert numbers["stated"] == pytest.approx(numbers["right"], abs=2.0)
    assert numbers["high"]["right"] > 90
    for rows in numbers["reliability"].values():
        for count, stated, right in rows:
            if count > 500:
                assert right == pytest.approx(stated, abs=6.0)


def test_scores_that_are_too_large_are_an_error():
    tests = drawn(1, 5000)
    sure = fit([drawn(0, 5000)], 0.0, share=0.25)
    loud = HeldOut(5 * tests.scores, tests.labels, tests.unseen)
    assert measured(loud, sure, 0.0)["ece"] > 10


def test_the_surest_answers_are_right_more_often(found):
    _, numbers = found
    for values in numbers["risk_coverage"].values():
        assert len(values) == 20
        assert values[0] > values[9] > values[-1]


def test_sets_and_alarms_are_counted(found):
    tests, numbers = found
    sets = numbers["sets"]
    assert sets["seen"] == pytest.approx(90.0, abs=2.0)
    assert 1 < sets["labels"] < 8
    assert numbers["unfamiliar"]["seen"] == pytest.approx(1.0, abs=0.5)
    without = HeldOut(tests.scores, tests.labels, tests.unseen)
    assert "unfamiliar" not in measured(without, fit([drawn(0, 500)], 0.0), 0.0)


def test_the_trade_has_the_chosen_offset_and_both_ends(found):
    tests, numbers = found
    points = {offset: (u, s) for offset, u, s in numbers["trade"]}
    now = accuracies(tests.answers(), 0.0)
    assert points[0.0] == (now.gzsl_unseen, now.gzsl_seen)
    assert max(u for u, _ in points.values()) > 60
    assert min(u for u, _ in points.values()) < 5
