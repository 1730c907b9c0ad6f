"""The benchmark ``digit-pairs``: two of scikit-learn's 8 x 8 digits side by side, classes "00" to
"99".

20 attributes say which digit is on the left and which on the right. Everything is fixed, for any
seed of the run; no source digit serves both training and tests. Among the 20 unseen classes, and
among the 20 validation classes, each digit is twice on the left and twice on the right: no digit is
favored, and all of them are trained on.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedunseen.core.random import stream
from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.benchmark import Benchmark, DataSettings, split_ids
from fedunseen.data.benchmarks.digits import scanned
from fedunseen.data.class_space import ClassSpace
from fedunseen.data.io.images import ImageBytes, read_strokes

HEIGHT = 8
WIDTH = 16
UNSEEN_SHIFTS = (3, 7)  # a class is unseen if (right - left) mod 10 is one of these
VALIDATION_SHIFTS = (1, 6)
TRAIN_SHARE = 0.7  # of the source digits


class DigitPairs(BenchmarkLoader, name="digit-pairs"):
    """Two handwritten digits side by side."""

    title = "two handwritten digits side by side"

    class Settings(DataSettings):
        """Settings of ``digit-pairs``."""

        train_per_class: int = Field(60, ge=1, le=1000)
        """At most so many training images of each class, drawn once for all runs; unset takes
        all."""
        test_per_class: int = Field(30, ge=1, le=1000)
        """At most so many test images of each class, drawn once for all runs; unset takes all."""

    @classmethod
    def load(cls, settings: Settings, seed: int) -> Benchmark:
        """Return the benchmark; ``seed`` is not used (see the top of this file)."""
        return cls.of(class_space(), settings)

    @classmethod
    def of(cls, space: ClassSpace, settings: Settings) -> Benchmark:
        """Return the benchmark with another choice of seen and unseen classes."""
        train_sources, test_sources = _sources()
        images: list[NDArray[np.float32]] = []
        labels: list[int] = []
        tests: list[bool] = []
        for c in range(100):
            kinds = [("test", test_sources, settings.test_per_class)]
            if c in space.seen:
                kinds.insert(0, ("train", train_sources, settings.train_per_class))
            for split, sources, count in kinds:
                images.append(_pairs(sources[c // 10], sources[c % 10], count, split, c))
                labels += [c] * count
                tests += [split == "test"] * count
        label = np.array(labels)
        splits = split_ids(space, label, np.array(tests))
        return Benchmark(
            "digit-pairs",
            space,
            np.concatenate(images),
            label,
            image_shape=(HEIGHT, WIDTH),
            **splits,
        )

    @classmethod
    def read(cls, path: Path | ImageBytes, settings: Settings) -> NDArray[np.float32]:
        """Read a picture of two digits side by side, shape (1, 128); see :func:`read_strokes`."""
        return read_strokes(path, (HEIGHT, WIDTH)).reshape(1, HEIGHT * WIDTH)


def class_space(
    unseen_shifts: Sequence[int] = UNSEEN_SHIFTS,
    validation_shifts: Sequence[int] = VALIDATION_SHIFTS,
) -> ClassSpace:
    """Return the 100 classes of two digits with their one-hot attributes."""
    classes = np.arange(100)
    left = classes // 10
    right = classes % 10
    shift = (right - left) % 10
    unseen = np.isin(shift, unseen_shifts)
    validation = np.isin(shift, validation_shifts)
    return ClassSpace(
        names=tuple(f"{c:02d}" for c in classes),
        semantics=np.concatenate([np.eye(10)[left], np.eye(10)[right]], axis=1),
        attribute_names=tuple(
            f"{side} {digit}" for side in ("left", "right") for digit in range(10)
        ),
        seen=np.flatnonzero(~unseen),
        validation=np.flatnonzero(validation),
        unseen=np.flatnonzero(unseen),
        attribute_groups={"left": tuple(range(10)), "right": tuple(range(10, 20))},
    )


def _sources() -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
    """Return the source digits for training and for tests: by digit, shape (count, 8, 8), in [0,
    1].
    """
    images, labels = scanned()
    train = []
    test = []
    for digit in range(10):
        mine = (images[labels == digit] / 16).astype(np.float32)
        mine = mine[stream(0, "digit-pairs sources", digit).permutation(len(mine))]
        cut = round(TRAIN_SHARE * len(mine))
        train.append(mine[:cut])
        test.append(mine[cut:])
    return train, test


def _pairs(
    left: NDArray[np.float32], right: NDArray[np.float32], count: int, split: str, c: int
) -> NDArray[np.float32]:
    """Draw different pairs of one class, shape (count, 128); a larger count begins with the same
    ones.
    """
    order = stream(0, f"digit-pairs {split}", c).permutation(len(left) * len(right))[:count]
    pair = np.concatenate([left[order // len(right)], right[order % len(right)]], axis=2)
    return pair.reshape(count, HEIGHT * WIDTH)
