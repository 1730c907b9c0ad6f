r"""Client-level differential privacy (McMahan et al. 2018): sampled clients, clipped updates,
Gaussian noise.

.. math:: \frac{1}{q W} \Big( \sum_{k \in S} w_k\, \mathrm{clip}_C(\Delta_k) + \mathcal{N}(0, (z\,
    w_{max}\, C)^2 I) \Big), \qquad W = \sum_k w_k,\; w_{max} = \max_k w_k

Each client is in S with probability q by itself. Neighbors differ in one client's update, which is
there or zero, so the sum's L2 sensitivity is :math:`w_{max} C`. q W is a constant, and class counts
are public: no weight depends on S. Not defended against: the attack on the lowest bits of
floating-point noise (Mironov 2012).
"""

import importlib
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from fedunseen.core.bounds import limits
from fedunseen.core.errors import (
    ExperimentError,
    FedUnseenError,
    MissingDependencyError,
    RefusedError,
)
from fedunseen.core.parameters import Params, length
from fedunseen.core.random import stream
from fedunseen.core.settings import Settings
from fedunseen.safety.defences.base import add_noise
from fedunseen.strategies import Filter, FilterResult, Reply, RoundView
from fedunseen.strategies.base import MASKED

Accountant = Literal["pld", "rdp"]
_MASKING = frozenset({"dropouts", "range"})
# of updates whose shortening float32 still does exactly enough; longer ones count as not finite
_LONGEST = 1e30
_LEAST = 2.0**-32
"""The least deviation of noise under masks, as a share of ``privacy.range``: 16 steps of a ring
element with the largest weight and number of parties."""
_TAILS = 8
"""So many deviations of its noise an update under masks has room for beside ``privacy.clip``. A
number that is cut would show one client's part of the noise, which the accountant does not count;
beyond eight deviations lies one number in 10^15."""

_MEANINGLESS = 5000.0  # an epsilon above which it protects nothing
_ORDERS = [
    *range(2, 65),
    80,
    96,
    128,
    256,
    512,
    1024,
]  # whole: at others the series does not always converge


class PrivacySettings(Settings):
    """Settings of private merging."""

    name: Literal["none", "client-level", "sample-level"] = "none"
    """`client-level`: clipped updates of sampled clients, Gaussian noise, and an accountant (needs
    `pip install 'fedunseen[privacy]'`). A client takes part in a round with the probability
    `strategy.fraction`. `sample-level`: for methods in closed form, whose sums are released once:
    clipped samples, noise on the sums."""
    clip: Annotated[float, limits("privacy.clip")] | None = None
    """Longest update of a client, C; `sample-level`: longest sample, 1 with `data.features =
    ["l2"]`.
    """
    noise: Annotated[float, limits("privacy.noise")] | None = None
    """Noise multiplier z: the noise's standard deviation over what one client can change; much
    below 0.1 is as good as none. Unset: as little as keeps all rounds within `epsilon`."""
    epsilon: Annotated[float, limits("privacy.epsilon")] | None = None
    """Budget: rounds that would spend more are refused before the run begins. Unset: none."""
    delta: Annotated[float, limits("privacy.delta")] = 1e-5
    """Probability that epsilon does not hold; far below one over the number of clients
    (`sample-level`: samples)."""
    noise_from: Literal["seed", "system"] = "seed"
    """`seed`: noise that the same seed draws again, for studies; `system`: from the operating
    system's entropy, so that no one can take it off again, and no two runs are the same."""

    aggregation: Literal["plain", "masked"] = "plain"
    """`masked`: secure aggregation; the coordinator learns the sum of the updates and who took
    part, and no single update (needs `pip install 'fedunseen[masked]'`)."""
    dropouts: Literal["refuse", "allow"] = "refuse"
    """masked: `allow` sums of rounds whose participants differ by one or few parties. A coordinator
    that lies chooses the models, and the difference of two such sums can reveal one party's update.
    Parties consent on the command line."""
    range: Annotated[float, limits("privacy.range")] = 64.0
    """masked: the largest number of an update in a sum. Parties elsewhere cut larger ones, and the
    log says so; a simulation stops.
    """

    @property
    def chosen(self) -> bool:
        """Whether the section has an effect: noise, masks or both."""
        return self.name != "none" or self.aggregation == "masked"

    @model_validator(mode="after")
    def _check(self) -> "PrivacySettings":
        if self.aggregation == "masked" and find_spec("fedunseen.deploy") is None:
            raise ValueError(
                "aggregation = 'masked' needs fedunseen.deploy, which is missing: install the "
                "whole package, or set aggregation to 'plain'"
            )
        set_fields = self.model_fields_set - {"name", "aggregation"}
        if self.aggregation == "plain" and (extra := sorted(set_fields & _MASKING)):
            raise ValueError(
                f"{extra[0]} has no effect with aggregation = 'plain': set aggregation to 'masked'"
            )
        if self.name == "none":
            if extra := sorted(set_fields - _MASKING):
                raise ValueError(
                    f"{extra[0]} has no effect with name = 'none': set name to 'client-level' or "
                    "'sample-level'"
                )
            return self
        if self.clip is None:
            raise ValueError("clip is missing: say how long a client's update, or a sample, may be")
        if self.noise is None and self.epsilon is None:
            raise ValueError(
                "noise and epsilon are both missing: give a noise multiplier, a budget, or both"
            )
        return self

    @model_serializer(mode="wrap")
    def _what_has_effect(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what has no effect, which would be refused where it is read again."""
        idle = {"aggregation", *_MASKING} if self.aggregation == "plain" else set()
        if self.name == "none":
            idle |= type(self).model_fields.keys() - {"name", "aggregation", *_MASKING}
        return {key: value for key, value in dump(self).items() if key not in idle}


@lru_cache(maxsize=4096)
def epsilon(
    noise: float, rate: float, rounds: int, delta: float, accountant: Accountant = "pld"
) -> float:
    """Return what ``rounds`` rounds cost: the smallest epsilon that the accountant proves for
    ``delta``.

    Both accountants prove upper bounds. Privacy loss distributions are nearly exact unless epsilon
    is small beside the steps of their grid, which add up over the rounds; so ``pld`` is the lesser
    of the two bounds. Where Renyi divergences prove no epsilon below 5000, which protects nothing,
    it is theirs alone: the grid would need gigabytes.
    """
    if not rounds:
        return 0.0
    if accountant == "pld":
        bound = epsilon(noise, rate, rounds, delta, "rdp")
        if bound > _MEANINGLESS:
            return bound
        loss = _loss_of_a_round(noise, rate)
        tight = float(
            (loss.self_compose(rounds) if rounds > 1 else loss).get_epsilon_for_delta(delta)
        )
        return min(tight, bound)
    accounting = _library("dp_accounting")
    event = accounting.PoissonSampledDpEvent(rate, accounting.GaussianDpEvent(noise))
    account = _library("dp_accounting.rdp").RdpAccountant(_ORDERS)
    return float(account.compose(event, rounds).get_epsilon(delta))


def plan_cost(experiment: Mapping[str, Any]) -> tuple[float, float]:
    """Return (epsilon, delta) of a whole run from the experiment that a party is sent.

    Epsilon is infinite where this party adds no noise, and without masks: then the coordinator adds
    it, or sees how many samples there are. A noise multiplier is not needed where a budget is set,
    which the run keeps.
    """
    settings = PrivacySettings(**experiment.get("privacy", {}))
    if settings.name == "none" or settings.aggregation == "plain":
        return math.inf, 0.0
    if settings.noise is None:
        assert settings.epsilon is not None
        return settings.epsilon, settings.delta
    # Each party takes part in every round under masks. Of whole numbers, the bound of discrete
    # noise is reported.
    whole = settings.name == "sample-level" and experiment["data"].get("quantization") != "none"
    accountant: Accountant = "rdp" if whole else "pld"
    rounds = int(experiment["strategy"]["rounds"])
    return epsilon(settings.noise, 1.0, rounds, settings.delta, accountant), settings.delta


@lru_cache(maxsize=8)
def _loss_of_a_round(noise: float, rate: float) -> Any:
    """Return the privacy loss distribution of one round, the greater one of a client that is there
    and one that is not.

    Its grid is ten times as coarse as the library's default, which is on the safe side and ten
    times as fast. An epsilon of one and more grows by about a millionth of it; one of a hundredth
    may double over many rounds.
    """
    distributions = _library("dp_accounting.pld.privacy_loss_distribution")
    return distributions.from_gaussian_mechanism(
        noise, value_discretization_interval=1e-3, sampling_prob=rate
    )


def _library(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingDependencyError(
            "privacy.name needs an accountant: pip install 'fedunseen[privacy]'"
        ) from None


def needed_noise(
    budget: float, rate: float, rounds: int, delta: float, accountant: Accountant = "pld"
) -> float:
    """Return the least noise multiplier, rounded up to a hundredth, with which ``rounds`` rounds
    cost ``budget``.
    """

    def enough(hundredths: int, how: Accountant) -> bool:
        return epsilon(hundredths / 100, rate, rounds, delta, how) <= budget

    most = 10  # a tenth: with less, the distributions take much memory
    while not enough(
        most, "rdp"
    ):  # quick, and never less than what is needed: enough for both accountants
        most *= 2
        if most > 10**8:
            raise ExperimentError(
                f"privacy.epsilon = {budget:g} cannot be kept over {rounds} rounds by any noise of "
                "use: raise it, or lower strategy.rounds"
            )
    most = _first(lambda n: enough(n, "rdp"), most // 2, most)
    if accountant == "rdp":
        return most / 100
    return _first(lambda n: enough(n, "pld"), max(10, most // 2), most) / 100


def affordable_rounds(budget: float, noise: float, rate: float, rounds: int, delta: float) -> int:
    """Return how many of ``rounds`` rounds a budget pays for."""
    if epsilon(noise, rate, rounds, delta) <= budget:
        return rounds
    return _first(lambda n: epsilon(noise, rate, n, delta) > budget, 1, rounds) - 1


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the first number from ``low`` on for which something holds, which it does for ``high``
    and all above.
    """
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


class Private(Filter):
    """Lets a strategy see of a round nothing but the noisy mean of clipped updates.

    The strategy's merge must take the weighted mean alone (``Strategy.merges_by_mean``). A defence
    goes around it and judges the replies while they still are single. A round without replies
    releases noise alone, as any other would.
    """

    name = "privacy"

    def __init__(
        self,
        settings: PrivacySettings,
        rate: float,
        rounds: int,
        weights: Mapping[int, float],
        seed: int,
        uniform: bool = False,
    ) -> None:
        self.uniform = uniform
        self.rounds = rounds
        assert settings.clip is not None  # the settings' own check
        self.privacy = settings
        self.rate = rate
        self.weights = weights
        self.seed = seed
        self.clip = settings.clip
        if settings.delta * len(weights) >= 1:
            raise ExperimentError(
                f"privacy.delta = {settings.delta:g} allows to give one of the {len(weights)} "
                f"clients away: set it far below 1/{len(weights)}"
            )
        budget = settings.epsilon
        if settings.noise is not None:
            self.noise = settings.noise
        else:
            assert budget is not None
            self.noise = needed_noise(budget, rate, rounds, settings.delta)
        cost = self.cost(rounds)
        if budget is not None and cost > budget:
            paid = affordable_rounds(budget, self.noise, rate, rounds, settings.delta)
            raise ExperimentError(
                f"privacy.epsilon = {budget:g} is spent after {paid} of the {rounds} rounds, which "
                f"cost {cost:.4g}: raise privacy.noise, or lower strategy.rounds or "
                "strategy.fraction"
            )

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on every number of the mean: z w_max C / (q W)."""
        values = list(self.weights.values())
        return self.noise * self.clip * max(values) / (self.rate * sum(values))

    def cost(self, rounds: int) -> float:
        """Return epsilon after ``rounds`` rounds."""
        return epsilon(self.noise, self.rate, rounds, self.privacy.delta)

    def filter(self, view: RoundView) -> FilterResult:
        """Put the noisy mean instead of every reply."""
        budget = self.privacy.epsilon
        replies = view.replies
        round = view.round
        state = {"rounds": torch.tensor(round + 1)}
        if budget is not None and self.cost(round + 1) > budget:
            raise FedUnseenError(
                f"privacy.epsilon = {budget:g} is spent: round {round + 1} would raise it to "
                f"{self.cost(round + 1):.4g}; resume the run with the settings that it was started "
                "with"
            )
        expected = self.rate * sum(self.weights.values())
        if len(replies) == 1 and MASKED in replies[0].notes:  # clients have clipped and added noise
            factor = (replies[0].notes[MASKED] if self.uniform else replies[0].classes) / expected
            mean = {name: value * factor for name, value in replies[0].update.items()}
            return FilterResult([Reply(0, mean, 1, 1)], state=state)
        mean = {name: torch.zeros_like(value) for name, value in view.params.items()}
        clipped = 0
        for reply in replies:
            norm = length(reply.update)
            if not norm <= _LONGEST:  # nor if it is not finite
                continue
            clipped += norm > self.clip
            share = (
                self.weights[reply.client] / expected * min(1.0, self.clip / norm if norm else 1.0)
            )
            for name, value in reply.update.items():
                mean[name].add_(value, alpha=share)
        mean = add_noise(mean, self.deviation, self._noise_stream(round))
        return FilterResult(
            [Reply(0, mean, 1, 1)], state=state | {"clipped": torch.tensor(clipped)}
        )

    def add_local_noise(self, reply: Reply, parties: int, round: int) -> Reply:
        """Shorten a client's update and add its part of the noise: those of ``parties`` clients are
        the noise of a sum.

        The sum weights updates, so that the part is divided by the client's weight here.
        """
        norm = length(reply.update)
        factor = min(1.0, self.clip / norm if norm else 1.0) if norm <= _LONGEST else 0.0
        update = {
            name: value * factor if factor else torch.zeros_like(value)
            for name, value in reply.update.items()
        }
        most = max(self.weights.values())
        share = 1.0 if self.uniform else float(reply.classes)
        deviation = self.noise * self.clip * most / share / math.sqrt(parties)
        update = add_noise(update, deviation, self._noise_stream(round, reply.client))
        return replace(reply, update=update, terms={})  # losses would leave without noise

    def spent(self, parties: int) -> tuple[float, float]:
        """Return (epsilon, delta) of all rounds, to whose sums each of ``parties`` clients adds
        noise.

        Raises:
            RefusedError: code ``noise-too-small`` or ``noise-too-large``: masks cannot carry the
                noise.
        """
        deviation = self.noise * self.clip / math.sqrt(parties)
        largest = self.clip + _TAILS * deviation  # parties elsewhere weigh alike, by a rule
        for wrong, code in (
            (not deviation >= _LEAST * self.privacy.range, "noise-too-small"),
            (not largest <= self.privacy.range, "noise-too-large"),
        ):
            if wrong:
                raise RefusedError(
                    f"masks with privacy.range = {self.privacy.range:g} cannot carry updates of "
                    f"length {self.clip:g} with noise of the standard deviation {deviation:.3g}: "
                    "ask the coordinator for another range",
                    code,
                )
        return self.cost(self.rounds), self.privacy.delta

    def _noise_stream(self, round: int, client: int | None = None) -> np.random.Generator:
        if self.privacy.noise_from == "system":
            return np.random.default_rng(secrets.randbits(256))
        return stream(self.seed, "privacy noise", round, *([] if client is None else [client]))

    def notes(self, state: Params) -> dict[str, Any]:
        """Return under ``privacy`` what all rounds so far have cost, and how many updates of the
        round were clipped.
        """
        if not state:
            return {}
        notes = {
            "epsilon": self.cost(int(state["rounds"])),
            "delta": self.privacy.delta,
            "noise": self.noise,
            "deviation": self.deviation,
            **({"clipped": int(state["clipped"])} if "clipped" in state else {}),
        }
        return {"privacy": notes}
