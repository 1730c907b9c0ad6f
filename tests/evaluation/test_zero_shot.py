import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score

from fedunseen import metrics as module
from fedunseen.data import ClassSpace
from fedunseen.evaluation import answer
from fedunseen.metrics import Answers, accuracies, best_factor

# Classes 1, 4, 5 and 7 are seen, 0, 3 and 6 unseen; 2 is neither.
SEEN, UNSEEN = [1, 4, 5, 7], [0, 3, 6]


def space():
    names = tuple(f"class {i}" for i in range(8))
    return ClassSpace(names, np.eye(8) + 0.1, tuple("abcdefgh"), SEEN, [4], UNSEEN)


def problem(n=300, seed=0):
    """Draw labels and scores (n, 8) that are right more often than not, and that favor seen classes."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(SEEN + UNSEEN, n, p=[0.3, 0.1, 0.05, 0.05, 0.2, 0.25, 0.05])
    scores = rng.normal(size=(n, 8))
    scores[np.arange(n), labels] += 1.5
    scores[:, SEEN] += 0.7
    scores[:, 2] += 100  # a class that no one may answer
    return torch.from_numpy(scores).float(), labels


def ask(scores, labels, block=4096):
    return answer(scores.split(block), labels, space())


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("factor", [0.0, 0.5, -0.3])
def test_accuracies_are_scikit_learns_balanced_accuracy(factor):
    scores, labels = problem()
    lowered = scores.numpy().astype(np.float64)
    lowered[:, SEEN] -= factor
    lowered[:, 2] = -np.inf
    unseen = np.isin(labels, UNSEEN)
    u = 100 * balanced_accuracy_score(labels[unseen], lowered[unseen].argmax(1))
    s = 100 * balanced_accuracy_score(labels[~unseen], lowered[~unseen].argmax(1))
    zsl = 100 * balanced_accuracy_score(labels[unseen], np.array(UNSEEN)[lowered[unseen][:, UNSEEN].argmax(1)])
    result = accuracies(ask(scores, labels), factor)
    assert [result.zsl, result.gzsl_unseen, result.gzsl_seen] == pytest.approx([zsl, u, s])
    assert result.gzsl_harmonic == pytest.approx(2 * u * s / (u + s))
    assert 0 < u < zsl


def test_samples_scored_in_blocks_are_the_same_samples():
    scores, labels = problem()
    whole, blocks = ask(scores, labels), ask(scores, labels, 7)
    for name in ("labels", "best_seen", "best_unseen", "gap", "unseen"):
        assert (getattr(whole, name) == getattr(blocks, name)).all()


def test_a_tie_goes_to_the_lower_class_and_to_the_seen_one():
    labels = np.array([0, 1])
    answers = ask(torch.zeros(2, 8), labels)
    assert answers.best_seen.tolist() == [1, 1]
    assert answers.best_unseen.tolist() == [0, 0]
    assert answers.generalised().tolist() == [1, 1]
    assert answers.generalised(1e-12).tolist() == [0, 0]


# Calibrated stacking


def harmonic(answers, factor):
    """The harmonic mean of per-class accuracies, the slow way."""
    accuracies = []
    for classes in (UNSEEN, SEEN):
        each = []
        for c in classes:
            own = np.flatnonzero(answers.labels == c)
            if len(own):
                said = [answers.best_seen[i] if answers.gap[i] >= factor else answers.best_unseen[i] for i in own]
                each.append(np.mean(np.array(said) == c))
        accuracies.append(np.mean(each))
    u, s = accuracies
    return 2 * u * s / (u + s) if u + s else 0.0


def sweep(many):
    """Try a factor between every two gaps, and beyond the outermost."""
    gaps = sorted({float(g) for answers in many for g in answers.gap})
    factors = [gaps[0] - 1, *((a + b) / 2 for a, b in itertools.pairwise(gaps)), gaps[-1] + 1]
    return max(np.mean([harmonic(answers, f) for answers in many]) for f in factors)


@st.composite
def small_answers(draw):
    labels = np.array([draw(st.sampled_from(UNSEEN)), draw(st.sampled_from(SEEN))])
    labels = np.append(labels, draw(st.lists(st.sampled_from(SEEN + UNSEEN), max_size=12))).astype(np.int64)
    n = len(labels)
    best_seen = np.array(draw(st.lists(st.sampled_from(SEEN), min_size=n, max_size=n)))
    best_unseen = np.array(draw(st.lists(st.sampled_from(UNSEEN), min_size=n, max_size=n)))
    right = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    unseen = np.isin(labels, UNSEEN)
    best_unseen = np.where(right & unseen, labels, best_unseen)
    best_seen = np.where(right & ~unseen, labels, best_seen)
    gap = np.array(draw(st.lists(st.integers(-6, 6), min_size=n, max_size=n))) / 4  # few values: many ties
    return Answers(labels, best_seen, best_unseen, gap, unseen, best_unseen)


@given(st.lists(small_answers(), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_the_best_factor_is_as_good_as_any(many):
    factor = best_factor(many)
    assert np.mean([harmonic(answers, factor) for answers in many]) == pytest.approx(sweep(many), abs=1e-12)
    mean = np.mean([accuracies(answers, factor).gzsl_harmonic for answers in many])
    assert mean == pytest.approx(100 * sweep(many), abs=1e-9)


def test_of_equally_good_factors_the_nearest_to_none_is_taken():
    # Both right at the factors between -1 and 0.5, and nowhere else: the middle of that interval.
    unseen, no = np.array([0, 0]), np.array([True, False])
    answers = Answers(np.array([0, 1]), np.array([1, 1]), unseen, np.array([-1.0, 0.5]), no, unseen)
    assert best_factor([answers]) == -0.25
    # Never right: all are as good, and 0 lies below the lowest gap.
    unseen = np.array([3, 3])
    wrong = Answers(np.array([0, 1]), np.array([4, 4]), unseen, np.array([1.0, 3.0]), no, unseen)
    assert best_factor([wrong]) == pytest.approx(1.0, abs=1e-5)


def test_many_gaps_are_thinned_out_at_little_cost(monkeypatch):
    answers = ask(*problem(3000))
    exact = best_factor([answers])
    monkeypatch.setattr(module, "_CANDIDATES", 200)
    thinned = best_factor([answers])
    best = max(accuracies(answers, factor).gzsl_harmonic for factor in np.unique(answers.gap)[::3])
    assert accuracies(answers, exact).gzsl_harmonic > best - 0.2
    assert accuracies(answers, thinned).gzsl_harmonic > best - 1
