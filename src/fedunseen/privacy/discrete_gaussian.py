"""Exact samples of discrete Gaussians: integers y with probability proportional to exp(-y^2 / 2 sigma^2).

Canonne, Kamath and Steinke 2020: discrete Laplace candidates are accepted with exp(-(|y| - sigma)^2 / 2 sigma^2). Where
a float cannot decide, more digits and exact arithmetic do, so that no bit of a float is released (Mironov 2012).
Limitation: how long a draw takes depends on what is drawn.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from functools import partial

import numpy as np
from numpy.typing import NDArray

Words = Callable[[int], NDArray[np.uint64]]
"""Returns so many uniform words of 64 bits."""

NEAR = 2.0**-40
"""Further apart, floats in [0, 1] are compared rightly: rounding moves both by less than 2^-43."""

_BLOCK = 2**18  # samples drawn at once


def system_words(count: int) -> NDArray[np.uint64]:
    """Return words of the operating system's generator."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def seeded_words(rng: np.random.Generator) -> Words:
    """Return a source of words that a seed draws again: for studies."""
    return lambda count: np.frombuffer(rng.bytes(8 * count), dtype=np.uint64)


def discrete_gaussian(deviations: NDArray[np.int64], words: Words) -> NDArray[np.int64]:
    """Return one sample (n,) of each discrete Gaussian."""
    result = np.empty(deviations.shape, dtype=np.int64)
    for start in range(0, len(deviations), _BLOCK):
        sigmas, block = deviations[start : start + _BLOCK], result[start : start + _BLOCK]
        left = np.arange(len(sigmas))
        while len(left):
            sigma = sigmas[left]
            candidates, accepted = _discrete_laplace(sigma, words)
            excess = np.abs(candidates) - sigma
            accepted &= _accept((excess / sigma) ** 2 / 2, partial(_half_square, excess, sigma), words)
            block[left[accepted]] = candidates[accepted]
            left = left[~accepted]
    return result


def _half_square(over: NDArray[np.int64], under: NDArray[np.int64], i: int) -> Fraction:
    """Return half the square of a ratio at a place."""
    return Fraction(int(over[i]), int(under[i])) ** 2 / 2


def _discrete_laplace(scale: NDArray[np.int64], words: Words) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return candidates (n,), proportional to exp(-|y| / scale), and which of them are accepted."""
    rest = _uniform_below(scale, words)
    accepted = _accept(rest / scale, lambda i: Fraction(int(rest[i]), int(scale[i])), words)
    whole, going = np.zeros_like(scale), np.flatnonzero(accepted)
    while len(going):  # a geometric number of whole scales
        going = going[_accept(np.ones(len(going)), lambda _: Fraction(1), words)]
        whole[going] += 1
    result = rest + scale * whole
    negative = (words(len(scale)) & np.uint64(1)).astype(bool)
    return np.where(negative, -result, result), accepted & ~(negative & (result == 0))  # 0 has one sign


def _uniform_below(bounds: NDArray[np.int64], words: Words) -> NDArray[np.int64]:
    """Return uniform integers (n,) from 0 to below ``bounds``."""
    limits = bounds.astype(np.uint64)
    surplus = (~limits + np.uint64(1)) % limits  # 2^64 modulo the bound: words above have a rest too often
    result, left = np.zeros_like(limits), np.arange(len(limits))
    while len(left):
        drawn = words(len(left))
        fair = drawn <= ~surplus[left]
        result[left[fair]] = drawn[fair] % limits[left[fair]]
        left = left[~fair]
    return result.astype(np.int64)


def _accept(gammas: NDArray[np.float64], exact: Callable[[int], Fraction], words: Words) -> NDArray[np.bool_]:
    """Return decisions (n,), each true with probability exp(-gamma), exactly."""
    drawn = words(len(gammas))
    uniform, bound = drawn * 2.0**-64, np.exp(-gammas)
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
        bound, error = Fraction(context.exp(exponent)), Fraction(1 + gamma) / 10 ** (digits - 2)
        low, high = Fraction(drawn, 2**digits), Fraction(drawn + 1, 2**digits)
        if high <= bound - error or low >= bound + error:
            return bool(high <= bound - error)
        drawn, digits = drawn << 64 | int(words(1)[0]), digits + 64
    return True
