r"""Sample-level differential privacy of sums, released once, with the noise of each party on its
own.

A sample of length at most C changes counts, sums and second moments by 1, C and C^2. Noise of
deviation :math:`\sigma_i = z\, C^i / \sqrt{b_i}`, :math:`b_0 + b_1 + b_2 = 1`, makes that one
Gaussian mechanism of multiplier z. Whole numbers get discrete noise, whose Renyi divergences are a
continuous one's at most (Canonne, Kamath and Steinke 2020, theorem 14). Of several parties' parts
the sum is off by less than 1e-10 from 2 steps on (Kairouz et al. 2021).

Discrete noise y is proportional to exp(-y^2 / 2 sigma^2), exactly: Laplace candidates are accepted
with exp(-(|y| - sigma)^2 / 2 sigma^2). Where a float cannot decide, more digits and exact
arithmetic do, so that no bit of a float is released (Mironov 2012). Limitation: how long a draw
takes depends on what is drawn.
"""

import math
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.errors import DataError, RefusedError
from fedunseen.core.parameters import Params
from fedunseen.core.random import stream
from fedunseen.data import Quantization
from fedunseen.methods.closed_form.statistics import dequantized, packed, unpacked
from fedunseen.safety.privacy.client_level import Accountant, PrivacySettings, epsilon, needed_noise
from fedunseen.strategies import Reply
from fedunseen.strategies.summed import Summed

SHARES = (0.05, 0.75, 0.2)
"""Of the budget (1 / z^2), for counts, sums and second moments: chosen on validation classes of
AWA1_LAMPERT.
"""

COUNT_UNIT = 1024
"""One sample, in counts of whole numbers that are released."""

_LEAST = 2.0  # steps of a party's discrete noise
LARGEST = 2.0**48
"""Steps of a party's discrete noise at most: 16 deviations of 1,024 parties' noise fit 62 bits."""

MASKED_FLOATS = (2.0**-44, 2.0**43)
"""Deviations that noise on float64 sums may have under masks: 16 steps of a ring element, and a
16th of the largest number that it holds."""

_ROUNDING = 1 + 1e-9  # by which rounding may leave a shortened sample longer
_SLACK = 1e-12  # relative; of a multiplier that is computed from deviations

NEAR = 2.0**-40
"""Further apart, floats in [0, 1] are compared rightly: rounding moves both by less than 2^-43."""

_BLOCK = 2**18  # samples of discrete noise drawn at once

FLOOR = 1.0
"""The least eigenvalue that is left outside the noise, as a share of the value that those inside it
are given, or of the noise's edge where that is less: chosen on validation classes of AWA1_LAMPERT
and CIFAR100_MBV2 (``benchmarks/accuracy/closed_form.py floor``)."""

Words = Callable[[int], NDArray[np.uint64]]
"""Returns so many uniform words of 64 bits."""


def words_of(rng: np.random.Generator | None = None) -> Words:
    """Return a source of words: the operating system's generator, or one that a seed draws again,
    for studies.
    """
    read = os.urandom if rng is None else rng.bytes
    return lambda count: np.frombuffer(read(8 * count), dtype=np.uint64)


def discrete_gaussian(deviations: NDArray[np.int64], words: Words) -> NDArray[np.int64]:
    """Return one sample (n,) of each discrete Gaussian, exactly.

    Args:
        deviations: (n,) from 1 to 2^48, so that no step of the computation leaves 64 bits.
        words: the source of randomness.
    """
    if not bool(((deviations >= 1) & (deviations <= LARGEST)).all()):
        raise ValueError(f"deviations of discrete noise must be from 1 to {LARGEST:g}")
    result = np.empty(deviations.shape, dtype=np.int64)
    for start in range(0, len(deviations), _BLOCK):
        sigmas = deviations[start : start + _BLOCK]
        block = result[start : start + _BLOCK]
        pending = np.arange(len(sigmas))
        while len(pending):
            sigma = sigmas[pending]
            candidates, accepted = _discrete_laplace(sigma, words)
            excess = np.abs(candidates) - sigma
            accepted &= _accept(
                (excess / sigma) ** 2 / 2, partial(_half_square, excess, sigma), words
            )
            block[pending[accepted]] = candidates[accepted]
            pending = pending[~accepted]
    return result


def _half_square(over: NDArray[np.int64], under: NDArray[np.int64], i: int) -> Fraction:
    """Return half the square of a ratio at a place."""
    return Fraction(int(over[i]), int(under[i])) ** 2 / 2


def _discrete_laplace(
    scale: NDArray[np.int64], words: Words
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return candidates (n,), proportional to exp(-|y| / scale), and which of them are accepted."""
    rest = _uniform_below(scale, words)
    accepted = _accept(rest / scale, lambda i: Fraction(int(rest[i]), int(scale[i])), words)
    whole = np.zeros_like(scale)
    going = np.flatnonzero(accepted)
    while len(going):  # a geometric number of whole scales
        going = going[_accept(np.ones(len(going)), lambda _: Fraction(1), words)]
        whole[going] += 1
    result = rest + scale * whole
    negative = (words(len(scale)) & np.uint64(1)).astype(bool)
    return np.where(negative, -result, result), accepted & ~(
        negative & (result == 0)
    )  # 0 has one sign


def _uniform_below(bounds: NDArray[np.int64], words: Words) -> NDArray[np.int64]:
    """Return uniform integers (n,) from 0 to below ``bounds``."""
    limits = bounds.astype(np.uint64)
    surplus = (
        ~limits + np.uint64(1)
    ) % limits  # 2^64 modulo the bound: words above have a rest too often
    result = np.zeros_like(limits)
    pending = np.arange(len(limits))
    while len(pending):
        drawn = words(len(pending))
        fair = drawn <= ~surplus[pending]
        result[pending[fair]] = drawn[fair] % limits[pending[fair]]
        pending = pending[~fair]
    return result.astype(np.int64)


def _accept(
    gammas: NDArray[np.float64], exact: Callable[[int], Fraction], words: Words
) -> NDArray[np.bool_]:
    """Return decisions (n,), each true with probability exp(-gamma), exactly."""
    drawn = words(len(gammas))
    uniform = drawn * 2.0**-64
    bound = np.exp(-gammas)
    result = uniform < bound
    for i in np.flatnonzero(np.abs(uniform - bound) < NEAR):
        result[i] = _is_below(int(drawn[i]), exact(int(i)), words)
    return result


def _is_below(drawn: int, gamma: Fraction, words: Words) -> bool:
    """Return whether a uniform number, whose first 64 digits are drawn, is below exp(-gamma)."""
    digits = 64
    while gamma:
        context = Context(prec=digits)
        exponent = context.divide(Decimal(-gamma.numerator), Decimal(gamma.denominator))
        bound = Fraction(context.exp(exponent))
        error = Fraction(1 + gamma) / 10 ** (digits - 2)
        low = Fraction(drawn, 2**digits)
        high = Fraction(drawn + 1, 2**digits)
        if high <= bound - error or low >= bound + error:
            return bool(high <= bound - error)
        drawn = drawn << 64 | int(words(1)[0])
        digits = digits + 64
    return True


@dataclass(frozen=True)
class Release:
    """What a party does before its sums leave it, and what the server makes of them."""

    clip: float
    noise: float
    quantization: Quantization | None = None

    @property
    def accountant(self) -> Accountant:
        """Whose bound is proved: of discrete noise, that of Renyi divergences."""
        return "pld" if self.quantization is None else "rdp"

    @property
    def deviations(self) -> tuple[float, float, float]:
        """Of the noise on counts, on sums, and on the diagonal of the second moments."""
        count, total, square = (
            self.noise * self.clip**i / math.sqrt(share) for i, share in enumerate(SHARES)
        )
        return count, total, square

    def nothing(self, sums: Params) -> Params:
        """Return sums with a place for how much noise they have: ``noise`` (1,), in variances of
        one whole noise.

        How many features were clipped depends on samples, and is left out.
        """
        kept = {name: value for name, value in sums.items() if name != "clipped"}
        return kept | {"noise": torch.zeros(1, dtype=torch.float64)}

    def whole_deviations(self, width: int, classes: int, parties: int) -> Params:
        """Return the deviations of a party's noise on each number of sums of whole numbers, in its
        own steps.

        Raises:
            RefusedError: code ``noise-too-large``: they do not fit 64 bits.
        """
        assert self.quantization is not None
        step = self._step(width)
        count, total, square = (
            _ROUNDING**2 * value / math.sqrt(parties) for value in self.deviations
        )
        steps = torch.outer(step, step)
        squares = torch.full_like(steps, square / math.sqrt(2))
        squares.diagonal().fill_(square)
        natural = {
            "count": torch.full((classes,), count * COUNT_UNIT, dtype=torch.float64),
            "total": (total / step).expand(classes, width),
            "square": packed(squares / steps),
        }
        constant = {"total": step == 0, "square": packed(steps) == 0}
        whole: Params = {}
        for name, value in natural.items():
            value = value.ceil().clamp(min=_LEAST)
            if name in constant:  # 0 in all sums, as noisy() checks
                value = torch.where(constant[name], 0.0, value)
            if not bool((value <= LARGEST).all()):
                raise RefusedError(
                    f"the noise of privacy.clip = {self.clip:g} with a multiplier of "
                    f"{self.noise:g} does not fit 64 bits in steps of the features: ask the "
                    "coordinator for a smaller privacy.clip or privacy.noise, or for larger steps",
                    "noise-too-large",
                )
            whole[name] = value.to(torch.int64)
        return whole

    def _step(self, width: int) -> torch.Tensor:
        """Return the step of each feature (d,), float64."""
        assert self.quantization is not None
        return torch.from_numpy(self.quantization.step).double().expand(width)

    def multiplier(self, deviations: Params, parties: int) -> float:
        """Return the noise multiplier of what ``parties`` parties draw, each with these deviations.

        It is one over the largest change of a sample, in deviations of the whole noise. A sample is
        as long as :func:`~fedunseen.methods.closed_form.statistics.shortened` leaves it.
        """
        total = deviations["total"].double()
        step = self._step(total.shape[1])
        longest = self.clip * _ROUNDING
        squares = unpacked(deviations["square"], len(step)).double()
        squares.mul_(math.sqrt(2)).diagonal().div_(math.sqrt(2))
        varies = step > 0
        changes = (
            COUNT_UNIT / deviations["count"].double(),
            longest / (step * total)[:, varies],
            longest**2 / (torch.outer(step, step) * squares)[varies][:, varies],
        )
        largest = [float(change.max()) if change.numel() else 0.0 for change in changes]
        return math.sqrt(parties) / math.hypot(*largest)

    def spent(self, width: int, classes: int, parties: int, delta: float) -> float:
        """Return the epsilon of the noise that each of ``parties`` parties draws.

        Raises:
            RefusedError: code ``noise-too-large`` or ``noise-too-small``: it cannot be drawn.
        """
        multiplier = self.noise
        if self.quantization is not None:
            deviations = self.whole_deviations(width, classes, parties)
            multiplier = self.multiplier(deviations, parties)
        else:
            self._check_floats(parties)
        self._check_multiplier(multiplier)
        return epsilon(multiplier, 1.0, 1, delta, self.accountant)

    def _check_floats(self, parties: int) -> None:
        """Refuse noise on float64 sums that masks would round away, or cannot hold."""
        count, total, square = (value / math.sqrt(parties) for value in self.deviations)
        parts = (count, total, square, square / math.sqrt(2))
        for wrong, code in (
            (not min(parts) >= MASKED_FLOATS[0], "noise-too-small"),
            (not max(parts) <= MASKED_FLOATS[1], "noise-too-large"),
        ):
            if wrong:
                raise RefusedError(
                    f"masks cannot carry the noise of privacy.clip = {self.clip:g} with a "
                    f"multiplier of {self.noise:g}: ask the coordinator for data.quantization = 8, "
                    "or for features of another unit",
                    code,
                )

    def _check_multiplier(self, multiplier: float) -> None:
        if not multiplier >= self.noise * (1 - _SLACK):
            raise RefusedError(
                f"the noise that this party would draw has a multiplier of {multiplier:g}, below "
                f"the {self.noise:g} that its budget pays for: nothing was sent",
                "noise-too-small",
            )

    def noisy(self, sums: Params, parties: int, rng: np.random.Generator | None = None) -> Params:
        """Return a party's sums with its part of the noise, which those of ``parties`` parties make
        whole.

        Raises:
            RefusedError: code ``noise-too-large`` or ``noise-too-small``: nothing may leave.
        """
        width = sums["total"].shape[1]
        part = 1 / math.sqrt(parties)
        noise = {"noise": sums["noise"] + 1 / parties}
        if self.quantization is not None:
            words = words_of(rng)
            noisy = sums | {"count": sums["count"] * COUNT_UNIT} | noise
            drawn_with = self.whole_deviations(width, len(sums["count"]), parties)
            self._check_multiplier(self.multiplier(drawn_with, parties))
            for name, deviations in drawn_with.items():
                flat = deviations.flatten().numpy()
                if bool(noisy[name][deviations == 0].any()):
                    raise RefusedError(
                        "a feature without noise is not zero in this party's sums: nothing was "
                        "sent",
                        "noise-missing",
                    )
                part_of_it = discrete_gaussian(flat.clip(min=1), words) * (flat > 0)
                noisy[name] = noisy[name] + torch.from_numpy(part_of_it).view(deviations.shape).to(
                    noisy[name]
                )
            return noisy
        rng = np.random.default_rng(secrets.randbits(256)) if rng is None else rng
        for_count, for_total, for_square = (part * deviation for deviation in self.deviations)

        def drawn(like: torch.Tensor, deviation: float) -> torch.Tensor:
            return like + deviation * torch.from_numpy(rng.standard_normal(tuple(like.shape))).to(
                like
            )

        square = drawn(sums["square"], for_square / math.sqrt(2))
        diagonal = torch.cumsum(
            torch.tensor([0, *range(width, 1, -1)]), 0
        )  # where a row of the triangle begins
        square[diagonal] = drawn(sums["square"][diagonal], for_square)
        count = drawn(sums["count"], for_count)
        total = drawn(sums["total"], for_total)
        return sums | {"count": count, "total": total, "square": square} | noise

    def counts(self, sums: Params) -> torch.Tensor:
        """Return the numbers of samples (C,), float64, of sums with noise."""
        return sums["count"].double() / (1 if self.quantization is None else COUNT_UNIT)

    def cleaned(self, sums: Params, seen: Sequence[int] | NDArray[np.int64]) -> Params:
        """Return sums that some samples could have, from noisy ones; nothing but these and public
        settings is used.
        """
        sums = {**sums, **dequantized(sums, self.quantization), "count": self.counts(sums)}
        for_count, for_total, for_square = (
            math.sqrt(float(sums["noise"])) * deviation for deviation in self.deviations
        )
        width = sums["total"].shape[1]
        may = torch.zeros(len(sums["count"]), dtype=torch.bool)
        may[torch.as_tensor(np.asarray(seen, dtype=np.int64))] = True
        observed = may & (sums["count"] > max(3 * for_count, 0.5))
        if not bool(observed.any()):
            raise DataError(
                f"no class has so many samples that the noise (standard deviation {for_count:.3g} "
                "on a count) leaves something of them: raise privacy.epsilon, or use "
                "privacy.aggregation = 'masked', which needs less"
            )
        count = sums["count"][observed]
        means = sums["total"][observed] / count[:, None]
        within = unpacked(sums["square"], width).addmm_(
            (count[:, None] * means).T, means, alpha=-1.0
        )
        within.diagonal().add_(
            float(for_total**2 * (1 / count).sum())
        )  # what noise on the sums has taken off
        values, directions = torch.linalg.eigh(within)
        edge = 2 * for_square / math.sqrt(2) * math.sqrt(width)
        trace = max(float(values.sum()), 1e-3 * edge, float(torch.finfo(torch.float64).tiny))
        apart = values - values.median()
        clear = apart.abs() > edge
        kept = values.median() + apart.sign() * (apart.square() - edge**2).clamp(min=0.0).sqrt()
        kept = torch.where(clear, kept.clamp(min=0.0), 0.0)
        level = max(trace - float(kept.sum()), 1e-3 * trace) / max(width - int(clear.sum()), 1)
        values = torch.where(clear, kept.clamp(min=FLOOR * min(level, edge)), level)
        freedom = max(float(count.sum()) - len(count), 1.0)
        variance = float(values.sum()) / freedom / width
        equal = count / (
            1 + for_total**2 / (count * variance)
        )  # samples whose mean would be as uncertain
        # those who read sums take len(equal) off them again
        within = (
            directions * (values * (max(float(equal.sum()) - len(equal), 1.0) / freedom))
        ) @ directions.T
        counts = torch.zeros_like(sums["count"])
        total = torch.zeros_like(sums["total"])
        counts[observed] = equal
        total[observed] = means * equal[:, None]
        square = packed(within.addmm_((equal[:, None] * means).T, means))
        return {name: value for name, value in sums.items() if name != "noise"} | {
            "count": counts,
            "total": total,
            "square": square,
        }


class PrivateSums(Summed):
    """Adds sums as :class:`Summed` does, of parties that have put noise on theirs."""

    def __init__(
        self, summed: Summed, settings: PrivacySettings, seed: int, release: Release
    ) -> None:
        super().__init__(summed.inner, summed.nothing, summed.each)
        self.privacy = settings
        self.seed = seed
        self.release = release

    def foreign(self, reply: Reply) -> str:
        """Return "": each count and sum has noise, so it does not show which classes a party has
        sent.
        """
        return ""

    def released(self, reply: Reply, round: int) -> Reply:
        """Put all of the noise on what leaves a party, unless it is masked, which
        :meth:`add_local_noise` is for.
        """
        return (
            reply if self.privacy.aggregation == "masked" else self.add_local_noise(reply, 1, round)
        )

    def add_local_noise(self, reply: Reply, parties: int, round: int) -> Reply:
        """Put a party's part of the noise on its sums. How much it says to hold follows from what
        it releases.
        """
        seeded = self.privacy.noise_from == "seed"
        rng = stream(self.seed, "privacy noise", round, reply.client) if seeded else None
        sums = self.release.noisy(dict(reply.update), parties, rng)
        clear = 3 * self.release.deviations[0] / math.sqrt(parties)
        counts = self.release.counts(sums)
        classes = max(1, int((counts > clear).sum()))
        return replace(
            reply, update=sums, classes=classes, samples=max(classes, int(counts.sum().round()))
        )

    def spent(self, parties: int) -> tuple[float, float]:
        """Return (epsilon, delta) of a release to which each of ``parties`` parties adds a part of
        the noise.
        """
        classes, width = self.nothing["total"].shape
        delta = self.privacy.delta
        return self.release.spent(width, classes, parties, delta), delta

    def notes(self, state: Params) -> dict[str, Any]:
        """Say under ``privacy`` what the release has cost."""
        facts = {
            "epsilon": epsilon(
                self.release.noise, 1.0, 1, self.privacy.delta, self.release.accountant
            ),
            "delta": self.privacy.delta,
            "noise": self.release.noise,
            "deviations": list(self.release.deviations),
            "unit": "sample",
        }
        return {**super().notes(state), "privacy": facts}


def release_of(settings: PrivacySettings, quantization: Quantization | None = None) -> Release:
    """Return what the ``[privacy]`` section asks of a party."""
    assert settings.clip is not None  # the settings' own check
    noise = settings.noise
    if noise is None:
        assert settings.epsilon is not None
        accountant = Release(settings.clip, 0.0, quantization).accountant
        noise = needed_noise(settings.epsilon, 1.0, 1, settings.delta, accountant)
    return Release(settings.clip, noise, quantization)
