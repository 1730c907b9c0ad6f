from dataclasses import replace

import numpy as np
import pytest
import torch
from on_space import on

from fedunseen.methods import ESZSL, Ridge

GAMMA, LAMBDA = 10.0**0.5, 10.0**-0.3
CLASSES = [0, 1, 3, 4]  # no one holds class 2


@pytest.fixture
def method(space):
    few = replace(
        space, semantics=space.semantics[:, :4], attribute_names=space.attribute_names[:4]
    )
    return on(ESZSL, few, (5,), log_gamma=0.5, log_lambda=-0.3)


def test_the_solution_is_that_of_the_regularised_least_squares_problem(method):
    """|XVS' - Y|^2 + gamma |VS'|^2 + lambda |XV|^2 + gamma lambda |V|^2 is one least-squares
    problem in vec(V).
    """
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(25, 5, generator=generator)
    labels = torch.tensor(CLASSES)[torch.randint(4, (25,), generator=generator)]
    x, s = inputs.double().numpy(), method.semantics[CLASSES].double().numpy()
    y = np.where(labels.numpy()[:, None] == CLASSES, 1.0, -1.0)
    i_d, i_a = np.eye(x.shape[1]), np.eye(s.shape[1])
    rows = np.vstack([  # vec is row by row, so that vec(XVS') = (X kron S) vec(V)
        np.kron(x, s), np.sqrt(GAMMA) * np.kron(i_d, s), np.sqrt(LAMBDA) * np.kron(x, i_a),
        np.sqrt(GAMMA * LAMBDA) * np.kron(i_d, i_a),
    ])  # fmt: skip
    target = np.concatenate([y.ravel(), np.zeros(len(rows) - y.size)])
    v = np.linalg.lstsq(rows, target, rcond=None)[0].reshape(x.shape[1], s.shape[1])
    solved = method.solve(method.statistics(inputs, labels))["v"]
    assert solved.dtype == torch.float32
    np.testing.assert_allclose(solved.numpy(), v, rtol=1e-4, atol=1e-6)


def test_scores_are_bilinear_and_separate_what_is_separable(method):
    labels = torch.tensor(CLASSES).repeat(10)
    inputs = torch.eye(5)[labels]
    v = method.solve(method.statistics(inputs, labels))
    scores = method.scores(v, inputs[:4], method.semantics)
    torch.testing.assert_close(
        scores, torch.einsum("nd,da,ca->nc", inputs[:4], v["v"], method.semantics)
    )
    assert scores[:, CLASSES].argmax(1).tolist() == [0, 1, 2, 3]


def test_it_starts_from_no_sums_and_the_model_of_none_is_nothing(method):
    start = method.init(np.random.default_rng(0))
    assert not start["count"].any()
    assert torch.equal(method.solve(start)["v"], torch.zeros(5, 4))


def test_ridge_regresses_centred_attributes_on_centred_features_and_scores_by_cosine(space):
    method, generator = on(Ridge, space, (5,), log_gamma=-0.5), torch.Generator().manual_seed(0)
    inputs = torch.randn(25, 5, generator=generator) + 2.0
    labels = torch.tensor(CLASSES)[torch.randint(4, (25,), generator=generator)]
    x, s = inputs.double().numpy(), method.semantics[labels].double().numpy()
    x, s, middle = x - x.mean(0), s - s.mean(0), s.mean(0)
    penalty = np.sqrt(10.0**-0.5 * (x**2).sum(0).mean()) * np.eye(5)
    v = np.linalg.lstsq(np.vstack([x, penalty]), np.vstack([s, np.zeros((5, 30))]), rcond=None)[0]
    solved = method.solve(method.statistics(inputs, labels))
    np.testing.assert_allclose(solved["v"].numpy(), v, rtol=1e-4, atol=1e-6)
    expected = torch.cosine_similarity(
        torch.from_numpy(x @ v)[:, None], method.semantics.double() - middle, dim=2
    )
    scores = method.scores(solved, inputs, method.semantics).double()
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)
