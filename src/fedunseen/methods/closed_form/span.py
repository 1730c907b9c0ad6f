r"""Which samples of whole numbers are no combination of the others: exactly, modulo a prime.

A sample :math:`z_i` is alone in some direction if and only if it is no combination of the others.
Then every relation :math:`\sum_j u_j z_j = 0` has :math:`u_i = 0`. Otherwise a random one modulo a
prime p has another :math:`u_i` with probability 1 - 1/p. In floating point a direction of large
whole numbers is lost beside rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

PRIME = 2**21 - 9  # sums of 2,048 products of two residues are exact in float64
_SUMMED = 2048
_PANEL = 64  # columns that are eliminated one by one
_TRIES = 2  # random relations: one has a 0 by chance once in two million
_SPARE = 8  # random combinations beyond the numbers of a sample: they span what all samples span


def outside_span(rows: Tensor) -> Tensor:
    """Return (n,) which samples (n, D) of whole numbers are no combination of the others.

    Samples are looked at block by block; random combinations stand for those of other blocks.

    Example:
        >>> outside_span(torch.tensor([[1, 2], [2, 4], [0, 1]])).tolist()
        [False, False, True]
    """
    count, width = rows.shape
    draw = torch.Generator().manual_seed(0)
    at_once = count <= 3 * width
    blocks = [rows] if at_once else list(torch.split(rows, max(width, _PANEL)))
    mixed = torch.zeros(0 if at_once else width + _SPARE, width, dtype=torch.float64)
    shares = [torch.randint(PRIME, (len(mixed), len(block)), generator=draw) for block in blocks]
    for share, block in zip(shares, blocks, strict=True):
        mixed = _mixed(mixed, share, block)
    outside = []
    for share, block in zip(shares, blocks, strict=True):
        others = _mixed(mixed, PRIME - share, block)
        vectors = torch.cat([others, block.double().remainder(PRIME)]).T.contiguous()
        pivots = _eliminate(vectors)
        # only a pivot can be outside of what comes before it
        alone = torch.full((len(block),), bool(pivots) and pivots[-1] >= len(others))
        for _ in range(_TRIES if bool(alone.any()) else 0):
            alone &= _relation(vectors, pivots, draw)[len(others) :] == 0
        outside.append(alone)
    return torch.cat(outside)


def _mixed(mixed: Tensor, shares: Tensor, rows: Tensor) -> Tensor:
    """Return combinations of samples with ``shares`` of these ones added."""
    for share, some in zip(
        torch.split(shares, _SUMMED, 1), torch.split(rows, _SUMMED), strict=True
    ):
        mixed = (mixed + share.double() @ some.double().remainder(PRIME)).remainder(PRIME)
    return mixed


def _eliminate(columns: Tensor) -> list[int]:
    """Bring residues (D, n) into echelon form in place; return the columns of its pivots.

    Rows below the last pivot, and what is below pivots, are left as they are.
    """
    height, width = columns.shape
    pivots: list[int] = []
    for left in range(0, width, _PANEL):
        right = min(left + _PANEL, width)
        first = len(pivots)
        factors = torch.zeros(height, _PANEL, dtype=torch.float64)
        for column in range(left, right):
            row = len(pivots)
            below = torch.nonzero(columns[row:, column])[:1, 0]
            if not len(below):
                continue
            swapped = torch.tensor([row + int(below), row])
            for matrix in (columns, factors):
                matrix[swapped.flip(0)] = matrix[swapped]
            inverse = pow(int(columns[row, column]), -1, PRIME)
            factor = (columns[row + 1 :, column] * inverse).remainder(PRIME)
            panel = columns[row + 1 :, column:right]
            panel -= torch.outer(factor, columns[row, column:right])
            panel.remainder_(PRIME)
            factors[row + 1 :, row - first] = factor
            pivots.append(column)
            if len(pivots) == height:
                break
        rest = columns[:, right:]
        last = len(pivots)
        for row in range(first + 1, last):
            rest[row] -= factors[row, : row - first] @ rest[first:row]
            rest[row].remainder_(PRIME)
        rest[last:] -= factors[last:, : last - first] @ rest[first:last]
        rest[last:].remainder_(PRIME)
        if last == height:
            break
    return pivots


def _relation(echelon: Tensor, pivots: list[int], draw: torch.Generator) -> Tensor:
    """Return (n,) a random relation of the columns of what :func:`_eliminate` left."""
    shares = torch.randint(1, PRIME, echelon.shape[1:], generator=draw).double()
    for row, column in reversed(list(enumerate(pivots))):
        others = (echelon[row, column + 1 :] * shares[column + 1 :]).remainder(PRIME).sum()
        inverse = pow(int(echelon[row, column]), -1, PRIME)
        shares[column] = float((-int(others) * inverse) % PRIME)
    return shares
