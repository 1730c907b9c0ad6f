"""What the few-shot benchmarks share: classes that nothing describes, every sample in use, and how pictures are read.

A benchmark declares its files, its image shape and its classes; :meth:`FewShotBenchmark.samples` reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import field_validator

from fedunseen.core.errors import DataError
from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.benchmark import Benchmark, DataSettings
from fedunseen.data.class_space import ClassSpace
from fedunseen.data.io.images import read_image, read_strokes


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of a few-shot benchmark and the roles of its classes."""

    name: str
    names: Sequence[str]
    roles: Sequence[Sequence[int]]
    features: NDArray[Any]
    labels: NDArray[np.int64]
    held_out: NDArray[np.int64] = field(default_factory=lambda: np.array([], dtype=np.int64))
    users: NDArray[np.int64] | None = None
    answers: NDArray[np.int64] | None = None
    remedy: str = ""


class FewShotBenchmark(BenchmarkLoader):
    """Base of the few-shot benchmarks. Their splits are fixed: the run's seed draws nothing."""

    image_shape: ClassVar[tuple[int, ...] | None] = None
    """(channels, height, width), or (height, width) of flattened gray values; None: the samples are no images."""
    resample: ClassVar[Image.Resampling] = Image.Resampling.BOX
    """How a picture of strokes is resized."""

    @classmethod
    def samples(cls, settings: Any) -> Samples:
        """Read the samples and the split."""
        raise TypeError(f"{cls.__name__} must say how its samples are read")

    @classmethod
    def load(cls, settings: Any, seed: int) -> Benchmark:
        """Return the benchmark; ``seed`` is not used."""
        made = cls.samples(settings)
        space = few_shot_space(made.names, *made.roles)
        for c in np.concatenate([space.seen, space.unseen]).tolist():
            if not (made.labels == c).any():
                raise DataError(f"{made.name}: the class {space.names[c]!r} has no sample{made.remedy}")
        return Benchmark(
            name=made.name,
            space=space,
            features=made.features,
            labels=made.labels,
            train=np.setdiff1d(np.flatnonzero(np.isin(made.labels, space.seen)), made.held_out),
            test_seen=made.held_out,
            test_unseen=np.flatnonzero(np.isin(made.labels, space.unseen)),
            image_shape=cls.image_shape,
            users=made.users,
            answers=made.answers,
        )

    @classmethod
    def read(cls, path: Path, settings: Any) -> NDArray[Any]:
        """Read a picture as the benchmark's own samples are: (1, channels, height, width) bytes, or flattened."""
        assert cls.image_shape is not None
        *channels, height, width = cls.image_shape
        if channels == [3]:
            return read_image(Path(path), height, width)
        strokes = read_strokes(Path(path), (height, width), cls.resample)
        return np.rint(255 * strokes).astype(np.uint8)[None, None] if channels else strokes.reshape(1, -1)


class DigitSettings(DataSettings):
    """Which of the ten digits are novel."""

    novel: tuple[int, ...] = (5, 6, 7, 8, 9)
    """The digits that are learned from a few examples; the others are trained on."""

    @field_validator("novel")
    @classmethod
    def _check(cls, novel: tuple[int, ...]) -> tuple[int, ...]:
        if not 0 < len(novel) < 10 or len(set(novel)) < len(novel) or not set(novel) <= set(range(10)):
            raise ValueError(f"{list(novel)}: name 1 to 9 different digits")
        return tuple(sorted(novel))

    @property
    def roles(self) -> tuple[list[int], list[int], tuple[int, ...]]:
        """The digits that are trained on, none to choose on, and the novel ones."""
        return [digit for digit in range(10) if digit not in self.novel], [], self.novel


def few_shot_space(
    names: Sequence[str], training: Sequence[int], validation: Sequence[int], novel: Sequence[int]
) -> ClassSpace:
    """Return a class space that nothing describes: its classes are learned from examples alone."""
    return ClassSpace(
        names=tuple(names),
        semantics=np.zeros((len(names), 0)),
        attribute_names=(),
        seen=np.array([*training, *validation], dtype=np.int64),
        validation=np.array(validation, dtype=np.int64),
        unseen=np.array(novel, dtype=np.int64),
    )
