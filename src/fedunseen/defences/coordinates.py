"""Rules that look at one coordinate of all updates at a time.

Median and trimmed mean: Yin et al. 2018, "Byzantine-robust distributed learning: towards optimal statistical rates".
Robust learning rate: Ozdayi et al. 2021, "Defending against backdoors in federated learning with robust learning rate".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedunseen.core.errors import ExperimentError
from fedunseen.core.parameters import Params, is_statistic
from fedunseen.defences.base import Defence, DefenceSettings, same_for_all
from fedunseen.strategies import FilterResult, RoundView

_NUMBERS = 2**22  # sorted at once: bounds memory


def by_coordinate(updates: Sequence[Mapping[str, Tensor]], rule: Callable[[Tensor], Tensor]) -> Params:
    """Apply a rule (n, m) -> (m,) to the n updates, some coordinates at a time."""
    step = max(1, _NUMBERS // len(updates))
    result: Params = {}
    for name, like in updates[0].items():
        rows = [update[name].reshape(-1) for update in updates]
        parts = [rule(torch.stack([row[i : i + step] for row in rows])) for i in range(0, len(rows[0]), step)]
        result[name] = torch.cat(parts).reshape(like.shape) if parts else like.clone()
    return result


def sorted_clients(block: Tensor) -> Tensor:
    """Return (m, n): the numbers of each column of ``block`` (n, m) in ascending order."""
    columns = block.T.contiguous()
    if columns.device.type == "cpu":  # several times as fast as PyTorch's
        return torch.from_numpy(np.sort(columns.numpy(), axis=1))
    return columns.sort(dim=1).values


def middle(ordered: Tensor) -> Tensor:
    """Return (m,): the median of each row of ``ordered`` (m, n), of an even n the mean of the middle two."""
    n = ordered.shape[1]
    return (ordered[:, (n - 1) // 2] + ordered[:, n // 2]) / 2


class Median(Defence):
    """The median of each coordinate (of an even number the mean of the middle two) instead of the mean."""

    class Settings(DefenceSettings):
        """Settings of the coordinate median."""

        name: Literal["median"] = "median"

    def filter(self, view: RoundView) -> FilterResult:
        """Give every reply the median."""
        return same_for_all(view.replies, by_coordinate(view.updates, lambda block: middle(sorted_clients(block))))


class TrimmedMean(Defence):
    """The mean of what is left of each coordinate without the ``malicious`` largest and smallest."""

    class Settings(DefenceSettings):
        """Settings of the trimmed mean."""

        name: Literal["trimmed-mean"] = "trimmed-mean"
        malicious: int = Field(1, ge=0)
        """How many malicious clients a round may have, f: of each coordinate the f largest and the f smallest are left
        out; needs 2 f + 1 clients a round."""

    needs = (2, 1)

    def filter(self, view: RoundView) -> FilterResult:
        """Give every reply the trimmed mean."""
        n, f = len(view.replies), self.settings.malicious
        update = by_coordinate(view.updates, lambda block: sorted_clients(block)[:, f : n - f].mean(1))
        return same_for_all(view.replies, update)


class RobustLearningRate(Defence):
    r"""Steps against the weighted mean in every coordinate in which too few updates agree on the direction.

    :math:`\eta_j = \eta` where :math:`|\sum_k \mathrm{sgn}(\Delta_{kj})| \ge \theta`, otherwise :math:`-\eta`.
    One update at a time is enough: it needs memory for a few models, however many clients there are. Running statistics
    are averaged and never turned round: they are not steps, and a variance may turn negative.
    """

    class Settings(DefenceSettings):
        """Settings of the robust learning rate."""

        name: Literal["robust-learning-rate"] = "robust-learning-rate"
        threshold: int = Field(4, ge=1)
        """How large the sum of the updates' signs must be for a step along their mean, theta; the paper takes 4 of 10
        clients. It should lie between the number of malicious clients and that of honest ones."""

    def least(self) -> tuple[int, str]:
        """Return theta: the signs of fewer replies cannot agree enough in any coordinate."""
        return self.settings.threshold, str(self.settings.threshold)

    def check(self, replies: int, round: int) -> None:
        """Refuse a threshold that a round's clients cannot reach."""
        if self.settings.threshold > replies:
            raise ExperimentError(
                f"defence.threshold = {self.settings.threshold} can never be reached by the {replies} clients of round "
                f"{round + 1}, and no round would be merged: set it to {replies} at most"
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
            name: value if is_statistic(name) else torch.where(signs[name].abs() >= enough, value, -value)
            for name, value in mean.items()
        }
        return same_for_all(view.replies, update)
