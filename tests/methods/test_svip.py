import numpy as np
import pytest
import torch
import torch.nn.functional as F
from on_space import KEPT, MAPS, SEEN, batch, check_loss, on, others
from pydantic import ValidationError

from fedunseen.encoders.backbone import Backbone
from fedunseen.methods.svip import HEADS, SVIP, rollout, transformer, transformer_init


def svip(space, **settings):
    """Return a method and its parameters."""
    method = on(SVIP, space, **{"width": 8, **settings})
    return method, method.init(np.random.default_rng(0))


def by_hand(p, maps):
    """Return tokens, the attributes that each patch predicts, attention, and the patch classifier's
    answers.
    """
    patches = maps.flatten(2).transpose(1, 2) @ p["embed.weight"].T + p["embed.bias"]
    tokens = torch.cat([p["first"].expand(len(maps), 1, -1), patches], 1) + p["positions"]
    out, attention = transformer(p, "layers", tokens, HEADS)
    hidden = torch.relu(tokens[:, 1:] @ p["patches.0.weight"].T + p["patches.0.bias"])
    judged = (hidden @ p["patches.1.weight"].T + p["patches.1.bias"])[..., 0]
    return tokens, out[:, 1:] @ p["g.weight"].T + p["g.bias"], attention, judged


def test_the_loss_written_out(grouped):
    weights = {"sce": 0.9, "kl": 50.0, "decorrelation": 0.7, "patches": 0.6}
    method, p = svip(grouped, keep=0.6, scale=3.0, temperature=2.0, **weights)
    b = batch(MAPS)
    p |= {name: 20 * value for name, value in p.items() if name.startswith(("fill.", "g."))}
    a = F.normalize(method.semantics, dim=1)[SEEN]
    vectors = (
        p["fill.words.weight"] @ torch.eye(30) + p["fill.words.bias"][:, None]
    )  # a one-hot word a column
    fill = vectors @ p["fill.block.weight"][0] + p["fill.block.bias"]
    tokens, answers, attention, judged = by_hand(p, b["inputs"][KEPT])
    matters = torch.zeros(3, 8, dtype=torch.bool)
    matters.scatter_(
        1, rollout(attention).argsort(descending=True)[:, :5], True
    )  # of 8, 0.6 rounded
    result = torch.stack(
        [answer[kept].mean(0) for answer, kept in zip(answers, matters, strict=True)]
    )
    changed = tokens.clone()
    changed[:, 1:][~matters] += fill
    again = transformer(p, "layers", changed, HEADS)[0][:, 1:] @ p["g.weight"].T + p["g.bias"]
    second = (
        torch.stack([answer[kept].mean(0) for answer, kept in zip(again, matters, strict=True)])
        @ a.T
    )
    z, y = result @ a.T, b["labels"][KEPT]
    expected = {
        "sce": F.cross_entropy(3 * z, y) + F.cross_entropy(3 * second, y),
        "kl": 4
        * F.kl_div(F.log_softmax(z / 2, 1), F.softmax(second / 2, 1), reduction="batchmean")
        / len(SEEN),
        "decorrelation": torch.stack(
            [result[:, i : i + 10].norm(dim=1) for i in (0, 10, 20)]
        ).mean(),
        "patches": F.binary_cross_entropy_with_logits(judged, (~matters).float()),
    }
    assert expected["kl"] > 1e-3
    check_loss(method, p, b, expected, weights, rtol=1e-3, atol=1e-5)


def test_scores_come_from_the_patches_that_the_patch_classifier_keeps(grouped):
    method, params = svip(grouped, keep=0.4)  # 3 of 8
    x = batch(MAPS)["inputs"]
    _, answers, _, judged = by_hand(params, x)
    expected = torch.stack(
        [item[j.argsort()[:3]].mean(0) for item, j in zip(answers, judged, strict=True)]
    )
    torch.testing.assert_close(method.attributes(params, x), expected, rtol=1e-4, atol=1e-5)
    scores = method.scores(params, x, others())
    torch.testing.assert_close(
        scores, 5 * expected @ F.normalize(others(), dim=1).T, rtol=1e-4, atol=1e-4
    )
    everything, _ = svip(grouped, patches=0, keep=0.4)
    torch.testing.assert_close(
        everything.attributes(params, x), answers.mean(1), rtol=1e-4, atol=1e-5
    )


def test_no_gradient_goes_through_the_choice_of_patches(grouped):
    """The patch classifier alone is moved by its loss; transformer and head are not, except through
    their inputs.
    """
    method, params = svip(grouped)
    grads = torch.func.grad(lambda p: method.loss(p, batch(MAPS), method.context())[1]["patches"])(
        params
    )
    assert grads["patches.0.weight"].abs().max() > 0
    assert all(
        not grads[name].any() for name in grads if name.startswith(("layers.", "g.", "fill."))
    )


class Tokens(Backbone):
    """A vision transformer of one layer whose patches are columns of pixels."""

    trained = True

    def __init__(self):
        super().__init__((6, 1, 4))

    def init(self, rng):
        layers = {
            f"f.{name}": value for name, value in transformer_init("layers", 6, 1, rng).items()
        }
        return {"f.first": torch.ones(1, 6), **layers}

    def __call__(self, params, inputs, training=False):
        out, _ = self.transform(params, self.tokens(params, inputs))
        return out[:, 1:].transpose(1, 2)[:, :, None]

    def tokens(self, params, inputs):
        return torch.cat([params["f.first"].expand(len(inputs), 1, -1), inputs.transpose(1, 2)], 1)

    def transform(self, params, tokens):
        return transformer(
            {name.removeprefix("f."): value for name, value in params.items()}, "layers", tokens, 2
        )


def test_a_trained_vision_transformer_is_used_in_the_place_of_its_own(grouped):
    method, params = svip(grouped, backbone=Tokens(), keep=1.0)
    assert not {"embed.weight", "first", "positions", "layers.norm.weight"} & set(params)
    assert params["g.weight"].shape == (30, 6)
    b = {**batch(MAPS), "inputs": torch.randn(4, 6, 4)}
    grads = torch.func.grad(lambda p: method.loss(p, b, method.context())[0])(params)
    assert all(grads[name].any() for name in ("f.first", "f.layers.0.qkv.weight", "g.weight"))
    means = method.backbone(params, b["inputs"]).mean((2, 3))
    found = method.represent(params, b["inputs"]), method.attributes(params, b["inputs"])
    torch.testing.assert_close(found, (means, means @ params["g.weight"].T + params["g.bias"]))


def test_heads_that_cannot_share_the_width_are_refused():
    with pytest.raises(ValidationError, match="should be a multiple of 4"):
        SVIP.Settings(width=10)


def test_a_layer_is_torchs_pre_norm_encoder_layer():
    params = transformer_init("t", 8, 2, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    params = {
        n: value + 0.1 * torch.from_numpy(rng.normal(size=value.shape)).float()
        for n, value in params.items()
    }
    tokens = torch.from_numpy(rng.normal(size=(3, 5, 8))).float()
    expected = tokens
    for i in range(2):
        layer = torch.nn.TransformerEncoderLayer(
            8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True
        )
        names = {
            "self_attn.in_proj_": "qkv.", "self_attn.out_proj.": "out.", "linear1.": "widen.", "linear2.": "narrow.",
            "norm1.": "norm1.", "norm2.": "norm2.",
        }  # fmt: skip
        pairs = [
            (torchs + kind, ours + kind)
            for torchs, ours in names.items()
            for kind in ("weight", "bias")
        ]
        layer.load_state_dict({torchs: params[f"t.{i}.{ours}"] for torchs, ours in pairs})
        normed = layer.norm1(expected)
        _, attention = layer.self_attn(normed, normed, normed)  # the mean over heads
        expected = layer(expected)
        torch.testing.assert_close(
            transformer(params, "t", tokens, 2)[1][i], attention, rtol=1e-4, atol=1e-5
        )
    expected = F.layer_norm(expected, (8,), params["t.norm.weight"], params["t.norm.bias"])
    torch.testing.assert_close(
        transformer(params, "t", tokens, 2)[0], expected, rtol=1e-4, atol=1e-5
    )


def test_rollout_multiplies_the_layers_from_the_input_up():
    first, second = (
        np.random.default_rng(seed).dirichlet(np.ones(4), size=(2, 4)) for seed in (0, 1)
    )
    expected = [
        ((b + np.eye(4)) / 2 @ ((a + np.eye(4)) / 2))[0, 1:]
        for a, b in zip(first, second, strict=True)
    ]
    rolled = rollout(torch.from_numpy(np.stack([first, second])))
    np.testing.assert_allclose(rolled.numpy(), np.stack(expected), rtol=1e-5)


def test_the_loss_agrees_with_finite_differences(grouped):
    method, params = svip(grouped)
    params, context, b = (
        {
            name: value.double() if value.is_floating_point() else value
            for name, value in values.items()
        }
        for values in (params, method.context(), batch(MAPS))
    )
    method.backbone = lambda p, inputs, training=False: inputs  # the real one makes float32
    names = ["first", "fill.words.bias", "patches.1.bias"]

    def loss(*values):
        return method.loss({**params, **dict(zip(names, values, strict=True))}, b, context)[0]

    assert torch.autograd.gradcheck(loss, [params[name].clone().requires_grad_() for name in names])
