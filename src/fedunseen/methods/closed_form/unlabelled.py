r"""Unlabelled samples: expectation maximization over soft statistics, for Gaussian classes.

The server takes S_u / n_u (:mod:`~.soft_statistics`) as the mean of n'_u further samples of class
u:

.. math:: 1 / n'_u = 1 / (\omega n_u) + \tau v, (2) \qquad
    \rho_u = \frac{\|S_u / n_u - \mu_u\|^2_{\Sigma^{-1}}}{d\,(\mathrm{variance}_u + 1 / n_u)}. (3)

omega is the weight of a sample, tau v the error that remains with any number. The calibration
offset shrinks by the share of the prototypes' variance that is left, to the power 0.4. The first
iteration refuses classes with rho above 2 + 5 sqrt(2 / d), and all if the mean over samples is
above half of that. Statistics are of seen classes too: it refuses all if no soft mean of an unseen
class is clearly farther from the span of the prototypes than those of seen classes are: such a pool
shows nothing new. It stretches the prototypes of unseen classes about their mean, so that the
median distance to the nearest is at least one standard deviation: with few seen classes the
predicted prototypes nearly coincide, and each sample would be shared equally.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.parameters import Params, under, within
from fedunseen.core.registry import names_with
from fedunseen.data.benchmark import FEWEST_UNLABELLED, check_unlabelled
from fedunseen.methods.base import Method
from fedunseen.methods.closed_form.gaussian import Gaussian
from fedunseen.methods.closed_form.gaussian_process import stored_factor
from fedunseen.methods.closed_form.soft_statistics import (
    LEVELS,
    Scorer,
    adapted_classes,
    added,
    infeasible_soft,
    linear_model,
    received_scorer,
    scorer,
    soft_statistics,
)
from fedunseen.strategies import Instruction, Reply, Strategy
from fedunseen.strategies.summed import Summed

_BLOCK = 4096  # samples encoded at once
_SHRINK = 0.4  # power of the variance that is left, by which the calibration offset shrinks
_SAME = 1e-9  # squared distance, as a share of the squared length, below which it is rounding
# times the distance of a seen class's soft mean from the span of the prototypes, both per sample
_NEW = 1.2
_APART = 1.0  # standard deviations between the prototypes of unseen classes in the first iteration


@dataclass(frozen=True)
class Adaptation:
    """How much unlabelled samples count; defaults from splits of seen classes
    (``docs/unlabelled.md``).
    """

    weight: float = 0.2  # omega, how many labeled samples one unlabelled sample is worth at most
    floor: float = (
        0.1  # tau, the error that remains with any number of samples, as a share of the variance
    )
    iterations: int = 4
    guard: bool = True  # refuse classes whose statistics the labeled model rules out


@dataclass(frozen=True, eq=False)
class Adapted:
    """An adapted model."""

    params: Params
    samples: Tensor  # (C,) soft counts of the last iteration; 0 for classes that are not adapted
    refused: Tensor  # (C,) classes whose statistics the guard refused
    offset_share: float = 1.0  # what a calibration offset is multiplied by afterwards
    pool: int = 0  # how many unlabelled samples there are, without those of classes left out


def update(
    method: Gaussian,
    params: Params,
    sums: Params,
    settings: Adaptation = Adaptation(),
    refused: Tensor | None = None,
) -> Adapted:
    """Return the labeled model with soft statistics: equation (2)."""
    pool = int(sums["samples"])
    classes = adapted_classes(params)
    soft = sums["count"].double() / LEVELS
    total = sums["total"].double() / LEVELS
    if method.quantization is not None:
        total = total * torch.from_numpy(method.quantization.step).double()
    mean = total / soft.clamp(min=1e-12)[:, None]
    nothing_new = False
    if len(soft) > len(classes):  # of seen classes too
        nothing_new = refused is None and _nothing_new(method, params, soft, mean)
        soft = soft[classes]
        mean = mean[classes]
    if refused is None:
        refused = torch.zeros(len(params["count"]), dtype=torch.bool)
        if settings.guard:
            refused[classes] = _ruled_out(params, classes, soft, mean) | nothing_new
    samples, count = torch.zeros(2, len(refused), dtype=torch.float64)
    full = torch.zeros(len(refused), mean.shape[1], dtype=torch.float64)
    samples[classes] = soft
    soft = torch.where(refused[classes], 0.0, soft)
    used = soft > 0
    # what labels say of a seen class is worth far more than its description
    seen = params["seen_mask"][classes] > 0
    error = settings.floor * torch.where(seen, params["variance"][classes], params["kernel"][0])
    worth = torch.where(used, 1 / (1 / (settings.weight * soft) + error), 0.0)
    count[classes] = worth
    full[classes] = worth[:, None] * mean
    described = params["described"].cpu().numpy() > 0
    adapted = (
        method.extend(params, method.semantics, count, full, described)
        if bool(used.any())
        else dict(params)
    )
    remaining = adapted["variance"][classes].mean() / params["variance"][classes].mean().clamp(
        min=1e-300
    )
    return Adapted(adapted, samples, refused, min(1.0, float(remaining) ** _SHRINK), pool)


def adapt(
    method: Method,
    params: Params,
    pools: Iterable[Tensor],
    offset: float = 0.0,
    settings: Adaptation = Adaptation(),
    among: str = "all",
) -> Adapted:
    """Adapt a Gaussian model to the unlabelled samples of parties."""
    method = adaptable(method, params)
    parties = [features_of(method, rows) for rows in pools]
    check_unlabelled(sum(map(len, parties)))
    current = stretched(method, params)
    refused = None
    for _ in range(settings.iterations):
        scores = scorer(current, offset, among, method.quantization, every=among == "all")
        adapted = update(
            method,
            params,
            added(soft_statistics(scores, rows) for rows in parties),
            settings,
            refused,
        )
        current = adapted.params
        refused = adapted.refused
    return recalibrated(adapted)


def stretched(method: Gaussian, params: Params) -> Params:
    """Return the labeled model with the prototypes of unseen classes farther apart, where they
    nearly coincide.
    """
    classes = torch.nonzero(params["seen_mask"] == 0)[:, 0]
    if len(classes) < 2:
        return params
    weight = params["weight"].clone()
    bias = params["bias"].clone()
    apart = method.prototypes(params, method.semantics.double().cpu())[classes]
    gram = apart @ weight[classes].T
    length = gram.diagonal()
    distances = length[:, None] + length - 2 * gram
    distances.fill_diagonal_(math.inf)
    nearest = float(distances.min(1).values.median())
    if not _SAME * float(length.max()) < nearest < _APART**2:
        return params
    for values in (weight, bias):
        middle = values[classes].mean(0)
        values[classes] = middle + _APART / math.sqrt(nearest) * (values[classes] - middle)
    return params | {"weight": weight, "bias": bias}


class SoftSums(Summed):
    """Adapts a labeled model to the clients' unlabelled samples: an iteration is a round."""

    def __init__(self, inner: Strategy, method: Method) -> None:
        super().__init__(inner, {})
        self.method = adaptable(method)
        self.offset = 0.0

    @property
    def rounds(self) -> int:
        """How many iterations there are."""
        return Adaptation.iterations

    def init(self, params: Params, clients: int) -> Params:
        """Return the labeled model."""
        if "seen_mask" not in params:
            raise ExperimentError(
                "data.unlabelled = 'summed' is what a run sets itself while it adapts: set true"
            )
        return under("labelled/", params)

    def instruct(self, state: Params, params: Params, round: int) -> Instruction:
        """Send the current model, as far as its scores depend on it."""
        params = stretched(self.method, params) if round == 0 else params
        return Instruction(linear_model(params, self.offset))

    def expects(self, instruction: Instruction) -> Params:
        """Return the soft statistics of no sample."""
        return received(self.method, instruction).no_samples()

    def check(self, reply: Reply) -> str:
        """Return why no samples can have these statistics, or ""."""
        why = infeasible_soft(dict(reply.update), self.method.quantization)
        return (
            f"its soft sums cannot be those of any samples ({why}): leave it out, or let it send "
            "them again"
            if why
            else ""
        )

    def merge(
        self, state: Params, params: Params, replies: Sequence[Reply], round: int
    ) -> tuple[Params, Params]:
        """Return the labeled model with the soft statistics of all clients."""
        sums = added(dict(reply.update) for reply in replies)
        adapted = update(
            self.method, within("labelled/", state), sums, refused=state.get("refused")
        )
        note = {"samples": adapted.samples, "refused": adapted.refused, "pool": sums["samples"]}
        share = torch.tensor(adapted.offset_share, dtype=torch.float64)
        return {**state, **note, "offset_share": share}, adapted.params

    def notes(self, state: Params) -> dict[str, Any]:
        """Return what the last round found, from which :meth:`adapted` follows."""
        return {
            "adapted": {
                name: state[name].tolist()
                for name in ("samples", "refused", "pool", "offset_share")
            }
        }

    @staticmethod
    def adapted(params: Params, line: Mapping[str, Any]) -> Adapted:
        """Return the adapted model with what a round's :meth:`notes` say of it."""
        note = line["adapted"]
        samples = torch.tensor(note["samples"], dtype=torch.float64)
        refused = torch.tensor(note["refused"])
        return recalibrated(
            Adapted(params, samples, refused, note["offset_share"], note["pool"][0])
        )


def received(method: Gaussian, instruction: Instruction) -> Scorer:
    """Return the scores that a client derives from the model in an instruction; see
    :func:`received_scorer`.
    """
    classes = len(method.space.names)
    return received_scorer(instruction.params, classes, method.width, method.quantization)


class Arriving:
    """Adapts a model to samples that arrive one after another; their soft statistics are kept, the
    samples are not.
    """

    def __init__(self, method: Method, params: Params, offset: float = 0.0) -> None:
        self.method = adaptable(method, params)
        self.params = params
        self.offset = offset
        self.samples = 0
        nothing = torch.zeros(len(params["count"]))
        self.current = Adapted(params, nothing, nothing > 0)
        self.sums = self._scorer().no_samples()

    def _scorer(self) -> Scorer:
        return scorer(self.current.params, self.offset, quantization=self.method.quantization)

    def add(self, inputs: Tensor) -> Adapted:
        """Score samples (n, ...) with the current model, add their soft statistics, and return the
        model with them.
        """
        arrived = soft_statistics(self._scorer(), features_of(self.method, inputs))
        self.sums = added([self.sums, arrived])
        self.samples += len(inputs)
        if self.samples >= FEWEST_UNLABELLED:
            self.current = update(self.method, self.params, self.sums)
        return recalibrated(self.current)


def adaptable(method: Method, params: Params | None = None) -> Gaussian:
    """Return the method if unlabelled samples can add to its class means.

    ``params``: of the model to adapt; without, methods pass that have such means in some models.
    """
    if method.adapts is False or (params is not None and "seen_mask" not in params):
        name = getattr(method.settings, "name", type(method).__name__)
        raise ExperimentError(
            f"method.name = {name!r} keeps no class means that unlabelled samples could add to: "
            f"run method.name = {adapting()}, on the same features or on those of this run "
            "(encoder.name = 'run')"
        )
    return cast(Gaussian, method)


def adapting() -> str:
    """Return the names of the methods that unlabelled samples can adapt, in words."""
    return " or ".join(map(repr, names_with("method", "adapts")))


def features_of(method: Method, inputs: Tensor) -> Tensor:
    """Return the features (n, d) of unlabelled samples (n, ...)."""
    with torch.no_grad():
        rows = torch.cat([method.backbone({}, part) for part in torch.split(inputs, _BLOCK)])
    if not bool(torch.isfinite(rows).all()):
        raise DataError(
            "the unlabelled samples hold values that are not finite: leave those rows out"
        )
    return rows


def recalibrated(adapted: Adapted) -> Adapted:
    """Return the adapted model with its own calibration offset multiplied by ``offset_share``."""
    params = adapted.params
    less = (1 - adapted.offset_share) * adapted.params["offset"]
    shrunk = {
        "offset": params["offset"] - less,
        "bias": params["bias"] + less * params["seen_mask"],
    }
    return replace(adapted, params=params | shrunk)


def _ruled_out(params: Params, classes: Tensor, soft: Tensor, mean: Tensor) -> Tensor:
    """Return (U,) the classes whose soft means the labeled model rules out: equation (3)."""
    apart = mean - params["centre"]
    weight = params["weight"][classes]
    bias = params["bias"][classes]
    distance = (
        ((apart @ params["precision"]) * apart).sum(1) - 2 * (weight * apart).sum(1) - 2 * bias
    )
    width = mean.shape[1]
    rho = distance / width / (params["variance"][classes] + 1 / soft.clamp(min=1e-12))
    limit = 2 + 5 * math.sqrt(2 / width)
    everything = bool((soft * rho).sum() > limit / 2 * soft.sum())
    return (rho > limit) | everything


def _nothing_new(method: Gaussian, params: Params, soft: Tensor, mean: Tensor) -> bool:
    """Return whether soft means (C, d) of unseen classes are as near the span of the prototypes as
    those of seen ones.

    Responsibilities are of linear scores: those of samples of seen classes alone move soft means
    within that span only.
    """
    root = stored_factor(params["precision"])
    seen = params["seen_mask"] > 0
    basis = torch.linalg.qr((method.prototypes(params, method.semantics.double().cpu()) @ root).T).Q
    apart = (mean - params["centre"]) @ root
    beyond = soft * (apart.square().sum(1) - (apart @ basis).square().sum(1))
    enough = seen & (soft >= 3)
    free = mean.shape[1] - basis.shape[1]
    if int(enough.sum()) < 2 or free < 1:
        return False
    usual = float(beyond[enough].median())
    expected = (
        usual + float((soft * params["variance"])[~seen].max()) * free
    )  # of samples of a new class
    return bool(float(beyond[~seen].max()) < _NEW * usual < expected)
