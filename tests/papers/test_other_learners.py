"""Other people's learners against closed forms, and against one place that has all samples."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from sklearn.naive_bayes import GaussianNB

from fedunseen.partitions import iid, pccd
from fedunseen.research.peers import transductive, zero_shot
from fedunseen.research.peers.one_round import AFL, Fed3R, FedCGS, GaussianHeads, one_hot, size

X, Y = load_digits(return_X_y=True)
KEPT = X.std(0) > 0.5
X = X[:900, KEPT] / 16
Y = Y[:900]
CLASSES = 10


def scores(peer, parties, x=X):
    return peer.merge([peer.message(X[rows], Y[rows], CLASSES) for rows in parties])(x)


PEERS = [
    AFL(),
    FedCGS(),
    Fed3R(),
    Fed3R(1.0, 128, 1.0),
    GaussianHeads("naive"),
    GaussianHeads("linear"),
    GaussianHeads("quadratic", 0.3),
    GaussianHeads("quadratic", 0.3, 16),
]


@pytest.mark.parametrize("peer", PEERS, ids=repr)
def test_parties_without_a_shared_class_get_what_one_place_gets(peer):
    alone = scores(peer, [np.arange(len(X))])
    for parties in (pccd(Y, 5), iid(Y, 3)):
        assert np.abs(scores(peer, parties) - alone).max() <= 1e-7 * np.abs(alone).max()
    assert (alone.argmax(1) == Y).mean() > 0.85


def test_afl_is_least_squares_whatever_its_regularizer():
    expected = X @ np.linalg.lstsq(X, one_hot(Y, CLASSES), rcond=None)[0]
    for gamma in (0.1, 1.0, 10.0):
        assert scores(AFL(gamma), pccd(Y, 5)) == pytest.approx(expected, abs=1e-8)


def test_fed3r_is_ridge_regression_with_weights_of_unit_length():
    inner = np.linalg.inv(X.T @ X + 0.5 * np.eye(X.shape[1]))
    weight = inner @ X.T @ one_hot(Y, CLASSES)
    expected = X @ (weight / np.linalg.norm(weight, axis=0))
    assert scores(Fed3R(0.5), pccd(Y, 5)) == pytest.approx(expected)


def test_random_features_have_the_kernel_as_their_product():
    z = Fed3R(1.0, 20_000, 2.0).mapped(X[:20])
    apart = ((X[:20, None] - X[None, :20]) ** 2).sum(2)
    assert z @ z.T == pytest.approx(np.exp(-apart / 8), abs=0.04)


def test_the_linear_head_is_linear_discriminant_analysis():
    model = LinearDiscriminantAnalysis(solver="lsqr").fit(X, Y)
    ours = scores(FedCGS(), pccd(Y, 5)).argmax(1)
    assert (ours == model.predict(X)).all()


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("naive", GaussianNB(var_smoothing=0)),
        ("linear", LinearDiscriminantAnalysis(solver="lsqr")),
        ("quadratic", QuadraticDiscriminantAnalysis()),
    ],
)
def test_heads_are_scikit_learns(kind, model):
    ours = GaussianHeads(kind, 1e-9, 8)
    z = ours.mapped(X)
    named = scores(ours, pccd(Y, 5)).argmax(1)
    assert (named == model.fit(z, Y).predict(z)).mean() > 0.999


def test_the_size_counts_a_symmetric_matrix_by_its_triangle():
    assert size({"square": np.eye(3), "total": np.ones((2, 3))}) == 4 * (6 + 6)
    assert size({"squares": np.ones((5, 3, 3))}) == 4 * 30


RNG = np.random.default_rng(0)
SEMANTICS = RNG.standard_normal((12, 6))
TURN = RNG.standard_normal((6, 20))
LABELS = np.repeat(np.arange(12), 40)
SAMPLES = SEMANTICS[LABELS] @ TURN + 0.3 * RNG.standard_normal((480, 20))
SEEN = LABELS < 9


@pytest.mark.parametrize(
    "learn", [zero_shot.conse, zero_shot.devise, zero_shot.gfzsl], ids=lambda one: one.__name__
)
def test_unseen_classes_are_recognized_from_their_semantics(learn):
    fitted = learn(SAMPLES[SEEN], LABELS[SEEN], SEMANTICS)(SAMPLES)
    assert fitted.shape == (480, 12)
    named = 9 + fitted[~SEEN][:, 9:].argmax(1)
    assert (named == LABELS[~SEEN]).mean() > 0.6  # chance: 1 / 3


def test_gfzsl_keeps_the_moments_of_seen_classes():
    rows = SAMPLES[SEEN]
    fitted = zero_shot.gfzsl(rows, LABELS[SEEN], SEMANTICS)(rows)
    assert (fitted[:, :9].argmax(1) == LABELS[SEEN]).mean() > 0.95


def test_conse_of_one_neighbor_answers_with_the_class_nearest_to_it():
    fitted = zero_shot.conse(SAMPLES[SEEN], LABELS[SEEN], SEMANTICS, top=1)(SAMPLES[:40])
    unit = SEMANTICS / np.linalg.norm(SEMANTICS, axis=1, keepdims=True)
    assert fitted[0] == pytest.approx(unit @ unit[0])


def test_pools_move_means_as_far_as_their_anchors_let_them():
    means = np.array([[0.0, 0.0], [4.0, 0.0]])
    pool = np.concatenate([means[0] + [0.5, 0.5], means[1]]).reshape(2, 2).repeat(50, 0)
    flat = np.eye(2), np.zeros(2)
    for update in (
        lambda anchor: transductive.stata(pool, means, *flat, anchor),
        lambda anchor: transductive.adapt_bank(pool, means, *flat, anchor, 50),
    ):
        assert update(1e9) == pytest.approx(means, abs=1e-6)
        assert update(1e-9)[0] == pytest.approx([0.5, 0.5], abs=0.01)
        assert update(50.0)[0] == pytest.approx([0.25, 0.25], abs=0.01)
