import numpy as np
import torch

from fedunseen.encoders import Backbone
from fedunseen.methods.closed_form.eszsl import ESZSL, ESZSLSettings

GAMMA, LAMBDA = 10.0**0.5, 10.0**-0.3


def problem(space):
    semantics = torch.from_numpy(space.semantics[:, :4]).float()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(25, 5, generator=generator)
    labels = torch.tensor([0, 1, 3, 4])[torch.randint(4, (25,), generator=generator)]  # no one holds class 2
    method = ESZSL(ESZSLSettings(log_gamma=0.5, log_lambda=-0.3), space, semantics, Backbone((5,)))
    return method, inputs, labels


def parts(method, inputs, labels):
    """X (n, d), S (C, a) and Y (n, C) in float64, over the classes that have samples."""
    classes = sorted(set(labels.tolist()))
    y = np.array([[1.0 if label == c else -1.0 for c in classes] for label in labels.tolist()])
    return inputs.double().numpy(), method.semantics[classes].double().numpy(), y


def test_the_solution_is_that_of_the_regularised_least_squares_problem(space):
    """|XVS' - Y|^2 + gamma |VS'|^2 + lambda |XV|^2 + gamma lambda |V|^2 is one least-squares problem in vec(V)."""
    method, inputs, labels = problem(space)
    x, s, y = parts(method, inputs, labels)
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


def test_scores_are_bilinear_and_separate_what_is_separable(space):
    method, _, _ = problem(space)
    labels = torch.tensor([0, 1, 3, 4]).repeat(10)
    inputs = torch.eye(5)[labels]
    v = method.solve(method.statistics(inputs, labels))
    scores = method.scores(v, inputs[:4], method.semantics)
    torch.testing.assert_close(scores, torch.einsum("nd,da,ca->nc", inputs[:4], v["v"], method.semantics))
    assert np.array([0, 1, 3, 4])[scores[:, [0, 1, 3, 4]].argmax(1)].tolist() == [0, 1, 3, 4]


def test_it_starts_from_no_sums_and_the_model_of_none_is_nothing(space):
    method, _, _ = problem(space)
    start = method.init(np.random.default_rng(0))
    assert not start["count"].any()
    assert torch.equal(method.solve(start)["v"], torch.zeros(5, 4))
