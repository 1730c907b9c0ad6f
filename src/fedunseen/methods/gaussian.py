r"""Gaussian classes whose prototypes are a Gaussian process over their descriptions: exact, in one round.

A sample of class c is drawn from N(mu_c, Sigma), with one Sigma for all classes. The prototypes mu are drawn from a
Gaussian process over the classes' semantics s: its mean is m for every class, and the covariance between classes c and
c' is K times Sigma between features, with

.. math:: K_{cc'} = v\,\bigl(\exp(-\|s_c - s_{c'}\|^2 / 2 w) + \lambda\,[c = c']\bigr).

After multiplication by Sigma^-1/2 all features are independent and share K, so that all prototypes follow from one
system of equations as large as the number O of classes that somebody has examples of. With M the means of their
samples, n their numbers, and m the mean of M:

.. math:: \mu = m + K_{\cdot O} A, \qquad A = (K_{OO} + \mathrm{diag}(1 / n))^{-1} (M - m).

A class without examples is told by its description alone, one with a few by both, one with many is its mean: zero-shot,
few-shot and many-shot are one formula. Predicting exemplars from semantics is Changpinyo et al.'s idea (2017, with a
regression for every feature); the shared covariance is that of linear discriminant analysis.

- Sigma is the covariance within classes, shrunk towards the identity: (1 - s) Sigma_0 + s I tr Sigma_0 / d.
- v, lambda and w maximise the likelihood of the class means (:func:`evidence`): three numbers, no validation class.
- s is the one under which left-out classes are recognised best. Samples of them are drawn at the server, from the
  posterior of their prototypes and Sigma_0 (:func:`left_out`): it needs no sample, and no class set aside. The same
  draws say by how much seen classes have to be lowered when all classes are candidates (calibrated stacking).
- Scores are linear: mu_c^T Sigma^-1 x - mu_c^T Sigma^-1 mu_c / 2.

Shifting, scaling or rotating all features, or scaling all semantics, changes no prediction.

Where images and texts share a space, as CLIP's do, a class's text says more than which classes it is like: it says
where its images lie. With the prior ``semantics`` the mean of prototype c is m + a (s_c - s), s being the mean of the
observed classes' semantics and a the slope that fits their means best (least squares). Without any sample m and s are
zero, a is 1 and Sigma the identity: zero-shot CLIP, the class with the nearest text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.parameters import Params
from fedunseen.core.random import stream
from fedunseen.core.settings import NamedSettings
from fedunseen.data import ClassSpace
from fedunseen.encoders.backbone import Backbone
from fedunseen.methods.closed_form import ClosedForm
from fedunseen.methods.sums import scatter

__all__ = [
    "Gaussian",
    "GaussianSettings",
    "Kernel",
    "LeftOut",
    "Moments",
    "Whitened",
    "evidence",
    "fit_kernel",
    "left_out",
    "median_distance",
    "moments",
    "posterior",
    "squared_distances",
    "whitened",
]

SHRINKAGES = (0.01, 0.03, 0.1, 0.3, 0.5, 0.7)  # tried where none is given
_SAME_ROW = 1e-9  # squared distance of two rows that are the same description, as a part of the kernel's width
EVIDENCE_CLASSES = 400  # the evidence of more classes is that of a spread of them: a step takes their number cubed


class GaussianSettings(NamedSettings):
    """Settings of Gaussian classes. By default the sums themselves say what each should be."""

    name: Literal["gaussian"] = "gaussian"
    keep: Literal["each", "total"] = "each"
    """What the server keeps: the sums of each party, so that one can be taken out again (`fedunseen forget`), or their
    total alone, after which nobody can tell what a party has sent."""
    longest: float | None = Field(None, gt=0)
    """A party shortens samples to this length, and the server refuses sums that longer ones must have made: a bound on
    what samples that a party has made up can do. Unset: samples are taken as they are."""
    shrinkage: float | None = Field(None, gt=0, le=1)
    """How far the covariance within classes is drawn towards a multiple of the identity, s. Unset: the best of 0.01,
    0.03, 0.1, 0.3, 0.5 and 0.7 for classes that are left out, by draws at the server."""
    variance: float | None = Field(None, gt=0)
    """How far prototypes of classes lie apart, v, as a multiple of the covariance within classes. Unset: evidence."""
    nugget: float | None = Field(None, ge=0)
    """How far a class may be from what its description says, lambda, as a share of the variance. Unset: evidence."""
    width: float | None = Field(None, gt=0)
    """How far descriptions tell of each other: the squared width of the kernel, as a multiple of the median squared
    distance between descriptions. Unset: evidence."""
    prior: Literal["mean", "semantics"] = "mean"
    """Where a class is expected before anything is seen of it: at the mean of all class means, or, where images and
    texts share a space (CLIP's kind), at its own description: `semantics`, which then has as many numbers as a
    sample has features."""
    calibration: bool = False
    """Lower seen classes by the factor that is best for classes that are left out, by draws at the server; what
    `evaluation.selection` chooses on validation classes is added to it. For runs without (`selection = "last"`)."""


@dataclass(frozen=True)
class Kernel:
    """The covariance between prototypes, in units of the covariance within classes.

    Attributes:
        variance: v.
        nugget: lambda.
        width: w, in units of squared distances between semantics.
    """

    variance: float
    nugget: float
    width: float

    def __call__(self, distances: Tensor, same: Tensor | None = None) -> Tensor:
        """Return K (...) from squared distances (...); ``same`` (...) is true where both are one class."""
        k = torch.exp(distances / (-2 * self.width))
        return self.variance * (k if same is None else k + self.nugget * same)

    def within(self, semantics: Tensor) -> Tensor:
        """Return K (C, C) among different classes of these semantics (C, a)."""
        same = torch.eye(len(semantics), dtype=semantics.dtype, device=semantics.device)
        return self(squared_distances(semantics, semantics), same)


def squared_distances(one: Tensor, other: Tensor) -> Tensor:
    """Return the squared distances (A, B) between rows (A, a) and (B, a), exactly zero between equal rows."""
    return torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist").square()


def median_distance(semantics: Tensor) -> float:
    """Return the median squared distance between rows (C, a) that differ; 1 if none do."""
    at = torch.triu_indices(len(semantics), len(semantics), 1)
    distances = squared_distances(semantics, semantics)[at[0], at[1]]
    apart = distances[distances > 0]
    return float(apart.median()) if len(apart) else 1.0


@dataclass(frozen=True, eq=False)
class Moments:
    """What the sums say of the classes that have samples.

    Attributes:
        classes: (O,) their ids.
        count: (O,) their numbers of samples.
        means: (O, d) the means of those.
        covariance: (d, d) within classes, Sigma_0: unbiased, of low rank where there are few samples.
    """

    classes: NDArray[np.int64]
    count: Tensor
    means: Tensor
    covariance: Tensor


def moments(sums: Params) -> Moments:
    """Return the moments of classes from sums.

    Where no class has two samples that differ, nothing tells how samples of one class vary. Then Sigma_0 is the
    identity times the mean variance over all samples, and classes are told by plain distance.

    Raises:
        DataError: no class has a sample.
    """
    there = sums["count"] > 0
    count, total = sums["count"][there], sums["total"][there]
    if not len(count):
        raise DataError("the sums are of no sample at all: at least one party needs samples")
    covariance = scatter(sums) / max(1.0, float(count.sum()) - len(count))
    level = float(covariance.diagonal().mean())
    means = total / count[:, None]
    # what rounding leaves of numbers as large as these is no variance
    if not level > 1e-12 * float(means.square().mean()):
        apart = float((means - means.mean(0)).square().mean())
        covariance = torch.eye(total.shape[1], dtype=torch.float64) * (apart if apart > 0 else 1.0)
    return Moments(torch.nonzero(there)[:, 0].numpy(), count, means, covariance)


@dataclass(frozen=True, eq=False)
class Whitened:
    """Class means under one shrinkage, in the only form that evidence and draws need: inner products.

    Attributes:
        shrinkage: s.
        factor: (d, d) lower Cholesky factor of the shrunk Sigma.
        logdet: of Sigma.
        centre: (d,) m, the mean of the class means.
        gram: (O, O) (M - m) Sigma^-1 (M - m)^T; where classes have prior means P of their own, (2 O, 2 O), M - m - P
            being the first O rows of what is multiplied and P the others.
        spread: likewise (M - m) Sigma^-1 Sigma_0 Sigma^-1 (M - m)^T: how far samples lie apart along these directions.
        width: d.
    """

    shrinkage: float
    factor: Tensor
    logdet: float
    centre: Tensor
    gram: Tensor
    spread: Tensor
    width: int


def whitened(found: Moments, shrinkage: float, prior: Tensor | None = None) -> Whitened:
    """Shrink Sigma_0 and take the class means' inner products under it: one factorisation, d^3 / 3 multiplications.

    Args:
        found: the class means.
        shrinkage: s.
        prior: (O, d) where each class is expected, less the centre; None: all at the centre.
    """
    covariance, width = found.covariance, len(found.covariance)
    level = float(covariance.diagonal().mean())
    shrunk = covariance * (1 - shrinkage)
    shrunk.diagonal().add_(shrinkage * level)
    factor = torch.linalg.cholesky(shrunk)
    centre = found.means.mean(0)
    apart = found.means - centre
    if prior is not None:
        apart = torch.cat([apart - prior, prior])
    half = torch.linalg.solve_triangular(factor, apart.T, upper=False)  # (d, O)
    gram = half.T @ half
    weights = torch.linalg.solve_triangular(factor.T, half, upper=True)  # Sigma^-1 (M - m)^T
    # Sigma_0 = (Sigma - s level I) / (1 - s): no product with it needed, unless it has no part in Sigma
    if shrinkage < 1:
        spread = (gram - shrinkage * level * (weights.T @ weights)) / (1 - shrinkage)
    else:
        spread = weights.T @ covariance @ weights
    logdet = 2 * float(factor.diagonal().log().sum())
    return Whitened(shrinkage, factor, logdet, centre, (gram + gram.T) / 2, (spread + spread.T) / 2, width)


def evidence(
    kernel: Kernel, gram: Tensor, distances: Tensor, count: Tensor, width: int, logdet: float = 0.0
) -> tuple[float, tuple[float, float, float]]:
    """Return how likely class means are, and its gradient by the logarithms of variance, nugget and width.

    With A = K + diag(1 / n) and Z = (M - m) Sigma^-1/2, whose rows' inner products are ``gram``, it is

        - d / 2 log |2 pi A| - tr(A^-1 Z Z^T) / 2 - C / 2 log |Sigma|,

    the last term being the Jacobian of whitening, without which likelihoods under different Sigma cannot be compared.

    Args:
        kernel: v, lambda, w.
        gram: (C, C).
        distances: (C, C) squared distances between the classes' semantics.
        count: (C,) samples of each class.
        width: d.
        logdet: log |Sigma|.
    """
    smooth = kernel.variance * torch.exp(distances / (-2 * kernel.width))
    k = smooth.clone()
    k.diagonal().add_(kernel.variance * kernel.nugget)
    a = k.clone()
    a.diagonal().add_(1 / count)
    factor = torch.linalg.cholesky(a)
    inverse = torch.cholesky_inverse(factor)
    fitted = inverse @ gram @ inverse
    value = -width * float(factor.diagonal().log().sum()) - float((inverse * gram).sum()) / 2
    value -= len(a) * (width * float(np.log(2 * np.pi)) + logdet) / 2
    slope = (fitted - width * inverse) / 2  # of the value by A
    by_nugget = kernel.variance * kernel.nugget * float(slope.diagonal().sum())
    by_width = float((slope * smooth * distances).sum()) / (2 * kernel.width)
    return value, (float((slope * k).sum()), by_nugget, by_width)


def fit_kernel(
    found: Whitened, semantics: Tensor, count: Tensor, fixed: tuple[float | None, float | None, float | None]
) -> tuple[Kernel, float]:
    """Return the kernel with the greatest evidence, and that evidence; whatever is fixed stays.

    Args:
        found: the class means.
        semantics: (C, a) of these classes.
        count: (C,) their samples.
        fixed: variance, nugget and width (a multiple of the median squared distance), each None where it is free.
    """
    median = median_distance(semantics)
    some = np.unique(np.linspace(0, len(count) - 1, min(len(count), EVIDENCE_CLASSES)).round().astype(np.int64))
    at = torch.from_numpy(some)
    gram, distances = found.gram[at][:, at], squared_distances(semantics[at], semantics[at])
    logs = [None if value is None else float(np.log(max(value, 1e-300))) for value in fixed]
    free = [i for i, value in enumerate(logs) if value is None]

    def kernel(x: NDArray[np.float64]) -> Kernel:
        given = list(logs)
        for i, value in zip(free, x, strict=True):
            given[i] = float(value)
        v, nugget, width = (float(np.exp(value)) for value in given)  # type: ignore[arg-type]
        return Kernel(v, nugget if fixed[1] != 0 else 0.0, width * median)

    def loss(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, slope = evidence(kernel(x), gram, distances, count[at], found.width, found.logdet)
        return -value, -np.array([slope[i] for i in free])

    # class means are apart by v and 1 / n: where v begins, so that the scale of features and semantics is no matter
    begin = max(float(gram.diagonal().mean()) / found.width, 1e-6)
    start = np.array([(float(np.log(begin)), -3.0, -1.5)[i] for i in free])
    bounds = [((-20.0, 12.0), (-12.0, 3.0), (-4.0, 3.0))[i] for i in free]
    if not free:
        return kernel(start), -loss(start)[0]
    from scipy.optimize import minimize  # half a second to import, and many runs fix the kernel or have none

    best = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    if free[0] == 0 and best.x[0] <= bounds[0][0] + 1:
        # Where 1 / n is as large as v, a first step from there may be so long that it ends where v is nothing and the
        # evidence is flat. What 1 / n leaves of the spread is a nearer start.
        start[0] = np.log(max(begin - float((1 / count[at]).mean()), 0.01 * begin))
        best = min(best, minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds), key=lambda one: one.fun)
    return kernel(best.x), -float(best.fun)


@dataclass(frozen=True, eq=False)
class Posterior:
    """Prototypes as combinations of observed class means.

    Attributes:
        weights: (T, O): mu = m + weights (M - m).
        variance: (T,) of each prototype, in units of Sigma: 0 where its class has been seen without end.
    """

    weights: Tensor
    variance: Tensor


def posterior(kernel: Tensor, cross: Tensor, own: Tensor, count: Tensor) -> Posterior:
    """Return the posterior of prototypes.

    Args:
        kernel: K (O, O) among observed classes.
        cross: K (T, O) of target classes with observed ones; a target may be observed itself.
        own: K (T,) of each target with itself.
        count: (O,) samples of each observed class.
    """
    a = kernel.clone()
    a.diagonal().add_(1 / count)
    factor = torch.linalg.cholesky(a)
    half = torch.linalg.solve_triangular(factor, cross.T, upper=False)
    weights = torch.linalg.solve_triangular(factor.T, half, upper=True).T
    return Posterior(weights, (own - half.square().sum(0)).clamp(min=0.0))


@dataclass(frozen=True)
class LeftOut:
    """What to expect of classes that have no examples, in percent.

    Attributes:
        zsl: per-class accuracy among classes that are left out.
        harmonic: harmonic mean of the accuracies on left-out and on other classes, all being candidates.
        factor: by how much to lower the scores of the other classes, for the highest harmonic mean.
    """

    zsl: float
    harmonic: float
    factor: float


def left_out(found: Whitened, semantics: Tensor, count: Tensor, kernel: Kernel, classes: int) -> LeftOut:
    """Leave classes out, predict them from their descriptions, and recognise samples that are drawn, not sent.

    Some ``classes`` at random are left out at once, several times over. The prototypes of all are predicted from the
    others' means. Samples of every class are then drawn where all data, the left-out ones' too, say that they lie:
    from the posterior of its prototype and Sigma_0. As scores are linear, scores are drawn in place of samples, so
    that nothing of size d takes part.
    """
    total = len(count)
    classes = max(1, min(classes, total // 2))
    repeats = 20 if total <= 200 else 5 if total <= 500 else 2  # a repeat takes the number of classes cubed
    draws = max(4, min(30, 4000 // total))
    k, everyone = kernel.within(semantics), torch.arange(total)
    full = posterior(k, k, k.diagonal(), count)
    places = torch.eye(total, dtype=k.dtype) - 1 / total  # from means to their distance from m
    hits, gaps, held = [], [], []
    for repeat in range(repeats):
        rng = stream(0, "left-out classes", repeat)
        out = torch.from_numpy(np.sort(rng.choice(total, classes, replace=False)))
        kept = everyone[~torch.isin(everyone, out)]
        inner = posterior(k[kept][:, kept], k[:, kept], k.diagonal(), count[kept])
        # as combinations of all (M - m): the kept classes have a mean of their own
        combined = torch.zeros(total, total, dtype=k.dtype)
        combined[:, kept] = inner.weights + (1 - inner.weights.sum(1, keepdim=True)) / len(kept)
        combined = combined @ places
        centres = full.weights
        if len(found.gram) > total:  # and each class's own prior mean
            combined, centres = (torch.cat([one, torch.eye(total, dtype=k.dtype)], 1) for one in (combined, centres))
        mean = centres @ found.gram @ combined.T - ((combined @ found.gram) * combined).sum(1) / 2
        covariance = combined @ found.spread @ combined.T
        covariance.diagonal().add_(1e-9 * covariance.diagonal().mean() + 1e-300)
        noise = torch.from_numpy(rng.standard_normal((total * draws, total), dtype=np.float32))
        scores = (noise @ torch.linalg.cholesky(covariance).T.float()).view(total, draws, total)
        scores = scores * (1 + full.variance).sqrt().float()[:, None, None] + mean.float()[:, None]
        among_kept, among_out = scores[:, :, kept].max(2), scores[:, :, out].max(2)
        unseen = torch.isin(everyone, out)[:, None]
        answer = torch.where(unseen, out[among_out.indices], kept[among_kept.indices])
        hits.append(answer == everyone[:, None])
        gaps.append(among_kept.values - among_out.values)
        held.append(unseen.expand_as(answer))
    right, gap, unseen = torch.stack(hits), torch.stack(gaps), torch.stack(held)
    zsl = right[unseen].double().mean()
    factor, harmonic = _best_factor(gap[unseen & right], gap[~unseen & right], int(unseen.sum()), int((~unseen).sum()))
    return LeftOut(100 * float(zsl), 100 * harmonic, factor)


def _best_factor(unseen: Tensor, seen: Tensor, all_unseen: int, all_seen: int) -> tuple[float, float]:
    """Return the factor with the highest harmonic mean, and that, from the gaps of what is answered rightly."""
    unseen, seen = unseen.sort().values, seen.sort().values
    both = torch.cat([unseen, seen])
    if not len(both):
        return 0.0, 0.0
    tried = torch.linspace(min(0.0, float(both.min())), float(both.max()), 401)
    u = torch.searchsorted(unseen, tried) / all_unseen
    s = (len(seen) - torch.searchsorted(seen, tried)) / all_seen
    harmonic = torch.where(u + s > 0, 2 * u * s / (u + s).clamp(min=1e-12), torch.zeros(()))
    best = int(harmonic.argmax())
    return float(tried[best]), float(harmonic[best])


class Gaussian(ClosedForm):
    """Gaussian classes with prototypes from a Gaussian process over their descriptions.

    Its model (:meth:`solve`) is, all in float64:

    ============= ======== ===========================================================================
    ``kernel``    (4,)     v, lambda, w and the shrinkage s
    ``centre``    (d,)     m
    ``effect``    (C, d)   A, zero for classes without examples
    ``precision`` (d, d)   Sigma^-1
    ``weight``    (C, d)   Sigma^-1 (mu_c - m)
    ``bias``      (C,)     - (mu_c - m)^T Sigma^-1 (mu_c - m) / 2, less the factor for seen classes
    ``variance``  (C,)     of each prototype, in units of Sigma
    ``count``     (C,)     samples of each class
    ``described`` (C,)     1 where the class has a description, 0 where it is told by examples alone
    ``lowered``   (C,)     1 for the seen classes, which ``factor`` lowers
    ``factor``    ()       see :func:`left_out`
    ``expected``  (2,)     ZSL accuracy and harmonic mean that left-out classes would have, in percent
    ``slope``     ()       a; only with the prior ``semantics``
    ``middle``    (d,)     s; only with the prior ``semantics``
    ============= ======== ===========================================================================
    """

    Settings: ClassVar[type[NamedSettings]] = GaussianSettings
    task = "any-shot"

    def __init__(self, settings: NamedSettings, space: ClassSpace, semantics: Tensor, backbone: Backbone) -> None:
        super().__init__(settings, space, semantics, backbone)
        if self.settings.prior == "semantics" and semantics.shape[1] != self.width:
            raise ExperimentError(
                f"method.prior = 'semantics' expects a class's samples at its description, but descriptions have "
                f"{semantics.shape[1]} numbers and samples {self.width}: take both from one model of images and texts, "
                "such as CLIP, or leave method.prior out"
            )

    def solve(self, sums: Params) -> Params:
        """Return the model of these sums: no seed, no order, no rounds.

        Raises:
            DataError: the sums are of no sample, and no prior says where classes lie.
        """
        s, semantics = self.settings, self.semantics.double().cpu()
        if s.prior == "semantics" and not bool(sums["count"].any()):
            return self._unshown(semantics)
        found = moments(sums)
        own, some = semantics[torch.from_numpy(found.classes)], len(found.classes)
        told: Params = {}
        if s.prior == "semantics":
            told = {"slope": _slope(own, found.means), "middle": own.mean(0)}
        prior = told["slope"] * (own - told["middle"]) if told else None
        unseen = len(self.space.unseen) or some // 5
        best: tuple[Whitened, Kernel, LeftOut] | None = None
        for shrinkage in SHRINKAGES if s.shrinkage is None else (s.shrinkage,):
            white = whitened(found, shrinkage, prior)
            kernel, expected = Kernel(1.0, 0.0, median_distance(own)), LeftOut(0.0, 0.0, 0.0)
            if some > 1:
                kernel, _ = fit_kernel(white, own, found.count, (s.variance, s.nugget, s.width))
                if s.shrinkage is None or s.calibration:
                    expected = left_out(white, own, found.count, kernel, unseen)
            if best is None or expected.zsl > best[2].zsl:
                best = white, kernel, expected
        assert best is not None
        white, kernel, expected = best
        del best
        classes, ids = len(self.space.names), torch.from_numpy(found.classes)
        a = kernel.within(own)
        a.diagonal().add_(1 / found.count)
        effect = torch.zeros(classes, found.means.shape[1], dtype=torch.float64)
        apart = found.means - white.centre if prior is None else found.means - white.centre - prior
        effect[ids] = torch.cholesky_solve(apart, torch.linalg.cholesky(a))
        lowered = torch.zeros(classes, dtype=torch.float64)
        lowered[torch.from_numpy(np.intersect1d(found.classes, self.space.seen))] = 1.0
        model = {
            "kernel": torch.tensor(
                [kernel.variance, kernel.nugget, kernel.width, white.shrinkage], dtype=torch.float64
            ),
            "centre": white.centre,
            "effect": effect,
            "precision": torch.cholesky_inverse(white.factor),
            "count": sums["count"].clone(),
            "described": torch.ones(classes, dtype=torch.float64),
            "lowered": lowered,
            "factor": torch.tensor(expected.factor if s.calibration else 0.0, dtype=torch.float64),
            "expected": torch.tensor([expected.zsl, expected.harmonic], dtype=torch.float64),
        }
        model |= told
        return model | self._linear(model, semantics)

    def units(self, model: Params) -> dict[str, float]:
        """Return the shrinkage: scores are distances in the shrunk Sigma, and many times as large where it is small."""
        return {"shrinkage": float(model["kernel"][3])}

    def _unshown(self, semantics: Tensor) -> Params:
        """Return the model of no sample at all: every class lies at its description, and distance tells them apart."""
        classes, width = semantics.shape
        s, none = self.settings, torch.zeros(classes, dtype=torch.float64)
        variance, nugget, relative = (1.0 if v is None else v for v in (s.variance, s.nugget, s.width))
        model = {
            "kernel": torch.tensor([variance, nugget, relative * median_distance(semantics), 1.0], dtype=torch.float64),
            "centre": torch.zeros(width, dtype=torch.float64),
            "effect": torch.zeros(classes, width, dtype=torch.float64),
            "precision": torch.eye(width, dtype=torch.float64),
            "count": none.clone(),
            "described": torch.ones(classes, dtype=torch.float64),
            "lowered": none.clone(),
            "factor": torch.tensor(0.0, dtype=torch.float64),
            "expected": torch.zeros(2, dtype=torch.float64),
            "slope": torch.tensor(1.0, dtype=torch.float64),
            "middle": torch.zeros(width, dtype=torch.float64),
        }
        return model | self._linear(model, semantics)

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Return (n, C') log-likelihoods of classes but for what all have in common, seen classes less the factor.

        A row of ``semantics`` that is that of the model's class of the same place is that class; any other is a class
        that is told by its description alone.
        """
        weight, bias = params["weight"], params["bias"]
        features = self.backbone(params, inputs).double()
        known = min(len(weight), len(semantics))
        mine = self.semantics.to(semantics)
        same = (semantics[:known] == mine[:known]).all(1) if known <= len(mine) else torch.ones(known, dtype=torch.bool)
        if known < len(semantics) or not bool(same.all()):
            new = torch.ones(len(semantics), dtype=torch.bool, device=semantics.device)
            new[:known] = ~same
            weight = torch.cat([weight[:known], weight.new_zeros(len(semantics) - known, weight.shape[1])])
            bias = torch.cat([bias[:known], bias.new_zeros(len(semantics) - known)])
            weight[new], bias[new] = self.describe(params, semantics[new])
        return torch.addmm(bias[: len(semantics)], features - params["centre"], weight[: len(semantics)].T)

    def graph_scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Return what :meth:`scores` does, with prototypes that the graph makes of any classes' semantics.

        A row that describes one of the model's classes is that class, with all its examples, wherever the row stands;
        where several have the same description, the one of the same place. Any other row is a class that is told by its
        description alone. Rows count as equal within what rounding may leave of their scaling.
        """
        s, known = semantics.double(), self.semantics.double()
        variance, _, width, _ = params["kernel"].unbind()
        distances = (s[:, None] - known[None]).square().sum(2)
        close = distances <= _SAME_ROW * width
        here = close & (torch.arange(s.shape[0])[:, None] == torch.arange(known.shape[0])[None])
        own = (here | (close & ~here.any(1, keepdim=True))).double()
        own = own / own.sum(1, keepdim=True).clamp(min=1.0)
        cross = torch.where(params["described"] > 0, variance * torch.exp(distances / (-2 * width)), 0.0)
        weight, bias = _discriminants(_from_prior(params, cross @ params["effect"], s), params["precision"])
        mine = close.any(1)
        weight = torch.where(mine[:, None], own @ params["weight"], weight)
        bias = torch.where(mine, (own @ params["bias"][:, None])[:, 0], bias)
        features = self.backbone(params, inputs).double()
        return (features - params["centre"]) @ weight.T + bias

    def known_scores(self, params: Params, inputs: Tensor) -> Tensor:
        """Return (n, C) the scores of the model's own classes, those of :meth:`extend` too."""
        return torch.addmm(
            params["bias"], self.backbone(params, inputs).double() - params["centre"], params["weight"].T
        )

    def describe(self, params: Params, semantics: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (T, d) and biases (T,) of classes that have descriptions (T, a) alone."""
        known = self.semantics.to(params["effect"])
        cross = self._kernel(params)(squared_distances(semantics.to(known), known))
        cross = torch.where(params["described"] > 0, cross, 0.0)  # who has no samples has no effect either
        apart = _from_prior(params, cross @ params["effect"], semantics.to(known))
        return _discriminants(apart, params["precision"])

    def extend(
        self,
        params: Params,
        semantics: Tensor,
        count: Tensor,
        total: Tensor,
        described: NDArray[np.bool_] | None = None,
    ) -> Params:
        """Learn classes, or more of classes, at any time: from descriptions, examples, or both.

        Sigma, the kernel and the factor stay; the prototypes of all classes follow anew from all class means.

        Args:
            params: the model of :meth:`solve`, or of an earlier call.
            semantics: (C', a) descriptions of all classes as :attr:`semantics` gives them, the model's own first; rows
                of classes without a description are not read.
            count: (C',) how many examples are added for each class, 0 for most.
            total: (C', d) the sums of their features.
            described: (C',) which classes have a description; None: all.

        Returns:
            The model of C' classes, for a method over these classes.

        Raises:
            DataError: the shapes do not fit, or a number is not finite.

        Example:
            A class that the model has only read about, and of which five examples turn up:

            >>> count = torch.zeros(len(method.semantics)); count[7] = 5.0  # doctest: +SKIP
            >>> model = method.extend(model, method.semantics, count, total)  # doctest: +SKIP
        """
        before, classes = len(params["count"]), len(semantics)
        width = len(params["centre"])
        if classes < before or count.shape != (classes,) or total.shape != (classes, width):
            raise DataError(
                f"{classes} descriptions, {len(count)} counts and sums of shape {tuple(total.shape)} do not fit a "
                f"model of {before} classes with features of {width} numbers"
            )
        if not (bool(torch.isfinite(total).all()) and bool((count >= 0).all())):
            raise DataError("the examples hold numbers that are not finite: leave those out")
        semantics, count, total = semantics.double().cpu(), count.double(), total.double()
        grown = torch.zeros(classes, dtype=torch.float64)
        told = torch.ones(classes) if described is None else torch.from_numpy(np.asarray(described)).double()
        told[:before] = torch.maximum(told[:before], params["described"])
        kernel = self._kernel(params)
        # the class means of before, from what they had effected, under the descriptions of before
        old = torch.nonzero(params["count"] > 0)[:, 0]
        known = self.semantics.double().cpu()[old]
        a = _covariance(kernel, known, params["described"][old])
        a.diagonal().add_(1 / params["count"][old])
        apart = torch.zeros(classes, width, dtype=torch.float64)
        apart[old] = _from_prior(params, a @ params["effect"][old], known, params["described"][old])
        has = grown.clone()
        has[:before] = params["count"]
        samples = has + count
        now = torch.nonzero(samples > 0)[:, 0]
        means = apart * has[:, None] + total - count[:, None] * params["centre"]
        means = means[now] / samples[now][:, None]
        a = _covariance(kernel, semantics[now], told[now])
        a.diagonal().add_(1 / samples[now])
        effect = torch.zeros(classes, width, dtype=torch.float64)
        means = _from_prior(params, means, semantics[now], told[now], sign=-1.0)
        effect[now] = torch.cholesky_solve(means, torch.linalg.cholesky(a))
        lowered = grown.clone()
        lowered[:before] = params["lowered"]
        model = params | {"effect": effect, "count": samples, "described": told.double(), "lowered": lowered}
        return model | self._linear(model, semantics)

    def support(self, params: Params, semantics: Tensor) -> Tensor:
        """Return (C, O) how much each observed class's mean counts in each class's prototype, O in order of ids."""
        return _posterior_of(self._kernel(params), params, semantics.double().cpu()).weights

    @staticmethod
    def _kernel(params: Params) -> Kernel:
        variance, nugget, width, _ = params["kernel"].tolist()
        return Kernel(variance, nugget, width)

    def _linear(self, model: Params, semantics: Tensor) -> Params:
        """Return the weights, biases and variances of all classes, from what their observed ones effect."""
        kernel = self._kernel(model)
        observed = torch.nonzero(model["count"] > 0)[:, 0]
        cross = _covariance(kernel, semantics, model["described"])[:, observed]
        apart = _from_prior(model, cross @ model["effect"][observed], semantics, model["described"])
        weight, bias = _discriminants(apart, model["precision"])
        variance = _posterior_of(kernel, model, semantics).variance
        return {"weight": weight, "bias": bias - model["factor"] * model["lowered"], "variance": variance}


def _slope(semantics: Tensor, means: Tensor) -> Tensor:
    """Return how far class means (O, d) move with their descriptions (O, d), by least squares.

    1 where nothing tells, as with a single class; never below 0: descriptions that point elsewhere say nothing.
    """
    s, m = semantics - semantics.mean(0), means - means.mean(0)
    length = s.square().sum()
    return ((s * m).sum() / length).clamp(min=0.0) if float(length) > 0 else length.new_tensor(1.0)


def _from_prior(
    model: Params, apart: Tensor, semantics: Tensor, described: Tensor | None = None, sign: float = 1.0
) -> Tensor:
    """Return ``apart`` (T, d), prototypes less their prior means, as prototypes less the centre; or back (-1).

    Args:
        model: with ``slope`` and ``middle``, or without: then all prior means are the centre.
        apart: (T, d).
        semantics: (T, a) of these classes.
        described: (T,) who has a description; the prior mean of others is the centre. None: all.
        sign: 1, or -1 for the other way round.
    """
    if "slope" not in model:
        return apart
    prior = sign * model["slope"] * (semantics - model["middle"])
    return apart + (prior if described is None else torch.where(described[:, None] > 0, prior, 0.0))


def _covariance(kernel: Kernel, semantics: Tensor, described: Tensor) -> Tensor:
    """Return K (C, C) among different classes; one without a description has to do with itself alone."""
    both = described[:, None] * described[None]
    both.fill_diagonal_(1.0)
    return kernel.within(torch.where(described[:, None] > 0, semantics, torch.zeros_like(semantics))) * both


def _posterior_of(kernel: Kernel, model: Params, semantics: Tensor) -> Posterior:
    observed = torch.nonzero(model["count"] > 0)[:, 0]
    k = _covariance(kernel, semantics, model["described"])
    return posterior(k[observed][:, observed], k[:, observed], k.diagonal(), model["count"][observed])


def _discriminants(apart: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights (T, d) and biases (T,) from prototypes less the centre (T, d)."""
    weight = apart @ precision
    return weight, (weight * apart).sum(1) / -2
