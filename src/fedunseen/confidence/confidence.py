"""A fitted confidence: what turns scores into probabilities, prediction sets and p-values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import ArgumentError

Floats = NDArray[np.float64]

_LARGEST_ODDS = 15.0  # of the largest probability, in nats
_SMALLEST_ODDS = -10.0
_LARGEST_RATIO = 12.0  # of the two largest probabilities, in nats
_RANGE = 40.0  # of the logarithm of a temperature, on both sides
_STEPS = 60  # at most: as many halve the range to the bits of a double, and Newton's need ten
_CLOSE = 1e-9  # of a step: the next one would be below the last bit
_EQUAL = 1e-12
_COUNTS = ("samples", "classes")
_FLATTEST = 6.0  # of a scale, where scores are to count for less: a power of two
_STEP = 0.125
_LISTS = ("seen_levels", "unseen_levels", "distances", "lengths")
NARROWEST = 0.01  # half of a range of logarithms of lengths: rounding changes lengths, too
SHORTEST = 1e-12  # of features, so that there is a logarithm
_ABOVE_CHANCE = 1.001  # so that the answer stays the answer


class UncalibratedWarning(UserWarning):
    """A model has no calibrated probabilities, and what is not promised then."""


@dataclass(frozen=True, eq=False)
class Confidence:
    """What held-out samples say of a model's answers.

    Attributes:
        scale: what calibrated scores are multiplied by before the softmax.
        scale_unseen: the same where unseen classes alone are candidates.
        coefficients: (6,) of a logistic model of "the answer is right", for :func:`features`.
        seen_levels, unseen_levels: (q,) sorted levels (:meth:`levels`) of the true label, of
            samples of seen and of unseen classes, at evenly spaced shares of their weight.
        distances: (m,) sorted distances of held-out samples of known classes; empty without any.
        samples: how many different samples of seen classes there were.
        classes: how many classes played unseen ones.
        lengths: (2,) between which the logarithm of the length of features lies, before scaling,
            for 99 of 100 held-out samples; empty where it is not known, as in older files.
    """

    scale: float
    scale_unseen: float
    coefficients: Floats
    seen_levels: Floats
    unseen_levels: Floats
    distances: Floats
    samples: int
    classes: int
    lengths: Floats = field(default_factory=lambda: np.empty(0))

    @property
    def only_seen(self) -> bool:
        """Whether no class played an unseen one: the model had none."""
        return not self.classes

    def probabilities(self, scores: Floats, unseen: NDArray[np.bool_]) -> Floats:
        """Return the probability (n, C) of each candidate.

        Of answers with the probability p, a share p is right, over all classes weighing the same. A
        row adds up to 1 and keeps the order of its scores. Where candidates are of one kind, only
        the scale is applied.

        Args:
            scores: (n, C) calibrated scores.
            unseen: (C,) bool, which candidates are unseen classes.
        """
        if scores.shape[1] < 2:
            return np.ones_like(scores, dtype=np.float64)
        if unseen.all() or not (unseen.any() or self.only_seen):
            return np.asarray(
                np.exp(log_softmax(scores, self.scale_unseen if unseen.all() else self.scale))
            )
        logs = log_softmax(scores, self.scale)
        return with_largest(logs, self.right(logs, unseen))

    def right(self, logs: Floats, unseen: NDArray[np.bool_]) -> Floats:
        """Return (n,) how probable it is that the most probable class of ``logs`` (n, C) is right.

        So many held-out samples cannot show that fewer than one answer in two more is wrong.
        """
        # not a product of matrices, whose last bits depend on how many rows there are
        odds = (features(logs, unseen) * self.coefficients).sum(1)
        return np.asarray(np.minimum(1 / (1 + np.exp(-odds)), 1 - 1 / (self.samples + 2)))

    def no_surer(self, stated: float, scores: Floats, unseen: NDArray[np.bool_]) -> Confidence:
        """Return the confidence of a model that unlabelled samples have changed.

        They do not show how often answers are right, so that the changed model states no more of
        them on average than the model before did. Its scores count for less where it would.

        Args:
            stated: what the model before states on average, from 0 to 1.
            scores: (n, C) calibrated scores of the same samples by the changed model.
            unseen: (C,) bool.
        """
        if not len(scores):
            return self
        lowest = np.inf, self
        for scale in self.scale * 2.0 ** -np.arange(0, _FLATTEST + _STEP, _STEP):
            changed = replace(self, scale=float(scale))
            states = float(changed.probabilities(scores, unseen).max(1).mean())
            if states <= stated:
                return self if scale == self.scale else changed
            lowest = min(lowest, (states, changed), key=lambda pair: pair[0])
        return lowest[1]

    def levels(self, scores: Floats) -> Floats:
        """Return (n, C) by what factor each candidate is more probable than by chance, as a
        logarithm.

        Chance is one of the candidates, so that levels of different numbers of candidates compare.
        """
        return np.asarray(log_softmax(scores, self.scale) + np.log(max(1, scores.shape[1])))

    def sets(self, scores: Floats, unseen: NDArray[np.bool_], coverage: float) -> NDArray[np.bool_]:
        """Return (n, C) which candidates cannot be ruled out; the answer always is in its set.

        Seen labels: at least ``coverage`` of new samples of a class have it in their set, in the
        mean over classes (split conformal prediction, classes weighing alike). Unseen labels: the
        same in the mean over draws of a class, if unseen classes are exchangeable with the seen
        ones that played them (hierarchical conformal prediction: Dunn, Wasserman and Ramdas 2022).
        It is not promised for one named class.

        Args:
            scores: (n, C) calibrated scores.
            unseen: (C,) bool.
            coverage: between 0 and 1.

        Raises:
            ArgumentError: the coverage is not between 0 and 1.
        """
        if not isinstance(coverage, Real) or not 0 < coverage < 1:
            raise ArgumentError(
                f"coverage = {coverage} is not between 0 and 1: give for example 0.9, for sets "
                "that hold the right class nine times in ten"
            )
        lowest = np.where(
            unseen,
            _threshold(self.unseen_levels, self.classes, coverage),
            _threshold(self.seen_levels, self.samples, coverage),
        )
        inside = self.levels(scores) >= lowest
        inside[np.arange(len(scores)), scores.argmax(1)] = True
        return np.asarray(inside)

    def farther(self, distance: Floats, lengths: Floats | None) -> Floats:
        """Return distances (n,), larger by as much as features are shorter or longer than those of
        99 of 100 held-out samples.

        Scaling to one length hides that a black picture has hardly any features.

        Args:
            distance: (n,) to the nearest prototype.
            lengths: (n,) of :func:`log_lengths`; None: there are none.
        """
        if lengths is None or not len(self.lengths):
            return distance
        low, high = self.lengths.tolist()
        beyond = np.abs(lengths - (low + high) / 2) / max((high - low) / 2, NARROWEST)
        return np.asarray(distance * np.maximum(1, beyond))

    def lengths_with(self, shown: Sequence[Floats]) -> Floats:
        """Return ``lengths``, widened for classes whose examples have these (:func:`log_lengths`):
        about their mean, as far as those of held-out samples are about theirs.
        """
        if not len(self.lengths):
            return self.lengths
        low, high = self.lengths.tolist()
        means = [float(values.mean()) for values in shown if len(values)]
        half = (high - low) / 2
        return np.array(
            [min([low, *(m - half for m in means)]), max([high, *(m + half for m in means)])]
        )

    def unfamiliar(self, distance: Floats) -> Floats:
        """Return (n,) conformal p-values: the share of known samples that are at least as far from
        every class.

        Of samples of known classes, a share of at most alpha has a p-value of at most alpha. It
        finds things of another kind, not an unlisted class of the same kind.
        """
        nearer = np.searchsorted(self.distances, distance, side="left")
        return np.asarray((1 + len(self.distances) - nearer) / (1 + len(self.distances)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all of it as arrays, for a file."""
        return {part.name: np.asarray(getattr(self, part.name)) for part in fields(self)}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Confidence:
        """Return what :meth:`arrays` has written.

        Raises:
            KeyError: a part is missing.
            ValueError: a number is not finite or negative, a list is not sorted, or a part has
                another shape.
        """
        values: dict[str, Any] = {}
        arrays = {"lengths": np.empty(0), **arrays}
        for part in fields(cls):
            value = np.asarray(arrays[part.name])
            listed = part.name in _LISTS
            wanted = (6,) if part.name == "coefficients" else ()
            if value.dtype.kind not in "fiu" or not (
                value.ndim == 1 if listed else value.shape == wanted
            ):
                raise ValueError(f"{part.name} of its confidence has the shape {value.shape}")
            kept = value.item() if not value.ndim else value.astype(np.float64)
            if not np.isfinite(kept).all():
                raise ValueError(f"{part.name} of its confidence is not finite")
            # a fit finds scales above 0, and counts of 0 or more
            positive = (
                value > 0 or (part.name in _COUNTS and value == 0) if not value.ndim else True
            )
            if not positive or (listed and bool((value[1:] < value[:-1]).any())):
                raise ValueError(f"{part.name} of its confidence is negative or not sorted")
            values[part.name] = kept
        if len(values["lengths"]) not in (0, 2):
            raise ValueError("lengths of its confidence are not two")
        return cls(**values)


def log_lengths(rows: NDArray[Any]) -> Floats | None:
    """Return the logarithms (n,) of how long vectors (n, d) are; None of maps and images."""
    if rows.ndim != 2:
        return None
    squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    return np.asarray(np.log(np.maximum(np.sqrt(squares), SHORTEST)))


def log_softmax(scores: Floats, scale: float) -> Floats:
    """Return the logarithm (n, C) of the softmax of scaled scores."""
    scaled = scale * (scores - scores.max(1, keepdims=True))
    return np.asarray(scaled - np.log(np.exp(scaled).sum(1, keepdims=True)))


def features(logs: Floats, unseen: NDArray[np.bool_]) -> Floats:
    """Return (n, 6) what tells whether an answer is right.

    They are 1, the log-odds of the largest probability, whether the answer is an unseen class,
    their product, the log-ratio to the second largest, and the entropy.

    Args:
        logs: (n, C) logarithms of probabilities, C being at least 2.
        unseen: (C,) bool.
    """
    rows = np.arange(len(logs))
    answer = logs.argmax(1)
    two = np.partition(logs, -2, axis=1)[:, -2:]
    top = two[:, 1]
    odds = log_odds(top)
    kind = unseen[answer].astype(np.float64)
    ratio = np.clip(top - two[:, 0], 0.0, _LARGEST_RATIO)
    entropy = -(np.exp(logs) * logs).sum(1)
    return np.stack([np.ones(len(rows)), odds, kind, odds * kind, ratio, entropy], axis=1)


def log_odds(logs: Floats) -> Floats:
    """Return bounded log-odds of logarithms of probabilities."""
    rest = np.log(-np.expm1(np.minimum(logs, -_EQUAL)))
    return np.asarray(np.clip(logs - rest, _SMALLEST_ODDS, _LARGEST_ODDS))


def with_largest(logs: Floats, largest: Floats) -> Floats:
    """Return probabilities (n, C) in the order of ``logs`` whose largest is as wished, by one
    temperature a row.

    A wish below 1 / C gives all but the uniform row, and k equal largest ones have at most 1 / k
    each.
    """
    apart = logs - logs.max(1, keepdims=True)
    wished = -np.log(np.maximum(largest, _ABOVE_CHANCE / logs.shape[1]))
    low = np.full(len(logs), np.exp(-_RANGE))  # of the inverse temperature
    high = np.full(len(logs), np.exp(_RANGE))
    inverse = np.ones(len(logs))
    moves = np.ones(len(logs), dtype=bool)  # a row that has arrived stays: rows are independent
    for _ in range(_STEPS):
        odds = np.exp(inverse[:, None] * apart)
        total = odds.sum(1)
        reached = np.log(total)  # -log of the largest probability; falls as it grows
        low = np.where(reached > wished, inverse, low)
        high = np.where(reached > wished, high, inverse)
        with np.errstate(all="ignore"):  # where it is flat or 0, the bracket is halved instead
            slope = (odds * apart).sum(1) / total
            newton = inverse + reached * np.log(wished / reached) / slope
        inside = (low <= newton) & (newton <= high)
        following = np.where(inside, newton, np.sqrt(low * high))
        arrived = np.abs(following - inverse) <= _CLOSE * inverse
        inverse = np.where(moves, following, inverse)
        moves &= ~arrived
        if not moves.any():
            break
    odds = np.exp(inverse[:, None] * apart)
    return np.asarray(odds / odds.sum(1, keepdims=True))


def _threshold(levels: Floats, drawn: int, coverage: float) -> float:
    """Return the level that a share ``coverage`` of true labels reaches, from so many samples or
    classes and a new one, which may be anywhere.
    """
    missed = 1.0 - coverage * (drawn + 1) / max(1, drawn)
    if missed <= 0 or not len(levels):
        return -np.inf
    place = int(np.floor(missed * len(levels)))
    return float(levels[min(place, len(levels) - 1)])
