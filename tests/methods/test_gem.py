import numpy as np
import torch
import torch.nn.functional as F

from fedunseen.encoders import Backbone
from fedunseen.methods.gem import GEM, GEMSettings

SHAPE = (12, 2, 4)


def method_of(space, **settings):
    return GEM(GEMSettings(**settings), space, torch.from_numpy(space.semantics).float(), Backbone(SHAPE))


def batch(weights=(1.0, 1.0, 0.0, 1.0)):
    inputs = torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(0))
    return {"inputs": inputs, "labels": torch.tensor([1, 3, 2, 1]), "weights": torch.tensor(weights)}


def params_of(method):
    return method.init(np.random.default_rng(0))


def test_the_loss_written_out(grouped, tmp_path):
    vectors = np.random.default_rng(1).normal(size=(30, 5)).astype(np.float32)
    np.save(tmp_path / "words.npy", vectors)
    weights = {"sce": 0.9, "regression": 0.8, "decorrelation": 0.7, "compactness": 0.6}
    method = method_of(grouped, scale=7.0, words=str(tmp_path / "words.npy"), **weights)
    p, b = params_of(method), batch()
    assert {name: tuple(value.shape) for name, value in p.items()} == {"v": (30, 12), "w": (5, 12)}
    total, terms = method.loss(p, b, method.context())
    a, seen = torch.from_numpy(grouped.semantics).float(), [0, 1, 2, 3, 4]
    words = torch.from_numpy(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    queries = words @ p["w"]

    values = {"sce": [], "regression": [], "compactness": []}
    for x, y in zip(b["inputs"][[0, 1, 3]], b["labels"][[0, 1, 3]], strict=True):
        cells = torch.stack([x[:, r, c] for r in range(2) for c in range(4)])
        scores = 7 * F.cosine_similarity(p["v"] @ cells.mean(0), a[seen], dim=1)
        values["sce"].append(F.cross_entropy(scores, y))
        attention = torch.softmax(cells @ queries.T, 0)  # (cells, attributes)
        values["regression"].append(((attention.max(0).values - a[y]) ** 2).mean())
        far = []
        for k, peak in enumerate(attention.argmax(0).tolist()):
            for cell in range(8):
                distance = (cell // 4 - peak // 4) ** 2 + (cell % 4 - peak % 4) ** 2
                far.append(attention[cell, k] * distance)
        values["compactness"].append(torch.stack(far).mean())
    expected = {name: torch.stack(of).mean() for name, of in values.items()}
    expected["decorrelation"] = torch.stack([queries[i : i + 10].norm(dim=0) for i in (0, 10, 20)]).mean()
    expected["loss"] = sum(weights[name] * expected[name] for name in weights)
    terms.pop("representation")
    torch.testing.assert_close(terms, expected, rtol=1e-4, atol=1e-5)
    assert total is terms["loss"]


def test_scores_do_not_depend_on_how_strong_features_semantics_or_filters_are(grouped):
    method = method_of(grouped)
    params, x = params_of(method), batch()["inputs"]
    scores = method.scores(params, x, method.semantics)
    assert scores.abs().max() <= 20
    stronger = method.scores({**params, "v": 3 * params["v"]}, 7 * x, 0.1 * method.semantics)
    torch.testing.assert_close(stronger, scores)
    torch.testing.assert_close(method.attributes(params, x).norm(dim=1), torch.ones(4))


def test_without_attention_neither_words_nor_groups_are_needed(space):
    method = method_of(space, regression=0, decorrelation=0, compactness=0, words="nowhere/at-all.npy")
    params = params_of(method)
    assert set(params) == {"v"}
    assert set(method.loss(params, batch(), method.context())[1]) == {"loss", "sce", "representation"}


def test_a_longer_v_is_turned_as_far_by_one_step(grouped):
    """The rate that is left to the data, against the angle that a step of it turns V by."""
    angles = []
    for times in (1.0, 8.0):
        method = method_of(grouped, regression=0, decorrelation=0, compactness=0)
        params = {"v": times * params_of(method)["v"]}
        method.resolve_defaults(params, batch()["inputs"])
        v = params["v"].clone().requires_grad_()
        loss, _ = method.loss({"v": v}, batch(), method.context())
        (gradient,) = torch.autograd.grad(loss, v)
        angles.append(method.settings.lr * gradient.norm() / v.norm())
    torch.testing.assert_close(angles[0], angles[1])
    assert 0.001 < angles[0] < 0.1


def test_the_rate_of_a_trained_encoder_and_one_that_is_given_stay(grouped):
    given = method_of(grouped, lr=0.3)
    given.resolve_defaults(params_of(given), batch()["inputs"])
    assert given.settings.lr == 0.3
    trained = method_of(grouped, lr="auto")
    trained.backbone.trained = True
    trained.resolve_defaults(params_of(trained), batch()["inputs"])
    assert trained.settings.lr == 0.01
