"""Attacks: what malicious clients do in their rounds (FedZSL sections 3.3, 4.3 and 5).

An attack sees what its client sees: own data, what the server sends, and the update that it is
about to send back.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator
from torch import Tensor

from fedunseen.core.parameters import Params, is_statistic
from fedunseen.core.phases import Plan
from fedunseen.core.settings import Named, NamedSettings


def parse_rounds(text: str) -> list[tuple[int, int | None]]:
    """Read which rounds are attacked, counted from 1: ``20``, ``20-24``, ``20-`` (to the end),
    several with commas.
    """
    if text.strip() == "never":
        return []
    result: list[tuple[int, int | None]] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(-\s*(\d+)?)?\s*", part)
        first = int(match[1]) if match else 0
        last = first if match and not match[2] else int(match[3]) if match and match[3] else None
        if first < 1 or (last is not None and last < first):
            raise ValueError(
                f"rounds = {text!r} is not understood: write '20' (that round, counted from 1), "
                "'20-24', '20-' (to the end), several with commas, or 'never'"
            )
        result.append((first, last))
    return result


class AttackSettings(NamedSettings):
    """Settings that every attack has."""

    clients: tuple[int, ...] = Field((0,), min_length=1)
    """The malicious clients, by their numbers (counted from 0)."""
    rounds: str = "20"
    """When they attack, counted from 1 as in `metrics.jsonl`: `"20"` (once), `"20-24"`, `"20-"`
    (from then on), several with commas, or `"never"`, which measures the triggers alone."""
    scale: float = Field(1.0, gt=0)
    """Factor on what a malicious client sends, beta of FedZSL Eq. 9; with ten clients of equal
    weight, 10 replaces the merged model."""
    ignore_defence: bool = False
    """The malicious clients leave out what they are asked to do about bad samples
    (`[screening]`).
    """

    @field_validator("rounds", mode="before")
    @classmethod
    def _check_rounds(cls, value: object) -> object:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if isinstance(text, str):
            parse_rounds(text)
        return text

    @field_validator("clients")
    @classmethod
    def _check_clients(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if min(value) < 0 or len(set(value)) != len(value):
            raise ValueError(
                f"clients = {list(value)}: name each malicious client once, by its number from 0 on"
            )
        return value


@dataclass(frozen=True, eq=False)
class LocalData:
    """What a client trains on in a round.

    Attributes:
        inputs: (n, ...) its samples, as the method takes them.
        labels: (n,) their class ids.
        plans: phase name -> which of them each step sees.
    """

    inputs: Tensor
    labels: Tensor
    plans: Mapping[str, Plan]


@dataclass(frozen=True, eq=False)
class Probe:
    """Samples that a backdoor is meant to act on, held out from poisoning: what its success is
    measured by.
    """

    name: str
    client: int
    target: int
    inputs: Tensor
    magnitudes: Tensor
    pictures: NDArray[np.float32] | None = None
    source: str = ""


@dataclass(eq=False)
class Attack(Named):
    """Base of all attacks: subclass, and register the class under its name (``fedunseen.attacks``
    entry points).

    Attributes:
        settings: the ``[attack]`` section.
        probes: what a targeted attack is measured by; made with the federation.
    """

    settings: AttackSettings
    probes: Sequence[Probe] = field(default=())

    Settings: ClassVar[type[AttackSettings]] = AttackSettings
    sign: ClassVar[int] = 1
    """Of what is sent."""

    def __post_init__(self) -> None:
        self._rounds = parse_rounds(self.settings.rounds)

    @property
    def first(self) -> int | None:
        """The first round that is attacked, counted from 1; None: none is."""
        return min((first for first, _ in self._rounds), default=None)

    def active(self, client: int, round: int) -> bool:
        """Say whether ``client`` attacks in ``round`` (counted from 0)."""
        is_attacker = client in self.settings.clients
        return is_attacker and any(
            a <= round + 1 and (b is None or round + 1 <= b) for a, b in self._rounds
        )

    def poison(self, client: int, data: LocalData, rng: np.random.Generator) -> LocalData:
        """Return what the client trains on; the very same object if that is what it would train on
        anyway.
        """
        return data

    def forge(self, update: Params, rng: np.random.Generator) -> Params:
        """Return what the client sends instead of its update: here beta times as much (FedZSL Eq.
        9).

        Running statistics are sent unchanged: a multiple of a variance, say, describes no data.
        """
        scale = self.sign * self.settings.scale
        if scale == 1.0:
            return update
        return {
            name: value if is_statistic(name) else scale * value for name, value in update.items()
        }


class LabelFlip(Attack, name="label-flip"):
    """Every sample is given another class's label: that of the next class that the client holds.

    A client of a single class takes the class before it in the class space; one that holds class 0
    takes class 1. So no client has to know how many classes there are.
    """

    def poison(self, client: int, data: LocalData, rng: np.random.Generator) -> LocalData:
        """Shift the labels by one class."""
        held = torch.unique(data.labels)
        if len(held) == 1:
            return replace(
                data, labels=torch.where(data.labels > 0, data.labels - 1, data.labels + 1)
            )
        return replace(data, labels=held[(torch.searchsorted(held, data.labels) + 1) % len(held)])


class SignFlip(Attack, name="sign-flip"):
    """The honest update with the opposite sign."""

    sign = -1


class Gaussian(Attack, name="gaussian"):
    """Random numbers, in each tensor as large as the honest update's (its root mean square), beta
    times as much.
    """

    def forge(self, update: Params, rng: np.random.Generator) -> Params:
        """Return N(0, (beta rms)^2)."""
        forged = dict(update)
        for name in sorted(update):  # nothing may depend on the order of names
            value = update[name]
            noise = torch.from_numpy(rng.standard_normal(tuple(value.shape), dtype=np.float32)).to(
                value
            )
            if not is_statistic(name):
                forged[name] = self.settings.scale * value.square().mean().sqrt() * noise
        return forged


class NaN(Attack, name="nan"):
    """An update of NaN, which would destroy a merged model that takes it in."""

    def forge(self, update: Params, rng: np.random.Generator) -> Params:
        """Return NaN everywhere."""
        return {name: torch.full_like(value, float("nan")) for name, value in update.items()}
