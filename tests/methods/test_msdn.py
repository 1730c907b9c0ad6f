import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from fedunseen import losses
from fedunseen.encoders import Backbone
from fedunseen.methods.msdn import MSDN, MSDNSettings

SHAPE = (12, 2, 4)


def method_of(space, **settings):
    return MSDN(MSDNSettings(**settings), space, torch.from_numpy(space.semantics).float(), Backbone(SHAPE))


def batch(weights=(1.0, 1.0, 0.0, 1.0)):
    inputs = torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(0))
    return {"inputs": inputs, "labels": torch.tensor([1, 3, 2, 1]), "weights": torch.tensor(weights)}


def params_of(method, seed=0):
    """Draw parameters, none of them zero."""
    rng = np.random.default_rng(seed)
    return {name: torch.from_numpy(rng.normal(size=value.shape)).float() for name, value in method.init(rng).items()}


def attributes_by_hand(p, x):
    """Return the attributes of both sub-networks, for one map."""
    cells = torch.stack([x[:, r, c] / x[:, r, c].norm() for r in range(2) for c in range(4)])  # (cells, channels)
    first, second = [], torch.zeros(len(p["words"]))
    for word in p["words"]:
        attention = torch.softmax(torch.stack([word @ p["visual.attend"] @ cell for cell in cells]), 0)
        first.append(sum(a * (word @ p["visual.score"] @ cell) for a, cell in zip(attention, cells, strict=True)))
    for cell in cells:
        attention = torch.softmax(p["words"] @ p["semantic.attend"] @ cell, 0)
        second = second + attention * (p["words"] @ p["semantic.score"] @ cell)
    return torch.stack(first), second


def test_the_loss_written_out(space):
    weights = {"sce": 0.9, "calibration": 0.8, "distillation": 0.7}
    method = method_of(space, **weights)
    p, b = params_of(method), batch()
    total, terms = method.loss(p, b, method.context())
    a = F.normalize(torch.from_numpy(space.semantics).float(), dim=1)[:7]  # class 7 takes no part
    kept = [0, 1, 3]
    both = [attributes_by_hand(p, x) for x in b["inputs"][kept]]
    z = [torch.stack([pair[i] for pair in both]) @ a.T for i in (0, 1)]
    y, everything, ones = b["labels"][kept], torch.ones(7, dtype=torch.bool), torch.ones(3)
    expected = {
        "sce": sum(F.cross_entropy(item, y) for item in z),
        "calibration": sum(-torch.softmax(item, 1)[:, [5, 6]].sum(1).mean().log() for item in z),
        "distillation": losses.jensen_shannon(*z, ones, everything) + losses.weighted_l1(*z, ones, everything),
    }
    expected["loss"] = sum(weights[name] * expected[name] for name in weights)
    terms.pop("representation")
    torch.testing.assert_close(terms, expected, rtol=1e-4, atol=1e-4)
    assert total is terms["loss"]


def test_scores_fuse_both_sub_networks(space):
    method = method_of(space, fusion=0.7)
    params, x = params_of(method), batch()["inputs"]
    expected = torch.stack([0.7 * first + 0.3 * second for first, second in (attributes_by_hand(params, m) for m in x)])
    torch.testing.assert_close(method.attributes(params, x), expected, rtol=1e-4, atol=1e-5)
    others = torch.randn(3, 30, generator=torch.Generator().manual_seed(1))
    scores = method.scores(params, x, others)
    torch.testing.assert_close(scores, expected @ F.normalize(others, dim=1).T, rtol=1e-4, atol=1e-5)


def test_words_are_parameters_of_unit_length_and_only_one_matrix_is_drawn(space, tmp_path):
    np.save(tmp_path / "words.npy", np.random.default_rng(1).normal(size=(30, 5)).astype(np.float32))
    params = method_of(space, words=str(tmp_path / "words.npy")).init(np.random.default_rng(0))
    assert params["words"].shape == (30, 5)
    torch.testing.assert_close(params["words"].norm(dim=1), torch.ones(30))
    assert params["visual.score"].std().item() == pytest.approx(1, abs=0.3)
    assert all(not params[name].any() for name in ("visual.attend", "semantic.score", "semantic.attend"))


def test_every_parameter_comes_to_move(space):
    """Three matrices start from zero: the last of them has a gradient once the others have moved."""
    method = method_of(space)
    start = method.init(np.random.default_rng(0))
    params = dict(start)
    gradient = torch.func.grad(lambda p: method.loss(p, batch(), method.context())[0])
    for _ in range(3):
        params = {name: params[name] - 0.1 * grad for name, grad in gradient(params).items()}
    assert all((params[name] - start[name]).abs().max() > 0 for name in params)


def test_self_calibration_needs_unseen_classes_in_the_softmax(space):
    assert "calibration" in method_of(space).loss(params_of(method_of(space)), batch(), method_of(space).context())[1]
    for settings in ({"sce_classes": "seen", "calibration": 0}, {"calibration": 0}):
        method = method_of(space, **settings)
        assert "calibration" not in method.loss(params_of(method), batch(), method.context())[1]
    for classes in ("seen", "local"):
        with pytest.raises(ValidationError) as error:
            MSDNSettings(sce_classes=classes)
        (result,) = error.value.errors()
        assert str(result["ctx"]["error"]) == (
            f"calibration = 0.1 has no effect with sce_classes = '{classes}', a softmax without the unseen classes: "
            "set calibration = 0, or sce_classes = 'all'"
        )
