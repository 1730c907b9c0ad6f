"""Sums that are released once, with noise: what a sample changes, how much noise there is, and what is left of them."""

import importlib.util
import math

import numpy as np
import pytest
import torch

from fedunseen.core.errors import DataError
from fedunseen.data import ClassSpace, Quantization
from fedunseen.experiment import Experiment, run
from fedunseen.methods.closed_form.gaussian_process import moments
from fedunseen.methods.closed_form.statistics import no_sums, packed, statistics, unpacked, validate_statistics
from fedunseen.privacy.client_level import PrivacySettings, epsilon
from fedunseen.privacy.private_sums import SHARES, PrivateSums, Release, release_of
from fedunseen.report import write_report
from fedunseen.strategies import FedAvg, Reply
from fedunseen.strategies.summed import Summed

accounted = pytest.mark.skipif(
    importlib.util.find_spec("dp_accounting") is None, reason="needs the extra privacy: dp-accounting"
)
SPACE = ClassSpace(tuple("abcdef"), np.eye(6), tuple("uvwxyz"), [0, 1, 2, 3], [], [4, 5])


def made(samples=400, width=6, seed=0):
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(rng.integers(4, size=samples))
    return torch.from_numpy(rng.normal(size=(samples, width))), labels


def scaled(sums, release):
    """Return all that is released as one vector, in units of its noise: x x^T as its Frobenius norm counts it."""
    width, (count, total, square) = sums["total"].shape[1], release.deviations
    full = unpacked(sums["square"], width)
    return torch.cat([sums["count"] / count, sums["total"].flatten() / total, full.flatten() / square])


@pytest.mark.parametrize("length", [0.3, 1.7, 50.0])
def test_one_sample_changes_what_is_released_by_one_over_the_noise_multiplier_at_most(length):
    release, (inputs, labels) = Release(1.7, 2.5), made()
    without = statistics(inputs, labels, SPACE, release.clip)
    x = torch.ones(1, 6, dtype=torch.float64) * length / math.sqrt(6)
    with_it = statistics(torch.cat([inputs, x]), torch.cat([labels, torch.tensor([2])]), SPACE, release.clip)
    change = float((scaled(with_it, release) - scaled(without, release)).norm())
    if length >= 1.7:
        assert change == pytest.approx(1 / 2.5, rel=1e-9)  # the bound is reached, so that no noise is wasted
    else:
        r = length / 1.7
        expected = math.sqrt(SHARES[0] + SHARES[1] * r**2 + SHARES[2] * r**4) / 2.5
        assert change == pytest.approx(expected, rel=1e-9)


def test_samples_are_shortened_and_not_lengthened():
    inputs = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    space = ClassSpace(("a", "b"), np.eye(2), ("u", "v"), [0], [], [1])
    sums = statistics(inputs, torch.tensor([0, 0, 0]), space, clip_norm=1.0)
    assert sums["total"][0].tolist() == pytest.approx([0.6 + 0.3, 0.8 + 0.4])
    assert sums["count"].tolist() == [3.0, 0.0]


@pytest.mark.parametrize("parties", [1, 4])
def test_the_noise_of_all_parts_together_is_what_the_accountant_counts(parties):
    width, release = 150, Release(2.0, 3.0)
    space = ClassSpace(
        tuple(f"c{i}" for i in range(300)), np.eye(300), tuple(f"a{i}" for i in range(300)), [0], [], [1]
    )
    nothing = release.nothing(statistics(torch.zeros(1, width), torch.tensor([0]), space))
    total = release.noisy(nothing, parties, np.random.default_rng(0))
    for i in range(1, parties):
        part = release.noisy(nothing, parties, np.random.default_rng(i))
        total = {name: value + part[name] for name, value in total.items()}
    assert float(total["noise"]) == pytest.approx(1.0)
    full = unpacked(total["square"], width)
    off = full[tuple(torch.triu_indices(width, width, 1))]
    expected = [3.0 * 2.0**i / math.sqrt(share) for i, share in enumerate(SHARES)]
    found = [float(values.std()) for values in (total["count"], total["total"], full.diagonal(), off)]
    assert found[0] == pytest.approx(expected[0], rel=0.2)  # five deviations of each estimate
    assert found[1] == pytest.approx(expected[1], rel=0.02)
    assert found[2] == pytest.approx(expected[2], rel=0.3)
    assert found[3] == pytest.approx(expected[2] / math.sqrt(2), rel=0.04)


def test_next_to_no_noise_changes_next_to_nothing():
    release, (inputs, labels) = Release(1e3, 1e-9), made()
    sums = statistics(inputs, labels, SPACE)
    noisy = release.noisy(release.nothing(sums), 1, np.random.default_rng(0))
    one, other = moments(sums), moments(release.cleaned(noisy, SPACE.seen))
    assert torch.allclose(one.means, other.means, atol=1e-4)
    assert torch.allclose(one.covariance, other.covariance, atol=1e-2)
    assert torch.allclose(one.count, other.count, rtol=1e-4)


def test_what_is_left_of_a_covariance_under_noise():
    """Two directions stand out of the noise and stay; the rest, half of it negative, becomes one positive number."""
    width, samples, rng = 80, 4000, np.random.default_rng(1)
    spread = np.full(width, 0.3)
    spread[:2] = 3.0, 2.0
    labels = torch.from_numpy(rng.integers(4, size=samples))
    inputs = torch.from_numpy(rng.normal(size=(samples, width)) * spread)
    exact = statistics(inputs, labels, SPACE)
    release = Release(10.0, 0.5)
    noisy = release.noisy(release.nothing(exact), 1, np.random.default_rng(2))
    cleaned = release.cleaned(noisy, SPACE.seen)
    assert validate_statistics(cleaned) == ""
    truth, noised, found = (moments(sums).covariance for sums in (exact, noisy, cleaned))
    assert float(torch.linalg.eigvalsh(noised)[0]) < 0 < float(torch.linalg.eigvalsh(found)[0])
    assert float((found - truth).norm()) < 0.3 * float((noised - truth).norm())
    assert float(found.trace()) == pytest.approx(float(truth.trace()), rel=0.05)
    values = torch.linalg.eigvalsh(found).flip(0)
    assert values[0] > values[1] > 1.5 * values[2]
    assert int((values > values[-1] * (1 + 1e-9)).sum()) <= 4  # the noise's edge is not sharp


def test_noise_on_a_sum_counts_as_fewer_samples():
    release, (inputs, labels) = Release(4.0, 1.0), made(4000)
    noisy = release.noisy(release.nothing(statistics(inputs, labels, SPACE)), 1, np.random.default_rng(0))
    cleaned = release.cleaned(noisy, SPACE.seen)
    n, variance = noisy["count"][:4], 1.0  # of these samples
    expected = n / (1 + release.deviations[1] ** 2 / (n * variance))
    assert cleaned["count"][:4].tolist() == pytest.approx(expected.tolist(), rel=0.1)
    assert bool((cleaned["count"][:4] < n).all())
    means = cleaned["total"][:4] / cleaned["count"][:4, None]
    assert torch.allclose(means, noisy["total"][:4] / n[:, None])


def test_nobody_s_classes_have_no_samples_and_hidden_ones_are_said():
    release, (inputs, labels) = Release(4.0, 1.0), made()
    noisy = release.noisy(release.nothing(statistics(inputs, labels, SPACE)), 1, np.random.default_rng(0))
    noisy["count"][5] = 1e3
    cleaned = release.cleaned(noisy, SPACE.seen)
    assert cleaned["count"][4:].tolist() == [0.0, 0.0]
    assert not bool(cleaned["total"][4:].any())
    hidden = Release(4.0, 1000.0)
    noisy = hidden.noisy(hidden.nothing(statistics(inputs, labels, SPACE)), 1, np.random.default_rng(0))
    noisy["count"][:] = 1.0
    with pytest.raises(DataError, match=r"raise privacy\.epsilon"):
        hidden.cleaned(noisy, SPACE.seen)


def test_the_diagonal_is_where_it_is_taken_to_be():
    release = Release(1.0, 1.0)
    sums = release.nothing(statistics(torch.zeros(1, 5), torch.tensor([0]), SPACE))
    sums["square"] = packed(torch.diag(torch.full((5,), 7.0, dtype=torch.float64)))
    noisy = unpacked(release.noisy(sums, 10**12, np.random.default_rng(0))["square"], 5)
    assert noisy.diagonal().tolist() == pytest.approx([7.0] * 5, abs=1e-4)
    assert float(noisy.sum()) == pytest.approx(35.0, abs=1e-3)


QUICK = {
    "data.train_per_class": 12,
    "data.test_per_class": 3,
    "data.features": ["l2"],
    "method.shrinkage": 0.3,
    "evaluation.embedding": False,
    "evaluation.theory": False,
    "evaluation.selection": "last",
    "privacy.name": "sample-level",
    "privacy.clip": 1.0,
    "privacy.noise": 0.2,
}


@pytest.mark.slow
@accounted
@pytest.mark.parametrize("aggregation", ["plain", "masked"])
@pytest.mark.parametrize("bits", ["none", 8])
def test_a_run_releases_noisy_sums_once(bits, aggregation, tmp_path):
    pytest.importorskip("Crypto")
    settings = {**QUICK, "privacy.aggregation": aggregation, "data.quantization": bits}
    done = run(Experiment.load("digit-pairs-gaussian", settings), tmp_path / "run")
    (line,) = done.metrics
    wanted = epsilon(0.2, 1.0, 1, 1e-5, "pld" if bits == "none" else "rdp")
    assert done.result["epsilon"] == line["privacy"]["epsilon"] == wanted
    assert line["privacy"]["unit"] == "sample"
    assert done.result["zsl"] > (20 if aggregation == "masked" else 8)  # of twenty classes
    assert not {"sums_sha256", "clipped"} & done.result.keys()  # exact statistics
    assert "private for a sample" in write_report(done).read_text("utf-8")


@pytest.mark.parametrize("quantization", [None, Quantization.of_unit_length(8, 8.0, 6)])
@pytest.mark.parametrize("aggregation", ["plain", "masked"])
def test_without_masks_every_party_adds_all_of_the_noise(aggregation, quantization):
    inputs, labels = made()
    settings = PrivacySettings(name="sample-level", clip=2.0, noise=1.0, aggregation=aggregation)
    release = release_of(settings, quantization)
    nothing = release.nothing(no_sums(6, SPACE, quantization))
    strategy = PrivateSums(Summed(FedAvg(), nothing), settings, 3, release)
    sums = release.nothing(statistics(inputs, labels, SPACE, 2.0, quantization))
    replies = [Reply(client, sums, 4, 400) for client in (0, 1)]
    sent = [strategy.released(reply, 0) for reply in replies]
    if aggregation == "masked":
        assert sent == replies
        sent = [strategy.add_local_noise(reply, 2, 0) for reply in replies]
    _, total = strategy.merge({}, nothing, sent, 0)
    assert float(total["noise"]) == pytest.approx(2.0 if aggregation == "plain" else 1.0)
    assert not torch.equal(sent[0].update["total"], sent[1].update["total"])
    one, again = (strategy.add_local_noise(replies[0], 2, 0).update["total"] for _ in range(2))
    assert torch.equal(one, again)
    assert sent[0].samples == round(float(release.counts(sent[0].update).sum()))  # not what it holds, but releases
