"""The benchmarks ``digits`` and ``mnist``: handwritten digits, 0-4 to train on, 5-9 to be learned
from a few examples.

``digits``: scikit-learn's 1,797 images of 8 x 8 gray values; the held-out fifth is always the same.
``mnist``: as in FedFSL (section 5.3) the training set's 0-4 are trained on, the test set's 0-4 are
held out, its 5-9 are novel. Five classes are memorized: a number on ``digits`` says that an
experiment runs, not that a method is good.
"""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.random import stream
from fedunseen.data.benchmark import Benchmark, DataSettings
from fedunseen.data.benchmarks.few_shot import FewShotBenchmark

NAMES = tuple("0123456789")
SIDE = 8
MNIST_SIDE = 28
LARGEST = 100_000  # images of a file: MNIST's larger one has 60,000
KINDS = {3: ("images", 2051, LARGEST * MNIST_SIDE * MNIST_SIDE), 1: ("labels", 2049, LARGEST)}
"""Dimensions of an IDX file of bytes -> what it holds, what it begins with, and how many bytes at
most.
"""
HELD_OUT = 0.2  # of each training digit's images


def scanned() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the images (1797, 8, 8) in [0, 16] and digits (1797,) of scikit-learn's
    ``load_digits``.

    ``digits.csv.gz`` holds them: importing ``sklearn.datasets`` takes most of the time of a short
    run. Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, CC BY
    4.0.
    """
    with gzip.open(Path(__file__).with_name("digits.csv.gz"), "rt") as lines:
        table = np.loadtxt(lines, delimiter=",")
    return table[:, :-1].reshape(-1, SIDE, SIDE), table[:, -1].astype(np.int64)


ROLES = (tuple(range(5)), (), tuple(range(5, 10)))
"""The digits that are trained on, none to choose on, and those learned from a few examples."""


class Digits(FewShotBenchmark, name="digits"):
    """Handwritten digits of 8 x 8 pixels, few-shot: features (n, 64) in [0, 1]."""

    title = "handwritten digits, few-shot: 0-4 to train on, 5-9 novel"
    image_shape = (SIDE, SIDE)

    @classmethod
    def load(cls, settings: DataSettings, seed: int) -> Benchmark:
        """Read the digits."""
        images, labels = scanned()
        held_out = []
        for c in ROLES[0]:
            shuffled = stream(0, "digits held out", c).permutation(np.flatnonzero(labels == c))
            held_out.append(shuffled[: round(HELD_OUT * len(shuffled))])
        features = (images / 16).astype(np.float32).reshape(-1, SIDE * SIDE)
        return cls.build("digits", NAMES, ROLES, features, labels, np.concatenate(held_out))


class Mnist(FewShotBenchmark, name="mnist"):
    """Handwritten digits of 28 x 28 pixels, few-shot: images (n, 1, 28, 28)."""

    title = "MNIST, few-shot: 0-4 to train on, 5-9 novel"
    page = "http://yann.lecun.com/exdb/mnist"
    needs = tuple(  # both common ways to write a name, gzipped or not
        "|".join(
            f"{part}-{KINDS[dim][0]}{mark}idx{dim}-ubyte{end}"
            for mark in "-."
            for end in ("", ".gz")
        )
        for part in ("train", "t10k")
        for dim in KINDS
    )
    layout = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte (or .gz)"
    folders = ("mnist", "MNIST", "MNIST/raw", "raw")
    image_shape = (1, MNIST_SIDE, MNIST_SIDE)
    remedy = f": get its four files again ({page})"

    class Settings(DataSettings):
        """Settings of ``mnist``."""

        root: Path
        """The folder of the data set, or of several for `xlsa17`, with the files that `fedunseen
        data list` names."""

    @classmethod
    def load(cls, settings: Settings, seed: int) -> Benchmark:
        """Read the four files."""
        _, files = cls.parts(settings.root)
        images, labels = cls._pair(*files[:2])
        trained = np.isin(labels, ROLES[0])
        test_images, test_labels = cls._pair(*files[2:])
        label = np.concatenate([labels[trained], test_labels])
        in_test = np.arange(len(label)) >= np.count_nonzero(trained)
        features = np.concatenate([images[trained], test_images])[:, None]
        held_out = np.flatnonzero(in_test & np.isin(label, ROLES[0]))
        return cls.build("mnist", NAMES, ROLES, features, label, held_out)

    @classmethod
    def _pair(cls, images: Path, labels: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Read the images (n, 28, 28) and the labels (n,) of one of the two sets."""
        pixels = cls._read_idx(images, 3)
        digits = cls._read_idx(labels, 1).astype(np.int64)
        if pixels.shape[1:] != (MNIST_SIDE, MNIST_SIDE):
            raise cls.damaged(
                images, f"holds images of {pixels.shape[1]} x {pixels.shape[2]} pixels, not 28 x 28"
            )
        if len(pixels) != len(digits):
            raise cls.damaged(
                images, f"has {len(pixels)} images, but {labels} has {len(digits)} labels"
            )
        if digits.max(initial=0) > 9:
            raise cls.damaged(labels, f"has the label {digits.max()}, but MNIST's are 0 to 9")
        return pixels, digits

    @classmethod
    def _read_idx(cls, path: Path, dimensions: int) -> NDArray[np.uint8]:
        """Read an IDX file of bytes, gzipped if it is named so; never more than its own header
        promises.
        """
        kind, magic, largest = KINDS[dimensions]
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                head = file.read(4 + 4 * dimensions)
                if len(head) < 4 + 4 * dimensions or struct.unpack(">I", head[:4])[0] != magic:
                    raise cls.damaged(
                        path, f"is not an IDX file of {kind} (it does not begin with {magic})"
                    )
                shape = struct.unpack(f">{dimensions}I", head[4:])
                size = int(np.prod(shape, dtype=object))
                if size > largest:
                    raise cls.damaged(
                        path, f"says that it holds {size:,} bytes, more than MNIST has"
                    )
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
