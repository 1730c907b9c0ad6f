"""The benchmark ``mnist``: handwritten digits of 28 x 28 pixels, 0-4 to train on, 5-9 to be learned from few examples.

LeCun, Cortes and Burges, the original four IDX files, gzipped or not. As in FedFSL (section 5.3) the training set's
0-4 are trained on, and the test set's 5-9 are the novel classes; the test set's 0-4 are held out. The training set's
5-9 are not used. There are no validation classes: nothing is chosen on them.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedunseen.data.benchmarks.few_shot import DigitSettings, FewShotBenchmark, Samples

SIDE = 28
LARGEST = 100_000  # images of a file: MNIST's larger one has 60,000
KINDS = {3: ("images", 2051, LARGEST * SIDE * SIDE), 1: ("labels", 2049, LARGEST)}
"""Dimensions of an IDX file of bytes -> what it holds, what it begins with, and how many bytes at most."""


class Mnist(FewShotBenchmark):
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
    image_shape = (1, SIDE, SIDE)

    class Settings(DigitSettings):
        """``[data] name = "mnist"``."""

        name: Literal["mnist"] = "mnist"
        root: Path
        """The folder with the four IDX files, gzipped or not."""

    @classmethod
    def samples(cls, settings: Settings) -> Samples:
        """Read the four files; see :meth:`FewShotBenchmark.samples`."""
        _, files = cls.parts(settings.root)
        images, labels = cls._pair(*files[:2])
        trained = np.isin(labels, settings.roles[0])
        test_images, test_labels = cls._pair(*files[2:])
        label = np.concatenate([labels[trained], test_labels])
        in_test = np.arange(len(label)) >= np.count_nonzero(trained)
        return Samples(
            name="mnist",
            names=[str(digit) for digit in range(10)],
            roles=settings.roles,
            features=np.concatenate([images[trained], test_images])[:, None],
            labels=label,
            held_out=np.flatnonzero(in_test & np.isin(label, settings.roles[0])),
            remedy=f": get its four files again ({cls.page})",
        )

    @classmethod
    def _pair(cls, images: Path, labels: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Read the images (n, 28, 28) and the labels (n,) of one of the two sets."""
        pixels, digits = cls._read_idx(images, 3), cls._read_idx(labels, 1).astype(np.int64)
        if pixels.shape[1:] != (SIDE, SIDE):
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
