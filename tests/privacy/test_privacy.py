"""Private merging: the accountant against published numbers and closed forms, the mechanism against
its definition.

Under masks every client clips and blurs its own part, and the sum is blurred enough.
"""

import json
import math
import sys

import numpy as np
import pytest
import torch
from scipy import optimize, special
from scipy.stats import norm as normal

from fedunseen import Experiment, run
from fedunseen.core.errors import ExperimentError, FedUnseenError, MissingDependencyError
from fedunseen.deploy.secagg.masks import Masks
from fedunseen.pages.report import write_report
from fedunseen.safety.defences.base import Robust
from fedunseen.safety.defences.rules import NormClip
from fedunseen.safety.privacy import client_level as privacy
from fedunseen.safety.privacy.client_level import (
    PrivacySettings,
    Private,
    affordable_rounds,
    epsilon,
    needed_noise,
)
from fedunseen.strategies import FedAvg, Pipeline, Reply
from known_names import accounted
from small_runs import TRAINED


def renyi(q, noise, alpha):
    """Give the Renyi divergence of the subsampled Gaussian at a whole order (Mironov et al. 2019,
    Eq. 12).
    """
    k = np.arange(alpha + 1)
    terms = (
        np.log(special.comb(alpha, k))
        + (alpha - k) * np.log1p(-q)
        + k * np.log(q)
        + (k * k - k) / (2 * noise**2)
    )
    return special.logsumexp(terms) / (alpha - 1)


@accounted
@pytest.mark.parametrize(("noise", "epochs", "published"), [(1.3, 20, 1.34), (0.7, 70, 8.68)])
def test_the_accountants_against_published_numbers(noise, epochs, published):
    """Bu et al. 2020, "Deep learning with Gaussian differential privacy", Fig. 4, by the moments
    accountant.
    """
    q, delta = 256 / 60000, 1e-5
    rounds = round(epochs / q)
    # Abadi et al. 2016, Theorem 2
    moments = min(
        rounds * renyi(q, noise, a) + math.log(1 / delta) / (a - 1) for a in range(2, 200)
    )
    if noise > 1:  # otherwise the best order is not a whole number
        assert moments == pytest.approx(published, abs=0.01)
    assert moments > published - 0.01
    tight, loose = (epsilon(noise, q, rounds, delta, accountant) for accountant in ("pld", "rdp"))
    assert tight < published
    assert tight < loose < moments  # newer proofs for the same mechanism
    # Canonne, Kamath and Steinke 2020, Prop. 12
    known = [
        rounds * renyi(q, noise, a) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1)
        for a in range(2, 65)
    ]
    assert loose == pytest.approx(min(known), rel=1e-6)


@accounted
@pytest.mark.parametrize(("noise", "rate"), [(0.01, 0.5), (1e-6, 1.0)])
def test_as_good_as_no_noise_costs_no_memory(noise, rate, monkeypatch):
    """A grid of privacy losses would have 10^9 points and more: the bound that needs none is said
    in its place.
    """
    monkeypatch.setattr(
        privacy, "_loss_of_a_round", lambda *given: pytest.fail("a grid of that size")
    )
    result = epsilon(noise, rate, 20, 1e-5)
    assert result == epsilon(noise, rate, 20, 1e-5, "rdp")
    assert 20 * 0.99 / noise**2 < result < 21 / noise**2


@accounted
@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (2.0, 10), (5.0, 50)])
def test_everybody_in_every_round_is_one_gaussian_mechanism(noise, rounds):
    """Balle and Wang 2018, Theorem 8: exact for the sum of the rounds, whose noise is noise /
    sqrt(rounds).
    """
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
    none, paid, whole = (
        affordable_rounds(budget, 1.5, 0.3, 20, 1e-5) for budget in (0.01, 4.0, 1000.0)
    )
    assert epsilon(1.5, 0.3, paid, 1e-5) <= 4.0 < epsilon(1.5, 0.3, paid + 1, 1e-5)
    assert (none, whole) == (0, 20)


@pytest.mark.slow
@accounted
def test_a_small_budget_is_kept_by_the_better_of_two_bounds():
    q, rounds, delta = 0.1, 500, 1e-5
    needed = needed_noise(0.01, q, rounds, delta)
    assert epsilon(needed, q, rounds, delta) <= 0.01 < epsilon(needed - 0.5, q, rounds, delta)
    for noise in (1.0, needed):
        assert epsilon(noise, q, rounds, delta) <= epsilon(noise, q, rounds, delta, "rdp")
    strategy = merging(
        dict.fromkeys(range(9), 1.0), rate=q, rounds=rounds, noise=None, epsilon=0.01
    )  # not refused
    assert strategy.filters[0].cost(rounds) <= 0.01


def zeros(size=2):
    return {"w": torch.zeros(size)}


def merging(weights, rate=0.5, rounds=3, inner=None, more=(), uniform=False, **settings):
    """Make private merging of clients with these weights; its privacy is paid for."""
    result = PrivacySettings(name="client-level", **{"clip": 2.0, "noise": 1e-6, **settings})
    return Pipeline(
        inner or FedAvg(server_lr=0.5), [Private(result, rate, rounds, weights, 7, uniform), *more]
    )


def released(strategy, *replies, size=2, round=0):
    """Return the parameters after a round that began with zeros."""
    return strategy.merge({}, zeros(size), replies, round)[1]["w"]


@pytest.fixture
def private(monkeypatch):
    """Make private merging that costs nothing: what is tested is not the accountant."""
    monkeypatch.setattr(privacy, "epsilon", lambda *_: 0.0)
    return merging


def test_the_sum_is_divided_by_what_is_expected_not_by_who_came(private):
    strategy = private({0: 1.0, 1: 3.0, 2: 4.0})
    # client 1 claims 1000 classes; what counts is the table. Its update of length 5 is clipped to
    # 2.
    given = [
        Reply(0, {"w": torch.tensor([1.0, 0.0])}, 1, 10),
        Reply(1, {"w": torch.tensor([3.0, 4.0])}, 1000, 10),
    ]
    state, after = strategy.merge({}, zeros(), given, 0)
    expected = (np.array([1.0, 0.0]) + 3 * 2 / 5 * np.array([3.0, 4.0])) / (0.5 * 8)
    np.testing.assert_allclose(after["w"], 0.5 * expected, atol=1e-4)
    assert strategy.notes(state)["privacy"]["clipped"] == 1
    np.testing.assert_allclose(released(strategy, given[0]), [0.5 / 4, 0.0], atol=1e-4)


def test_noise_is_the_multiplier_times_what_one_client_can_change(private):
    size, strategy = 40_000, private({0: 1.0, 1: 3.0}, noise=2.0)
    noise = released(strategy, size=size)  # no one was drawn: noise alone, as in any other round
    most = 0.5 * 3 * 2.0 / (0.5 * 4)  # server_lr * w_max * C / (q W)
    assert float(noise.std()) == pytest.approx(2.0 * most, rel=0.02)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.05)
    assert strategy.filters[0].deviation == pytest.approx(2.0 * 3 * 2.0 / (0.5 * 4))
    # and no client can change more than that, whatever it sends
    random = np.random.default_rng(0)
    for _ in range(20):
        update = torch.from_numpy(
            random.normal(size=size).astype(np.float32) * 10 ** random.uniform(-3, 3)
        )
        assert (
            float((released(strategy, Reply(1, {"w": update}, 3, 1), size=size) - noise).norm())
            <= most * 1.0001
        )


def test_noise_comes_from_the_seed_or_from_the_system(private):
    def drawn(source, round=0):
        return released(private({0: 1.0}, noise=1.0, noise_from=source), round=round).tolist()

    assert drawn("seed") == drawn("seed") != drawn("seed", 1)
    assert drawn("system") != drawn("system")


@pytest.mark.parametrize("size", [1e25, 1e31, 1e37, 3e38, float("nan")])
def test_no_update_changes_more_than_it_may_however_long_it_is(private, size):
    strategy = private({0: 1.0}, rate=1.0, clip=1.0)
    reply = Reply(0, {"w": torch.full((1000,), size)}, 1, 1)
    change = float((released(strategy, reply, size=1000) - released(strategy, size=1000)).norm())
    assert change <= 0.5 * 1.0 * 1.00001  # server_lr * clip
    assert change == pytest.approx(0.5 if size < 1e30 else 0.0, rel=1e-4)


def test_a_defence_that_judges_each_alone_goes_first(private):
    clip = Robust(NormClip(NormClip.Settings(bound=1.0), 0))
    strategy = private({0: 1.0, 1: 1.0}, rate=1.0, inner=FedAvg(), more=[clip])
    given = [
        Reply(k, {"w": torch.tensor(update)}, 1, 10)
        for k, update in enumerate(([3.0, 4.0], [0.5, 0.0]))
    ]
    state, after = strategy.merge(strategy.init(zeros(), 2), zeros(), given, 0)
    np.testing.assert_allclose(after["w"], [0.55, 0.4], atol=1e-4)
    notes = strategy.notes(state)
    assert (notes["defence"]["kept"], notes["privacy"]["clipped"]) == (pytest.approx([0.2, 1.0]), 0)
    again, _ = strategy.merge(state, zeros(), [], 1)
    assert strategy.notes(again)["defence"]["clients"] == []


@pytest.mark.slow
@accounted
def test_a_budget_is_kept_to():
    strategy = merging(dict.fromkeys(range(9), 1.0), rate=0.3, rounds=10, noise=None, epsilon=5.0)
    noise = strategy.filters[0].noise
    assert noise == needed_noise(5.0, 0.3, 10, 1e-5)
    state, _ = strategy.merge({}, zeros(), [], 9)
    cost = epsilon(noise, 0.3, 10, 1e-5)
    assert cost <= 5.0
    assert (
        strategy.notes(state)["privacy"].items()
        >= {"epsilon": cost, "delta": 1e-5, "noise": noise}.items()
    )
    rounds = affordable_rounds(5.0, noise, 0.3, 1000, 1e-5)
    dear = f"round {rounds + 1} would raise it to {strategy.filters[0].cost(rounds + 1):.4g}; resume the run"
    with pytest.raises(FedUnseenError, match=f"^privacy.epsilon = 5 is spent: {dear}"):
        strategy.merge(state, zeros(), [], rounds)


@pytest.mark.slow
@accounted
def test_rounds_that_cost_more_than_the_budget_and_a_budget_that_no_noise_keeps_are_refused(
    monkeypatch,
):
    cost = epsilon(1.0, 0.3, 20, 1e-5)
    paid = affordable_rounds(4.0, 1.0, 0.3, 20, 1e-5)
    assert 0 < paid < 20
    spent = f"privacy.epsilon = 4 is spent after {paid} of the 20 rounds, which cost {cost:.4g}: raise privacy.noise"
    with pytest.raises(ExperimentError, match=f"^{spent}"):
        merging(dict.fromkeys(range(9), 1.0), rate=0.3, rounds=20, noise=1.0, epsilon=4.0)
    monkeypatch.setattr(privacy, "epsilon", lambda *_: 2.0)
    with pytest.raises(
        ExperimentError,
        match=r"^privacy.epsilon = 1 cannot be kept over 9 rounds by any noise of use",
    ):
        needed_noise(1.0, 1.0, 9, 1e-5)


def test_no_noise_and_a_delta_that_means_nothing_are_refused(private):
    with pytest.raises(ValueError, match=r"noise\n.*greater than or equal to 0\.000001"):
        private({0: 1.0}, noise=1e-7)
    why = r"^privacy.delta = 0.1 allows .* 10 clients away: set it far below 1/10$"
    with pytest.raises(ExperimentError, match=why):
        private(dict.fromkeys(range(10), 1.0), delta=0.1)


@pytest.mark.slow
def test_without_the_library_the_extra_is_named(monkeypatch):
    for name in ("dp_accounting", "dp_accounting.pld.privacy_loss_distribution"):
        monkeypatch.setitem(sys.modules, name, None)
    for accountant in ("pld", "rdp"):
        with pytest.raises(
            MissingDependencyError, match=r"^privacy.name needs an accountant: pip install"
        ):
            epsilon(1.2345, 0.5, 3, 1e-5, accountant)


CLASSES = (1, 2, 3, 1, 3)
MASKS = Masks(64.0, len(CLASSES), noisy=True, dropouts=True)


def masked(noise, weights="classes"):
    """Make private merging under masks of five clients that hold these many classes."""
    uniform = weights == "uniform"
    table = dict(enumerate([1.0] * len(CLASSES) if uniform else map(float, CLASSES)))
    return merging(
        table,
        1.0,
        inner=FedAvg(weights=weights),
        uniform=uniform,
        noise=noise,
        aggregation="masked",
    )


def replies(updates):
    return [Reply(k, {"w": torch.tensor(u)}, CLASSES[k], 10) for k, u in enumerate(updates)]


@accounted
@pytest.mark.parametrize("weights", ["classes", "uniform"])
def test_a_masked_round_releases_the_clipped_weighted_mean(weights):
    """With next to no noise it is the mean that the server would make of single updates."""
    strategy = masked(1.0, weights)
    strategy.filters[0].noise = 1e-9
    given = replies([[3.0, 4.0], [0.3, -0.4], [0.0, 1.0], [-30.0, 40.0], [0.5, 0.5]])
    hidden = released(strategy, MASKS.sum(strategy, given, zeros()).reply)
    assert hidden.tolist() == pytest.approx(released(strategy, *given).tolist(), abs=1e-6)


@accounted
def test_the_sum_of_all_parts_is_as_noisy_as_the_accountant_takes_it_to_be():
    """If as few clients as may are part of it, it has the noise that is counted; with all, more."""
    size, noise, clip = 20_000, 1.5, 2.0
    strategy = masked(noise)
    nothing = replies([np.zeros(size, dtype=np.float32)] * 5)
    assert MASKS.least == 4
    for part in (nothing, nothing[1:]):
        weight = sum(CLASSES[reply.client] for reply in part)
        total = MASKS.sum(strategy, part, zeros(size)).reply.update["w"].double() * weight
        expected = noise * clip * max(CLASSES) * math.sqrt(len(part) / 4)
        assert float(total.std()) == pytest.approx(
            expected, rel=0.03
        )  # six deviations of the estimate
        assert abs(float(total.mean())) < 6 * expected / math.sqrt(size)


@accounted
def test_each_client_and_each_round_has_noise_of_its_own():
    strategy, still = masked(1.0), zeros(50)
    drawn = [
        strategy.add_local_noise(Reply(k, still, 1, 1), 4, round).update["w"]
        for k in (0, 1)
        for round in (0, 1)
    ]
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


@pytest.mark.slow
@accounted
def test_a_run_counts_its_epsilon(tmp_path):
    noise = {"privacy.name": "client-level", "privacy.clip": 1.0, "privacy.noise": 2.0}
    settings = {**TRAINED, "partition.clients": 4, "strategy.rounds": 2, **noise}
    both = [
        Experiment.load("digit-pairs", {**settings, "privacy.aggregation": way})
        for way in ("plain", "masked")
    ]
    plain, hidden = (run(experiment, tmp_path / str(i)) for i, experiment in enumerate(both))
    assert hidden.result["epsilon"] == plain.result["epsilon"] > 0
    assert "clipped" not in hidden.metrics[0]["privacy"]
    assert (hidden.metrics[0]["losses"], bool(plain.metrics[0]["losses"])) == (
        {},
        True,
    )  # they have no noise
    assert "clients clipped their updates and added the noise under masks" in write_report(
        hidden
    ).read_text("utf-8")
    assert (
        json.loads((hidden.path / "manifest.json").read_bytes())["experiment"]["privacy"][
            "aggregation"
        ]
        == "masked"
    )
