"""Private merging: the accountant against published numbers and closed forms, the mechanism against its definition."""

import math
import sys

import numpy as np
import pytest
import torch
from scipy import optimize, special
from scipy.stats import norm as normal

from fedunseen.core.errors import ExperimentError, FedUnseenError, MissingDependencyError
from fedunseen.defences import Robust
from fedunseen.defences.rules import NormClip, NormClipSettings
from fedunseen.privacy import client_level as privacy
from fedunseen.privacy.client_level import PrivacySettings, Private, affordable_rounds, epsilon, needed_noise
from fedunseen.strategies import Pipeline, Reply
from fedunseen.strategies.fedavg import FedAvg, FedAvgSettings
from known_names import accounted


def renyi(q, noise, alpha):
    """Give the Renyi divergence of the subsampled Gaussian at a whole order (Mironov et al. 2019, Eq. 12)."""
    k = np.arange(alpha + 1)
    terms = np.log(special.comb(alpha, k)) + (alpha - k) * np.log1p(-q) + k * np.log(q) + (k * k - k) / (2 * noise**2)
    return special.logsumexp(terms) / (alpha - 1)


def by_moments(q, noise, rounds, delta):
    """Give epsilon as the moments accountant does (Abadi et al. 2016, Theorem 2)."""
    return min(rounds * renyi(q, noise, a) + math.log(1 / delta) / (a - 1) for a in range(2, 200))


@accounted
@pytest.mark.parametrize(("noise", "epochs", "published"), [(1.3, 20, 1.34), (0.7, 70, 8.68)])
def test_the_accountants_against_published_numbers(noise, epochs, published):
    """Bu et al. 2020, "Deep learning with Gaussian differential privacy", Fig. 4, by the moments accountant."""
    q, delta = 256 / 60000, 1e-5
    rounds = round(epochs / q)
    moments = by_moments(q, noise, rounds, delta)
    if noise > 1:  # otherwise the best order is not a whole number
        assert moments == pytest.approx(published, abs=0.01)
    assert moments > published - 0.01
    tight, loose = epsilon(noise, q, rounds, delta), epsilon(noise, q, rounds, delta, "rdp")
    assert tight < published
    assert tight < loose < moments  # newer proofs for the same mechanism
    by_renyi = min(
        rounds * renyi(q, noise, a) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in range(2, 65)
    )  # Canonne, Kamath and Steinke 2020, Prop. 12
    assert loose == pytest.approx(by_renyi, rel=1e-6)


@accounted
@pytest.mark.parametrize(("noise", "rate"), [(0.01, 0.5), (1e-6, 1.0)])
def test_as_good_as_no_noise_costs_no_memory(noise, rate, monkeypatch):
    """A grid of privacy losses would have 10^9 points and more: the bound that needs none is said in its place."""
    monkeypatch.setattr(privacy, "_loss_of_a_round", lambda *given: pytest.fail("a grid of that size"))
    result = epsilon(noise, rate, 20, 1e-5)
    assert result == epsilon(noise, rate, 20, 1e-5, "rdp")
    assert 20 * 0.99 / noise**2 < result < 21 / noise**2


def test_no_noise_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match=r"noise\n.*greater than or equal to 0\.000001"):
        PrivacySettings(name="client-level", clip=1.0, noise=1e-7)


@accounted
@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (2.0, 10), (5.0, 50)])
def test_everybody_in_every_round_is_one_gaussian_mechanism(noise, rounds):
    """Balle and Wang 2018, Theorem 8: exact for the sum of the rounds, whose noise is noise / sqrt(rounds)."""
    delta, mu = 1e-5, math.sqrt(rounds) / noise

    def excess(e):
        return normal.cdf(mu / 2 - e / mu) - math.exp(e) * normal.cdf(-mu / 2 - e / mu) - delta

    exact = optimize.brentq(excess, 1e-6, 100)
    assert exact <= epsilon(noise, 1.0, rounds, delta) <= exact * 1.0001
    assert epsilon(noise, 1.0, rounds, delta, "rdp") > exact


@pytest.mark.slow
@accounted
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_cost_grows_with_rounds_and_rate_and_falls_with_noise(accountant):
    def cost(noise=1.5, rate=0.3, rounds=20):
        return epsilon(noise, rate, rounds, 1e-5, accountant)

    assert cost(rounds=0) == 0
    assert cost(rounds=1) < cost(rounds=2) < cost()
    assert cost(rate=0.1) < cost() < cost(rate=1.0)
    assert cost(noise=3.0) < cost()
    needed = needed_noise(4.0, 0.3, 20, 1e-5, accountant)
    assert cost(noise=needed) <= 4.0 < cost(noise=needed - 0.01)
    paid = affordable_rounds(4.0, 1.5, 0.3, 20, 1e-5)
    assert epsilon(1.5, 0.3, paid, 1e-5) <= 4.0 < epsilon(1.5, 0.3, paid + 1, 1e-5)
    assert affordable_rounds(0.01, 1.5, 0.3, 20, 1e-5) == 0
    assert affordable_rounds(1000.0, 1.5, 0.3, 20, 1e-5) == 20


@pytest.mark.slow
@accounted
def test_a_small_budget_is_kept_by_the_better_of_two_bounds():
    q, rounds, delta = 0.1, 500, 1e-5
    needed = needed_noise(0.01, q, rounds, delta)
    assert epsilon(needed, q, rounds, delta) <= 0.01 < epsilon(needed - 0.5, q, rounds, delta)
    for noise in (1.0, needed):
        assert epsilon(noise, q, rounds, delta) <= epsilon(noise, q, rounds, delta, "rdp")
    strategy = private(dict.fromkeys(range(9), 1.0), rate=q, rounds=rounds, noise=None, epsilon=0.01)  # not refused
    assert strategy.filters[0].cost(rounds) <= 0.01


@accounted
def test_a_budget_that_no_noise_keeps(monkeypatch):
    monkeypatch.setattr(privacy, "epsilon", lambda *_: 2.0)
    with pytest.raises(ExperimentError, match=r"^privacy.epsilon = 1 cannot be kept over 9 rounds by any noise of use"):
        needed_noise(1.0, 1.0, 9, 1e-5)


def reply(client, values, classes=1):
    return Reply(client, {"w": torch.tensor(values)}, classes, 10)


def private(weights, rate=0.5, rounds=3, inner=None, more=(), **settings):
    result = PrivacySettings(name="client-level", **{"clip": 2.0, "noise": 1e-6, **settings})
    noise = Private(result, rate, rounds, weights, 7)
    return Pipeline(inner or FedAvg(FedAvgSettings(server_lr=0.5)), [noise, *more])


@pytest.fixture
def free(monkeypatch):
    """Cost nothing: what is tested is not the accountant."""
    monkeypatch.setattr(privacy, "epsilon", lambda *_: 0.0)


@pytest.mark.usefixtures("free")
def test_the_sum_is_divided_by_what_is_expected_not_by_who_came():
    start = {"w": torch.zeros(2)}
    strategy = private({0: 1.0, 1: 3.0, 2: 4.0})
    # client 1 claims 1000 classes; what counts is the table. Its update of length 5 is clipped to 2.
    given = [reply(0, [1.0, 0.0]), reply(1, [3.0, 4.0], classes=1000)]
    state, after = strategy.merge({}, start, given, 0)
    expected = (np.array([1.0, 0.0]) + 3 * 2 / 5 * np.array([3.0, 4.0])) / (0.5 * 8)
    np.testing.assert_allclose(after["w"], 0.5 * expected, atol=1e-4)
    assert strategy.notes(state)["privacy"]["clipped"] == 1
    _, alone = strategy.merge({}, start, given[:1], 0)
    np.testing.assert_allclose(alone["w"], [0.5 / 4, 0.0], atol=1e-4)


@pytest.mark.usefixtures("free")
def test_noise_is_the_multiplier_times_what_one_client_can_change():
    start = {"w": torch.zeros(40_000)}
    strategy = private({0: 1.0, 1: 3.0}, noise=2.0)
    released = strategy.merge({}, start, [], 0)[1]["w"]  # no one was drawn: noise alone, as in any other round
    most = 0.5 * 3 * 2.0 / (0.5 * 4)  # server_lr * w_max * C / (q W)
    assert float(released.std()) == pytest.approx(2.0 * most, rel=0.02)
    assert float(released.mean()) == pytest.approx(0.0, abs=0.05)
    assert strategy.filters[0].deviation == pytest.approx(2.0 * 3 * 2.0 / (0.5 * 4))
    # and no client can change more than that, whatever it sends
    random = np.random.default_rng(0)
    for _ in range(20):
        update = torch.from_numpy(random.normal(size=40_000).astype(np.float32) * 10 ** random.uniform(-3, 3))
        other = strategy.merge({}, start, [Reply(1, {"w": update}, 3, 1)], 0)[1]["w"]
        assert float((other - released).norm()) <= most * 1.0001


@pytest.mark.usefixtures("free")
def test_noise_comes_from_the_seed_or_from_the_system():
    start = {"w": torch.zeros(4)}
    for source, same in (("seed", True), ("system", False)):
        item, two = (private({0: 1.0}, noise=1.0, noise_from=source).merge({}, start, [], 0)[1]["w"] for _ in range(2))
        assert torch.equal(item, two) is same
    strategy = private({0: 1.0}, noise=1.0)
    assert not torch.equal(strategy.merge({}, start, [], 0)[1]["w"], strategy.merge({}, start, [], 1)[1]["w"])


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("size", [1e25, 1e31, 1e37, 3e38, float("nan")])
def test_no_update_changes_more_than_it_may_however_long_it_is(size):
    strategy = private({0: 1.0}, rate=1.0, clip=1.0)
    start, update = {"w": torch.zeros(1000)}, {"w": torch.full((1000,), size)}
    without = strategy.merge({}, start, [], 0)[1]["w"]
    change = strategy.merge({}, start, [Reply(0, update, 1, 1)], 0)[1]["w"] - without
    assert float(change.norm()) <= 0.5 * 1.0 * 1.00001  # server_lr * clip
    assert float(change.norm()) == pytest.approx(0.5 if size < 1e30 else 0.0, rel=1e-4)


@pytest.mark.usefixtures("free")
def test_a_defence_that_judges_each_alone_goes_first():
    clip = Robust(NormClip(NormClipSettings(bound=1.0), 0))
    strategy = private({0: 1.0, 1: 1.0}, rate=1.0, inner=FedAvg(FedAvgSettings()), more=[clip])
    start = {"w": torch.zeros(2)}
    state, after = strategy.merge(strategy.init(start, 2), start, [reply(0, [3.0, 4.0]), reply(1, [0.5, 0.0])], 0)
    np.testing.assert_allclose(after["w"], [0.55, 0.4], atol=1e-4)
    notes = strategy.notes(state)
    assert (notes["defence"]["kept"], notes["privacy"]["clipped"]) == (pytest.approx([0.2, 1.0]), 0)
    again, _ = strategy.merge(state, start, [], 1)
    assert strategy.notes(again)["defence"]["clients"] == []


@pytest.mark.slow
@accounted
def test_a_budget_is_kept_to():
    strategy = private(dict.fromkeys(range(9), 1.0), rate=0.3, rounds=10, noise=None, epsilon=5.0)
    assert strategy.filters[0].noise == needed_noise(5.0, 0.3, 10, 1e-5)
    state, _ = strategy.merge({}, {"w": torch.zeros(2)}, [], 9)
    result = strategy.notes(state)["privacy"]
    assert result["epsilon"] == epsilon(strategy.filters[0].noise, 0.3, 10, 1e-5) <= 5.0
    assert (result["delta"], result["noise"]) == (1e-5, strategy.filters[0].noise)
    rounds = affordable_rounds(5.0, strategy.filters[0].noise, 0.3, 1000, 1e-5)
    dear = f"round {rounds + 1} would raise it to {strategy.filters[0].cost(rounds + 1):.4g}; resume the run"
    with pytest.raises(FedUnseenError, match=f"^privacy.epsilon = 5 is spent: {dear}"):
        strategy.merge(state, {"w": torch.zeros(2)}, [], rounds)


@accounted
def test_rounds_that_cost_more_than_the_budget_are_refused():
    cost = epsilon(1.0, 0.3, 20, 1e-5)
    paid = affordable_rounds(4.0, 1.0, 0.3, 20, 1e-5)
    assert 0 < paid < 20
    spent = f"privacy.epsilon = 4 is spent after {paid} of the 20 rounds, which cost {cost:.4g}: raise privacy.noise"
    with pytest.raises(ExperimentError, match=f"^{spent}"):
        private(dict.fromkeys(range(9), 1.0), rate=0.3, rounds=20, noise=1.0, epsilon=4.0)


@pytest.mark.usefixtures("free")
def test_a_delta_that_means_nothing_is_refused():
    with pytest.raises(
        ExperimentError, match=r"^privacy.delta = 0.1 allows .* 10 clients away: set it far below 1/10$"
    ):
        private(dict.fromkeys(range(10), 1.0), delta=0.1)


@pytest.mark.slow
def test_without_the_library_the_extra_is_named(monkeypatch):
    for name in ("dp_accounting", "dp_accounting.pld.privacy_loss_distribution"):
        monkeypatch.setitem(sys.modules, name, None)
    for accountant in ("pld", "rdp"):
        with pytest.raises(MissingDependencyError, match=r"^privacy.name needs an accountant: pip install"):
            epsilon(1.2345, 0.5, 3, 1e-5, accountant)
