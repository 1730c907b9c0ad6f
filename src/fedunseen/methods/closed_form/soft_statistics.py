r"""Soft statistics of unlabelled samples: what a party computes while a model is adapted
(:mod:`~.unlabelled`).

.. math:: n_u = \sum_i r_{iu}, \quad S_u = \sum_i r_{iu}\, x_i, \quad r_i =
    \operatorname{softmax}(\text{scores}_i). (1)

Weights on a grid of integers below 2^23, exponentials from a table and responsibilities in units of
1 / 255 make them exact integers for 8-bit features: the same in any order, batch or partition.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedunseen.core.errors import DataError, RefusedError
from fedunseen.core.parameters import Params
from fedunseen.data import Quantization
from fedunseen.metrics import lowered

LEVELS = 255  # a responsibility of 1
_GRID = 22  # bits of a weight
_STEPS = 256  # of a score's unit
_BLOCK = 4096  # samples scored at once
_EXACT = 2.0**53  # below which float64 has every whole number
_LEVERAGE = 0.5  # of a sample, at most: as if it and another one were summed
_RANK = 1e-12  # of singular values, relative; rounding leaves less
_TABLE = torch.tensor([round(math.exp(-k / _STEPS) * 2**30) for k in range(20 * _STEPS)] + [0])
"""Exponentials of -k / 256, as multiples of 2^-30; beyond 20 a responsibility is zero."""


@dataclass(frozen=True, eq=False)
class Scorer:
    """Linear scores on an integer grid: what a client derives from the linear model that it is
    sent.
    """

    weight: Tensor  # (C, d) int32, below 2^23
    bias: Tensor  # (C,) float64 whole numbers, or -inf
    step: Tensor  # () what one unit of a score is worth, a power of two
    classes: Tensor  # (U,) the classes to adapt
    # (1,) or (d,) what one unit of a feature is worth; empty: features are not quantized
    unit: Tensor

    def no_samples(self) -> Params:
        """Return the soft statistics of no sample."""
        kind = torch.int64 if len(self.unit) else torch.float64
        classes = len(self.classes)
        width = self.weight.shape[1]
        return {
            "samples": torch.zeros(1, dtype=torch.int64),
            "count": torch.zeros(classes, dtype=torch.int64),
            "total": torch.zeros(classes, width, dtype=kind),
        }


def scorer(
    params: Params,
    offset: float = 0.0,
    among: str = "all",
    quantization: Quantization | None = None,
    every: bool = False,
) -> Scorer:
    """Return the model's scores on the integer grid; ``every``: statistics of seen classes are
    wanted too.
    """
    linear = linear_model(params, offset, among)
    classes = torch.arange(len(params["seen_mask"])) if every else adapted_classes(params)
    return on_grid(linear, classes, quantization)


def adapted_classes(params: Params) -> Tensor:
    """Return (U,) the classes whose means unlabelled samples move: the unseen ones, or all where
    every class is seen.
    """
    unseen = params["seen_mask"] == 0
    return torch.nonzero(unseen | (~unseen).all())[:, 0]


def linear_model(params: Params, offset: float = 0.0, among: str = "all") -> Params:
    """Return the model's scores as ``weight`` (C, d) and ``bias`` (C,), float64, of features as
    they are.
    """
    seen = params["seen_mask"] > 0
    if not bool((params["count"] > 0).any()):
        raise DataError(
            "the model has no labeled sample, so that scores have no unit: train it on some first"
        )
    if bool(seen.all()) and among == "unseen":
        raise DataError(
            "every class has labeled samples, so that unlabelled ones are of no unseen class: give "
            "among='all'"
        )
    weight = params["weight"]
    bias = lowered(params["bias"] - weight @ params["centre"], seen, offset)
    if among == "unseen":
        bias = torch.where(seen, -math.inf, bias)
    return {"weight": weight, "bias": bias}


def on_grid(linear: Params, classes: Tensor, quantization: Quantization | None) -> Scorer:
    """Return a linear model's scores on the integer grid; the same bits on any machine."""
    weight = linear["weight"]
    bias = linear["bias"]
    unit = (
        torch.zeros(0).double()
        if quantization is None
        else torch.from_numpy(quantization.step).to(weight)
    )
    weight = weight * unit if len(unit) else weight
    largest = float(weight.abs().max())
    step = 2.0 ** (math.ceil(math.log2(largest)) - _GRID) if largest > 0 else 1.0
    whole = (weight / step).round().int(), (bias / step).round()
    return Scorer(*whole, torch.tensor(step).double(), classes, unit)


def received_scorer(
    linear: Params, classes: int, width: int, quantization: Quantization | None
) -> Scorer:
    """Return the scores that follow from a linear model of the server, for all classes.

    Raises:
        RefusedError: the server has sent something else, such as scores of its own (code
            ``"refused-scores"``).
    """
    shapes = {"weight": (classes, width), "bias": (classes,)}
    fits = linear.keys() == shapes.keys() and all(
        linear[name].dtype == torch.float64
        and linear[name].shape == shape
        and bool(torch.isfinite(linear[name]).all())
        for name, shape in shapes.items()
    )
    if fits:
        scores = on_grid(linear, torch.arange(classes), quantization)
        if bool((scores.bias.abs() < _EXACT).all()):
            return scores
    raise RefusedError(
        "the coordinator's scores do not follow from a linear model of these classes and features, "
        "from which a party derives them itself: ask the coordinator to plan again with this "
        "version",
        "refused-scores",
    )


def without_small(
    sums: Params, minimum: int, distinct: Tensor | None = None
) -> tuple[Params, dict[int, float]]:
    """Return soft statistics without classes of a small soft count, and these: place -> soft count.

    A sample adds at most 1 to a soft count: so it is at most one part in ``minimum`` of any sum
    that stays. ``distinct`` are the soft counts in which the same sample counts once.

    ``samples`` follows from the counts that stay: the number of all would give the count of a class
    that is left out. Rounded responsibilities of a sample add up to ``LEVELS`` and the number of
    classes at most.
    """
    count = sums["count"]
    apart = count if distinct is None else distinct
    small = (count > 0) & (apart < minimum * LEVELS) & (minimum > 1)
    small_counts = {
        place: float(apart[place]) / LEVELS for place in torch.nonzero(small)[:, 0].tolist()
    }
    kept = {
        "count": count.masked_fill(small, 0),
        "total": sums["total"].masked_fill(small[:, None], 0),
    }
    if minimum > 1:
        whole = int(kept["count"].sum())
        fewest = math.ceil(whole / (LEVELS + len(count)))
        kept["samples"] = torch.full_like(sums["samples"], max(fewest, round(whole / LEVELS)))
    return {**sums, **kept}, small_counts


def responsibilities(scores: Scorer, rows: Tensor) -> Tensor:
    """Return (n, C) the responsibilities of classes for samples (n, d), int64 from 0 to 255:
    equation (1).
    """
    units = torch.addmm(scores.bias, rows.double(), scores.weight.double().T)
    below = (units.max(1, keepdim=True).values - units) * (scores.step * _STEPS)
    powers = _TABLE.to(below.device)[(below + 0.5).floor().clamp(max=len(_TABLE) - 1).long()]
    total = powers.sum(1, keepdim=True)
    return (2 * LEVELS * powers + total) // (2 * total)


def codes(rows: Tensor, unit: Tensor) -> Tensor:
    """Return the whole numbers of quantized samples (n, d), or samples that are not quantized as
    they are.
    """
    return (
        (rows.double() / torch.where(unit > 0, unit, torch.inf)).round()
        if len(unit)
        else rows.double()
    )


def soft_statistics(
    scores: Scorer,
    rows: Tensor,
    clipped: Tensor | None = None,
    min_samples: int = 1,
    first: Tensor | None = None,
    stages: Sequence[Tensor] = (),
) -> Params:
    """Return a party's soft statistics of samples (n, d): those of a quantized model add up
    exactly.

    Of a class, a feature that is ``clipped`` (n, d) but in samples of a soft count below
    ``min_samples``, or in none, counts as 0: the clipped ones are known, so that the sum would show
    the others, or whether there is one.
    Where all samples but such a count have the whole number that most have, so do the others, if
    the values that it was made of differ, in one of the ``stages`` (n, d) of scaling.
    ``first`` (n,) says which samples no earlier one equals: only these are counted for that.
    """
    sums = scores.no_samples()
    beyond, off = torch.zeros(2, *sums["total"].shape, dtype=torch.float64)
    usual = None
    if stages and len(scores.unit) and len(rows):
        usual = codes(rows, scores.unit).median(0).values
        unusual = codes(rows, scores.unit) != usual
        merged = torch.zeros(rows.shape[1], dtype=torch.bool)
        for stage in stages:
            values = stage.double().to(rows.device)
            least = values.masked_fill(unusual, torch.inf).amin(0)
            merged |= (values.masked_fill(unusual, -torch.inf).amax(0) > least).cpu()
    distinct = torch.zeros(len(scores.classes), dtype=torch.int64)
    for start, part in zip(range(0, len(rows), _BLOCK), torch.split(rows, _BLOCK), strict=False):
        whole = codes(part, scores.unit)
        r = responsibilities(scores, whole)[:, scores.classes]
        sums["samples"] += len(part)
        sums["count"] += r.sum(0).cpu()
        sums["total"] += (r.double().T @ whole).to(sums["total"])
        if first is not None:
            r = r * first[start : start + _BLOCK, None].to(r.device)
        distinct += r.sum(0).cpu()
        if clipped is not None:
            beyond += (r.double().T @ clipped[start : start + _BLOCK].double().to(r.device)).cpu()
        if usual is not None:
            off += (r.double().T @ (whole != usual).double()).cpu()
    enough = min_samples * LEVELS
    within = distinct[:, None] - beyond
    few = (beyond > 0) & (within < enough) & (min_samples > 1)
    total = sums["total"].masked_fill(few.to(sums["total"].device), 0)
    if usual is not None:
        apart = (off > 0) & (off < enough) & (2 * off <= distinct[:, None]) & merged & ~few
        shared = (sums["count"][:, None] * usual.cpu()).to(total)
        total = torch.where(apart.to(total.device), shared, total)
    return sums | {"total": total}


def set_apart(scores: Scorer, rows: Tensor, kept: Tensor, first: Tensor | None = None) -> Tensor:
    """Return (n,) which samples (n, d) some combination of the sums of classes shows.

    A combination weighs samples by a combination of their responsibilities. A sample's leverage is
    the largest share of squared weights that it can have: 1 where all others can cancel.

    Args:
        scores: gives the responsibilities.
        rows: the samples.
        kept: (U,) bool, the classes that are sent.
        first: as for :func:`soft_statistics`.
    """
    if not len(rows) or not bool(kept.any()):
        return torch.zeros(len(rows), dtype=torch.bool)
    r = torch.cat(
        [
            responsibilities(scores, codes(part, scores.unit))[:, scores.classes][:, kept].cpu()
            for part in torch.split(rows, _BLOCK)
        ]
    ).double()
    _, lengths, directions = torch.linalg.svd(r if first is None else r[first], full_matrices=False)
    nonzero = lengths > _RANK * lengths.max()
    leverage = (r @ directions[nonzero].T / lengths[nonzero]).square().sum(1)
    return torch.gt(leverage, _LEVERAGE)


def added(parts: Iterable[Params]) -> Params:
    """Return the total of soft statistics, at least one party's."""
    total, *further = parts
    return {name: sum((part[name] for part in further), value) for name, value in total.items()}
