"""Zero-shot learners with all data in one place: ConSE, a DeViSE-like bilinear ranker and GFZSL.

Each function takes training samples (n, d), labels (n,) and semantics (C, a) of all classes, and
returns scores of samples, (m, d) -> (m, C). Classes without a training sample are the unseen ones.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

Floats = NDArray[Any]
Ids = NDArray[np.int64]
Scores = Callable[[Floats], Floats]


def _unit(rows: Floats) -> Floats:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Floats = rows / np.maximum(lengths, 1e-12)
    return unit


def conse(x: Floats, labels: Ids, semantics: Floats, top: int = 10, cost: float = 1.0) -> Scores:
    """ConSE (Norouzi et al. 2014): the semantics of the ``top`` most probable seen classes, mixed
    by their probabilities, and the cosine to each class's. ``cost``: scikit-learn's C.
    """
    model = LogisticRegression(C=cost, max_iter=200).fit(x, labels)
    seen = model.classes_
    rows = _unit(semantics)

    def scores(samples: Floats) -> Floats:
        probable = model.predict_proba(samples)
        least = np.sort(probable, axis=1)[:, -min(top, len(seen))]
        kept = np.where(probable >= least[:, None], probable, 0.0)
        cosine: Floats = _unit(kept @ semantics[seen]) @ rows.T
        return cosine

    return scores


def devise(
    x: Floats,
    labels: Ids,
    semantics: Floats,
    margin: float = 0.1,
    rate: float = 0.1,
    epochs: int = 20,
    seed: int = 0,
) -> Scores:
    """Train a linear map into semantics by DeViSE's hinge rank loss (Frome et al. 2013) with
    stochastic gradient descent; samples and semantics have unit length.
    """
    rng = np.random.default_rng(seed)
    rows = _unit(semantics)
    seen = np.unique(labels)
    place = np.searchsorted(seen, labels)
    prototypes = rows[seen]
    weight = np.zeros((x.shape[1], semantics.shape[1]))
    x = _unit(x)
    for _ in range(epochs):
        for some in np.array_split(rng.permutation(len(x)), max(1, len(x) // 128)):
            against = x[some] @ weight @ prototypes.T
            right = np.take_along_axis(against, place[some, None], 1)
            push = (margin - right + against > 0).astype(float)
            np.put_along_axis(push, place[some, None], 0.0, 1)
            np.put_along_axis(push, place[some, None], -push.sum(1, keepdims=True), 1)
            weight -= rate * x[some].T @ (push @ prototypes) / len(some)
    return lambda samples: _unit(samples) @ weight @ rows.T


def gfzsl(
    x: Floats, labels: Ids, semantics: Floats, ridge: float = 1.0, width: float = 1.0
) -> Scores:
    """GFZSL (Verma and Rai 2017): Gaussian classes with a variance a feature; means and logarithms
    of variances of unseen classes by kernel ridge regression on semantics.

    ``width``: of the Gaussian kernel, as a multiple of the median squared distance.
    """
    seen = np.unique(labels)
    means = np.stack([x[labels == c].mean(0) for c in seen])
    pooled = np.concatenate([x[labels == c] - x[labels == c].mean(0) for c in seen]).var(0)
    logs = np.log(np.stack([x[labels == c].var(0) for c in seen]) + 0.1 * pooled + 1e-12)
    apart = ((semantics[:, None] - semantics[None]) ** 2).sum(2)
    kernel = np.exp(-apart / (2 * width * np.median(apart[apart > 0])))
    inner = kernel[np.ix_(seen, seen)] + ridge * np.eye(len(seen))
    predicted = []
    for target in (means, logs):
        middle = target.mean(0)
        all_classes = middle + kernel[:, seen] @ np.linalg.solve(inner, target - middle)
        all_classes[seen] = target
        predicted.append(all_classes)
    centers = predicted[0]
    precise = np.exp(-predicted[1])

    def scores(samples: Floats) -> Floats:
        far = samples**2 @ precise.T - 2 * samples @ (centers * precise).T
        density: Floats = -(far + (centers**2 * precise).sum(1) + predicted[1].sum(1)) / 2
        return density

    return scores
