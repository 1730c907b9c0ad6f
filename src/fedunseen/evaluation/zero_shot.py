"""Zero-shot accuracy as the field measures it: per-class top-1, ZSL and generalised, with calibrated stacking.

ZSL lets the model choose among unseen classes only. Generalised (GZSL) lets it choose among all classes: U and S are
the accuracies on samples of unseen and of seen classes, H their harmonic mean (Xian et al. 2018). Calibrated stacking
(Chao et al. 2016) lowers the scores of seen classes by a factor gamma, in the method's own score units.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.data import ClassSpace

__all__ = ["Answers", "Metrics", "answer", "best_factor", "harmonic_mean", "metrics"]

_CANDIDATES = 2000  # calibration factors tried


@dataclass(frozen=True)
class Metrics:
    """Per-class top-1 accuracies in percent."""

    zsl: float
    gzsl_unseen: float
    gzsl_seen: float
    gzsl_harmonic: float


@dataclass(frozen=True, eq=False)
class Answers:
    """What a model answers on the test samples, enough to know its accuracies under any calibration factor.

    Attributes:
        labels: (n,) true classes.
        best_seen, best_unseen: (n,) the best class among the seen and among the unseen.
        gap: (n,) score of the best seen class less that of the best unseen one; with factor gamma, the answer is the
            seen class where ``gap >= gamma``.
        unseen: (n,) bool, the sample's class is unseen.
        zsl: (n,) the answer among the unseen classes alone: ``best_unseen``, unless the model has scores for that.
    """

    labels: NDArray[np.int64]
    best_seen: NDArray[np.int64]
    best_unseen: NDArray[np.int64]
    gap: NDArray[np.float64]
    unseen: NDArray[np.bool_]
    zsl: NDArray[np.int64]

    def generalised(self, factor: float = 0.0) -> NDArray[np.int64]:
        """Return (n,) the answers among all classes."""
        return np.where(self.gap >= factor, self.best_seen, self.best_unseen)


def answer(
    scores: Iterable[Tensor],
    labels: NDArray[np.int64],
    space: ClassSpace,
    unseen_scores: Iterable[Tensor] | None = None,
) -> Answers:
    """Turn a model's scores of test samples, of seen and of unseen classes, into answers.

    Args:
        scores: (b, C) scores of all classes of the space, for one batch of samples after the other.
        labels: (n,) the samples' classes.
        space: says which classes are seen and unseen.
        unseen_scores: likewise, of a model that chooses among the unseen classes by other scores.
    """
    seen, unseen = torch.from_numpy(space.seen), torch.from_numpy(space.unseen)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for batch in scores:
        high_seen, at_seen = batch[:, seen.to(batch.device)].float().max(1)
        high_unseen, at_unseen = batch[:, unseen.to(batch.device)].float().max(1)
        parts.append((seen[at_seen.cpu()], unseen[at_unseen.cpu()], (high_seen - high_unseen).double().cpu()))
    best_seen, best_unseen, gap = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
    zsl = best_unseen
    if unseen_scores is not None:
        best = [unseen[batch[:, unseen.to(batch.device)].max(1).indices.cpu()] for batch in unseen_scores]
        zsl = torch.cat(best).numpy()
    return Answers(labels, best_seen, best_unseen, gap, np.isin(labels, space.unseen), zsl)


def harmonic_mean(unseen: float, seen: float) -> float:
    """Return 2US / (U + S), and 0 where both are 0.

    Example:
        >>> round(harmonic_mean(82.0, 89.9), 1)
        85.8
    """
    return 2 * unseen * seen / (unseen + seen) if unseen + seen else 0.0


def metrics(answers: Answers, factor: float = 0.0) -> Metrics:
    """Return the accuracies under calibration factor gamma = ``factor`` (0: none)."""
    u, s = answers.unseen, ~answers.unseen
    right = answers.generalised(factor) == answers.labels
    unseen, seen = _per_class(right[u], answers.labels[u]), _per_class(right[s], answers.labels[s])
    zsl = _per_class(answers.zsl[u] == answers.labels[u], answers.labels[u])
    return Metrics(zsl, unseen, seen, harmonic_mean(unseen, seen))


def best_factor(many: Sequence[Answers]) -> float:
    """Return the calibration factor with the highest harmonic mean, averaged over the given models' answers.

    Both accuracies are steps as functions of gamma: U rises where gamma passes the gap of a rightly answered sample of
    an unseen class, S falls likewise. So the gaps themselves are all there is to try, or quantiles of many.
    """
    gaps = np.unique(np.concatenate([answers.gap for answers in many]))
    if len(gaps) > _CANDIDATES:
        gaps = np.unique(np.quantile(gaps, np.linspace(0, 1, _CANDIDATES)))
    # Between two gaps nothing changes: the middle of the interval is the most robust choice.
    candidates = np.concatenate([[gaps[0] - 1e-6], (gaps[1:] + gaps[:-1]) / 2, [gaps[-1] + 1e-6]])
    total = np.zeros(len(candidates))
    for answers in many:
        u, s = answers.unseen, ~answers.unseen
        unseen = _share_below(answers, u, answers.best_unseen, candidates)
        seen = _share_below(answers, s, answers.best_seen, np.array([np.inf])) - _share_below(
            answers, s, answers.best_seen, candidates
        )
        total += np.divide(2 * unseen * seen, unseen + seen, out=np.zeros_like(total), where=unseen + seen > 0)
    best = np.flatnonzero(total >= total.max() - 1e-12)
    # Of a plateau, the factor nearest to none at all.
    return float(candidates[best[np.abs(candidates[best]).argmin()]])


def _share_below(
    answers: Answers, group: NDArray[np.bool_], answered: NDArray[np.int64], factors: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return per-class accuracy of ``answered`` within ``group`` counting only samples with gap < factor."""
    labels, right = answers.labels[group], (answered == answers.labels)[group]
    _, position, counts = np.unique(labels, return_inverse=True, return_counts=True)
    weight = 1.0 / counts[position] / len(counts)
    gap = answers.gap[group][right]
    order = np.argsort(gap)
    cumulative = np.concatenate([[0.0], np.cumsum(weight[right][order])])
    return cumulative[np.searchsorted(gap[order], factors, side="left")]


def _per_class(right: NDArray[np.bool_], labels: NDArray[np.int64]) -> float:
    """Return the mean over classes of the share of right answers, in percent."""
    _, position, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return float(100 * (np.bincount(position, right) / counts).mean())
