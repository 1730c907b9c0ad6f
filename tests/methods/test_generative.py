"""Generators, critics and classifiers against plain loops, closed forms and autograd."""

import warnings

import numpy as np
import pytest
import torch

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.phases import Adam
from fedunseen.encoders import Backbone
from fedunseen.methods import Candidates, generative
from fedunseen.methods.clswgan import CLSWGAN, CLSWGANSettings
from fedunseen.methods.free import FREE, FREESettings
from fedunseen.methods.generative import softmax_head
from fedunseen.methods.vaegan import VAEGAN, VAEGANSettings

WIDTH = 7


def make(kind, settings, space, **more):
    told = settings(hidden=11, **more)
    return kind(told, space, torch.from_numpy(space.semantics), Backbone((WIDTH,)))


def double(params):
    return {name: value.double() for name, value in params.items()}


def samples(space, count=40, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count)
    return torch.from_numpy(np.abs(rng.normal(size=(count, WIDTH)))), torch.from_numpy(labels)


def test_a_turn_is_critic_steps_on_fresh_batches_and_one_of_the_generator(space):
    method = make(CLSWGAN, CLSWGANSettings, space, batch_size=16, critic_steps=3)
    plan = method.plan("", np.zeros(40, dtype=np.int64), 2, np.random.default_rng(0))
    assert plan.index.shape == (2 * 3 * 3, 16)  # 40 samples are three batches
    assert all(len(set(row)) == 16 for row in plan.index.tolist())  # no sample twice in a batch
    assert len({tuple(row) for row in plan.index.tolist()}) == 18
    few = method.plan("", np.zeros(5, dtype=np.int64), 1, np.random.default_rng(0))
    assert few.weight.sum(1).tolist() == [5, 5, 5]


def test_draws_depend_on_the_step_alone(space):
    method = make(CLSWGAN, CLSWGANSettings, space)
    plan = method.plan("", np.zeros(70, dtype=np.int64), 1, np.random.default_rng(0))
    third, again = plan.draws(3), (plan.draws(0), plan.draws(3))[1]
    assert all(np.array_equal(third[name], again[name]) for name in third)
    other = np.stack([plan.draws(step)["critic.noise"] for step in range(plan.steps)])
    assert len(np.unique(other)) > other.size - 20  # hardly a number comes twice
    assert abs(other.mean()) < 0.02
    assert abs(other.std() - 1) < 0.02
    mix = np.concatenate([plan.draws(step)["critic.mix"] for step in range(plan.steps)])
    assert 0 <= mix.min() < 0.05
    assert 0.95 < mix.max() < 1
    assert not np.array_equal(third["critic.noise"], third["generator.noise"])


def test_the_classifier_reaches_what_scikit_learn_reaches():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 600)
    x = rng.normal(size=(3, 5))[y] + 0.8 * rng.normal(size=(600, 5))
    known = LogisticRegression(C=np.inf).fit(x, y)
    weight, bias = softmax_head(
        torch.from_numpy(x).float(), torch.from_numpy(y), 3, Adam(0.05, (0.5, 0.999)), 150, 50,
        np.random.default_rng(1), torch.device("cpu"),
    )  # fmt: skip
    ours = torch.log_softmax(torch.from_numpy(x).float() @ weight.T + bias, 1).numpy()
    theirs = np.log(known.predict_proba(x))
    rows = np.arange(600)
    assert -ours[rows, y].mean() < -theirs[rows, y].mean() + 0.01


def among(method, space):
    return Candidates(space.names, method.semantics.float(), space.seen, space.unseen)


def test_a_complete_model_tells_generated_features_apart(space):
    method = make(CLSWGAN, CLSWGANSettings, space, synthetic=60, synthetic_gzsl=40, head_epochs=60, condition_scale=8)
    params = method.init(np.random.default_rng(0))
    params["generator.1.weight"] *= 20
    params["generator.0.weight"] *= 10
    whole = method.fit_heads(params, among(method, space), 3)
    assert set(whole) - set(params) == {"zsl.weight", "zsl.bias", "gzsl.weight", "gzsl.bias"}
    fresh = torch.cat([method.generated(params, among(method, space), c, 50, 99) for c in (5, 6)])
    right = torch.tensor([5] * 50 + [6] * 50)
    zsl = method.unseen_scores(whole, fresh, method.semantics)
    assert float((zsl.argmax(1) == right).float().mean()) > 0.9
    assert float((method.scores(whole, fresh, method.semantics)[:, :7].argmax(1) == right).float().mean()) > 0.6
    # Class 7 is neither seen nor unseen: nothing is ever taken for it.
    assert int(method.scores(whole, fresh, method.semantics).argmax(1).max()) < 7
    assert set(zsl.argmax(1).tolist()) <= {5, 6}


def test_more_features_begin_with_the_same_ones(space):
    method = make(CLSWGAN, CLSWGANSettings, space)
    params = method.init(np.random.default_rng(0))
    few, many = (method.synthesise(params, among(method, space), 5, count, 1) for count in (4, 9))
    torch.testing.assert_close(many[:4], few)


def test_with_real_features_nothing_is_generated_for_seen_classes(space, monkeypatch):
    method = make(CLSWGAN, CLSWGANSettings, space, synthetic=8, head_epochs=1)
    params, asked = method.init(np.random.default_rng(0)), []
    whole = CLSWGAN.synthesise

    def synthesise(self, params, among, c, count, seed):
        asked.append(c)
        return whole(self, params, among, c, count, seed)

    monkeypatch.setattr(CLSWGAN, "synthesise", synthesise)
    inputs, labels = samples(space)
    method.fit_heads(params, among(method, space), 3, (inputs.float(), labels))
    assert asked == [5, 6, 5, 6]
    asked.clear()
    method.fit_heads(params, among(method, space), 3)
    assert asked == [5, 6, 0, 1, 2, 3, 4, 5, 6]


def test_text_is_given_to_the_generator_alone(space):
    method = make(CLSWGAN, CLSWGANSettings, space, text="minilm", text_scale=3.0)
    params = method.init(np.random.default_rng(0))
    assert method.text.shape == (8, 384)
    torch.testing.assert_close(method.text.norm(dim=1), torch.ones(8))
    assert params["generator.0.weight"].shape == (11, 30 + 384 + 30)
    assert params["critic.0.weight"].shape == (11, WIDTH + 30)
    labels = torch.tensor([5, 5, 6])
    batch = {"labels": labels, "g.noise": torch.zeros(3, 30), "g.text": torch.randn(3, 384)}
    told = method.condition(batch, {"semantics": method.semantics, "text": method.text}, "g")
    said = 3.0 * (method.text[labels] + 0.1 * batch["g.text"])
    torch.testing.assert_close(told[:, 30:-30].float(), said)
    torch.testing.assert_close(told[:, -30:], method.condition_scale * method.semantics[labels])


def test_a_prompt_may_name_the_strongest_attributes(space):
    class_level = make(CLSWGAN, CLSWGANSettings, space, text="minilm")
    fine = make(
        CLSWGAN, CLSWGANSettings, space, text="minilm", prompt="a photo of a {attribute} {class}.", text_attributes=2
    )
    assert fine.text.shape == class_level.text.shape
    assert 0.3 < float((fine.text * class_level.text).sum(1).mean()) < 0.99
    above = (space.semantics - space.semantics.mean(0)) / space.semantics.std(0, ddof=1)
    best = np.argsort(-above[2])[:2]
    from fedunseen.encoders.text import embed_texts

    expected = embed_texts([f"a photo of a attribute {i} class 2." for i in best], "minilm").mean(0)
    np.testing.assert_allclose(fine.text[2].numpy(), expected / np.linalg.norm(expected), atol=1e-5)


def test_attributes_are_as_long_as_the_noise(space):
    method = make(CLSWGAN, CLSWGANSettings, space, noise=16)
    lengths = method.condition_scale * np.linalg.norm(space.semantics[space.seen], axis=1)
    assert lengths.mean() == pytest.approx(4.0)
    assert make(CLSWGAN, CLSWGANSettings, space, condition_scale=1.5).condition_scale == 1.5


def test_an_encoder_of_another_width_is_told_apart(space):
    method = make(CLSWGAN, CLSWGANSettings, space)
    params = make(CLSWGAN, CLSWGANSettings, space, text="minilm").init(np.random.default_rng(0))
    with pytest.raises(ExperimentError, match=r"gives 0 numbers a class, but the generator was trained with 384"):
        method.fit_heads(params, among(method, space), 0)


def test_names_that_say_nothing_to_a_text_encoder(space):
    from dataclasses import replace

    names = list(space.names)
    for wrong, sentence in (
        ({2: "007."}, "the class '007.' has no word in its name for a text encoder: rename it"),
        ({2: "001.polar_bear", 5: "polar+bear"},
         "the classes '001.polar_bear' and 'polar+bear' are both 'polar bear' to a text encoder: rename one"),
        ({2: "Cat", 5: "cat"}, "the classes 'Cat' and 'cat' are both 'cat' to a text encoder: rename one"),
    ):  # fmt: skip
        changed = [wrong.get(i, name) for i, name in enumerate(names)]
        with pytest.raises(DataError) as error:
            make(CLSWGAN, CLSWGANSettings, replace(space, names=changed), text="minilm").init(np.random.default_rng(0))
        assert str(error.value) == sentence
    with pytest.raises(ExperimentError, match="names no class"):
        make(CLSWGAN, CLSWGANSettings, space, text="minilm", prompt="a photo.").init(np.random.default_rng(0))


def test_features_that_the_generator_cannot_make(space):
    negative = torch.tensor([[-1.0, 1.0, 2.0, 3.0]])
    with pytest.raises(ExperimentError, match=r"lie in \[-1, 3\]: set data.features = \['min-max'\]"):
        make(VAEGAN, VAEGANSettings, space).check_inputs(negative)
    with pytest.warns(UserWarning, match="25 % of the features are negative"):
        make(CLSWGAN, CLSWGANSettings, space).check_inputs(negative)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(CLSWGAN, CLSWGANSettings, space, output="linear").check_inputs(negative)
        make(CLSWGAN, CLSWGANSettings, space).check_inputs(negative.abs())
    with pytest.warns(UserWarning, match="some attributes are negative"):
        make(FREE, FREESettings, space, output="linear").check_inputs(negative)


@pytest.mark.parametrize(
    ("kind", "settings"), [(CLSWGAN, CLSWGANSettings), (VAEGAN, VAEGANSettings), (FREE, FREESettings)]
)
def test_models_that_are_alike_have_nothing_to_contrast(space, kind, settings):
    method = make(kind, settings, space, output="linear")
    params = double(method.init(np.random.default_rng(0)))
    inputs, labels = samples(space, 6)
    shapes, rng = method.draw_shapes(), np.random.default_rng(1)
    drawn = {name: torch.from_numpy(rng.random((6, *shape))) for name, shape in shapes.items()}
    batch = {"inputs": inputs, "labels": labels, "weights": torch.ones(6).double(), **drawn}
    context = {"semantics": method.semantics, "text": method.text, **method.client_context(np.arange(4))}
    _, terms = method.generator_loss(params, batch, context)
    other = method.contrast(params, batch, context)
    torch.testing.assert_close(terms.get("representation", other), other)
    assert other.shape == (6, WIDTH)


def test_the_text_of_new_classes_is_embedded_once(space, monkeypatch):
    method = make(CLSWGAN, CLSWGANSettings, space, text="minilm", synthetic=3, head_epochs=1)
    params, asked = method.init(np.random.default_rng(0)), []
    whole = generative.embed_classes
    monkeypatch.setattr(generative, "embed_classes", lambda *told: asked.append(told[0]) or whole(*told))
    more = Candidates([*space.names, "new"], torch.randn(9, 30), space.seen, np.array([5, 6, 8]))
    method.fit_heads(params, more, 0)
    assert len(asked) == 1
