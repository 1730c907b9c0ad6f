"""The benchmark ``digits``: scikit-learn's handwritten digits, 0-4 to train on, 5-9 to be learnt from a few examples.

1,797 images of 8 x 8 grey values (UCI, "Optical Recognition of Handwritten Digits"), nothing to download. It has the
shape of FedFSL's example on MNIST (section 5.3): with five classes to train on every learner memorises them, so a
number on it says that an experiment runs, not that a method is good. A fifth of the training digits' images is held
out for tests; which ones is fixed, whatever the run's seed.

What the few-shot benchmarks share is here too: the class space without attributes, and the check that no class is
empty.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import field_validator

from fedunseen.core.errors import DataError
from fedunseen.core.random import stream
from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.benchmark import Benchmark, DataSettings
from fedunseen.data.class_space import ClassSpace
from fedunseen.data.io.images import UNREADABLE, open_image, upright

__all__ = ["DigitSettings", "Digits", "few_shot_benchmark", "few_shot_space", "read_strokes", "scanned"]

SIDE = 8
HELD_OUT = 0.2  # of each training digit's images


def scanned() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return scikit-learn's images (1797, 8, 8), grey values in [0, 16], and their digits (1797,).

    They are read from its folder: importing scikit-learn to load them takes as long as PyTorch.

    Raises:
        DataError: scikit-learn is not there, or without them.
    """
    found = find_spec("sklearn")
    places = list(found.submodule_search_locations or ()) if found else []
    file = Path(places[0], "datasets", "data", "digits.csv.gz") if places else Path("digits.csv.gz")
    try:
        with gzip.open(file, "rt") as lines:
            table = np.loadtxt(lines, delimiter=",")
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({error}): install scikit-learn again, which brings it") from None
    return table[:, :-1].reshape(-1, SIDE, SIDE), table[:, -1].astype(np.int64)


class DigitSettings(DataSettings):
    """Which of the ten digits are novel."""

    novel: tuple[int, ...] = (5, 6, 7, 8, 9)
    """The digits that are learnt from a few examples; the others are trained on."""

    @field_validator("novel")
    @classmethod
    def _check(cls, novel: tuple[int, ...]) -> tuple[int, ...]:
        if not 0 < len(novel) < 10 or len(set(novel)) < len(novel) or not set(novel) <= set(range(10)):
            raise ValueError(f"{list(novel)}: name 1 to 9 different digits")
        return tuple(sorted(novel))


class Digits(BenchmarkLoader):
    """Handwritten digits of 8 x 8 pixels, few-shot."""

    title = "handwritten digits, few-shot: 0-4 to train on, 5-9 novel"

    class Settings(DigitSettings):
        """``[data] name = "digits"``."""

        name: Literal["digits"] = "digits"

    @classmethod
    def load(cls, settings: Settings, seed: int) -> Benchmark:
        """Return the benchmark, features (n, 64) in [0, 1]; ``seed`` is not used (see the top of this file)."""
        images, labels = scanned()
        space = digit_space(settings.novel)
        held = []
        for c in space.seen.tolist():
            mine = np.flatnonzero(labels == c)
            shuffled = stream(0, "digits held out", c).permutation(mine)
            held.append(shuffled[: round(HELD_OUT * len(mine))])
        return few_shot_benchmark(
            "digits",
            space,
            (images / 16).astype(np.float32).reshape(-1, SIDE * SIDE),
            labels,
            test_seen=np.concatenate(held),
            image_shape=(SIDE, SIDE),
        )

    @classmethod
    def read(cls, path: Path, settings: Settings) -> NDArray[np.float32]:
        """Read a picture of a digit, shape (1, 64); see :func:`read_strokes`.

        Raises:
            DataError: if the file is missing or not a readable picture.
        """
        return read_strokes(Path(path), (SIDE, SIDE)).reshape(1, SIDE * SIDE)


def few_shot_space(
    names: Sequence[str], training: Sequence[int], validation: Sequence[int], novel: Sequence[int]
) -> ClassSpace:
    """Return a class space that nothing describes: its classes are learnt from examples alone.

    Args:
        names: of C classes.
        training: ids of the classes to train on.
        validation: ids of the classes to choose on.
        novel: ids of the classes that a run is tested on.

    Example:
        >>> space = few_shot_space(["a", "b", "c"], [0], [1], [2])
        >>> space.seen.tolist(), space.validation.tolist(), space.unseen.tolist(), space.semantics.shape
        ([0, 1], [1], [2], (3, 0))
    """
    return ClassSpace(
        names=tuple(names),
        semantics=np.zeros((len(names), 0)),
        attribute_names=(),
        seen=np.array([*training, *validation], dtype=np.int64),
        validation=np.array(validation, dtype=np.int64),
        unseen=np.array(novel, dtype=np.int64),
    )


def few_shot_benchmark(
    name: str,
    space: ClassSpace,
    features: NDArray[Any],
    labels: NDArray[np.int64],
    test_seen: NDArray[np.int64] | None = None,
    remedy: str = "",
    **more: Any,
) -> Benchmark:
    """Return a benchmark whose samples all serve: seen classes' to train on, novel classes' for tests.

    Args:
        name: of the benchmark.
        space: of :func:`few_shot_space`.
        features: (n, ...).
        labels: (n,), class ids.
        test_seen: ids of samples of training classes that are held out for tests; none if unset.
        remedy: what to do about a class without samples, for the message.
        more: further attributes of the benchmark.

    Raises:
        DataError: if a class has no sample, and as :class:`Benchmark`.
    """
    for c in np.concatenate([space.seen, space.unseen]).tolist():
        if not (labels == c).any():
            raise DataError(f"{name}: the class {space.names[c]!r} has no sample{remedy}")
    held = np.array([], dtype=np.int64) if test_seen is None else test_seen
    return Benchmark(
        name=name,
        space=space,
        features=features,
        labels=labels,
        train=np.setdiff1d(np.flatnonzero(np.isin(labels, space.seen)), held),
        test_seen=held,
        test_unseen=np.flatnonzero(np.isin(labels, space.unseen)),
        **more,
    )


def digit_space(novel: Sequence[int]) -> ClassSpace:
    """Return the ten digits, some of them novel."""
    rest = [digit for digit in range(10) if digit not in novel]
    return few_shot_space([str(digit) for digit in range(10)], rest, [], novel)


def read_strokes(
    path: Path, shape: tuple[int, int], resample: Image.Resampling = Image.Resampling.BOX
) -> NDArray[np.float32]:
    """Read a picture of strokes (a digit, a character), light on dark as the benchmarks have it.

    The picture may have any size and mode. Only its first frame counts; transparent parts are white; it is turned
    grey, resized without keeping its proportions, and inverted if its border is light.

    Args:
        path: the picture.
        shape: (height, width) of the result.
        resample: how it is resized.

    Returns:
        ``shape``, in [0, 1].

    Raises:
        DataError: if the file is missing or not a readable picture.
    """
    try:
        with open_image(path) as file:
            grey = upright(file).convert("L")
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except UNREADABLE:
        raise DataError(f"{path} is not a readable picture") from None
    image = np.asarray(grey.resize(shape[::-1], resample), dtype=np.float32) / np.float32(255)
    border = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    return np.float32(1) - image if np.median(border) > 0.5 else image
