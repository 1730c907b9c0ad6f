r"""Soft statistics of unlabelled samples: what a party computes while a model is adapted
(:mod:`~.unlabelled`).

.. math:: n_u = \sum_i r_{iu}, \quad S_u = \sum_i r_{iu}\, x_i, \quad r_i =
    \operatorname{softmax}(\text{scores}_i). (1)

Weights on a grid of integers below 2^23, exponentials from a table and responsibilities in units of
1 / 255 make them exact integers for 8-bit features: the same in any order, batch or partition.

Exact integers can be read modulo any number: if a class has every sample whole, but one of which it
has a part, the total modulo 255 is that one. So where sums must not show single samples
(``method.min_samples`` above 1), each sample is its most probable class's alone.
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
    """Return statistics of whole samples without small classes, and these: place -> count.

    A sample is at most one part in ``minimum`` of any sum that stays. ``distinct`` are the counts
    in which the same sample counts once.

    ``samples`` follows from the counts that stay: the number of all would give the count of a class
    that is left out.
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
        whole = int(kept["count"].sum()) // LEVELS
        kept["samples"] = torch.full_like(sums["samples"], whole)
    return {**sums, **kept}, small_counts


def responsibilities(scores: Scorer, rows: Tensor) -> Tensor:
    """Return (n, C) the responsibilities of classes for samples (n, d), int64 from 0 to 255:
    equation (1).
    """
    units = _units(scores, rows)
    below = (units.max(1, keepdim=True).values - units) * (scores.step * _STEPS)
    powers = _TABLE.to(below.device)[(below + 0.5).floor().clamp(max=len(_TABLE) - 1).long()]
    total = powers.sum(1, keepdim=True)
    return (2 * LEVELS * powers + total) // (2 * total)


def _units(scores: Scorer, rows: Tensor) -> Tensor:
    """Return (n, C) the scores of whole-number samples (n, d), in the scorer's units."""
    return torch.addmm(scores.bias, rows.double(), scores.weight.double().T)


def most_probable(scores: Scorer, rows: Tensor) -> Tensor:
    """Return (n,) int64 the class with the highest score of each sample (n, d); the first of equal
    ones.
    """
    places = torch.zeros(len(rows), dtype=torch.int64)
    for start in range(0, len(rows), _BLOCK):
        units = _units(scores, codes(rows[start : start + _BLOCK], scores.unit)).cpu()
        highest = units == units.max(1, keepdim=True).values
        classes = torch.arange(units.shape[1])
        places[start : start + _BLOCK] = torch.where(highest, classes, len(classes)).amin(1)
    return places


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
    tabular: bool = False,
    sorted_to: Tensor | None = None,
) -> Params:
    """Return a party's soft statistics of samples (n, d): those of a quantized model add up
    exactly.

    With ``min_samples`` above 1, each sample counts whole, for the class that ``sorted_to`` (n,)
    names (None: :func:`most_probable`). A feature that would show few samples of a class is another
    one in its sums, by the rule for labeled samples
    (:func:`~fedunseen.methods.closed_form.statistics.hidden_features`). That needs which features
    are ``clipped`` (n, d), and the ``stages`` (n, d) of scaling, of which the last become whole
    numbers.
    ``first`` (n,) says which samples no earlier one equals: only these are counted for that.
    ``tabular``: features are cells of a table.
    """
    sums = scores.no_samples()
    hides = min_samples > 1 and len(scores.unit) > 0 and len(rows) > 0
    numbers: list[Tensor] = []
    shares: list[Tensor] = []
    if min_samples > 1 and sorted_to is None:
        sorted_to = most_probable(scores, rows)
    for start in range(0, len(rows), _BLOCK):
        part = rows[start : start + _BLOCK]
        whole = codes(part, scores.unit)
        if sorted_to is None:
            r = responsibilities(scores, whole)[:, scores.classes]
        else:
            some = sorted_to[start : start + _BLOCK, None].to(scores.classes.device)
            r = LEVELS * (some == scores.classes).to(whole.device).long()
        sums["samples"] += len(part)
        sums["count"] += r.sum(0).cpu()
        sums["total"] += (r.double().T @ whole).to(sums["total"])
        if hides:
            numbers.append(whole.cpu())
            shares.append(r.cpu())
    if hides:
        ends = torch.zeros(rows.shape, dtype=torch.bool) if clipped is None else clipped
        kept = torch.ones(len(rows), dtype=torch.bool) if first is None else first
        known = (ends, stages, kept, tabular)
        _hide(sums["total"], torch.cat(numbers), torch.cat(shares), known, min_samples)
    return sums


def _hide(
    total: Tensor,
    whole: Tensor,
    shares: Tensor,
    known: tuple[Tensor, Sequence[Tensor], Tensor, bool],
    min_samples: int,
) -> None:
    """Replace features of ``total`` that would show few samples, in place, from whole numbers (n,
    d) and responsibilities (n, U); ``known``: which features are clipped, the stages of scaling,
    which samples no earlier one equals, and whether features are cells.
    """
    clipped, stages, first, tabular = known
    weights = shares.double() * first[:, None]
    least, most = weighted_bounds(whole, clipped, stages, weights, (LEVELS, min_samples), tabular)
    changed = torch.isfinite(least) | torch.isfinite(most)
    for column in torch.nonzero(changed.any(0))[:, 0].tolist():
        places = torch.nonzero(changed[:, column])[:, 0]
        numbers = whole[:, column, None].clamp(least[places, column], most[places, column])
        total[places, column] = (shares[:, places] * numbers).sum(0).to(total)


def weighted_bounds(
    whole: Tensor,
    clipped: Tensor,
    stages: Sequence[Tensor],
    weights: Tensor,
    few: tuple[int, int],
    tabular: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return (U, d) the smallest and the largest whole number of samples of each class in soft
    sums, infinite where a class shows a feature as it is.

    The rule is that of :func:`~fedunseen.methods.closed_form.statistics.bounds_of_class`, and gives
    the same bounds where all samples weigh alike.

    Args:
        whole: (n, d) float64, the samples' whole numbers.
        clipped: (n, d) bool, which of them are at an end of the range, or stand for nothing.
        stages: (n, d) each, what they were made of, if that is known.
        weights: (n, U) float64, of samples in classes, whole numbers.
        few: what a whole sample weighs, and how many are few no more.
        tabular: whether features are cells of a table.
    """
    unit, min_samples = few
    enough = unit * min_samples
    total = weights.sum(0)
    above, below = (weights.T @ (clipped & side).double() for side in (whole > 0, whole < 0))
    within = total[:, None] - weights.T @ clipped.double()
    narrow = (within < total[:, None]) & ((within < enough) | (2 * within <= total[:, None] + unit))
    levels = whole.abs().amax(0)
    end = torch.where((below < enough) & (above >= enough), levels, 0)
    end = torch.where((above < enough) & (below >= enough), -levels, end)
    least, most = torch.full((2, *narrow.shape), torch.inf).double()
    least = -least
    for column in range(whole.shape[1] if stages else 0):
        made_of = [stage[:, column] for stage in stages]
        numbers, place = torch.unique(whole[:, column], return_inverse=True)
        counts = _summed(weights, place, len(numbers))
        merged = _merged(place, len(numbers), made_of) | tabular
        common, which = torch.where(merged[:, None] & _medians(counts, total), counts, 0).max(0)
        apart = total - common
        coarse = (2 * apart <= total) & (apart > 0)
        shared = coarse & (apart < enough)
        scaled, place = torch.unique(made_of[-1], return_inverse=True)
        merged = _merged(place, len(scaled), made_of)
        if bool(merged.any()):  # float32 has made several values one
            of_scaled = _summed(weights, place, len(scaled))
            differ = total - of_scaled
            most_equal = (differ > 0) & (2 * differ <= total + unit)
            shared |= (merged[:, None] & _medians(of_scaled, total) & most_equal).any(0)
        upto = counts.cumsum(0)
        lowest = numbers[(upto >= enough).int().argmax(0)]
        highest = numbers[(upto > total - enough).int().argmax(0)]
        coarse |= shared
        least[coarse, column] = torch.where(shared, numbers[which], lowest)[coarse]
        most[coarse, column] = torch.where(shared, numbers[which], highest)[coarse]
    return torch.where(narrow, end, least), torch.where(narrow, end, most)


def _summed(weights: Tensor, place: Tensor, values: int) -> Tensor:
    """Return (values, U) what the samples (n, U) with each value weigh."""
    return torch.zeros(values, weights.shape[1]).double().index_add_(0, place, weights)


def _merged(place: Tensor, values: int, stages: Sequence[Tensor]) -> Tensor:
    """Return (values,) which values of a feature scaling has made of different ones."""
    merged = torch.zeros(values, dtype=torch.bool)
    infinite = torch.full((values,), torch.inf).double()
    for stage in stages:
        least = infinite.scatter_reduce(0, place, stage.double(), "amin")
        merged |= (-infinite).scatter_reduce(0, place, stage.double(), "amax") > least
    return merged


def _medians(counts: Tensor, total: Tensor) -> Tensor:
    """Return (values, U) which values, in order, are a median of a class."""
    upto = counts.cumsum(0)
    return (2 * (upto - counts) <= total) & (2 * upto >= total)


def infeasible_soft(sums: Params, quantization: Quantization | None) -> str:
    """Return why no samples can have these soft statistics, or ""."""
    samples, count, total = (sums[name] for name in ("samples", "count", "total"))
    most = math.inf if quantization is None else quantization.levels
    if bool((count < 0).any()) or int(count.sum()) > int(samples) * (LEVELS + len(count)):
        return "their soft counts are not those of so many samples"
    if bool((total.abs() > count[:, None] * most).any()):
        return "a class's soft sum is beyond the range of its samples"
    return ""


def added(parts: Iterable[Params]) -> Params:
    """Return the total of soft statistics, at least one party's."""
    total, *further = parts
    return {name: sum((part[name] for part in further), value) for name, value in total.items()}
