"""A Gaussian process over class descriptions: kernel, evidence, posterior, whitening,
leave-class-out draws.

Pure functions on tensors; :mod:`~.gaussian` says what they are for.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import DataError
from fedunseen.core.parameters import Params
from fedunseen.core.random import stream
from fedunseen.methods.closed_form.statistics import scatter

_ZSL_DRAWS = 50  # of each class that is left out
SAMPLES_ENOUGH = (
    10  # for each feature: samples beyond them change scores of new samples by a tenth at most
)
_AT_ONCE = 2**20  # covariances of classes
# to the highest evidence at most, and by how much a logarithm changes in one at most
_STEPS = 100
_LONGEST = 2.0
_LEAST_SHRINKAGE = 1e-6
_NO_LENGTH = 1e-6  # of a prototype, as a share of the usual length: rounding
TINY = float(torch.finfo(torch.float64).tiny)
EVIDENCE_CLASSES = (
    400  # the evidence of more classes is that of a spread of them: a step takes their number cubed
)

ONE_HOT = 2.0  # squared distance between two classes that are described by themselves alone
MANY = 2000
"""Classes from which on what takes their number cubed is found on a spread of them."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Kernel:
    """The covariance between prototypes, in units of the covariance within classes."""

    variance: float  # v
    nugget: float  # lambda
    width: float  # w, in units of squared distances between semantics

    @staticmethod
    def of(model: Params) -> "Kernel":
        """Return the kernel of a model."""
        return Kernel(*model["kernel"][:3].tolist())

    def packed(self, shrinkage: float) -> Tensor:
        """Return what a model stores: the kernel and its shrinkage, (4,)."""
        return torch.tensor(
            [self.variance, self.nugget, self.width, shrinkage], dtype=torch.float64
        )

    def __call__(self, distances: Tensor, same: Tensor | None = None) -> Tensor:
        """Return K (...) from squared distances (...); ``same`` (...) is true where both are one
        class.
        """
        k = torch.div(distances, -2 * self.width).exp_()
        if k.requires_grad:  # whose gradient needs the exponentials as they are
            return (k if same is None else k + self.nugget * same) * self.variance
        return (k if same is None else k.add_(self.nugget * same)).mul_(self.variance)

    def within(self, semantics: Tensor) -> Tensor:
        """Return K (C, C) among different classes of these semantics (C, a)."""
        k = squared_distances(semantics, semantics).div_(-2 * self.width).exp_()
        k.diagonal().add_(self.nugget)
        return k.mul_(self.variance)


def squared_distances(first: Tensor, second: Tensor) -> Tensor:
    """Return the squared distances (A, B) between rows (A, a) and (B, a), exactly zero between
    equal rows.
    """
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist").square()


def median_distance(semantics: Tensor) -> float:
    """Return the median squared distance between rows (C, a) that differ; 1 if none do."""
    some = semantics if len(semantics) <= MANY else semantics[spread_over(len(semantics))]
    return median_of(squared_distances(some, some))


def spread_over(classes: int) -> Tensor:
    """Return places that stand for many ``classes``: a spread of them."""
    return torch.from_numpy(np.linspace(0, classes - 1, EVIDENCE_CLASSES).round().astype(np.int64))


def median_of(distances: Tensor) -> float:
    """Return the median of symmetric distances (C, C) above zero; 1 if there is none."""
    apart = distances[distances > 0]
    return float(apart.median()) if len(apart) else 1.0


@dataclass(frozen=True, eq=False)
class Moments:
    """What the sums say of the classes that have samples."""

    classes: NDArray[np.int64]  # (O,) their ids
    count: Tensor  # (O,) their numbers of samples
    means: Tensor  # (O, d)
    covariance: (
        Tensor  # (d, d) within classes, Sigma_0: unbiased, of low rank where there are few samples
    )
    # samples less classes, from which Sigma_0 follows; infinite where it does not follow from samples
    freedom: float


def moments(sums: Params) -> Moments:
    """Return the moments of classes from sums."""
    observed = sums["count"] > 0
    count = sums["count"][observed]
    total = sums["total"][observed]
    if not len(count):
        raise DataError("the sums are of no sample at all: at least one party needs samples")
    freedom = max(1.0, float(count.sum()) - len(count))
    covariance = scatter(sums) / freedom
    level = float(covariance.diagonal().mean())
    means = total / count[:, None]
    # what rounding leaves of numbers as large as these is not a variance
    if not level > 1e-12 * float(means.square().mean()):
        apart = float((means - means.mean(0)).square().mean())
        covariance = torch.eye(total.shape[1], dtype=torch.float64) * (apart if apart > 0 else 1.0)
        freedom = np.inf
    return Moments(torch.nonzero(observed)[:, 0].numpy(), count, means, covariance, freedom)


def some_of(found: Moments, places: Tensor) -> Moments:
    """Return the moments of some classes, with the covariance of all."""
    return replace(
        found,
        classes=found.classes[places.numpy()],
        count=found.count[places],
        means=found.means[places],
    )


@dataclass(frozen=True, eq=False)
class Whitened:
    """Class means under one shrinkage, in the only form that evidence and draws need: inner
    products.
    """

    shrinkage: float  # s
    factor: Tensor  # (d, d) lower Cholesky factor of the shrunk Sigma
    logdet: float  # of Sigma
    # (O, O) (M - m) Sigma^-1 (M - m)^T; (2 O, 2 O) of M - m - P and P where classes have prior means P
    gram: Tensor
    spread: (
        Tensor  # likewise (M - m) Sigma^-1 Sigma_0 Sigma^-1 (M - m)^T: how far samples lie apart
    )
    width: int  # d


def approximating_shrinkage(found: Moments) -> float:
    """Return the shrinkage of a covariance by oracle approximation (Chen et al. 2010, equation 23),
    as ``sklearn.covariance.OAS`` has it; above 0.
    """
    covariance = found.covariance
    width = len(covariance)
    level = float(covariance.diagonal().mean()) ** 2
    mean_square = float(covariance.square().mean())
    least = (found.freedom + 1) * (mean_square - level / width)
    shrinkage = (mean_square + level) / least if least > 0 else 1.0
    return min(1.0, max(_LEAST_SHRINKAGE, shrinkage))


def shrunk_factor(covariance: Tensor, shrinkage: float) -> Tensor:
    """Return the lower Cholesky factor (d, d) of Sigma: d^3 / 3 multiplications."""
    shrunk = covariance * (1 - shrinkage)
    shrunk.diagonal().add_(shrinkage * float(covariance.diagonal().mean()))
    factor: Tensor = torch.linalg.cholesky(shrunk)
    return factor


def whitened(moments: Moments, shrinkage: float, prior: Tensor | None = None) -> Whitened:
    """Shrink Sigma_0 and take the class means' inner products under it: one factorization."""
    covariance = moments.covariance
    width = len(moments.covariance)
    level = float(covariance.diagonal().mean())
    factor = shrunk_factor(covariance, shrinkage)
    apart = moments.means - moments.means.mean(0)
    if prior is not None:
        apart = torch.cat([apart - prior, prior])
    half = torch.linalg.solve_triangular(factor, apart.T, upper=False)  # (d, O)
    gram = half.T @ half
    weights = torch.linalg.solve_triangular(factor.T, half, upper=True)  # Sigma^-1 (M - m)^T
    # Sigma_0 = (Sigma - s level I) / (1 - s): no product with it needed, unless it has no part in
    # Sigma
    if shrinkage < 1:
        spread = (gram - shrinkage * level * (weights.T @ weights)) / (1 - shrinkage)
    else:
        spread = weights.T @ covariance @ weights
    logdet = 2 * float(factor.diagonal().log().sum())
    return Whitened(shrinkage, factor, logdet, (gram + gram.T) / 2, (spread + spread.T) / 2, width)


def with_new_samples(white: Whitened, moments: Moments) -> Whitened:
    """Return ``white`` with the ``spread`` of samples that Sigma_0 was not computed from.

    Sigma fits the samples that it follows from: along Sigma^-1 (M - m), others lie farther apart. A
    sample of leverage h that leaves Sigma scores 1 / (1 - h) as high. The mean leverage is (1 - s)
    tr(Sigma^-1 Sigma_0) / (n - C).
    """
    s = white.shrinkage
    width = white.width
    if moments.freedom >= SAMPLES_ENOUGH * width or s == 1:
        return white
    level = float(moments.covariance.diagonal().mean())
    trace = float(torch.cholesky_inverse(white.factor).diagonal().sum())  # of Sigma^-1
    leverage = (width - s * level * trace) / moments.freedom
    return replace(white, spread=white.spread / max(1 - leverage, 1e-3) ** 2)


def evidence(
    kernel: Kernel, gram: Tensor, distances: Tensor, count: Tensor, width: int, logdet: float = 0.0
) -> tuple[float, Floats, Floats]:
    """Return how likely class means are, its gradient by the logarithms of variance, nugget and
    width, and its Hessian.

    With A = K + diag(1 / n) and Z = (M - m) Sigma^-1/2, whose rows' inner products are ``gram``, it
    is

        - d / 2 log |2 pi A| - tr(A^-1 Z Z^T) / 2 - C / 2 log |Sigma|,

    the last term being the Jacobian of whitening, without which likelihoods under different Sigma
    cannot be compared.
    """
    smooth = kernel.variance * torch.exp(distances / (-2 * kernel.width))
    near = distances / (2 * kernel.width)
    nugget = torch.eye(len(smooth), dtype=smooth.dtype) * (kernel.variance * kernel.nugget)
    parts = torch.stack([smooth + nugget, nugget, smooth * near])  # derivatives of A
    factor = torch.linalg.cholesky(parts[0] + torch.diag(1 / count))
    inverse = torch.cholesky_inverse(factor)
    fitted = inverse @ gram @ inverse
    value = -width * float(factor.diagonal().log().sum()) - float((inverse * gram).sum()) / 2
    value -= len(gram) * (width * float(np.log(2 * np.pi)) + logdet) / 2
    slope = (fitted - width * inverse) / 2  # of the value by A
    gradient = (parts * slope).sum((1, 2)).numpy()
    _, by_nugget, by_width = gradient
    by_widths = float((parts[2] * (near - 1) * slope).sum())
    hessian = np.array([gradient, [by_nugget, by_nugget, 0.0], [by_width, 0.0, by_widths]])
    products = (parts @ inverse).flatten(1)
    hessian += (products @ (parts @ (width / 2 * inverse - fitted)).mT.flatten(1).T).numpy()
    return value, gradient, hessian


def fit_kernel(
    white: Whitened,
    semantics: Tensor,
    count: Tensor,
    fixed: tuple[float | None, float | None, float | None],
    near: Kernel | None = None,
) -> Kernel:
    """Return the kernel with the greatest evidence, looked for from the kernel ``near``; fixed
    settings stay.
    """
    median = median_distance(semantics)
    some = np.unique(
        np.linspace(0, len(count) - 1, min(len(count), EVIDENCE_CLASSES)).round().astype(np.int64)
    )
    at = torch.from_numpy(some)
    gram = white.gram[at][:, at]
    distances = squared_distances(semantics[at], semantics[at])
    free = [i for i, value in enumerate(fixed) if value is None]
    # class means are apart by v and 1 / n: where v begins, so that the scale of features and
    # semantics has no effect
    begin = max(float(gram.diagonal().mean()) / white.width, 1e-6)
    start = (
        (begin, np.exp(-3.0), np.exp(-1.5))
        if near is None
        else (near.variance, near.nugget, near.width / median)
    )
    logs = np.log(
        [
            max(fixed_value if fixed_value is not None else start_value, 1e-300)
            for fixed_value, start_value in zip(fixed, start, strict=True)
        ]
    )

    def kernel(x: Floats) -> Kernel:
        log_values = logs.copy()
        log_values[free] = x
        v, nugget, width = np.exp(log_values).tolist()
        return Kernel(v, nugget if fixed[1] != 0 else 0.0, width * median)

    def value(x: Floats) -> tuple[float, Floats, Floats]:
        value, slope, curvature = evidence(
            kernel(x), gram, distances, count[at], white.width, white.logdet
        )
        return value, slope[free], curvature[np.ix_(free, free)]

    low, high = np.array([(-20.0, 12.0), (-12.0, 3.0), (-4.0, 3.0)])[free].T
    return kernel(_highest(value, logs[free], low, high) if free else logs[free])


def _highest(
    value: Callable[[Floats], tuple[float, Floats, Floats]], x: Floats, low: Floats, high: Floats
) -> Floats:
    """Return the place of the highest value, by Newton's method: steps lead uphill and are
    shortened until they do.

    ``value`` returns the value at a place (n,), its gradient (n,) and its Hessian (n, n).
    """
    x = x.clip(low, high)
    share = 1.0
    height, slope, curvature = value(x)
    for _ in range(_STEPS):
        free = np.ones(len(x), dtype=bool)
        out = np.ones(len(x), dtype=bool)
        while out.any():  # leave out what steps lead beyond its bounds
            step, (curves, axes) = np.zeros(len(x)), np.linalg.eigh(curvature[np.ix_(free, free)])
            curves = np.abs(
                curves
            )  # where the value is not concave, the gradient's direction still leads uphill
            step[free] = axes @ (
                slope[free] @ axes / curves.clip(1e-6 * curves.max(initial=0.0) + 1e-300)
            )
            out = ((x <= low) & (step < 0)) | ((x >= high) & (step > 0))
            free &= ~out
        nothing = 1e-6 + 1e-12 * abs(height)
        if slope @ step < nothing:
            return (x + step).clip(low, high)
        tried = (x + step * share * min(1.0, _LONGEST / np.abs(step).max())).clip(low, high)
        result = value(tried)
        gain = result[0] - height
        share = share / 4
        if gain > 0:
            x, (height, slope, curvature), share = tried, result, min(1.0, 16 * share)
        if 0 < gain < nothing:
            break
    return x


def kernel_alone(lengths: Tensor, count: Tensor, width: int) -> Kernel:
    """Return the kernel with the greatest evidence of classes that have nothing to do with each
    other, from the squared lengths (O,) of their whitened means and their numbers of samples.
    """

    def value(x: Floats) -> tuple[float, Floats, Floats]:
        v = float(np.exp(x[0]))
        spread = v + 1 / count
        share = v / spread
        size = lengths / spread
        height = -(width * spread.log() + size).sum() / 2
        slope = (share * (size - width)).sum() / 2
        bend = slope + (share.square() * (width / 2 - size)).sum()
        return float(height), np.array([float(slope)]), np.array([[float(bend)]])

    begin = np.log([max(float(lengths.mean()) / width, 1e-6)])
    (v,) = np.exp(_highest(value, begin, np.array([-20.0]), np.array([12.0])))
    return Kernel(float(v), 0.0, float(np.exp(-4.0)) * ONE_HOT)


@dataclass(frozen=True, eq=False)
class Alone:
    """Prototypes of classes that are described by themselves alone, less the centre."""

    dual: Tensor  # (O, d)
    prototypes: Tensor  # (O, d)
    variance: Tensor  # (O,)
    others: Tensor  # (d,) the prototype of a class without samples
    variance_of_others: float


def alone(kernel: Kernel, count: Tensor, apart: Tensor) -> Alone:
    """Return the posterior where all classes are as far from each other: their covariance is
    ``shared`` everywhere and ``single`` more on the diagonal, whose inverse is known.
    """
    near = float(np.exp(ONE_HOT / (-2 * kernel.width)))
    shared = kernel.variance * near
    single = kernel.variance * (1 - near + kernel.nugget)
    inverse = 1 / (single + 1 / count)
    level = shared / (1 + shared * float(inverse.sum()))
    scaled = inverse[:, None] * apart
    dual = scaled - level * inverse[:, None] * scaled.sum(0)
    others = shared * dual.sum(0)
    left = shared - shared * level * float(inverse.sum())
    diagonal = inverse - level * inverse.square()
    variance = left + single - 2 * single * level * inverse - single**2 * diagonal
    return Alone(
        dual,
        others + single * dual,
        variance.clamp(min=0.0),
        others,
        max(0.0, left + single),
    )


@dataclass(frozen=True, eq=False)
class Posterior:
    """Prototypes as combinations of observed class means."""

    weights: Tensor  # (..., T, O): mu = m + weights (M - m)
    # (..., T) of each prototype, in units of Sigma: tends to 0 as the sample count grows
    variance: Tensor


def stored_factor(matrix: Tensor) -> Tensor:
    """Return the Cholesky factor of a matrix (d, d) of a stored model, which may be damaged."""
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if bool(failed):
        raise DataError(
            "the model's covariance is not positive definite: restore the model's file, or run the "
            "experiment again"
        )
    return factor


def posterior(kernel: Tensor, cross: Tensor, variance: Tensor, count: Tensor) -> Posterior:
    """Return the posterior of prototypes."""
    a = kernel.clone()
    a.diagonal(dim1=-2, dim2=-1).add_(1 / count)
    factor = torch.linalg.cholesky(a)
    half = torch.linalg.solve_triangular(factor, cross.mT, upper=False)
    weights = torch.linalg.solve_triangular(factor.mT, half, upper=True).mT
    return Posterior(weights, (variance - half.square().sum(-2)).clamp(min=0.0))


@dataclass(frozen=True)
class LeaveClassOut:
    """What to expect of classes that have no examples, in percent."""

    zsl: float  # per-class accuracy among left-out classes
    # harmonic mean of the accuracies on left-out and on other classes, all being candidates
    harmonic: float
    offset: (
        float  # by how much to lower the scores of the other classes, for the highest harmonic mean
    )


def leave_class_out(
    white: Whitened, semantics: Tensor, count: Tensor, kernel: Kernel, classes: int, power: float
) -> LeaveClassOut:
    """Leave classes out, predict them from their descriptions, and recognize samples that are
    drawn, not sent.

    Samples are drawn from the posterior of a class's prototype, given all data, and Sigma_0. As
    scores are linear, scores are drawn in place of samples. ``power``: how far prototypes are
    brought to the same length.
    """
    total = len(count)
    draws = max(4, min(30, 2000 // total))
    everyone = torch.arange(total)
    full = posterior(k := kernel.within(semantics), k, k.diagonal(), count)
    length = _usual_length(white, full.weights, power) if power else None
    hits = []
    gaps = []
    held = []
    for out, rng in _left_out(total, classes):
        kept = everyone[~torch.isin(everyone, out)]
        order = torch.cat([kept, out])  # neighbors are sliced, which copies nothing
        mean, spread = _scores_of(white, k, count, kept, order, full.weights, everyone, length)
        noise = torch.from_numpy(rng.standard_normal((total, draws, total), dtype=np.float32))
        noise *= (1 + full.variance).sqrt().float()[:, None, None]
        scores = torch.baddbmm(mean.float()[:, None], noise, spread.T.float().expand(total, -1, -1))
        among_kept = scores[:, :, : len(kept)].max(2)
        among_out = scores[:, :, len(kept) :].max(2)
        unseen = torch.isin(everyone, out)[:, None]
        answer = torch.where(unseen, out[among_out.indices], kept[among_kept.indices])
        hits.append(answer == everyone[:, None])
        gaps.append(among_kept.values - among_out.values)
        held.append(unseen.expand_as(answer))
    right = torch.stack(hits)
    gap = torch.stack(gaps)
    unseen = torch.stack(held)
    zsl = right[unseen].double().mean()
    offset, harmonic = _best_offset(
        gap[unseen & right], gap[~unseen & right], int(unseen.sum()), int((~unseen).sum())
    )
    return LeaveClassOut(100 * float(zsl), 100 * harmonic, offset)


def zsl_of_left_out(
    white: Whitened, semantics: Tensor, count: Tensor, kernel: Kernel, classes: int, power: float
) -> float:
    """Return the ZSL accuracy of :func:`leave_class_out` alone, in percent: a fraction of its
    time.
    """
    full = posterior(k := kernel.within(semantics), k, k.diagonal(), count)
    total = len(count)
    length = _usual_length(white, full.weights, power) if power else None
    right = []
    parts = (torch.split(each, max(1, _AT_ONCE // total**2)) for each in _zsl_draws(total, classes))
    for out, kept, normal in zip(*parts, strict=True):
        mean, spread = _scores_of(white, k, count, kept, out, full.weights, out, length)
        scores = (normal.flatten(1, 2) @ spread.mT.float()).view_as(normal)
        scores += (mean / (1 + full.variance[out]).sqrt()[..., None]).float()[
            ..., None, :
        ]  # scaled: the same answers
        right.append(scores.max(-1).indices == torch.arange(out.shape[1])[:, None])
    return 100 * float(torch.cat(right).double().mean())


@lru_cache(maxsize=1)
def _zsl_draws(total: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return classes that are left out, those kept, and normal draws: every shrinkage has the
    same.
    """
    drawn = [
        (
            out,
            torch.from_numpy(
                rng.standard_normal((len(out), _ZSL_DRAWS, len(out)), dtype=np.float32)
            ),
        )
        for out, rng in _left_out(total, classes)
    ]
    outs, normals = (torch.stack(each) for each in zip(*drawn, strict=True))
    everyone = torch.arange(total)
    return outs, torch.stack([everyone[~torch.isin(everyone, out)] for out in outs]), normals


def _left_out(total: int, classes: int) -> Iterator[tuple[Tensor, np.random.Generator]]:
    """Yield the classes that are left out, several times over, and where to draw from."""
    classes = max(1, min(classes, total // 2))
    for repeat in range(
        20 if total <= 200 else 5 if total <= 500 else 2
    ):  # a repeat takes total cubed
        rng = stream(0, "left-out classes", repeat)
        yield torch.from_numpy(np.sort(rng.choice(total, classes, replace=False))), rng


def _scores_of(
    white: Whitened,
    k: Tensor,
    count: Tensor,
    kept: Tensor,
    targets: Tensor,
    weights: Tensor,
    drawn: Tensor,
    length: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return how scores of ``targets``, predicted from ``kept`` classes, are distributed for
    samples of ``drawn``.

    Classes are ids (..., n); ``weights`` (C, C) are those of the posterior given all classes.
    Prototypes are stretched towards the ``length``, if there is one.
    """
    cross = k[targets[..., None], kept[..., None, :]]
    inner = posterior(
        k[kept[..., None], kept[..., None, :]], cross, k.diagonal()[targets], count[kept]
    )
    # as combinations of all (M - m): the kept classes have a mean of their own
    values = inner.weights + (1 - inner.weights.sum(-1, keepdim=True)) / kept.shape[-1]
    combined = k.new_zeros(*targets.shape, len(k)).scatter_(
        -1, kept[..., None, :].expand_as(values), values
    )
    centres = weights[drawn]
    if length is not None:  # lengths are from the mean of the kept classes
        middle = k.new_zeros(*kept.shape[:-1], 1, len(k))
        middle.scatter_(-1, kept[..., None, :], 1 / kept.shape[-1])
        combined = combined - middle
        centres = centres - middle
    combined -= combined.mean(-1, keepdim=True)
    if len(white.gram) > len(k):  # and each class's own prior mean
        identity = torch.eye(len(k), dtype=k.dtype)
        combined = torch.cat([combined, identity[targets]], -1)
        centres = torch.cat([centres, identity[drawn]], -1)
    projected = combined @ white.gram
    if length is not None:
        times = stretch((projected * combined).sum(-1), length)[..., None]
        combined = times * combined
        projected = times * projected
    mean = centres @ projected.mT - (projected * combined).sum(-1)[..., None, :] / 2
    covariance = combined @ white.spread @ combined.mT
    diagonal = covariance.diagonal(dim1=-2, dim2=-1)
    diagonal += 1e-9 * diagonal.mean(-1, keepdim=True) + 1e-300
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if (
        failed.any()
    ):  # samples do not vary where classes differ: the spread is rounding, which may be negative
        diagonal += (failed > 0)[..., None] * (1e-9 * white.gram.diagonal().mean())
        factor = torch.linalg.cholesky(covariance)
    return mean, factor


def _usual_length(white: Whitened, weights: Tensor, power: float) -> Tensor:
    """Return :func:`usual_length` of prototypes with the posterior's weights (C, C)."""
    return usual_length(((weights @ white.gram) * weights).sum(1).clamp(min=0.0), power)


def usual_length(squared: Tensor, power: float) -> Tensor:
    """Return (2,) the mean length of prototypes with these squared lengths (C,), and the power."""
    mean = squared.sqrt().mean()
    return torch.stack([mean, mean.new_tensor(power)])


def stretch(squared: Tensor, length: Tensor) -> Tensor:
    """Return what prototypes of these squared lengths are multiplied by to be as long as usual, or
    nearly so; those of next to no length, which have no direction, stay short.
    """
    usual, power = length.unbind()
    shortest = (_NO_LENGTH * usual).square().clamp(min=TINY)
    return (usual / squared.clamp(min=shortest).sqrt()) ** power


def _best_offset(
    unseen: Tensor, seen: Tensor, all_unseen: int, all_seen: int
) -> tuple[float, float]:
    """Return the offset with the highest harmonic mean, and that, from the gaps of what is answered
    rightly.

    Of equal offsets the lowest wins, and none is below 0: classes that a few others predict badly
    may be answered too often, which says nothing of the real unseen ones.
    """
    unseen = unseen.sort().values
    seen = seen.sort().values
    both = torch.cat([unseen, seen])
    if not len(both):
        return 0.0, 0.0
    tried = torch.linspace(0.0, max(0.0, float(both.max())), 401)
    u = torch.searchsorted(unseen, tried) / all_unseen
    s = (len(seen) - torch.searchsorted(seen, tried)) / all_seen
    harmonic = torch.where(u + s > 0, 2 * u * s / (u + s).clamp(min=1e-12), torch.zeros(()))
    best = int(harmonic.argmax())
    return float(tried[best]), float(harmonic[best])
