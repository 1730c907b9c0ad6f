r"""Soft statistics of unlabelled samples: what a party computes while a model is adapted (:mod:`~.unlabelled`).

.. math:: n_u = \sum_i r_{iu}, \quad S_u = \sum_i r_{iu}\, x_i, \quad r_i = \operatorname{softmax}(\text{scores}_i). (1)

Weights on a grid of integers below 2^23, exponentials from a table and responsibilities in units of 1 / 255 make them
exact integers for 8-bit features: the same in any order, batch or partition.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedunseen.core.errors import DataError
from fedunseen.core.parameters import Params
from fedunseen.data import Quantization

LEVELS = 255  # a responsibility of 1
_GRID = 22  # bits of a weight
_STEPS = 256  # of a score's unit
_BLOCK = 4096  # samples scored at once
_TABLE = torch.tensor([round(math.exp(-k / _STEPS) * 2**30) for k in range(20 * _STEPS)] + [0])
"""Exponentials of -k / 256, as multiples of 2^-30; beyond 20 a responsibility is zero."""


@dataclass(frozen=True, eq=False)
class Scorer:
    """What the server sends: linear scores on an integer grid."""

    weight: Tensor  # (C, d) int32, below 2^23
    bias: Tensor  # (C,) float64 whole numbers, or -inf
    step: Tensor  # () what one unit of a score is worth, a power of two
    classes: Tensor  # (U,) the classes to adapt
    unit: Tensor  # (1,) or (d,) what one unit of a feature is worth; empty: features are not quantized

    def no_samples(self) -> Params:
        """Return the soft statistics of no sample."""
        kind = torch.int64 if len(self.unit) else torch.float64
        classes, width = len(self.classes), self.weight.shape[1]
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
    """Return the model's scores on the integer grid; ``every``: statistics of seen classes are wanted too."""
    seen = params["seen_mask"] > 0
    if not bool((params["count"] > 0).any()):
        raise DataError("the model has no labeled sample, so that scores have no unit: train it on some first")
    if bool(seen.all()):
        raise DataError("every class has labeled samples: unlabelled samples are for classes that have none")
    weight = params["weight"]
    bias = params["bias"] - weight @ params["centre"] - offset * seen
    if among == "unseen":
        bias = torch.where(seen, -math.inf, bias)
    unit = torch.zeros(0).double() if quantization is None else torch.from_numpy(quantization.step).double()
    weight = weight * unit if len(unit) else weight
    largest = float(weight.abs().max())
    step = 2.0 ** (math.ceil(math.log2(largest)) - _GRID) if largest > 0 else 1.0
    whole = (weight / step).round().int(), (bias / step).round()
    return Scorer(*whole, torch.tensor(step).double(), torch.nonzero(~seen | every)[:, 0], unit)


def responsibilities(scores: Scorer, rows: Tensor) -> Tensor:
    """Return (n, C) the responsibilities of classes for samples (n, d), int64 from 0 to 255: equation (1)."""
    units = torch.addmm(scores.bias, rows.double(), scores.weight.double().T)
    below = (units.max(1, keepdim=True).values - units) * (scores.step * _STEPS)
    powers = _TABLE.to(below.device)[(below + 0.5).floor().clamp(max=len(_TABLE) - 1).long()]
    total = powers.sum(1, keepdim=True)
    return (2 * LEVELS * powers + total) // (2 * total)


def codes(rows: Tensor, unit: Tensor) -> Tensor:
    """Return the whole numbers of quantized samples (n, d), or samples that are not quantized as they are."""
    return (rows.double() / torch.where(unit > 0, unit, torch.inf)).round() if len(unit) else rows.double()


def soft_statistics(scores: Scorer, rows: Tensor) -> Params:
    """Return a party's soft statistics of samples (n, d): those of a quantized model add up exactly."""
    sums = scores.no_samples()
    for part in torch.split(rows, _BLOCK):
        whole = codes(part, scores.unit)
        r = responsibilities(scores, whole)[:, scores.classes]
        sums["samples"] += len(part)
        sums["count"] += r.sum(0).cpu()
        sums["total"] += (r.double().T @ whole).to(sums["total"])
    return sums


def added(parts: Iterable[Params]) -> Params:
    """Return the total of soft statistics, at least one party's."""
    total, *others = parts
    return {name: sum((part[name] for part in others), value) for name, value in total.items()}
