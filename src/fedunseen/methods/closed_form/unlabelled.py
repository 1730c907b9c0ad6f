r"""Unlabelled samples: expectation maximization over soft statistics, for Gaussian classes.

A party scores its unlabelled samples with the current model and sends, for each unseen class u,

.. math:: n_u = \sum_i r_{iu}, \quad S_u = \sum_i r_{iu}\, x_i, \quad r_i = \operatorname{softmax}(\text{scores}_i). (1)

The server takes S_u / n_u as the mean of n'_u further samples of class u and solves the labelled model's posterior
again (:meth:`~.gaussian.Gaussian.extend`). Samples are no independent draws of a perfect model, so they count less:

.. math:: 1 / n'_u = 1 / (\omega n_u) + \tau v. (2)

omega is the weight of a sample; tau v, a share of the prior variance, is the error that remains with any number of
samples. Sigma, the kernel and the labelled statistics stay. A few iterations of (1) and (2) are run.

The calibration offset makes up for the uncertainty of unseen prototypes, so it shrinks with it: the offset afterwards
is the one before, times the cube root of their mean variance over that before. Responsibilities use the offset before.

Guard: under the model, S_u / n_u lies around the prototype of the labelled model with the covariance
(variance_u + 1 / n_u) Sigma, so that

.. math:: \rho_u = \frac{\|S_u / n_u - \mu_u\|^2_{\Sigma^{-1}}}{d\,(\mathrm{variance}_u + 1 / n_u)} (3)

is about 1, with the deviation sqrt(2 / d). The first iteration refuses classes with rho above 2 + 5 sqrt(2 / d), and
all classes if the mean over samples is above half of that: such samples are of something else.

Exactness: the server sends integer weights, |w| < 2^23, on a grid whose step is a power of two. Scores of 8-bit
features are then exact in float64. Differences of scores are rounded to 1 / 256, their exponentials come from a table
of integers, and responsibilities are rounded to 1 / 255. Soft statistics of 8-bit features are therefore integers that
do not depend on batches, order or partition, and can be masked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.parameters import Params
from fedunseen.data import Quantization
from fedunseen.methods.base import Method
from fedunseen.methods.closed_form.gaussian import Gaussian

__all__ = [
    "LEVELS",
    "Adaptation",
    "Adapted",
    "Arriving",
    "Scorer",
    "adapt",
    "codes",
    "recalibrated",
    "remarks",
    "responsibilities",
    "scorer",
    "soft_statistics",
    "update",
]

LEVELS = 255  # a responsibility of 1
LEAST = 10  # samples that say anything
_ALMOST_ALL = 0.9
_GRID = 22  # bits of a weight
_STEPS = 256  # of a score's unit
_BLOCK = 4096  # samples scored at once
_TABLE = torch.tensor([round(math.exp(-k / _STEPS) * 2**30) for k in range(20 * _STEPS)] + [0])
"""Exponentials of -k / 256, as multiples of 2^-30; those beyond 20 are no responsibility."""


@dataclass(frozen=True)
class Adaptation:
    """How much unlabelled samples count; the defaults were chosen on splits of seen classes (``docs/unlabelled.md``).

    Attributes:
        weight: omega, how many labelled samples one unlabelled sample is worth at most.
        floor: tau, the error that remains with any number of samples, as a share of the variance between classes.
        iterations: rounds of soft statistics.
        guard: refuse classes whose statistics the labelled model rules out.
    """

    weight: float = 0.2
    floor: float = 0.1
    iterations: int = 3
    guard: bool = True


@dataclass(frozen=True, eq=False)
class Scorer:
    """What the server sends: linear scores on an integer grid.

    Attributes:
        weight: (C, d) integers below 2^23, float64.
        bias: (C,) integers, float64.
        step: what one unit of a score is worth, a power of two.
        classes: (U,) the classes to adapt.
        unit: (1,) or (d,) what one unit of a sample's feature is worth; None: features are not quantized.
    """

    weight: Tensor
    bias: Tensor
    step: float
    classes: Tensor
    unit: Tensor | None = None

    @property
    def bytes(self) -> int:
        """Bytes of weights and biases as 32-bit and 64-bit integers."""
        return 4 * self.weight.numel() + 8 * self.bias.numel()


@dataclass(frozen=True, eq=False)
class Adapted:
    """An adapted model.

    Attributes:
        params: the model.
        samples: (C,) soft counts of the last iteration; 0 for classes that are not adapted.
        refused: (C,) classes whose statistics the guard refused.
        offset_share: what a calibration offset is multiplied by afterwards, at most 1.
    """

    params: Params
    samples: Tensor
    refused: Tensor
    offset_share: float = 1.0


def scorer(params: Params, offset: float = 0.0, among: str = "all", quantization: Quantization | None = None) -> Scorer:
    """Return the model's scores on the integer grid.

    Args:
        params: a Gaussian model.
        offset: calibration offset of seen classes beside the model's own.
        among: the classes that samples may be of: ``all``, or ``unseen`` ones alone.
        quantization: of the samples.

    Raises:
        DataError: the model has no labelled sample, or no unseen class.
    """
    seen = params["seen_mask"] > 0
    if not bool((params["count"] > 0).any()):
        raise DataError("the model has no labelled sample, so that scores have no unit: train it on some first")
    if bool(seen.all()):
        raise DataError("every class has labelled samples: unlabelled samples are for classes that have none")
    weight = params["weight"]
    bias = params["bias"] - weight @ params["centre"] - offset * seen
    if among == "unseen":
        bias = torch.where(seen, -math.inf, bias)
    unit = None if quantization is None else torch.from_numpy(quantization.step).double()
    weight = weight if unit is None else weight * unit
    largest = float(weight.abs().max())
    step = 2.0 ** (math.ceil(math.log2(largest)) - _GRID) if largest > 0 else 1.0
    return Scorer((weight / step).round(), (bias / step).round(), step, torch.nonzero(~seen)[:, 0], unit)


def responsibilities(scores: Scorer, rows: Tensor) -> Tensor:
    """Return (n, C) the responsibilities of classes for samples (n, d), int64 from 0 to 255: equation (1).

    Samples of a quantized model are whole numbers (:func:`codes`).

    Example:
        >>> scores = Scorer(torch.tensor([[4.0], [0.0]]).double(), torch.zeros(2).double(), 0.25, torch.tensor([1]))
        >>> responsibilities(scores, torch.tensor([[0.0], [1.0], [9.0]])).tolist()
        [[128, 128], [186, 69], [255, 0]]
    """
    units = torch.addmm(scores.bias, rows.double(), scores.weight.T)
    below = (units.max(1, keepdim=True).values - units) * (scores.step * _STEPS)
    powers = _TABLE[(below + 0.5).floor().clamp(max=len(_TABLE) - 1).long()]
    total = powers.sum(1, keepdim=True)
    return (2 * LEVELS * powers + total) // (2 * total)


def codes(rows: Tensor, unit: Tensor | None) -> Tensor:
    """Return the whole numbers of quantized samples (n, d), or samples that are not quantized as they are."""
    return rows.double() if unit is None else (rows.double() / torch.where(unit > 0, unit, torch.inf)).round()


def soft_statistics(scores: Scorer, rows: Tensor) -> Params:
    """Return a party's soft counts (U,) and sums (U, d) of samples (n, d), in units of 1 / 255 and of a feature's.

    Those of a quantized model are whole numbers: they add up to those of all parties exactly.
    """
    count = torch.zeros(len(scores.classes), dtype=torch.float64)
    total = torch.zeros(len(scores.classes), scores.weight.shape[1], dtype=torch.float64)
    for part in torch.split(rows, _BLOCK):
        whole = codes(part, scores.unit)
        r = responsibilities(scores, whole)[:, scores.classes].double()
        count += r.sum(0)
        total += r.T @ whole
    return {"count": count, "total": total}


def update(
    method: Gaussian,
    params: Params,
    sums: Params,
    settings: Adaptation,
    refused: Tensor | None = None,
) -> Adapted:
    """Return the labelled model with soft statistics: equation (2).

    Args:
        method: over the model's classes.
        params: the labelled model.
        sums: of all parties, as :func:`soft_statistics` gives them, features in their own unit.
        settings: how much samples count.
        refused: (C,) classes to leave out; None: the guard decides.
    """
    classes = torch.nonzero(params["seen_mask"] == 0)[:, 0]
    soft, total = sums["count"] / LEVELS, sums["total"] / LEVELS
    mean = total / soft.clamp(min=1e-12)[:, None]
    if refused is None:
        refused = torch.zeros(len(params["count"]), dtype=torch.bool)
        if settings.guard:
            refused[classes] = _ruled_out(params, classes, soft, mean)
    soft = torch.where(refused[classes], 0.0, soft)
    used = soft > 0
    worth = torch.where(used, 1 / (1 / (settings.weight * soft) + settings.floor * float(params["kernel"][0])), 0.0)
    count = torch.zeros(len(params["count"]), dtype=torch.float64)
    full = torch.zeros(len(count), mean.shape[1], dtype=torch.float64)
    count[classes], full[classes] = worth, worth[:, None] * mean
    described = params["described"].cpu().numpy() > 0
    adapted = method.extend(params, method.semantics, count, full, described) if bool(used.any()) else dict(params)
    samples = torch.zeros_like(count)
    samples[classes] = sums["count"] / LEVELS
    remaining = adapted["variance"][classes].mean() / params["variance"][classes].mean().clamp(min=1e-300)
    return Adapted(adapted, samples, refused, min(1.0, float(remaining) ** (1 / 3)))


def adapt(
    method: Method,
    params: Params,
    pools: Iterable[Tensor],
    offset: float = 0.0,
    settings: Adaptation = Adaptation(),
    among: str = "all",
) -> Adapted:
    """Adapt a Gaussian model to the unlabelled samples of parties.

    Args:
        method: over the model's classes.
        params: the labelled model.
        pools: (n, ...) samples of each party, as the model takes them.
        offset: calibration offset of seen classes beside the model's own.
        settings: how much samples count.
        among: the classes that samples may be of: ``all``, or ``unseen`` ones alone.

    Raises:
        DataError: there are fewer than ten samples, one is not finite or of another length, or the model cannot adapt.
        ExperimentError: the method has no class means.
    """
    method = _adaptable(method)
    parties = [_features(method, params, rows) for rows in pools]
    check_pool(parties, len(params["centre"]))
    current, refused = Adapted(params, torch.zeros(0), torch.zeros(0)), None
    for _ in range(settings.iterations):
        scores = scorer(current.params, offset, among, method.quantization)
        parts = [soft_statistics(scores, rows) for rows in parties]
        sums = {name: torch.stack([part[name] for part in parts]).sum(0) for name in ("count", "total")}
        sums["total"] *= 1.0 if scores.unit is None else scores.unit
        current = update(method, params, sums, settings, refused)
        refused = current.refused
    return recalibrated(current)


class Arriving:
    """Adapts a model to samples that arrive one after another; their soft statistics are kept, the samples are not.

    Args:
        method: over the model's classes.
        params: the labelled model.
        offset: calibration offset of seen classes beside the model's own.

    Attributes:
        samples: how many have arrived.
        current: the adapted model; the labelled one before the tenth sample.

    Raises:
        DataError: the model cannot adapt.
        ExperimentError: the method has no class means.
    """

    def __init__(self, method: Method, params: Params, offset: float = 0.0) -> None:
        self.method, self.params, self.offset, self.samples = _adaptable(method), params, offset, 0
        scores = scorer(params, offset, quantization=self.method.quantization)
        self.sums = soft_statistics(scores, torch.zeros(0, len(params["centre"])))
        nothing = torch.zeros(len(params["count"]))
        self.current = Adapted(params, nothing, nothing > 0)

    def add(self, inputs: Tensor) -> Adapted:
        """Score samples (n, ...) with the current model, add their soft statistics, and return the model with them."""
        scores = scorer(self.current.params, self.offset, quantization=self.method.quantization)
        more = soft_statistics(scores, _features(self.method, self.params, inputs))
        more["total"] *= 1.0 if scores.unit is None else scores.unit
        self.sums = {name: value + more[name] for name, value in self.sums.items()}
        self.samples += len(inputs)
        if self.samples >= LEAST:
            self.current = update(self.method, self.params, self.sums, Adaptation())
        return recalibrated(self.current)


def _adaptable(method: Method) -> Gaussian:
    """Return the method if unlabelled samples can add to its class means.

    Raises:
        ExperimentError: it has none.
    """
    if not isinstance(method, Gaussian):
        name = getattr(method.settings, "name", type(method).__name__)
        raise ExperimentError(
            f"method.name = {name!r} keeps no class means that unlabelled samples could add to: run "
            "method.name = 'gaussian', on the same features or on those of this run (encoder.name = 'run')"
        )
    return method


def _features(method: Gaussian, params: Params, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([method.backbone(params, part) for part in torch.split(inputs, _BLOCK)])


def recalibrated(adapted: Adapted) -> Adapted:
    """Return the adapted model with its own calibration offset multiplied by ``offset_share``."""
    params, less = adapted.params, (1 - adapted.offset_share) * adapted.params["offset"]
    shrunk = {"offset": params["offset"] - less, "bias": params["bias"] + less * params["seen_mask"]}
    return replace(adapted, params=params | shrunk)


def remarks(adapted: Adapted, names: Sequence[str]) -> list[str]:
    """Return what to warn about: classes that the guard refused, and a class that got almost all samples."""
    found = []
    refused = [str(names[c]) for c in torch.nonzero(adapted.refused)[:, 0].tolist()]
    if refused:
        found.append(
            f"unlabelled samples do not count for {', '.join(map(repr, refused[:5]))}"
            f"{f' and {len(refused) - 5} more classes' if len(refused) > 5 else ''}: they lie too far from where "
            "the descriptions put these classes"
        )
    total, largest = float(adapted.samples.sum()), int(adapted.samples.argmax())
    unseen = int((adapted.params["seen_mask"] == 0).sum())
    if unseen > 1 and float(adapted.samples[largest]) > _ALMOST_ALL * total:
        found.append(
            f"class {names[largest]!r} got {100 * float(adapted.samples[largest]) / total:.0f} % of the unlabelled "
            "samples that unseen classes got: check that they are of several classes"
        )
    return found


def check_pool(parties: list[Tensor], width: int) -> None:
    """Refuse unlabelled samples that cannot be used.

    Raises:
        DataError: says why.
    """
    for rows in parties:
        if rows.ndim != 2 or rows.shape[1] != width:
            raise DataError(
                f"the unlabelled samples have the shape {tuple(rows.shape)}, but the model takes (n, {width}): encode "
                "them as the labelled ones"
            )
        if not bool(torch.isfinite(rows).all()):
            raise DataError("the unlabelled samples hold values that are not finite: leave those rows out")
    number = sum(len(rows) for rows in parties)
    if number < LEAST:
        raise DataError(f"there are {number} unlabelled samples: give at least {LEAST}")


def _ruled_out(params: Params, classes: Tensor, soft: Tensor, mean: Tensor) -> Tensor:
    """Return (U,) the classes whose soft means the labelled model rules out: equation (3)."""
    apart = mean - params["centre"]
    weight, bias = params["weight"][classes], params["bias"][classes]
    distance = ((apart @ params["precision"]) * apart).sum(1) - 2 * (weight * apart).sum(1) - 2 * bias
    width = mean.shape[1]
    rho = distance / width / (params["variance"][classes] + 1 / soft.clamp(min=1e-12))
    limit = 2 + 5 * math.sqrt(2 / width)
    everything = bool((soft * rho).sum() > limit / 2 * soft.sum())
    return (rho > limit) | everything
