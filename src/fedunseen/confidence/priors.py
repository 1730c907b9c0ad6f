"""The offset of seen classes that suits the questions that are expected."""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Literal

import numpy as np

from fedunseen.core.errors import ArgumentError
from fedunseen.data import ClassSpace
from fedunseen.metrics import Answers, accuracies, best_offset, unseen_and_seen

Prior = Literal["auto", "balanced", "uniform"] | float | Mapping[str, float]

PRIORS: tuple[Literal["balanced", "auto", "uniform"], ...] = ("balanced", "auto", "uniform")

_KEPT = 0.5  # of balanced's accuracy on unseen classes, by ``auto``
_CANDIDATES = 400  # offsets that are tried
_LEAST_GAIN = 0.5  # percentage points that an offset must bring, or there is none


def share_of_unseen(prior: Prior, names: Sequence[str], unseen: Sequence[bool]) -> float:
    """Return the share of questions about unseen classes, from 0 to 1.

    Args:
        prior: ``uniform`` over classes, as ``auto`` has it; ``balanced``: one half; a number: the
            share itself; or class -> how often it is asked for.
        names: (C,) all classes.
        unseen: (C,) bool.

    Raises:
        ArgumentError: a number is not between 0 and 1, or a mapping lacks a class, has an unknown
            one, or a frequency that is negative or not finite.
    """
    if prior == "balanced":
        return 0.5
    if prior in ("auto", "uniform"):
        return float(np.mean(unseen))
    if isinstance(prior, Mapping):
        odd = set(prior) ^ set(names)
        if odd:
            raise ArgumentError(
                f"prior: {min(odd, key=str)!r} is in the classes or in the prior alone: give each "
                "of the classes its frequency"
            )
        parts = np.array([prior[name] for name in names], dtype=np.float64)
        if not np.isfinite(parts).all() or (parts < 0).any() or parts.sum() == 0:
            raise ArgumentError(
                "prior: frequencies must be finite, not negative, and not all 0: give how often "
                "each class is asked for"
            )
        return float(parts[np.asarray(unseen)].sum() / parts.sum())
    if not isinstance(prior, Real) or isinstance(prior, bool) or not 0 <= prior <= 1:
        raise ArgumentError(
            f"prior = {prior!r}: give 'auto', 'balanced', 'uniform', the share of questions about "
            "unseen classes from 0 to 1, or class -> frequency"
        )
    return float(prior)


def asked_unseen(prior: Prior, space: ClassSpace) -> float:
    """Return the share of questions about unseen classes of a class space.

    In a space that is for choosing, validation classes play the unseen ones and those are in no
    split: what is asked about them counts.
    """
    held = np.concatenate([space.seen, space.unseen])
    unseen = np.ones(len(space.names), dtype=bool)
    unseen[held if len(held) < len(space.names) else space.seen] = False
    return share_of_unseen(prior, space.names, unseen.tolist())


def offset_for(folds: Sequence[Answers], prior: Prior, share: float) -> float:
    """Return the offset of seen classes that is best on classes that played unseen ones.

    ``balanced``: the highest harmonic mean of U and S. ``auto``: the most right answers, of the
    offsets that keep at least half of the U that ``balanced`` has. Any other: the most right
    answers. An offset that gains less than half a point over none is 0.

    Args:
        folds: what models without some seen classes answer.
        prior: see :func:`share_of_unseen`.
        share: of questions about unseen classes.
    """
    balanced = best_offset(folds)
    if prior == "balanced":
        gained = [
            accuracies(answers, balanced).gzsl_harmonic - accuracies(answers, 0.0).gzsl_harmonic
            for answers in folds
        ]
        return balanced if np.mean(gained) >= _LEAST_GAIN else 0.0
    gaps = np.unique(np.concatenate([answers.gap for answers in folds]))
    if len(gaps) > _CANDIDATES:
        gaps = np.unique(np.quantile(gaps, np.linspace(0, 1, _CANDIDATES)))
    ends = np.array([0.0, gaps[0] - 1e-6, gaps[-1] + 1e-6])
    tried = np.concatenate([ends, (gaps[1:] + gaps[:-1]) / 2])
    unseen, seen = _curve(folds, tried)
    right = share * unseen + (1 - share) * seen
    if prior == "auto":
        least = _KEPT * float(_curve(folds, np.array([balanced]))[0][0])
        right = np.where(unseen >= least - 1e-9, right, -np.inf)
    if right[0] > right.max() - _LEAST_GAIN:
        return 0.0
    best = np.flatnonzero(right >= right.max() - 1e-9)
    return float(tried[best[np.abs(tried[best] - balanced).argmin()]])


def _curve(folds: Sequence[Answers], offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return U and S (k,) in percent under each offset, in the mean over folds."""
    curves = [unseen_and_seen(answers, offsets) for answers in folds]
    return np.mean([u for u, _ in curves], axis=0), np.mean([s for _, s in curves], axis=0)
