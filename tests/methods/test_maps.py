"""APN, GEM and MSDN on maps: their losses written out, and what their settings choose."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from on_space import KEPT, MAPS, SEEN, batch, check_loss, drawn, on, others
from pydantic import ValidationError

from fedunseen import losses
from fedunseen.methods import APN, GEM, MSDN
from fedunseen.methods.maps import word_vectors
from refusals import message_of


@pytest.fixture
def words(tmp_path):
    """A file of word vectors (30, 5) that are not of unit length."""
    path = tmp_path / "words.npy"
    np.save(path, np.random.default_rng(1).normal(size=(30, 5)).astype(np.float32))
    return path


@pytest.mark.parametrize("pool", ["max", "average"])
@pytest.mark.parametrize("grouped_norms", [False, True])
def test_the_loss_of_apn_written_out(grouped, pool, grouped_norms):
    weights = {
        "sce": 0.9,
        "sce_p": 0.8,
        "mse": 0.7,
        "mse_p": 0.6,
        "groups_v": 0.5,
        "groups_p": 0.4,
        "compactness": 0.3,
    }
    method = on(APN, grouped, pool=pool, grouped=grouped_norms, **weights)
    p, b, a = drawn(method), batch(MAPS), method.semantics
    x, y = b["inputs"][KEPT], b["labels"][KEPT]
    answers, local = (
        torch.stack([p[name] @ one.flatten(1) for one in x]) for name in ("v", "p")
    )  # (3, 30, cells)
    attributes, peaks = answers.amax(2) if pool == "max" else answers.mean(2), local.amax(2)
    expected = {"compactness": losses.compactness(local.sigmoid().reshape(3, 30, 2, 4))}
    for end, result in (("", attributes), ("_p", peaks)):
        expected |= {
            f"sce{end}": F.cross_entropy(result @ a[SEEN].T, y),
            f"mse{end}": F.mse_loss(result, a[y]),
        }
    for name in ("v", "p"):
        parts = p[name].split(10) if grouped_norms else [p[name]]
        expected[f"groups_{name}"] = sum(torch.linalg.matrix_norm(part) for part in parts)
    check_loss(method, p, b, expected, weights)


def test_the_loss_of_gem_written_out(grouped, words):
    weights = {"sce": 0.9, "regression": 0.8, "decorrelation": 0.7, "compactness": 0.6}
    method = on(GEM, grouped, scale=7.0, words=str(words), **weights)
    p, b, a = method.init(np.random.default_rng(0)), batch(MAPS), method.semantics
    assert {name: tuple(value.shape) for name, value in p.items()} == {"v": (30, 12), "w": (5, 12)}
    x, y = b["inputs"][KEPT].flatten(2), b["labels"][KEPT]
    queries = F.normalize(torch.from_numpy(np.load(words)), dim=1) @ p["w"]
    attention = torch.stack([torch.softmax(queries @ one, 1) for one in x])  # over cells
    cosines = torch.stack([F.cosine_similarity(p["v"] @ one.mean(1), a[SEEN], dim=1) for one in x])
    expected = {
        "sce": F.cross_entropy(7 * cosines, y),
        "regression": F.mse_loss(attention.amax(2), a[y]),
        "decorrelation": torch.stack([queries[i : i + 10].norm(dim=0) for i in (0, 10, 20)]).mean(),
        "compactness": losses.compactness(attention.reshape(3, 30, 2, 4)) / (30 * 8),
    }
    check_loss(method, p, b, expected, weights, atol=1e-5)


def attributes_of_msdn(p, maps):
    """Return the attributes of both sub-networks, map by map."""
    first, second = [], []
    for x in maps:
        cells = F.normalize(x.flatten(1), dim=0)  # (channels, cells)
        attention = torch.softmax(p["words"] @ p["visual.attend"] @ cells, 1)  # over cells
        first.append((attention * (p["words"] @ p["visual.score"] @ cells)).sum(1))
        attention = torch.softmax(p["words"] @ p["semantic.attend"] @ cells, 0)  # over attributes
        second.append((attention * (p["words"] @ p["semantic.score"] @ cells)).sum(1))
    return torch.stack(first), torch.stack(second)


def test_the_loss_of_msdn_written_out(space):
    weights = {"sce": 0.9, "calibration": 0.8, "distillation": 0.7}
    method = on(MSDN, space, **weights)
    p, b = drawn(method), batch(MAPS)
    y, a = b["labels"][KEPT], F.normalize(method.semantics, dim=1)[:7]  # class 7 takes no part
    z = [attributes @ a.T for attributes in attributes_of_msdn(p, b["inputs"][KEPT])]
    expected = {
        "sce": sum(F.cross_entropy(item, y) for item in z),
        "calibration": sum(-torch.softmax(item, 1)[:, [5, 6]].sum(1).mean().log() for item in z),
        "distillation": losses.jensen_shannon(*z) + losses.weighted_l1(*z),
    }
    check_loss(method, p, b, expected, weights)


def test_scores_of_msdn_fuse_both_sub_networks(space):
    method = on(MSDN, space, fusion=0.7)
    params, x = drawn(method), batch(MAPS)["inputs"]
    first, second = attributes_of_msdn(params, x)
    expected = 0.7 * first + 0.3 * second
    found = method.attributes(params, x), method.scores(params, x, others())
    wanted = expected, expected @ F.normalize(others(), dim=1).T
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_words_of_msdn_are_parameters_of_unit_length_and_every_parameter_comes_to_move(
    space, words
):
    """Three matrices start from zero: the last of them has a gradient once the others have
    moved.
    """
    method = on(MSDN, space, words=str(words))
    start = method.init(np.random.default_rng(0))
    assert start["words"].shape == (30, 5)
    torch.testing.assert_close(start["words"].norm(dim=1), torch.ones(30))
    assert start["visual.score"].std().item() == pytest.approx(1, abs=0.3)
    assert all(
        not start[name].any() for name in ("visual.attend", "semantic.score", "semantic.attend")
    )
    params = dict(start)
    gradient = torch.func.grad(lambda p: method.loss(p, batch(MAPS), method.context())[0])
    for _ in range(3):
        params = {name: params[name] - 0.1 * grad for name, grad in gradient(params).items()}
    assert all((params[name] - start[name]).abs().max() > 0 for name in params)


@pytest.mark.parametrize("classes", ["seen", "local"])
def test_self_calibration_needs_unseen_classes_in_the_softmax(space, classes):
    method = on(MSDN, space, sce_classes="seen", calibration=0)
    assert "calibration" not in method.loss(drawn(method), batch(MAPS), method.context())[1]
    sentence = (
        f"calibration = 0.1 has no effect with sce_classes = '{classes}', a softmax without the "
        "unseen classes: set calibration = 0, or sce_classes = 'all'"
    )
    with pytest.raises(ValidationError, match=sentence):
        MSDN.Settings(sce_classes=classes)


def test_scores_of_gem_do_not_depend_on_how_strong_features_semantics_or_filters_are(grouped):
    method = on(GEM, grouped)
    params, x = drawn(method), batch(MAPS)["inputs"]
    scores = method.scores(params, x, method.semantics)
    assert scores.abs().max() <= 20
    stronger = method.scores({**params, "v": 3 * params["v"]}, 7 * x, 0.1 * method.semantics)
    torch.testing.assert_close(stronger, scores)
    torch.testing.assert_close(method.attributes(params, x).norm(dim=1), torch.ones(4))


WITHOUT_ATTENTION = {"regression": 0, "decorrelation": 0, "compactness": 0}


def test_without_attention_gem_needs_neither_words_nor_groups(space):
    method = on(GEM, space, words="nowhere/at-all.npy", **WITHOUT_ATTENTION)
    assert set(method.init(np.random.default_rng(0))) == {"v"}
    assert set(method.loss(drawn(method), batch(MAPS), method.context())[1]) == {
        "loss",
        "sce",
        "representation",
    }


def test_a_longer_v_is_turned_as_far_by_one_step(grouped):
    """The rate that is left to the data, against the angle that a step of it turns V by."""
    angles = []
    for times in (1.0, 8.0):
        method = on(GEM, grouped, **WITHOUT_ATTENTION)
        v = times * drawn(method)["v"]
        method.resolve_defaults({"v": v}, batch(MAPS)["inputs"])
        gradient = torch.func.grad(
            lambda v, m=method: m.loss({"v": v}, batch(MAPS), m.context())[0]
        )(v)
        angles.append(method.settings.lr * gradient.norm() / v.norm())
    torch.testing.assert_close(angles[0], angles[1])
    assert 0.001 < angles[0] < 0.1


def test_the_rate_of_a_trained_encoder_and_one_that_is_given_stay(grouped):
    given, trained = on(GEM, grouped, lr=0.3), on(GEM, grouped, lr="auto")
    trained.backbone.trained = True
    for method in (given, trained):
        method.resolve_defaults(drawn(method), batch(MAPS)["inputs"])
    assert (given.settings.lr, trained.settings.lr) == (0.3, 0.01)


@pytest.mark.parametrize("length", [1e-3, 1e4])
def test_maps_of_any_length_are_brought_to_one(grouped, length):
    """Scores are those of maps ten long; maps of a usual length stay as they are."""
    maps = torch.rand(3, *MAPS, generator=torch.Generator().manual_seed(0))
    maps /= maps.flatten(2).norm(dim=1).mean()
    result = []
    for factor in (10.0, length):
        method = on(APN, grouped)
        method.resolve_defaults({}, factor * maps)
        result.append(
            (method.settings.unit, method.scores(drawn(method), factor * maps, method.semantics))
        )
    assert result[0][0] == 1.0
    assert result[1][0] == pytest.approx(length / 10, rel=1e-5)
    torch.testing.assert_close(result[1][1], result[0][1], rtol=1e-4, atol=1e-3)


def test_words_of_attributes_come_from_files_of_two_kinds(tmp_path, make_space):
    space = make_space(attribute_names=("left 0", "left_1", "right 0"))
    expected = F.normalize(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), dim=1)
    np.save(tmp_path / "v.npy", 2 * expected.numpy())
    (tmp_path / "v.txt").write_text("left 0 1\nright 4 5\n0 1 1\n1 3 3\n")
    for name in ("v.npy", "v.txt"):
        torch.testing.assert_close(word_vectors(str(tmp_path / name), space), expected)
    assert torch.equal(word_vectors("one-hot", space), torch.eye(3))
    np.save(path := tmp_path / "v.npy", np.ones((2, 5)))
    refusal = f"{path} has 2 vectors, but there are 3 attributes: give one for each"
    assert message_of(word_vectors, str(path), space) == refusal
