"""The trainer against loops written by hand, on toy methods that use all that a schedule of phases
can do.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedunseen.core.phases import SGD, Adam, Phase, Plan, epochs_plan, weighted_mean
from fedunseen.core.trainer import Task, Trainer, batching_pays, chunk_size

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = [3, 17, 40, 8, 1]  # with batches of 8: 1, 3, 5, 1 and 1 an epoch
WIDTH, CLASSES = 6, 4


def data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(sum(SIZES), WIDTH, generator=generator)
    labels = torch.randint(CLASSES, (sum(SIZES),), generator=generator)
    order = np.random.default_rng(0).permutation(
        sum(SIZES)
    )  # a client's samples do not lie together
    return inputs, labels, np.split(order, np.cumsum(SIZES)[:-1])


def drawn(shapes, seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def linear_params(seed=0):
    return drawn({"weight": (CLASSES, WIDTH), "bias": (CLASSES,)}, 100 + seed)


def cross_entropy(params, batch, context):
    logits = F.linear(batch["inputs"], params["weight"], params["bias"]) * context["scale"]
    loss = weighted_mean(
        F.cross_entropy(logits, batch["labels"], reduction="none"), batch["weights"]
    )
    return loss, {"loss": loss, "twice": 2 * loss}


def one_phase(optimiser, correct=lambda gradient: gradient):
    inputs, labels, samples = data()
    phase = Phase("local", cross_entropy, optimiser)
    trainer = Trainer((phase,), inputs, labels, {"scale": torch.tensor(2.0)}, correct)
    tasks = [
        Task(
            linear_params(k),
            own,
            {"": epochs_plan(len(own), 8, 2, np.random.default_rng(k))},
            {},
            {},
        )
        for k, own in enumerate(samples)
    ]
    return trainer, tasks


def by_hand(task, inputs, labels, optimiser, **options):
    """Train ``nn.Linear`` as anybody would."""
    layer = torch.nn.Linear(WIDTH, CLASSES)
    layer.load_state_dict(task.params)
    torchs = optimiser(layer.parameters(), **options)
    losses = []
    for index, weight in zip(task.plans[""].index, task.plans[""].weight, strict=True):
        rows = task.samples[index[weight > 0]]
        loss = F.cross_entropy(2.0 * layer(inputs[rows]), labels[rows])
        torchs.zero_grad()
        loss.backward()
        torchs.step()
        losses.append(loss.item())
    return {name: value.detach() for name, value in layer.named_parameters()}, float(
        np.mean(losses)
    )


def assert_alike(results, others):
    for result, other in zip(results, others, strict=True):
        torch.testing.assert_close(result.params, other.params, rtol=1e-4, atol=1e-6)
        assert result.steps == other.steps
        assert result.terms == pytest.approx(other.terms, rel=1e-3, abs=1e-5)


DROPPED = Plan(  # samples anywhere in a batch
    np.array([[5, 1, 2, 3, 4, 0, 6, 7], [0, 9, 2, 3, 10, 5, 11, 12]]),
    np.array([[0, 1, 0, 0, 1, 0, 0, 1], [0, 0, 0, 1, 0, 0, 1, 0]], dtype=np.float32),
)


@pytest.mark.parametrize("way", ["one", "together"])
@pytest.mark.parametrize("plan", [None, DROPPED], ids=["epochs", "dropped samples"])
@pytest.mark.parametrize(
    ("optimiser", "kind", "options"),
    [
        (SGD(0.1, 0.9, 0.01), torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
        (Adam(0.02), torch.optim.Adam, {"lr": 0.02}),
    ],
)
def test_a_local_update_is_that_of_a_loop_written_by_hand(way, plan, optimiser, kind, options):
    trainer, tasks = one_phase(optimiser)
    if plan is not None:
        tasks = [replace(task, plans={"": plan}) for task in tasks[1:3]]
    results = (
        trainer.together(tasks) if way == "together" else [trainer.train(task) for task in tasks]
    )
    assert [result.steps for result in results] == ([2, 6, 10, 2, 2] if plan is None else [2, 2])
    for task, result in zip(tasks, results, strict=True):
        params, loss = by_hand(task, trainer.inputs, trainer.labels, kind, **options)
        torch.testing.assert_close(result.params, params, rtol=1e-4, atol=1e-6)
        assert result.terms == pytest.approx({"loss": loss, "twice": 2 * loss}, rel=1e-4)


def test_a_clients_result_does_not_depend_on_the_others_or_on_their_order():
    trainer, tasks = one_phase(SGD(0.1, 0.9))
    everybody = trainer.together(tasks)
    assert_alike(everybody, trainer.together(tasks[::-1])[::-1])
    for k, task in enumerate(tasks):
        for others in ([], [tasks[(k + 2) % len(tasks)]]):
            assert_alike([everybody[k]], trainer.together([task, *others])[:1])


def test_a_correction_sees_parameters_and_extras_in_both_ways():
    def pulled(gradient):
        def corrected(params, step):
            grads, terms = gradient(params, step)
            grads = {
                n: g + step.extras["mu"] * (params[n] - step.extras[f"to/{n}"])
                for n, g in grads.items()
            }
            return grads, {**terms, "pull": step.extras["mu"]}

        return corrected

    trainer, tasks = one_phase(SGD(0.1, 0.9), pulled)
    common = linear_params(9)  # the same tensors for all: not copied
    extras = [
        {"mu": torch.tensor(0.1 * k), "to/weight": common["weight"], "to/bias": common["bias"]}
        for k in range(5)
    ]
    tasks = [replace(task, extras=own) for task, own in zip(tasks, extras, strict=True)]
    results = trainer.together(tasks)
    assert_alike(results, [trainer.train(task) for task in tasks])
    assert [result.terms["pull"] for result in results] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    plain = one_phase(SGD(0.1, 0.9))[0].train(tasks[2])
    assert not torch.allclose(plain.params["weight"], results[2].params["weight"], atol=1e-3)


def test_a_clients_own_context_goes_before_the_common_one():
    trainer, tasks = one_phase(SGD(0.1))
    own = [replace(task, context={"scale": torch.tensor(float(k))}) for k, task in enumerate(tasks)]
    results = trainer.together(own)
    assert_alike(results, [trainer.train(task) for task in own])
    assert torch.equal(
        results[0].params["weight"], tasks[0].params["weight"]
    )  # scale 0: no gradient
    assert_alike([results[2]], trainer.together(tasks)[2:3])  # scale 2 is the common one


def test_a_batch_of_which_nothing_is_left_still_moves_by_its_momentum():
    trainer, tasks = one_phase(SGD(0.1, 0.9))
    plan = Plan(
        np.zeros((2, 3), dtype=np.int64), np.array([[1, 0, 0], [0, 0, 0]], dtype=np.float32)
    )
    both = [replace(tasks[0], plans={"": p}) for p in (plan, Plan(plan.index[:1], plan.weight[:1]))]
    results = [trainer.train(task) for task in both]
    assert_alike(trainer.together(both), results)
    whole, first = (result.params["weight"] - tasks[0].params["weight"] for result in results)
    torch.testing.assert_close(whole, first + 0.9 * first)


def test_clients_must_be_ranked_alike_by_all_plans():
    trainer, tasks = one_phase(SGD(0.1))
    before = Phase("before", cross_entropy, SGD(0.1), before_round=True)
    trainer = replace(trainer, phases=(before, *trainer.phases))
    long, short = (epochs_plan(8, 8, epochs, np.random.default_rng(0)) for epochs in (3, 1))
    plans = [{"before": short, "": long}, {"before": long, "": short}]
    tasks = [replace(task, plans=own) for task, own in zip(tasks[1:3], plans, strict=True)]
    with pytest.raises(
        ValueError, match=r"^the plans of a round's phases must rank its clients alike$"
    ):
        trainer.together(tasks)


# A schedule with several phases


def start_loss(params, batch, context):
    loss = weighted_mean(
        (batch["inputs"] @ params["start.w"] - batch["labels"]).square(), batch["weights"]
    )
    return loss, {"start": loss}


def critic_loss(params, batch, context):
    made = torch.tanh(batch["noise"] @ params["generator.w"])
    gap = (
        (made - batch["inputs"]) @ params["critic.w"] + params["critic.b"] - params["start.w"].sum()
    )
    loss = weighted_mean(gap + 0.5 * gap.square(), batch["weights"])
    return loss, {"critic": loss}


def generator_loss(params, batch, context):
    made = torch.tanh(batch["noise"] @ params["generator.w"])
    loss = weighted_mean(
        -(made @ params["critic.w"]) + (made - params["fixed"]).square().sum(-1), batch["weights"]
    )
    return loss, {"generator": loss, "loss": loss}


PHASES = (
    Phase("start", start_loss, SGD(0.02, 0.5), ("start.*",), before_round=True),
    Phase("critic", critic_loss, Adam(0.01, (0.5, 0.9)), ("critic.*",), repeats=3),
    Phase("generator", generator_loss, SGD(0.05, 0.9, 0.1), ("generator.*",)),
)
NOISE = 3
SHAPES = {
    "start.w": (WIDTH,),
    "critic.w": (WIDTH,),
    "critic.b": (),
    "generator.w": (NOISE, WIDTH),
    "fixed": (1,),
}


def adversarial_by_hand(task, inputs, labels):
    """Train as a script would: three parameter groups, each with an optimiser of torch."""
    p = {name: value.clone().requires_grad_() for name, value in task.params.items()}
    optimisers = {
        "start": torch.optim.SGD([p["start.w"]], lr=0.02, momentum=0.5),
        "critic": torch.optim.Adam([p["critic.w"], p["critic.b"]], lr=0.01, betas=(0.5, 0.9)),
        "generator": torch.optim.SGD([p["generator.w"]], lr=0.05, momentum=0.9, weight_decay=0.1),
    }
    logged = {name: [] for name in optimisers}

    def step(name, loss):
        optimisers[name].zero_grad()
        loss.backward()
        optimisers[name].step()
        logged[name].append(loss.item())

    for index, weight in zip(task.plans["start"].index, task.plans["start"].weight, strict=True):
        rows = task.samples[index[weight > 0]]
        step("start", (inputs[rows] @ p["start.w"] - labels[rows]).square().mean())
    plan = task.plans[""]
    for i, (index, weight, noise) in enumerate(
        zip(plan.index, plan.weight, plan.extras["noise"], strict=True)
    ):
        rows, z = task.samples[index[weight > 0]], torch.from_numpy(noise[weight > 0])
        made = torch.tanh(z @ p["generator.w"])
        gap = (made - inputs[rows]) @ p["critic.w"] + p["critic.b"] - p["start.w"].sum()
        step("critic", (gap + gap.square() / 2).mean())
        if i % 3 == 2:  # the end of a turn
            made = torch.tanh(z @ p["generator.w"])
            step(
                "generator",
                -(made @ p["critic.w"]).mean() + (made - p["fixed"]).square().sum(1).mean(),
            )
    terms = {name: float(np.mean(values)) for name, values in logged.items()}
    return {name: value.detach() for name, value in p.items()}, {
        **terms,
        "loss": terms["generator"],
    }


@pytest.mark.parametrize("way", ["one", "together"])
def test_phases_take_turns_each_with_its_own_parameters_and_optimiser(way):
    inputs, labels, samples = data()
    trainer, tasks = Trainer(PHASES, inputs, labels, {}, lambda gradient: gradient), []
    for k, own in enumerate(samples):
        rng = np.random.default_rng(k)
        turns = epochs_plan(len(own), 8, 3, rng)  # whole turns of three batches
        noise = rng.normal(size=(turns.steps, 8, NOISE)).astype(np.float32)
        plans = {
            "start": epochs_plan(len(own), 5, 1, rng),
            "": replace(turns, extras={"noise": noise}),
        }
        tasks.append(Task(drawn(SHAPES, k), own, plans, {}, {}))
    results = (
        trainer.together(tasks) if way == "together" else [trainer.train(task) for task in tasks]
    )
    for task, result in zip(tasks, results, strict=True):
        params, terms = adversarial_by_hand(task, inputs, labels)
        torch.testing.assert_close(result.params, params, rtol=1e-4, atol=1e-5)
        assert result.terms == pytest.approx(terms, rel=1e-3, abs=1e-4)
        assert torch.equal(result.params["fixed"], task.params["fixed"])  # no phase updates it
        assert result.steps == 3 * -(-len(task.samples) // 8) + -(-len(task.samples) // 5)


def test_batching_pays_where_many_small_steps_are_taken():
    cpu, gpu, wide = torch.device("cpu"), torch.device("cuda"), 2048 * 312
    assert (batching_pays(1, 8, 100, cpu), batching_pays(2, 8, 100, cpu)) == (False, True)
    assert (batching_pays(100, 64, wide, cpu), batching_pays(2, 64, wide, gpu)) == (False, True)


def test_chunk_size_counts_parameters_features_and_scores():
    task = Task(
        linear_params(),
        np.arange(10),
        {"": epochs_plan(10, 8, 1, np.random.default_rng(0))},
        {},
        {},
    )
    parameters, features, scores = 4 * (WIDTH * CLASSES + CLASSES), 4 * 8 * WIDTH, 4 * 8 * 1000
    context = {"mask": torch.ones(1000, dtype=torch.bool), "scale": torch.tensor(1.0)}
    client = 8 * parameters + 8 * features + 32 * scores
    assert [chunk_size(task, context, memory) for memory in (3 * client, 3 * client - 1, 1)] == [
        3,
        2,
        1,
    ]
    assert (
        chunk_size(
            replace(task, params={"w": torch.tensor(1.0)}), {}, 5 * (8 * 4 + 4 * 8 * (8 + 32))
        )
        == 5
    )
