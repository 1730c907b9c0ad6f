"""Methods on vectors: their losses written out, and what their settings choose."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from on_space import KEPT, SEEN, batch, check_loss, drawn, on, others

from fedunseen.core.class_similarity import class_similarity
from fedunseen.methods import APN, Classifier, DistZSL, FedZSL
from fedunseen.methods.base import class_mask
from refusals import message_of


@pytest.mark.parametrize("kind", [FedZSL, DistZSL])
def test_the_loss_is_fedzsls_equation_8_or_distzsls_equation_9(grouped, kind):
    weights = {"sce": 0.5, "kl": 3.0}
    weights |= {"consistency": 2.0} if kind is FedZSL else {"bilateral": 2.0, "decorrelation": 0.7}
    method = on(kind, grouped, hidden=(7,), temperature=4.0, **weights)
    p, b = method.init(np.random.default_rng(0)), batch((12,))
    x, y, a = b["inputs"][KEPT], b["labels"][KEPT], method.semantics
    features = torch.relu(x @ p["f.0.weight"].T + p["f.0.bias"])
    predicted = features @ p["g.weight"].T + p["g.bias"]
    z = predicted @ a.T
    gamma = torch.from_numpy(class_similarity(grouped.semantics[[*SEEN, 5, 6]])).float()[y][:, SEEN]
    target, log_p = torch.softmax(gamma / 4, 1), torch.log_softmax(z[:, SEEN] / 4, 1)
    generated = (a[y] if kind is FedZSL else predicted) @ p["h.weight"].T + p["h.bias"]
    distance = torch.linalg.vector_norm(generated - features, dim=1).mean()
    expected = {
        "sce": F.cross_entropy(z[:, SEEN], y),  # the seen classes are numbered as they come
        "kl": 16 * (target * (target.log() - log_p)).sum(1).mean(),
    }
    if kind is FedZSL:
        expected["consistency"] = distance
    else:
        groups = sum(predicted[:, i : i + 10].norm(dim=1) for i in (0, 10, 20))
        expected |= {"bilateral": distance, "decorrelation": groups.mean()}
    representation = check_loss(method, p, b, expected, weights, atol=1e-5)
    torch.testing.assert_close(representation[KEPT], features)


@pytest.mark.parametrize(
    ("choice", "classes"), [("all", [*SEEN, 5, 6]), ("seen", SEEN), ("local", [1, 3])]
)
@pytest.mark.parametrize(("kind", "mask"), [(FedZSL, "sce_mask"), (APN, "mask")])
def test_the_classes_of_a_denominator_are_a_named_choice(grouped, kind, mask, choice, classes):
    assert (
        torch.nonzero(class_mask(choice, grouped, np.array([1, 3]))).flatten().tolist() == classes
    )
    method = on(kind, grouped, sce_classes=choice)
    own = method.client_context(np.array([1, 3]))
    assert set(own) == ({mask} if choice == "local" else set())
    context = method.context() | own
    assert torch.nonzero(context[mask]).flatten().tolist() == classes
    params, b = drawn(method), batch(method.backbone.shape)
    logits = method.scores(params, b["inputs"][KEPT], method.semantics)[:, classes]
    expected = F.cross_entropy(
        logits, torch.tensor([classes.index(y) for y in b["labels"][KEPT].tolist()])
    )
    torch.testing.assert_close(method.loss(params, b, context)[1]["sce"], expected)


def test_the_steepness_of_equation_3_is_that_of_two_classes_at_even_odds(space):
    """The largest eigenvalue of the Hessian, where it is largest: at probability 1/2 of each of the
    two classes.
    """
    two = replace(
        space,
        seen=np.array([0, 1]),
        unseen=np.array([5, 6]),
        validation=np.array([], dtype=np.int64),
    )
    method = on(FedZSL, two, sce=0.5, kl=0.0, consistency=1.0)
    logits = lambda predicted: predicted[None] @ method.semantics[:2].T  # noqa: E731
    hessian = torch.func.hessian(lambda p: 0.5 * F.cross_entropy(logits(p), torch.tensor([0])))(
        torch.zeros(30)
    )
    assert method.steepness() == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-5)


def test_scores_are_compatibilities_with_any_classes(space):
    method = on(FedZSL, space)
    p, x = drawn(method), batch((12,))["inputs"]
    expected = torch.einsum("na,ca->nc", F.linear(x, p["g.weight"], p["g.bias"]), others())
    torch.testing.assert_close(method.scores(p, x, others()), expected)


DECORRELATION = (
    "method.decorrelation needs every attribute in a group",
    "set method.decorrelation = 0",
)
GROUPED = (
    "method.grouped needs every attribute in a group",
    "set method.grouped = false, or method.groups_v = method.groups_p = 0",
)


@pytest.mark.parametrize(
    ("kind", "groups", "covered", "example", "words"),
    [
        (DistZSL, {}, 0, "attribute 0", DECORRELATION),
        (
            DistZSL,
            {"size": (0, 1, 2), "colour": tuple(range(4, 30))},
            29,
            "attribute 3",
            DECORRELATION,
        ),
        (APN, {}, 0, "attribute 0", GROUPED),
    ],
)
def test_attributes_without_a_group_are_refused(space, kind, groups, covered, example, words):
    found = f"{covered} of 30 are ('{example}' is not)"
    sentence = f"{words[0]}, but {found}: give it a group in the class space, or {words[1]}"
    assert message_of(on, kind, replace(space, attribute_groups=groups)) == sentence


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (DistZSL, {"decorrelation": 0}),
        (APN, {"grouped": False}),
        (APN, {"groups_v": 0, "groups_p": 0}),
    ],
)
def test_a_method_whose_losses_need_no_groups_goes_without(space, kind, settings):
    method = on(kind, space, **settings)
    assert method.loss(drawn(method), batch(method.backbone.shape), method.context())[0].isfinite()


def test_the_classifier_is_torchs_cross_entropy_over_all_classes_those_that_nobody_holds_too(space):
    method = on(Classifier, space, hidden=(5,))
    params, b = method.init(np.random.default_rng(0)), batch((12,))
    layers = torch.nn.Sequential(torch.nn.Linear(12, 5), torch.nn.ReLU(), torch.nn.Linear(5, 8))
    layers.load_state_dict(
        {name.replace("f.0", "0").replace("head", "2"): value for name, value in params.items()}
    )
    expected = {"loss": F.cross_entropy(layers(b["inputs"][KEPT]), b["labels"][KEPT])}
    expected["sce"] = expected["loss"]
    representation = check_loss(method, params, b, dict(expected), {"loss": 1})
    torch.testing.assert_close(representation, layers[:-1](b["inputs"]))
    torch.testing.assert_close(
        method.scores(params, b["inputs"], torch.ones(2, 30)), layers(b["inputs"])
    )
    leaves = {name: value.requires_grad_() for name, value in params.items()}
    method.loss(leaves, b, method.context())[0].backward()
    assert (
        leaves["head.bias"].grad[[0, 4, 5, 6, 7]] > 0
    ).all()  # a step lowers the outputs of classes nobody holds
