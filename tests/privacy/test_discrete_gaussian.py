"""Discrete Gaussian noise: its distribution is exact, and what it hides of a sample is what the accountant counts."""

import itertools
import math

import numpy as np
import pytest
import torch

from fedunseen.data import ClassSpace, Quantization
from fedunseen.methods.closed_form.statistics import statistics, unpacked
from fedunseen.privacy import private_sums as module
from fedunseen.privacy.private_sums import COUNT_UNIT, Release, discrete_gaussian, seeded_words, system_words

SPACE = ClassSpace(("a", "b"), np.eye(2), ("u", "v"), [0], [], [1])


def words(seed=0):
    return seeded_words(np.random.default_rng(seed))


@pytest.mark.parametrize("near", [module.NEAR, 3.0])
@pytest.mark.parametrize("sigma", [1, 2, 7])
def test_samples_have_the_exact_probabilities(sigma, near, monkeypatch):
    """Chi-square against the probabilities, where floats decide (near = 2^-40) and where exact arithmetic does."""
    monkeypatch.setattr(module, "NEAR", near)
    count = 200_000 if near < 1 else 6_000
    sample = discrete_gaussian(np.full(count, sigma), words())
    values = np.arange(-12 * sigma, 12 * sigma + 1)
    p = np.exp(-(values**2) / (2 * sigma**2))
    expected = count * p / p.sum()
    result = np.array([(sample == value).sum() for value in values])
    assert result.sum() == count
    often = expected > 5
    chi = float(((result - expected)[often] ** 2 / expected[often]).sum())
    assert chi < often.sum() + 6 * math.sqrt(2 * often.sum())  # six deviations


def test_floats_decide_as_exact_arithmetic_does(monkeypatch):
    sigmas = np.array([1, 2, 3, 1000, 2**31, 2**45] * 200)
    quick = discrete_gaussian(sigmas, words())
    monkeypatch.setattr(module, "NEAR", 3.0)
    assert (discrete_gaussian(sigmas, words()) == quick).all()


def test_equal_digits_are_followed_by_more():
    """A uniform number whose first 64 digits are those of exp(-1) is decided by the next ones."""
    from fractions import Fraction

    drawn = int(0.36787944117144232159552377016146086744581113103176 * 2**53) << 11
    exact = 36787944117144232159552377016146086744581113103176 * 2**64 // 10**50
    assert abs(drawn - exact) < 2**12
    for next_word, below in ((0, True), (2**64 - 1, False)):
        assert module._is_below(exact, Fraction(1), lambda n, w=next_word: np.full(n, w, dtype=np.uint64)) == below


def test_the_systems_randomness_is_not_repeated():
    sigmas = np.full(50, 10**9)
    assert (discrete_gaussian(sigmas, system_words) != discrete_gaussian(sigmas, system_words)).all()


def in_units(sums, release, parties=1):
    """Return all that is released as one vector, in units of the deviations of its noise."""
    width, classes = sums["total"].shape[1], len(sums["count"])
    deviations = release.whole_deviations(width, classes, parties)
    values = {"count": sums["count"] * COUNT_UNIT, "total": sums["total"], "square": sums["square"]}
    parts = [torch.where(deviations[k] > 0, v / deviations[k], v.double()).flatten() for k, v in values.items()]
    return torch.cat(parts).double()


STEPS = (
    Quantization.of_unit_length(4, 2.0, 3),
    Quantization(4, np.array([0.199, 0.05, 0.0], dtype=np.float32), np.zeros(3, dtype=np.float32)),
)


@pytest.mark.parametrize("quantization", STEPS, ids=["one step", "a step for each feature"])
def test_no_sample_changes_more_than_the_noise_multiplier_says(quantization):
    """All samples of three whole numbers: the largest change is one over z, and hardly less."""
    release, most = Release(1.0, 3.0, quantization), 0.0
    levels = range(-quantization.levels, quantization.levels + 1)
    exact = torch.from_numpy(quantization.step).double().expand(3)
    for codes in itertools.product(levels, levels, levels if len(quantization.step) == 1 else [0]):
        rows = torch.tensor([codes], dtype=torch.int8)
        sums = statistics(rows, torch.tensor([0]), SPACE, release.clip, quantization)
        assert float((sums["total"][0] * exact).norm()) <= 1.0 + 1e-9
        change = float(in_units(sums, release).norm())
        assert change <= 1 / 3.0
        most = max(most, change)
    assert most > 0.9 / 3.0


@pytest.mark.parametrize("parties", [1, 4])
def test_an_audit_finds_no_more_than_the_accountant_counts(parties):
    """The best test of whether a sample was there, on many releases: its power is that of a shift by 1 / z at most."""
    quantization = Quantization.of_unit_length(8, 4.0, 3)
    release = Release(1.0, 1.5, quantization)
    others = torch.randint(-20, 20, (5, 3), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
    victim = torch.tensor([[127, -127, 127]], dtype=torch.int8)

    def released(rows, seed):
        sums = statistics(rows, torch.zeros(len(rows), dtype=torch.int64), SPACE, release.clip, quantization)
        nothing = release.nothing({name: torch.zeros_like(value) for name, value in sums.items()})
        parts = [release.nothing(sums)] + [nothing] * (parties - 1)
        noisy = [release.noisy(part, parties, np.random.default_rng([seed, i])) for i, part in enumerate(parts)]
        whole = {name: sum(item[name] for item in noisy) for name in ("total", "square")}
        count = sum(item["count"] for item in noisy).double() / COUNT_UNIT
        return in_units(whole | {"count": count}, release, 1)

    without = statistics(others, torch.zeros(5, dtype=torch.int64), SPACE, release.clip, quantization)
    together = torch.cat([others, victim])
    with_it = statistics(together, torch.zeros(6, dtype=torch.int64), SPACE, release.clip, quantization)
    direction = in_units(with_it, release) - in_units(without, release)
    direction /= direction.norm()
    scores = np.array(
        [[float(released(rows, seed) @ direction) for seed in range(1500)] for rows in (others, together)]
    )
    shift = (scores[1].mean() - scores[0].mean()) / scores.std(axis=1).mean()
    assert 0.85 / 1.5 < shift < 1 / 1.5 + 4 * math.sqrt(2 / 1500)
    assert scores.std(axis=1) == pytest.approx([1.0, 1.0], abs=0.08)


def test_noise_on_whole_numbers_is_what_is_said():
    quantization = Quantization.of_unit_length(8, 12.0, 40)
    release = Release(1.0, 2.0, quantization)
    nothing = release.nothing(statistics(torch.zeros(1, 40), torch.tensor([0]), SPACE, 1.0, quantization))
    assert "clipped" not in nothing  # how many features were depends on samples
    noisy = release.noisy(nothing, 1, np.random.default_rng(0))
    assert all(noisy[name].dtype == torch.int64 for name in ("count", "total", "square"))
    square = unpacked(noisy["square"], 40).double() * float(quantization.step[0]) ** 2
    off = square[tuple(torch.triu_indices(40, 40, 1))]
    assert float(off.std()) == pytest.approx(release.deviations[2] / math.sqrt(2), rel=0.1)
    total = noisy["total"].double() * float(quantization.step[0])
    assert float(total.std()) == pytest.approx(release.deviations[1], rel=0.35)
