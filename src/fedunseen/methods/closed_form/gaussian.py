r"""Gaussian classes whose prototypes are a Gaussian process over their descriptions: exact, in one
round.

Samples of class c are N(mu_c, Sigma). Prototypes have the mean m and the covariance K times Sigma,
with

.. math:: K_{cc'} = v\,\bigl(\exp(-\|s_c - s_{c'}\|^2 / 2 w) + \lambda\,[c = c']\bigr), \quad
    \mu = m + K_{\cdot O} A, \quad A = (K_{OO} + \mathrm{diag}(1 / n))^{-1} (M - m),

M and n being the means and numbers of the O classes with samples. Predicting exemplars from
semantics is Changpinyo et al.'s idea (2017); the shared covariance is that of linear discriminant
analysis.

- Sigma is the covariance within classes, shrunk towards the identity: (1 - s) Sigma_0 + s I tr
  Sigma_0 / d.
- v, lambda and w maximize the likelihood of the class means; s and the offset of seen classes are
  best for left-out classes, whose samples are drawn (:func:`~.gaussian_process.leave_class_out`).
- Scores are linear: mu_c^T Sigma^-1 x - mu_c^T Sigma^-1 mu_c / 2.
- With ``equalize`` a prototype less m of length l under Sigma is multiplied by (L / l)^p, L being
  the mean of l over classes with samples. With p = 1 classes compare by cosines: a prototype that
  is predicted is shorter than one that is observed, by how little its description says.
- With the prior ``semantics`` the mean is m + a (s_c - s), a being the slope of least squares and s
  the mean of the observed semantics; without any sample that is the class with the nearest text
  (zero-shot CLIP).
"""

from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import linear

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.parameters import Params
from fedunseen.core.settings import NamedSettings
from fedunseen.methods.closed_form import gaussian_process as gp
from fedunseen.methods.closed_form.base import ClosedForm, ClosedFormSettings, Discriminants
from fedunseen.methods.closed_form.shown import Correction

SHRINKAGES = (0.01, 0.03, 0.1, 0.3, 0.5, 0.7)  # tried where none is given
USUAL = 0.3
AS_GOOD = 2.0
"""With few samples, the shrinkage unless another is so many points better: draws hardly tell them
apart. It is what validation classes of AWA1_LAMPERT and CIFAR100_MBV2 choose from many samples."""
NOISY_WIDTH = 0.2
"""The kernel's width where sums have noise, whose evidence is flat: chosen on validation classes of
AWA1_LAMPERT and CIFAR100_MBV2 at epsilon 1, 2 and 8, among 0.1, 0.2 and 0.4."""

# squared distance of two rows that are the same description, as a part of the kernel's width
_SAME_ROW = 1e-9
_ROWS = 1024  # of a large matrix of covariances at once
_NODES = 24  # of an integral over the way to a description, exact to 1e-9 of a score


class GaussianSettings(ClosedFormSettings):
    """Settings of Gaussian classes. By default the sums themselves say what each should be."""

    shrinkage: float | None = Field(None, gt=0, le=1)
    """How far the covariance within classes is drawn towards a multiple of the identity, s. Unset:
    the best of 0.01, 0.03, 0.1, 0.3, 0.5 and 0.7 for classes that are left out, by draws at the
    server; where classes are described by themselves alone, which says nothing of others, that of
    oracle approximating shrinkage (Chen et al. 2010)."""
    variance: float | None = Field(None, gt=0)
    """How far prototypes of classes lie apart, v, as a multiple of the covariance within classes.
    Unset: evidence.
    """
    nugget: float | None = Field(None, ge=0)
    """How far a class may be from what its description says, lambda, as a share of the variance.
    Unset: evidence.
    """
    width: float | None = Field(None, gt=0)
    """How far descriptions tell of each other: the squared width of the kernel, as a multiple of
    the median squared distance between descriptions. Unset: evidence; 0.2 where sums have noise
    (`privacy.name = "sample-level"`)."""
    prior: Literal["mean", "semantics"] = "mean"
    """Where a class is expected before anything is seen of it: at the mean of all class means, or,
    where images and texts share a space (CLIP's kind), at its own description: `semantics`, which
    then has as many numbers as a sample has features."""
    logit_scale: float = Field(1.0, gt=0)
    """With `prior = "semantics"` and no sample at all: what cosines are multiplied by, 100 in
    CLIP."""
    equalize: float = Field(0.0, ge=0, le=1)
    """How far prototypes are brought to the same length under Sigma, from the mean of all class
    means, p: 0 leaves their own, so that classes compare by distances; with 1 they compare by
    cosines. Not used with `prior = "semantics"`, nor where classes are described by themselves
    alone."""
    calibration: bool = False
    """Lower seen classes by the offset that is best for classes that are left out, by draws at the
    server; what `evaluation.selection` chooses on validation classes is added to it. For runs
    without (`selection = "last"`)."""


class Gaussian(ClosedForm, name="gaussian"):
    """Gaussian classes with prototypes from a Gaussian process over their descriptions.

    Its model (:meth:`solve`) is, all in float64:

    ============= ======== ===========================================================================
    ``kernel``    (4,)     v, lambda, w and the shrinkage s
    ``centre``    (d,)     m
    ``dual_coefficients`` (C, d) A, zero for classes without examples
    ``precision`` (d, d)   Sigma^-1
    ``weight``    (C, d)   Sigma^-1 (mu_c - m)
    ``bias``      (C,)     - (mu_c - m)^T Sigma^-1 (mu_c - m) / 2, less the offset for seen classes
    ``variance``  (C,)     of each prototype, in units of Sigma
    ``count``     (C,)     samples of each class
    ``described`` (C,)     1 where the class has a description, 0 where it has examples alone
    ``seen_mask`` (C,)     1 for the seen classes, which ``offset`` lowers
    ``offset``    ()       see :func:`~.gaussian_process.leave_class_out`
    ``raised``    (C,)     by how much biases of classes shown since training are raised
                           (:mod:`~.shown`); only once there are any
    ``length``    (2,)     L and p; only where lengths change
    ``expected``  (2,)     ZSL accuracy and harmonic mean of left-out classes, in percent; only with
    ``calibration`` ``slope``     ()       a; only with the prior ``semantics``
    ``middle``    (d,)     s; only with the prior ``semantics``
    ============= ======== ===========================================================================
    """

    Settings: ClassVar[type[NamedSettings]] = GaussianSettings
    task = "any-shot"
    adapts: ClassVar[bool | None] = True

    def prepare(self) -> None:
        """Refuse descriptions that cannot be prototypes, where prototypes are expected at them, and
        find out whether they say anything.
        """
        if self.settings.prior == "semantics" and self.semantics.shape[1] != self.width:
            raise ExperimentError(
                "method.prior = 'semantics' expects a class's samples at its description, but "
                f"descriptions have {self.semantics.shape[1]} numbers and samples {self.width}: "
                "take both from one model of images and texts, such as CLIP, or leave method.prior "
                "out"
            )
        rows = self.semantics
        # each class by an attribute of its own
        self.says_nothing = (
            rows.shape[0] == rows.shape[1]
            and bool((rows.diagonal() == 1).all())
            and int((rows != 0).sum()) == len(rows)
        )
        s = self.settings
        self.length_power = 0.0 if s.prior != "mean" or self.says_nothing else s.equalize

    def solve(self, sums: Params) -> Params:
        """Return the model of these sums: no seed, no order, no rounds."""
        s = self.settings
        semantics = self.semantics.double().cpu()
        if s.prior == "semantics" and not bool(sums["count"].any()):
            return self._unshown(semantics)
        moments = gp.moments(sums)
        alone = self._solve_alone(moments, sums) if self.says_nothing else None
        if alone is not None:
            return alone
        all_observed = moments.classes
        if len(all_observed) > gp.MANY:
            moments = gp.some_of(moments, gp.spread_over(len(all_observed)))
        described = semantics[torch.from_numpy(moments.classes)]
        some = len(moments.classes)
        fit = _description_prior(semantics, sums) if s.prior == "semantics" else {}
        prior = fit["slope"] * (described - fit["middle"]) if fit else None
        unseen = len(self.space.unseen) * some // len(all_observed) or some // 5
        width = NOISY_WIDTH if s.width is None and self.release is not None else s.width
        few = moments.freedom < gp.SAMPLES_ENOUGH * self.width
        shrinkages = SHRINKAGES if s.shrinkage is None else (s.shrinkage,)
        if s.shrinkage is None and self.says_nothing and self.release is None:
            shrinkages = (gp.approximating_shrinkage(moments),)
        best: tuple[gp.Whitened, gp.Kernel, float] | None = None
        for shrinkage in shrinkages:
            white = gp.whitened(moments, shrinkage, prior)
            kernel = gp.Kernel(1.0, 0.0, 1.0)
            zsl = 0.0
            if some > 1:
                kernel = gp.fit_kernel(
                    white, described, moments.count, (s.variance, s.nugget, width), best and best[1]
                )
                if len(shrinkages) > 1:
                    white = gp.with_new_samples(white, moments)
                    zsl = gp.zsl_of_left_out(
                        white, described, moments.count, kernel, unseen, self.length_power
                    )
                    zsl += AS_GOOD if few and shrinkage == USUAL else 0.0
            if best is None or zsl > best[2]:
                best = white, kernel, zsl
        assert best is not None
        white, kernel, _ = best
        del best
        expected = gp.LeaveClassOut(0.0, 0.0, 0.0)
        if some > 1 and s.calibration:
            white = gp.with_new_samples(white, moments) if len(shrinkages) == 1 else white
            expected = gp.leave_class_out(
                white, described, moments.count, kernel, unseen, self.length_power
            )
        model = self._unscored(kernel.packed(white.shrinkage), white.factor, all_observed)
        if s.calibration:
            model["offset"] = torch.tensor(expected.offset, dtype=torch.float64)
            model["expected"] = torch.tensor([expected.zsl, expected.harmonic], dtype=torch.float64)
        prototypes, factor = _prototypes(kernel, semantics, sums, fit)
        model |= prototypes
        if self.length_power:
            model["length"] = self._usual_length(model, semantics)
        return model | self._linear(model, semantics, factor)

    def _usual_length(self, model: Params, semantics: Tensor) -> Tensor:
        """Return the ``length`` of a model without one, where lengths change."""
        apart = self.prototypes(model, semantics)[model["count"] > 0]
        return gp.usual_length(_squared(apart, model["precision"]), self.length_power)

    def _unscored(self, kernel: Tensor, factor: Tensor, observed: NDArray[np.int64]) -> Params:
        """Return what a model has beside its classes' prototypes, with no offset."""
        classes = len(self.space.names)
        seen_mask = torch.zeros(classes, dtype=torch.float64)
        seen_mask[torch.from_numpy(np.intersect1d(observed, self.space.seen))] = 1.0
        return {
            "kernel": kernel,
            "precision": torch.cholesky_inverse(factor),
            "described": torch.ones(classes, dtype=torch.float64),
            "seen_mask": seen_mask,
            "offset": torch.tensor(0.0, dtype=torch.float64),
        }

    def _solve_alone(self, found: gp.Moments, sums: Params) -> Params | None:
        """Return the model where descriptions say nothing, in time linear in classes; None where
        settings ask for more.
        """
        s = self.settings
        given = (s.variance, s.nugget, s.width)
        plain = self.release is None and s.prior == "mean"
        if (
            not plain
            or s.calibration
            or len(found.classes) < 2
            or len({value is None for value in given}) > 1
        ):
            return None
        shrinkage = s.shrinkage or gp.approximating_shrinkage(found)
        factor = gp.shrunk_factor(found.covariance, shrinkage)
        centre = found.means.mean(0)
        apart = found.means - centre
        lengths = torch.linalg.solve_triangular(factor, apart.T, upper=False).square().sum(0)
        if s.width is None:
            kernel = gp.kernel_alone(lengths, found.count, len(centre))
        else:
            kernel = gp.Kernel(s.variance, s.nugget, s.width * gp.ONE_HOT)
        alone = gp.alone(kernel, found.count, apart)
        places = torch.from_numpy(found.classes)
        shape = sums["total"].shape
        dual = torch.zeros(shape, dtype=torch.float64)
        prototypes = alone.others.expand(shape).clone()
        variance = torch.full(shape[:1], alone.variance_of_others, dtype=torch.float64)
        dual[places] = alone.dual
        prototypes[places] = alone.prototypes
        variance[places] = alone.variance
        model = self._unscored(kernel.packed(shrinkage), factor, found.classes)
        weight, bias = discriminants_of(prototypes, model["precision"])
        return model | {
            "centre": centre,
            "dual_coefficients": dual,
            "count": sums["count"].clone(),
            "weight": weight,
            "bias": bias,
            "variance": variance,
        }

    def left_out_scores(self, model: Params, sums: Params, inputs: Tensor, out: Tensor) -> Tensor:
        """Return scores of classes that ``sums`` lack, or have a few examples of.

        Without classes Sigma changes by a factor alone, which changes no answer; examples change
        it.
        """
        precision = model["precision"]
        if bool(sums["count"][out].any()):
            precision = torch.cholesky_inverse(
                gp.shrunk_factor(gp.moments(sums).covariance, self.settings.shrinkage)
            )
        centre, weight, bias = self._prototypes_of(sums, out, precision)
        return torch.addmm(bias, inputs.double() - centre, weight.T)

    def answers_of_sums(
        self, sums: Params, inputs: Tensor, among: Tensor, measured: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Return scores (n, A) and distances (m,), with given settings from one factorization of
        Sigma without its inverse. Distances are in single precision, which no offset depends on.
        """
        s = self.settings
        given = (s.shrinkage, s.variance, s.nugget, s.width)
        if self.says_nothing or s.calibration or None in given:
            return super().answers_of_sums(sums, inputs, among, measured)
        semantics = self.semantics.double().cpu()
        moments = gp.moments(sums)
        factor = gp.shrunk_factor(moments.covariance, s.shrinkage)
        fit = _description_prior(semantics, sums) if s.prior == "semantics" else {}
        median = gp.median_distance(semantics[torch.from_numpy(moments.classes)])
        kernel = gp.Kernel(s.variance, s.nugget, s.width * median)
        model, _ = _prototypes(kernel, semantics, sums, fit)
        model["kernel"] = kernel.packed(s.shrinkage)
        model["described"] = torch.ones(len(semantics), dtype=torch.float64)
        apart = self.prototypes(model, semantics)
        half = torch.linalg.solve_triangular(factor, apart.T, upper=False)
        if self.length_power:
            squared = half.square().sum(0)
            usual = gp.usual_length(squared[torch.from_numpy(moments.classes)], self.length_power)
            times = gp.stretch(squared, usual)
            half *= times
            apart = apart * times[:, None]
        weight = torch.linalg.solve_triangular(factor.T, half, upper=True)  # (d, C)
        bias = half.square().sum(0) / -2
        shifted = bias - model["centre"] @ weight
        scores = torch.cat(
            [
                torch.addmm(shifted[among], part.double(), weight[:, among])
                for part in torch.split(inputs, _ROWS)
            ]
        )
        features = inputs[measured] - model["centre"]
        nearest = torch.addmm(bias.float(), features.float(), weight.float()).argmax(1)
        ways = (features - apart[nearest]).float()
        lengths = torch.linalg.solve_triangular(factor.float(), ways.T, upper=False)
        return scores, lengths.square_().sum(0)

    def distances(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor | None:
        """Return (n,) squared distances to the nearest prototype under Sigma."""
        apart = self.backbone(params, inputs).double() - params["centre"]
        scores = self.scores(params, inputs, semantics)
        seen_mask = params["seen_mask"]
        # what makes scores comparable is not a distance
        lowered = params["offset"] * seen_mask - params.get("raised", 0.0)
        known = min(scores.shape[1], len(lowered))
        scores[:, :known] += lowered[:known]
        return ((apart @ params["precision"]) * apart).sum(1) - 2 * scores.amax(1)

    def _prototypes_of(
        self, sums: Params, classes: Tensor, precision: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the centre, weights (T, d) and biases (T,) of classes, with given settings."""
        s = self.settings
        semantics = self.semantics.double().cpu()
        fit = _description_prior(semantics, sums) if s.prior == "semantics" else {}
        observed = torch.nonzero(sums["count"] > 0)[:, 0]
        distances = gp.squared_distances(semantics, semantics[observed])
        kernel = gp.Kernel(s.variance, s.nugget, s.width * gp.median_of(distances[observed]))
        k = kernel(distances, torch.arange(len(semantics))[:, None] == observed)
        centre, dual, _ = _dual(
            k[observed], semantics[observed], sums["count"][observed], sums["total"][observed], fit
        )
        apart = from_prior(fit, k[classes] @ dual, semantics[classes])
        length = None
        if self.length_power:
            length = gp.usual_length(_squared(k[observed] @ dual, precision), self.length_power)
        return centre, *discriminants_of(apart, precision, length)

    def units(self, model: Params) -> dict[str, float]:
        """Return the shrinkage: scores are distances in the shrunk Sigma, and many times as large
        where it is small.
        """
        return {"shrinkage": float(model["kernel"][3])}

    def own_offset(self, model: Params) -> float:
        """Return the offset from classes left out of the sums."""
        return float(model["offset"]) if "offset" in model else 0.0

    def quick(self, model: Params) -> "Gaussian":
        """Return the method with the model's kernel and shrinkage."""
        variance, nugget, width, shrinkage = model["kernel"].tolist()
        median = gp.ONE_HOT
        if not self.says_nothing:
            median = gp.median_distance(self.semantics.double().cpu()[model["count"] > 0])
        fitted = {
            "variance": variance,
            "nugget": nugget,
            "width": width / median,
            "shrinkage": shrinkage,
        }
        settings = self.settings.model_copy(update={**fitted, "calibration": False})
        return Gaussian(settings, self.space, self.semantics, self.backbone)

    def _unshown(self, semantics: Tensor) -> Params:
        """Return the model of no sample at all: every class lies at its description, and the
        nearest wins.
        """
        classes, width = semantics.shape
        s = self.settings
        none = torch.zeros(classes, dtype=torch.float64)
        variance, nugget, relative = (
            1.0 if v is None else v for v in (s.variance, s.nugget, s.width)
        )
        model = {
            "kernel": gp.Kernel(variance, nugget, relative * gp.median_distance(semantics)).packed(
                1.0
            ),
            "centre": torch.zeros(width, dtype=torch.float64),
            "dual_coefficients": torch.zeros(classes, width, dtype=torch.float64),
            "precision": s.logit_scale * torch.eye(width, dtype=torch.float64),
            "count": none.clone(),
            "described": torch.ones(classes, dtype=torch.float64),
            "seen_mask": none.clone(),
            "offset": torch.tensor(0.0, dtype=torch.float64),
            "slope": torch.tensor(1.0, dtype=torch.float64),
            "middle": torch.zeros(width, dtype=torch.float64),
        }
        return model | self._linear(model, semantics)

    def check_model(self, model: Params) -> None:
        """Raise a DataError where a model lacks a parameter, or has one of another shape or type,
        that explaining, learning or adapting needs.
        """
        classes = len(self.space.names)
        width = self.width
        each = ("bias", "count", "described", "seen_mask", "variance")
        shapes = {
            "kernel": (4,), "centre": (width,), "precision": (width, width), "offset": (),
            "weight": (classes, width), "dual_coefficients": (classes, width), **dict.fromkeys(each, (classes,)),
        }  # fmt: skip
        if "length" in model:
            shapes["length"] = (2,)
        for name, shape in shapes.items():
            if name not in model or model[name].shape != shape:
                fault = (
                    f"has the shape {tuple(model[name].shape)}" if name in model else "is missing"
                )
                raise DataError(
                    f"the model's parameter {name!r} {fault}, where its classes need {shape}: save "
                    "the model again, or run the experiment again"
                )
            if model[name].dtype != torch.float64:
                raise DataError(f"the model's parameter {name!r} is not of the type float64")
        if bool((model["kernel"] < 0).any()):
            raise DataError("the model's parameter 'kernel' is negative")

    def knows(self, params: Params, semantics: Tensor) -> bool:
        """Return whether these are the semantics of the model's own classes."""
        known = len(params["weight"])
        return len(semantics) == known and (
            semantics is self.semantics or known > len(self.semantics)
        )

    def scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Return (n, C') log-likelihoods of classes but for what all have in common, seen classes
        less the offset.
        """
        weight = params["weight"]
        bias = params["bias"]
        features = self.backbone(params, inputs) - params["centre"]  # float64
        if self.knows(params, semantics):
            return linear(features, weight, bias)
        known = min(len(weight), len(semantics))
        mine = self.semantics.to(semantics)
        same = (
            (semantics[:known] == mine[:known]).all(1)
            if known <= len(mine)
            else torch.ones(known, dtype=torch.bool)
        )
        if known < len(semantics) or not bool(same.all()):
            new = torch.ones(len(semantics), dtype=torch.bool, device=semantics.device)
            new[:known] = ~same
            weight = torch.cat(
                [weight[:known], weight.new_zeros(len(semantics) - known, weight.shape[1])]
            )
            bias = torch.cat([bias[:known], bias.new_zeros(len(semantics) - known)])
            weight[new], bias[new] = self.describe(params, semantics[new])
        return linear(features, weight[: len(semantics)], bias[: len(semantics)])

    def scorer(self, params: Params) -> Callable[[NDArray[np.float32]], NDArray[np.float64]]:
        """Return a function from one vector (1, d) to its :meth:`scores` (1, C) for the model's own
        classes.

        It has the same bits in a third of the time. Its next call writes over the scores.
        """
        centre = params["centre"].numpy()
        bias = params["bias"]
        weight = params["weight"].T
        row = bias.new_empty(1, len(centre))
        scores = bias.new_empty(1, len(bias))
        inputs = row.numpy()
        outputs = scores.numpy()

        def score(vector: NDArray[np.float32]) -> NDArray[np.float64]:
            np.subtract(vector, centre, out=inputs)
            torch.addmm(bias, row, weight, out=scores)
            return outputs

        return score

    def graph_scores(self, params: Params, inputs: Tensor, semantics: Tensor) -> Tensor:
        """Return what :meth:`scores` does, with prototypes that the graph makes of any classes'
        semantics.

        A row that describes a class of the model, but for rounding, is that class with all its
        examples.
        """
        s = semantics.double()
        known = self.semantics.double()
        variance, _, width, _ = params["kernel"].unbind()
        distances = (s[:, None] - known[None]).square().sum(2)
        close = distances <= _SAME_ROW * width
        here = close & (torch.arange(s.shape[0])[:, None] == torch.arange(known.shape[0])[None])
        share = (here | (close & ~here.any(1, keepdim=True))).double()
        share = share / share.sum(1, keepdim=True).clamp(min=1.0)
        cross = torch.where(
            params["described"] > 0, variance * torch.exp(distances / (-2 * width)), 0.0
        )
        apart = from_prior(params, cross @ params["dual_coefficients"], s)
        weight, bias = discriminants_of(apart, params["precision"], params.get("length"))
        mine = close.any(1)
        weight = torch.where(mine[:, None], share @ params["weight"], weight)
        bias = torch.where(mine, (share @ params["bias"][:, None])[:, 0], bias)
        features = self.backbone(params, inputs).double()
        return (features - params["centre"]) @ weight.T + bias

    def known_scores(self, params: Params, inputs: Tensor) -> Tensor:
        """Return (n, C) the scores of the model's own classes, those of :meth:`extend` too."""
        return torch.addmm(
            params["bias"],
            self.backbone(params, inputs).double() - params["centre"],
            params["weight"].T,
        )

    def describe(self, params: Params, semantics: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights (T, d) and biases (T,) of classes that have descriptions (T, a) alone."""
        if len(semantics) > gp.MANY:
            parts = [self.describe(params, part) for part in torch.split(semantics, _ROWS)]
            weights, biases = zip(*parts, strict=True)
            return torch.cat(weights), torch.cat(biases)
        known = self.semantics.to(params["dual_coefficients"])
        cross = gp.Kernel.of(params)(gp.squared_distances(semantics.to(known), known))
        cross = torch.where(
            params["described"] > 0, cross, 0.0
        )  # who has no samples has no effect either
        apart = from_prior(params, cross @ params["dual_coefficients"], semantics.to(known))
        return discriminants_of(apart, params["precision"], params.get("length"))

    def extend(
        self,
        params: Params,
        semantics: Tensor,
        count: Tensor,
        total: Tensor,
        described: NDArray[np.bool_] | None = None,
        offset: float | None = None,
    ) -> Params:
        """Learn classes, or more of classes, at any time: from descriptions, examples, or both.

        ``total`` (..., C, d) may hold the sums of several draws of examples, which are learned
        apart. With ``offset``, by which the scores of seen classes are lowered, those of shown
        classes are made comparable with them (:mod:`~.shown`).
        """
        _check_examples(params, semantics, count, total)
        before = len(params["count"])
        classes = len(semantics)
        width = len(params["centre"])
        semantics = semantics.double().cpu()
        count = count.double()
        total = total.double()
        empty = torch.zeros(classes, dtype=torch.float64)
        flags = (
            torch.ones(classes)
            if described is None
            else torch.from_numpy(np.asarray(described)).double()
        )
        flags[:before] = torch.maximum(flags[:before], params["described"])
        kernel = gp.Kernel.of(params)
        apart = torch.zeros(classes, width, dtype=torch.float64)
        apart[:before] = self.class_means(params)
        has = empty.clone()
        has[:before] = params["count"]
        samples = has + count
        now = torch.nonzero(samples > 0)[:, 0]
        means = apart * has[:, None] + total - count[:, None] * params["centre"]
        means = means[..., now, :] / samples[now][:, None]
        a = covariance_with(kernel, semantics[now], flags[now], torch.arange(len(now)))
        a.diagonal().add_(1 / samples[now])
        dual = torch.zeros_like(total)
        means = from_prior(params, means, semantics[now], flags[now], sign=-1.0)
        dual[..., now, :] = torch.cholesky_solve(means, gp.stored_factor(a))
        seen_mask = empty.clone()
        seen_mask[:before] = params["seen_mask"]
        model = params | {
            "dual_coefficients": dual,
            "count": samples,
            "described": flags.double(),
            "seen_mask": seen_mask,
        }
        if "raised" in params or offset is not None:
            model["raised"] = empty.clone()
            model["raised"][:before] = params.get("raised", 0.0)
        model |= self._linear(model, semantics)
        if offset is None:
            return model
        return Correction.of(params, semantics, offset).applied(model, count > 0)

    def class_means(self, params: Params) -> Tensor:
        """Return the means (C, d) of classes with samples less the center, from what they have
        effected under their descriptions; 0 of the other classes.
        """
        old = torch.nonzero(params["count"] > 0)[:, 0]
        described = params["described"][old]
        known = self.semantics.double().cpu()[old]
        a = covariance_with(gp.Kernel.of(params), known, described, torch.arange(len(old)))
        a.diagonal().add_(1 / params["count"][old])
        effects = params["dual_coefficients"]
        means = torch.zeros_like(effects)
        means[old] = from_prior(params, a @ effects[old], known, described)
        return means

    def prototypes(self, model: Params, semantics: Tensor, own_lengths: bool = False) -> Tensor:
        """Return the prototypes (C, d) of the model's classes, whose semantics are (C, a), less the
        centre; with ``own_lengths`` as they are before ``equalize``.
        """
        observed = torch.nonzero(model["count"] > 0)[:, 0]
        described = model["described"]
        if len(semantics) > gp.MANY:
            apart = _apart_of_many(model, semantics, observed)
        else:
            cross = covariance_with(gp.Kernel.of(model), semantics, described, observed)
            apart = cross @ model["dual_coefficients"][..., observed, :]
        apart = from_prior(model, apart, semantics, described)
        if own_lengths or "length" not in model:
            return apart
        times = gp.stretch(_squared(apart, model["precision"]), model["length"])
        return apart * times[..., None]

    def support(self, params: Params, semantics: Tensor) -> Tensor:
        """Return (C, O) how much each observed class's mean counts in each class's prototype, O in
        order of ids.
        """
        return _posterior_of(params, semantics.double().cpu()).weights

    def evidence(
        self, params: Params, inputs: Tensor, semantics: Tensor, classes: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return how much each observed class speaks for a class of each sample: an exact split.

        A prototype is m + sum_o w_o (M_o - m), so its score is a sum over observed classes o. With
        the prior ``semantics`` the description has a part of its own.

        Args:
            params: the model.
            inputs: (n, d) samples.
            semantics: (C, a) of the model's classes.
            classes: (n,) the class that is explained, one for each sample.

        Returns:
            (n, O) parts in order of the observed classes' ids, and (n,) the description's own.
            Together they are the score of the class before any offset.
        """
        known = semantics.double().cpu()
        observed = torch.nonzero(params["count"] > 0)[:, 0]
        kernel = gp.Kernel.of(params)
        a = covariance_with(kernel, known, params["described"], observed)[observed]
        a.diagonal().add_(1 / params["count"][observed])
        means = a @ params["dual_coefficients"][observed]  # less m, and less what was expected
        apart = self.prototypes(params, known, own_lengths=True)
        weights = _posterior_of(params, known).weights
        of_prior = apart - weights @ means
        if "length" in params:
            times = gp.stretch(_squared(apart, params["precision"]), params["length"])[:, None]
            apart, weights, of_prior = (times * rows for rows in (apart, weights, of_prior))
        features = self.backbone(params, inputs).double() - params["centre"]
        direction = (features - apart[classes] / 2) @ params["precision"]
        return weights[classes] * (direction @ means.T), (of_prior[classes] * direction).sum(1)

    def discriminants(
        self, params: Params, inputs: Tensor, semantics: Tensor, classes: Tensor
    ) -> Discriminants:
        """Return the log-likelihoods as linear functions."""
        constant = params["bias"] + params["offset"] * params["seen_mask"]
        constant = constant - params.get("raised", 0.0)
        return Discriminants(params["weight"][classes], params["centre"], constant[classes])

    def attribute_parts(
        self, params: Params, inputs: Tensor, semantics: Tensor, classes: Tensor
    ) -> Tensor:
        """Return what each attribute adds (n, a), compared with the mean of all descriptions.

        A class's score is integrated along the way from a class with that mean to its own
        description (Sundararajan et al. 2017). So parts add up to the difference of these two
        scores. They are 0 of a class with samples, which speak for themselves.
        """
        known = semantics.double().cpu()
        features = self.backbone(params, inputs).double() - params["centre"]
        parts = torch.zeros(len(features), known.shape[1], dtype=torch.float64)
        for c in torch.unique(classes).tolist():
            if params["count"][c] == 0 and params["described"][c] > 0:
                rows = classes == c
                way = known[c] - known[params["described"] > 0].mean(0)
                slope = self._slope_on_way(params, features[rows], known, known[c], way)
                parts[rows] = slope * way
        return parts

    def _slope_on_way(
        self, params: Params, features: Tensor, known: Tensor, end: Tensor, way: Tensor
    ) -> Tensor:
        """Return the mean slopes (n, a) of a new class's score in its description, over ``way``
        (a,), which ends at ``end`` (a,).
        """
        nodes, shares = np.polynomial.legendre.leggauss(_NODES)
        places = end - way * torch.from_numpy((1 - nodes) / 2)[:, None]
        kernel = gp.Kernel.of(params)
        shown = torch.nonzero(params["described"] * params["count"] > 0)[:, 0]
        shown_known = known[shown]
        cross = kernel(gp.squared_distances(places, shown_known))
        prototypes = from_prior(params, cross @ params["dual_coefficients"][shown], places)
        slopes = torch.zeros(len(features), len(end), dtype=torch.float64)
        for place, k, prototype, share in zip(places, cross, prototypes, shares / 2, strict=True):
            apart = (features - prototype) @ params["precision"]
            if "length" in params:
                apart = self._pull_of_lengths(params, features, prototype)
            pull = (apart @ params["dual_coefficients"][shown].T) * k / kernel.width
            slope = pull @ shown_known - pull.sum(1, keepdim=True) * place
            slopes += share * (slope + params["slope"] * apart if "slope" in params else slope)
        return slopes

    @staticmethod
    def _pull_of_lengths(params: Params, features: Tensor, prototype: Tensor) -> Tensor:
        """Return the slopes (n, d) of a score in a prototype (d,), less the centre, whose length
        changes.
        """
        precision = params["precision"]
        turned = prototype @ precision
        squared = turned @ prototype
        times = gp.stretch(squared, params["length"])
        apart = features - times * prototype
        along = params["length"][1] * (apart @ turned) / squared.clamp(min=gp.TINY)
        return times * (apart @ precision - along[:, None] * turned)

    def _linear(self, model: Params, semantics: Tensor, factor: Tensor | None = None) -> Params:
        """Return the weights, biases and variances of all classes, from what their observed ones
        effect.

        ``factor``: (O, O) of their covariance, if it is known.
        """
        apart = self.prototypes(model, semantics, own_lengths=True)
        weight, bias = discriminants_of(apart, model["precision"], model.get("length"))
        if factor is None or len(factor) <= gp.MANY:
            variance = _posterior_of(model, semantics).variance
        else:
            variance = _variance_of_many(model, semantics, factor)
        return {
            "weight": weight,
            "bias": bias - model["offset"] * model["seen_mask"] + model.get("raised", 0.0),
            "variance": variance,
        }


def _check_examples(params: Params, semantics: Tensor, count: Tensor, total: Tensor) -> None:
    """Refuse descriptions (C, a), counts (C,) and sums (..., C, d) that do not fit a model."""
    before = len(params["count"])
    classes = len(semantics)
    width = len(params["centre"])
    if classes < before or count.shape != (classes,) or total.shape[-2:] != (classes, width):
        raise DataError(
            f"{classes} descriptions, {len(count)} counts and sums of shape "
            f"{tuple(total.shape)} do not fit a model of {before} classes with features of "
            f"{width} numbers"
        )
    if not (bool(torch.isfinite(total).all()) and bool((count >= 0).all())):
        raise DataError("the examples hold numbers that are not finite: leave those out")


def _description_prior(semantics: Tensor, sums: Params) -> Params:
    """Return ``slope`` and ``middle``: how far class means move with descriptions (C, d), by least
    squares.
    """
    observed = sums["count"] > 0
    described = semantics[observed]
    means = sums["total"][observed] / sums["count"][observed][:, None]
    s = described - described.mean(0)
    m = means - means.mean(0)
    length = s.square().sum()
    slope = ((s * m).sum() / length).clamp(min=0.0) if float(length) > 0 else length.new_tensor(1.0)
    return {"slope": slope, "middle": described.mean(0)}


def _prototypes(
    kernel: gp.Kernel, semantics: Tensor, sums: Params, fit: Params
) -> tuple[Params, Tensor]:
    """Return ``centre``, ``dual_coefficients`` and ``count`` of a model, with the prior's numbers,
    and the factor (O, O) of the covariance of observed means.
    """
    observed = sums["count"] > 0
    described = semantics[observed]
    count = sums["count"][observed]
    dual = torch.zeros_like(sums["total"])
    centre, dual[observed], factor = _dual(
        kernel.within(described), described, count, sums["total"][observed], fit
    )
    params = {"centre": centre, "dual_coefficients": dual, "count": sums["count"].clone(), **fit}
    return params, factor


def _dual(
    k: Tensor, semantics: Tensor, count: Tensor, total: Tensor, fit: Params
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the centre (d,), dual coefficients (O, d) and the factor (O, O) of classes whose
    prototypes have the covariance ``k``, which is written over.
    """
    means = total / count[:, None]
    centre = means.mean(0)
    k.diagonal().add_(1 / count)
    factor = torch.linalg.cholesky(k)
    dual = torch.cholesky_solve(from_prior(fit, means - centre, semantics, sign=-1.0), factor)
    return centre, dual, factor


def from_prior(
    model: Params,
    apart: Tensor,
    semantics: Tensor,
    described: Tensor | None = None,
    sign: float = 1.0,
) -> Tensor:
    """Return ``apart`` (T, d), prototypes less their prior means, as prototypes less the centre; or
    back (-1).
    """
    if "slope" not in model:
        return apart
    prior = sign * model["slope"] * (semantics - model["middle"])
    return apart + (prior if described is None else torch.where(described[:, None] > 0, prior, 0.0))


def covariance_with(
    kernel: gp.Kernel, semantics: Tensor, described: Tensor, among: Tensor
) -> Tensor:
    """Return K (C, A) of C classes with A of them; one without a description has to do with itself
    alone.
    """
    rows = torch.where(described[:, None] > 0, semantics, torch.zeros_like(semantics))
    same = torch.zeros(len(rows), len(among), dtype=rows.dtype)
    same[among, torch.arange(len(among))] = 1.0
    both = torch.maximum(described[:, None] * described[among], same)
    return kernel(gp.squared_distances(rows, rows[among]), same) * both


def _apart_of_many(model: Params, semantics: Tensor, observed: Tensor) -> Tensor:
    """Return K A (C, d), from a part of the matrix K at a time."""
    kernel = gp.Kernel.of(model)
    described = model["described"]
    dual = model["dual_coefficients"][..., observed, :]
    rows = torch.where(described[:, None] > 0, semantics, 0.0)
    parts = []
    for places in torch.split(torch.arange(len(semantics)), _ROWS):
        k = kernel(gp.squared_distances(rows[places], rows[observed]))
        k *= described[places][:, None] * described[observed]
        here, columns = torch.nonzero(places[:, None] == observed, as_tuple=True)
        k[here, columns] = kernel.variance * (1 + kernel.nugget)
        parts.append(k @ dual)
    return torch.cat(parts, -2)


def _variance_of_many(model: Params, semantics: Tensor, factor: Tensor) -> Tensor:
    """Return (C,) the variance of prototypes: of classes with samples as if these said all of
    them, which is more than the variance is; exact of the others.
    """
    kernel = gp.Kernel.of(model)
    prior = kernel.variance * (1 + kernel.nugget)
    observed = torch.nonzero(model["count"] > 0)[:, 0]
    others = torch.nonzero(model["count"] == 0)[:, 0]
    variance = 1 / (1 / prior + model["count"])
    rows = torch.where(model["described"][:, None] > 0, semantics, 0.0)
    for places in torch.split(others, _ROWS):
        cross = kernel(gp.squared_distances(rows[places], rows[observed]))
        cross *= model["described"][places][:, None] * model["described"][observed]
        half = torch.linalg.solve_triangular(factor, cross.T, upper=False)
        variance[places] = (prior - half.square_().sum(0)).clamp(min=0.0)
    return variance


def _posterior_of(model: Params, semantics: Tensor) -> gp.Posterior:
    kernel = gp.Kernel.of(model)
    observed = torch.nonzero(model["count"] > 0)[:, 0]
    k = covariance_with(kernel, semantics, model["described"], observed)
    diagonal = torch.full((len(k),), kernel.variance * (1 + kernel.nugget), dtype=k.dtype)
    return gp.posterior(k[observed], k, diagonal, model["count"][observed])


def _squared(apart: Tensor, precision: Tensor) -> Tensor:
    """Return the squared lengths (...) of vectors (..., d) under Sigma."""
    return ((apart @ precision) * apart).sum(-1)


def discriminants_of(
    apart: Tensor, precision: Tensor, length: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return weights (..., T, d) and biases (..., T) from prototypes less the centre (..., T, d),
    stretched towards a length if there is one.
    """
    weight = apart @ precision
    squared = (weight * apart).sum(-1)
    if length is None:
        return weight, squared / -2
    times = gp.stretch(squared, length)
    return weight * times[..., None], times.square() * squared / -2
