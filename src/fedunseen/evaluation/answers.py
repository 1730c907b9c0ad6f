"""What a model answers, to samples and in episodes, batch by batch; :mod:`fedunseen.metrics` says
how good that is.
"""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.samples import Inputs
from fedunseen.data import ClassSpace
from fedunseen.data.episodes import Episodes, Tasks, split
from fedunseen.metrics import Answers, answers_of


def answer(
    scores: Iterable[Tensor],
    labels: NDArray[np.int64],
    space: ClassSpace,
    unseen_scores: Iterable[Tensor] | None = None,
) -> Answers:
    """Turn a model's scores of test samples, of seen and of unseen classes, into answers."""
    parts = []
    done = 0
    for batch in scores:
        batch_labels = labels[done : done + len(batch)]
        parts.append(
            answers_of(batch.float().cpu().numpy(), batch_labels, space.seen, space.unseen)
        )
        done += len(batch)
    best_seen, best_unseen, gap, unseen = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("best_seen", "best_unseen", "gap", "unseen")
    )
    zsl = best_unseen
    if unseen_scores is not None:
        best = [
            space.unseen[batch.float().cpu().numpy()[:, space.unseen].argmax(1)]
            for batch in unseen_scores
        ]
        zsl = np.concatenate(best)
    return Answers(labels, best_seen, best_unseen, gap, unseen, zsl)


def episode_answers(
    classify: Callable[[Tasks], Tensor],
    inputs: Inputs,
    rows: NDArray[np.int64],
    episodes: Episodes,
    block: int = 8,
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
    """Return what answers queries by the nearest support sample, as the samples are: pixels, or
    mean word vectors.
    """

    def classify(tasks: Tasks) -> Tensor:
        support, queries = (_raw(side) for side in tasks)
        distance = torch.cdist(queries, support)  # (T, N * Q, N * P)
        nearest: Tensor = distance.reshape(*distance.shape[:2], ways, -1).amin(-1)
        return -nearest

    return classify


def _raw(samples: Tensor) -> Tensor:
    """Return samples (T, n, ...) as vectors (T, n, d); of sequences (T, n, steps, width) the mean
    over their words.
    """
    values = samples.to(torch.promote_types(samples.dtype, torch.float32))
    if values.ndim == 4:
        is_word = (values != 0).any(-1, keepdim=True)
        return (values * is_word).sum(2) / is_word.sum(2).clamp_min(1)
    return values.flatten(2)
