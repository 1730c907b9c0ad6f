"""Sums that are released once, with noise: what a sample changes, how much noise there is, and what
is left of them.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from fedunseen import Experiment, run
from fedunseen.core.errors import DataError
from fedunseen.data import ClassSpace, Quantization
from fedunseen.methods.closed_form.gaussian_process import moments
from fedunseen.methods.closed_form.statistics import (
    no_sums,
    packed,
    statistics,
    unpacked,
    validate_statistics,
)
from fedunseen.pages.report import write_report
from fedunseen.safety.privacy import private_sums as module
from fedunseen.safety.privacy.client_level import PrivacySettings, epsilon
from fedunseen.safety.privacy.private_sums import (
    COUNT_UNIT,
    SHARES,
    PrivateSums,
    Release,
    discrete_gaussian,
    release_of,
)
from fedunseen.strategies import FedAvg, Reply
from fedunseen.strategies.summed import Summed
from known_names import accounted

SPACE = ClassSpace(tuple("abcdef"), np.eye(6), tuple("uvwxyz"), [0, 1, 2, 3], [], [4, 5])
PAIR = ClassSpace(("a", "b"), np.eye(2), ("u", "v"), [0], [], [1])


def made(samples=400, spread=(1.0,) * 6, seed=0):
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(rng.integers(4, size=samples))
    return torch.from_numpy(rng.normal(size=(samples, len(spread))) * spread), labels


def noised(release, sums, seed=0):
    """Return the sums of one party that holds all samples, with noise."""
    return release.noisy(release.nothing(sums), 1, np.random.default_rng(seed))


def added(parts):
    return {name: sum(part[name] for part in parts) for name in parts[0]}


def scaled(sums, release):
    """Return all that is released as one vector, in units of its noise: x x^T as its Frobenius norm
    counts it.
    """
    width, (count, total, square) = sums["total"].shape[1], release.deviations
    full = unpacked(sums["square"], width)
    return torch.cat(
        [sums["count"] / count, sums["total"].flatten() / total, full.flatten() / square]
    )


@pytest.mark.parametrize("length", [0.3, 1.7, 50.0])
def test_one_sample_changes_what_is_released_by_one_over_the_noise_multiplier_at_most(length):
    release, (inputs, labels) = Release(1.7, 2.5), made()
    x = torch.ones(1, 6, dtype=torch.float64) * length / math.sqrt(6)
    samples = (inputs, labels), (torch.cat([inputs, x]), torch.cat([labels, torch.tensor([2])]))
    without, with_it = (
        scaled(statistics(*given, SPACE, release.clip), release) for given in samples
    )
    change = float((with_it - without).norm())
    r = length / 1.7
    expected = 1 if length >= 1.7 else math.sqrt(SHARES[0] + SHARES[1] * r**2 + SHARES[2] * r**4)
    assert change == pytest.approx(
        expected / 2.5, rel=1e-9
    )  # the bound is reached, so that no noise is wasted


def test_samples_are_shortened_and_not_lengthened():
    sums = statistics(
        torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]),
        torch.tensor([0, 0, 0]),
        PAIR,
        clip_norm=1.0,
    )
    assert sums["total"][0].tolist() == pytest.approx([0.6 + 0.3, 0.8 + 0.4])
    assert sums["count"].tolist() == [3.0, 0.0]


@pytest.mark.parametrize("parties", [1, 4])
def test_the_noise_of_all_parts_together_is_what_the_accountant_counts(parties):
    width, release, names = 150, Release(2.0, 3.0), tuple(map(str, range(300)))
    space = ClassSpace(names, np.eye(300), names, [0], [], [1])
    nothing = release.nothing(statistics(torch.zeros(1, width), torch.tensor([0]), space))
    total = added(
        [release.noisy(nothing, parties, np.random.default_rng(i)) for i in range(parties)]
    )
    assert float(total["noise"]) == pytest.approx(1.0)
    full = unpacked(total["square"], width)
    off = full[tuple(torch.triu_indices(width, width, 1))]
    expected = [3.0 * 2.0**i / math.sqrt(share) for i, share in enumerate(SHARES)]
    expected.append(expected[2] / math.sqrt(2))
    values = (total["count"], total["total"], full.diagonal(), off)
    for value, wanted, near in zip(values, expected, (0.2, 0.02, 0.3, 0.04), strict=True):
        assert float(value.std()) == pytest.approx(
            wanted, rel=near
        )  # five deviations of each estimate


def test_next_to_no_noise_changes_next_to_nothing():
    release, sums = Release(1e3, 1e-9), statistics(*made(), SPACE)
    one, other = moments(sums), moments(release.cleaned(noised(release, sums), SPACE.seen))
    assert torch.allclose(one.means, other.means, atol=1e-4)
    assert torch.allclose(one.covariance, other.covariance, atol=1e-2)
    assert torch.allclose(one.count, other.count, rtol=1e-4)


def test_what_is_left_of_a_covariance_under_noise():
    """Two directions stand out of the noise and stay; the rest, half of it negative, becomes one
    positive number.
    """
    release, exact = (
        Release(10.0, 0.5),
        statistics(*made(4000, [3.0, 2.0, *[0.3] * 78], seed=1), SPACE),
    )
    noisy = noised(release, exact, seed=2)
    cleaned = release.cleaned(noisy, SPACE.seen)
    assert validate_statistics(cleaned) == ""
    truth, with_noise, found = (moments(sums).covariance for sums in (exact, noisy, cleaned))
    assert float(torch.linalg.eigvalsh(with_noise)[0]) < 0 < float(torch.linalg.eigvalsh(found)[0])
    assert float((found - truth).norm()) < 0.3 * float((with_noise - truth).norm())
    assert float(found.trace()) == pytest.approx(float(truth.trace()), rel=0.05)
    values = torch.linalg.eigvalsh(found).flip(0)
    assert values[0] > values[1] > 1.5 * values[2]
    assert int((values > values[-1] * (1 + 1e-9)).sum()) <= 4  # the noise's edge is not sharp


def test_noise_on_a_sum_counts_as_fewer_samples_nobody_s_classes_have_none_and_hidden_ones_are_said():
    release, hidden, sums = Release(4.0, 1.0), Release(4.0, 1000.0), statistics(*made(4000), SPACE)
    noisy = noised(release, sums)
    noisy["count"][5] = 1e3
    cleaned = release.cleaned(noisy, SPACE.seen)
    n, variance = noisy["count"][:4], 1.0  # of these samples
    expected = n / (1 + release.deviations[1] ** 2 / (n * variance))
    assert cleaned["count"].tolist() == [
        *(pytest.approx(value, rel=0.1) for value in expected.tolist()),
        0.0,
        0.0,
    ]
    assert bool((cleaned["count"][:4] < n).all())
    assert torch.allclose(
        cleaned["total"][:4] / cleaned["count"][:4, None], noisy["total"][:4] / n[:, None]
    )
    assert not bool(cleaned["total"][4:].any())
    noisy = noised(hidden, sums)
    noisy["count"][:] = 1.0
    with pytest.raises(DataError, match=r"raise privacy\.epsilon"):
        hidden.cleaned(noisy, SPACE.seen)


def test_the_diagonal_is_where_it_is_taken_to_be():
    release = Release(1.0, 1.0)
    sums = release.nothing(statistics(torch.zeros(1, 5), torch.tensor([0]), SPACE))
    sums["square"] = packed(torch.diag(torch.full((5,), 7.0, dtype=torch.float64)))
    noisy = unpacked(release.noisy(sums, 10**12, np.random.default_rng(0))["square"], 5)
    np.testing.assert_allclose(noisy, 7 * np.eye(5), atol=1e-4)


@pytest.mark.slow
@accounted
@pytest.mark.parametrize("aggregation", ["plain", "masked"])
@pytest.mark.parametrize("bits", ["none", 8])
def test_a_run_releases_noisy_sums_once(bits, aggregation, tmp_path):
    pytest.importorskip("cryptography")
    settings = {
        "data.train_per_class": 12, "data.test_per_class": 3, "data.features": ["l2"], "data.quantization": bits,
        "evaluation.embedding": False, "evaluation.theory": False, "evaluation.selection": "last",
        "method.shrinkage": 0.3, "privacy.name": "sample-level", "privacy.clip": 1.0, "privacy.noise": 0.2,
        "privacy.aggregation": aggregation,
    }  # fmt: skip
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
    settings = PrivacySettings(name="sample-level", clip=2.0, noise=1.0, aggregation=aggregation)
    release = release_of(settings, quantization)
    nothing = release.nothing(no_sums(6, SPACE, quantization))
    strategy = PrivateSums(Summed(FedAvg(), nothing), settings, 3, release)
    sums = release.nothing(statistics(*made(), SPACE, 2.0, quantization))
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
    assert sent[0].samples == round(
        float(release.counts(sent[0].update).sum())
    )  # not what it holds, but releases


# Whole numbers: the distribution of discrete noise is exact, and hides of a sample what the
# accountant counts


def words():
    return module.words_of(np.random.default_rng(0))


@pytest.mark.slow
@pytest.mark.parametrize("near", [module.NEAR, 3.0])
@pytest.mark.parametrize("sigma", [1, 2, 7])
def test_samples_have_the_exact_probabilities(sigma, near, monkeypatch):
    """Chi-square against the probabilities, where floats decide (near = 2^-40) and where exact
    arithmetic does.
    """
    monkeypatch.setattr(module, "NEAR", near)
    count = 200_000 if near < 1 else 6_000
    sample = discrete_gaussian(np.full(count, sigma), words())
    values = np.arange(-12 * sigma, 12 * sigma + 1)
    p = np.exp(-(values**2) / (2 * sigma**2))
    expected = count * p / p.sum()
    result, often = np.array([(sample == value).sum() for value in values]), expected > 5
    assert result.sum() == count
    chi = float(((result - expected)[often] ** 2 / expected[often]).sum())
    assert chi < often.sum() + 6 * math.sqrt(2 * often.sum())  # six deviations


@pytest.mark.slow
def test_floats_decide_as_exact_arithmetic_does(monkeypatch):
    sigmas = np.array([1, 2, 3, 1000, 2**31, 2**45] * 200)
    quick = discrete_gaussian(sigmas, words())
    monkeypatch.setattr(module, "NEAR", 3.0)
    assert (discrete_gaussian(sigmas, words()) == quick).all()


def test_equal_digits_are_followed_by_more():
    """A uniform number whose first 64 digits are those of exp(-1) is decided by the next ones."""
    drawn = int(0.36787944117144232159552377016146086744581113103176 * 2**53) << 11
    exact = 36787944117144232159552377016146086744581113103176 * 2**64 // 10**50
    assert abs(drawn - exact) < 2**12
    for next_word, below in ((0, True), (2**64 - 1, False)):
        assert (
            module._is_below(
                exact, Fraction(1), lambda n, w=next_word: np.full(n, w, dtype=np.uint64)
            )
            == below
        )


def test_the_systems_randomness_is_not_repeated():
    one, other = (discrete_gaussian(np.full(50, 10**9), module.words_of()) for _ in range(2))
    assert (one != other).all()


def in_units(sums, release):
    """Return all that is released as one vector, in units of the deviations of its noise."""
    deviations = release.whole_deviations(sums["total"].shape[1], len(sums["count"]), 1)
    values = {**sums, "count": sums["count"] * COUNT_UNIT}
    parts = [
        torch.where(z > 0, values[k] / z, values[k].double()).flatten()
        for k, z in deviations.items()
    ]
    return torch.cat(parts).double()


STEPS = (
    Quantization.of_unit_length(4, 2.0, 3),
    Quantization(4, np.array([0.199, 0.05, 0.0], dtype=np.float32), np.zeros(3, dtype=np.float32)),
)


@pytest.mark.slow
@pytest.mark.parametrize("quantization", STEPS, ids=["one step", "a step for each feature"])
def test_no_sample_changes_more_than_the_noise_multiplier_says(quantization):
    """All samples of three whole numbers: the largest change is one over z, and hardly less."""
    release, changes = Release(1.0, 3.0, quantization), []
    levels = range(-quantization.levels, quantization.levels + 1)
    exact = torch.from_numpy(quantization.step).double().expand(3)
    for codes in itertools.product(levels, levels, levels if len(quantization.step) == 1 else [0]):
        sums = statistics(
            torch.tensor([codes], dtype=torch.int8),
            torch.tensor([0]),
            PAIR,
            release.clip,
            quantization,
        )
        assert float((sums["total"][0] * exact).norm()) <= 1.0 + 1e-9
        changes.append(float(in_units(sums, release).norm()))
    assert 0.9 / 3.0 < max(changes) <= 1 / 3.0


@pytest.mark.slow
@pytest.mark.parametrize("parties", [1, 4])
def test_an_audit_finds_no_more_than_the_accountant_counts(parties):
    """The best test of whether a sample was there, on many releases: its power is that of a shift
    by 1 / z at most.
    """
    quantization = Quantization.of_unit_length(8, 4.0, 3)
    release = Release(1.0, 1.5, quantization)
    others = torch.randint(
        -20, 20, (5, 3), dtype=torch.int8, generator=torch.Generator().manual_seed(0)
    )
    victim = torch.tensor([[127, -127, 127]], dtype=torch.int8)

    exact = [
        statistics(
            rows, torch.zeros(len(rows), dtype=torch.int64), PAIR, release.clip, quantization
        )
        for rows in (others, torch.cat([others, victim]))
    ]

    def released(sums, seed):
        nothing = release.nothing({name: torch.zeros_like(value) for name, value in sums.items()})
        parts = [release.nothing(sums)] + [nothing] * (parties - 1)
        noisy = [
            release.noisy(part, parties, np.random.default_rng([seed, i]))
            for i, part in enumerate(parts)
        ]
        whole = added(noisy)
        return in_units(whole | {"count": whole["count"].double() / COUNT_UNIT}, release)

    without, with_it = (in_units(sums, release) for sums in exact)
    direction = (with_it - without) / (with_it - without).norm()
    scores = np.array(
        [[float(released(sums, seed) @ direction) for seed in range(1500)] for sums in exact]
    )
    shift = (scores[1].mean() - scores[0].mean()) / scores.std(axis=1).mean()
    assert 0.85 / 1.5 < shift < 1 / 1.5 + 4 * math.sqrt(2 / 1500)
    assert scores.std(axis=1) == pytest.approx([1.0, 1.0], abs=0.08)


def test_noise_on_whole_numbers_is_what_is_said():
    quantization = Quantization.of_unit_length(8, 12.0, 40)
    release = Release(1.0, 2.0, quantization)
    nothing = release.nothing(
        statistics(torch.zeros(1, 40), torch.tensor([0]), PAIR, 1.0, quantization)
    )
    assert "clipped" not in nothing  # how many features were depends on samples
    noisy, step = release.noisy(nothing, 1, np.random.default_rng(0)), float(quantization.step[0])
    assert all(noisy[name].dtype == torch.int64 for name in ("count", "total", "square"))
    assert (
        release.whole_deviations(40, 2, 1)["count"].tolist()
        == [math.ceil(release.deviations[0] * COUNT_UNIT)] * 2
    )
    off = unpacked(noisy["square"], 40)[tuple(torch.triu_indices(40, 40, 1))].double() * step**2
    assert float(off.std()) == pytest.approx(release.deviations[2] / math.sqrt(2), rel=0.1)
    assert float((noisy["total"].double() * step).std()) == pytest.approx(
        release.deviations[1], rel=0.35
    )
