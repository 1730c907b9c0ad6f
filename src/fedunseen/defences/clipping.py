"""Clipping (Sun et al. 2019, "Can you really backdoor federated learning?"): no update is longer than a bound.

Model replacement needs a long update. A little noise after merging ("weak differential privacy") proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedunseen.core.parameters import Scaled
from fedunseen.defences.base import Defence, DefenceSettings, Scores
from fedunseen.strategies import FilterResult, Reply, RoundView


def shortened(replies: Sequence[Reply], factors: Sequence[float]) -> list[Reply]:
    """Return the replies with their updates times factors; those with a factor of 1 are the same objects.

    The shortened tensors are made when they are asked for, so that a round's updates are in memory once.
    """
    return [
        reply if factor == 1.0 else replace(reply, update=Scaled(reply.update, factor))
        for reply, factor in zip(replies, factors, strict=True)
    ]


def median_length(norms: Sequence[float]) -> float:
    """Return the median of the lengths that are not zero: clients that send no change do not shorten the others."""
    moved = [norm for norm in norms if norm > 0]
    return float(np.median(moved)) if moved else 0.0


class _ClipSettings(DefenceSettings):
    bound: float | None = Field(None, gt=0)
    """Longest update, M in the paper; unset: the median length of the round's updates times `multiple`."""
    multiple: float = Field(1.0, gt=0)
    """Factor on the median length; only without `bound`."""


class NormClipSettings(_ClipSettings):
    """Settings of norm clipping."""

    name: Literal["norm-clip"] = "norm-clip"


class NormClip(Defence):
    r""":math:`\Delta_k \leftarrow \Delta_k / \max(1, \lVert\Delta_k\rVert / M)`, then the strategy merges."""

    Settings: ClassVar[type[DefenceSettings]] = NormClipSettings

    def __init__(self, settings: Any, seed: int = 0, scores: Scores | None = None) -> None:
        super().__init__(settings, seed, scores)
        self.per_client = settings.bound is not None

    def filter(self, view: RoundView) -> FilterResult:
        """Shorten what is longer than the bound."""
        bound = self.settings.bound or self.settings.multiple * median_length(view.norms)
        factors = [1.0 if norm <= bound else bound / norm for norm in view.norms]
        return FilterResult(shortened(view.replies, factors), factors, [0] * len(factors))


class ClipNoiseSettings(_ClipSettings):
    """Settings of clipping and noise."""

    name: Literal["clip-noise"] = "clip-noise"
    deviation: float = Field(0.001, ge=0)
    """Standard deviation of the noise on every parameter after merging."""


class ClipNoise(NormClip):
    """Norm clipping, and Gaussian noise on the merged model."""

    Settings = ClipNoiseSettings

    def __init__(self, settings: Any, seed: int = 0, scores: Scores | None = None) -> None:
        super().__init__(settings, seed, scores)
        self.per_client = False  # its own noise is unknown to the privacy accountant

    def filter(self, view: RoundView) -> FilterResult:
        """Shorten what is too long, and ask for noise."""
        return replace(super().filter(view), noise=self.settings.deviation)
