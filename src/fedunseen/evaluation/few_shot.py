"""What few-shot models answer in episodes; :mod:`fedunseen.metrics` says how good that is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.samples import Inputs
from fedunseen.data.episodes import Episodes, Tasks, split


def episode_answers(
    classify: Callable[[Tasks], Tensor], inputs: Inputs, rows: NDArray[np.int64], episodes: Episodes, block: int = 8
) -> NDArray[np.int64]:
    """Return (E, N, Q) the answers to the queries of episodes."""
    ways = episodes.index.shape[1]
    parts = []
    for start in range(0, len(episodes), block):
        index = torch.from_numpy(rows[episodes.index[start : start + block]]).to(inputs.device)
        logits = classify(split(inputs[index], episodes.shots))
        parts.append(logits.argmax(-1).reshape(len(index), ways, -1).cpu())
    return torch.cat(parts).numpy()


def nearest_support(ways: int) -> Callable[[Tasks], Tensor]:
    """Return what answers queries by the nearest support sample, as the samples are: pixels, or mean word vectors."""

    def classify(tasks: Tasks) -> Tensor:
        support, queries = (_raw(side) for side in tasks)
        distance = torch.cdist(queries, support)  # (T, N * Q, N * P)
        nearest: Tensor = distance.reshape(*distance.shape[:2], ways, -1).amin(-1)
        return -nearest

    return classify


def _raw(samples: Tensor) -> Tensor:
    """Return samples (T, n, ...) as vectors (T, n, d); of sequences (T, n, steps, width) the mean over their words."""
    values = samples.to(torch.promote_types(samples.dtype, torch.float32))
    if values.ndim == 4:
        there = (values != 0).any(-1, keepdim=True)
        return (values * there).sum(2) / there.sum(2).clamp_min(1)
    return values.flatten(2)
