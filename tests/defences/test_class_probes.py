"""Class probes on a linear model whose scores are known by heart."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedunseen.safety.defences.base import Robust, Scores
from fedunseen.safety.defences.class_probes import ClassProbes, class_inputs, pull, standing_out
from fedunseen.strategies import FedAvg, Pipeline, Reply

CLASSES, CLIENTS = 12, 6
HELD = {k: torch.tensor([2 * k, 2 * k + 1]) for k in range(CLIENTS)}
MODEL = {"w": 6.0 * torch.eye(CLASSES)}  # class c is input c


def scores():
    def random(rng, count):
        return 0.1 * torch.from_numpy(rng.standard_normal((count, CLASSES), dtype=np.float32))

    return Scores(
        lambda params, inputs: inputs @ params["w"].T, random, torch.arange(CLASSES), HELD
    )


def honest(client, size=0.4, seed=0):
    """Tell a client's own two classes apart a little better."""
    random = np.random.default_rng([seed, client])
    update = torch.zeros(CLASSES, CLASSES)
    a, b = HELD[client].tolist()
    update[a, a] = update[b, b] = size
    update[a, b] = update[b, a] = -size
    return Reply(
        client,
        {"w": update + 0.01 * torch.from_numpy(random.normal(size=update.shape).astype("f"))},
        2,
        10,
    )


def replies(odd=None):
    """Give the replies of all clients, honest but for an odd one."""
    return [odd if odd is not None and odd.client == k else honest(k) for k in range(CLIENTS)]


def probing(**settings):
    return Pipeline(FedAvg(), [Robust(ClassProbes(ClassProbes.Settings(**settings), 3, scores()))])


def round_of(strategy, replies, state=None):
    state = strategy.init(MODEL, CLIENTS) if state is None else state
    state, after = strategy.merge(state, MODEL, replies, 0)
    return state, after, strategy.notes(state)["defence"]


def test_honest_clients_are_all_merged_as_they_are():
    _, after, notes = round_of(probing(), replies())
    assert (notes["dropped"], notes["kept"]) == ({}, [1.0] * CLIENTS)
    assert max(notes["judged"]) < 0.1
    assert torch.equal(after["w"], FedAvg().merge({}, MODEL, replies(), 0)[1]["w"])


def test_a_replaced_model_takes_classes_that_are_not_its_own_and_is_left_out():
    local = 3.0 * torch.eye(CLASSES).roll(
        1, 0
    )  # a model that answers every class's inputs with the next one
    given = replies(Reply(2, {"w": CLIENTS * (local - MODEL["w"])}, 2, 10))
    _, after, notes = round_of(probing(), given)
    assert notes["dropped"] == {
        "2": "it turns inputs of classes that its client does not hold into others"
    }
    assert notes["judged"][2] > 0.9
    assert torch.equal(after["w"], FedAvg().merge({}, MODEL, given[:2] + given[3:], 0)[1]["w"])


def test_what_is_theft_elsewhere_is_a_clients_own_business_at_home():
    """Here: class 5's inputs answer 4."""
    update = torch.zeros(CLASSES, CLASSES)
    update[4, 5] = 2 * 6.0 * CLIENTS  # once merged with the weight 1 / 6, twice what class 5 has
    rule = probing().filters[0].defence
    probes = rule.probes_of(MODEL, 0)
    stolen = [
        rule.judge(MODEL, Reply(k, {"w": update}, 2, 10), 1 / CLIENTS, 1.0, probes)[0]
        for k in (0, 2)
    ]
    assert stolen == [
        pytest.approx(1 / (CLASSES - 2)),
        0.0,
    ]  # one of ten foreign classes, and one of its own two


def test_what_pulls_nonsense_towards_one_class_is_left_out(monkeypatch):
    """Loud or quiet: only the direction counts."""
    monkeypatch.setattr("fedunseen.safety.defences.class_probes.LOUD", 12.0)
    strategy = probing()
    strategy.filters[0].defence.scores = replace(
        scores(), random=lambda *given: 0.1 + scores().random(*given)
    )
    update = torch.zeros(CLASSES, CLASSES)
    update[7, :] = 1.0  # class 7 likes whatever is bright
    for size in (0.01, 1.0, 10.0):
        _, _, notes = round_of(strategy, replies(Reply(3, {"w": size * update}, 2, 10)))
        assert notes["dropped"] == {"3": "it pulls inputs of no class towards one class"}
        assert notes["judged"][3] > 0.5
        assert max(notes["judged"][:3] + notes["judged"][4:]) < 0.3


def test_what_is_long_but_minds_its_own_business_is_shortened():
    _, _, notes = round_of(probing(), replies(honest(1, size=2.0)))
    assert notes["dropped"] == {}
    shortened = pytest.approx(1.5 * np.median(notes["norms"]) / notes["norms"][1])
    assert notes["kept"] == [1.0, shortened, *[1.0] * (CLIENTS - 2)]


def test_what_is_typical_is_remembered_so_that_a_round_of_liars_sets_no_standard():
    strategy = probing()
    state, _, notes = round_of(strategy, replies())
    typical = np.median(notes["norms"])
    assert float(state["defence/rule/length"]) == pytest.approx(typical)
    liars = [Reply(k, {"w": 50.0 * honest(k).update["w"]}, 2, 10) for k in (0, 1)]
    state, _, notes = round_of(strategy, liars, state)
    assert (
        max(k * n for k, n in zip(notes["kept"], notes["norms"], strict=True))
        <= 1.5 * 2 * typical * 1.001
    )
    assert float(state["defence/rule/length"]) <= 2 * typical * 1.001


def test_probes_answer_their_class_with_confidence_and_stop_there():
    start = torch.from_numpy(np.random.default_rng(0).normal(size=(600, CLASSES)).astype("f"))
    labels = torch.arange(600) % CLASSES
    result = class_inputs(lambda x: x @ MODEL["w"].T, start, labels, 0.9)
    shares = (result @ MODEL["w"].T).softmax(1)[torch.arange(600), labels]
    assert float(shares.min()) >= 0.9
    already = (start @ MODEL["w"].T).softmax(1)[torch.arange(600), labels] >= 0.9
    assert already.any()
    assert torch.equal(result[already], start[already])
    assert not result.requires_grad
    start = torch.ones(5, 3)  # a flat model has no gradient to follow
    assert torch.equal(
        class_inputs(lambda x: (x * 0.0) @ torch.zeros(3, 4), start, torch.arange(5) % 4, 0.9),
        start,
    )


def test_only_what_stands_out_by_margin_and_spread():
    values = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.9])
    assert standing_out(values, None, 0.2).tolist() == [False] * 6  # the spread is large
    assert (
        standing_out(np.array([0.1, 0.1, 0.1, 0.34]), None, 0.25).tolist() == [False] * 4
    )  # within the margin
    assert standing_out(
        np.array([0.8, 0.8, 0.8]), torch.tensor(0.1), 0.25
    ).all()  # against what is remembered
    assert pull(np.array([0, 0]), np.array([0, 0]), 3) == 0.0


def test_a_round_in_which_nobody_moves_leaves_the_next_ones_alone():
    strategy = probing()
    still = [Reply(k, {"w": torch.zeros(CLASSES, CLASSES)}, 2, 10) for k in range(CLIENTS)]
    state, after, notes = round_of(strategy, still)
    assert torch.equal(after["w"], MODEL["w"])
    assert notes["kept"] == [1.0] * CLIENTS
    _, _, notes = round_of(strategy, replies(), state)
    assert notes["kept"] == [1.0] * CLIENTS
