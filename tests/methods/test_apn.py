import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedunseen.core.errors import DataError
from fedunseen.encoders import Backbone
from fedunseen.methods.apn import APN, APNSettings

SHAPE = (12, 2, 4)


def method_of(space, shape=SHAPE, **settings):
    return APN(APNSettings(**settings), space, torch.from_numpy(space.semantics).float(), Backbone(shape))


def batch(shape=SHAPE, weights=(1.0, 1.0, 0.0, 1.0)):
    inputs = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    return {"inputs": inputs, "labels": torch.tensor([1, 3, 2, 1]), "weights": torch.tensor(weights)}


def params_of(method, scale=1000.0):
    """Draw parameters, large enough that every loss matters."""
    return {name: scale * (value - value.mean()) for name, value in method.init(np.random.default_rng(0)).items()}


@pytest.mark.parametrize("pool", ["max", "average"])
@pytest.mark.parametrize("grouped_norms", [False, True])
def test_the_loss_written_out(grouped, pool, grouped_norms):
    weights = {"sce": 0.9, "sce_p": 0.8, "mse": 0.7, "mse_p": 0.6, "groups_v": 0.5, "groups_p": 0.4, "compactness": 0.3}
    method = method_of(grouped, pool=pool, grouped=grouped_norms, **weights)
    p, b = params_of(method), batch()
    total, terms = method.loss(p, b, method.context())
    a, seen = torch.from_numpy(grouped.semantics).float(), [0, 1, 2, 3, 4]

    values = {name: [] for name in ("sce", "sce_p", "mse", "mse_p", "compactness")}
    for x, y in zip(b["inputs"][[0, 1, 3]], b["labels"][[0, 1, 3]], strict=True):
        answers = torch.stack([p["v"] @ x[:, r, c] for r in range(2) for c in range(4)])  # (cells, attributes)
        local = torch.stack([p["p"] @ x[:, r, c] for r in range(2) for c in range(4)])
        result = answers.max(0).values if pool == "max" else answers.mean(0)
        peaks = local.max(0).values
        for kind, item in (("", result), ("_p", peaks)):
            values[f"sce{kind}"].append(F.cross_entropy(a[seen] @ item, y))
            values[f"mse{kind}"].append(((item - a[y]) ** 2).mean())
        far = torch.tensor(0.0)
        for k, peak in enumerate(local.argmax(0).tolist()):
            for cell in range(8):
                distance = (cell // 4 - peak // 4) ** 2 + (cell % 4 - peak % 4) ** 2
                far = far + torch.sigmoid(local[cell, k]) * distance
        values["compactness"].append(far)
    expected = {name: torch.stack(of).mean() for name, of in values.items()}
    for name in ("v", "p"):
        parts = p[name].split(10) if grouped_norms else [p[name]]
        expected[f"groups_{name}"] = sum(torch.linalg.matrix_norm(part) for part in parts)
    expected["loss"] = sum(weights[name] * expected[name] for name in weights)
    terms.pop("representation")
    torch.testing.assert_close(terms, expected, rtol=1e-4, atol=1e-4)
    assert total is terms["loss"]


def test_attributes_without_a_group_are_refused(space):
    sentence = (
        "method.grouped needs every attribute in a group, but 0 of 30 are ('attribute 0' is not): give it a group in "
        "the class space, or set method.grouped = false, or method.groups_v = method.groups_p = 0"
    )
    with pytest.raises(DataError, match=f"^{re.escape(sentence)}$"):
        method_of(space)
    for settings in ({"grouped": False}, {"groups_v": 0, "groups_p": 0}):
        method = method_of(space, **settings)
        assert method.loss(params_of(method), batch(), method.context())[0].isfinite()


@pytest.mark.parametrize("classes", ["seen", "all", "local"])
def test_the_classes_of_the_softmax_are_a_named_choice(grouped, classes):
    method = method_of(grouped, sce_classes=classes, mse=0, mse_p=0, groups_v=0, groups_p=0, compactness=0, sce_p=0)
    context = {**method.context(), **method.client_context(np.array([1, 3]))}
    params, b = params_of(method), batch()
    part = {"seen": [0, 1, 2, 3, 4], "all": [0, 1, 2, 3, 4, 5, 6], "local": [1, 3]}[classes]
    kept = [0, 1, 3]
    logits = method.scores(params, b["inputs"][kept], method.semantics)[:, part]
    expected = F.cross_entropy(logits, torch.tensor([part.index(y) for y in b["labels"][kept].tolist()]))
    torch.testing.assert_close(method.loss(params, b, context)[0], expected)


@pytest.mark.parametrize("length", [1e-3, 1e4])
def test_maps_of_any_length_are_brought_to_one(grouped, length):
    """Scores are those of maps ten long; maps of a usual length stay as they are."""
    maps = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(0))
    maps /= maps.flatten(2).norm(dim=1).mean()
    result = []
    for factor in (10.0, length):
        method = method_of(grouped)
        method.resolve_defaults({}, factor * maps)
        result.append((method.settings.unit, method.scores(params_of(method), factor * maps, method.semantics)))
    assert result[0][0] == 1.0
    assert result[1][0] == pytest.approx(length / 10, rel=1e-5)
    torch.testing.assert_close(result[1][1], result[0][1], rtol=1e-4, atol=1e-5)
