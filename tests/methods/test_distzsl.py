import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from fedunseen.core.class_similarity import class_similarity
from fedunseen.core.errors import DataError
from fedunseen.encoders import Backbone
from fedunseen.methods.distzsl import DistZSL, DistZSLSettings

WIDTH = 12


def make(space, kind=DistZSL, **settings):
    semantics = torch.from_numpy(space.semantics).float()
    return kind(kind.Settings(**settings), space, semantics, Backbone((WIDTH,)))


def batch(weights=(1.0, 1.0, 0.0, 1.0)):
    generator = torch.Generator().manual_seed(0)
    return {
        "inputs": torch.randn(4, WIDTH, generator=generator),
        "labels": torch.tensor([1, 3, 2, 1]),
        "weights": torch.tensor(weights),
    }


def loss_of(method, params=None, b=None):
    params = method.init(np.random.default_rng(0)) if params is None else params
    return method.loss(params, b or batch(), method.context())


def test_the_loss_is_equation_9_written_out(grouped):
    settings = {"sce": 0.5, "kl": 3.0, "bilateral": 2.0, "decorrelation": 0.7}
    method = make(grouped, hidden=(7,), temperature=4.0, scale=1.5, **settings)
    p, b = method.init(np.random.default_rng(0)), batch()
    total, terms = loss_of(method, p, b)
    kept = b["weights"] > 0
    x, y = b["inputs"][kept], b["labels"][kept]
    features = torch.relu(x @ p["f.0.weight"].T + p["f.0.bias"])
    predicted = features @ p["g.weight"].T + p["g.bias"]
    z = 1.5 * predicted @ torch.from_numpy(grouped.semantics).float().T
    seen = [0, 1, 2, 3, 4]
    gamma = torch.from_numpy(class_similarity(grouped.semantics[[0, 1, 2, 3, 4, 5, 6]])).float()[y][:, seen]
    target, log_p = torch.softmax(gamma / 4, 1), torch.log_softmax(z[:, seen] / 4, 1)
    expected = {
        "sce": F.cross_entropy(z[:, seen], y),
        "kl": 16 * (target * (target.log() - log_p)).sum(1).mean(),
        "bilateral": torch.linalg.vector_norm(predicted @ p["h.weight"].T + p["h.bias"] - features, dim=1).mean(),
        "decorrelation": sum(predicted[:, i : i + 10].norm(dim=1) for i in (0, 10, 20)).mean(),
    }
    expected["loss"] = sum(settings[name] * expected[name] for name in settings)
    assert torch.equal(terms.pop("representation")[kept], features)
    torch.testing.assert_close(terms, expected, rtol=1e-4, atol=1e-5)
    assert total is terms["loss"]


@pytest.mark.parametrize(
    ("groups", "covered", "example"),
    [({}, 0, "attribute 0"), ({"size": (0, 1, 2), "colour": tuple(range(4, 30))}, 29, "attribute 3")],
)
def test_attributes_without_a_group_are_refused(space, groups, covered, example):
    sentence = (
        f"method.decorrelation needs every attribute in a group, but {covered} of 30 are ('{example}' is not): "
        "give it a group in the class space, or set method.decorrelation = 0"
    )
    with pytest.raises(DataError, match=f"^{re.escape(sentence)}$"):
        make(replace(space, attribute_groups=groups))


def test_without_any_loss_there_is_nothing_to_learn():
    with pytest.raises(ValidationError) as error:
        DistZSLSettings(sce=0, kl=0, bilateral=0)
    (result,) = error.value.errors()
    assert str(result["ctx"]["error"]) == (
        "sce, kl and bilateral are all 0, so that there is nothing to learn: give one a weight"
    )
