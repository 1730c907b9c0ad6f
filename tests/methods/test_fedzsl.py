import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedunseen.core.class_similarity import class_similarity
from fedunseen.encoders import Backbone
from fedunseen.methods.base import class_mask
from fedunseen.methods.fedzsl import FedZSL, FedZSLSettings

WIDTH = 12


def make(space, **settings):
    semantics = torch.from_numpy(space.semantics).float()
    return FedZSL(FedZSLSettings(**settings), space, semantics, Backbone((WIDTH,)))


def batch(weights=(1.0, 1.0, 0.0, 1.0)):
    generator = torch.Generator().manual_seed(0)
    return {
        "inputs": torch.randn(4, WIDTH, generator=generator),
        "labels": torch.tensor([1, 3, 2, 1]),
        "weights": torch.tensor(weights),
    }


def params_of(method, seed=0):
    return method.init(np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("settings", "shapes"),
    [
        ({}, {"g.weight": (30, 12), "g.bias": (30,), "h.weight": (12, 30), "h.bias": (12,)}),
        ({"consistency": 0}, {"g.weight": (30, 12), "g.bias": (30,)}),
        (
            {"hidden": (7,), "kl": 0},
            {"f.0.weight": (7, 12), "f.0.bias": (7,), "g.weight": (30, 7), "g.bias": (30,)}
            | {"h.weight": (7, 30), "h.bias": (7,)},
        ),
    ],
)  # fmt: skip
def test_parameters_are_f_g_and_h(space, settings, shapes):
    assert {name: tuple(value.shape) for name, value in params_of(make(space, **settings)).items()} == shapes


def test_the_loss_is_equation_8_written_out(space):
    method = make(space, hidden=(7,), sce=0.5, kl=3.0, consistency=2.0, temperature=4.0, scale=1.5)
    p, b = params_of(method), batch()
    total, terms = method.loss(p, b, method.context())
    kept = b["weights"] > 0
    x, y = b["inputs"][kept], b["labels"][kept]
    a = torch.from_numpy(space.semantics).float()
    features = torch.relu(x @ p["f.0.weight"].T + p["f.0.bias"])
    z = 1.5 * (features @ p["g.weight"].T + p["g.bias"]) @ a.T
    seen = [0, 1, 2, 3, 4]
    sce = F.cross_entropy(z[:, seen], y)  # the seen classes are numbered as they come
    gamma = torch.from_numpy(class_similarity(space.semantics[[0, 1, 2, 3, 4, 5, 6]])).float()[y][:, seen]
    target, log_p = torch.softmax(gamma / 4, 1), torch.log_softmax(z[:, seen] / 4, 1)
    kl = 16 * (target * (target.log() - log_p)).sum(1).mean()
    con = torch.linalg.vector_norm(a[y] @ p["h.weight"].T + p["h.bias"] - features, dim=1).mean()
    expected = {"sce": sce, "kl": kl, "consistency": con, "loss": 0.5 * sce + 3 * kl + 2 * con}
    torch.testing.assert_close(terms.pop("representation")[kept], features)
    torch.testing.assert_close(terms, expected, rtol=1e-4, atol=1e-5)
    assert total is terms["loss"]


@pytest.mark.parametrize(
    ("choice", "classes"), [("all", [0, 1, 2, 3, 4, 5, 6]), ("seen", [0, 1, 2, 3, 4]), ("local", [1, 3])]
)
def test_the_classes_of_a_denominator_are_a_named_choice(space, choice, classes):
    assert torch.nonzero(class_mask(choice, space, np.array([1, 3]))).flatten().tolist() == classes
    method = make(space, sce_classes=choice, kl_classes="seen")
    context = {**method.context(), **method.client_context(np.array([1, 3]))}
    assert torch.nonzero(context["sce_mask"]).flatten().tolist() == classes
    assert torch.nonzero(context["kl_mask"]).flatten().tolist() == [0, 1, 2, 3, 4]
    assert set(method.client_context(np.array([1, 3]))) == ({"sce_mask"} if choice == "local" else set())


def test_scores_are_compatibilities_with_any_classes(space):
    method = make(space, scale=2.0)
    p, x = params_of(method), batch()["inputs"]
    others = torch.randn(3, 30, generator=torch.Generator().manual_seed(1))
    expected = 2 * torch.einsum("na,ca->nc", F.linear(x, p["g.weight"], p["g.bias"]), others)
    torch.testing.assert_close(method.scores(p, x, others), expected)
