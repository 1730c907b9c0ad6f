r"""Sums over samples: all that a method in closed form asks of a party; those of several parties
add up.

.. math:: n_c = \sum_i [y_i = c], \qquad S_c = \sum_i [y_i = c]\, x_i, \qquad G = \sum_i x_i x_i^T .

``count`` (C,) n_c, ``total`` (C, d) S_c, ``square`` (d (d + 1) / 2,) G's upper triangle by rows,
all exact int64 of quantized features (without quantization float64); ``clipped`` (1,) features
beyond the range, 0 where those of few samples are hidden: it would count them; ``space`` (32,)
bytes, the hash of class space and quantization.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import OTHER_SPACE, DataError
from fedunseen.core.memory import free_pages
from fedunseen.core.originals import ABSENT
from fedunseen.core.parameters import Params
from fedunseen.core.samples import CodedRows, first_of_equal
from fedunseen.data import Benchmark, ClassSpace, Quantization

COLUMNS = 256  # of the matrix of second moments at once
WIDEST = 16_384  # numbers of a feature vector: 2 GiB a matrix, and a model needs seven
BLOCK = 4096  # samples at once: 64 MiB at 2,048 numbers each, in float64
CODES = (
    2**26
)  # numbers of int8 at once; their products need 2^17 samples at most to stay below 2^31
# features below which products of int8 are not worth it; torch._int_mm gives a 1 x 1 product wrongly
NARROW = 64
EXACT_ROWS = 1024  # whose products of int8 a float32 adds up exactly: 1,024 * 127^2 < 2^24

_HASHED: WeakKeyDictionary[ClassSpace, Any] = WeakKeyDictionary()
"""Class space -> the hash of its classes, which take time where they are many."""

SMALL = 256  # rows of a square matrix below which threads wait for each other longer than they work
_CACHED = 2**18  # numbers

NEVER_PART = "never-part"
"""Code of a refusal to take away what is not in statistics."""
LARGEST = 2**63 - 1  # that an element of a sum may be
_SLACK = 1e-6  # relative; rounding, and the steps in which masked sums are counted
_FACTORISED = (
    4096  # numbers of a feature vector up to which second moments are factorized for a check
)


def statistics(
    inputs: Tensor | CodedRows | NDArray[Any],
    labels: Tensor | NDArray[np.int64],
    space: ClassSpace,
    clip_norm: float | None = None,
    quantization: Quantization | None = None,
    hidden: "Hidden | None" = None,
    matrix: bool = False,
) -> Params:
    """Return the statistics of samples, read block by block: memory beside them is d x d numbers
    and one block.

    ``hidden``: features that would show few samples, of all that the sum is of: a part of a sum has
    what the sum has. None: nothing is hidden. ``matrix``: ``square`` is (d, d), of which the upper
    triangle counts.
    """
    width = inputs.shape[1]
    sums = no_sums(width, space, quantization)
    if quantization is not None:
        check_capacity(len(labels), quantization)
    square: Tensor | None = None
    step = BLOCK
    if isinstance(inputs, CodedRows) and quantization is not None and quantization.bits <= 8:
        step = min(
            8 * BLOCK, max(BLOCK, CODES // width)
        )  # less often added to the sums, which may be larger
    for start in range(0, len(labels), step):
        some = slice(start, start + step)
        rows, beyond = rows_summed(inputs, labels, some, clip_norm, quantization, hidden)
        part_labels = torch.as_tensor(labels[some]).to(rows.device)
        if quantization is not None and hidden is None:
            sums["clipped"] += beyond
        if square is None:
            square = torch.zeros(width, width, dtype=sums["square"].dtype, device=rows.device)
        add_products(square, rows)
        sums["count"] += torch.bincount(part_labels, minlength=len(space.names)).cpu()
        sums["total"] = add_totals(sums["total"].to(rows.device), rows, part_labels)
        free_pages(inputs)
    if square is not None:
        square = square.cpu()
        sums |= {"total": sums["total"].cpu(), "square": square if matrix else packed(square)}
    elif matrix:
        sums["square"] = unpacked(sums["square"], width)
    if not all(bool(torch.isfinite(sums[name]).all()) for name in ("total", "square")):
        raise DataError(
            "the sums over samples are not finite: leave out those that are not, or scale the "
            "features (data.features)"
        )
    return sums


def rows_summed(
    inputs: Tensor | CodedRows | NDArray[Any],
    labels: Tensor | NDArray[np.int64],
    some: slice,
    clip_norm: float | None,
    quantization: Quantization | None,
    hidden: "Hidden | None",
) -> tuple[Tensor, int]:
    """Return some samples (n, d) as statistics add them up, and how many features are clipped."""
    beyond = 0
    if isinstance(inputs, CodedRows):
        rows, beyond = inputs.codes(some)
    elif isinstance(inputs, np.ndarray):  # a copy: torch does not take what is read-only
        kind = None if inputs.dtype.kind == "i" else np.float64
        rows = torch.from_numpy(np.array(inputs[some], dtype=kind))
    else:
        rows = inputs[some]
    if quantization is None:
        rows = rows.to(torch.float64)
        if clip_norm is not None:
            rows = rows * (clip_norm / rows.norm(dim=1, keepdim=True).clamp(min=clip_norm))
        return rows, 0
    if rows.is_floating_point():
        codes, beyond = quantization.codes(rows.cpu().numpy())
        rows = torch.from_numpy(codes).to(rows.device)
    if hidden is not None and bool(hidden.changed.any()):
        rows = hidden.applied(rows, torch.as_tensor(labels[some]).to(rows.device))
    return (rows if clip_norm is None else shortened(rows, quantization, clip_norm)), beyond


@dataclass(frozen=True, eq=False)
class Hidden:
    """Which features of a class would show few of its samples.

    Attributes:
        least: (C, d) the smallest whole number that samples of a class have in sums.
        most: (C, d) the largest. Where it is the smallest, all samples have it.
        changed: (C, d) bool, where a sample's number may be another in sums.
        narrow: (C, d) bool, where all have one since few are within a range, or not more than half.
    """

    least: Tensor
    most: Tensor
    changed: Tensor
    narrow: Tensor

    def applied(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Return whole numbers (n, d) with others where they would show few samples."""
        least, most = (bound.to(rows)[labels] for bound in (self.least, self.most))
        return rows.clamp(least, most)


def hidden_features(
    inputs: Tensor | CodedRows | NDArray[Any],
    labels: Tensor | NDArray[np.int64],
    classes: int,
    quantization: Quantization | None,
    min_samples: int,
) -> Hidden | None:
    """Return which features would show fewer than ``min_samples`` samples of a class; None where
    each may be shown. The same sample counts once.

    Clipped samples are known, and so are those that rounding makes one: second moments would show
    all features of the others.

    - Where few are within the range, or not more than half, all have the end beyond which not only
      few are, or 0. None is few too: otherwise this would tell whether a sample is there.
    - Where rounding leaves half or more one whole number of several values, or half or more cells
      of a table are equal, no sample has one that fewer have or exceed: of the others, a single one
      could weigh more than all. If all but few have that number, all have it.
    - So do they where float32 has made half of the samples one value: of the others one could weigh
      more than all. The features of a pair could have one sample within both ranges.
    """
    if quantization is None or min_samples == 1:
        return None
    most = torch.full((classes, inputs.shape[1]), quantization.levels, dtype=torch.int16)
    least = -most
    narrow = torch.zeros(most.shape, dtype=torch.bool)
    labels = torch.as_tensor(labels).cpu()
    for c in np.unique(labels.numpy()).tolist():
        class_rows = torch.nonzero(labels == c)[:, 0]
        bounds = bounds_of_class(inputs, class_rows, quantization, min_samples)
        least[c], most[c], narrow[c] = bounds
    levels = quantization.levels
    return Hidden(least, most, (least > -levels) | (most < levels), narrow)


def raw_rows(
    inputs: Tensor | CodedRows | NDArray[Any], class_rows: Tensor
) -> Iterator[NDArray[Any]]:
    """Yield samples before any scaling, if that is known, or what tells them apart."""
    for row in class_rows.tolist():
        if isinstance(inputs, CodedRows):
            yield inputs.samples.told_apart()[int(inputs.rows[row])]
        else:
            yield inputs[row] if isinstance(inputs, np.ndarray) else inputs[row].cpu().numpy()


def bounds_of_class(
    inputs: Tensor | CodedRows | NDArray[Any],
    class_rows: Tensor,
    quantization: Quantization,
    min_samples: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (d,) the smallest and the largest whole number of the samples ``class_rows`` of one
    class in sums, and where few are within a range: see :func:`hidden_features`.
    """
    width = inputs.shape[1]
    class_rows = class_rows[first_of_equal(raw_rows(inputs, class_rows))]
    below, above, absent = torch.zeros(3, width, dtype=torch.int64)
    rounded: _Middle | None = None
    for part in torch.split(class_rows, max(BLOCK, 2 * min_samples)):
        codes, stages = _coded(inputs, part, quantization)
        if rounded is None:  # what half of the class shares is a median, in the first part too
            rounded = _Middle(torch.from_numpy(codes), len(stages))
            equal = _Middle(stages[-1], len(stages))
        rounded.add(torch.from_numpy(codes), stages)
        equal.add(stages[-1], stages)
        sides = _sides(inputs, part, codes, stages[-1], quantization)
        below += (sides == -1).sum(0)
        above += (sides == 1).sum(0)
        absent += (sides == ABSENT).sum(0)
    assert rounded is not None
    total = len(class_rows)
    within = total - below - above - absent
    narrow = (within < total) & ((within < min_samples) | (2 * within <= total + 1))
    tabular = isinstance(inputs, CodedRows) and inputs.samples.tabular
    unusual, usual = rounded.apart(total, tabular)
    coarse = (unusual > 0) & (unusual < min_samples) & (2 * unusual <= total)
    apart, _ = equal.apart(total)
    coarse |= (apart > 0) & (2 * apart <= total + 1)
    few_below = below < min_samples  # one sample there must not change what is sent
    few_above = above < min_samples
    end = torch.where(few_below & ~few_above, quantization.levels, 0)
    end = torch.where(few_above & ~few_below, -quantization.levels, end).short()
    shared = torch.where(narrow, end, usual.short())
    few = narrow | coarse
    most = torch.where(few, shared, quantization.levels)
    least = torch.where(few, shared, -quantization.levels)
    coarse = torch.nonzero((2 * unusual <= total) & ~few & (unusual > 0))[:, 0]
    if len(coarse):
        numbers = _columns(inputs, class_rows, quantization, coarse)
        places = (min_samples - 1, total - min_samples)
        ordered = torch.from_numpy(np.partition(numbers, places, axis=0)).short()
        least[coarse], most[coarse] = ordered[list(places)]
    return least, most, narrow


def _sides(
    inputs: Tensor | CodedRows | NDArray[Any],
    some: Tensor,
    codes: NDArray[Any],
    scaled: Tensor,
    quantization: Quantization,
) -> Tensor:
    """Return (n, d) on which side of a range features are: that of rounding, or before that the one
    between which a coordinator has placed them.
    """
    sides = torch.zeros(codes.shape, dtype=torch.int8)
    if scaled.is_floating_point():
        clipped = torch.from_numpy(quantization.clipped(scaled.numpy()))
        sides = torch.from_numpy(np.sign(codes)).to(torch.int8) * clipped
    before = inputs.samples.sides(inputs.rows[some]) if isinstance(inputs, CodedRows) else None
    return sides if before is None else torch.where(before != 0, before, sides)


def _columns(
    inputs: Tensor | CodedRows | NDArray[Any],
    class_rows: Tensor,
    quantization: Quantization,
    columns: Tensor,
) -> NDArray[Any]:
    """Return (n, k) the whole numbers of some features of samples."""
    parts = torch.split(class_rows, BLOCK)
    codes = (_coded(inputs, part, quantization)[0][:, columns.numpy()] for part in parts)
    return np.concatenate(list(codes))


class _Middle:
    """The medians of each feature of a class, and how many samples have another value.

    Args:
        values: (n, d) of the samples in which medians are looked for.
        stages: how many there are.
    """

    def __init__(self, values: Tensor, stages: int) -> None:
        middle = ((len(values) - 1) // 2, len(values) // 2)
        medians = np.partition(values.numpy(), middle, axis=0)[list(middle)]
        self.medians = torch.from_numpy(medians)
        self.unequal = torch.zeros(medians.shape, dtype=torch.int64)
        least = torch.full(medians.shape, torch.inf, dtype=torch.float64)
        self.extremes = [(least.clone(), -least) for _ in range(stages)]

    def add(self, values: Tensor, stages: Sequence[Tensor]) -> None:
        """Compare some samples (n, d); ``stages``: what their values were made of."""
        for place, median in enumerate(self.medians):
            differs = values != median
            self.unequal[place] += differs.sum(0)
            for (least, most), stage in zip(self.extremes, stages, strict=True):
                stage_values = stage.double()
                least[place] = least[place].minimum(
                    stage_values.masked_fill(differs, torch.inf).amin(0)
                )
                most[place] = most[place].maximum(
                    stage_values.masked_fill(differs, -torch.inf).amax(0)
                )

    def apart(self, total: int, tabular: bool = False) -> tuple[Tensor, Tensor]:
        """Return (d,) how many samples have another value than the most common median, and that;
        more than ``total`` where neither a scaling has made different values one, nor values are
        cells of a table (``tabular``).
        """
        merged = torch.stack([most > least for least, most in self.extremes]).any(0) | tabular
        fewest, which = torch.where(merged, self.unequal, total + 1).min(0)
        return fewest, self.medians.gather(0, which[None])[0]


def _coded(
    inputs: Tensor | CodedRows | NDArray[Any], some: Tensor, quantization: Quantization
) -> tuple[NDArray[Any], list[Tensor]]:
    """Return the whole numbers of some samples, and the values that they were made of, from stage
    to stage, if these are known.
    """
    if isinstance(inputs, CodedRows):
        rows = inputs.rows[some]
        return inputs.samples.codes(rows)[0].cpu().numpy(), inputs.samples.stages(rows)
    chosen = inputs[some.numpy()] if isinstance(inputs, np.ndarray) else inputs[some].cpu().numpy()
    if chosen.dtype.kind != "f":
        return chosen, [torch.from_numpy(chosen)]
    return quantization.codes(chosen)[0], [torch.from_numpy(chosen.astype(np.float32))]


def in_large_classes(
    benchmark: Benchmark, rows: NDArray[np.int64], minimum: int
) -> tuple[NDArray[np.bool_], dict[int, int]]:
    """Return (n,) which samples are of classes with enough samples, and the others: class -> its
    samples.

    The same sample counts once, however often it is there.
    """
    classes, places = np.unique(benchmark.labels[rows], return_inverse=True)
    counts = [
        sum(first_of_equal(benchmark.told_apart(rows[places == place]), minimum))
        for place in range(len(classes))
    ]
    small = {int(c): count for c, count in zip(classes, counts, strict=True) if count < minimum}
    return (np.array(counts, dtype=np.int64) >= minimum)[places], small


def check_capacity(samples: int, quantization: Quantization) -> None:
    """Refuse more samples than 64 bits can add up."""
    most = LARGEST // quantization.levels**2
    if samples > most:
        raise DataError(
            f"the second moments of {samples} samples of {quantization.bits} bits do not fit 64 "
            f"bits: set data.quantization to fewer bits; {most} samples fit"
        )


def shortened(codes: Tensor, quantization: Quantization, clip_norm: float) -> Tensor:
    """Return whole numbers (n, d) with rows shortened so that none times the step is longer than
    ``clip_norm``.
    """
    natural = codes.double() * torch.from_numpy(quantization.step).to(codes.device)
    lengths = natural.norm(dim=1, keepdim=True)
    shorter = (
        codes * (clip_norm / lengths.clamp(min=clip_norm))
    ).trunc()  # towards zero: never longer again
    return torch.where(lengths > clip_norm, shorter, codes).to(codes.dtype)


def add_products(square: Tensor, rows: Tensor) -> None:
    """Add the products of features, rows^T rows, to the upper triangle of ``square`` (d, d) in
    place.

    Of whole numbers the result is exact: int8 to int32 where the processor has such an instruction,
    otherwise float32 in blocks whose sums stay below 2^24, or float64 below 2^53.
    """
    width = len(square)
    if rows.is_floating_point():
        parts: Iterable[Tensor] = (rows,)
    elif (
        rows.dtype == torch.int8
        and rows.device.type == "cpu"
        and width >= NARROW
        and _multiplies_int8()
    ):
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
                square[:right, left:right] += (part[:, :right].T @ part[:, left:right]).to(
                    torch.int64
                )


def add_totals(total: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
    """Return ``total`` (C, d) with each row (n, d) added to that of its class; exact for whole
    numbers.
    """
    if rows.is_floating_point():
        return total.index_add_(0, labels, rows)
    exact = torch.float32 if rows.dtype == torch.int8 else torch.float64
    block = torch.zeros(total.shape, dtype=exact, device=rows.device)
    few = max(
        1, _CACHED // total.shape[1]
    )  # rows that the processor's cache holds once they are widened
    for part, part_labels in zip(torch.split(rows, few), torch.split(labels, few), strict=True):
        block.index_add_(0, part_labels, part.to(exact))
    return total + block.to(torch.int64)


@lru_cache(maxsize=1)
def _multiplies_int8() -> bool:
    """Say whether the processor has products of int8 (VNNI), and they are exact for the largest
    numbers.
    """
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
            f"features of {width} numbers make a matrix of {width**2 / 2**27:.0f} GiB: reduce them "
            f"to {WIDEST} numbers at most, for example by a random projection that all parties "
            "share"
        )
    kind = torch.float64 if quantization is None else torch.int64
    clipped = {} if quantization is None else {"clipped": torch.zeros(1, dtype=kind)}
    return {
        "count": torch.zeros(classes, dtype=kind),
        "total": torch.zeros(classes, width, dtype=kind),
        "square": torch.zeros(width * (width + 1) // 2, dtype=kind),
        **clipped,
        "space": space_hash(space, quantization),
    }


def dequantized(sums: Params, quantization: Quantization | None, worth: float = 1.0) -> Params:
    """Return statistics in the units of scaled features, float64: count, total and square, packed
    or (d, d), times the step's powers, and times what a sample is ``worth``.
    """
    if quantization is None:
        numbers = ("count", "total", "square")
        return sums if worth == 1 else {name: worth * sums[name] for name in numbers}
    step = torch.from_numpy(quantization.step).double()
    width = sums["total"].shape[1]
    steps = step.square() if len(step) == 1 else torch.outer(step, step)
    steps = steps if len(step) == 1 or sums["square"].ndim == 2 else packed(steps)
    return {
        "count": sums["count"].double() * worth,
        "total": sums["total"].double() * (worth * step).expand(width),
        "square": sums["square"].double() * (worth * steps),
    }


def sums_sha256(sums: Params, quantization: Quantization) -> str:
    """Return the digest of count, total, square (little-endian int64, in that order) and the
    quantization.
    """
    digest = hashlib.sha256()
    for name in ("count", "total", "square"):
        digest.update(sums[name].cpu().contiguous().numpy().astype("<i8", copy=False).data)
    digest.update(quantization.digest)
    return digest.hexdigest()


def expand_classes(
    sums: Params, space: ClassSpace, quantization: Quantization | None = None
) -> Params:
    """Return the sums as those of a class space that has grown: what the same samples give there,
    bit for bit.
    """
    new = len(space.names) - len(sums["count"])
    return {
        **sums,
        "count": torch.cat([sums["count"], sums["count"].new_zeros(new)]),
        "total": torch.cat([sums["total"], sums["total"].new_zeros(new, sums["total"].shape[1])]),
        "space": space_hash(space, quantization).to(sums["space"].device),
    }


def add(
    many: Iterable[Params], space: ClassSpace, quantization: Quantization | None = None
) -> Params:
    """Return the sum of statistics, added in the order given; of whole numbers the order does not
    matter.
    """
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


def subtract(
    sums: Params, part: Params, space: ClassSpace, quantization: Quantization | None = None
) -> Params:
    """Return ``sums`` without ``part``: exactly for whole numbers, otherwise to rounding, what was
    added without it.
    """
    check(part, space, quantization)
    less = add(
        [sums, {name: value if name == "space" else -value for name, value in part.items()}],
        space,
        quantization,
    )
    if bool((less["count"] < 0).any()):
        name = space.names[int(less["count"].argmin())]
        raise DataError(
            f"the sums to take away hold more samples of {name!r} than there are: they were never "
            "part of these",
            NEVER_PART,
        )
    if quantization is None:
        gone = less["count"] == 0
        less["total"][gone] = 0  # not what rounding has left
    return less


def fits(sums: Params, space: ClassSpace, quantization: Quantization | None) -> bool:
    """Return whether statistics are of this class space and quantization."""
    return torch.equal(sums["space"], space_hash(space, quantization))


def check(sums: Params, space: ClassSpace, quantization: Quantization | None = None) -> None:
    """Refuse sums that are of another class space, of wrong shapes or not finite."""
    if not fits(sums, space, quantization):
        raise DataError(OTHER_SPACE.format("the sums"))
    width = sums["total"].shape[-1]
    if any(
        sums[name].shape != value.shape or sums[name].dtype != value.dtype
        for name, value in no_sums(width, space, quantization).items()
    ):
        raise DataError(
            "the sums are damaged, their parts do not fit together: let the party send them again"
        )
    if not all(bool(torch.isfinite(sums[name]).all()) for name in ("count", "total", "square")):
        raise DataError(
            "the sums hold numbers that are not finite: leave the party that sent them out"
        )


def validate_statistics(
    sums: Params, clip_norm: float | None = None, quantization: Quantization | None = None
) -> str:
    """Return why these statistics are infeasible, or ""."""
    count = sums["count"]
    total = sums["total"]
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
        count = sums["count"]
        total = sums["total"]
    observed = count > 0.5
    if bool((total[~observed].abs() > _SLACK * (1 + total.abs().max())).any()):
        return "a class without samples has a sum"
    width = total.shape[1]
    square = unpacked(sums["square"], width)
    level = float(square.diagonal().clamp(min=0.0).mean()) + float(torch.finfo(torch.float64).tiny)
    class_totals = total[observed]
    of_means = (class_totals.square() / count[observed][:, None]).sum(0)
    if clip_norm is not None and float(square.diagonal().sum()) > (
        1 + _SLACK
    ) * clip_norm**2 * float(count.sum()):
        return f"their samples are longer than {clip_norm:g} on average"
    if bool((square.diagonal() - of_means < -_SLACK * level).any()):
        return "their second moments are too small for their means"
    if width <= _FACTORISED:
        square.addmm_(
            (class_totals / count[observed][:, None]).T, class_totals, alpha=-1.0
        ).diagonal().add_(_SLACK * width * level)
        if int(torch.linalg.cholesky_ex(square).info):
            return "their second moments are not a sum of squares"
    return ""


def scatter(sums: Params) -> Tensor:
    """Return the scatter within classes (d, d): G - sum_c S_c S_c^T / n_c, no value on its diagonal
    below zero.
    """
    observed = sums["count"] > 0
    total = sums["total"][observed]
    count = sums["count"][observed]
    within = unpacked(sums["square"], total.shape[1]).addmm_(
        (total / count[:, None]).T, total, alpha=-1.0
    )
    within.diagonal().clamp_(min=0.0)
    return within


def packed(square: Tensor) -> Tensor:
    """Return the upper triangle (d (d + 1) / 2,) of a symmetric matrix (d, d), row by row."""
    # by rows: indices of all places would take twice the memory of the matrix
    return torch.cat([square[i, i:] for i in range(len(square))])


def unpacked(upper: Tensor, width: int) -> Tensor:
    """Return the symmetric matrix (d, d) whose upper triangle :func:`packed` gave; of a matrix, a
    copy.
    """
    if upper.ndim == 2:
        return upper.clone()
    square = upper.new_empty(width, width)
    start = 0
    for i in range(width):
        square[i, i:] = upper[start : start + width - i]
        start += width - i
    return mirrored(square)


def mirrored(square: Tensor) -> Tensor:
    """Write the upper triangle of a matrix (d, d) into the lower one, and return the matrix."""
    width = len(square)
    for left in range(0, width, COLUMNS):  # by blocks: single columns lie far apart in memory
        right = left + COLUMNS
        block = square[left:right, left:right]
        block.copy_(block.triu() + block.triu(1).T)
        square[right:, left:right] = square[left:right, right:].T
    return square


def space_hash(space: ClassSpace, quantization: Quantization | None) -> Tensor:
    """Return (32,) bytes: the hash of the classes' names and descriptions, not of who is seen, and
    the quantization.
    """
    if space not in _HASHED:
        named = json.dumps([space.names, space.attribute_names]).encode()
        _HASHED[space] = hashlib.sha256(named)
        _HASHED[space].update(space.semantics.tobytes())
    digest = _HASHED[space].copy()
    digest.update(b"" if quantization is None else quantization.digest)
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)


def solve_positive(left: Tensor, right: Tensor) -> Tensor:
    """Solve a symmetric system: by Cholesky, which costs half of LU, unless noise has left the
    matrix indefinite.
    """
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


def centred(sums: Params, semantics: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the means of features (d,) and attributes (a,) over all samples, and without them: the
    scatter of features (d, d), the sum of each class's features (C, d), and its attributes (C, a).
    """
    count = sums["count"]
    total = sums["total"]
    samples = count.sum().clamp(min=1.0)
    s = semantics.double().cpu()
    centre = total.sum(0) / samples
    middle = count @ s / samples
    gram = unpacked(sums["square"], total.shape[1]) - samples * torch.outer(centre, centre)
    return centre, middle, gram, total - count[:, None] * centre, s - middle
