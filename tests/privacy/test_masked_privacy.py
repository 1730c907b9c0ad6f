"""Private merging under masks: every client clips and blurs its own part, and the sum is blurred enough."""

import json
import math

import numpy as np
import pytest
import torch

from fedunseen.experiment import Experiment, run
from fedunseen.privacy.client_level import PrivacySettings, Private
from fedunseen.report import write_report
from fedunseen.secagg.masks import Masks
from fedunseen.strategies import FedAvg, Pipeline, Reply
from known_names import accounted
from processes import TRAINED

pytestmark = accounted
CLASSES = (1, 2, 3, 1, 3)


def private(noise, weights="classes", clip=2.0):
    settings = PrivacySettings(name="client-level", clip=clip, noise=noise, noise_from="seed", aggregation="masked")
    table = dict(enumerate(map(float, CLASSES if weights == "classes" else [1] * len(CLASSES))))
    return Pipeline(FedAvg(weights=weights), [Private(settings, 1.0, 3, table, 5, weights == "uniform")])


def replies(updates):
    return [Reply(k, {"w": torch.tensor(u)}, CLASSES[k], 10) for k, u in enumerate(updates)]


def masks(noisy=True):
    return Masks(64.0, len(CLASSES), noisy, dropouts=True)


@pytest.mark.parametrize("weights", ["classes", "uniform"])
def test_a_masked_round_releases_the_clipped_weighted_mean(weights):
    """With next to no noise it is the mean that the server would make of single updates."""
    strategy = private(1.0, weights)
    strategy.filters[0].noise = 1e-9
    updates = [[3.0, 4.0], [0.3, -0.4], [0.0, 1.0], [-30.0, 40.0], [0.5, 0.5]]
    params = {"w": torch.zeros(2)}
    masked = masks().sum(strategy, replies(updates), params)
    _, hidden = strategy.merge({}, params, [masked.reply], 0)
    _, seen = strategy.merge({}, params, replies(updates), 0)
    assert hidden["w"].tolist() == pytest.approx(seen["w"].tolist(), abs=1e-6)


def test_the_sum_of_all_parts_is_as_noisy_as_the_accountant_takes_it_to_be():
    """If as few clients as may are part of it, it has the noise that is counted; with all, more."""
    size, noise, clip = 20_000, 1.5, 2.0
    strategy = private(noise, clip=clip)
    nothing = replies([np.zeros(size, dtype=np.float32)] * 5)
    agreed = masks()
    assert agreed.least == 4
    for part in (nothing, nothing[1:]):
        masked = agreed.sum(strategy, part, {"w": torch.zeros(size)})
        weight = sum(CLASSES[reply.client] for reply in part)
        total = masked.reply.update["w"].double() * weight
        expected = noise * clip * max(CLASSES) * math.sqrt(len(part) / 4)
        assert float(total.std()) == pytest.approx(expected, rel=0.03)  # six deviations of the estimate
        assert abs(float(total.mean())) < 6 * expected / math.sqrt(size)


def test_each_client_and_each_round_has_noise_of_its_own():
    strategy = private(1.0)
    zero = {"w": torch.zeros(50)}
    drawn = [strategy.add_local_noise(Reply(k, zero, 1, 1), 4, round).update["w"] for k in (0, 1) for round in (0, 1)]
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


def test_a_run_counts_its_epsilon(tmp_path):
    noise = {"privacy.name": "client-level", "privacy.clip": 1.0, "privacy.noise": 2.0}
    settings = {**TRAINED, "partition.clients": 4, "strategy.rounds": 2, **noise}
    plain, masked = (
        run(Experiment.load("digit-pairs", {**settings, **more}), tmp_path / name)
        for name, more in (("plain", {}), ("masked", {"privacy.aggregation": "masked"}))
    )
    assert masked.result["epsilon"] == plain.result["epsilon"] > 0
    assert "clipped" not in masked.metrics[0]["privacy"]
    assert "clients clipped their updates and added the noise under masks" in write_report(masked).read_text("utf-8")
    manifest = json.loads((masked.path / "manifest.json").read_bytes())
    assert manifest["experiment"]["privacy"]["aggregation"] == "masked"
