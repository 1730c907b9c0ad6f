"""Few-shot methods against the papers' equations in NumPy, finite differences and plain loops.

The network is f(x) = F x and a linear classifier H f + b, whose gradients fit in one line each.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import softmax

from fedunseen.core.parameters import under
from fedunseen.core.phases import PEER_COUNTS
from fedunseen.data import ClassSpace
from fedunseen.encoders.backbone import Backbone
from fedunseen.encoders.conv import Conv4Settings, ConvBackbone, ResNet12Backbone, ResNet12Settings
from fedunseen.methods import MAML, MAMLMI, MAMLMIAdv, ProtoNet
from fedunseen.methods.episodic import turn
from known_names import refuses

INPUTS, FEATURES, WAYS, SHOTS, QUERIES, TASKS = 5, 4, 3, 2, 4, 2
ALPHA, STEPS = 0.3, 2
SPACE = ClassSpace(("a", "b", "c", "d"), np.zeros((4, 0)), (), [0, 1, 2], [], [3])


class Linear(Backbone):
    """The trained features f(x) = F x."""

    trained = True

    def init(self, rng):
        return {
            "f.weight": torch.from_numpy(rng.normal(size=(FEATURES, INPUTS)) / INPUTS**0.5).float()
        }

    def __call__(self, params, inputs, training=False):
        return inputs @ params["f.weight"].T


def make(kind, backbone=None, shape=(INPUTS,), batch_tasks="auto", **settings):
    """Return a method, its parameters (those of one round too) and a batch, in double precision."""
    options = {"ways": WAYS, "shots": SHOTS, "queries": QUERIES, "tasks": TASKS}
    if issubclass(kind, MAML):
        options |= {"inner_lr": ALPHA, "inner_steps": STEPS}
    method = kind(
        kind.Settings(**(options | settings)),
        SPACE,
        torch.zeros(4, 0),
        backbone or Linear((FEATURES,)),
    )
    method.batch_tasks = batch_tasks
    rng = np.random.default_rng(3)
    params = {
        name: value.double()
        for name, value in (method.init(rng) | method.round_parameters(rng)).items()
    }
    inputs = torch.from_numpy(rng.normal(size=(TASKS * WAYS * (SHOTS + QUERIES), *shape)))
    return method, params, {"inputs": inputs, "weights": torch.ones(len(inputs))}


def near(params):
    """Return a peer that differs, as losses find it in their context."""
    return under("peers/", {name: value + 0.2 * (1 + value) for name, value in params.items()})


# What the equations say, in NumPy


def model_of(params, head="head", prefix=""):
    """Return F, H and b."""
    return [
        params[prefix + name].numpy()
        for name in ("f.weight", f"{head}.out.weight", f"{head}.out.bias")
    ]


def episodes(batch):
    """Cut a batch into tasks: (WAYS * SHOTS, d) support and (WAYS * QUERIES, d) queries, class
    after class.
    """
    tasks = batch["inputs"].numpy().reshape(TASKS, WAYS, SHOTS + QUERIES, INPUTS)
    return [(t[:, :SHOTS].reshape(-1, INPUTS), t[:, SHOTS:].reshape(-1, INPUTS)) for t in tasks]


def answer(model, inputs):
    f, h, b = model
    return softmax(inputs @ f.T @ h.T + b, axis=1)


def adapt(model, support, adapts):
    """FedFSL Eq. 4, STEPS times: w' = w - alpha * gradient of the support set's cross-entropy."""
    right = np.repeat(np.eye(WAYS), SHOTS, axis=0)
    for _ in range(STEPS):
        f, h, b = model
        off = (answer(model, support) - right) / len(support)  # by the logits
        by_f = h.T @ off.T @ support if adapts == "all" else 0
        model = f - ALPHA * by_f, h - ALPHA * off.T @ support @ f.T, b - ALPHA * off.sum(0)
    return model


def cross_entropy(p):
    """The loss of one task's queries, Eq. 5, from their answers' probabilities."""
    return float(np.mean([-np.log(row[i // QUERIES]) for i, row in enumerate(p)]))


def kl(p, q):
    """D_KL(p || q) of Eqs. 12 and 14, the mean over queries."""
    return float(np.mean(np.sum(p * np.log(p) - p * np.log(q), axis=1)))


def right(p):
    return 100 * np.mean(p.argmax(1) == np.arange(len(p)) // QUERIES)


def check(found, rows, prefix=""):
    """Compare a loss and its terms with the mean of what each task's should be."""
    expected = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    assert all(value > 1e-4 for value in expected.values())
    loss, terms = found
    assert float(loss) == pytest.approx(expected["loss"], rel=1e-9)
    assert {name.removeprefix(prefix): float(v) for name, v in terms.items()} == pytest.approx(
        expected, rel=1e-6
    )


@pytest.mark.parametrize("kind", [MAML, MAMLMI])
@pytest.mark.parametrize("adapts", ["all", "head"])
def test_maml_is_the_queries_loss_after_inner_steps_and_mutual_information_pulls_towards_the_peers(
    adapts, kind
):
    """FedFSL Eq. 7, the mean over tasks of Eq. 5, and Eqs. 12 and 13: L + gamma D_KL(p(peer) ||
    p(client)).
    """
    method, params, batch = make(kind, adapt=adapts, **({"mi": 0.7} if kind is MAMLMI else {}))
    peer, rows = near(params), []
    for support, queries in episodes(batch):
        p = answer(adapt(model_of(params), support, adapts), queries)
        row = {"loss": cross_entropy(p), "accuracy": right(p)}
        if kind is MAMLMI:
            mutual = kl(answer(adapt(model_of(peer, prefix="peers/"), support, adapts), queries), p)
            row |= {"loss": row["loss"] + 0.7 * mutual, "task": row["loss"], "mi": mutual}
        rows.append(row)
    check(method.loss(params, batch, peer if kind is MAMLMI else {}), rows)


def test_the_mutual_information_begins_in_the_round_that_is_asked_for():
    method, params, batch = make(MAMLMI, mi=0.5, mi_from=2)
    for counts in (0.0, 1.0):
        loss, terms = method.loss(
            params, batch, {**near(params), PEER_COUNTS: torch.tensor(counts)}
        )
        assert float(loss) == pytest.approx(
            float(terms["task"]) + 0.5 * counts * float(terms["mi"]), rel=1e-12
        )
    rounds = [{"loss": 2.0, "mi": 1.0}, {"loss": 3.0, "mi": 0.4}, {"loss": 5.0, "mi": 0.6}]
    assert method.share(rounds) == pytest.approx(100 * 0.5 * (0.4 + 0.6) / 10)
    assert method.share([]) == 0


@pytest.mark.parametrize("adapts", ["all", "head"])
@pytest.mark.parametrize(("stage", "weight"), [("stage-1", -0.1), ("stage-2", 0.1)])
def test_the_adversarial_stages(stage, weight, adapts):
    """FedFSL Eqs. 15 and 16: the tasks' losses of both classifiers, less eta or plus lambda times
    Eq. 14.
    """
    method, params, batch = make(MAMLMIAdv, adapt=adapts, mi=0.7)
    peer, rows = (
        near({name: value for name, value in params.items() if not name.startswith("second.")}),
        [],
    )
    (phase,) = (phase for phase in method.phases() if phase.name == stage)
    for support, queries in episodes(batch):
        p, q = (
            answer(adapt(model_of(params, head), support, adapts), queries)
            for head in ("head", "second")
        )
        row = {"task": cross_entropy(p), "second": cross_entropy(q), "adversarial": kl(p, q)}
        row["loss"] = row["task"] + row["second"] + weight * row["adversarial"]
        row["mi"] = kl(answer(adapt(model_of(peer, prefix="peers/"), support, adapts), queries), p)
        row["loss"] += 0.7 * row["mi"]
        rows.append(row | {"accuracy": right(p)})
    check(phase.loss(params, batch, peer), rows, "stage1_")


def far_from_prototypes(params, groups, inputs):
    """Return |f(x) - c_n|^2 of each input x (row) and class n (column), c_n the mean of the group's
    features.
    """
    f = params["f.weight"].numpy()
    centres = [np.mean([f @ x for x in group], axis=0) for group in groups]
    return np.array([[np.sum((f @ x - centre) ** 2) for centre in centres] for x in inputs])


def test_a_query_of_protonet_is_answered_by_its_distance_from_the_prototypes_of_classes_of_uneven_size_too():
    """Snell et al. 2017, Eqs. 1 and 2: p(n | x) is proportional to exp(-|f(x) - c_n|^2), c_n a mean
    of features.
    """
    method, params, batch = make(ProtoNet)
    tasks = [(np.split(support, WAYS), queries) for support, queries in episodes(batch)]
    answers = [softmax(-far_from_prototypes(params, *task), axis=1) for task in tasks]
    check(
        method.loss(params, batch, {}),
        [{"loss": cross_entropy(p), "accuracy": right(p)} for p in answers],
    )
    support, inputs = batch["inputs"][:6], batch["inputs"][6:]
    groups = [support[rows].numpy() for rows in ([1, 5], [0, 2, 4], [3])]
    result = method.recognise(params, support, torch.tensor([1, 0, 1, 2, 1, 0]), inputs)
    np.testing.assert_allclose(
        result.numpy(), -far_from_prototypes(params, groups, inputs.numpy()), rtol=1e-9
    )


@pytest.mark.parametrize("batch_tasks", ["loop", "vmap"])
def test_a_test_episode_is_answered_after_more_inner_steps(batch_tasks):
    method, params, batch = make(MAML, batch_tasks=batch_tasks, test_steps=2 * STEPS)
    result = method.classify(params, method.tasks_of(batch))
    for logits, (support, queries) in zip(result, episodes(batch), strict=True):
        model = adapt(adapt(model_of(params), support, "all"), support, "all")
        np.testing.assert_allclose(
            torch.softmax(logits, 1).numpy(), answer(model, queries), rtol=1e-9
        )


def test_maml_learns_fewer_classes_than_it_was_trained_with_from_examples_of_uneven_number():
    """Two of its three answers are in use; the loss of the inner steps is the mean over
    examples.
    """
    method, params, batch = make(MAML, adapt="head", test_steps=1)
    support, inputs = batch["inputs"][:3].numpy(), batch["inputs"][6:].numpy()
    f, head, bias = model_of(params)
    features = support @ f.T
    wrong = softmax(features @ head.T + bias, axis=1) - np.eye(WAYS)[[1, 0, 1]]
    head, bias = head - ALPHA * wrong.T @ features / 3, bias - ALPHA * wrong.mean(0)
    result = method.recognise(
        params, batch["inputs"][:3], torch.tensor([1, 0, 1]), batch["inputs"][6:]
    )
    np.testing.assert_allclose(result.numpy(), (inputs @ f.T @ head.T + bias)[:, :2], rtol=1e-9)


# Gradients and batches of tasks


def by_tape(loss, params, batch, context):
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    grads = torch.autograd.grad(
        loss(leaves, batch, context)[0], list(leaves.values()), allow_unused=True
    )
    return {
        n: torch.zeros_like(v) if g is None else g
        for (n, v), g in zip(leaves.items(), grads, strict=True)
    }


@pytest.mark.parametrize("batch_tasks", ["loop", "vmap"])
@pytest.mark.parametrize("steps", [1, 3])
def test_second_order_gradients_agree_with_finite_differences(batch_tasks, steps):
    method, params, batch = make(
        MAML, inner_lr=0.5, inner_steps=steps, batch_tasks=batch_tasks, hidden=(6,)
    )
    grads = by_tape(method.loss, params, batch, {})
    for name, value in params.items():
        for place in range(0, value.numel(), 5):
            step = torch.zeros_like(value)
            step.view(-1)[place] = 1e-5
            above, below = (
                float(method.loss(params | {name: value + by}, batch, {})[0])
                for by in (step, -step)
            )
            assert float(grads[name].view(-1)[place]) == pytest.approx(
                (above - below) / 2e-5, abs=1e-7
            )


@pytest.mark.parametrize("norm", ["group", "batch-statistics", "none"])
@pytest.mark.parametrize("adapt", ["all", "head"])
@pytest.mark.parametrize("kind", [MAML, MAMLMIAdv, ProtoNet])
@pytest.mark.parametrize(
    ("network", "settings"), [(ConvBackbone, Conv4Settings), (ResNet12Backbone, ResNet12Settings)]
)
def test_tasks_of_convolutions_may_be_batched(network, settings, kind, adapt, norm):
    """``batch_tasks = "vmap"``: second derivatives of what was mapped over, pooling and
    normalization included.
    """
    result = []
    for batch_tasks in ("loop", "vmap"):
        backbone = network(settings(widths=(4, 4), norm=norm), (1, 6, 6), "vectors")
        options = {} if kind is ProtoNet else {"adapt": adapt}
        method, params, batch = make(
            kind, backbone, (1, 6, 6), batch_tasks=batch_tasks, hidden=(6,), **options
        )
        result.append(
            [by_tape(phase.loss, params, batch, near(params)) for phase in method.phases()]
        )
    for loop, batched in zip(*result, strict=True):
        torch.testing.assert_close(batched, loop)


@pytest.mark.parametrize("kind", [MAML, MAMLMI, ProtoNet])
@pytest.mark.parametrize("order", ["second", "first"])
def test_the_transform_gives_the_tapes_gradients(kind, order):
    """One client trains on the ordinary tape, a batch of clients through a transform."""
    method, params, batch = make(
        kind, hidden=(6,), **({} if kind is ProtoNet else {"order": order})
    )
    tape = by_tape(method.loss, params, batch, near(params))
    torch.testing.assert_close(
        torch.func.grad(lambda p: method.loss(p, batch, near(params))[0])(params), tape
    )


def test_first_order_is_the_gradient_at_the_adapted_parameters():
    """FOMAML's definition: the queries' gradient, taken where the inner steps end."""
    method, params, batch = make(MAML, order="first", hidden=(6,))
    expected = {name: torch.zeros_like(value) for name, value in params.items()}
    answers = torch.arange(WAYS).repeat_interleave(QUERIES)
    for support, queries in zip(*method.tasks_of(batch), strict=True):
        leaves = {n: v.requires_grad_() for n, v in method.adapted(params, support, "none").items()}
        loss = F.cross_entropy(method.logits(leaves, queries), answers) / TASKS
        for name, grad in zip(
            leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True
        ):
            expected[name] += grad
    torch.testing.assert_close(by_tape(method.loss, params, batch, {}), expected)


def test_what_the_answers_do_not_depend_on_stays_as_it_is():
    class Idle(Backbone):
        def init(self, rng):
            return {"f.idle": torch.ones(2)}

    method, params, batch = make(MAML, Idle((INPUTS,)), batch_tasks="loop")
    adapted = method.adapted(params, method.tasks_of(batch).support[0])
    assert adapted["f.idle"].tolist() == [1.0, 1.0]
    assert not torch.equal(adapted["head.out.bias"], params["head.out.bias"])


# Phases, plans and what is refused


def test_the_stages_update_the_classifiers_and_then_the_features():
    method, params, _ = make(MAMLMIAdv)
    first, second = method.phases()
    for name in params:
        assert (first.owns(name), second.owns(name)) == (
            not name.startswith("f."),
            name.startswith("f."),
        )
    assert first.before_round
    item, other = (
        method.round_parameters(np.random.default_rng(seed)) for seed in (0, 1)
    )  # drawn in each round
    assert set(item) == {"second.out.weight", "second.out.bias"}
    assert not torch.equal(item["second.out.weight"], other["second.out.weight"])


def test_images_are_turned_one_by_one():
    images = torch.arange(8.0).reshape(2, 1, 2, 2)
    turned = turn(images, torch.tensor([0.0, 1.0]))
    assert turned[:, 0].tolist() == [images[0, 0].tolist(), np.rot90(images[1, 0].numpy()).tolist()]


def test_a_plan_holds_whole_episodes():
    labels = np.repeat([0, 1, 2], 10)
    plan = make(MAML, episodes=4)[0].plan("", labels, 2, np.random.default_rng(0))
    assert plan.index.shape == (4, TASKS * WAYS * (SHOTS + QUERIES))
    episodes = labels[plan.index].reshape(-1, WAYS, SHOTS + QUERIES)
    assert all(len(set(row)) == 1 for episode in episodes for row in episode.tolist())
    assert all(len(set(episode[:, 0].tolist())) == WAYS for episode in episodes)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (MAML, {"rotations": True},
         "method.rotations turns square images, and these samples are none: set method.rotations = "
         "false"),
        (ProtoNet, {"hidden": ()},
         "method.name = 'protonet' has nothing to train on frozen features: add layers with "
         "method.hidden, or name a trained encoder, for example conv4"),
        (MAMLMIAdv, {},
         "method.name = 'maml-mi-adv' trains features that two classifiers agree on, but these are "
         "frozen: name a trained encoder, for example conv4"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(kind, settings, message):
    with refuses(message):
        make(kind, Backbone((INPUTS,)), **settings)
