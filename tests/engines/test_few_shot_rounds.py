"""Whole rounds of few-shot methods: batched against one at a time, the peer model against its
definition.
"""

import numpy as np
import pytest
import torch

from fedunseen.core.parameters import within
from fedunseen.core.registry import find
from fedunseen.data import ClassSpace
from fedunseen.encoders.backbone import Backbone
from fedunseen.encoders.conv import Conv4Settings, ConvBackbone
from fedunseen.federation.in_process import InProcess
from fedunseen.federation.worker import Execution, Work, Worker
from fedunseen.methods import METHODS
from fedunseen.strategies import Pipeline
from fedunseen.strategies.peers import Peers
from same import same

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
WIDTH = 6
CLASSES = [(0, 1, 2), (1, 2), (0, 3, 4, 5)]  # who holds which
EPISODE = {
    "ways": 2,
    "shots": 1,
    "queries": 3,
    "tasks": 2,
    "episodes": 4,
    "hidden": (5,),
    "lr": 0.01,
}


def engine(
    method="maml", settings=None, strategy="fedavg", options=None, mode="one-at-a-time", norm=None
):
    """Return an engine of three clients, and the first parameters, in double precision."""
    rng = np.random.default_rng(2)
    kind, plan = find("method", method), find("strategy", strategy)
    space = ClassSpace(tuple("abcdefg"), np.zeros((7, 0)), (), range(6), [], [6])
    backbone = Backbone((WIDTH,))
    if norm or method == "maml-mi-adv":  # the only one that has nothing to do on frozen features
        backbone = ConvBackbone(
            Conv4Settings(widths=(8,), norm=norm or "group"), (1, 2, 3), "vectors"
        )
    given = EPISODE | (settings or {})
    batch_tasks = given.pop("batch_tasks", "auto")
    made = kind(kind.Settings(**given), space, torch.zeros(7, 0), backbone)
    made.batch_tasks = batch_tasks
    labels = np.array([c for held in CLASSES for c in held for _ in range(5)])
    inputs = torch.from_numpy(
        rng.normal(size=(7, WIDTH))[labels] + 0.5 * rng.normal(size=(len(labels), WIDTH))
    )
    chosen = plan(plan.Settings(**({"weights": "uniform", "local_epochs": 1} | (options or {}))))
    if made.compares:
        chosen = Pipeline(chosen, [Peers(made.settings.exclusive, made.settings.mi_from)])
    samples = np.split(np.arange(len(labels)), 5 * np.cumsum([len(held) for held in CLASSES])[:-1])
    worker = Worker(made, chosen, inputs, torch.from_numpy(labels), samples, 3, Execution(mode))
    return InProcess(chosen, worker), {
        n: v.double() for n, v in made.init(np.random.default_rng(7)).items()
    }


def instruction_for(made, state, params, own, round):
    """Return what a client begins a round with."""
    return made.strategy.recall(made.strategy.instruct(state, params, round), own, round)


def peer(made, state, params, own, round):
    """Return the model with which a client compares its own in a round."""
    return within("peers/", instruction_for(made, state, params, own, round).kept)


def rounds(made, params, count=3, clients=(0, 1, 2)):
    """Return the state, the parameters, the clients' states and the results of some rounds."""
    state, states, results = made.strategy.init(params, 3), {}, []
    for round in range(count):
        results.append(made.round(round, state, params, states, clients))
        state, params = results[-1].state, results[-1].params
        states |= results[-1].client_states
    return state, params, states, results


VARIANTS = [  # settings that between them use all that our few-shot methods have
    ("maml", {"inner_steps": 2}),
    ("maml", {"order": "first", "batch_tasks": "loop"}),
    ("maml", {"adapt": "head", "optimiser": "sgd"}),
    ("maml-mi", {"inner_steps": 2}),
    ("maml-mi", {"exclusive": True, "batch_tasks": "loop", "mi_from": 2}),
    ("maml-mi-adv", {"inner_steps": 2}),
    ("maml-mi-adv", {"adapt": "head"}),
    ("protonet", {}),
]
OTHERS = sorted(
    {name for name in METHODS if find("method", name).task == "few-shot"}
    - {name for name, _ in VARIANTS}
)


@pytest.mark.parametrize(("method", "settings"), [*VARIANTS, *((name, {}) for name in OTHERS)])
@pytest.mark.parametrize("strategy", ["fedavg", "fedprox"])
def test_batched_clients_train_as_they_do_one_at_a_time(method, settings, strategy):
    _, alone, _, results = rounds(*engine(method, settings, strategy))
    _, batched, _, others = rounds(*engine(method, settings, strategy, mode="batched"))
    torch.testing.assert_close(batched, alone, rtol=1e-7, atol=1e-9)
    terms, twins = (
        [[set(reply.terms) for reply in one.replies] for one in several]
        for several in (results, others)
    )
    assert terms == twins


@pytest.mark.parametrize("batch_tasks", ["loop", "vmap"])
@pytest.mark.parametrize("method", ["maml", "maml-mi-adv", "protonet"])
def test_batched_clients_with_the_statistics_of_their_batches_do_too(method, batch_tasks):
    alone = engine(method, {"batch_tasks": "loop"}, norm="batch-statistics")
    together = engine(method, {"batch_tasks": batch_tasks}, norm="batch-statistics", mode="batched")
    torch.testing.assert_close(rounds(*together)[1], rounds(*alone)[1], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("mode", ["one-at-a-time", "batched"])
def test_the_second_classifier_never_leaves_its_client_nor_outlives_a_round(mode):
    made, first = engine("maml-mi-adv", mode=mode)
    _, params, states, results = rounds(made, first)
    assert params.keys() == first.keys()
    assert all(
        reply.update.keys() == first.keys() for result in results for reply in result.replies
    )
    assert not any("second" in name for state in states.values() for name in state)


def test_the_second_classifier_is_drawn_anew_by_every_client_in_every_round_and_sees_the_same_episodes():
    made, first = engine("maml-mi-adv")
    begun = []
    for round in (0, 1, 2):
        instruction = instruction_for(made, made.strategy.init(first, 3), first, {}, round)
        begun += [made.worker.task(Work(client, instruction, {}), round) for client in (0, 1)]
    for name in (name for name in begun[0].params if name.startswith("second.")):
        assert len({tuple(task.params[name].flatten().tolist()) for task in begun}) == 6
    plans = begun[0].plans
    assert np.array_equal(
        plans["stage-1"].index, plans[""].index
    )  # Algorithm 2 draws one batch of episodes


@pytest.mark.parametrize("mode", ["one-at-a-time", "batched"])
@pytest.mark.parametrize("exclusive", [False, True])
def test_before_its_first_round_mutual_information_has_no_part(exclusive, mode):
    """Two rounds are MAML's; the third is that of mutual information from there."""
    plain, first = engine("maml", mode=mode)
    late, _ = engine("maml-mi", {"mi_from": 3, "exclusive": exclusive}, mode=mode)
    always, _ = engine("maml-mi", {"exclusive": exclusive}, mode=mode)
    _, expected, _, _ = rounds(plain, first, 2)
    state, params, states, results = rounds(late, first, 2)
    torch.testing.assert_close(params, expected, rtol=1e-9, atol=1e-12)
    third, other = (one.round(2, state, params, states, (0, 1, 2)) for one in (late, always))
    naive = plain.round(2, plain.strategy.init(first, 3), params, {}, (0, 1, 2))
    torch.testing.assert_close(third.params, other.params, rtol=1e-9, atol=1e-12)
    assert any((third.params[name] - naive.params[name]).abs().max() > 1e-6 for name in expected)
    lines = [
        {name: float(value) for name, value in r.replies[0].terms.items()}
        for r in (*results, third)
    ]
    share = 0.2 * lines[2]["mi"] / sum(line["loss"] for line in lines)
    assert late.worker.method.share(lines) == pytest.approx(100 * share)


def test_naive_weights_without_pulls_are_maml():
    """gamma = eta = lambda = 0 and one classifier: what is left of each method is the one before
    it.
    """
    expected, found = (rounds(*engine(*given))[1] for given in (["maml"], ["maml-mi", {"mi": 0.0}]))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_peer_is_the_merged_model():
    made, first = engine("maml-mi")
    state, params, states, _ = rounds(made, first, 2)
    begun = instruction_for(made, state, params, states.get(1, {}), 2)
    kept = within("peers/", begun.kept)
    assert all(kept[name] is value for name, value in params.items())
    assert not begun.extras  # it does not travel a second time


def test_the_exclusive_peer_is_the_mean_of_all_others():
    """Eq. 11, from the clients' models themselves."""
    made, first = engine("maml-mi", {"exclusive": True})
    state, params, states, results = rounds(made, first, 2)
    for client in range(3):
        one, other = (results[-1].models(k) for k in range(3) if k != client)
        mean = {name: (one[name] + other[name]) / 2 for name in params}
        torch.testing.assert_close(peer(made, state, params, states[client], 2), mean)


def test_a_client_that_had_no_share_in_the_model_or_is_alone_compares_itself_with_all_of_it():
    made, first = engine("maml-mi", {"exclusive": True})
    state, params, states, _ = rounds(made, first, 1)
    result = made.round(1, state, params, states, [0, 2])
    assert same(peer(made, result.state, result.params, states[1], 2), result.params)
    state, params, states, _ = rounds(made, first, 2, clients=(0,))
    assert same(peer(made, state, params, states[0], 2), params)


def test_the_exclusive_peer_costs_two_numbers_a_client():
    without, costs = (
        rounds(*engine("maml-mi", {"exclusive": exclusive}), 2)[3] for exclusive in (False, True)
    )
    # before round 0 the weight is a float32, after a merge a float64; the round is a float32
    assert [b.bytes_down - a.bytes_down for a, b in zip(without, costs, strict=True)] == [
        3 * (4 + 4),
        3 * (4 + 8),
    ]
    assert [a.bytes_up for a in without] == [b.bytes_up for b in costs]
