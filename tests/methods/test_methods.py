"""What holds for every method of the package."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from on_space import batch, on

from fedunseen.core.registry import find
from fedunseen.core.trainer import Task, Trainer
from fedunseen.data import ClassSpace
from fedunseen.methods import METHODS, Candidates, FedZSL, Method
from fedunseen.methods.base import AttributePredictor
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.generative import Generative
from refusals import message_of


@pytest.fixture(params=sorted(name for name in METHODS if find("method", name).task == "zero-shot"))
def method(request, grouped):
    kind = find("method", request.param)
    return on(kind, grouped, **({"output": "linear", "head_epochs": 2} if kind.generates else {}))


def samples(method, count=9):
    return torch.randn(count, *method.backbone.shape)


def test_the_settings_know_their_method_and_a_softmax_over_classes_does_not_grow():
    assert [find("method", name).Settings().name for name in METHODS] == list(METHODS)
    assert not find("method", "classifier").grows


def test_it_is_trained_or_solved_and_drawn_from_the_given_generator_alone(method):
    assert bool(method.phases()) is method.trained is not isinstance(method, ClosedForm)
    first = method.init(np.random.default_rng(3))
    torch.manual_seed(0)
    again = method.init(np.random.default_rng(3))
    assert list(first) == list(again)
    assert all(torch.equal(first[name], again[name]) for name in first)
    kinds = (
        {torch.float32} if method.trained else {torch.float64, torch.uint8}
    )  # sums, and of which classes
    assert {value.dtype for value in first.values()} == kinds
    assert all(any(phase.owns(name) for name in first) for phase in method.phases())


def test_classes_may_come_later_only_if_no_parameter_is_about_a_class(method, grouped):
    """What it draws for a class space with two classes more has the same shapes, or follows from
    what it had.
    """
    if not method.grows:
        return
    semantics = np.concatenate([grouped.semantics, grouped.semantics[:2] + 1])
    more = replace(grouped, names=(*grouped.names, "one more", "another"), semantics=semantics)
    settings = getattr(method, "options", method.settings)
    later = type(method)(settings, more, torch.from_numpy(more.semantics).float(), method.backbone)
    before, after = method.init(np.random.default_rng(0)), later.init(np.random.default_rng(0))
    if not method.trained:
        rows, labels = samples(method, 20), torch.arange(20) % 5
        before, after = method.statistics(rows, labels), later.statistics(rows, labels)
    carried = later.expand_classes(before)
    assert list(carried) == list(after)
    assert all(torch.equal(carried[name], after[name]) for name in after)


def test_it_scores_every_class(method, space):
    params = method.init(np.random.default_rng(0))
    if not method.trained:
        params = method.statistics(samples(method, 20), torch.arange(20) % 5)
    params = method.fit_heads(
        params, Candidates(space.names, method.semantics, space.seen, space.unseen), 0
    )
    assert method.scores(params, samples(method), method.semantics).shape == (9, 8)
    if method.zero_shot:  # new classes need no training, or none by anybody who holds samples
        more = Candidates(
            ("one", "other", "third"),
            torch.randn(3, 30),
            np.array([], dtype=np.int64),
            np.arange(3),
        )
        params = method.fit_heads(params, more, 0)
        assert method.scores(params, samples(method), more.semantics).shape == (9, 3)


def test_it_predicts_attributes_and_features_if_it_says_so(method):
    params = method.init(np.random.default_rng(0))
    assert method.generates is isinstance(method, Generative)
    if isinstance(method, AttributePredictor):
        assert method.attributes(params, samples(method)).shape == (9, 30)
    if isinstance(method, FedZSL):
        assert method.reconstruct(params, torch.randn(9, 30)).shape == (9, 12)
    if method.trained:
        represented = method.represent(params, samples(method))
        assert (len(represented), represented.ndim) == (9, 2)


def test_what_a_strategy_contrasts_is_what_the_loss_has_computed(method):
    """A loss may give its features as the term ``representation``, so that MOON need not compute
    them again.
    """
    params, rng = method.init(np.random.default_rng(0)), np.random.default_rng(1)
    labels = np.array([0, 1, 2, 3, 0, 1])
    context = {**method.context(), **method.client_context(np.arange(4))}
    for phase in method.phases():
        plan = method.plan(phase.name if phase.before_round else "", labels, 1, rng)
        rows = plan.index[0][plan.weight[0] > 0]
        drawn = {
            name: torch.from_numpy(v[: len(rows)])
            for name, v in (plan.draws(0) if plan.draws else {}).items()
        }
        inputs = torch.from_numpy(rng.random((len(rows), *method.backbone.shape), dtype=np.float32))
        batch = {
            "inputs": inputs,
            "labels": torch.from_numpy(labels[rows]),
            "weights": torch.ones(len(rows)),
            **drawn,
        }
        _, terms = phase.loss(params, batch, context)
        if "representation" in terms:
            torch.testing.assert_close(
                terms["representation"], method.contrast(params, batch, context)
            )


TERMS = {
    "apn": ("sce", "sce_p", "mse", "mse_p", "groups_v", "groups_p", "compactness"),
    "gem": ("sce", "regression", "decorrelation", "compactness"),
    "svip": ("sce", "kl", "decorrelation", "patches"),
    "fedzsl": ("sce", "kl", "consistency"),
    "distzsl": ("sce", "kl", "bilateral", "decorrelation"),
}
NEEDED = {("gem", "sce"), ("svip", "sce")}  # their weight is above 0


@pytest.mark.parametrize(
    ("name", "off"), [(n, t) for n in TERMS for t in TERMS[n] if (n, t) not in NEEDED]
)
def test_a_term_of_weight_zero_is_not_computed_and_its_parameters_are_not_drawn(grouped, name, off):
    made = on(find("method", name), grouped, **{off: 0})
    params, context = made.init(np.random.default_rng(0)), made.context()
    terms = made.loss(params, batch(made.backbone.shape), context)[1]
    assert set(terms) == {"loss", *TERMS[name], "representation"} - {off}
    if "zsl" in name:
        assert ("gamma" in context) is (off != "kl")
        assert ("h.weight" in params) is (off not in ("consistency", "bilateral"))
    if name == "svip":
        assert any(key.startswith("fill.") for key in params) is (off != "kl")
        assert any(key.startswith("patches.") for key in params) is (off != "patches")


def test_a_method_that_says_too_little_is_told_so(space):
    class Unfinished(Method):
        pass

    method, nothing = on(Unfinished, space, name="unfinished"), torch.zeros(1, 1)
    rng = np.random.default_rng(0)
    assert (
        message_of(method.init, rng, error=TypeError) == "Unfinished must say how it is initialized"
    )
    refusal = message_of(method.scores, {}, nothing, nothing, error=TypeError)
    assert refusal == "Unfinished must say how it scores classes"


GROUPS, VALUES = 3, 4  # three groups of four attributes, one of each group present: 64 classes
CHANNELS, CELLS = 16, 12
UNSEEN = [
    c for c in range(64) if (c // 16 + c // 4 + c) % 4 == 1 and c % 16 < 10
]  # each attribute in seen ones too
# method -> settings with which it solves the problem on maps, or on their means, and in how many epochs
LEARN = {
    "apn": ({}, 10),
    "apn, average": ({"pool": "average"}, 10),
    "gem": ({"lr": 0.1}, 10),
    "msdn": ({}, 10),
    "svip": ({"width": 16, "lr": 0.01}, 6),
    "distzsl": ({"lr": 0.1}, 20),
}
SLOW = ("msdn", "svip", "distzsl")


def problem():
    """Return a class space, and maps and labels of seen and unseen ones: attribute j lights channel
    j in one cell.
    """
    rng = np.random.default_rng(0)
    digits = np.stack(np.unravel_index(np.arange(64), (VALUES,) * GROUPS), axis=1)
    present = digits + VALUES * np.arange(GROUPS)  # (64, 3) attribute columns
    semantics = np.eye(GROUPS * VALUES)[present].sum(1) / GROUPS**0.5
    seen = np.setdiff1d(np.arange(64), UNSEEN)
    names, attributes = (
        [f"{what} {i}" for i in range(n)] for what, n in (("class", 64), ("attribute", 12))
    )
    groups = {f"group {g}": tuple(range(g * VALUES, (g + 1) * VALUES)) for g in range(GROUPS)}

    def samples(classes):
        labels = np.repeat(classes, 20)
        maps = 0.3 * np.abs(rng.normal(size=(len(labels), CHANNELS, CELLS)))
        for i, c in enumerate(labels):
            maps[i, present[c], rng.choice(CELLS, GROUPS, replace=False)] += 3.0
        return torch.from_numpy(maps).float().unflatten(2, (3, 4)), torch.from_numpy(labels)

    return (
        ClassSpace(names, semantics, attributes, seen, [], UNSEEN, groups),
        samples(seen),
        samples(UNSEEN),
    )


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in LEARN]
)
def test_it_recognises_classes_that_it_never_saw(name):
    (settings, epochs), kind = LEARN[name], find("method", name.split(",")[0])
    space, (inputs, labels), (tests, answers) = problem()
    if kind.takes == "vectors":
        inputs, tests = inputs.mean((2, 3)), tests.mean((2, 3))
    method = on(kind, space, inputs.shape[1:], **settings)
    plan = method.plan("", labels.numpy(), epochs, np.random.default_rng(0))
    own = method.client_context(space.seen)
    task = Task(method.init(np.random.default_rng(0)), np.arange(len(labels)), {"": plan}, own, {})
    trainer = Trainer(method.phases(), inputs, labels, method.context(), lambda gradient: gradient)
    scores = method.scores(trainer.train(task).params, tests, method.semantics)[:, UNSEEN]
    assert (torch.tensor(UNSEEN)[scores.argmax(1)] == answers).float().mean() > 0.8
