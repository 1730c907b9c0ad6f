"""Generative methods: losses from the papers' equations in NumPy, one sample after the other;
classifiers; text.

The slope of the critic, which its penalty is about, is taken by differences.
"""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import expit as sigmoid
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from fedunseen.core.errors import ExperimentError
from fedunseen.core.phases import Adam
from fedunseen.encoders.backbone import Backbone
from fedunseen.encoders.text import embed_texts
from fedunseen.methods import CLSWGAN, FREE, VAEGAN, Candidates, generative
from fedunseen.methods.generative import softmax_head
from refusals import message_of

WIDTH, NOISE, SCALE, HELD = 6, 3, 1.7, [0, 1, 3]
KEPT = [0, 1, 3, 4]  # the samples of a batch that count


def make(kind, space, **settings):
    chosen = kind.Settings(**{"hidden": 9, "output": "linear", **settings})
    return kind(chosen, space, torch.from_numpy(space.semantics), Backbone((WIDTH,)))


class Written:
    """A method, a batch, and the networks as functions of one sample."""

    def __init__(self, kind, space, **settings):
        self.method = make(kind, space, noise=NOISE, condition_scale=SCALE, **settings)
        rng = np.random.default_rng(4)
        # as drawn, all would be near zero
        self.params = {
            n: torch.as_tensor(0.4 * rng.normal(size=v.shape))
            for n, v in self.method.init(rng).items()
        }
        shapes = self.method.draw_shapes()
        self.labels = np.array([0, 1, 3, 3, 0])
        self.batch = {
            name: torch.from_numpy(rng.random((5, *shape))) for name, shape in shapes.items()
        } | {
            "inputs": torch.from_numpy(rng.normal(size=(5, WIDTH))),
            "labels": torch.from_numpy(self.labels),
            "weights": torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0]).double(),
        }
        self.context = self.method.context() | self.method.client_context(np.array(HELD))
        self.semantics = space.semantics
        self.attributes = SCALE * space.semantics[self.labels]

    def real(self, i):
        return self.batch["inputs"][i].numpy()

    def drawn(self, name, i):
        return self.batch[name][i].numpy()

    def linear(self, name, x):
        return self.params[f"{name}.weight"].numpy() @ x + self.params[f"{name}.bias"].numpy()

    def generate(self, noise, i):
        return self.linear(
            "generator.1", leaky(self.linear("generator.0", np.r_[noise, self.attributes[i]]))
        )

    def critic(self, x, i):
        return self.linear(
            "critic.1", leaky(self.linear("critic.0", np.r_[x, self.attributes[i]]))
        ).item()

    def penalty(self, fake, i):
        """(|slope of D| - 1)^2 between a real feature and a generated one."""
        u = float(self.drawn("critic.mix", i))
        between = u * self.real(i) + (1 - u) * fake
        steps = 1e-6 * np.eye(WIDTH)
        slope = [
            (self.critic(between + step, i) - self.critic(between - step, i)) / 2e-6
            for step in steps
        ]
        return (np.linalg.norm(slope) - 1) ** 2

    def posterior(self, i):
        hidden = np.r_[self.real(i), self.attributes[i]]
        for layer in ("encoder.0", "encoder.1"):
            hidden = leaky(self.linear(layer, hidden))
        return self.linear("encoder.mean", hidden), np.exp(
            0.5 * self.linear("encoder.logvar", hidden)
        )

    def decoded(self, phase, i):
        mean, deviation = self.posterior(i)
        return self.generate(mean + deviation * self.drawn(f"{phase}.noise", i), i)

    def check(self, name, rows):
        """Compare the value of the phase ``name`` and its terms with the mean of what each sample's
        should be.
        """
        expected = {term: float(np.mean([row[term] for row in rows])) for term in rows[0]}
        assert all(abs(term) > 1e-3 for term in expected.values())  # what is nothing proves nothing
        (phase,) = (phase for phase in self.method.phases() if phase.name == name)
        value, terms = phase.loss(self.params, self.batch, self.context)
        assert float(value) == pytest.approx(expected[name], rel=1e-6)
        found = {term: float(value) for term, value in terms.items() if term != "representation"}
        assert found == pytest.approx(expected, rel=1e-6)


def leaky(x):
    return np.where(x > 0, x, 0.2 * x)


@pytest.mark.parametrize(
    ("kind", "settings"), [(CLSWGAN, {}), (VAEGAN, {"gamma": 7.0}), (FREE, {"gamma": 7.0})]
)
def test_critic(space, kind, settings):
    """FZSL Eq. 1: the critic lowers gamma (E D(fake) - E D(real) + lambda E (|slope| - 1)^2)."""
    w, gamma = Written(kind, space, **settings), settings.get("gamma", 1.0)
    rows = []
    for i in KEPT:
        fake = (
            w.generate(w.drawn("critic.noise", i), i) if kind is CLSWGAN else w.decoded("critic", i)
        )
        row = {
            "wasserstein": w.critic(w.real(i), i) - w.critic(fake, i),
            "penalty": w.penalty(fake, i),
        }
        rows.append(
            row | {"critic": gamma * (-row["wasserstein"] + generative.PENALTY * row["penalty"])}
        )
    w.check("critic", rows)


def test_clswgan_generator_and_softmax(space):
    """FZSL Eq. 1: the generator lowers -E D(fake) + beta times the cross-entropy among the client's
    classes.
    """
    w = Written(CLSWGAN, space, beta=0.8)

    def cross_entropy(x, i):
        powers = np.exp(w.linear("softmax", x))
        return float(-np.log(powers[w.labels[i]] / powers[HELD].sum()))

    rows = []
    for i in KEPT:
        fake = w.generate(w.drawn("generator.noise", i), i)
        row = {"classification": cross_entropy(fake, i)}
        rows.append(row | {"generator": -w.critic(fake, i) + 0.8 * row["classification"]})
    w.check("generator", rows)
    w.check("softmax", [{"softmax": cross_entropy(w.real(i), i)} for i in KEPT])


def cycle(w, features, noise, i):
    """The weighted L1 distance of drawn attributes from the class's own: sum |r|^3 / |r|_2."""
    hidden = leaky(w.linear("refine.0", features))
    center, spread = np.split(w.linear("refine.1", hidden), 2)
    r = sigmoid(center + sigmoid(spread) * w.drawn(noise, i)) - w.semantics[w.labels[i]]
    return float(np.sum(np.abs(r) ** 3) / np.sqrt(np.sum(r**2)))


@pytest.mark.parametrize(("kind", "settings"), [(VAEGAN, {}), (FREE, {"cycle": 0.9})])
def test_the_generator_of_vaegan_and_free(space, kind, settings):
    """-log N(x; decoded, 1) but for a constant, KL(N(mean, deviation^2) || N(0, 1)), -gamma D, and
    FREE's cycle.
    """
    w = Written(kind, space, gamma=7.0, **settings)
    rows = []
    for i in KEPT:
        center, deviation = w.posterior(i)
        decoded = w.decoded("generator", i)
        reconstruction = 0.5 * np.sum((w.real(i) - decoded) ** 2)
        divergence = np.sum((center**2 + deviation**2 - 1) / 2 - np.log(deviation))
        row = {"reconstruction": reconstruction, "divergence": divergence}
        row["generator"] = reconstruction + divergence - 7.0 * w.critic(decoded, i)
        if kind is FREE:
            row["generated cycle"] = cycle(w, decoded, "generator.refine", i)
            row["generator"] += 0.9 * row["generated cycle"]
        rows.append(row)
    w.check("generator", rows)


@pytest.mark.parametrize("contrast", ["nearest", "random"])
def test_free_refinement(space, contrast):
    """SAMC, max(0, margin + g |mu - c_y|^2 - (1 - g) |mu - c_y'|^2), and the semantic cycle of real
    features.
    """
    w = Written(FREE, space, cycle=0.9, margin=2.0, balance=0.7, contrast=contrast)
    rows = []
    for i in KEPT:
        mu = np.split(w.linear("refine.1", leaky(w.linear("refine.0", w.real(i)))), 2)[0]
        far = [float(np.sum((mu - centre) ** 2)) for centre in w.params["centres.all"].numpy()]
        own = w.labels[i]
        other = min((c for c in HELD if c != own), key=lambda c: far[c])
        if contrast == "random":
            other = HELD[int(w.drawn("refine.other", i) * len(HELD))]
        samc, real = (
            max(0.0, 2.0 + 0.7 * far[own] - 0.3 * far[other]),
            cycle(w, w.real(i), "refine.noise", i),
        )
        rows.append({"samc": samc, "real cycle": real, "refine": 0.5 * samc + 0.9 * real})
    w.check("refine", rows)


def test_the_classifiers_of_free_see_the_feature_the_hidden_layer_and_the_predicted_attributes(
    space,
):
    w = Written(FREE, space)
    result = w.method.refine(w.params, w.batch["inputs"]).numpy()
    for i in range(5):
        hidden = leaky(w.linear("refine.0", w.real(i)))
        expected = np.r_[w.real(i), hidden, sigmoid(np.split(w.linear("refine.1", hidden), 2)[0])]
        np.testing.assert_allclose(result[i], expected, rtol=1e-9)


def test_a_turn_is_critic_steps_on_fresh_batches_and_one_of_the_generator(space):
    method, labels = (
        make(CLSWGAN, space, batch_size=16, critic_steps=3),
        np.zeros(40, dtype=np.int64),
    )
    plan = method.plan("", labels, 2, np.random.default_rng(0))
    assert plan.index.shape == (2 * 3 * 3, 16)  # 40 samples are three batches
    assert all(len(set(row)) == 16 for row in plan.index.tolist())  # no sample twice in a batch
    assert len(set(map(tuple, plan.index.tolist()))) == 18
    assert method.plan("", labels[:5], 1, np.random.default_rng(0)).weight.sum(1).tolist() == [
        5,
        5,
        5,
    ]
    free = make(FREE, space, critic_steps=2, batch_size=16)
    assert free.plan("", labels, 2, np.random.default_rng(0)).steps == 2 * 2 * 3 * 2


def test_draws_depend_on_the_step_alone(space):
    plan = make(CLSWGAN, space).plan("", np.zeros(70, dtype=np.int64), 1, np.random.default_rng(0))
    third, again = plan.draws(3), (plan.draws(0), plan.draws(3))[1]
    assert all(np.array_equal(third[name], again[name]) for name in third)
    other = np.stack([plan.draws(step)["critic.noise"] for step in range(plan.steps)])
    assert len(np.unique(other)) > other.size - 20  # hardly a number comes twice
    assert (other.mean(), other.std()) == pytest.approx((0, 1), abs=0.02)
    mix = np.concatenate([plan.draws(step)["critic.mix"] for step in range(plan.steps)])
    assert 0 <= mix.min() < 0.05 < 0.95 < mix.max() < 1
    assert not np.array_equal(third["critic.noise"], third["generator.noise"])


def test_the_classifier_reaches_what_scikit_learn_reaches():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 600)
    x = rng.normal(size=(3, 5))[y] + 0.8 * rng.normal(size=(600, 5))
    known = LogisticRegression(C=np.inf).fit(x, y)
    inputs, labels = torch.from_numpy(x).float(), torch.from_numpy(y)
    adam = Adam(0.05, (0.5, 0.999))
    weight, bias = softmax_head(
        inputs, labels, 3, adam, 150, 50, np.random.default_rng(1), torch.device("cpu")
    )
    assert (
        F.cross_entropy(inputs @ weight.T + bias, labels)
        < log_loss(y, known.predict_proba(x)) + 0.01
    )


def drawn(space, **settings):
    method = make(CLSWGAN, space, **settings)
    return method, method.init(np.random.default_rng(0))


def among(method, space):
    return Candidates(space.names, method.semantics.float(), space.seen, space.unseen)


def test_a_complete_model_tells_generated_features_apart(space):
    method, params = drawn(
        space, synthetic=60, synthetic_gzsl=40, head_epochs=60, condition_scale=8
    )
    params["generator.1.weight"] *= 20
    params["generator.0.weight"] *= 10
    whole = method.fit_heads(params, among(method, space), 3)
    assert set(whole) - set(params) == {"zsl.weight", "zsl.bias", "gzsl.weight", "gzsl.bias"}
    fresh = torch.cat([method.generated(params, among(method, space), c, 50, 99) for c in (5, 6)])
    right = torch.tensor([5] * 50 + [6] * 50)
    zsl = method.unseen_scores(whole, fresh, method.semantics).argmax(1)
    assert float((zsl == right).float().mean()) > 0.9
    assert set(zsl.tolist()) <= {5, 6}
    scores = method.scores(whole, fresh, method.semantics)
    assert float((scores[:, :7].argmax(1) == right).float().mean()) > 0.6
    assert (
        int(scores.argmax(1).max()) < 7
    )  # class 7 is neither seen nor unseen: nothing is ever taken for it


def test_more_features_begin_with_the_same_ones(space):
    method, params = drawn(space)
    few, many = (method.synthesise(params, among(method, space), 5, count, 1) for count in (4, 9))
    torch.testing.assert_close(many[:4], few)


def test_with_real_features_nothing_is_generated_for_seen_classes(space):
    method, params = drawn(space, synthetic=8, head_epochs=1)
    whole, asked = method.synthesise, []
    method.synthesise = lambda params, among, c, *more: (
        asked.append(c) or whole(params, among, c, *more)
    )
    method.fit_heads(params, among(method, space), 3, (torch.rand(40, WIDTH), torch.arange(40) % 4))
    assert asked == [5, 6, 5, 6]
    method.fit_heads(params, among(method, space), 3)
    assert asked[4:] == [5, 6, 0, 1, 2, 3, 4, 5, 6]


def test_text_is_given_to_the_generator_alone(space):
    method, params = drawn(space, text="minilm")
    torch.testing.assert_close(method.text.norm(dim=1), torch.ones(8))
    shapes = [
        value.shape
        for value in (method.text, params["generator.0.weight"], params["critic.0.weight"])
    ]
    assert shapes == [(8, 384), (9, 30 + 384 + 30), (9, WIDTH + 30)]
    labels = torch.tensor([5, 5, 6])
    batch = {"labels": labels, "g.noise": torch.zeros(3, 30), "g.text": torch.randn(3, 384)}
    result = method.condition(batch, {"semantics": method.semantics, "text": method.text}, "g")
    torch.testing.assert_close(
        result[:, 30:-30].float(), method.text[labels] + 0.1 * batch["g.text"]
    )
    torch.testing.assert_close(result[:, -30:], method.condition_scale * method.semantics[labels])


def test_a_prompt_may_name_the_strongest_attributes(space):
    class_level = make(CLSWGAN, space, text="minilm")
    fine = make(CLSWGAN, space, text="minilm", prompt="a photo of a {attribute} {class}.")
    assert fine.text.shape == class_level.text.shape
    assert 0.3 < float((fine.text * class_level.text).sum(1).mean()) < 0.99
    above = (space.semantics - space.semantics.mean(0)) / space.semantics.std(0, ddof=1)
    best = np.argsort(-above[2])[:5]
    expected = embed_texts([f"a photo of a attribute {i} class 2." for i in best], "minilm").mean(0)
    np.testing.assert_allclose(fine.text[2].numpy(), expected / np.linalg.norm(expected), atol=1e-5)


def test_attributes_are_as_long_as_the_noise_and_the_hidden_layer_is_twice_as_wide_as_the_features(
    space,
):
    method = make(CLSWGAN, space, noise=16, hidden=None)
    assert method.hidden == 2 * WIDTH
    assert method.condition_scale * np.linalg.norm(
        space.semantics[space.seen], axis=1
    ).mean() == pytest.approx(4.0)
    assert make(CLSWGAN, space, condition_scale=1.5).condition_scale == 1.5


def test_names_that_say_nothing_to_a_text_encoder_and_one_of_another_width_are_refused(space):
    for wrong, sentence in (
        ({2: "007."}, "the class '007.' has no word in its name for a text encoder: rename it"),
        ({2: "001.polar_bear", 5: "polar+bear"},
         "the classes '001.polar_bear' and 'polar+bear' are both 'polar bear' to a text encoder: "
         "rename one"),
        ({2: "Cat", 5: "cat"}, "the classes 'Cat' and 'cat' are both 'cat' to a text encoder: "
                               "rename one"),
    ):  # fmt: skip
        changed = [wrong.get(i, name) for i, name in enumerate(space.names)]
        assert message_of(drawn, replace(space, names=changed), text="minilm") == sentence
    assert "names no class" in message_of(
        drawn, space, error=ExperimentError, text="minilm", prompt="a photo."
    )
    for prompt in ("{class}{class}", "{attribute} {class} {attribute}"):
        assert "more than once: write it once" in message_of(
            drawn, space, error=ExperimentError, text="minilm", prompt=prompt
        )
    method, (_, params) = make(CLSWGAN, space), drawn(space, text="minilm")
    refusal = message_of(method.fit_heads, params, among(method, space), 0, error=ExperimentError)
    assert "gives 0 numbers a class, but the generator was trained with 384" in refusal


def test_features_that_the_generator_cannot_make(space):
    negative = torch.tensor([[-1.0, 1.0, 2.0, 3.0]])
    check = make(VAEGAN, space, output="sigmoid").check_inputs
    assert "lie in [-1, 3]: set data.features = ['min-max']" in message_of(
        check, negative, error=ExperimentError
    )
    assert "lie in [1, 3]" in message_of(check, negative.abs(), error=ExperimentError)
    with pytest.warns(UserWarning, match="25 % of the features are negative"):
        make(CLSWGAN, space, output="relu").check_inputs(negative)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(CLSWGAN, space, output="linear").check_inputs(negative)
        make(CLSWGAN, space, output="relu").check_inputs(negative.abs() / 4)
    with pytest.warns(UserWarning, match="some attributes are negative"):
        make(FREE, space, output="linear").check_inputs(negative)


def test_the_text_of_new_classes_is_embedded_once(space, monkeypatch):
    method, params = drawn(space, text="minilm", synthetic=3, head_epochs=1)
    whole, asked = generative.embed_classes, []
    monkeypatch.setattr(
        generative, "embed_classes", lambda *settings: asked.append(settings[0]) or whole(*settings)
    )
    method.fit_heads(
        params,
        Candidates([*space.names, "new"], torch.randn(9, 30), space.seen, np.array([5, 6, 8])),
        0,
    )
    assert len(asked) == 1
