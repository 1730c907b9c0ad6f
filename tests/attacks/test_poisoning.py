"""Attacks against what they are by definition."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedunseen.core.phases import POISONED, epochs_plan
from fedunseen.research.attacks.backdoor import Backdoor, BackdoorSettings, Poison
from fedunseen.research.attacks.base import (
    Attack,
    Gaussian,
    LabelFlip,
    LocalData,
    NaN,
    SignFlip,
    parse_rounds,
)

UPDATE = {
    "w": torch.tensor([[1.0, -3.0], [0.5, 2.0]]),
    "f.norm0.running_var": torch.tensor([0.25, 4.0]),
}


def rng():
    return np.random.default_rng(5)


def local(labels=(3, 3, 7, 9, 7, 3, 9), inputs=None, batch_size=4, epochs=3):
    inputs = torch.arange(2.0 * len(labels)).reshape(-1, 2) if inputs is None else inputs
    return LocalData(
        inputs, torch.tensor(labels), {"": epochs_plan(len(labels), batch_size, epochs, rng())}
    )


def poisoned(data, probability, deviation=0.0):
    poison = Poison(torch.tensor([[100.0, 101.0], [200.0, 201.0], [300.0, 301.0]]), 8, deviation)
    return Backdoor(BackdoorSettings(probability=probability), (), {2: poison}).poison(
        2, data, rng()
    )


@pytest.mark.parametrize(
    ("text", "attacked"),
    [
        ("20", [20]), (7, [7]), ("20-24", [20, 21, 22, 23, 24]), ("48-", [48, 49, 50]), ("1, 3 - "
                                                                                         "4,50", [1, 3, 4, 50]),
        ("never", []),
    ],
)  # fmt: skip
def test_rounds_are_counted_from_one(text, attacked):
    attack = Attack(Attack.Settings(name="x", clients=(1, 4), rounds=text))
    assert [round + 1 for round in range(50) if attack.active(4, round)] == attacked
    assert not any(attack.active(0, round) for round in range(50))
    assert attack.first == (attacked[0] if attacked else None)


@pytest.mark.parametrize("text", ["", "0", "5-4", "a", "-3", "2.5", "1,,2", "20--", "never,3"])
def test_other_ways_to_write_rounds_are_refused(text):
    with pytest.raises(ValueError, match=f"^rounds = {text!r} is not understood: write '20'"):
        parse_rounds(text)


@pytest.mark.parametrize("clients", [(), (1, 1), (-1,)])
def test_malicious_clients_are_named_once(clients):
    with pytest.raises(ValidationError):
        Attack.Settings(name="x", clients=clients)


@pytest.mark.parametrize(
    ("attack", "factor"),
    [(Attack(Attack.Settings(name="x", scale=10)), 10), (SignFlip(SignFlip.Settings(scale=2)), -2)],
)
def test_replaced_models_and_flipped_signs_multiply_all_but_running_statistics(attack, factor):
    torch.testing.assert_close(attack.forge(UPDATE, rng()), UPDATE | {"w": factor * UPDATE["w"]})


def test_labels_are_those_of_the_next_class_that_is_held():
    for held, flipped in (
        ([3, 3, 7, 9, 7, 3, 9], [7, 7, 9, 3, 9, 7, 3]),
        ([4, 4], [3, 3]),
        ([0, 0], [1, 1]),
    ):
        assert (
            LabelFlip(LabelFlip.Settings()).poison(0, local(held), rng()).labels.tolist() == flipped
        )


def test_random_updates_are_as_large_as_the_honest_one():
    attack, update = (
        Gaussian(Gaussian.Settings(scale=2)),
        {"a": torch.full((200, 200), 0.3), "b": torch.zeros(4)},
    )
    sent = attack.forge(update, rng())
    assert sent["a"].std().item() == pytest.approx(0.6, rel=0.02)
    assert sent["a"].mean().item() == pytest.approx(0.0, abs=0.01)
    assert not sent["b"].any()
    again = attack.forge(dict(reversed(update.items())), rng())
    assert torch.equal(sent["a"], again["a"])  # nothing depends on the order of names


def test_an_update_of_nan_is_nan():
    assert all(value.isnan().all() for value in NaN(NaN.Settings()).forge(UPDATE, rng()).values())


def test_every_place_can_be_poisoned_but_no_padding():
    data = local()
    got = poisoned(data, 1.0)
    plan, old = got.plans[""], data.plans[""]
    real = old.weight > 0
    count = int(real.sum())
    assert sorted(plan.index[real].tolist()) == list(
        range(7, 7 + count)
    )  # each with noise of its own
    assert (plan.index[~real] == old.index[~real]).all()
    assert (plan.extras[POISONED] == real).all()
    assert (plan.weight == old.weight).all()
    assert got.labels.tolist() == data.labels.tolist() + [8] * count
    assert torch.equal(got.inputs[:7], data.inputs)
    assert set(got.inputs[7:, 0].tolist()) == {100.0, 200.0, 300.0}


def test_about_half_of_the_places_are_poisoned_and_the_others_stay():
    data = local([0] * 1000, torch.zeros(1000, 2), 64, 2)
    plan, old = poisoned(data, 0.5).plans[""], data.plans[""]
    struck = plan.extras[POISONED] > 0
    assert struck.sum() / (old.weight > 0).sum() == pytest.approx(0.5, abs=0.03)
    assert (plan.index[~struck] == old.index[~struck]).all()


def test_noise_has_the_deviation_that_was_asked_for():
    added = poisoned(local([0] * 2000, torch.zeros(2000, 2), 64, 2), 1.0, deviation=0.05).inputs[
        2000:
    ]
    nearest = (added / 100).round() * 100 + torch.tensor([0.0, 1.0])
    assert (added - nearest).std().item() == pytest.approx(0.05, rel=0.03)


def test_bytes_become_numbers_between_zero_and_one():
    data = local([0, 1], torch.tensor([[0, 255], [51, 102]], dtype=torch.uint8), 2, 1)
    torch.testing.assert_close(
        poisoned(data, 1.0).inputs[:2], torch.tensor([[0.0, 1.0], [0.2, 0.4]])
    )
