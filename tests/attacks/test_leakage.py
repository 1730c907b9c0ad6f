"""Attacks on gradients, against closed forms, slow references and samples that are known."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedunseen.core.errors import DataError
from fedunseen.core.parameters import linear_layer
from fedunseen.core.phases import SGD, Phase
from fedunseen.core.random import stream
from fedunseen.data import ClassSpace
from fedunseen.encoders.backbone import Backbone
from fedunseen.methods import CLSWGAN, VAEGAN, Classifier, FedZSL
from fedunseen.research.attacks import inversion, leakage
from fedunseen.research.attacks.inversion import DLG, Cosine
from fedunseen.research.attacks.lenet import lenet, lenet_init

pytestmark = pytest.mark.usefixtures("one_thread")  # everything here is small
WIDE, ATTRIBUTES = 12, 5


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def floats(rng, *shape):
    return torch.from_numpy(rng.uniform(0, 1, shape)).float()


def normals(rng, *shape):
    return torch.from_numpy(rng.normal(size=shape)).float()


# Searches


@pytest.fixture
def lenet_victim(rng):
    """A tiny network, an image, its class, and its gradient by hand."""
    params = {name: value.requires_grad_() for name, value in lenet_init((1, 8, 8), 6, rng).items()}
    image, label = floats(rng, 1, 1, 8, 8), torch.tensor([4])
    grads = torch.autograd.grad(F.cross_entropy(lenet(params, image), label), list(params.values()))
    return params, image, label, dict(zip(params, grads, strict=True))


def of_image(params, image, soft):
    loss = -(soft * torch.log_softmax(lenet(params, image), -1)).sum()
    return dict(
        zip(
            params, torch.autograd.grad(loss, list(params.values()), create_graph=True), strict=True
        )
    )


def search(attack, victim, start, **names):
    """Search for the image, and for its label where the start has one."""
    params, _, label, target = victim

    def gradient(dummy):
        soft = dummy["label"].softmax(-1) if "label" in dummy else F.one_hot(label, 6).float()
        return of_image(params, dummy["image"], soft)

    return inversion.invert(attack, gradient, target, start, **names)


@pytest.mark.slow
def test_dlg_recovers_an_image_and_its_class(lenet_victim, rng):
    _, image, label, _ = lenet_victim
    start = {"image": normals(rng, 1, 1, 8, 8), "label": torch.zeros(1, 6)}
    result = search(DLG(steps=30), lenet_victim, lambda _: start)
    assert (result.values["image"] - image).square().mean() < 1e-3
    assert result.values["label"].argmax() == label
    assert result.distance < 1e-6
    assert sorted(result.shown) == [0, 1, 2, 4, 8, 15, 30]
    torch.testing.assert_close(result.shown[0]["image"], start["image"])


@pytest.mark.slow
def test_the_cosine_attack_recovers_an_image_and_stays_among_pixels(lenet_victim, rng):
    start = {"image": normals(rng, 1, 1, 8, 8)}
    result = search(Cosine(steps=200), lenet_victim, lambda _: start, images=("image",))
    assert (result.values["image"] - lenet_victim[1]).square().mean() < 1e-2
    assert all(
        item["image"].min() >= 0 and item["image"].max() <= 1
        for at, item in result.shown.items()
        if at
    )


@pytest.mark.parametrize("length", [1.0, 8.0])
def test_the_cosine_attack_s_objective_is_written_out_here(length, lenet_victim, rng):
    """One less the cosine of both gradients, whatever their lengths, and the weighted total
    variation.
    """
    params, image, label, target = lenet_victim
    start = {"image": floats(rng, 1, 1, 8, 8)}
    seen = {name: length * value for name, value in target.items()}
    attack = Cosine(steps=0, total_variation=0.5)
    result = search(attack, (params, image, label, seen), lambda _: start, images=("image",))
    own = of_image(params, start["image"].detach().clone(), F.one_hot(label, 6).float())
    one, other = (torch.cat([g.detach().flatten() for g in of.values()]) for of in (own, target))
    expected = (
        1 - F.cosine_similarity(one, other, dim=0) + 0.5 * inversion.total_variation(start["image"])
    )
    assert result.objective == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("attack", [DLG(steps=0, restarts=3), Cosine(steps=0, restarts=3)])
@pytest.mark.parametrize("best", range(3))
def test_the_restart_with_the_least_objective_counts(attack, best, lenet_victim, rng):
    """Neither the first nor the last: none comes so close that no other is tried."""
    away = floats(rng, 1, 1, 8, 8) - 0.5
    starts = [
        lenet_victim[1] + (0.3 if restart == best else 1.0 + restart) * away for restart in range(3)
    ]
    tried = []
    result = search(
        attack, lenet_victim, lambda restart: tried.append(restart) or {"image": starts[restart]}
    )
    assert tried == [0, 1, 2]
    torch.testing.assert_close(result.values["image"], starts[best])


def test_total_variation_is_a_slow_loop(rng):
    images = rng.normal(size=(2, 3, 4, 5))
    across = [
        abs(m[i, j + 1] - m[i, j])
        for item in images
        for m in item
        for i in range(4)
        for j in range(4)
    ]
    down = [
        abs(m[i + 1, j] - m[i, j])
        for item in images
        for m in item
        for i in range(3)
        for j in range(5)
    ]
    assert inversion.total_variation(torch.from_numpy(images)).item() == pytest.approx(
        np.mean(across) + np.mean(down)
    )


@pytest.mark.parametrize("label", range(6))
def test_idlg_reads_the_label_off_the_last_layer(rng, label):
    params = {name: value.requires_grad_() for name, value in lenet_init((3, 7, 9), 6, rng).items()}
    loss = F.cross_entropy(lenet(params, floats(rng, 1, 3, 7, 9)), torch.tensor([label]))
    assert inversion.inferred_label(torch.autograd.grad(loss, params["head.weight"])[0]) == label


# Closed forms


def test_a_linear_first_layer_gives_its_input_away(rng):
    layers = linear_layer("a", WIDE, 7, rng) | linear_layer("b", 7, 3, rng)
    layers = {name: value.requires_grad_() for name, value in layers.items()}
    x = normals(rng, 1, WIDE)
    hidden = torch.relu(F.linear(x, layers["a.weight"], layers["a.bias"]))
    loss = F.cross_entropy(
        F.linear(hidden, layers["b.weight"], layers["b.bias"]), torch.tensor([1])
    )
    inputs, misfit = inversion.layer_inputs(
        *torch.autograd.grad(loss, [layers["a.weight"], layers["a.bias"]])
    )
    assert (inputs - x[0]).abs().max() < 1e-5
    assert misfit.max() < 1e-5


def test_of_two_samples_only_the_columns_that_they_share_are_read(rng):
    delta, x = torch.from_numpy(rng.normal(size=(2, 7))), torch.from_numpy(rng.normal(size=(2, 4)))
    x[1, 2:] = x[0, 2:]
    inputs, misfit = inversion.layer_inputs(delta.T @ x, delta.sum(0))
    torch.testing.assert_close(inputs[2:], x[0, 2:])
    assert misfit[2:].max() < 1e-9
    assert misfit[:2].min() > 0.01


def critic_gradient(rng, activation, hidden=64):
    """The gradient of a Wasserstein critic with gradient penalty, the penalty by automatic
    differentiation.
    """
    layers = linear_layer("critic.0", WIDE + ATTRIBUTES, hidden, rng) | linear_layer(
        "critic.1", hidden, 1, rng
    )
    w, b, v = (
        layers[name].requires_grad_()
        for name in ("critic.0.weight", "critic.0.bias", "critic.1.weight")
    )
    real, fake, a = floats(rng, WIDE), floats(rng, WIDE), floats(rng, ATTRIBUTES)

    def value(x):
        return v[0] @ activation(w @ torch.cat([x, a]) + b)

    mixed = (0.3 * real + 0.7 * fake).requires_grad_()
    (slope,) = torch.autograd.grad(value(mixed), mixed, create_graph=True)
    loss = 2.5 * (value(fake) - value(real) + 10 * (slope.norm() - 1) ** 2)
    return torch.autograd.grad(loss, [w, b]), w.detach(), b.detach(), v.detach()[0], real, a


def test_a_critic_alone_gives_the_real_sample_away(rng):
    grads, weight, bias, top, real, a = critic_gradient(rng, lambda h: F.leaky_relu(h, 0.2))
    torch.testing.assert_close(
        inversion.critic_inputs(grads, weight, bias, top, WIDE), real, atol=1e-4, rtol=1e-4
    )
    inputs, misfit = inversion.layer_inputs(*grads)
    torch.testing.assert_close(inputs[WIDE:], a, atol=1e-4, rtol=1e-4)
    assert misfit[WIDE:].max() < 1e-4 < 0.01 < misfit[:WIDE].min()
    grads, weight, bias, top, *_ = critic_gradient(rng, torch.tanh)  # of another network
    assert inversion.critic_inputs(grads, weight, bias, top, WIDE) is None


# What is measured


def test_numbers_of_a_judge():
    means = torch.tensor([[0.0] * 4, [1.0] * 4])
    judge = leakage.Judge(torch.tensor([1.5, 0.5, 0.5, 0.5]), means, np.array([3, 8]), unit=True)
    result = judge(torch.tensor([0.9, 1.0, 1.0, 1.0]), torch.ones(4), 8)
    numbers = {
        "mse": 0.01 / 4,
        "psnr": 10 * math.log10(400),
        "relative": 0.01,
        "cosine": 3.9 / math.sqrt(4 * 3.81),
    }
    assert {name: result[name] for name in numbers} == pytest.approx(numbers)
    assert (result["class"], result["match"]) == (8, True)
    assert judge.summary([result, judge(judge.average, torch.ones(4), 8)])["recovered"] == 1


def make_subject(kind, travels="", **settings):
    """Make a method on random samples of six seen classes and two unseen ones."""
    rng = np.random.default_rng(3)
    semantics = rng.uniform(0.1, 1, (8, ATTRIBUTES))
    space = ClassSpace(tuple("abcdefgh"), semantics, tuple("uvwxy"), range(6), [], [6, 7])
    method = kind(
        kind.Settings(**settings), space, torch.from_numpy(semantics).float(), Backbone((WIDE,))
    )
    params = method.init(stream(0, "initialisation"))
    sent = frozenset(name for name in params if name.startswith(travels))
    inputs, labels, victims = floats(rng, 30, WIDE), np.repeat(np.arange(6), 5), np.array([2, 17])
    return leakage.Subject(
        method, params, sent, inputs, labels, np.arange(30), victims, [np.arange(6)] * 2, None
    )


@pytest.mark.parametrize(
    ("kind", "travels", "settings", "phase", "depends", "recovered"),
    [
        (
            FedZSL,
            "",
            {"alpha": 0.5},
            "local",
            True,
            {"inputs": 2},
        ),  # the class's number is what is unknown
        (FedZSL, "", {"alpha": 0.5, "hidden": [WIDE]}, "local", True, {"inputs": 2}),
        (Classifier, "", {}, "local", True, {"inputs": 2, "labels": 2}),  # by the bias
        (
            CLSWGAN,
            "generator",
            {"hidden": 16, "output": "linear"},
            "generator",
            False,
            {"attributes": 2},
        ),
        (CLSWGAN, "", {"hidden": WIDE, "output": "linear"}, "generator", False, {"attributes": 2}),
        (
            CLSWGAN,
            "critic",
            {"hidden": 64, "output": "linear"},
            "critic",
            True,
            {"inputs": 2, "attributes": 2},
        ),
        (VAEGAN, "generator", {"hidden": 16}, "generator", True, {"attributes": 2}),
    ],
)
def test_closed_forms_give_features_and_classes_away(
    kind, travels, settings, phase, depends, recovered
):
    """A hidden layer as wide as a sample is not taken for its place."""
    facts, tensors = leakage.measure_method(make_subject(kind, travels, **settings), {}, 0)
    assert facts["phases"][phase]["depends"]["inputs"] is depends
    attack = facts["phases"][phase]["attacks"]["analytic"]
    found = {name: attack[name]["recovered"] for name in ("inputs", "attributes") if name in attack}
    assert found | ({"labels": attack["labels"]} if "labels" in attack else {}) == recovered
    for name in found:
        error = (tensors[f"{phase}.analytic.{name}"] - tensors[name]).abs().max()
        assert error < (1e-3 if phase == "critic" else 1e-5)


@pytest.mark.slow
def test_a_search_finds_frozen_features_and_their_classes():
    facts, _ = leakage.measure_method(make_subject(FedZSL, alpha=0.5), {"dlg": DLG(steps=15)}, 0)
    (phase,) = facts["phases"].values()
    assert phase["depends"] == {"inputs": True}
    assert (phase["attacks"]["dlg"]["inputs"]["recovered"], phase["attacks"]["dlg"]["labels"]) == (
        2,
        2,
    )


def test_a_certain_soft_label_is_the_label():
    subject = make_subject(FedZSL, alpha=0.5)
    victim = leakage.PhaseVictim(subject, subject.method.phases()[0], list(subject.params), 1, 0)
    certain = 200.0 * F.one_hot(torch.tensor([3]), 6).float()  # sample 17 is of class 3
    for name, value in victim.gradient({"inputs": victim.inputs, "label": certain}).items():
        torch.testing.assert_close(value, victim.target[name])


def test_clswgan_s_generator_alone_gives_the_class_away_but_not_the_sample():
    subject = make_subject(CLSWGAN, "generator", hidden=16, output="linear")
    facts, _ = leakage.measure_method(subject, {"dlg": DLG(steps=20, restarts=1)}, 0)
    assert facts["phases"]["critic"] == {"travels": [], "attacks": {}}
    phase = facts["phases"]["generator"]
    assert (phase["depends"]["inputs"], phase["depends"]["attributes"]) == (False, True)
    assert phase["attacks"]["analytic"]["attributes"]["matches"] == 2
    result = phase["attacks"]["dlg"]["inputs"]
    assert result["recovered"] == 0 < 0.9 < result["relative"]


def test_a_loss_that_ignores_everything_is_not_searched():
    class Idle(Classifier):
        def phases(self):
            return (
                Phase(
                    "idle", lambda params, batch, context: (params["head.bias"].sum(), {}), SGD(0.1)
                ),
            )

    facts, _ = leakage.measure_method(make_subject(Idle), {"dlg": DLG(steps=1)}, 0)
    assert facts["phases"]["idle"]["depends"] == {"inputs": False}
    assert "dlg" not in facts["phases"]["idle"]["attacks"]


@pytest.mark.slow
def test_the_classifier_that_sees_images_gives_them_away(rng):
    images = (255 * rng.uniform(0, 1, (8, 1, 6, 8))).astype(np.uint8)
    labels = np.repeat(np.arange(4), 2)
    network = leakage.Network(images, labels, 4, np.arange(8), 0)
    facts, tensors = leakage.measure_classifier(
        network, images, labels, np.array([1, 6]), {"dlg": DLG(steps=30)}
    )
    torch.testing.assert_close(
        tensors["source"], torch.from_numpy(images[[1, 6]] / np.float32(255))
    )
    assert (facts["attacks"]["dlg"]["recovered"], facts["attacks"]["dlg"]["labels"]) == (2, 2)
    assert (tensors["dlg.recovered"] - tensors["source"]).square().mean() < 1e-3
    assert tensors["dlg"].shape == (2, 7, 1, 6, 8)
    assert facts["guesses"]["average"]["relative"] == pytest.approx(1.0)


def test_the_same_seed_gives_the_same_numbers(rng):
    images, labels = rng.uniform(0, 1, (6, 3, 5, 5)).astype(np.float32), np.arange(6) % 3
    made = [
        leakage.measure_classifier(
            network, images, labels, np.array([2]), {"cosine": Cosine(steps=4)}
        )[1]
        for network in (
            leakage.Network(images, labels, 3, np.arange(6), seed) for seed in (7, 7, 8)
        )
    ]
    assert torch.equal(made[0]["cosine"], made[1]["cosine"])
    assert not torch.equal(made[0]["cosine"], made[2]["cosine"])


def test_images_that_are_too_small_are_refused():
    with pytest.raises(
        DataError,
        match=r"^the images have 4 x 9 pixels, too few .* looks at 5 x 5: use a benchmark",
    ):
        leakage.Network(np.zeros((2, 1, 4, 9), np.uint8), np.arange(2), 2, np.arange(2), 0)


# Sums of several parties


def test_the_sum_of_parties_is_the_mean_of_what_they_send(rng):
    updates = [{"a": floats(rng, 30, 40) - 0.5, "b": floats(rng, 7)} for _ in range(4)]
    for parties, item in enumerate(leakage.observations(updates, range, [1, 2, 3, 4]), 1):
        assert (item.seen, item.parties, item.batch) == (
            "update" if parties == 1 else "sum",
            parties,
            range(parties),
        )
        for name, value in item.target.items():
            torch.testing.assert_close(
                value, sum(update[name] for update in updates[:parties]) / parties
            )


def test_the_row_of_one_party_is_that_of_its_update(rng):
    images, labels = rng.uniform(0, 1, (8, 1, 5, 6)).astype(np.float32), np.repeat(np.arange(4), 2)
    attack = {"cosine": Cosine(steps=6)}  # whose label follows from the gradient
    network = leakage.Network(images, labels, 4, np.arange(8), 5)
    facts, _ = leakage.measure_classifier(network, images, labels, np.array([3]), attack)
    seen = network.sums(images, labels, np.array([3, 6]), [1, 2])
    rows = leakage.measure_sums(seen, {"inputs": network.judge}, attack, "classifier")["cosine"]
    assert [(row["parties"], row["seen"]) for row in rows] == [(1, "update"), (2, "sum")]
    (alone,) = facts["attacks"]["cosine"]["images"]
    shared = alone.keys() & rows[0]["inputs"].keys()
    assert {"mse", "psnr", "relative", "cosine"} <= shared
    assert {name: rows[0]["inputs"][name] for name in shared} == {
        name: alone[name] for name in shared
    }

    subject = make_subject(CLSWGAN, "generator", hidden=16, output="linear")
    attack = {"cosine": Cosine(steps=2)}
    alone = leakage.measure_method(subject, attack, 5)[0]["phases"]["generator"]["attacks"]
    summed = leakage.measure_method_sums(subject, [1], attack, 5)["generator"]
    assert set(summed) == set(alone) == {"analytic", "cosine"}
    for name, (row,) in summed.items():
        kinds = {"inputs", "attributes"} & set(alone[name])
        assert kinds == {"inputs", "attributes"} & set(row)
        assert all(row[kind]["samples"] == alone[name][kind]["samples"][:1] for kind in kinds)


def test_the_closed_form_fails_on_a_sum_where_a_search_does_not():
    rows = leakage.measure_method_sums(
        make_subject(FedZSL, alpha=0.5), [1, 2], {"dlg": DLG(steps=40)}, 0
    )["local"]
    item, two = (row["inputs"] for row in rows["analytic"])
    assert (item["recovered"], two["recovered"]) == (1, 0)
    assert item["mse"] < 1e-10
    assert min(sample["relative"] for sample in two["samples"]) > leakage.RECOVERED
    assert [row["inputs"]["recovered"] for row in rows["dlg"]] == [1, 2]


def test_samples_are_compared_with_what_matches_them_best(monkeypatch):
    subject = make_subject(FedZSL, alpha=0.5)
    swapped = [subject.sample(int(victim)) for victim in subject.victims[::-1]]
    monkeypatch.setattr(
        leakage.PhaseVictim, "read", lambda self, dummy: {"inputs": swapped[self.i]}
    )
    _, row = leakage.measure_method_sums(
        subject, [1, 2], {"dlg": DLG(steps=1, inner=1, restarts=1)}, 0
    )["local"]["dlg"]
    assert (row["inputs"]["recovered"], row["inputs"]["mse"]) == (2, 0)
