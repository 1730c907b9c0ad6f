"""The losses of DistZSL, APN, GEM, MSDN and SVIP against loops that anybody can read."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedunseen import losses

KEPT = [0, 2, 3, 6]  # the classes of the softmax, of 7
UNSEEN = [3, 6]
SOME = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
ROWS = [0, 2, 3]  # the samples that are left


def mask(classes=KEPT):
    return torch.zeros(7, dtype=torch.bool).index_fill(0, torch.tensor(classes), True)


def draw(*shape, seed=0, scale=1.5):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


def softmax(values):
    powers = np.exp(values - values.max())
    return powers / powers.sum()


GROUPS = torch.tensor([[1, 0, 0, 1, 0], [0, 1, 1, 0, 0], [0, 0, 0, 0, 1]], dtype=torch.float32)


# DistZSL Eq. 4 and the other norms of groups


def test_decorrelation_sums_over_groups_and_averages_over_samples():
    attributes = draw(5, 5)
    expected = np.mean([sum(math.hypot(*row[g]) for g in ([0, 3], [1, 2], [4])) for row in attributes.numpy()[ROWS]])
    assert losses.decorrelation(attributes, GROUPS, SOME).item() == pytest.approx(expected)


def test_decorrelation_has_no_gradient_where_a_group_is_zero():
    attributes = torch.zeros(1, 5, dtype=torch.float64)
    attributes[0, 1] = 2.0
    attributes.requires_grad_()
    losses.decorrelation(attributes, GROUPS, torch.ones(1)).backward()
    assert attributes.grad.tolist() == [[0.0, 1.0, 0.0, 0.0, 0.0]]


# APN and GEM


def test_attribute_error_is_torchs_mean_squared_error():
    predicted, target = draw(5, 4), draw(5, 4, seed=1)
    expected = F.mse_loss(predicted[ROWS], target[ROWS])
    torch.testing.assert_close(losses.attribute_error(predicted, target, SOME), expected)


def test_compactness_counts_squared_distances_in_cells_to_the_peak():
    attention = draw(5, 3, 2, 4).exp()
    total = 0.0
    for sample in attention.numpy()[ROWS]:
        for one in sample:
            peak = np.unravel_index(one.argmax(), one.shape)
            for row in range(2):
                for column in range(4):
                    total += one[row, column] * ((row - peak[0]) ** 2 + (column - peak[1]) ** 2)
    assert losses.compactness(attention, SOME).item() == pytest.approx(total / len(ROWS))


# MSDN


def test_self_calibration_is_the_log_of_the_mean_unseen_mass():
    logits = draw(5, 7)
    masses = [softmax(row[KEPT])[[2, 3]].sum() for row in logits.numpy()[ROWS]]
    loss = losses.self_calibration(logits, mask(UNSEEN), SOME, mask())
    assert loss.item() == pytest.approx(-math.log(np.mean(masses)))


def test_self_calibration_stays_finite_without_samples():
    logits = draw(5, 7).requires_grad_()
    losses.self_calibration(logits, mask(UNSEEN), torch.zeros(5), mask()).backward()
    assert logits.grad.abs().sum() == 0


def test_jensen_shannon_is_the_mean_divergence_from_the_middle():
    first, second = draw(5, 7), draw(5, 7, seed=1)
    total = 0.0
    for z, other in zip(first.numpy()[ROWS], second.numpy()[ROWS], strict=True):
        p, q = softmax(z[KEPT]), softmax(other[KEPT])
        middle = (p + q) / 2
        total += (np.sum(p * np.log(p / middle)) + np.sum(q * np.log(q / middle))) / 2
    loss = losses.jensen_shannon(first, second, SOME, mask())
    assert loss.item() == pytest.approx(total / len(ROWS))


def test_weighted_l1_weighs_each_gap_with_its_square():
    first, second = draw(5, 7), draw(5, 7, seed=1)
    total = 0.0
    for z, other in zip(first.numpy()[ROWS], second.numpy()[ROWS], strict=True):
        gaps = (z - other)[KEPT]
        total += sum(gap**2 / math.sqrt(np.sum(gaps**2)) * abs(gap) for gap in gaps)
    loss = losses.weighted_l1(first, second, SOME, mask())
    assert loss.item() == pytest.approx(total / len(ROWS))


def test_weighted_l1_has_no_gradient_where_both_are_equal():
    z = draw(2, 7).requires_grad_()
    losses.weighted_l1(z, z.detach(), torch.ones(2), mask()).backward()
    assert torch.equal(z.grad, torch.zeros(2, 7, dtype=torch.float64))


def test_probability_distance_is_squared():
    first, second = draw(5, 7), draw(5, 7, seed=1)
    pairs = zip(first.numpy()[ROWS], second.numpy()[ROWS], strict=True)
    expected = np.mean([np.sum((softmax(z[KEPT]) - softmax(other[KEPT])) ** 2) for z, other in pairs])
    assert losses.probability_distance(first, second, SOME, mask()).item() == pytest.approx(expected)


# SVIP


def test_patch_cross_entropy_is_torchs():
    logits, labels = draw(5, 6), (draw(5, 6, seed=1) > 0).double()
    expected = F.binary_cross_entropy_with_logits(logits[ROWS], labels[ROWS])
    torch.testing.assert_close(losses.patch_cross_entropy(logits, labels, SOME), expected)


# Derivatives of all of them


DIFFERENTIATED = {
    "decorrelation": (lambda a: losses.decorrelation(a, GROUPS, SOME), [(5, 5)]),
    "group norms of a matrix": (lambda w: losses.group_norms(w.square().T, GROUPS).mean(), [(5, 3)]),
    "attribute error": (lambda a, b: losses.attribute_error(a, b, SOME), [(5, 3), (5, 3)]),
    "compactness": (lambda m: losses.compactness(m.sigmoid(), SOME), [(5, 2, 2, 3)]),
    "self-calibration": (lambda z: losses.self_calibration(z, mask(UNSEEN), SOME, mask()), [(5, 7)]),
    "jensen-shannon": (lambda z, w: losses.jensen_shannon(z, w, SOME, mask()), [(5, 7), (5, 7)]),
    "weighted l1": (lambda z, w: losses.weighted_l1(z, w, SOME, mask()), [(5, 7), (5, 7)]),
    "probability distance": (lambda z, w: losses.probability_distance(z, w, SOME, mask()), [(5, 7), (5, 7)]),
    "patch cross-entropy": (lambda z: losses.patch_cross_entropy(z, torch.ones(5, 4), SOME), [(5, 4)]),
}


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_the_derivative_agrees_with_finite_differences(name):
    loss, shapes = DIFFERENTIATED[name]
    arguments = [draw(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes)]
    assert torch.autograd.gradcheck(loss, arguments)


@pytest.mark.parametrize("name", sorted(set(DIFFERENTIATED) - {"compactness"}))  # the sigmoid before that one rounds
def test_in_half_precision_it_computes_in_float32(name):
    loss, shapes = DIFFERENTIATED[name]
    arguments = [draw(*shape, seed=i).bfloat16() for i, shape in enumerate(shapes)]
    expected = loss(*(argument.double() for argument in arguments))
    torch.testing.assert_close(loss(*arguments).double(), expected, rtol=0.01, atol=0)
