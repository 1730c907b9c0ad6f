"""The feature magnitude defence against Algorithm 1, line by line."""

import numpy as np
import pytest
import torch

from fedunseen.core.phases import POISONED, weighted_mean
from fedunseen.safety.defences.screening import COUNTS, THRESHOLD, Magnitude


def features(params, inputs):
    return torch.relu(inputs * params["w"])


def loss(params, batch, context):
    """Give a loss that depends on features and on which samples are there."""
    value = weighted_mean(
        (features(params, batch["inputs"]).sum(-1) - batch["labels"]).square(), batch["weights"]
    )
    return value, {"loss": value}


BATCH = {
    "inputs": torch.tensor([[1.0, 2.0], [0.5, -4.0], [3.0, 3.0], [-1.0, -1.0], [9.0, 9.0]]),
    "labels": torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]),
    "weights": torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]),  # the last one only pads
}
PARAMS = {"w": torch.tensor([1.0, 1.0])}
RECEIVED = {"w": torch.tensor([0.0, 1.0])}


def test_samples_of_weak_features_are_dropped_by_definition_and_poisoned_ones_are_counted_apart():
    fmd = Magnitude(Magnitude.Settings(model="local"), features)
    value, terms = fmd.screened(loss)(PARAMS, BATCH, fmd.context(1.0, PARAMS))
    kept = [b for b in range(4) if features(PARAMS, BATCH["inputs"])[b].sum() >= 1.0]
    assert kept == [0, 2]
    torch.testing.assert_close(
        value, loss(PARAMS, {name: tensor[kept] for name, tensor in BATCH.items()}, {})[0]
    )
    assert [float(terms[f"screening/{name}"]) for name in COUNTS] == [4, 2, 0, 0]
    seen = BATCH | {POISONED: torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0])}
    _, terms = fmd.screened(loss)(PARAMS, seen, fmd.context(1.0, PARAMS))
    assert [float(terms[f"screening/{name}"]) for name in COUNTS] == [2, 1, 2, 1]


def test_the_received_model_judges_whatever_the_local_one_has_become():
    fmd = Magnitude(Magnitude.Settings(), features)
    gamma = fmd.judge(PARAMS, BATCH["inputs"], fmd.context(1.0, RECEIVED))
    torch.testing.assert_close(gamma, features(RECEIVED, BATCH["inputs"]).sum(-1))


def test_judging_is_not_differentiated():
    fmd = Magnitude(Magnitude.Settings(model="local"), features)
    params = {"w": torch.tensor([1.0, 1.0], requires_grad=True)}
    value, _ = fmd.screened(loss)(params, BATCH, fmd.context(-1.0, PARAMS))
    plain, _ = loss(params, BATCH, {})
    torch.testing.assert_close(
        torch.autograd.grad(value, params["w"]), torch.autograd.grad(plain, params["w"])
    )


def test_batched_clients_are_screened_as_each_alone():
    fmd = Magnitude(Magnitude.Settings(), features)
    many = [{"w": torch.tensor([1.0, 0.2])}, {"w": torch.tensor([0.1, 2.0])}]
    stacked = {"w": torch.stack([item["w"] for item in many])}
    batches = {name: torch.stack([value, value.flip(0)]) for name, value in BATCH.items()}
    thresholds = [fmd.context(m, RECEIVED) for m in (1.0, 2.5)]
    context = {THRESHOLD: torch.stack([item[THRESHOLD] for item in thresholds])}
    shared = {name: value for name, value in thresholds[0].items() if name != THRESHOLD}

    def of(params, batch, own):
        return fmd.screened(loss)(params, batch, own | shared)

    values, terms = torch.func.vmap(of)(stacked, batches, context)
    for k, params in enumerate(many):
        own = {name: value[k] for name, value in batches.items()}
        item, result = of(params, own, {THRESHOLD: context[THRESHOLD][k]})
        torch.testing.assert_close(values[k], item)
        assert all(
            float(terms[name][k]) == float(result[name]) for name in result if name != "loss"
        )


@pytest.mark.parametrize("percentile", [0, 5, 50])
def test_m_is_a_percentile_or_what_is_given(percentile):
    gamma = np.random.default_rng(0).normal(size=200)
    m = Magnitude(Magnitude.Settings(percentile=percentile), features).threshold(gamma)
    assert (gamma < m).mean() == pytest.approx(percentile / 100, abs=0.006)
    assert (
        Magnitude(Magnitude.Settings(threshold=0.7, percentile=percentile), features).threshold(
            gamma
        )
        == 0.7
    )


def test_a_sample_at_the_threshold_is_kept():
    fmd = Magnitude(Magnitude.Settings(model="local"), features)
    gamma = features(PARAMS, BATCH["inputs"]).sum(-1)
    for threshold, dropped in ((float(gamma[0]), 2), (float(gamma[0]) + 2**-20, 3)):
        _, terms = fmd.screened(loss)(PARAMS, BATCH, fmd.context(threshold, PARAMS))
        assert float(terms["screening/clean_dropped"]) == dropped
