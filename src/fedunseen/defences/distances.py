"""Rules that judge an update by its distance to the others, which fails where clients hold disjoint classes.

Krum and Multi-Krum: Blanchard et al. 2017, "Machine learning with adversaries: Byzantine tolerant gradient descent".
Bulyan: El Mhamdi, Guerraoui and Rouault 2018, "The hidden vulnerability of distributed learning in Byzantium".
FLAME: Nguyen et al. 2022, "FLAME: taming backdoors in federated learning".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedunseen.core.errors import ExperimentError
from fedunseen.defences.base import REASONS, TOO_FAR, Defence, DefenceSettings, same_for_all
from fedunseen.defences.clipping import median_length, shortened
from fedunseen.defences.coordinates import by_coordinate, middle, sorted_clients
from fedunseen.strategies import FilterResult, RoundView

_NUMBERS = 2**21  # numbers multiplied at once, in float64, to bound memory
_FAR = REASONS.index(TOO_FAR)


def scalar_products(many: Sequence[Mapping[str, Tensor]]) -> NDArray[np.float64]:
    """Return (n, n): the scalar products of n updates taken as vectors, in float64."""
    total = torch.zeros(len(many), len(many), dtype=torch.float64)
    step = max(1, _NUMBERS // len(many))
    for name in sorted(many[0]):
        rows = [item[name].reshape(-1) for item in many]
        for start in range(0, len(rows[0]), step):
            block = torch.stack([row[start : start + step] for row in rows]).double()
            total += (block @ block.T).cpu()
    return total.numpy()


def squared_distances(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (n, n) squared distances, from scalar products."""
    own = np.diag(products)
    result: NDArray[np.float64] = np.maximum(own[:, None] + own[None] - 2 * products, 0.0)
    np.fill_diagonal(result, 0.0)
    return result


def krum_scores(distances: NDArray[np.float64], malicious: int) -> NDArray[np.float64]:
    """Return (n,): of each update the sum of the squared distances to its n - f - 2 nearest, itself not counted."""
    n = len(distances)
    others = np.sort(distances + np.diag(np.full(n, np.inf)), axis=1)[:, : max(n - malicious - 2, 1)]
    return np.asarray(np.where(np.isfinite(others), others, 0.0).sum(1))


def _verdicts(best: Collection[int], replies: int) -> tuple[list[float], list[int]]:
    """Return of each reply whether it is kept, and why not."""
    kept = [i in best for i in range(replies)]
    return [float(stays) for stays in kept], [0 if stays else _FAR for stays in kept]


class _KrumSettings(DefenceSettings):
    malicious: int = Field(1, ge=0)
    """How many malicious clients a round may have, f; needs 2 f + 3 clients a round."""


class KrumSettings(_KrumSettings):
    """Settings of Krum."""

    name: Literal["krum"] = "krum"


class Krum(Defence):
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
        return FilterResult([replies[i] for i in sorted(best)], *_verdicts(best, len(replies)), scores.tolist())


class MultiKrumSettings(_KrumSettings):
    """Settings of Multi-Krum."""

    name: Literal["multi-krum"] = "multi-krum"
    merged: int | None = Field(None, ge=1)
    """How many of the best updates are merged; unset: all but f."""


class MultiKrum(Krum):
    """Merges the updates with the least Krum scores."""

    Settings = MultiKrumSettings

    def check(self, replies: int, round: int) -> None:
        """Refuse, too, to merge more than n - f updates: one of them may be malicious."""
        super().check(replies, round)
        merged, f = self.settings.merged or 0, self.settings.malicious
        if merged > replies - f:
            raise ExperimentError(
                f"defence.merged = {merged} is more than the {replies} clients of round {round + 1} without the "
                f"defence.malicious = {f} that are to be left out: lower it to {replies - f} or less"
            )

    def chosen(self, replies: int) -> int:
        """Return ``merged``, or n - f, which is the most."""
        most = replies - int(self.settings.malicious)
        return min(int(self.settings.merged or most), most)


class BulyanSettings(DefenceSettings):
    """Settings of Bulyan."""

    name: Literal["bulyan"] = "bulyan"
    malicious: int = Field(1, ge=0)
    """How many malicious clients a round may have, f; needs 4 f + 3 clients a round."""


class Bulyan(Krum):
    """Krum again and again, then a mean around the median of each coordinate.

    Krum chooses among those that are left until n - 2 f are chosen; of these, in each coordinate, the n - 4 f that are
    nearest to the median are averaged, each client counting once.
    """

    Settings = BulyanSettings
    needs = (4, 3)

    def filter(self, view: RoundView) -> FilterResult:
        """Give every chosen reply the mean around the median."""
        n, f = len(view.replies), self.settings.malicious
        distances = squared_distances(scalar_products(view.updates))
        left = list(range(n))
        best: list[int] = []
        while len(best) < n - 2 * f:
            scores = krum_scores(distances[np.ix_(left, left)], f)
            best.append(left.pop(int(scores.argmin())))
        chosen, averaged = [view.replies[i] for i in sorted(best)], n - 4 * f

        def around_median(block: Tensor) -> Tensor:
            ordered = sorted_clients(block)
            median = middle(ordered)
            best, result = torch.full_like(median, torch.inf), torch.zeros_like(median)
            for start in range(len(block) - averaged + 1):  # in order, the nearest stand side by side
                window = ordered[:, start : start + averaged]
                reach = torch.maximum(median - window[:, 0], window[:, -1] - median)
                nearer = reach < best
                best, result = torch.where(nearer, reach, best), torch.where(nearer, window.mean(1), result)
            return result

        update = by_coordinate([reply.update for reply in chosen], around_median)
        return same_for_all(chosen, update, *_verdicts(best, n))


class Flame(Defence):
    """Clusters the clients' models by their angles, clips to the median length, and adds noise.

    HDBSCAN finds clusters of more than half of the clients; others are left out. The angles are those of
    whole models, as in the paper, not of updates.
    """

    class Settings(DefenceSettings):
        """Settings of FLAME."""

        name: Literal["flame"] = "flame"
        noise: float = Field(0.001, ge=0)
        """The noise's standard deviation as a multiple of the median length of the round's updates, lambda."""

    needs = (0, 2)  # there is nothing to cluster in one

    def filter(self, view: RoundView) -> FilterResult:
        """Leave out what is in no cluster, shorten the rest, and ask for noise."""
        from sklearn.cluster import HDBSCAN

        n, norms = len(view.replies), view.norms
        products = scalar_products([view.params, *view.updates])
        models = products[0, 0] + products[0, 1:, None] + products[None, 0, 1:] + products[1:, 1:]
        sizes = np.sqrt(np.maximum(np.diag(models), 1e-300))
        distances = np.clip(1.0 - models / np.outer(sizes, sizes), 0.0, 2.0)
        np.fill_diagonal(distances, 0.0)
        clustering = HDBSCAN(
            min_cluster_size=n // 2 + 1, min_samples=1, allow_single_cluster=True, metric="precomputed", copy=True
        )
        labels = clustering.fit(distances).labels_
        inside = [i for i in range(n) if labels[i] >= 0]
        bound = median_length(norms)
        factors = [0.0 if labels[i] < 0 else 1.0 if norms[i] <= bound else bound / norms[i] for i in range(n)]
        left = shortened([view.replies[i] for i in inside], [factors[i] for i in inside])
        why = [0 if labels[i] >= 0 else _FAR for i in range(n)]
        return FilterResult(left, factors, why, noise=self.settings.noise * bound)
