"""Attacks against what they are by definition."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedunseen.attacks.backdoor import Backdoor, BackdoorSettings, Poison
from fedunseen.attacks.base import (
    POISONED,
    Attack,
    AttackSettings,
    Gaussian,
    LabelFlip,
    LocalData,
    NaN,
    SignFlip,
    parse_rounds,
)
from fedunseen.core.phases import epochs_plan

UPDATE = {"w": torch.tensor([[1.0, -3.0], [0.5, 2.0]]), "f.norm0.running_var": torch.tensor([0.25, 4.0])}


def rng():
    return np.random.default_rng(5)


def local(labels=(3, 3, 7, 9, 7, 3, 9)):
    count = len(labels)
    inputs = torch.arange(2.0 * count).reshape(count, 2)
    return LocalData(inputs, torch.tensor(labels), {"": epochs_plan(count, 4, 3, rng())})


def backdoor(probability=0.5, deviation=0.0, **settings):
    made = BackdoorSettings(probability=probability, **settings)
    poison = Poison(torch.tensor([[100.0, 101.0], [200.0, 201.0], [300.0, 301.0]]), 8, deviation)
    return Backdoor(made, (), {2: poison})


@pytest.mark.parametrize(
    ("text", "attacked"),
    [
        ("20", [20]), (7, [7]), ("20-24", [20, 21, 22, 23, 24]), ("48-", [48, 49, 50]), ("1, 3 - 4,50", [1, 3, 4, 50]),
        ("never", []),
    ],
)  # fmt: skip
def test_rounds_are_counted_from_one(text, attacked):
    attack = Attack(AttackSettings(name="x", clients=(1, 4), rounds=text))
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
        AttackSettings(name="x", clients=clients)


@pytest.mark.parametrize(
    ("attack", "factor"), [(Attack(AttackSettings(name="x", scale=10)), 10), (SignFlip(SignFlip.Settings(scale=2)), -2)]
)
def test_replaced_models_and_flipped_signs_multiply_all_but_running_statistics(attack, factor):
    sent = attack.forge(UPDATE, rng())
    torch.testing.assert_close(sent["w"], factor * UPDATE["w"])
    torch.testing.assert_close(sent["f.norm0.running_var"], UPDATE["f.norm0.running_var"])


def test_labels_are_those_of_the_next_class_that_is_held():
    flipped = LabelFlip(LabelFlip.Settings()).poison(0, local(), rng())
    assert flipped.labels.tolist() == [7, 7, 9, 3, 9, 7, 3]
    assert LabelFlip(LabelFlip.Settings()).poison(0, local([4, 4]), rng()).labels.tolist() == [3, 3]
    assert LabelFlip(LabelFlip.Settings()).poison(0, local([0, 0]), rng()).labels.tolist() == [1, 1]


def test_random_updates_are_as_large_as_the_honest_one():
    update = {"a": torch.full((200, 200), 0.3), "b": torch.zeros(4)}
    sent = Gaussian(Gaussian.Settings(scale=2)).forge(update, rng())
    assert sent["a"].std().item() == pytest.approx(0.6, rel=0.02)
    assert sent["a"].mean().item() == pytest.approx(0.0, abs=0.01)
    assert not sent["b"].any()
    again = Gaussian(Gaussian.Settings(scale=2)).forge(dict(reversed(update.items())), rng())
    assert torch.equal(sent["a"], again["a"])  # nothing depends on the order of names


def test_an_update_of_nan_is_nan():
    assert all(value.isnan().all() for value in NaN(NaN.Settings()).forge(UPDATE, rng()).values())


def test_every_place_can_be_poisoned_but_no_padding():
    data = local()
    got = backdoor(1.0).poison(2, data, rng())
    plan, old = got.plans[""], data.plans[""]
    real = old.weight > 0
    assert (plan.index[real] >= 7).all()
    assert (plan.index[~real] == old.index[~real]).all()
    assert (plan.extras[POISONED] == real).all()
    assert (plan.weight == old.weight).all()
    assert len(got.labels) == 7 + real.sum()
    assert sorted(plan.index[real].tolist()) == list(range(7, 7 + int(real.sum())))  # each with noise of its own
    assert (got.labels[7:] == 8).all()
    assert set(got.inputs[7:, 0].tolist()) == {100.0, 200.0, 300.0}
    assert torch.equal(got.inputs[:7], data.inputs)
    assert torch.equal(got.labels[:7], data.labels)


def test_about_half_of_the_places_are_poisoned_and_the_others_stay():
    data = LocalData(torch.zeros(1000, 2), torch.zeros(1000, dtype=torch.long), {"": epochs_plan(1000, 64, 2, rng())})
    got = backdoor(0.5).poison(2, data, rng())
    struck = got.plans[""].extras[POISONED] > 0
    assert struck.sum() / (data.plans[""].weight > 0).sum() == pytest.approx(0.5, abs=0.03)
    assert (got.plans[""].index[~struck] == data.plans[""].index[~struck]).all()


def test_noise_has_the_deviation_that_was_asked_for():
    data = LocalData(torch.zeros(2000, 2), torch.zeros(2000, dtype=torch.long), {"": epochs_plan(2000, 64, 2, rng())})
    added = backdoor(1.0, deviation=0.05).poison(2, data, rng()).inputs[2000:]
    nearest = (added / 100).round() * 100 + torch.tensor([0.0, 1.0])
    assert (added - nearest).std().item() == pytest.approx(0.05, rel=0.03)


def test_bytes_become_numbers_between_zero_and_one():
    plans = {"": epochs_plan(2, 2, 1, rng())}
    data = LocalData(torch.tensor([[0, 255], [51, 102]], dtype=torch.uint8), torch.tensor([0, 1]), plans)
    got = backdoor(1.0).poison(2, data, rng())
    torch.testing.assert_close(got.inputs[:2], torch.tensor([[0.0, 1.0], [0.2, 0.4]]))
