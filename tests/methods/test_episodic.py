"""Few-shot methods against slow and obvious references: finite differences, plain loops, limits in which they agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import Params, under
from fedunseen.data import ClassSpace
from fedunseen.encoders.backbone import Backbone
from fedunseen.encoders.conv import Conv4Settings, ConvBackbone, ResNet12Backbone, ResNet12Settings
from fedunseen.methods.episodic import Episodic, turn
from fedunseen.methods.maml import MAML
from fedunseen.methods.maml_mi import MAMLMI
from fedunseen.methods.maml_mi_adv import MAMLMIAdv
from fedunseen.methods.protonet import ProtoNet

WAYS, SHOTS, QUERIES, TASKS = 3, 2, 4, 2
EPISODE = {"ways": WAYS, "shots": SHOTS, "queries": QUERIES, "tasks": TASKS, "episodes": 4, "hidden": (6,)}
SPACE = ClassSpace(("a", "b", "c", "d"), np.zeros((4, 0)), (), [0, 1, 2], [], [3])


def make(kind: type[Episodic], backbone: Backbone | None = None, **settings: object) -> tuple[Episodic, Params]:
    """Return a method on five features, or on a backbone, and parameters in double precision."""
    method = kind(kind.Settings(**{**EPISODE, **settings}), SPACE, torch.zeros(4, 0), backbone or Backbone((5,)))
    rng = np.random.default_rng(3)
    return method, {name: value.double() for name, value in (method.init(rng) | method.round_parameters(rng)).items()}


def batch_of(shape: tuple[int, ...] = (5,), seed: int = 0) -> dict[str, Tensor]:
    inputs = torch.from_numpy(np.random.default_rng(seed).normal(size=(TASKS * WAYS * (SHOTS + QUERIES), *shape)))
    return {"inputs": inputs, "weights": torch.ones(len(inputs))}


def by_tape(loss, params: Params, batch: dict[str, Tensor], context: Params) -> Params:
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    grads = torch.autograd.grad(loss(leaves, batch, context)[0], list(leaves.values()), allow_unused=True)
    return {n: torch.zeros_like(v) if g is None else g for (n, v), g in zip(leaves.items(), grads, strict=True)}


def by_differences(loss, params: Params, batch: dict[str, Tensor], context: Params, name: str, place: int) -> float:
    """Return the derivative by one number, from two values of the loss."""
    step = 1e-5
    values = []
    for sign in (1, -1):
        moved = {n: v.clone() for n, v in params.items()}
        moved[name].view(-1)[place] += sign * step
        values.append(float(loss(moved, batch, context)[0]))
    return (values[0] - values[1]) / (2 * step)


@pytest.mark.parametrize("batch_tasks", ["loop", "vmap"])
@pytest.mark.parametrize("steps", [1, 3])
def test_second_order_gradients_agree_with_finite_differences(batch_tasks: str, steps: int) -> None:
    method, params = make(MAML, inner_lr=0.5, inner_steps=steps, batch_tasks=batch_tasks)
    batch = batch_of()
    grads = by_tape(method.loss, params, batch, {})
    for name, value in params.items():
        for place in range(0, value.numel(), 5):
            expected = by_differences(method.loss, params, batch, {}, name, place)
            assert float(grads[name].view(-1)[place]) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("norm", ["group", "batch-statistics", "none"])
@pytest.mark.parametrize("adapt", ["all", "head"])
@pytest.mark.parametrize("kind", [MAML, MAMLMIAdv, ProtoNet])
@pytest.mark.parametrize(("network", "settings"), [(ConvBackbone, Conv4Settings), (ResNet12Backbone, ResNet12Settings)])
def test_tasks_of_convolutions_may_be_batched(network, settings, kind: type[Episodic], adapt: str, norm: str) -> None:
    """``batch_tasks = "vmap"``: second derivatives of what was mapped over, pooling and normalization included."""
    result = []
    for batch_tasks in ("loop", "vmap"):
        backbone = network(settings(widths=(4, 4), norm=norm), (1, 6, 6), "vectors")
        told = {} if kind is ProtoNet else {"adapt": adapt, "inner_steps": 2}
        method, params = make(kind, backbone, batch_tasks=batch_tasks, **told)
        context = under("peers/", {name: value + 0.1 for name, value in params.items()})
        batch = batch_of((1, 6, 6))
        result.append([by_tape(phase.loss, params, batch, context) for phase in method.phases()])
    for loop, batched in zip(*result, strict=True):
        for name, grad in loop.items():
            torch.testing.assert_close(batched[name], grad)


@pytest.mark.parametrize("kind", [MAML, MAMLMI, ProtoNet])
@pytest.mark.parametrize("order", ["second", "first"])
def test_the_transform_gives_the_tapes_gradients(kind: type[Episodic], order: str) -> None:
    """One client trains on the ordinary tape, a batch of clients through a transform."""
    settings = {} if kind is ProtoNet else {"order": order, "inner_steps": 2}
    method, params = make(kind, **settings)
    context = under("peers/", {name: value + 0.1 for name, value in params.items()})
    batch = batch_of()
    tape = by_tape(method.loss, params, batch, context)
    other = torch.func.grad(lambda p: method.loss(p, batch, context)[0])(params)
    for name, grad in tape.items():
        torch.testing.assert_close(other[name], grad)


def test_first_order_is_the_gradient_at_the_adapted_parameters() -> None:
    """FOMAML's definition: the queries' gradient, taken where the inner steps end."""
    method, params = make(MAML, order="first", inner_steps=2, inner_lr=0.3)
    batch = batch_of()
    expected = {name: torch.zeros_like(value) for name, value in params.items()}
    tasks = method.tasks_of(batch)
    for support, queries in zip(*tasks, strict=True):
        fast = {name: value.clone() for name, value in params.items()}
        for _ in range(2):
            leaves = {name: value.clone().requires_grad_() for name, value in fast.items()}
            answers = torch.arange(WAYS).repeat_interleave(SHOTS)
            loss = F.cross_entropy(network(leaves, support), answers)
            for (name, value), grad in zip(
                leaves.items(), torch.autograd.grad(loss, list(leaves.values())), strict=True
            ):
                fast[name] = (value - 0.3 * grad).detach()
        leaves = {name: value.clone().requires_grad_() for name, value in fast.items()}
        answers = torch.arange(WAYS).repeat_interleave(QUERIES)
        loss = F.cross_entropy(network(leaves, queries), answers) / TASKS
        for name, grad in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
            expected[name] += grad
    grads = by_tape(method.loss, params, batch, {})
    for name, grad in expected.items():
        torch.testing.assert_close(grads[name], grad)


def test_what_the_answers_do_not_depend_on_stays_as_it_is() -> None:
    class Idle(Backbone):
        def init(self, rng: np.random.Generator) -> Params:
            return {"f.idle": torch.ones(2)}

    method, params = make(MAML, Idle((5,)), batch_tasks="loop")
    adapted = method.adapted(params, method.tasks_of(batch_of()).support[0])
    assert adapted["f.idle"].tolist() == [1.0, 1.0]
    assert not torch.equal(adapted["head.out.bias"], params["head.out.bias"])


def network(params: Params, inputs: Tensor) -> Tensor:
    """The classifier of :func:`make`, written out."""
    hidden = torch.relu(inputs @ params["head.0.weight"].T + params["head.0.bias"])
    return hidden @ params["head.out.weight"].T + params["head.out.bias"]


def small_conv() -> ConvBackbone:
    return ConvBackbone(Conv4Settings(widths=(4,)), (1, 1, 5), "vectors")


def test_the_stages_update_the_classifiers_and_then_the_features() -> None:
    method, _ = make(MAMLMIAdv, ConvBackbone(Conv4Settings(widths=(4,)), (1, 6, 6), "vectors"))
    first, second = method.phases()
    params = method.init(np.random.default_rng(0)) | method.round_parameters(np.random.default_rng(0))
    owned = {name: (first.owns(name), second.owns(name)) for name in params}
    for name, owners in owned.items():
        assert owners == (not name.startswith("f."), name.startswith("f."))
    assert first.before_round
    assert not make(MAMLMIAdv, small_conv(), stages="alternating")[0].phases()[0].before_round


def test_the_second_classifier_is_drawn_anew_and_no_parameter_of_the_model() -> None:
    method, _ = make(MAMLMIAdv, small_conv())
    item, other = (method.round_parameters(np.random.default_rng(seed)) for seed in (0, 1))
    heads = [name for name in method.init(np.random.default_rng(0)) if name.startswith("head.")]
    assert set(item) == {name.replace("head.", "second.") for name in heads}
    assert not torch.equal(item["second.out.weight"], other["second.out.weight"])


def test_images_are_turned_one_by_one() -> None:
    images = torch.arange(8.0).reshape(2, 1, 2, 2)
    turned = turn(images, torch.tensor([0.0, 1.0]))
    assert turned[0].equal(images[0])
    assert turned[1, 0].tolist() == np.rot90(images[1, 0].numpy()).tolist()


def test_a_plan_holds_whole_episodes() -> None:
    method, _ = make(MAML)
    labels = np.repeat([0, 1, 2], 10)
    plan = method.plan("", labels, 2, np.random.default_rng(0))
    assert plan.index.shape == (4, TASKS * WAYS * (SHOTS + QUERIES))
    episodes = labels[plan.index].reshape(-1, WAYS, SHOTS + QUERIES)
    assert all(len(set(row)) == 1 for episode in episodes for row in episode.tolist())
    assert all(len(set(episode[:, 0].tolist())) == WAYS for episode in episodes)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (
            MAML,
            {"rotations": True},
            "method.rotations turns square images, and these samples are none: set method.rotations = false",
        ),
        (
            ProtoNet,
            {"hidden": ()},
            "method.name = 'protonet' has nothing to train on frozen features: add layers with method.hidden, or "
            "name a trained encoder, for example conv4",
        ),
        (
            MAMLMIAdv,
            {},
            "method.name = 'maml-mi-adv' trains features that two classifiers agree on, but these are frozen: name a "
            "trained encoder, for example conv4",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(kind: type[Episodic], settings: dict[str, object], message: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        make(kind, **settings)
    assert str(caught.value) == message
