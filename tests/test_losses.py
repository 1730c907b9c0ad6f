import pytest
import torch
import torch.nn.functional as F

from fedunseen.core.errors import ArgumentError
from fedunseen.losses import (
    consistency,
    kl_divergence,
    margin_loss,
    posterior_divergence,
    reconstruction,
    relation_distillation,
    semantic_cross_entropy,
)

KEPT = [0, 2, 3, 6]  # the classes of the denominator, of 7


def mask():
    return torch.zeros(7, dtype=torch.bool).index_fill(0, torch.tensor(KEPT), True)


def draw(*shape, seed=0, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


LABELS = torch.tensor([0, 2, 6, 3, 2])
ONES = torch.ones(5, dtype=torch.float64)
SOME = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64)


# Eq. 3


def test_semantic_cross_entropy_is_torchs_on_the_classes_of_the_denominator():
    logits = draw(5, 7)
    position = torch.tensor([KEPT.index(label) for label in LABELS])
    expected = F.cross_entropy(logits[:, KEPT], position)
    torch.testing.assert_close(semantic_cross_entropy(logits, LABELS, ONES, mask()), expected)


def test_semantic_cross_entropy_leaves_out_samples_of_weight_zero():
    logits, kept = draw(5, 7), SOME.bool()
    expected = F.cross_entropy(logits[kept], LABELS[kept])
    everything = torch.ones(7, dtype=torch.bool)
    torch.testing.assert_close(semantic_cross_entropy(logits, LABELS, SOME, everything), expected)


# Eqs. 5 and 6


@pytest.mark.parametrize("temperature", [0.5, 1.0, 10.0])
def test_relation_distillation_is_torchs_divergence(temperature):
    logits, rows = draw(5, 7), draw(5, 7, seed=1, scale=0.5)
    expected = temperature**2 * F.kl_div(
        F.log_softmax(logits[:, KEPT] / temperature, 1),
        F.softmax(rows[:, KEPT] / temperature, 1),
        reduction="batchmean",
    )
    torch.testing.assert_close(relation_distillation(logits, rows, ONES, mask(), temperature), expected)


@pytest.mark.parametrize("restricted", [False, True])
def test_relation_distillation_at_high_temperature_is_half_the_variance_over_classes(restricted):
    logits, rows = draw(5, 7), draw(5, 7, seed=1, scale=0.5)
    chosen = mask() if restricted else torch.ones(7, dtype=torch.bool)
    expected = 0.5 * (logits - rows)[:, chosen].var(1, unbiased=False).mean()
    loss = relation_distillation(logits, rows, ONES, chosen, 1e4)
    torch.testing.assert_close(loss, expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("temperature", [0.1, 10.0, 1e9])
def test_classes_outside_the_mask_have_no_influence_and_no_gradient(temperature):
    logits, rows = draw(5, 7), draw(5, 7, seed=1)
    others = torch.where(mask(), logits, draw(5, 7, seed=2, scale=100.0))
    other_rows = torch.where(mask(), rows, draw(5, 7, seed=3, scale=100.0))
    for loss in (
        lambda z, r: relation_distillation(z, r, ONES, mask(), temperature),
        lambda z, r: semantic_cross_entropy(z, LABELS, ONES, mask()),
    ):
        assert loss(logits, rows).item() == loss(others, other_rows).item()
        leaf = logits.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf, rows), leaf)
        assert torch.count_nonzero(gradient[:, ~mask()]) == 0
        assert torch.count_nonzero(gradient[:, mask()]) == 5 * len(KEPT)


# Eq. 7


def test_consistency_is_the_mean_euclidean_distance():
    generated = torch.tensor([[3.0, 4.0], [1.0, 1.0], [9.0, 9.0]])
    features = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    loss = consistency(generated, features, torch.tensor([1.0, 1.0, 0.0]))
    assert loss.item() == (5.0 + 0.0) / 2


def test_consistency_has_a_finite_gradient_where_the_distance_is_zero():
    generated = torch.tensor([[3.0, 4.0], [1.0, 1.0]], requires_grad=True)
    features = torch.tensor([[0.0, 0.0], [1.0, 1.0]], requires_grad=True)
    consistency(generated, features, torch.ones(2)).backward()
    expected = torch.tensor([[0.3, 0.4], [0.0, 0.0]])  # a unit vector over the two samples, and the subgradient 0
    torch.testing.assert_close(generated.grad, expected)
    torch.testing.assert_close(features.grad, -expected)


# all of them


def test_gradients_agree_with_finite_differences():
    logits, rows = draw(5, 7).requires_grad_(), draw(5, 7, seed=1).requires_grad_()
    generated, features = draw(5, 3).requires_grad_(), draw(5, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: semantic_cross_entropy(z, LABELS, SOME, mask()), logits)
    assert torch.autograd.gradcheck(lambda z, r: relation_distillation(z, r, SOME, mask(), 3.0), (logits, rows))
    assert torch.autograd.gradcheck(lambda v, f: consistency(v, f, SOME), (generated, features))


def losses_of(logits, rows, generated, features, weights):
    return [
        semantic_cross_entropy(logits, LABELS, weights, mask()),
        relation_distillation(logits, rows, weights, mask(), 10.0),
        consistency(generated, features, weights),
    ]


def test_samples_of_weight_zero_have_no_influence():
    tensors = [draw(5, 7), draw(5, 7, seed=1), draw(5, 3), draw(5, 3, seed=1)]
    changed = [torch.where(SOME.bool().unsqueeze(1), t, 1e3 * draw(*t.shape, seed=5)) for t in tensors]
    for loss, again in zip(losses_of(*tensors, SOME), losses_of(*changed, SOME), strict=True):
        assert loss.item() == again.item() > 0


def test_a_batch_whose_samples_are_all_dropped_has_loss_and_gradient_zero():
    leaves = [draw(5, 7), draw(5, 7, seed=1), draw(5, 3), draw(5, 3, seed=1)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    for loss in losses_of(*leaves, torch.zeros(5, dtype=torch.float64)):
        assert loss.item() == 0
        for gradient in torch.autograd.grad(loss, leaves, allow_unused=True):
            assert gradient is None or torch.count_nonzero(gradient) == 0


def test_losses_of_bfloat16_are_computed_in_float32():
    tensors = [t.to(torch.bfloat16) for t in (draw(5, 7), draw(5, 7, seed=1), draw(5, 3), draw(5, 3, seed=1))]
    exact = losses_of(*(t.double() for t in tensors), SOME)
    for loss, expected in zip(losses_of(*tensors, SOME.float()), exact, strict=True):
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(expected.item(), rel=1e-4)  # bfloat16 has steps of 1 / 256


def test_enormous_logits_give_finite_gradients():
    logits = (1e6 * draw(5, 7)).float().requires_grad_()
    rows = draw(5, 7, seed=1).float()
    loss = semantic_cross_entropy(logits, LABELS, ONES.float(), mask())
    loss = loss + relation_distillation(logits, rows, ONES.float(), mask(), 10.0)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()


# The library's face: defaults, and arguments that do not fit


def test_without_weights_and_mask_every_sample_and_every_class_counts():
    logits, rows, every = draw(5, 7), draw(5, 7, seed=1), torch.ones(7, dtype=torch.bool)
    torch.testing.assert_close(semantic_cross_entropy(logits, LABELS), F.cross_entropy(logits, LABELS))
    expected = relation_distillation(logits, rows, ONES, every, 10.0)  # the paper's temperature
    torch.testing.assert_close(relation_distillation(logits, rows), expected)
    generated, features = draw(5, 3), draw(5, 3, seed=1)
    torch.testing.assert_close(consistency(generated, features), (generated - features).norm(dim=1).mean())


def test_samples_that_broadcasting_would_combine_are_refused():
    with pytest.raises(ArgumentError) as caught:
        semantic_cross_entropy(torch.zeros(4, 3), torch.zeros(2, dtype=torch.int64))
    assert str(caught.value) == (
        "logits has the shape (4, 3) and labels (2,), which do not fit together: see the shapes that the documentation "
        "of this loss asks for"
    )
    with pytest.raises(ArgumentError, match=r"generated has the shape \(4, 3\) and features \(1, 3\), which"):
        consistency(torch.zeros(4, 3), torch.zeros(1, 3))
    with pytest.raises(ArgumentError, match=r"^temperature = 0: give a number above 0$"):
        relation_distillation(torch.zeros(1, 2), torch.zeros(1, 2), temperature=0)


def test_the_divergence_of_the_posterior_is_torchs():
    mean, logvar = draw(5, 4), draw(5, 4, seed=1)
    posterior = torch.distributions.Normal(mean, torch.exp(logvar / 2))
    expected = torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0)).sum(1)
    torch.testing.assert_close(posterior_divergence(mean, logvar, SOME), expected[SOME.bool()].mean())


# Between features, centres and answers: the losses of VAEGAN, FREE and FedFSL against torch's own


def test_reconstruction_is_torchs_binary_cross_entropy_and_half_its_squared_error():
    made, real = draw(5, 4).sigmoid(), draw(5, 4, seed=1).sigmoid()
    entropy = F.binary_cross_entropy(made, real, reduction="none").sum(1)
    torch.testing.assert_close(reconstruction(made, real, SOME, "sigmoid"), entropy[SOME.bool()].mean())
    error = F.mse_loss(made, real, reduction="none").sum(1) / 2
    torch.testing.assert_close(reconstruction(made, real, SOME, "linear"), error[SOME.bool()].mean())


@pytest.mark.parametrize("chosen", [None, torch.tensor([1, 0, 0, 6, 4])], ids=["nearest", "given"])
def test_the_margin_loss_compares_squared_distances_to_centres(chosen):
    means, centres = draw(5, 3), draw(7, 3, seed=1)
    terms = []
    for sample, label in enumerate(LABELS.tolist()):
        far = [(means[sample] - centre).square().sum().item() for centre in centres]
        others = [far[k] for k in KEPT if k != label]
        wrong = min(others) if chosen is None else far[chosen[sample]]
        terms.append(max(0.0, 1.5 + 0.3 * far[label] - 0.7 * wrong))
    assert min(terms) == 0 < max(terms)  # both sides of the hinge
    expected = torch.tensor([terms[i] for i in SOME.nonzero()], dtype=torch.float64).mean()
    found = margin_loss(means, centres, LABELS, mask(), 1.5, 0.3, chosen, SOME)
    torch.testing.assert_close(found, expected)


def test_the_divergence_of_two_answers_is_torchs():
    first, second = draw(5, 4), draw(5, 4, seed=1)
    expected = F.kl_div(second.log_softmax(1), first.softmax(1), reduction="none").sum(1)
    torch.testing.assert_close(kl_divergence(first, second, SOME), expected[SOME.bool()].mean())
