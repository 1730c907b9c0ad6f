"""Episodes: N-way P-shot Q-query tasks, and which of a benchmark's samples they are made of
(FedFSL, 3.2).

An episode is N classes with P + Q different samples of each. The first P are the support set, the
others the queries; the n-th class drawn is answer n, so that a class means another answer in every
episode.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import DataError
from fedunseen.core.sizes import PLAN, check_size
from fedunseen.data.benchmark import Benchmark

QUARTERS = 4  # turns by 0, 90, 180 and 270 degrees

Ids = NDArray[np.int64]


class Size(NamedTuple):
    """Classes of an episode, examples and queries of each; with ``rotations`` turned images are
    classes too.
    """

    ways: int
    shots: int
    queries: int
    rotations: bool = False


@dataclass(frozen=True, eq=False)
class Episodes:
    """Some episodes."""

    index: Ids
    classes: Ids
    quarters: Ids
    shots: int

    def __len__(self) -> int:
        return len(self.index)


class Tasks(NamedTuple):
    """Some tasks as tensors: support (T, N * P, ...) and queries (T, N * Q, ...), both class after
    class.
    """

    support: Tensor
    queries: Tensor


def split(samples: Tensor, shots: int) -> Tasks:
    """Divide samples (T, N, P + Q, ...) into support and queries."""
    return Tasks(samples[:, :, :shots].flatten(1, 2), samples[:, :, shots:].flatten(1, 2))


def draw_episodes(
    labels: Ids,
    count: int,
    size: Size,
    rng: np.random.Generator,
    answers: Ids | None = None,
    permuted: bool = True,
) -> Episodes:
    """Draw episodes of samples with labels (n,); not ``permuted``, a class has its answer (C,), or
    its place.
    """
    ways, shots, queries, rotations = size
    present, counts = np.unique(labels, return_counts=True)
    classes = present[counts >= shots + queries]
    members = {int(c): np.flatnonzero(labels == c) for c in classes}
    kinds = [(int(c), quarter) for c in classes for quarter in range(QUARTERS if rotations else 1)]
    fixed = answers if answers is not None and not permuted else None
    groups = [
        [k for k in kinds if fixed is None or fixed[k[0]] == a]
        for a in range(ways if fixed is not None else 1)
    ]
    if len(kinds) < ways or not all(groups):
        raise DataError(_lacking(present, counts, size))
    check_size(
        "the samples of all episodes",
        count * ways * (shots + queries),
        PLAN,
        "lower method.episodes, evaluation.episodes or strategy.local_epochs",
    )
    index = np.empty((count, ways, shots + queries), dtype=np.int64)
    chosen = np.empty((count, ways, 2), dtype=np.int64)
    for e in range(count):
        if fixed is not None:
            drawn = [group[int(rng.integers(len(group)))] for group in groups]
        else:
            places = rng.choice(len(kinds), ways, replace=False)
            drawn = [kinds[int(i)] for i in (places if permuted else np.sort(places))]
        chosen[e] = drawn
        for n, (c, _) in enumerate(drawn):
            index[e, n] = rng.choice(members[c], shots + queries, replace=False)
    return Episodes(index, chosen[..., 0], chosen[..., 1], shots)


def too_few(labels: Ids, size: Size) -> tuple[Ids, str | None]:
    """Say which classes have too few samples for an episode, and why no episode can be drawn, if
    so.
    """
    present, counts = np.unique(labels, return_counts=True)
    enough = counts >= size.shots + size.queries
    usable = enough.sum() * (QUARTERS if size.rotations else 1)
    return present[~enough], None if usable >= size.ways else _lacking(present, counts, size)


def _lacking(present: Ids, counts: Ids, size: Size) -> str:
    ways, shots, queries, rotations = size
    enough = int((counts >= shots + queries).sum())
    needed = (
        f"{-(-ways // QUARTERS)} classes, four turns of each," if rotations else f"{ways} classes"
    )
    return (
        f"{ways}-way episodes need {needed} with at least {shots + queries} samples each ({shots} "
        f"shots and {queries} queries), but of {len(present)} "
        f"{'class' if len(present) == 1 else 'classes'} {enough} "
        f"{'has' if enough == 1 else 'have'} so many"
    )


def for_episodes(benchmark: Benchmark) -> Benchmark:
    """Return the benchmark that clients of a few-shot run hold: validation classes only choose, no
    client has them.
    """
    space = benchmark.space
    if not len(space.train):
        raise DataError(
            f"{benchmark.name}: every seen class is a validation class: leave some to train on"
        )
    if not len(space.validation):
        return benchmark
    in_training = np.isin(benchmark.labels[benchmark.train], space.train)
    in_tests = np.isin(benchmark.labels[benchmark.test_seen], space.train)
    train_space = replace(space, seen=space.train, validation=np.array([], dtype=np.int64))
    return replace(
        benchmark,
        space=train_space,
        train=benchmark.train[in_training],
        test_seen=benchmark.test_seen[in_tests],
    )


def validation_samples(benchmark: Benchmark) -> Ids:
    """Return the ids of the samples of validation classes."""
    of = benchmark.labels[benchmark.train]
    return benchmark.train[np.isin(of, benchmark.space.validation)]


def turned(side: Sequence[int]) -> bool:
    """Say whether images of (height, width) can be turned by a quarter."""
    return len(side) == 2 and side[0] == side[1]
