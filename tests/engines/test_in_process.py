"""Whole rounds: batched against one at a time, strategies against what they are by definition."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedunseen import ClassSpace, FedUnseenError
from fedunseen.core.phases import SGD, Step
from fedunseen.core.random import stream
from fedunseen.core.registry import find
from fedunseen.core.tensor_store import StoredTensors
from fedunseen.core.trainer import LocalResult, Task
from fedunseen.encoders.backbone import Backbone
from fedunseen.federation import in_process
from fedunseen.federation.in_process import InProcess
from fedunseen.federation.worker import Execution, Worker
from fedunseen.methods import METHODS
from fedunseen.strategies import STRATEGIES, Pipeline
from fedunseen.strategies.selective import Selective, travelling
from fedunseen.strategies.summed import Summed
from refusals import message_of
from same import same

pytestmark = pytest.mark.usefixtures("one_thread")
WIDTH, ATTRIBUTES = 12, 30
MAP = (2, 2, 3)  # the same twelve numbers as a map of two channels
# Who holds which classes, and how many samples of each: batches of 8, from less than one to five an
# epoch.
COUNTS = [({0: 3}), ({1: 9, 2: 8}), ({3: 20, 4: 15, 5: 5}), ({6: 8}), ({7: 1, 8: 12})]
UNSEEN = [9, 10]
VARIANTS = [  # settings that between them use all that our methods have
    ("fedzsl", {}),
    (
        "fedzsl",
        {
            "hidden": (7,),
            "kl": 2.0,
            "consistency": 0.5,
            "sce_classes": "local",
            "kl_classes": "all",
        },
    ),
    ("fedzsl", {"sce": 0, "kl": 0}),  # g has no gradient at all
    ("fedzsl", {"hidden": (7, 5), "kl_classes": "local", "consistency": 0, "momentum": 0}),
    ("classifier", {"hidden": (7,)}),
    ("distzsl", {}),
    ("distzsl", {"hidden": (7,), "bilateral": 0, "sce_classes": "all"}),
    ("clswgan", {"lr": 1e-3, "hidden": 9, "critic_steps": 3}),
    (
        "clswgan",
        {"lr": 1e-3, "hidden": 9, "output": "linear", "beta": 0, "noise": 4},
    ),
    ("vaegan", {"lr": 1e-3, "hidden": 9, "output": "linear", "critic_steps": 2, "noise": 3}),
    ("free", {"lr": 1e-3, "hidden": 9, "output": "linear"}),
    (
        "free",
        {
            "lr": 1e-3,
            "hidden": 9,
            "output": "linear",
            "contrast": "random",
            "critic_steps": 2,
        },
    ),
    ("svip", {"lr": 0.002}),  # its default: with more, rounding errors grow until the two ways part
]
KINDS = {name: find("method", name) for name in METHODS}
TRAINED = {name for name, kind in KINDS.items() if kind.trained and kind.task == "zero-shot"}
VARIANTS += [(name, {}) for name in sorted(TRAINED - {name for name, _ in VARIANTS})]


def space():
    semantics = np.random.default_rng(0).normal(scale=ATTRIBUTES**-0.5, size=(11, ATTRIBUTES))
    names = tuple(f"class {i}" for i in range(11))
    attributes = tuple(f"attribute {i}" for i in range(ATTRIBUTES))
    groups = {f"group {i}": tuple(range(10 * i, 10 * i + 10)) for i in range(3)}
    return ClassSpace(names, semantics, attributes, range(9), [8], UNSEEN, groups)


def data():
    """Give inputs, labels and who holds which samples; a class's samples lie around a point of its
    own.
    """
    rng = np.random.default_rng(1)
    labels = np.array([c for held in COUNTS for c, count in held.items() for _ in range(count)])
    owner = np.array(
        [k for k, held in enumerate(COUNTS) for count in held.values() for _ in range(count)]
    )
    order = rng.permutation(len(labels))
    labels, owner = labels[order], owner[order]
    inputs = rng.normal(size=(11, WIDTH))[labels] + 0.5 * rng.normal(size=(len(labels), WIDTH))
    samples = [np.flatnonzero(owner == k) for k in range(len(COUNTS))]
    return torch.from_numpy(inputs.astype(np.float32)), torch.from_numpy(labels), samples


class Federation:
    """A federation of five clients, made by hand."""

    def __init__(
        self,
        method="classifier",
        settings=None,
        strategy="fedavg",
        options=None,
        pooled=False,
        **worker,
    ):
        kind, plan = KINDS[method], find("strategy", strategy)
        own = {} if not kind.trained else {"lr": 0.05, "batch_size": 8}
        # Adam makes whole steps of gradients that are rounding errors: its two ways only agree in
        # double precision.
        self.dtype = torch.float64 if kind.generates else torch.float32
        semantics = torch.from_numpy(space().semantics).to(self.dtype)
        backbone = Backbone((WIDTH,) if kind.takes == "vectors" else MAP)
        self.method = kind(kind.Settings(**(own | (settings or {}))), space(), semantics, backbone)
        self.strategy = plan(plan.Settings(**(options or {})))
        drawn = self.method.init(np.random.default_rng(7))
        self.first = {n: v.to(self.dtype) if kind.trained else v for n, v in drawn.items()}
        if self.strategy.merges:
            sent = travelling(list(self.first), self.strategy.settings.shared, kind.private)
            stays = {name: value for name, value in self.first.items() if name not in sent}
            if stays:
                self.strategy = Pipeline(self.strategy, [Selective(stays)])
                self.first = {name: self.first[name] for name in self.first if name in sent}
            if not kind.trained:
                self.strategy = Summed(self.strategy, self.first)
        inputs, labels, samples = data()
        inputs = inputs.reshape(len(inputs), *backbone.shape).to(self.dtype)
        if pooled:
            samples = [np.arange(len(labels))]
        self.clients = range(len(samples))
        self.worker = Worker(
            self.method, self.strategy, inputs, labels, samples, 3, Execution(**worker)
        )
        self.engine = InProcess(self.strategy, self.worker)

    def run(self, rounds=2, clients=None):
        """Give the parameters, the clients' states and the last round's result."""
        params = self.first
        state, states = self.strategy.init(params, len(self.clients)), {}
        for round in range(rounds):
            result = self.engine.round(round, state, params, states, clients or self.clients)
            state, params = result.state, result.params
            states |= result.client_states
        return params, states, result


def assert_alike(one, other, rtol=1e-4, atol=1e-5):
    (params, states, result), (params2, states2, result2) = one, other
    torch.testing.assert_close(params, params2, rtol=rtol, atol=atol)
    torch.testing.assert_close(states, states2, rtol=rtol, atol=atol)
    for a, b in zip(result.replies, result2.replies, strict=True):
        assert (a.client, a.classes, a.samples) == (b.client, b.classes, b.samples)
        torch.testing.assert_close(a.update, b.update, rtol=10 * rtol, atol=atol)
        assert a.terms == pytest.approx(b.terms, rel=1e-3, abs=1e-4)
    assert (result.bytes_down, result.bytes_up) == (result2.bytes_down, result2.bytes_up)


@pytest.mark.slow
# 1 byte: a client a chunk; 30,000 bytes: a few clients; else all at once.
@pytest.mark.parametrize("memory", [1, 30_000, 2**30])
@pytest.mark.parametrize(("method", "settings"), VARIANTS)
def test_clients_batched_and_one_at_a_time_learn_the_same(method, settings, memory):
    one = Federation(method, settings, mode="one-at-a-time").run()
    assert_alike(one, Federation(method, settings, mode="batched", memory=memory).run())
    start = Federation(method, settings).first
    assert any((one[0][name] - start[name]).norm() > 0.01 for name in start)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_every_strategy_gives_the_same_batched_and_one_at_a_time(strategy):
    options = (
        {"mu": 0.5} if strategy == "fedprox" else {"rho": 0.3} if strategy == "fedgloss" else {}
    )
    modes = ("one-at-a-time", "batched")
    assert_alike(*(Federation("fedzsl", {}, strategy, options, mode=mode).run() for mode in modes))


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize(
    ("strategy", "down", "up"),
    [
        ("fedavg", 1, 1),
        ("fedprox", 1, 1),
        ("local", 0, 0),
        ("scaffold", 2, 1),
        ("moon", 1, 1),
        ("fednova", 1, 1),
    ],
)
def test_what_is_sent_is_counted_once_and_what_a_client_keeps_not_at_all(
    strategy, down, up, rounds
):
    result, size = Federation(strategy=strategy).run(rounds)[2], 5 * 4 * (WIDTH * 11 + 11)
    assert (result.bytes_down, result.bytes_up) == (size * down, size * up)


def test_fedgloss_takes_running_statistics_from_the_batch_itself_alone():
    kind = find("strategy", "fedgloss")
    made, seen = kind(kind.Settings(dual=False)), []

    def gradient(params, step):
        step.fixed["bn.running_mean"] += params[
            "w"
        ].sum()  # as a backbone in training would, in place
        seen.append(params["w"].clone())
        return {"w": torch.ones(3)}, {}

    fixed = {"bn.running_mean": torch.zeros(1)}
    made.correct(gradient)({"w": torch.ones(3)}, Step({}, {}, {"rho": torch.tensor(0.5)}, fixed))
    assert len(seen) == 2
    assert fixed["bn.running_mean"].item() == 3


# What strategies are by definition


FLAT = {"rho": 0.0, "rho_local": 0.0, "dual": False}
WITHOUT = [("fedprox", {"mu": 0.0}, 0), ("moon", {"mu": 0.0}, 0), ("fedgloss", FLAT, 1e-6)]


@pytest.mark.parametrize(("strategy", "options", "tolerance"), WITHOUT)
@pytest.mark.parametrize("mode", ["one-at-a-time", "batched"])
def test_without_what_they_add_they_are_fedavg(strategy, options, tolerance, mode):
    other = Federation("fedzsl", strategy=strategy, options=options, mode=mode).run(3)[0]
    fedavg = Federation("fedzsl", mode=mode).run(3)[0]
    torch.testing.assert_close(
        other, fedavg, rtol=tolerance, atol=tolerance
    )  # a weight near 0 is a sum of larger ones


def test_eszsl_is_solved_by_each_client_or_on_all_data():
    inputs, labels, samples = data()
    federation = Federation("eszsl", strategy="centralised", pooled=True)
    torch.testing.assert_close(federation.run(1)[0], federation.method.statistics(inputs, labels))
    alone = {
        k: federation.method.statistics(inputs[own], labels[own]) for k, own in enumerate(samples)
    }
    torch.testing.assert_close(Federation("eszsl", strategy="local").run(1)[1], alone)


@pytest.mark.parametrize("method", ["eszsl", "ridge", "sae", "gaussian"])
def test_sums_of_five_clients_are_those_of_one_place_and_one_round_is_enough(method):
    federation = Federation(method)
    inputs, labels, _ = data()
    wanted = federation.method.statistics(inputs, labels)
    params = federation.run(1)[0]
    for name in ("count", "total", "square"):
        torch.testing.assert_close(params[name], wanted[name], rtol=1e-13, atol=1e-12)
    assert same(params, federation.run(3)[0])


class ByHand:
    """Federated training of torch's linear classifier, a vector; subclasses write out one paper's
    algorithm each.

    ``settings``: what the paper's symbols are; they become attributes.
    """

    momentum, mu = 0.9, 0.0

    def __init__(self, start, **settings):
        vars(self).update(settings)
        self.start = torch.cat([start["head.weight"].flatten(), start["head.bias"]])
        self.inputs, self.labels, self.samples = data()
        self.shares = [len(held) / 9 for held in COUNTS]
        self.kept = {}  # by each client, from one round to the next

    def named(self, w):
        return {"head.weight": w[:-11].reshape(11, WIDTH), "head.bias": w[-11:]}

    def outputs(self, w, rows):
        return F.linear(self.inputs[rows], *self.named(w).values())

    def loss(self, w, rows):
        return F.cross_entropy(self.outputs(w, rows), self.labels[rows])

    def gradient(self, w, rows):
        return torch.func.grad(self.loss)(w, rows)

    def train(self, client, round, start, gradient):
        """Take two epochs from ``start`` with ``gradient(w, rows)``; return the model and the
        number of its steps.
        """
        w = start.clone()
        optimiser = torch.optim.SGD([w], lr=0.05, momentum=self.momentum, weight_decay=1e-5)
        rng, steps = stream(3, "batches ", round, client), 0
        samples = self.samples[client]
        for order in [rng.permutation(len(samples)) for _ in range(2)]:
            for at in range(0, len(samples), 8):
                w.grad = gradient(w, samples[order[at : at + 8]])
                optimiser.step()
                steps += 1
        return w, steps

    def mean(self, ends):
        return sum(self.shares[k] * end for k, end in ends.items()) / sum(
            self.shares[k] for k in ends
        )

    def run(self, rounds, clients=range(5)):
        w = self.start
        for round in range(rounds):
            w = self.round(round, w, clients)
        return self.named(w)


class FedAvgByHand(ByHand):
    """McMahan et al. 2017, with weights by classes; FedProx (Li et al. 2020) pulls towards what was
    sent.
    """

    def round(self, round, sent, clients):
        def step(w, rows):
            return self.gradient(w, rows) + self.mu * (w - sent)

        return self.mean({k: self.train(k, round, sent, step)[0] for k in clients})


class FedNovaByHand(ByHand):
    """Wang et al. 2020, with the accumulation vector a_i summed one step after the other."""

    def round(self, round, w, clients):
        lengths, directions = {}, {}
        for k in clients:
            end, steps = self.train(k, round, w, self.gradient)
            a, velocity = 0.0, 0.0
            for _ in range(steps):  # a constant gradient of one through the optimiser
                velocity = self.momentum * velocity + 1
                a += velocity
            lengths[k], directions[k] = a, (w - end) / (0.05 * a)
        return w - 0.05 * self.mean(lengths) * self.mean(directions)


class ScaffoldByHand(ByHand):
    """Karimireddy et al. 2020, Algorithm 1, option II."""

    c = 0.0

    def round(self, round, w, clients):
        ends, change = [], 0
        for k in clients:
            own = self.kept.get(k, 0.0)
            correction = self.c - own
            end, steps = self.train(
                k, round, w, lambda w, rows, c=correction: self.gradient(w, rows) + c
            )
            self.kept[k] = (w - end) / (steps * 0.05) - correction
            change = change + self.kept[k] - own
            ends.append(end)
        self.c = self.c + change / 5
        return sum(ends) / len(ends)


class MoonByHand(ByHand):
    """Li et al. 2021, Algorithm 1: cosine similarities, cross-entropy against label 0; z are the
    class outputs.
    """

    def contrast(self, w, rows, sent, previous):
        z, frozen = self.outputs(w, rows), [self.outputs(model, rows) for model in (sent, previous)]
        logits = (
            torch.stack([torch.cosine_similarity(z, other) for other in frozen], 1)
            / self.temperature
        )
        return F.cross_entropy(logits, torch.zeros(len(rows), dtype=torch.int64))

    def round(self, round, sent, clients):
        def step(w, rows):
            if k not in self.kept:
                return self.gradient(w, rows)
            return self.gradient(w, rows) + self.mu * torch.func.grad(self.contrast)(
                w, rows, sent, self.kept[k]
            )

        ends = {}
        for k in clients:
            ends[k], _ = self.train(k, round, sent, step)
        self.kept |= ends
        return self.mean(ends)


class FedGloSSByHand(ByHand):
    """Caldarola et al. 2025: SAM at the server with the last pseudo-gradient, SAM at the clients,
    dual variables.
    """

    g, sigma = None, 0.0

    def radius(self, full, round):
        return min(full, 0.001 + (full - 0.001) * round / self.warmup_rounds)

    def round(self, round, w, clients):
        sent = w if self.g is None else w + self.radius(self.rho, round) * self.g / self.g.norm()

        def step(w, rows):
            climb = self.gradient(w, rows)
            risen = w + self.radius(self.rho_local, round) * climb / climb.norm()
            return self.gradient(risen, rows) - self.kept.get(k, 0.0) + (w - sent) / self.beta

        moves = {}
        for k in clients:
            moves[k] = self.train(k, round, sent, step)[0] - sent
            self.kept[k] = self.kept.get(k, 0.0) - moves[k] / self.beta
        self.g = -sum(moves.values()) / len(moves)
        self.sigma = self.sigma - sum(moves.values()) / (self.beta * 5)
        return w - self.g - self.beta * self.sigma


SHARP = {"rho": 0.3, "rho_local": 0.2, "beta": 4.0, "warmup_rounds": 2, "weights": "uniform"}
PAPERS = [
    ("fedavg", FedAvgByHand, {}, {}),
    ("fedprox", FedAvgByHand, {"mu": 2.0}, {}),
    ("fednova", FedNovaByHand, {}, {}),
    ("scaffold", ScaffoldByHand, {"weights": "uniform"}, {"momentum": 0}),
    ("moon", MoonByHand, {"mu": 3.0, "temperature": 0.7}, {}),
    ("fedgloss", FedGloSSByHand, SHARP, {"momentum": 0}),
]


@pytest.mark.parametrize("mode", ["one-at-a-time", "batched"])
@pytest.mark.parametrize("clients", [None, [0, 2, 3]])
@pytest.mark.parametrize(
    ("name", "reference", "options", "settings"), PAPERS, ids=[paper[0] for paper in PAPERS]
)
def test_a_strategy_is_its_papers_algorithm(name, reference, options, settings, clients, mode):
    federation = Federation(settings=settings, strategy=name, options=options, mode=mode)
    expected = reference(federation.first, **options, **settings).run(4, clients or range(5))
    torch.testing.assert_close(federation.run(4, clients)[0], expected, rtol=2e-4, atol=2e-5)
    plain = Federation(
        settings=settings, options={"weights": options.get("weights", "classes")}, mode=mode
    )
    difference = max(
        (value - expected[n]).abs().max() for n, value in plain.run(4, clients)[0].items()
    )
    assert (difference > 1e-3) == (name != "fedavg")  # and not what FedAvg does


@pytest.mark.parametrize("mode", ["one-at-a-time", "batched"])
@pytest.mark.parametrize("strategy", ["local", "centralised"])
def test_local_and_centralised_are_plain_training_continued(strategy, mode):
    federation = Federation(strategy=strategy, mode=mode, pooled=strategy == "centralised")
    hand = ByHand(federation.first)
    hand.samples = federation.worker.samples
    params, states, result = federation.run(3)
    for client in federation.clients:
        model = hand.start
        for round in range(3):
            model, _ = hand.train(client, round, model, hand.gradient)
        ours = params if strategy == "centralised" else states[client]
        torch.testing.assert_close(ours, hand.named(model), rtol=1e-4, atol=1e-5)
    assert federation.strategy.pools == (strategy == "centralised")
    if strategy == "local":
        assert same(params, federation.first)
        assert all(reply.update == {} for reply in result.replies)


def test_moon_has_nothing_to_contrast_in_its_first_round():
    params, _, first = Federation("fedzsl", strategy="moon").run(1)
    torch.testing.assert_close(params, Federation("fedzsl").run(1)[0])
    assert all(reply.terms["contrast"] == 0 for reply in first.replies)
    assert all(
        reply.terms["contrast"] > 0
        for reply in Federation("fedzsl", strategy="moon").run(2)[2].replies
    )


def test_scaffold_estimates_mean_gradients_also_with_momentum():
    # Along a constant gradient, the control variate is that gradient.
    scaffold = find("strategy", "scaffold")
    made, sgd, w = scaffold(scaffold.Settings()), SGD(0.1, momentum=0.9), torch.zeros(3)
    instruction = made.recall(made.instruct(made.init({"w": w}, 4), {"w": w}, 0), {}, 0)
    end, constant = [w.clone()], torch.tensor([1.0, -2.0, 0.5])
    velocity = sgd.init({"w": w})
    for step in range(1, 8):
        sgd.update(end, [constant], velocity, step)
    _, own = made.finish(
        instruction, LocalResult({"w": end[0]}, {}, 7, {"w": sgd.step_length(7)}), {}
    )
    torch.testing.assert_close(own["w"], constant)


@pytest.mark.parametrize("strategy", ["fedavg", "local"])
def test_training_that_diverges_says_what_to_do(strategy):
    federation = Federation("fedzsl", {"lr": 1e30}, strategy)
    what = "training diverged: the update of client 0 in round 5 is not finite"
    message = message_of(
        federation.engine.round, 4, {}, federation.first, {}, [0, 1], error=FedUnseenError
    )
    assert message == f"{what}; lower method.lr or scale the features (data.features)"


def test_auto_takes_the_way_that_pays(monkeypatch):
    taken, federation = [], Federation("fedzsl", mode="auto")
    trainer = type(federation.worker.trainer)
    for way in ("train", "together"):
        real = getattr(trainer, way)
        monkeypatch.setattr(
            trainer, way, lambda *a, way=way, real=real: taken.append(way) or real(*a)
        )
    federation.run(1)
    federation.run(1, [2])
    assert taken == ["together", "train"]


GENERATOR = {"shared": ("generator.*",)}
SMALL = {"lr": 1e-3, "hidden": 9, "critic_steps": 2}


def selective_by_hand(rounds):
    """FZSL's Eqs. 4 and 5: average the generators alone; critics and softmaxes continue where they
    stopped.
    """
    federation = Federation("clswgan", SMALL, mode="one-at-a-time")
    method, worker = federation.method, federation.worker
    whole = {n: v.double() for n, v in method.init(np.random.default_rng(7)).items()}
    generator = {n: v for n, v in whole.items() if n.startswith("generator.")}
    critics = [{n: v for n, v in whole.items() if n not in generator} for _ in federation.clients]
    shares = [len(own) / sum(map(len, worker.classes)) for own in worker.classes]
    for round in range(rounds):
        trained = []
        for k in federation.clients:
            labels = worker.host_labels[worker.samples[k]]
            names = [""] if round else ["softmax", ""]  # once and for all
            plans = {
                n: method.plan(n, labels, 2, stream(3, f"batches {n}", round, k)) for n in names
            }
            plans.setdefault(
                "softmax",
                replace(plans[""], index=plans[""].index[:0], weight=plans[""].weight[:0]),
            )
            start, context = {**generator, **critics[k]}, method.client_context(worker.classes[k])
            trained.append(
                worker.trainer.train(Task(start, worker.samples[k], plans, context, {})).params
            )
        critics = [{n: one[n] for n in critics[0]} for one in trained]
        generator = {
            n: sum(w * one[n] for w, one in zip(shares, trained, strict=True)) for n in generator
        }
    return generator, critics


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["one-at-a-time", "batched"])
def test_selective_sharing_is_by_hand_what_the_paper_says(mode):
    params, states, result = Federation("clswgan", SMALL, options=GENERATOR, mode=mode).run(3)
    generator, critics = selective_by_hand(3)
    torch.testing.assert_close(params, generator, rtol=1e-6, atol=1e-8)
    own = [{n.removeprefix("own/"): v for n, v in states[k].items()} for k in range(5)]
    torch.testing.assert_close(own, critics, rtol=1e-6, atol=1e-8)
    assert (
        result.bytes_up
        == result.bytes_down
        == 5 * 8 * sum(value.numel() for value in params.values())
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", ["fedavg", "fedavg-decay", "fedprox", "fednova", "moon", "fedgloss"]
)
def test_selective_sharing_combines_with_every_strategy(strategy):
    options = {"fedprox": {"mu": 0.5}, "fedgloss": {"rho": 0.3}}.get(strategy, {})
    one = Federation("clswgan", SMALL, strategy, options | GENERATOR, mode="one-at-a-time").run()
    assert_alike(
        one, Federation("clswgan", SMALL, strategy, options | GENERATOR, mode="batched").run()
    )
    plain = Federation("clswgan", SMALL, strategy, options, mode="one-at-a-time").run()[0]
    sent, sent_plain = ({name.split(".")[0] for name in params} for params in (one[0], plain))
    assert (sent, sent_plain) == (
        {"generator"},
        {"generator", "critic"},
    )  # the softmax never travels
    assert any(not torch.equal(plain[name], value) for name, value in one[0].items())


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "moon", "scaffold"])
def test_alone_it_makes_no_difference_what_travels(strategy):
    """With one client, whose averages are itself, nothing depends on what is averaged."""
    settings, method = (
        ({"consistency": 0.5}, "fedzsl") if strategy == "scaffold" else (SMALL, "clswgan")
    )
    shared = {"shared": ("g.*",)} if strategy == "scaffold" else GENERATOR
    options = {"fedprox": {"mu": 0.0}, "moon": {"mu": 0.0}}.get(strategy, {})
    some = Federation(method, settings, strategy, options | shared, pooled=True).run(3)
    every = Federation(method, settings, strategy, options, pooled=True).run(3)[0]
    rest = {
        name.removeprefix("own/"): value
        for name, value in some[1][0].items()
        if name.startswith("own/")
    }
    for name, value in {**some[0], **rest}.items():
        if name in every:
            torch.testing.assert_close(value, every[name], rtol=1e-4, atol=1e-6)


def test_a_client_that_joins_late_trains_its_softmax_then():
    federation = Federation("clswgan", SMALL, options=GENERATOR, mode="batched")
    params, states = federation.first, {}
    for round, clients in enumerate([[0, 1], [0, 1, 2]]):
        result = federation.engine.round(round, {}, params, states, clients)
        params, states = result.params, states | result.client_states
        found = {reply.client: "softmax" in reply.terms for reply in result.replies}
        assert found == ({0: True, 1: True} if round == 0 else {0: False, 1: False, 2: True})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "strategy", "options"),
    [("classifier", "fedavg", {}), ("fedzsl", "scaffold", {}), ("classifier", "fednova", {}),
     ("classifier", "moon", {}), ("classifier", "local", {}), ("clswgan", "fedavg", {"shared": ("generator.*",)})],
)  # fmt: skip
def test_many_clients_have_the_bits_of_few(monkeypatch, method, strategy, options):
    """Updates and states on disk, one client at a time, instead of in memory."""
    in_memory = Federation(method, None, strategy, options, mode="one-at-a-time").run(3)
    monkeypatch.setattr(in_process, "_MANY", 2)
    monkeypatch.setattr(in_process, "_PART", 2**60)  # a part of the clients is a single one
    params, states, result = Federation(method, None, strategy, options, mode="one-at-a-time").run(
        3
    )
    assert not isinstance(result.replies[0].update, dict)
    result = replace(
        result, replies=[replace(reply, update=dict(reply.update)) for reply in result.replies]
    )
    assert_alike(
        in_memory, (params, {k: dict(own) for k, own in states.items()}, result), rtol=0, atol=0
    )


def test_of_many_clients_a_part_trains_at_once_and_few_in_a_round_keep_their_updates_in_memory(
    monkeypatch,
):
    monkeypatch.setattr(in_process, "_MANY", 2)
    _, _, result = Federation("fedzsl", None, "scaffold").run(1, [1, 3])
    assert [type(reply.update) for reply in result.replies] == [dict, dict]
    assert {client: type(own) for client, own in result.client_states.items()} == {
        1: StoredTensors,
        3: StoredTensors,
    }
    federation = Federation("classifier")
    model = sum(4 * value.numel() for value in federation.first.values())
    federation.worker.memory = in_process._PART * 2 * model  # room for two
    monkeypatch.setattr(federation.worker, "round", Mock(wraps=federation.worker.round))
    federation.run(1)
    seen = [call.args[0] for call in federation.worker.round.call_args_list]
    assert [[work.client for work in works] for works in seen] == [[0, 1], [2, 3], [4]]
