"""A worker with malicious clients against honest workers that are given what those clients make of
their data.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedunseen.core.phases import POISONED, epochs_plan
from fedunseen.data import ClassSpace
from fedunseen.encoders.backbone import Backbone
from fedunseen.federation.worker import Execution, Work, Worker
from fedunseen.methods import Classifier
from fedunseen.research.attacks.base import Attack, Gaussian, LabelFlip, SignFlip
from fedunseen.research.attacks.malicious import MaliciousWorker
from fedunseen.safety.defences.screening import COUNTS, Magnitude, ScreenedTrainer
from fedunseen.strategies import Scaffold
from same import same

pytestmark = pytest.mark.usefixtures("one_thread")
CLASSES, WIDTH, HELD = 6, 5, [[0, 1], [2, 3], [4]]
EVIL = 1


def data(flipped=False):
    """Give inputs, labels and who holds what; if flipped, client 1 calls its two classes by each
    other's name.
    """
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), 7)
    inputs = rng.normal(size=(CLASSES, WIDTH))[labels] + 0.3 * rng.normal(size=(len(labels), WIDTH))
    samples = [np.flatnonzero(np.isin(labels, held)) for held in HELD]
    if flipped:
        labels = np.array([0, 1, 3, 2, 4, 5])[labels]
    return torch.from_numpy(inputs.astype(np.float32)), torch.from_numpy(labels), samples


def worker(attack=None, screening=None, mode="batched", flipped=False):
    inputs, labels, samples = data(flipped)
    space = ClassSpace(tuple("abcdef"), np.eye(CLASSES), tuple("uvwxyz"), range(5), [], [5])
    settings = Classifier.Settings(lr=0.1, batch_size=4, weight_decay=0.1)
    method = Classifier(settings, space, torch.eye(CLASSES), Backbone((WIDTH,)))
    given = (method, Scaffold(local_epochs=2), inputs, labels, samples, 5, Execution(mode))
    made = Worker(*given) if attack is None else MaliciousWorker.around(Worker(*given), attack)
    if screening is not None:
        made.trainer = ScreenedTrainer.around(
            made.trainer, Magnitude(screening, lambda params, inputs: inputs)
        )
    return made


def round_of(made, round=0):
    """Give replies and states of three clients that begin at the same model."""
    params = made.method.init(np.random.default_rng(1))
    instruction = made.strategy.instruct(made.strategy.init(params, 3), params, round)
    return list(
        made.round(
            [Work(k, made.strategy.recall(instruction, {}, round), {}) for k in range(3)], round
        )
    )


def attack(kind, **settings):
    named = {"name": "an attack of this file"} if kind.Settings is Attack.Settings else {}
    return kind(kind.Settings(clients=(EVIL,), rounds="1", **named, **settings))


@pytest.mark.parametrize("mode", ["batched", "one-at-a-time"])
@pytest.mark.parametrize("kind", [LabelFlip, SignFlip, Gaussian, Attack])
def test_an_attack_changes_no_bit_of_what_honest_clients_send_and_remember(kind, mode):
    honest, attacked = (round_of(worker(item, mode=mode)) for item in (None, attack(kind, scale=3)))
    for (reply, state), (other, after) in zip(honest, attacked, strict=True):
        assert same(reply.update, other.update) == (reply.client != EVIL)
        assert same(state, after) == (reply.client != EVIL or kind is not LabelFlip)


def test_a_client_that_flips_labels_trains_as_one_whose_labels_are_flipped():
    """To the bit: the same batches, in the same order."""
    flipped, flipped_state = round_of(worker(flipped=True, mode="one-at-a-time"))[EVIL]
    attacked, state = round_of(worker(attack(LabelFlip), mode="one-at-a-time"))[EVIL]
    assert same(flipped.update, attacked.update)
    assert same(flipped_state, state)
    assert (flipped.terms, flipped.step_lengths) == (attacked.terms, attacked.step_lengths)


def test_the_threshold_is_calibrated_on_what_is_stored_not_on_what_is_trained_on():
    class Adds(Attack):
        """Trains on enormous samples beside its own."""

        def poison(self, client, data, rng):
            inputs = torch.cat([data.inputs, torch.full_like(data.inputs, 1e3)])
            plans = {"": epochs_plan(len(inputs), 4, 1, rng)}
            return replace(data, inputs=inputs, labels=data.labels.repeat(2), plans=plans)

    result = Magnitude.Settings(percentile=10)
    honest, attacked = (round_of(worker(item, result))[EVIL][0] for item in (None, attack(Adds)))
    assert attacked.notes["threshold"] == honest.notes["threshold"]
    assert attacked.notes["clean"] == 28  # one pass over twice as many as it holds
    assert honest.notes["clean"] == 28  # two passes over its own
    assert attacked.notes["clean_dropped"] < honest.notes["clean_dropped"]


def test_a_screened_round_counts_by_hand():
    inputs, _, samples = data()
    reply, _ = round_of(worker(None, Magnitude.Settings(percentile=30)))[0]
    sums = inputs[samples[0]].sum(-1).double().numpy()
    threshold = np.percentile(sums, 30)
    dropped = 2 * (sums.astype(np.float32) < np.float32(threshold)).sum()  # in each of two passes
    assert reply.notes == pytest.approx(
        dict(zip(COUNTS, (28, dropped, 0, 0), strict=True)) | {"threshold": threshold}
    )
    assert not any(name.startswith("screening") for name in reply.terms)


def test_the_trainer_without_its_screening_is_the_one_before():
    bare = worker().trainer
    again = ScreenedTrainer.around(
        bare, Magnitude(Magnitude.Settings(), lambda params, inputs: inputs)
    ).plain()
    assert type(again) is type(bare)
    assert vars(again) == vars(bare)


def test_poisoned_places_are_marked_for_counts_alone():
    class Marks(Attack):
        def poison(self, client, data, rng):
            plan = data.plans[""]
            return replace(data, plans={"": replace(plan, extras={POISONED: plan.weight})})

    plain, marked = (
        round_of(worker(item, mode="one-at-a-time"))[EVIL][0] for item in (None, attack(Marks))
    )
    assert same(plain.update, marked.update)
