"""Secret sharing (Shamir 1979) over GF(2^128), with all seeds of a sum restored at once.

A seed is the value at zero of a polynomial, and a share its value at the place of a holder, counted
from 1. The value at zero is a sum of the shares, each times a weight that the places alone
determine (Lagrange). All seeds of a sum come from the same holders, so their weights are worked out
once. Elements and shares are those of pycryptodome, which works them out for each seed: 100 parties
take it 11 s, with the cube of their number.

Whether a number is secret decides nothing here: places, which are public, say what is done.
"""

import secrets
from collections.abc import Iterable, Sequence

SEED = 16
"""Bytes of a seed: an element of GF(2^128)."""

_MODULUS = 1 << 128 | 0b10000111  # x^128 + x^7 + x^2 + x + 1
_ELEMENT = (1 << 128) - 1


def times(one: int, other: int) -> int:
    """Return the product of two elements of GF(2^128); bit k of a number is the coefficient of x^k.
    The time that it takes depends on how large ``other`` is.

    Example:
        >>> times(0b11, 0b101) == 0b1111  # (x + 1)(x^2 + 1)
        True
    """
    product = 0
    while other:
        product ^= one * (other & 1)
        other >>= 1
        one <<= 1
        one ^= _MODULUS * (one >> 128)
    return product


def inverse(element: int) -> int:
    """Return what gives 1 times ``element``, which is not 0: Euclid's algorithm, bit by bit."""
    small = element, 1  # a rest, and what times ``element`` gives it
    large = _MODULUS, 0
    while small[0] != 1:
        shift = large[0].bit_length() - small[0].bit_length()
        rest = large[0] ^ small[0] << shift, large[1] ^ small[1] << shift
        large = max(small, rest)
        small = min(small, rest)
    return small[1]


def split(seed: bytes, threshold: int, count: int) -> list[bytes]:
    """Share a seed among ``count`` holders: ``threshold`` shares restore it, fewer reveal
    nothing.
    """
    drawn = [int.from_bytes(secrets.token_bytes(SEED), "big") for _ in range(threshold - 1)]
    coefficients = (*drawn, int.from_bytes(seed, "big"))
    return [_value(coefficients, place).to_bytes(SEED, "big") for place in range(1, count + 1)]


def _value(coefficients: Sequence[int], place: int) -> int:
    """Return the value of a polynomial, the coefficient of its highest power first, at a place
    below 2^16: what :func:`times` gives, in fewer steps.
    """
    shifts = [bit for bit in range(place.bit_length()) if place >> bit & 1]
    value = 0
    for coefficient in coefficients:
        product = 0
        for shift in shifts:
            product ^= value << shift
        over = product >> 128  # x^128 = x^7 + x^2 + x + 1
        value = product & _ELEMENT ^ over ^ over << 1 ^ over << 2 ^ over << 7 ^ coefficient
    return value


def weights(places: Sequence[int]) -> list[int]:
    """Return what the share at each place counts in the value at zero.

    Args:
        places: places of different holders, counted from 1.
    """
    found = []
    for place in places:
        above = 1
        below = 1
        for other in places:
            if other != place:
                above = times(above, other)
                below = times(below, place ^ other)
        found.append(times(above, inverse(below)))
    return found


def restore(holders: Sequence[int], shares: Iterable[Sequence[bytes]]) -> list[bytes]:
    """Return the seeds that enough shares restore; another value where a share is wrong.

    Args:
        holders: where each holder's share stands in what :func:`split` returns.
        shares: of each seed, the holders' shares in the same order.

    Example:
        >>> shares = split(b"0123456789abcdef", 2, 3)
        >>> restore([0, 2], [[shares[0], shares[2]]])
        [b'0123456789abcdef']
    """
    by_holder = weights([holder + 1 for holder in holders])
    seeds = []
    for row in shares:
        seed = 0
        for weight, share in zip(by_holder, row, strict=True):
            seed ^= times(int.from_bytes(share, "big"), weight)
        seeds.append(seed.to_bytes(SEED, "big"))
    return seeds
