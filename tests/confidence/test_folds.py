"""Folds of seen classes that play unseen ones, beside models that are solved without them."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from fedunseen.confidence import fit
from fedunseen.confidence.folds import class_folds, closed_form_folds, held_out_places
from fedunseen.data import ClassSpace
from fedunseen.encoders.backbone import Backbone
from fedunseen.methods import ESZSL, Gaussian, Ridge

CLASSES = 14
SEEN = 11


def problem(kind, **settings):
    """Return a method, samples (n, d) and labels of its seen classes."""
    rng = np.random.default_rng(0)
    described = rng.standard_normal((CLASSES, 4))
    names = tuple(f"class {c}" for c in range(CLASSES))
    attributes = tuple(f"attribute {a}" for a in range(4))
    space = ClassSpace(names, described, attributes, range(SEEN), [], range(SEEN, CLASSES))
    labels = np.repeat(np.arange(SEEN), 20)
    x = (described @ rng.standard_normal((4, 6)))[labels] + 0.3 * rng.standard_normal((220, 6))
    x = x.astype(np.float32)
    method = kind(
        kind.Settings.model_validate(settings),
        space,
        torch.from_numpy(described).float(),
        Backbone((6,)),
    )
    return method, torch.from_numpy(x), torch.from_numpy(labels)


def test_a_fold_has_the_scores_of_a_model_that_never_had_its_samples():
    method, x, labels = problem(Gaussian, shrinkage=0.3, variance=2.0, nugget=0.1, width=0.5)
    sums = method.statistics(x, labels)
    model = method.solve(sums)
    turns = held_out_places(labels.numpy(), np.ones(SEEN, dtype=bool), 0)
    folds = closed_form_folds(method, model, sums, x, labels, np.arange(220), 0)
    played = [c for fold in folds for c in np.flatnonzero(fold.unseen)]
    assert sorted(played) == sorted([*range(SEEN)] * len(turns))
    for number, fold in enumerate(folds):
        held = turns[number * len(turns) // len(folds)]
        assert np.array_equal(fold.places, held)
        assert np.array_equal(fold.labels, labels.numpy()[held])
        out = np.flatnonzero(fold.unseen)
        kept = np.setdiff1d(np.arange(220), held)
        rest = kept[~np.isin(labels.numpy()[kept], out)]
        alone = method.quick(model)
        base = alone.solve(method.statistics(x[rest], labels[rest]))
        wanted = alone.scores(base, x[held], method.semantics)[:, :SEEN]
        assert_allclose(fold.scores, wanted.numpy(), rtol=1e-6, atol=1e-6)
        assert fold.asks_unseen.sum() == 4 * len(out)
        apart = alone.distances(base, x[held], method.semantics).numpy()
        assert np.isnan(fold.distance[fold.asks_unseen]).all()  # of which nobody asks
        known = ~fold.asks_unseen
        assert_allclose(fold.distance[known], apart[known], rtol=1e-6)


def test_each_sample_of_few_is_held_out_once():
    method, x, labels = problem(Gaussian, shrinkage=0.3, variance=2.0, nugget=0.1, width=0.5)
    turns = held_out_places(labels.numpy(), np.ones(SEEN, dtype=bool), 0)
    assert sorted(np.concatenate(turns)) == list(range(220))
    sums = method.statistics(x, labels)
    folds = closed_form_folds(method, method.solve(sums), sums, x, labels, np.arange(220), 0)
    assert fit(folds, 0.0).samples == 220


def test_of_many_samples_a_fifth_is_held_out_and_few_distances_are_measured(monkeypatch):
    labels = np.repeat(np.arange(3), 1000)
    (held,) = held_out_places(labels, np.ones(3, dtype=bool), 0)
    assert np.bincount(labels[held]).tolist() == [200, 200, 200]
    monkeypatch.setattr("fedunseen.confidence.folds._DISTANCES", 15)
    method, x, labels = problem(Gaussian, shrinkage=0.3, variance=2.0, nugget=0.1, width=0.5)
    sums = method.statistics(x, labels)
    folds = closed_form_folds(method, method.solve(sums), sums, x, labels, np.arange(220), 0)
    measured = np.array([~np.isnan(fold.distance) for fold in folds])
    assert (measured.sum(1) <= 15).all()
    sure = fit(folds, 0.0)
    assert len(sure.distances) == int(measured.sum()) > 0


@pytest.mark.parametrize("kind", [Ridge, ESZSL])
def test_other_closed_forms_have_folds_without_distances(kind):
    method, x, labels = problem(kind)
    sums = method.statistics(x, labels)
    folds = closed_form_folds(method, method.solve(sums), sums, x, labels, np.arange(220), 0)
    assert len(folds) > 1
    right = [(fold.scores.argmax(1) == fold.labels)[~fold.asks_unseen].mean() for fold in folds]
    assert np.mean(right) > 1.5 / SEEN
    assert all(fold.distance is None for fold in folds)


def test_two_seen_classes_have_no_folds():
    method, x, labels = problem(Gaussian)
    few = labels < 2
    sums = method.statistics(x[few], labels[few])
    method.space = ClassSpace(
        method.space.names,
        method.space.semantics,
        method.space.attribute_names,
        range(2),
        [],
        range(2, CLASSES),
    )
    assert closed_form_folds(method, {}, sums, x[few], labels[few], np.arange(40), 0) == []


def test_each_class_keeps_a_sample_and_one_with_a_single_sample_is_left_alone():
    labels = np.array([0, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2])
    turns = held_out_places(labels, np.ones(3, dtype=bool), 0)
    counts = [np.bincount(labels[places], minlength=3).tolist() for places in turns]
    assert counts == [[0, 1, 2]] * 2 + [[0, 0, 2]] * 3
    usable = np.array([True, True, False])
    turns = held_out_places(labels, usable, 0)
    assert [np.bincount(labels[places], minlength=3).tolist() for places in turns] == [
        [0, 1, 0]
    ] * 2


@pytest.mark.parametrize(
    ("classes", "unseen", "folds"), [(40, 10, 5), (80, 20, 5), (40, 1, 10), (3, 50, 3), (12, 3, 4)]
)
def test_each_class_is_in_one_fold(classes, unseen, folds):
    found = class_folds(np.arange(classes), unseen, 0)
    assert np.array_equal(np.sort(np.concatenate(found)), np.arange(classes))
    assert len(found) == folds


def test_samples_that_leave_nothing_but_themselves_have_no_folds():
    """With two samples of each class one is held out, and nothing varies within classes."""
    method, x, labels = problem(Gaussian, shrinkage=0.3, variance=2.0, nugget=0.1, width=0.5)
    few = torch.cat([torch.nonzero(labels == c)[:2, 0] for c in range(SEEN)])
    sums = method.statistics(x[few], labels[few])
    places = np.arange(len(few))
    assert closed_form_folds(method, method.solve(sums), sums, x[few], labels[few], places, 0) == []


def test_of_very_many_classes_one_fold_stands_for_all(monkeypatch):
    method, x, labels = problem(Gaussian, shrinkage=0.3, variance=2.0, nugget=0.1, width=0.5)
    sums = method.statistics(x, labels)
    model = method.solve(sums)
    given = method, model, sums, x, labels, np.arange(len(labels)), 0
    all_folds = closed_form_folds(*given)
    monkeypatch.setattr("fedunseen.confidence.folds._WORK", SEEN**3)
    first = closed_form_folds(*given)
    turns = len(held_out_places(labels.numpy(), np.ones(SEEN, dtype=bool), 0))
    assert len(all_folds) > len(first) == turns
    assert np.array_equal(first[0].scores, all_folds[0].scores)
