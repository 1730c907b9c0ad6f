"""Every loss against PyTorch's own or a loop that anybody can read, and what all losses have in
common.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedunseen import losses
from fedunseen.core.errors import ArgumentError
from fedunseen.losses import consistency, relation_distillation, semantic_cross_entropy
from known_names import refuses

KEPT = [0, 2, 3, 6]  # the classes of the softmax, of 7
MASK = torch.zeros(7, dtype=torch.bool).index_fill(0, torch.tensor(KEPT), True)
UNSEEN = torch.zeros(7, dtype=torch.bool).index_fill(0, torch.tensor([3, 6]), True)
LABELS = torch.tensor([0, 2, 6, 3, 2])
OTHERS = torch.tensor([1, 0, 0, 6, 4])
SOME = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
ROWS = [0, 2, 3]  # the samples that count
GROUPS = torch.tensor([[1, 0, 0, 1, 0], [0, 1, 1, 0, 0], [0, 0, 0, 0, 1]], dtype=torch.float32)


def draw(*shape, seed=0, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


CENTRES = draw(7, 3, seed=9)


def distilled(temperature):
    def reference(z, rows):
        log_p, target = (
            F.log_softmax(z[:, KEPT] / temperature, 1),
            F.softmax(rows[:, KEPT] / temperature, 1),
        )
        return temperature**2 * F.kl_div(log_p, target, reduction="batchmean")

    return Case(
        lambda z, r, w: relation_distillation(z, r, w, MASK, temperature),
        [(5, 7), (5, 7)],
        reference,
    )


def squared_distances_to_the_peak(attention):
    total = 0.0
    for one in attention.sigmoid().flatten(0, 1).numpy():
        peak = np.unravel_index(one.argmax(), one.shape)
        for row, column in np.ndindex(*one.shape):
            total += one[row, column] * ((row - peak[0]) ** 2 + (column - peak[1]) ** 2)
    return total / len(attention)


def from_the_middle(z, other):
    p, q = z[:, KEPT].softmax(1), other[:, KEPT].softmax(1)
    middle = (p + q) / 2
    return ((p * (p / middle).log()).sum(1) + (q * (q / middle).log()).sum(1)).mean() / 2


def each_gap_with_its_square(z, other):
    gaps = (z - other)[:, KEPT].abs()
    return (gaps**2 / gaps.norm(dim=1, keepdim=True) * gaps).sum(1).mean()


def hinge(chosen):
    def reference(means):
        terms = []
        for mean, label, other in zip(
            means, LABELS[ROWS].tolist(), OTHERS[ROWS].tolist(), strict=True
        ):
            far = [(mean - centre).square().sum().item() for centre in CENTRES]
            wrong = far[other] if chosen else min(far[k] for k in KEPT if k != label)
            terms.append(max(0.0, 1.5 + 0.3 * far[label] - 0.7 * wrong))
        assert min(terms) == 0 < max(terms)  # both sides of the hinge
        return np.mean(terms)

    others = OTHERS if chosen else None
    return Case(
        lambda m, w: losses.margin_loss(m, CENTRES, LABELS, MASK, 1.5, 0.3, others, w),
        [(5, 3)],
        reference,
    )


def posterior_reference(mean, logvar):
    posterior = torch.distributions.Normal(mean, torch.exp(logvar / 2))
    return (
        torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0))
        .sum(1)
        .mean()
    )


class Case(NamedTuple):
    """A loss of some arguments and weights, the arguments' shapes, and its value on samples that
    all count.
    """

    loss: Callable
    shapes: list[tuple[int, ...]]
    reference: Callable

    def arguments(self):
        return [draw(*shape, seed=i) for i, shape in enumerate(self.shapes)]


PAIR = [(5, 7), (5, 7)]
CASES = {
    "semantic cross-entropy": Case(
        lambda z, w: semantic_cross_entropy(z, LABELS, w, MASK),
        [(5, 7)],
        lambda z: F.cross_entropy(
            z[:, KEPT], torch.tensor([KEPT.index(label) for label in LABELS[ROWS]])
        ),
    ),
    **{f"relation distillation at {tau}": distilled(tau) for tau in (0.5, 1.0, 10.0)},
    "consistency": Case(consistency, [(5, 3), (5, 3)], lambda g, f: (g - f).norm(dim=1).mean()),
    "decorrelation": Case(
        lambda a, w: losses.decorrelation(a, GROUPS, w),
        [(5, 5)],
        lambda a: np.mean(
            [sum(math.hypot(*row[g]) for g in ([0, 3], [1, 2], [4])) for row in a.numpy()]
        ),
    ),
    "attribute error": Case(losses.attribute_error, [(5, 4), (5, 4)], F.mse_loss),
    "compactness": Case(
        lambda m, w: losses.compactness(m.sigmoid(), w),
        [(5, 3, 2, 4)],
        squared_distances_to_the_peak,
    ),
    "self-calibration": Case(
        lambda z, w: losses.self_calibration(z, UNSEEN, w, MASK),
        [(5, 7)],
        lambda z: -z[:, KEPT].softmax(1)[:, [2, 3]].sum(1).mean().log(),
    ),
    "jensen-shannon": Case(
        lambda z, o, w: losses.jensen_shannon(z, o, w, MASK), PAIR, from_the_middle
    ),
    "weighted l1": Case(
        lambda z, o, w: losses.weighted_l1(z, o, w, MASK), PAIR, each_gap_with_its_square
    ),
    "patch cross-entropy": Case(
        lambda z, w: losses.patch_cross_entropy(z, (draw(5, 6, seed=1) > 0).float(), w),
        [(5, 6)],
        lambda z: F.binary_cross_entropy_with_logits(z, (draw(5, 6, seed=1)[ROWS] > 0).double()),
    ),
    "reconstruction by a sigmoid": Case(
        lambda m, r, w: losses.reconstruction(m.sigmoid(), r.sigmoid(), w, "sigmoid"),
        [(5, 4), (5, 4)],
        lambda m, r: 4 * F.binary_cross_entropy(m.sigmoid(), r.sigmoid()),
    ),
    "reconstruction": Case(
        losses.reconstruction, [(5, 4), (5, 4)], lambda m, r: 2 * F.mse_loss(m, r)
    ),
    "divergence of the posterior": Case(
        losses.posterior_divergence, [(5, 4), (5, 4)], posterior_reference
    ),
    "margin to the nearest centre": hinge(chosen=False),
    "margin to a chosen centre": hinge(chosen=True),
    "divergence of answers": Case(
        losses.kl_divergence,
        [(5, 4), (5, 4)],
        lambda u, v: F.kl_div(v.log_softmax(1), u.softmax(1), reduction="batchmean"),
    ),
}
OF_LOGITS = [name for name, case in CASES.items() if case.shapes[0] == (5, 7)]
HALF = sorted(
    set(CASES) - {"compactness", "reconstruction by a sigmoid"}
)  # the sigmoid before these rounds
HALF = [
    name for name in HALF if not name.startswith(("margin", "divergence"))
]  # they compute in what they are given
each = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@each
def test_a_loss_is_its_reference_over_the_samples_that_count_which_are_all_without_weights(case):
    arguments, dropped = case.arguments(), ~SOME.bool()
    expected = case.reference(*[argument[ROWS] for argument in arguments])
    assert float(case.loss(*arguments, SOME)) == pytest.approx(float(expected), rel=1e-9)
    every = torch.ones(5, dtype=torch.float64)
    assert case.loss(*arguments, None).item() == pytest.approx(
        case.loss(*arguments, every).item(), rel=1e-12
    )
    changed = [argument.clone() for argument in arguments]
    for argument in changed:
        argument[dropped] = 5 * draw(*argument.shape, seed=5)[dropped]
    assert case.loss(*arguments, SOME).item() == case.loss(*changed, SOME).item() > 0


@each
def test_weights_are_relative_and_a_sample_of_weight_0_may_be_anything(case):
    arguments = case.arguments()
    one = torch.tensor([1.0, 0, 0, 0, 0], dtype=torch.float64)
    alone = case.loss(*arguments, one).item()
    assert case.loss(*arguments, 0.25 * one).item() == pytest.approx(alone, rel=1e-12)
    uneven = torch.tensor([0.5, 0.25, 0.125, 2.0, 1.0], dtype=torch.float64)
    value = case.loss(*arguments, uneven).item()
    assert case.loss(*arguments, 3 * uneven).item() == pytest.approx(value, rel=1e-12)
    if case is not CASES["self-calibration"]:  # a logarithm of a mean
        each_alone = [case.loss(*arguments, row).item() for row in torch.eye(5).double()]
        expected = np.average(each_alone, weights=uneven)
        assert value == pytest.approx(expected, rel=1e-9)
    arguments[0][~SOME.bool()] = torch.nan
    assert case.loss(*arguments, SOME).item() == case.loss(*case.arguments(), SOME).item()


def test_a_label_outside_the_mask_has_the_probability_0():
    logits, mask = torch.zeros(2, 3), torch.tensor([True, True, False])
    labels = torch.tensor([1, 2])
    assert semantic_cross_entropy(logits, labels, None, mask).item() == torch.inf
    first = torch.tensor([1.0, 0.0])
    assert semantic_cross_entropy(logits, labels, first, mask).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize(("logit", "expected"), [(20.0, 20.0), (50.0, 12 * math.log(10))])
def test_self_calibration_is_cut_at_a_mass_of_1e_12(logit, expected):
    logits = torch.tensor([[logit, 0.0]], dtype=torch.float64)
    loss = losses.self_calibration(logits, torch.tensor([False, True])).item()
    assert loss == pytest.approx(expected, abs=1e-6)


@each
def test_the_derivative_agrees_with_finite_differences_and_is_zero_where_no_sample_is_left(case):
    leaves = [argument.requires_grad_() for argument in case.arguments()]
    assert torch.autograd.gradcheck(lambda *given: case.loss(*given, SOME), leaves)
    nothing = case.loss(*leaves, torch.zeros(5, dtype=torch.float64))
    assert nothing.item() == 0
    assert not any(gradient.any() for gradient in torch.autograd.grad(nothing, leaves))


@pytest.mark.parametrize("name", HALF)
def test_in_half_precision_it_computes_in_float32(name):
    arguments = [argument.bfloat16() for argument in CASES[name].arguments()]
    loss = CASES[name].loss(*arguments, SOME.float())
    assert loss.dtype == torch.float32
    expected = CASES[name].loss(*(argument.double() for argument in arguments), SOME)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)  # bfloat16 has steps of 1 / 256


@pytest.mark.parametrize("name", OF_LOGITS)
def test_classes_outside_the_mask_have_no_influence_and_no_gradient(name):
    arguments, loss = CASES[name].arguments(), CASES[name].loss
    others = [
        torch.where(MASK, z, draw(5, 7, seed=2 + i, scale=100.0)) for i, z in enumerate(arguments)
    ]
    assert loss(*arguments, SOME).item() == loss(*others, SOME).item()
    arguments[0].requires_grad_()
    (gradient,) = torch.autograd.grad(loss(*arguments, None), arguments[0])
    assert torch.equal(gradient != 0, MASK.expand(5, 7))


def test_without_a_mask_every_class_counts_and_the_temperature_is_the_papers():
    logits, rows, every = draw(5, 7), draw(5, 7, seed=1), torch.ones(7, dtype=torch.bool)
    torch.testing.assert_close(
        semantic_cross_entropy(logits, LABELS), F.cross_entropy(logits, LABELS)
    )
    expected = relation_distillation(logits, rows, None, every, 10.0)
    torch.testing.assert_close(relation_distillation(logits, rows), expected)


def test_where_a_norm_has_no_derivative_the_gradient_is_zero():
    generated = torch.tensor([[3.0, 4.0], [1.0, 1.0]], requires_grad=True)
    consistency(generated, torch.tensor([[0.0, 0.0], [1.0, 1.0]])).backward()
    torch.testing.assert_close(generated.grad, torch.tensor([[0.3, 0.4], [0.0, 0.0]]))
    attributes = torch.tensor([[0.0, 2.0, 0.0, 0.0, 0.0]], requires_grad=True)
    losses.decorrelation(attributes, GROUPS).backward()
    assert attributes.grad.tolist() == [[0.0, 1.0, 0.0, 0.0, 0.0]]
    z = draw(2, 7).requires_grad_()
    losses.weighted_l1(z, z.detach(), None, MASK).backward()
    assert not z.grad.any()


def test_enormous_logits_and_a_client_with_one_class_that_has_no_wrong_centre_give_finite_gradients():
    logits = (1e6 * draw(5, 7)).float().requires_grad_()
    rows = draw(5, 7, seed=1).float()
    loss = semantic_cross_entropy(logits, LABELS, None, MASK) + relation_distillation(
        logits, rows, None, MASK, 10.0
    )
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()
    means, held = torch.randn(3, 4, requires_grad=True), torch.tensor([False, True, False])
    losses.margin_loss(means, torch.randn(3, 4), torch.tensor([1, 1, 1]), held, 2.0, 0.5).backward()
    assert bool(torch.isfinite(means.grad).all())


def test_arguments_that_broadcasting_would_combine_are_refused():
    fit = "which do not fit together: see the shapes that the documentation of this loss asks for"
    with refuses(f"logits has the shape (4, 3) and labels (2,), {fit}", ArgumentError):
        semantic_cross_entropy(torch.zeros(4, 3), torch.zeros(2, dtype=torch.int64))
    with refuses(f"generated has the shape (4, 3) and features (1, 3), {fit}", ArgumentError):
        consistency(torch.zeros(4, 3), torch.zeros(1, 3))
    with refuses("temperature = 0: give a number above 0", ArgumentError):
        relation_distillation(torch.zeros(1, 2), torch.zeros(1, 2), temperature=0)
