"""One-round federated learners of classes that all have samples: AFL, FedCGS, Fed3R and GH-OFL.

Each has :meth:`message`, what a party sends of its samples, and :meth:`merge`, the scores that
the server makes of all messages. A message is a mapping of arrays; symmetric matrices are counted
by their upper triangle.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
Ids = NDArray[np.int64]
Message = Mapping[str, Floats]
Scores = Callable[[Floats], Floats]  # (n, d) -> (n, C)
SYMMETRIC = ("square", "squares")


class Peer(Protocol):
    """A one-round learner."""

    def message(self, x: Floats, labels: Ids, classes: int) -> dict[str, Floats]:
        """Return what a party with samples (n, d) of so many classes sends."""

    def merge(self, messages: Sequence[Message]) -> Scores:
        """Return the scores of samples, made of all messages."""


def size(message: Message) -> int:
    """Return the bytes of a message in float32."""
    numbers = 0
    for name, value in message.items():
        width = value.shape[-1]
        full = value.size
        numbers += full // width * (width + 1) // 2 if name in SYMMETRIC else full
    return 4 * numbers


def one_hot(labels: Ids, classes: int) -> Floats:
    """Return (n, C), 1 at a sample's class."""
    return np.eye(classes)[labels]


def _added(messages: Sequence[Message]) -> dict[str, Floats]:
    return {name: np.sum([message[name] for message in messages], axis=0) for name in messages[0]}


def _linear(weight: Floats, bias: Floats | float = 0.0) -> Scores:
    return lambda x: x @ weight + bias


@dataclass(frozen=True)
class AFL:
    """Analytic federated learning (He et al. 2025): local ridge solutions, merged by the absolute
    aggregation law, without the regularizer in the end.
    """

    gamma: float = 1.0

    def message(self, x: Floats, labels: Ids, classes: int) -> dict[str, Floats]:
        """Return the local solution (d, C) and its regularized second moments (d, d)."""
        square = x.T @ x + self.gamma * np.eye(x.shape[1])
        weight = np.linalg.solve(square, x.T @ one_hot(labels, classes))
        return {"weight": weight, "square": square}

    def merge(self, messages: Sequence[Message]) -> Scores:
        """Return the scores of W."""
        return _linear(self.weight(messages))

    def weight(self, messages: Sequence[Message]) -> Floats:
        """Return W (d, C): its law for each further message, then what the K regularizers did."""
        first, *others = messages
        weight = first["weight"]
        square = first["square"]
        eye = np.eye(len(square))
        for other in others:
            both = square + other["square"]
            ours = np.linalg.solve(square, other["square"])
            theirs = np.linalg.solve(other["square"], square)
            weight = (eye - ours @ (eye - np.linalg.solve(both, other["square"]))) @ weight + (
                eye - theirs @ (eye - np.linalg.solve(both, square))
            ) @ other["weight"]
            square = both
        plain = square - len(messages) * self.gamma * eye
        solved: Floats = np.linalg.lstsq(plain, square @ weight, rcond=1e-12)[0]
        return solved


@dataclass(frozen=True)
class FedCGS:
    """Federated class-wise statistics (Guan et al. 2025): the head of Gaussian classes with one
    covariance and the classes' frequencies.
    """

    shrinkage: float = 0.0  # the paper has none; a little is needed where features are dependent

    def message(self, x: Floats, labels: Ids, classes: int) -> dict[str, Floats]:
        """Return the number and the sum of each class's samples, and their second moments."""
        which = one_hot(labels, classes)
        return {"count": which.sum(0), "total": which.T @ x, "square": x.T @ x}

    def merge(self, messages: Sequence[Message]) -> Scores:
        """Return linear scores w_c = Sigma^-1 mu_c."""
        sums = _added(messages)
        count = sums["count"]
        means = sums["total"] / count[:, None]
        within = (sums["square"] - (means.T * count) @ means) / count.sum()
        weight = np.linalg.solve(shrunk(within, self.shrinkage), means.T)
        return _linear(weight, np.log(count / count.sum()) - (means.T * weight).sum(0) / 2)


@dataclass(frozen=True)
class Fed3R:
    """Federated recursive ridge regression (Fani et al. 2024), with random Fourier features of a
    Gaussian kernel where ``features`` is not 0; each class's weights have unit length.
    """

    ridge: float = 0.01
    features: int = 0
    width: float = 1.0  # of the kernel: x is divided by it
    seed: int = 0  # what all parties draw the same directions by

    def mapped(self, x: Floats) -> Floats:
        """Return the features (n, D) that are regressed on."""
        if not self.features:
            return x
        rng = np.random.default_rng(self.seed)
        directions = rng.standard_normal((x.shape[1], self.features)) / self.width
        angles = x @ directions + rng.uniform(0, 2 * np.pi, self.features)
        mapped: Floats = np.sqrt(2 / self.features) * np.cos(angles)
        return mapped

    def message(self, x: Floats, labels: Ids, classes: int) -> dict[str, Floats]:
        """Return the second moments (D, D) and the sums of each class (D, C)."""
        z = self.mapped(x)
        return {"square": z.T @ z, "total": z.T @ one_hot(labels, classes)}

    def merge(self, messages: Sequence[Message]) -> Scores:
        """Return the scores of the ridge solution."""
        sums = _added(messages)
        square = sums["square"] + self.ridge * np.eye(len(sums["square"]))
        weight = np.linalg.solve(square, sums["total"])
        weight = weight / np.maximum(np.linalg.norm(weight, axis=0), 1e-12)
        return lambda x: self.mapped(x) @ weight


@dataclass(frozen=True)
class GaussianHeads:
    """One-shot Gaussian heads (GH-OFL, 2026) in closed form: naive Bayes (a variance a feature and
    class), linear (one covariance) or quadratic (a covariance a class) discriminants, in a random
    projection where ``width`` is not 0. The paper's heads that are trained on drawn samples are
    left out.
    """

    kind: Literal["naive", "linear", "quadratic"] = "linear"
    shrinkage: float = 0.1
    width: int = 0  # of the random projection
    seed: int = 0

    def mapped(self, x: Floats) -> Floats:
        """Return the projected features."""
        if not self.width:
            return x
        rng = np.random.default_rng(self.seed)
        projected: Floats = x @ np.linalg.qr(rng.standard_normal((x.shape[1], self.width)))[0]
        return projected

    def message(self, x: Floats, labels: Ids, classes: int) -> dict[str, Floats]:
        """Return counts, sums and second moments: all, or of each class that the party holds."""
        z = self.mapped(x)
        which = one_hot(labels, classes)
        message = {"count": which.sum(0), "total": which.T @ z}
        if self.kind == "naive":
            return {**message, "power": which.T @ z**2}
        if self.kind == "linear":
            return {**message, "square": z.T @ z}
        held = np.unique(labels)
        squares = np.stack([z[labels == c].T @ z[labels == c] for c in held])
        return {**message, "held": held.astype(np.float64), "squares": squares}

    def merge(self, messages: Sequence[Message]) -> Scores:
        """Return the log densities, times the classes' frequencies."""
        if self.kind == "linear":
            linear = FedCGS(self.shrinkage).merge(messages)
            return lambda x: linear(self.mapped(x))
        sums = _added([{key: message[key] for key in ("count", "total")} for message in messages])
        count = sums["count"]
        means = sums["total"] / count[:, None]
        prior = np.log(count / count.sum())
        if self.kind == "naive":
            power = np.sum([message["power"] for message in messages], axis=0)
            variance = np.maximum(power / count[:, None] - means**2, 0)
            pooled = (variance * count[:, None]).sum(0) / count.sum()
            variance = (1 - self.shrinkage) * variance + self.shrinkage * pooled + 1e-12
            return lambda x: prior + _diagonal(self.mapped(x), means, variance)
        return self._quadratic(messages, count, means, prior)

    def _quadratic(
        self, messages: Sequence[Message], count: Floats, means: Floats, prior: Floats
    ) -> Scores:
        width = means.shape[1]
        squares = np.zeros((len(count), width, width))
        for message in messages:
            np.add.at(squares, message["held"].astype(int), message["squares"])
        pooled = (squares.sum(0) - (means.T * count) @ means) / count.sum()
        pooled = shrunk(pooled, 0.01)
        factors = []
        for number, mean, square in zip(count, means, squares, strict=True):
            covariance = square / number - np.outer(mean, mean)
            mixed = (1 - self.shrinkage) * covariance + self.shrinkage * pooled
            factors.append(np.linalg.cholesky(mixed))
        turned = [np.linalg.inv(factor).T for factor in factors]
        logs = np.array([np.log(factor.diagonal()).sum() for factor in factors])

        def scores(x: Floats) -> Floats:
            z = self.mapped(x)
            far = [(((z - m) @ t) ** 2).sum(1) for m, t in zip(means, turned, strict=True)]
            density: Floats = prior - logs - np.stack(far, 1) / 2
            return density

        return scores


def shrunk(covariance: Floats, shrinkage: float) -> Floats:
    """Return a covariance drawn towards a multiple of the identity."""
    width = len(covariance)
    scale = np.trace(covariance) / width
    drawn: Floats = (1 - shrinkage) * covariance + (shrinkage + 1e-9) * scale * np.eye(width)
    return drawn


def _diagonal(x: Floats, means: Floats, variance: Floats) -> Floats:
    """Return the log densities (n, C) of independent features, without their constant."""
    precise = 1 / variance
    far = x**2 @ precise.T - 2 * x @ (means * precise).T + (means**2 * precise).sum(1)
    density: Floats = -(far + np.log(variance).sum(1)) / 2
    return density
