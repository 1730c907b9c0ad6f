"""How a confidence holds on test samples: what a report shows of it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.confidence.confidence import Confidence
from fedunseen.confidence.held_out import HeldOut, class_weights
from fedunseen.metrics import accuracies

BINS = 10
COVERAGE = 0.9
ALARM = 0.01
HIGH = 0.9  # a probability that is taken for sure
_POINTS = 20  # of a curve

Floats = NDArray[np.float64]


def measured(
    tests: HeldOut,
    confidence: Confidence,
    offset: float,
    of_unseen: NDArray[np.bool_] | None = None,
) -> dict[str, Any]:
    """Return how stated probabilities, sets and alarms hold on test samples, in percent.

    Args:
        tests: scores of test samples by the final model.
        confidence: fitted without them.
        offset: what the scores of seen classes are lowered by.
        of_unseen: (n,) bool, samples of classes that no party trained on, where the model takes
            some of these for seen ones, since it was shown examples; None: where it takes none.

    Returns:
        Numbers for ``result.json``: ``ece`` (expected calibration error), ``stated`` and ``right``
        (means), ``high`` (of answers above 90 %), ``reliability`` and ``risk_coverage`` by kind,
        ``sets``, ``unfamiliar``, and ``trade``: U and S by offset.
    """
    scores = tests.calibrated(offset)
    probabilities = confidence.probabilities(scores, tests.unseen)
    stated = probabilities.max(1)
    right = probabilities.argmax(1) == tests.labels
    of_unseen = tests.asks_unseen if of_unseen is None else of_unseen
    kinds = {"seen": ~of_unseen, "unseen": of_unseen}
    kinds = {kind: mine for kind, mine in kinds.items() if mine.any()}
    high = stated > HIGH
    numbers: dict[str, Any] = {
        "held_out": confidence.samples,
        "classes": confidence.classes,
        "ece": _calibration_error(stated, right),
        "stated": 100 * float(stated.mean()),
        "right": 100 * float(right.mean()),
        "high": {
            "share": 100 * float(high.mean()),
            "right": 100 * float(right[high].mean()) if high.any() else None,
        },
        "reliability": {
            kind: _reliability(stated[rows], right[rows]) for kind, rows in kinds.items()
        },
        "risk_coverage": {
            kind: _most_sure(stated[rows], right[rows]) for kind, rows in kinds.items()
        },
        "sets": _sets(tests, confidence, scores, of_unseen),
        "trade": _trade(tests, offset, of_unseen),
    }
    if tests.distance is not None and len(confidence.distances):
        distance = confidence.farther(tests.distance, tests.lengths)
        alarms = confidence.unfamiliar(distance) <= ALARM
        numbers["unfamiliar"] = {
            kind: 100 * float(alarms[rows].mean()) for kind, rows in kinds.items()
        }
    return numbers


def prior_points(tests: HeldOut, offsets: Mapping[str, float]) -> dict[str, list[float]]:
    """Return offset, U and S under each prior by name.

    Args:
        tests: as for :func:`measured`.
        offsets: what the scores of seen classes are lowered by in a run with each prior.
    """
    if not tests.unseen.any() or tests.unseen.all():
        return {}
    answers = tests.answers()
    points = {}
    for prior, offset in offsets.items():
        numbers = accuracies(answers, offset)
        points[prior] = [offset, numbers.gzsl_unseen, numbers.gzsl_seen]
    return points


def _calibration_error(stated: Floats, right: NDArray[np.bool_]) -> float:
    """Return the expected calibration error in percent, of ten bins."""
    bins = np.minimum((stated * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, stated - right, BINS)
    return 100 * float(np.abs(gaps).sum()) / len(stated)


def _reliability(stated: Floats, right: NDArray[np.bool_]) -> list[list[float]]:
    """Return for each bin that has answers: how many, the mean stated, and the share of right
    ones.
    """
    bins = np.minimum((stated * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(bins, minlength=BINS)
    means = [np.bincount(bins, values, BINS) for values in (stated, right.astype(np.float64))]
    return [
        [int(counts[b]), *(100 * float(mean[b] / counts[b]) for mean in means)]
        for b in np.flatnonzero(counts).tolist()
    ]


def _most_sure(stated: Floats, right: NDArray[np.bool_]) -> list[float]:
    """Return the share of right answers among the 5, 10, ... 100 % that are surest."""
    ordered = right[np.argsort(-stated, kind="stable")]
    ends = np.ceil(np.arange(1, _POINTS + 1) / _POINTS * len(ordered)).astype(int)
    return [100 * float(ordered[:end].mean()) for end in ends.tolist()]


def _sets(
    tests: HeldOut, confidence: Confidence, scores: Floats, of_unseen: NDArray[np.bool_]
) -> dict[str, float]:
    """Return coverage by kind, each class weighing the same, and how large the sets are."""
    inside = confidence.sets(scores, tests.unseen, COVERAGE)
    held = inside[np.arange(len(inside)), tests.labels]
    weights = class_weights(tests.labels, of_unseen)
    numbers = {"coverage": 100 * COVERAGE, "labels": float(inside.sum(1).mean())}
    numbers["all"] = 100 * float(inside.all(1).mean())
    for kind, rows in (("seen", ~of_unseen), ("unseen", of_unseen)):
        if rows.any():
            numbers[kind] = 100 * float(weights[rows] @ held[rows] / weights[rows].sum())
    return numbers


def _trade(tests: HeldOut, offset: float, of_unseen: NDArray[np.bool_]) -> list[list[float]]:
    """Return offset, U and S for offsets from where no seen class wins to where all do; the chosen
    one is among them.
    """
    if not tests.unseen.any() or tests.unseen.all():
        return []
    answers = replace(tests.answers(), unseen=of_unseen)
    offsets = np.unique(np.quantile(answers.gap, np.linspace(0, 1, 2 * _POINTS + 1)))
    points = []
    for tried in np.sort(np.r_[offsets, offset]).tolist():
        numbers = accuracies(answers, tried)
        points.append([tried, numbers.gzsl_unseen, numbers.gzsl_seen])
    return points
