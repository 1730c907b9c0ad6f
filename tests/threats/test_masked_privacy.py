"""Private merging under masks: every client clips and blurs its own part, and the sum is blurred enough."""

import importlib.util
import json
import math

import numpy as np
import pytest
import torch

from fedunseen.engines.masked.aggregation import Masks
from fedunseen.engines.masked.party import least
from fedunseen.engines.masked.primitives import MaskError
from fedunseen.experiment import Experiment, run
from fedunseen.report import write_report
from fedunseen.strategies import FedAvg, Reply
from fedunseen.threats.privacy import PrivacySettings, Private

pytestmark = pytest.mark.skipif(importlib.util.find_spec("dp_accounting") is None, reason="no dp-accounting")
CLASSES = (1, 2, 3, 1, 3)


def private(noise, weights="classes", clip=2.0):
    settings = PrivacySettings(name="client-level", clip=clip, noise=noise, noise_from="seed", aggregation="masked")
    table = dict(enumerate(map(float, CLASSES if weights == "classes" else [1] * len(CLASSES))))
    return Private(FedAvg(weights=weights), settings, 1.0, 3, table, seed=5)


def replies(updates):
    return [Reply(k, {"w": torch.tensor(u)}, CLASSES[k], 10) for k, u in enumerate(updates)]


def masks(noisy=True):
    return Masks(0.6, None, 64.0, len(CLASSES), 10, noisy)


@pytest.mark.parametrize("weights", ["classes", "uniform"])
def test_a_masked_round_releases_the_clipped_weighted_mean(weights):
    """With next to no noise it is the mean that the server would make of single updates."""
    strategy = private(1.0, weights)
    strategy.noise = 1e-9
    updates = [[3.0, 4.0], [0.3, -0.4], [0.0, 1.0], [-30.0, 40.0], [0.5, 0.5]]
    params = {"w": torch.zeros(2)}
    masked = masks().sum(strategy, replies(updates), params, 5)
    _, hidden = strategy.merge({}, params, [masked.reply], 0)
    _, seen = strategy.merge({}, params, replies(updates), 0)
    assert hidden["w"].tolist() == pytest.approx(seen["w"].tolist(), abs=1e-6)


def test_the_sum_of_all_parts_is_as_noisy_as_the_accountant_takes_it_to_be():
    """If as few clients as may are part of it, it has the noise that is counted; with all, more."""
    size, noise, clip = 20_000, 1.5, 2.0
    strategy = private(noise, clip=clip)
    nothing = replies([np.zeros(size, dtype=np.float32)] * 5)
    agreed = masks()
    assert agreed.smallest == least(0.6, 5) == 3
    for part in (nothing, nothing[1:4]):
        masked = agreed.sum(strategy, part, {"w": torch.zeros(size)}, 3)
        weight = sum(CLASSES[reply.client] for reply in part)
        total = masked.reply.update["w"].double() * weight
        expected = noise * clip * max(CLASSES) * math.sqrt(len(part) / 3)
        assert float(total.std()) == pytest.approx(expected, rel=0.03)  # six deviations of the estimate
        assert abs(float(total.mean())) < 6 * expected / math.sqrt(size)


def test_each_client_and_each_round_has_noise_of_its_own():
    strategy = private(1.0)
    zero = {"w": torch.zeros(50)}
    drawn = [strategy.blurred(Reply(k, zero, 1, 1), 3, round).update["w"] for k in (0, 1) for round in (0, 1)]
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


def test_a_sum_of_too_few_parts_is_refused_by_every_party():
    agreed = Masks(0.6, None, 64.0, 10, 10, noisy=True)
    assert agreed.smallest == 6
    with pytest.raises(MaskError, match="5 of the 6 parties that the sum has to be of are left"):
        agreed.sum(private(1.0), replies([[0.0]] * 5), {"w": torch.zeros(1)}, 3)
    halves = {k: agreed.party(k, bytes(16)) for k in range(5)}  # a coordinator that does not mind asks them
    keys = {str(k): half.keys() for k, half in halves.items()}
    dealt = {k: half.shares({"keys": keys}) for k, half in halves.items()}
    for k, half in halves.items():
        others = [j for j in halves if j != k]
        told = {key: {str(j): dealt[j][key][str(k)] for j in others} for key in ("sealed", "sworn")}
        half.masked(told, np.zeros(3, np.uint64))
    with pytest.raises(MaskError, match="the sum would be of fewer parties than party 0 agrees to"):
        halves[0].unmask({"there": list(halves)})


def test_a_run_counts_its_epsilon(tmp_path):
    settings = {
        "data.train_per_class": 6,
        "data.test_per_class": 3,
        "partition.clients": 4,
        "strategy.rounds": 2,
        "method.hidden": [16],
        "evaluation.selection": "last",
        "evaluation.theory": False,
        "evaluation.embedding": False,
        "privacy.name": "client-level",
        "privacy.clip": 1.0,
        "privacy.noise": 2.0,
    }
    plain, masked = (
        run(Experiment.load("digit-pairs", {**settings, **more}), tmp_path / name)
        for name, more in (("plain", {}), ("masked", {"privacy.aggregation": "masked"}))
    )
    assert masked.result["epsilon"] == plain.result["epsilon"] > 0
    assert "clipped" not in masked.metrics[0]["privacy"]
    assert "clients clipped their updates and added the noise under masks" in write_report(masked).read_text("utf-8")
    manifest = json.loads((masked.path / "manifest.json").read_bytes())
    assert manifest["experiment"]["privacy"]["aggregation"] == "masked"
