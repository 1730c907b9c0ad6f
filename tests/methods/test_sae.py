"""The semantic autoencoder: the solution of its Sylvester equation, and where it leads."""

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.linalg import solve_sylvester
from sklearn.datasets import load_digits

from fedunseen.data import Benchmark
from fedunseen.encoders.backbone import Backbone
from fedunseen.methods.auto import Auto
from fedunseen.methods.closed_form.ridge import Ridge
from fedunseen.methods.closed_form.sae import SAE

DIGITS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
LIT = np.array([[float(segment in lit) for segment in "abcdefg"] for lit in DIGITS])


def of_digits(kind, rows, labels, **settings):
    """Return a method on handwritten digits, and its model of some samples."""
    table = {str(digit): LIT[digit].tolist() for digit in range(10)}
    space = Benchmark.from_arrays(rows.astype(np.float32), list(map(str, labels)), table).space
    order = np.array([space.names.index(str(digit)) for digit in range(10)])
    semantics = torch.from_numpy(space.semantics).float()
    method = kind(kind.Settings(**settings), space, semantics, Backbone(rows.shape[1:]))
    sums = method.statistics(torch.from_numpy(rows), torch.from_numpy(order[labels]))
    return method, method.of_sums(sums), order


@pytest.mark.parametrize("exponent", [-1.0, 2.0])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_it_solves_the_sylvester_equation_at_any_scale(exponent, scale):
    rows, labels = load_digits(return_X_y=True)
    rows = rows[labels < 8] * scale
    labels = labels[labels < 8]
    _, model, _ = of_digits(SAE, rows, labels, log_lambda=exponent)
    x = rows - rows.mean(0)
    s = LIT[labels] - LIT[labels].mean(0)
    weight = 10**exponent * (s**2).mean() / (x**2).mean()
    wanted = solve_sylvester(s.T @ s, weight * (x.T @ x), (1 + weight) * s.T @ x)
    assert np.abs(model["encoder"].numpy() - wanted).max() < 1e-4 * np.abs(wanted).max()
    np.testing.assert_allclose(model["centre"], rows.mean(0), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(model["middle"], LIT[labels].mean(0), rtol=1e-6)


def test_digits_described_by_segments_are_told_apart_better_than_by_ridge_regression():
    """All pairs of digits that can be left out."""
    rows, labels = load_digits(return_X_y=True)
    right = {SAE: [], Ridge: []}
    for out in combinations(range(10), 2):
        unseen = np.isin(labels, out)
        for kind, accuracies in right.items():
            method, model, order = of_digits(kind, rows[~unseen], labels[~unseen])
            samples = torch.from_numpy(rows[unseen]).float()
            scores = method.scores(model, samples, method.semantics)[:, order[list(out)]]
            hit = np.array(out)[scores.argmax(1).numpy()] == labels[unseen]
            accuracies.append(np.mean([hit[labels[unseen] == digit].mean() for digit in out]))
    means = {kind: float(np.mean(accuracies)) for kind, accuracies in right.items()}
    assert means[SAE] > means[Ridge] + 0.015 > 0.63


def test_the_automatic_choice_can_be_it():
    rows, labels = load_digits(return_X_y=True)
    rows = rows[labels < 8]
    labels = labels[labels < 8]
    auto, model, _ = of_digits(Auto, rows, labels, form="sae")
    assert auto.choice(model) == {"form": "sae"}
    own, wanted, _ = of_digits(SAE, rows, labels)
    samples = torch.from_numpy(rows[:9]).float()
    scores = (
        one.scores(made, samples, own.semantics) for one, made in ((auto, model), (own, wanted))
    )
    torch.testing.assert_close(*scores, rtol=0, atol=0)


def test_sums_alone_choose_it():
    """Digits without 0 and 3, described by segments; both rivals lead over Gaussian classes."""
    rows, labels = load_digits(return_X_y=True)
    seen = ~np.isin(labels, [0, 3])
    auto, model, _ = of_digits(Auto, rows[seen], labels[seen])
    assert auto.choice(model) == {"form": "sae"}
