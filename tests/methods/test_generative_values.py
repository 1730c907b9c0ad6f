"""Losses of the generative methods, calculated from the papers' equations in NumPy, one sample after the other.

The slope of the critic, which its penalty is about, is taken by differences.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.data import ClassSpace
from fedunseen.encoders import Backbone
from fedunseen.methods.clswgan import CLSWGAN
from fedunseen.methods.free import FREE
from fedunseen.methods.generative import Generative
from fedunseen.methods.vaegan import VAEGAN

WIDTH, NOISE, SCALE, HELD = 6, 3, 1.7, [0, 1, 3]
WEIGHTS = [1.0, 1.0, 0.0, 1.0, 1.0]
KEPT = [0, 1, 3, 4]


class Written:
    """A method, a batch, and the networks as functions of one sample."""

    def __init__(self, kind: type[Generative], space: ClassSpace, **settings: object) -> None:
        told = {"hidden": 9, "noise": NOISE, "condition_scale": SCALE, "output": "linear", **settings}
        self.method = kind(kind.Settings(**told), space, torch.from_numpy(space.semantics), Backbone((WIDTH,)))
        rng = np.random.default_rng(4)
        self.params: Params = {
            name: torch.as_tensor(0.4 * rng.normal(size=value.shape))  # as drawn, all would be near zero
            for name, value in self.method.init(rng).items()
        }
        drawn = {name: torch.from_numpy(rng.random((5, *shape))) for name, shape in self.method.draw_shapes().items()}
        self.labels = np.array([0, 1, 3, 3, 0])
        self.batch: dict[str, Tensor] = {
            "inputs": torch.from_numpy(rng.normal(size=(5, WIDTH))),
            "labels": torch.from_numpy(self.labels),
            "weights": torch.tensor(WEIGHTS).double(),
            **drawn,
        }
        self.context = self.method.context() | self.method.client_context(np.array(HELD))
        self.semantics = space.semantics
        self.attributes = SCALE * space.semantics[self.labels]

    def real(self, i: int) -> np.ndarray:
        return self.batch["inputs"][i].numpy()

    def drawn(self, name: str, i: int) -> np.ndarray:
        return self.batch[name][i].numpy()

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return self.params[f"{name}.weight"].numpy() @ x + self.params[f"{name}.bias"].numpy()

    def generate(self, noise: np.ndarray, i: int) -> np.ndarray:
        return self.linear("generator.1", leaky(self.linear("generator.0", np.r_[noise, self.attributes[i]])))

    def critic(self, x: np.ndarray, i: int) -> float:
        return self.linear("critic.1", leaky(self.linear("critic.0", np.r_[x, self.attributes[i]]))).item()

    def penalty(self, fake: np.ndarray, i: int) -> float:
        """(|slope of D| - 1)^2 between a real feature and a generated one."""
        u = float(self.drawn("critic.mix", i))
        between = u * self.real(i) + (1 - u) * fake
        steps = 1e-6 * np.eye(WIDTH)
        slope = [(self.critic(between + step, i) - self.critic(between - step, i)) / 2e-6 for step in steps]
        return (np.linalg.norm(slope) - 1) ** 2

    def posterior(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        hidden = np.r_[self.real(i), self.attributes[i]]
        for layer in ("encoder.0", "encoder.1"):
            hidden = leaky(self.linear(layer, hidden))
        return self.linear("encoder.mean", hidden), np.exp(0.5 * self.linear("encoder.logvar", hidden))

    def decoded(self, phase: str, i: int) -> np.ndarray:
        mean, deviation = self.posterior(i)
        return self.generate(mean + deviation * self.drawn(f"{phase}.noise", i), i)

    def from_noise(self, phase: str, i: int) -> np.ndarray:
        return self.generate(self.drawn(f"{phase}.noise", i), i)

    def loss(self, name: str) -> tuple[float, dict[str, float]]:
        """Return the value of the phase ``name`` and its terms, as the method says."""
        (phase,) = (phase for phase in self.method.phases() if phase.name == name)
        value, terms = phase.loss(self.params, self.batch, self.context)
        return float(value), {name: float(term) for name, term in terms.items() if name != "representation"}


def leaky(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, 0.2 * x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def mean(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def check(found: tuple[float, dict[str, float]], expected: dict[str, float], loss: str) -> None:
    value, terms = found
    assert value == pytest.approx(expected[loss], rel=1e-6)
    assert terms == pytest.approx(expected, rel=1e-6)
    assert all(abs(term) > 1e-3 for term in expected.values())  # what is nothing proves nothing


def test_clswgan_critic(space):
    """FZSL Eq. 1: the critic lowers E D(fake) - E D(real) + lambda E (|slope| - 1)^2."""
    w = Written(CLSWGAN, space, penalty=3.0)
    rows = []
    for i in KEPT:
        fake = w.from_noise("critic", i)
        row = {"wasserstein": w.critic(w.real(i), i) - w.critic(fake, i), "penalty": w.penalty(fake, i)}
        rows.append(row | {"critic": -row["wasserstein"] + 3.0 * row["penalty"]})
    check(w.loss("critic"), mean(rows), "critic")


def test_clswgan_generator_and_softmax(space):
    """FZSL Eq. 1: the generator lowers -E D(fake) + beta times the cross-entropy among the client's classes."""
    w = Written(CLSWGAN, space, beta=0.8)

    def cross_entropy(x: np.ndarray, i: int) -> float:
        powers = np.exp(w.linear("softmax", x))
        return float(-np.log(powers[w.labels[i]] / powers[HELD].sum()))

    rows = []
    for i in KEPT:
        fake = w.from_noise("generator", i)
        row = {"classification": cross_entropy(fake, i)}
        rows.append(row | {"generator": -w.critic(fake, i) + 0.8 * row["classification"]})
    check(w.loss("generator"), mean(rows), "generator")
    check(w.loss("softmax"), mean([{"softmax": cross_entropy(w.real(i), i)} for i in KEPT]), "softmax")


@pytest.mark.parametrize("kind", [VAEGAN, FREE])
def test_vaegan_critic(space, kind):
    """Gamma times what f-CLSWGAN's critic lowers."""
    w = Written(kind, space, gamma=7.0, penalty=3.0)
    rows = []
    for i in KEPT:
        fake = w.decoded("critic", i)
        row = {"wasserstein": w.critic(w.real(i), i) - w.critic(fake, i), "penalty": w.penalty(fake, i)}
        rows.append(row | {"critic": 7.0 * (-row["wasserstein"] + 3.0 * row["penalty"])})
    check(w.loss("critic"), mean(rows), "critic")


def bound(w: Written, i: int) -> dict[str, float]:
    """-log N(x; decoded, 1) but for a constant, KL(N(mean, deviation^2) || N(0, 1)), and -gamma D."""
    center, deviation = w.posterior(i)
    decoded = w.decoded("generator", i)
    row = {
        "reconstruction": 0.5 * np.sum((w.real(i) - decoded) ** 2),
        "divergence": np.sum((center**2 + deviation**2 - 1) / 2 - np.log(deviation)),
    }
    return row | {"generator": row["reconstruction"] + row["divergence"] - 7.0 * w.critic(decoded, i)}


def test_vaegan_generator(space):
    w = Written(VAEGAN, space, gamma=7.0)
    check(w.loss("generator"), mean([bound(w, i) for i in KEPT]), "generator")


def cycle(w: Written, features: np.ndarray, noise: str, i: int) -> float:
    """The weighted L1 distance of drawn attributes from the class's own: sum |r|^3 / |r|_2."""
    hidden = leaky(w.linear("refine.0", features))
    center, spread = np.split(w.linear("refine.1", hidden), 2)
    r = sigmoid(center + sigmoid(spread) * w.drawn(noise, i)) - w.semantics[w.labels[i]]
    return float(np.sum(np.abs(r) ** 3) / np.sqrt(np.sum(r**2)))


def test_free_generator(space):
    """F-VAEGAN's, and the semantic cycle of what is generated, times its weight."""
    w = Written(FREE, space, gamma=7.0, cycle=0.9)
    rows = []
    for i in KEPT:
        row = bound(w, i)
        row["generated cycle"] = cycle(w, w.decoded("generator", i), "generator.refine", i)
        rows.append(row | {"generator": row["generator"] + 0.9 * row["generated cycle"]})
    check(w.loss("generator"), mean(rows), "generator")


@pytest.mark.parametrize("contrast", ["nearest", "random"])
def test_free_refinement(space, contrast):
    """SAMC, max(0, margin + g |mu - c_y|^2 - (1 - g) |mu - c_y'|^2), and the semantic cycle of real features."""
    w = Written(FREE, space, center=0.6, cycle=0.9, margin=2.0, balance=0.7, contrast=contrast)
    centres = w.params["centres.all"].numpy()
    rows = []
    for i in KEPT:
        mu = np.split(w.linear("refine.1", leaky(w.linear("refine.0", w.real(i)))), 2)[0]
        far = [float(np.sum((mu - centre) ** 2)) for centre in centres]
        own = w.labels[i]
        other = min((c for c in HELD if c != own), key=lambda c: far[c])
        if contrast == "random":
            other = HELD[int(w.drawn("refine.other", i) * len(HELD))]
        row = {
            "samc": max(0.0, 2.0 + 0.7 * far[own] - 0.3 * far[other]),
            "real cycle": cycle(w, w.real(i), "refine.noise", i),
        }
        rows.append(row | {"refine": 0.6 * row["samc"] + 0.9 * row["real cycle"]})
    check(w.loss("refine"), mean(rows), "refine")


def test_the_classifiers_of_free_see_the_feature_the_hidden_layer_and_the_predicted_attributes(space):
    w = Written(FREE, space)
    result = w.method.refine(w.params, w.batch["inputs"]).numpy()
    for i in range(5):
        hidden = leaky(w.linear("refine.0", w.real(i)))
        expected = np.r_[w.real(i), hidden, sigmoid(np.split(w.linear("refine.1", hidden), 2)[0])]
        np.testing.assert_allclose(result[i], expected, rtol=1e-9)


def test_an_epoch_of_free_is_some_passes(space):
    w = Written(FREE, space, passes=3, critic_steps=2, batch_size=16)
    plan = w.method.plan("", np.zeros(40, dtype=np.int64), 2, np.random.default_rng(0))
    assert plan.steps == 2 * 3 * 3 * 2  # epochs x passes x batches x critic steps


def test_a_generative_methods_hidden_layer_is_twice_as_wide_as_the_features(space):
    assert Written(CLSWGAN, space, hidden=None).method.hidden == 2 * WIDTH
