r"""Sums over samples: all that a method in closed form asks of a party; those of several parties add up.

.. math:: n_c = \sum_i [y_i = c], \qquad S_c = \sum_i [y_i = c]\, x_i, \qquad G = \sum_i x_i x_i^T .

``count`` (C,) n_c, ``total`` (C, d) S_c, ``square`` (d (d + 1) / 2,) G's upper triangle by rows, all exact int64 of
quantized features (without quantization float64); ``clipped`` (1,) features beyond the range; ``space`` (32,) bytes,
the hash of class space and quantization.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import OTHER_SPACE, DataError
from fedunseen.core.memory import free_pages
from fedunseen.core.parameters import Params
from fedunseen.core.samples import CodedRows
from fedunseen.data import ClassSpace, Quantization

COLUMNS = 256  # of the matrix of second moments at once
WIDEST = 16_384  # numbers of a feature vector: 2 GiB a matrix, and a model needs seven
BLOCK = 4096  # samples at once: 64 MiB at 2,048 numbers each, in float64
CODES = 2**26  # numbers of int8 at once; their products need 2^17 samples at most to stay below 2^31
NARROW = 64  # features below which products of int8 are not worth it; torch._int_mm gives a 1 x 1 product wrongly
EXACT_ROWS = 1024  # whose products of int8 a float32 adds up exactly: 1,024 * 127^2 < 2^24

SMALL = 256  # rows of a square matrix below which threads wait for each other longer than they work
_CACHED = 2**18  # numbers

LARGEST = 2**63 - 1  # that an element of a sum may be
_SLACK = 1e-6  # relative; rounding, and the steps in which masked sums are counted
_FACTORISED = 4096  # numbers of a feature vector up to which second moments are factorized for a check


def statistics(
    inputs: Tensor | CodedRows | NDArray[Any],
    labels: Tensor | NDArray[np.int64],
    space: ClassSpace,
    clip_norm: float | None = None,
    quantization: Quantization | None = None,
) -> Params:
    """Return the statistics of samples, read block by block: memory beside them is d x d numbers and one block."""
    width = inputs.shape[1]
    sums = no_sums(width, space, quantization)
    if quantization is not None:
        check_capacity(len(labels), quantization)
    square: Tensor | None = None
    step = BLOCK
    if isinstance(inputs, CodedRows) and quantization is not None and quantization.bits <= 8:
        step = min(8 * BLOCK, max(BLOCK, CODES // width))  # less often added to the sums, which may be larger
    for start in range(0, len(labels), step):
        rows, beyond = _read(inputs, slice(start, start + step))
        own = torch.as_tensor(labels[start : start + step]).to(rows.device)
        if quantization is None:
            rows = rows.to(torch.float64)
            if clip_norm is not None:
                rows = rows * (clip_norm / rows.norm(dim=1, keepdim=True).clamp(min=clip_norm))
        else:
            if rows.is_floating_point():
                codes, beyond = quantization.codes(rows.cpu().numpy())
                rows = torch.from_numpy(codes).to(rows.device)
            rows = rows if clip_norm is None else shortened(rows, quantization, clip_norm)
            sums["clipped"] += beyond
        if square is None:
            square = torch.zeros(width, width, dtype=sums["square"].dtype, device=rows.device)
        add_products(square, rows)
        sums["count"] += torch.bincount(own, minlength=len(space.names)).cpu()
        sums["total"] = add_totals(sums["total"].to(rows.device), rows, own)
        free_pages(inputs)
    if square is not None:
        sums |= {"total": sums["total"].cpu(), "square": packed(square.cpu())}
    if not all(bool(torch.isfinite(sums[name]).all()) for name in ("total", "square")):
        raise DataError(
            "the sums over samples are not finite: leave out those that are not, or scale the features (data.features)"
        )
    return sums


def _read(inputs: Tensor | CodedRows | NDArray[Any], some: slice) -> tuple[Tensor, int]:
    """Return some samples, and how many of their features were clipped already."""
    if isinstance(inputs, CodedRows):
        return inputs.codes(some)
    if isinstance(inputs, np.ndarray):  # a copy: torch does not take what is read-only
        kind = None if inputs.dtype.kind == "i" else np.float64
        return torch.from_numpy(np.array(inputs[some], dtype=kind)), 0
    return inputs[some], 0


def check_capacity(samples: int, quantization: Quantization) -> None:
    """Refuse more samples than 64 bits can add up."""
    most = LARGEST // quantization.levels**2
    if samples > most:
        raise DataError(
            f"the second moments of {samples} samples of {quantization.bits} bits do not fit 64 bits: set "
            f"data.quantization to fewer bits; {most} samples fit"
        )


def shortened(codes: Tensor, quantization: Quantization, clip_norm: float) -> Tensor:
    """Return whole numbers (n, d) with rows shortened so that none times the step is longer than ``clip_norm``."""
    natural = codes.double() * torch.from_numpy(quantization.step).to(codes.device)
    lengths = natural.norm(dim=1, keepdim=True)
    shorter = (codes * (clip_norm / lengths.clamp(min=clip_norm))).trunc()  # towards zero: never longer again
    return torch.where(lengths > clip_norm, shorter, codes).to(codes.dtype)


def add_products(square: Tensor, rows: Tensor) -> None:
    """Add the products of features, rows^T rows, to the upper triangle of ``square`` (d, d) in place.

    Of whole numbers the result is exact: int8 to int32 where the processor has such an instruction, otherwise float32
    in blocks whose sums stay below 2^24, or float64 below 2^53.
    """
    width = len(square)
    if rows.is_floating_point():
        parts: Iterable[Tensor] = (rows,)
    elif rows.dtype == torch.int8 and rows.device.type == "cpu" and width >= NARROW and _multiplies_int8():
        parts = (rows,)
    elif rows.dtype == torch.int8:
        parts = (part.float() for part in torch.split(rows, EXACT_ROWS))
    else:
        parts = (rows.double(),)
    columns = COLUMNS if rows.is_floating_point() else 2 * COLUMNS
    for part in parts:
        for left in range(0, width, columns):  # what is below the diagonal is not asked for
            right = left + columns
            if part.dtype == torch.int8:
                square[:right, left:right] += torch._int_mm(part[:, :right].T, part[:, left:right])
            elif square.is_floating_point():
                square[:right, left:right].addmm_(part[:, :right].T, part[:, left:right])
            else:
                square[:right, left:right] += (part[:, :right].T @ part[:, left:right]).to(torch.int64)


def add_totals(total: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
    """Return ``total`` (C, d) with each row (n, d) added to that of its class; exact for whole numbers."""
    if rows.is_floating_point():
        return total.index_add_(0, labels, rows)
    exact = torch.float32 if rows.dtype == torch.int8 else torch.float64
    block = torch.zeros(total.shape, dtype=exact, device=rows.device)
    few = max(1, _CACHED // total.shape[1])  # rows that the processor's cache holds once they are widened
    for part, own in zip(torch.split(rows, few), torch.split(labels, few), strict=True):
        block.index_add_(0, own, part.to(exact))
    return total + block.to(torch.int64)


@lru_cache(maxsize=1)
def _multiplies_int8() -> bool:
    """Say whether the processor has products of int8 (VNNI), and they are exact for the largest numbers."""
    if not (hasattr(torch, "_int_mm") and getattr(torch.cpu, "_is_vnni_supported", bool)()):
        return False
    rows = torch.full((64, 32), 127, dtype=torch.int8)
    rows[:, ::3] = -127
    try:
        return torch.equal(torch._int_mm(rows.T, rows), rows.long().T @ rows.long())
    except RuntimeError:
        return False


def no_sums(width: int, space: ClassSpace, quantization: Quantization | None = None) -> Params:
    """Return the statistics of no sample, of features of ``width`` numbers."""
    classes = len(space.names)
    if width > WIDEST:
        raise DataError(
            f"features of {width} numbers make a matrix of {width**2 / 2**27:.0f} GiB: reduce them to {WIDEST} numbers "
            "at most, for example by a random projection that all parties share"
        )
    kind = torch.float64 if quantization is None else torch.int64
    clipped = {} if quantization is None else {"clipped": torch.zeros(1, dtype=kind)}
    return {
        "count": torch.zeros(classes, dtype=kind),
        "total": torch.zeros(classes, width, dtype=kind),
        "square": torch.zeros(width * (width + 1) // 2, dtype=kind),
        **clipped,
        "space": _hash(space, quantization),
    }


def dequantized(sums: Params, quantization: Quantization | None) -> Params:
    """Return statistics in the units of scaled features, float64: count, total and square times the step's powers."""
    if quantization is None:
        return sums
    step = torch.from_numpy(quantization.step).double()
    width = sums["total"].shape[1]
    steps = step.square() if len(step) == 1 else packed(torch.outer(step, step))
    return {
        "count": sums["count"].double(),
        "total": sums["total"].double() * step.expand(width),
        "square": sums["square"].double() * steps,
    }


def sums_sha256(sums: Params, quantization: Quantization) -> str:
    """Return the digest of count, total, square (little-endian int64, in that order) and the quantization."""
    digest = hashlib.sha256()
    for name in ("count", "total", "square"):
        digest.update(sums[name].cpu().contiguous().numpy().astype("<i8", copy=False).data)
    digest.update(quantization.digest)
    return digest.hexdigest()


def expand_classes(sums: Params, space: ClassSpace, quantization: Quantization | None = None) -> Params:
    """Return the sums as those of a class space that has grown: what the same samples give there, bit for bit."""
    new = len(space.names) - len(sums["count"])
    return {
        **sums,
        "count": torch.cat([sums["count"], sums["count"].new_zeros(new)]),
        "total": torch.cat([sums["total"], sums["total"].new_zeros(new, sums["total"].shape[1])]),
        "space": _hash(space, quantization).to(sums["space"].device),
    }


def add(many: Iterable[Params], space: ClassSpace, quantization: Quantization | None = None) -> Params:
    """Return the sum of statistics, added in the order given; of whole numbers the order does not matter."""
    total: Params | None = None
    for sums in many:
        check(sums, space, quantization)
        if total is None:
            total = {name: value.clone() for name, value in sums.items()}
            continue
        if total["total"].shape != sums["total"].shape:
            raise DataError(
                f"sums over features of {sums['total'].shape[1]} numbers do not add to sums over "
                f"{total['total'].shape[1]}: let all parties make their features in the same way"
            )
        for name in total.keys() - {"space"}:
            total[name] += sums[name]
    if total is None:
        raise DataError("there are no sums to add: at least one party must send some")
    return total


def subtract(sums: Params, part: Params, space: ClassSpace, quantization: Quantization | None = None) -> Params:
    """Return ``sums`` without ``part``: exactly for whole numbers, otherwise to rounding, what was added without it."""
    check(part, space, quantization)
    less = add(
        [sums, {name: value if name == "space" else -value for name, value in part.items()}], space, quantization
    )
    if bool((less["count"] < 0).any()):
        name = space.names[int(less["count"].argmin())]
        raise DataError(
            f"the sums to take away hold more samples of {name!r} than there are: they were never part of these"
        )
    gone = less["count"] == 0
    less["total"][gone] = 0  # not what rounding has left
    return less


def fits(sums: Params, space: ClassSpace, quantization: Quantization | None) -> bool:
    """Return whether statistics are of this class space and quantization."""
    return torch.equal(sums["space"], _hash(space, quantization))


def check(sums: Params, space: ClassSpace, quantization: Quantization | None = None) -> None:
    """Refuse sums that are of another class space, of wrong shapes or not finite."""
    if not fits(sums, space, quantization):
        raise DataError(OTHER_SPACE.format("the sums"))
    width = sums["total"].shape[-1]
    if any(
        sums[name].shape != value.shape or sums[name].dtype != value.dtype
        for name, value in no_sums(width, space, quantization).items()
    ):
        raise DataError("the sums are damaged, their parts do not fit together: let the party send them again")
    if not all(bool(torch.isfinite(sums[name]).all()) for name in ("count", "total", "square")):
        raise DataError("the sums hold numbers that are not finite: leave the party that sent them out")


def validate_statistics(sums: Params, clip_norm: float | None = None, quantization: Quantization | None = None) -> str:
    """Return why these statistics are infeasible, or ""."""
    count, total = sums["count"], sums["total"]
    if bool((count < -_SLACK).any()):
        return "a class has fewer than no samples"
    if quantization is not None:
        if bool((total.abs() > quantization.levels * count[:, None]).any()):
            return "a class's sum is beyond the range of its samples"
        diagonal = torch.cumsum(torch.tensor([0, *range(total.shape[1], 1, -1)]), 0)
        least, most = (int(extreme(sums["square"][diagonal])) for extreme in (torch.min, torch.max))
        if least < 0 or most > quantization.levels**2 * int(count.sum()):
            return "their second moments are beyond the range"
        if not 0 <= int(sums["clipped"]) <= int(count.sum()) * total.shape[1]:
            return "they have more clipped features than features"
        sums = dequantized(sums, quantization)
        count, total = sums["count"], sums["total"]
    there = count > 0.5
    if bool((total[~there].abs() > _SLACK * (1 + total.abs().max())).any()):
        return "a class without samples has a sum"
    width = total.shape[1]
    square = unpacked(sums["square"], width)
    level = float(square.diagonal().clamp(min=0.0).mean()) + float(torch.finfo(torch.float64).tiny)
    own = total[there]
    of_means = (own.square() / count[there][:, None]).sum(0)
    if clip_norm is not None and float(square.diagonal().sum()) > (1 + _SLACK) * clip_norm**2 * float(count.sum()):
        return f"their samples are longer than {clip_norm:g} on average"
    if bool((square.diagonal() - of_means < -_SLACK * level).any()):
        return "their second moments are too small for their means"
    if width <= _FACTORISED:
        square.addmm_((own / count[there][:, None]).T, own, alpha=-1.0).diagonal().add_(_SLACK * width * level)
        if int(torch.linalg.cholesky_ex(square).info):
            return "their second moments are not a sum of squares"
    return ""


def scatter(sums: Params) -> Tensor:
    """Return the scatter within classes (d, d): G - sum_c S_c S_c^T / n_c, no value on its diagonal below zero."""
    there = sums["count"] > 0
    total, count = sums["total"][there], sums["count"][there]
    within = unpacked(sums["square"], total.shape[1]).addmm_((total / count[:, None]).T, total, alpha=-1.0)
    within.diagonal().clamp_(min=0.0)
    return within


def packed(square: Tensor) -> Tensor:
    """Return the upper triangle (d (d + 1) / 2,) of a symmetric matrix (d, d), row by row."""
    width = len(square)  # by rows: indices of all places would take twice the memory of the matrix
    out = square.new_empty(width * (width + 1) // 2)
    start = 0
    for i in range(width):
        out[start : start + width - i] = square[i, i:]
        start += width - i
    return out


def unpacked(upper: Tensor, width: int) -> Tensor:
    """Return the symmetric matrix (d, d) whose upper triangle :func:`packed` gave; of a matrix, a copy."""
    if upper.ndim == 2:
        return upper.clone()
    square = upper.new_empty(width, width)
    start = 0
    for i in range(width):
        square[i, i:] = upper[start : start + width - i]
        start += width - i
    for left in range(0, width, COLUMNS):  # by blocks: single columns lie far apart in memory
        right = left + COLUMNS
        block = square[left:right, left:right]
        block.copy_(block.triu() + block.triu(1).T)
        square[right:, left:right] = square[left:right, right:].T
    return square


def _hash(space: ClassSpace, quantization: Quantization | None) -> Tensor:
    """Return (32,) bytes: the hash of the classes' names and descriptions, not of who is seen, and the quantization."""
    digest = hashlib.sha256(json.dumps([space.names, space.attribute_names]).encode())
    digest.update(space.semantics.tobytes())
    digest.update(b"" if quantization is None else quantization.digest)
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)


def solve_positive(left: Tensor, right: Tensor) -> Tensor:
    """Solve a symmetric system: by Cholesky, which costs half of LU, unless noise has left the matrix indefinite."""
    factor, failed = torch.linalg.cholesky_ex(left)
    return torch.linalg.solve(left, right) if failed else torch.cholesky_solve(right, factor)


@contextmanager
def few_threads(side: int) -> Iterator[None]:
    """Let PyTorch use one thread where matrices have fewer than some rows."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if side < SMALL else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
