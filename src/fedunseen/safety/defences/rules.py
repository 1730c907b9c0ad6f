"""Published rules: clipping, rules that look at one coordinate at a time, and rules that compare
whole updates.

Clipping: Sun et al. 2019, "Can you really backdoor federated learning?". Model replacement needs a
long update; a little noise after merging ("weak differential privacy") proves nothing.
Median and trimmed mean: Yin et al. 2018, "Byzantine-robust distributed learning: towards optimal
statistical rates". Robust learning rate: Ozdayi et al. 2021, "Defending against backdoors in
federated learning with robust learning rate". Krum and Multi-Krum: Blanchard et al. 2017, "Machine
learning with adversaries: Byzantine tolerant gradient descent". Bulyan: El Mhamdi, Guerraoui and
Rouault 2018, "The hidden vulnerability of distributed learning in Byzantium". FLAME: Nguyen et al.
2022, "FLAME: taming backdoors in federated learning". Distances fail where clients hold disjoint
classes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import Params, Scaled, is_statistic
from fedunseen.safety.defences.base import REASONS, TOO_FAR, Defence, DefenceSettings, Scores
from fedunseen.strategies import FilterResult, Reply, RoundView

_SORTED = 2**22  # numbers sorted at once: bounds memory
_MULTIPLIED = 2**21  # numbers multiplied at once, in float64, to bound memory
_FAR = REASONS.index(TOO_FAR)


def shortened(replies: Sequence[Reply], factors: Sequence[float]) -> list[Reply]:
    """Return the replies with their updates times factors; those with a factor of 1 are the same
    objects.

    The shortened tensors are made when they are asked for, so that a round's updates are in memory
    once.
    """
    return [
        reply if factor == 1.0 else replace(reply, update=Scaled(reply.update, factor))
        for reply, factor in zip(replies, factors, strict=True)
    ]


def median_length(norms: Sequence[float]) -> float:
    """Return the median of the lengths that are not zero: clients that send no change do not
    shorten the others.
    """
    moved = [norm for norm in norms if norm > 0]
    return float(np.median(moved)) if moved else 0.0


class ClipSettings(DefenceSettings):
    """Settings of norm clipping."""

    bound: float | None = Field(None, gt=0)
    """Longest update, M in the paper; unset: the median length of the round's updates."""


class NormClip(Defence, name="norm-clip"):
    r""":math:`\Delta_k \leftarrow \Delta_k / \max(1, \lVert\Delta_k\rVert / M)`, then the strategy
    merges.
    """

    Settings: ClassVar[type[DefenceSettings]] = ClipSettings

    def __init__(self, settings: Any, seed: int = 0, scores: Scores | None = None) -> None:
        super().__init__(settings, seed, scores)
        self.per_client = settings.bound is not None

    def filter(self, view: RoundView) -> FilterResult:
        """Shorten what is longer than the bound."""
        bound = self.settings.bound or median_length(view.norms)
        factors = [1.0 if norm <= bound else bound / norm for norm in view.norms]
        return FilterResult(shortened(view.replies, factors), factors)


class ClipNoise(NormClip, name="clip-noise"):
    """Norm clipping, and Gaussian noise on the merged model."""

    class Settings(ClipSettings):
        """Settings of clipping and noise."""

        deviation: float = Field(0.001, ge=0)
        """Standard deviation of the noise on every parameter after merging."""

    def __init__(self, settings: Any, seed: int = 0, scores: Scores | None = None) -> None:
        super().__init__(settings, seed, scores)
        self.per_client = False  # its own noise is unknown to the privacy accountant

    def filter(self, view: RoundView) -> FilterResult:
        """Shorten what is too long, and ask for noise."""
        return replace(super().filter(view), noise=self.settings.deviation)


def by_coordinate(
    updates: Sequence[Mapping[str, Tensor]], rule: Callable[[Tensor], Tensor]
) -> Params:
    """Apply a rule (n, m) -> (m,) to the n updates, some coordinates at a time."""
    step = max(1, _SORTED // len(updates))
    result: Params = {}
    for name, like in updates[0].items():
        rows = [update[name].reshape(-1) for update in updates]
        parts = [
            rule(torch.stack([row[i : i + step] for row in rows]))
            for i in range(0, len(rows[0]), step)
        ]
        result[name] = torch.cat(parts).reshape(like.shape) if parts else like.clone()
    return result


def sorted_clients(block: Tensor) -> Tensor:
    """Return (m, n): the numbers of each column of ``block`` (n, m) in ascending order."""
    columns = block.T.contiguous()
    if columns.device.type == "cpu":  # several times as fast as PyTorch's
        return torch.from_numpy(np.sort(columns.numpy(), axis=1))
    return columns.sort(dim=1).values


def middle(ordered: Tensor) -> Tensor:
    """Return (m,): the median of each row of ``ordered`` (m, n), of an even n the mean of the
    middle two.
    """
    n = ordered.shape[1]
    return (ordered[:, (n - 1) // 2] + ordered[:, n // 2]) / 2


def same_for_all(replies: Sequence[Reply], update: Params) -> FilterResult:
    """Return one update instead of each reply's own."""
    return FilterResult([replace(reply, update=update) for reply in replies], aggregated=True)


class Median(Defence, name="median"):
    """The median of each coordinate (of an even number the mean of the middle two) instead of the
    mean.
    """

    def filter(self, view: RoundView) -> FilterResult:
        """Give every reply the median."""
        return same_for_all(
            view.replies, by_coordinate(view.updates, lambda block: middle(sorted_clients(block)))
        )


class TrimmedMean(Defence, name="trimmed-mean"):
    """The mean of what is left of each coordinate without the ``malicious`` largest and
    smallest.
    """

    class Settings(DefenceSettings):
        """Settings of the trimmed mean."""

        malicious: int = Field(1, ge=0)
        """How many malicious clients a round may have, f. A round needs 2 f + 3 clients, for
        `trimmed-mean` 2 f + 1, for `bulyan` 4 f + 3."""

    needs = (2, 1)

    def filter(self, view: RoundView) -> FilterResult:
        """Give every reply the trimmed mean."""
        n = len(view.replies)
        f = self.settings.malicious
        update = by_coordinate(
            view.updates, lambda block: sorted_clients(block)[:, f : n - f].mean(1)
        )
        return same_for_all(view.replies, update)


class RobustLearningRate(Defence, name="robust-learning-rate"):
    r"""Steps against the weighted mean in every coordinate in which too few updates agree on the
    direction.

    :math:`\eta_j = \eta` where :math:`|\sum_k \mathrm{sgn}(\Delta_{kj})| \ge \theta`, otherwise
    :math:`-\eta`. One update at a time is enough: it needs memory for a few models, however many
    clients there are. Running statistics are averaged and never turned round: they are not steps,
    and a variance may turn negative.
    """

    class Settings(DefenceSettings):
        """Settings of the robust learning rate."""

        threshold: int = Field(4, ge=1)
        """How large the sum of the updates' signs must be for a step along their mean, theta; the
        paper takes 4 of 10 clients. It should lie between the number of malicious clients and that
        of honest ones."""

    def least(self) -> tuple[int, str]:
        """Return theta: the signs of fewer replies cannot agree enough in any coordinate."""
        return self.settings.threshold, str(self.settings.threshold)

    def check(self, replies: int, round: int) -> None:
        """Refuse a threshold that a round's clients cannot reach."""
        if self.settings.threshold > replies:
            raise ExperimentError(
                f"defence.threshold = {self.settings.threshold} can never be reached by the "
                f"{replies} clients of round {round + 1}, and no round would be merged: set it to "
                f"{replies} at most"
            )

    def filter(self, view: RoundView) -> FilterResult:
        """Give every reply the weighted mean, turned round where the signs disagree."""
        mean = {name: torch.zeros_like(value) for name, value in view.replies[0].update.items()}
        signs = {name: torch.zeros_like(value) for name, value in mean.items()}
        for reply, weight in zip(view.replies, view.weights, strict=True):
            for name, value in reply.update.items():
                mean[name].add_(value, alpha=weight)
                signs[name].add_(value.sign())
        enough = self.settings.threshold
        update = {
            name: value
            if is_statistic(name)
            else torch.where(signs[name].abs() >= enough, value, -value)
            for name, value in mean.items()
        }
        return same_for_all(view.replies, update)


def scalar_products(many: Sequence[Mapping[str, Tensor]]) -> NDArray[np.float64]:
    """Return (n, n): the scalar products of n updates taken as vectors, in float64."""
    total = torch.zeros(len(many), len(many), dtype=torch.float64)
    step = max(1, _MULTIPLIED // len(many))
    for name in sorted(many[0]):
        rows = [item[name].reshape(-1) for item in many]
        for start in range(0, len(rows[0]), step):
            block = torch.stack([row[start : start + step] for row in rows]).double()
            total += (block @ block.T).cpu()
    return total.numpy()


def squared_distances(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (n, n) squared distances, from scalar products."""
    squares = np.diag(products)
    result: NDArray[np.float64] = np.maximum(squares[:, None] + squares[None] - 2 * products, 0.0)
    np.fill_diagonal(result, 0.0)
    return result


def krum_scores(distances: NDArray[np.float64], malicious: int) -> NDArray[np.float64]:
    """Return (n,): of each update the sum of the squared distances to its n - f - 2 nearest, itself
    not counted.
    """
    n = len(distances)
    nearest = np.sort(distances + np.diag(np.full(n, np.inf)), axis=1)[
        :, : max(n - malicious - 2, 1)
    ]
    return np.asarray(np.where(np.isfinite(nearest), nearest, 0.0).sum(1))


def _verdicts(best: Collection[int], replies: int) -> tuple[list[float], list[int]]:
    """Return of each reply whether it is kept, and why not."""
    return [float(i in best) for i in range(replies)], [
        0 if i in best else _FAR for i in range(replies)
    ]


class KrumSettings(DefenceSettings):
    """Settings of Krum."""

    malicious: int = Field(1, ge=0)
    """How many malicious clients a round may have, f. A round needs 2 f + 3 clients, for
    `trimmed-mean` 2 f + 1, for `bulyan` 4 f + 3."""


class Krum(Defence, name="krum"):
    """Merges the one update that is nearest to its n - f - 2 nearest neighbors."""

    Settings: ClassVar[type[DefenceSettings]] = KrumSettings
    needs = (2, 3)

    def chosen(self, replies: int) -> int:
        """Return how many updates are merged."""
        return 1

    def filter(self, view: RoundView) -> FilterResult:
        """Leave out all but the best."""
        replies = view.replies
        distances = squared_distances(scalar_products(view.updates))
        scores = krum_scores(distances, self.settings.malicious)
        best = set(np.argsort(scores, kind="stable")[: self.chosen(len(replies))].tolist())
        return FilterResult(
            [replies[i] for i in sorted(best)], *_verdicts(best, len(replies)), scores.tolist()
        )


class MultiKrum(Krum, name="multi-krum"):
    """Merges the updates with the least Krum scores."""

    class Settings(KrumSettings):
        """Settings of Multi-Krum."""

        merged: int | None = Field(None, ge=1)
        """How many of the best updates are merged; unset: all but f."""

    def check(self, replies: int, round: int) -> None:
        """Refuse, too, to merge more than n - f updates: one of them may be malicious."""
        super().check(replies, round)
        merged = self.settings.merged or 0
        f = self.settings.malicious
        if merged > replies - f:
            raise ExperimentError(
                f"defence.merged = {merged} is more than the {replies} clients of round "
                f"{round + 1} without the defence.malicious = {f} that are to be left out: lower "
                f"it to {replies - f} or less"
            )

    def chosen(self, replies: int) -> int:
        """Return ``merged``, or n - f, which is the most."""
        most = replies - int(self.settings.malicious)
        return min(int(self.settings.merged or most), most)


class Bulyan(Krum, name="bulyan"):
    """Krum again and again, then a mean around the median of each coordinate.

    Krum chooses among those that are left until n - 2 f are chosen; of these, in each coordinate,
    the n - 4 f that are nearest to the median are averaged, each client counting once.
    """

    class Settings(DefenceSettings):
        """Settings of Bulyan."""

        malicious: int = Field(1, ge=0)
        """How many malicious clients a round may have, f. A round needs 2 f + 3 clients, for
        `trimmed-mean` 2 f + 1, for `bulyan` 4 f + 3."""

    needs = (4, 3)

    def filter(self, view: RoundView) -> FilterResult:
        """Give every chosen reply the mean around the median."""
        n = len(view.replies)
        f = self.settings.malicious
        distances = squared_distances(scalar_products(view.updates))
        candidates = list(range(n))
        best: list[int] = []
        while len(best) < n - 2 * f:
            scores = krum_scores(distances[np.ix_(candidates, candidates)], f)
            best.append(candidates.pop(int(scores.argmin())))
        chosen = [view.replies[i] for i in sorted(best)]
        averaged = n - 4 * f

        def around_median(block: Tensor) -> Tensor:
            ordered = sorted_clients(block)
            median = middle(ordered)
            best = torch.full_like(median, torch.inf)
            result = torch.zeros_like(median)
            for start in range(
                len(block) - averaged + 1
            ):  # in order, the nearest stand side by side
                window = ordered[:, start : start + averaged]
                reach = torch.maximum(median - window[:, 0], window[:, -1] - median)
                nearer = reach < best
                best = torch.where(nearer, reach, best)
                result = torch.where(nearer, window.mean(1), result)
            return result

        update = by_coordinate([reply.update for reply in chosen], around_median)
        merged = [replace(reply, update=update) for reply in chosen]
        return FilterResult(merged, *_verdicts(best, n), aggregated=True)


class Flame(Defence, name="flame"):
    """Clusters the clients' models by their angles, clips to the median length, and adds noise.

    HDBSCAN finds clusters of more than half of the clients; others are left out. The angles are
    those of whole models, as in the paper, not of updates.
    """

    class Settings(DefenceSettings):
        """Settings of FLAME."""

        noise: float = Field(0.001, ge=0)
        """The noise's standard deviation as a multiple of the median length of the round's updates,
        lambda.
        """

    needs = (0, 2)  # there is nothing to cluster in one

    def filter(self, view: RoundView) -> FilterResult:
        """Leave out what is in no cluster, shorten the rest, and ask for noise."""
        from sklearn.cluster import HDBSCAN

        n = len(view.replies)
        norms = view.norms
        products = scalar_products([view.params, *view.updates])
        models = products[0, 0] + products[0, 1:, None] + products[None, 0, 1:] + products[1:, 1:]
        sizes = np.sqrt(np.maximum(np.diag(models), 1e-300))
        distances = np.clip(1.0 - models / np.outer(sizes, sizes), 0.0, 2.0)
        np.fill_diagonal(distances, 0.0)
        clustering = HDBSCAN(
            min_cluster_size=n // 2 + 1,
            min_samples=1,
            allow_single_cluster=True,
            metric="precomputed",
            copy=True,
        )
        labels = clustering.fit(distances).labels_
        inside = [i for i in range(n) if labels[i] >= 0]
        bound = median_length(norms)
        factors = [
            0.0 if labels[i] < 0 else 1.0 if norms[i] <= bound else bound / norms[i]
            for i in range(n)
        ]
        kept = shortened([view.replies[i] for i in inside], [factors[i] for i in inside])
        why = [0 if labels[i] >= 0 else _FAR for i in range(n)]
        return FilterResult(kept, factors, why, noise=self.settings.noise * bound)
