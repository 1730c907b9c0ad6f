"""The benchmarks ``digits`` and ``mnist``: handwritten digits, 0-4 to train on, 5-9 to be learned from a few examples.

``digits``: scikit-learn's 1,797 images of 8 x 8 gray values; the held-out fifth is always the same. ``mnist``: as in
FedFSL (section 5.3) the training set's 0-4 are trained on, the test set's 0-4 are held out, its 5-9 are novel. Five
classes are memorized: a number on ``digits`` says that an experiment runs, not that a method is good.
"""

import gzip
import struct
import zlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import field_validator

from fedunseen.core.random import stream
from fedunseen.data.benchmark import Benchmark, DataSettings
from fedunseen.data.benchmarks.few_shot import FewShotBenchmark

NAMES = tuple("0123456789")
SIDE = 8
MNIST_SIDE = 28
LARGEST = 100_000  # images of a file: MNIST's larger one has 60,000
KINDS = {3: ("images", 2051, LARGEST * MNIST_SIDE * MNIST_SIDE), 1: ("labels", 2049, LARGEST)}
"""Dimensions of an IDX file of bytes -> what it holds, what it begins with, and how many bytes at most."""
HELD_OUT = 0.2  # of each training digit's images


def scanned() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return scikit-learn's images (1797, 8, 8) in [0, 16], and digits; importing it takes as long as PyTorch."""
    spec = find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    with gzip.open(Path(spec.origin).with_name("datasets") / "data" / "digits.csv.gz", "rt") as lines:
        table = np.loadtxt(lines, delimiter=",")
    return table[:, :-1].reshape(-1, SIDE, SIDE), table[:, -1].astype(np.int64)


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


class Digits(FewShotBenchmark, name="digits"):
    """Handwritten digits of 8 x 8 pixels, few-shot: features (n, 64) in [0, 1]."""

    title = "handwritten digits, few-shot: 0-4 to train on, 5-9 novel"
    image_shape = (SIDE, SIDE)

    Settings = DigitSettings

    @classmethod
    def load(cls, settings: DigitSettings, seed: int) -> Benchmark:
        """Read the digits."""
        images, labels = scanned()
        held_out = []
        for c in settings.roles[0]:
            shuffled = stream(0, "digits held out", c).permutation(np.flatnonzero(labels == c))
            held_out.append(shuffled[: round(HELD_OUT * len(shuffled))])
        features = (images / 16).astype(np.float32).reshape(-1, SIDE * SIDE)
        return cls.build("digits", NAMES, settings.roles, features, labels, np.concatenate(held_out))


class Mnist(FewShotBenchmark, name="mnist"):
    """Handwritten digits of 28 x 28 pixels, few-shot: images (n, 1, 28, 28)."""

    title = "MNIST, few-shot: 0-4 to train on, 5-9 novel"
    page = "http://yann.lecun.com/exdb/mnist"
    needs = tuple(  # both common ways to write a name, gzipped or not
        "|".join(f"{part}-{KINDS[dim][0]}{mark}idx{dim}-ubyte{end}" for mark in "-." for end in ("", ".gz"))
        for part in ("train", "t10k")
        for dim in KINDS
    )
    layout = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte (or .gz)"
    folders = ("mnist", "MNIST", "MNIST/raw", "raw")
    image_shape = (1, MNIST_SIDE, MNIST_SIDE)
    remedy = f": get its four files again ({page})"

    class Settings(DigitSettings):
        """Settings of ``mnist``."""

        root: Path
        """The folder with the four IDX files, gzipped or not."""

    @classmethod
    def load(cls, settings: Settings, seed: int) -> Benchmark:
        """Read the four files."""
        _, files = cls.parts(settings.root)
        images, labels = cls._pair(*files[:2])
        trained = np.isin(labels, settings.roles[0])
        test_images, test_labels = cls._pair(*files[2:])
        label = np.concatenate([labels[trained], test_labels])
        in_test = np.arange(len(label)) >= np.count_nonzero(trained)
        features = np.concatenate([images[trained], test_images])[:, None]
        held_out = np.flatnonzero(in_test & np.isin(label, settings.roles[0]))
        return cls.build("mnist", NAMES, settings.roles, features, label, held_out)

    @classmethod
    def _pair(cls, images: Path, labels: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Read the images (n, 28, 28) and the labels (n,) of one of the two sets."""
        pixels, digits = cls._read_idx(images, 3), cls._read_idx(labels, 1).astype(np.int64)
        if pixels.shape[1:] != (MNIST_SIDE, MNIST_SIDE):
            raise cls.damaged(images, f"holds images of {pixels.shape[1]} x {pixels.shape[2]} pixels, not 28 x 28")
        if len(pixels) != len(digits):
            raise cls.damaged(images, f"has {len(pixels)} images, but {labels} has {len(digits)} labels")
        if digits.max(initial=0) > 9:
            raise cls.damaged(labels, f"has the label {digits.max()}, but MNIST's are 0 to 9")
        return pixels, digits

    @classmethod
    def _read_idx(cls, path: Path, dimensions: int) -> NDArray[np.uint8]:
        """Read an IDX file of bytes, gzipped if it is named so; never more than its own header promises."""
        kind, magic, largest = KINDS[dimensions]
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                head = file.read(4 + 4 * dimensions)
                if len(head) < 4 + 4 * dimensions or struct.unpack(">I", head[:4])[0] != magic:
                    raise cls.damaged(path, f"is not an IDX file of {kind} (it does not begin with {magic})")
                shape = struct.unpack(f">{dimensions}I", head[4:])
                size = int(np.prod(shape, dtype=object))
                if size > largest:
                    raise cls.damaged(path, f"says that it holds {size:,} bytes, more than MNIST has")
                content = file.read(size + 1)
        except EOFError:
            raise cls.damaged(path, "is cut short") from None
        except (OSError, zlib.error):
            raise cls.damaged(path, "is damaged, or not a gzip file") from None
        if len(content) < size:
            raise cls.damaged(path, f"is cut short, {len(content):,} of {size:,} bytes")
        if len(content) > size:
            raise cls.damaged(path, f"continues after the {size:,} bytes that it says it holds")
        return np.frombuffer(content, dtype=np.uint8).reshape(shape)
