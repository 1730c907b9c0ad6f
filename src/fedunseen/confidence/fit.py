"""Fits a confidence to held-out samples: the scale, whether answers are right, levels of labels."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedunseen.confidence.confidence import Confidence, features, log_softmax
from fedunseen.confidence.held_out import HeldOut, class_weights

Floats = NDArray[np.float64]

POINTS = 2000  # kept of a distribution
USUAL = (0.005, 0.995)  # of the lengths of features: 99 of 100 samples
_WIDEST = 8.0  # by how much a scale differs from its first guess, in nats
_PENALTY = 1e-3  # of the squares of logistic coefficients, beside a mean loss
_TOLERANCE = 1e-6


def fit(folds: Sequence[HeldOut], offset: float, share: float = 0.5) -> Confidence:
    """Return the confidence of answers under an offset.

    Scale: least negative log-likelihood. Right answers: logistic regression. Classes weigh alike.

    Args:
        folds: at least one with samples of seen classes and of classes that play unseen ones.
        offset: what the scores of seen classes are lowered by.
        share: of all questions, the part about unseen classes, from 0 to 1.
    """
    scores = [fold.calibrated(offset) for fold in folds]
    labels = np.concatenate([fold.labels for fold in folds])
    unseen = np.concatenate([fold.asks_unseen for fold in folds])
    weights = class_weights(labels, unseen, share)
    parts = np.split(weights, np.cumsum([len(fold.labels) for fold in folds])[:-1])
    scale = _best_scale(scores, [fold.labels for fold in folds], parts)
    logs = [log_softmax(fold_scores, scale) for fold_scores in scores]
    right = np.concatenate(
        [fold_logs.argmax(1) == fold.labels for fold_logs, fold in zip(logs, folds, strict=True)]
    )
    inputs = np.concatenate(
        [features(fold_logs, fold.unseen) for fold_logs, fold in zip(logs, folds, strict=True)]
    )
    levels = np.concatenate(
        [
            fold_logs[np.arange(len(fold_logs)), fold.labels] + np.log(fold_logs.shape[1])
            for fold_logs, fold in zip(logs, folds, strict=True)
        ]
    )
    places = [np.arange(len(fold.labels)) if fold.places is None else fold.places for fold in folds]
    lengths = [fold.lengths for fold in folds if fold.lengths is not None]
    _, first = np.unique(np.concatenate(places), return_index=True)
    sure = Confidence(
        scale=scale,
        scale_unseen=_scale_of_unseen(folds),
        coefficients=logistic(inputs, right, weights),
        seen_levels=_quantiles(levels[~unseen], weights[~unseen]),
        unseen_levels=_quantiles(levels[unseen], weights[unseen]),
        distances=np.empty(0),
        samples=len(np.unique(np.concatenate(places)[~unseen])),
        classes=len(np.unique(labels[unseen])),
        lengths=np.quantile(np.concatenate(lengths)[first], USUAL) if lengths else np.empty(0),
    )
    near = [
        sure.farther(fold.distance, fold.lengths)[~fold.asks_unseen]
        for fold in folds
        if fold.distance is not None
    ]
    distances = np.sort(np.concatenate(near)) if near else np.empty(0)
    distances = distances[~np.isnan(distances)]
    if len(distances) > POINTS:  # none lower than those that it stands for
        shares = (np.arange(POINTS) + 1) / POINTS
        distances = distances[np.ceil(shares * len(distances)).astype(int) - 1]
    return replace(sure, distances=distances)


def _best_scale(
    scores: Sequence[Floats], labels: Sequence[NDArray[np.int64]], weights: Sequence[Floats]
) -> float:
    """Return the scale of scores under which the true labels are most likely."""
    from scipy.optimize import minimize_scalar  # takes 0.2 s to import, and predictions do not fit

    spread = float(np.median(np.concatenate([fold_scores.std(axis=1) for fold_scores in scores])))
    guess = -np.log(spread) if spread > 0 else 0.0

    below = [fold_scores - fold_scores.max(1, keepdims=True) for fold_scores in scores]
    true = [part[np.arange(len(part)), y] for part, y in zip(below, labels, strict=True)]

    def loss(logarithm: float) -> float:
        scale = np.exp(logarithm)
        return -sum(
            float(w @ (scale * part_true - np.log(np.exp(scale * part).sum(1))))
            for part, part_true, w in zip(below, true, weights, strict=True)
        )

    minimum = minimize_scalar(
        loss,
        bounds=(guess - _WIDEST, guess + _WIDEST),
        method="bounded",
        options={"xatol": _TOLERANCE},
    )
    return float(np.exp(minimum.x))


def _scale_of_unseen(folds: Sequence[HeldOut]) -> float:
    """Return the scale where unseen classes alone are candidates."""
    scores = []
    labels = []
    for fold in folds:
        columns = np.flatnonzero(fold.unseen)
        mine = fold.asks_unseen
        if len(columns) > 1 and mine.any():
            scores.append(fold.scores[np.ix_(mine, columns)])
            labels.append(np.searchsorted(columns, fold.labels[mine]))
    if not scores:
        return 1.0
    counts = [np.bincount(fold_labels) for fold_labels in labels]
    weights = [
        1 / (count[fold_labels] * (count > 0).sum())
        for count, fold_labels in zip(counts, labels, strict=True)
    ]
    return _best_scale(scores, labels, [fold_weights / len(scores) for fold_weights in weights])


def logistic(inputs: Floats, right: NDArray[np.bool_], weights: Floats) -> Floats:
    """Return the coefficients (6,) of a logistic regression with weighted samples."""
    from scipy.optimize import minimize
    from scipy.special import expit

    def loss(coefficients: Floats) -> tuple[float, Floats]:
        odds = inputs @ coefficients
        bent = np.r_[0.0, coefficients[1:]]
        value = weights @ (np.logaddexp(0, odds) - right * odds) + _PENALTY / 2 * bent @ bent
        slope = inputs.T @ (weights * (expit(odds) - right)) + _PENALTY * bent
        return float(value), np.asarray(slope)

    def curvature(coefficients: Floats) -> Floats:
        share = expit(inputs @ coefficients)
        spread = inputs.T @ (inputs * (weights * share * (1 - share))[:, None])
        return np.asarray(spread + _PENALTY * np.diag([0.0] + [1.0] * (len(coefficients) - 1)))

    start = np.zeros(inputs.shape[1])
    start[1] = 1.0
    minimum = minimize(
        loss,
        start,
        jac=True,
        hess=curvature,
        method="trust-exact",
        options={"gtol": _TOLERANCE},
    )
    return np.asarray(minimum.x)


def _quantiles(values: Floats, weights: Floats) -> Floats:
    """Return (q,) sorted values at evenly spaced shares of the weight."""
    if not len(values):
        return np.empty(0)
    order = np.argsort(values, kind="stable")
    shares = np.cumsum(weights[order])
    points = min(POINTS, len(values))
    wanted = (np.arange(points) + 0.5) / points * shares[-1]
    return np.asarray(values[order][np.searchsorted(shares, wanted).clip(max=len(values) - 1)])
