"""The benchmark ``mnist``: handwritten digits of 28 x 28 pixels, 0-4 to train on, 5-9 to be learnt from few examples.

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

from fedunseen.core.errors import DataError
from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.benchmark import Benchmark
from fedunseen.data.benchmarks.digits import DigitSettings, digit_space, few_shot_benchmark, read_strokes

__all__ = ["Mnist", "read_idx"]

SIDE = 28
IMAGES, LABELS = 2051, 2049  # what an IDX file of bytes begins with: in three dimensions, in one
LARGEST = 100_000  # images of a file: MNIST's larger one has 60,000
SETS = ("train", "t10k")


class Mnist(BenchmarkLoader):
    """Handwritten digits of 28 x 28 pixels, few-shot."""

    title = "MNIST, few-shot: 0-4 to train on, 5-9 novel"
    page = "http://yann.lecun.com/exdb/mnist"
    layout = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte (or .gz)"
    folders = ("mnist", "MNIST", "MNIST/raw", "raw")

    class Settings(DigitSettings):
        """``[data] name = "mnist"``."""

        name: Literal["mnist"] = "mnist"
        root: Path
        """The folder with the four IDX files, gzipped or not."""

    @classmethod
    def load(cls, settings: Settings, seed: int) -> Benchmark:
        """Return the benchmark, images (n, 1, 28, 28); ``seed`` is not used.

        Raises:
            DataError: if a file is missing or damaged, or holds images of another size.
        """
        root = cls.home(settings.root)
        space = digit_space(settings.novel)
        images, labels = [], []
        for name in SETS:
            picture_file, label_file = _file(root, f"{name}-images", 3), _file(root, f"{name}-labels", 1)
            pictures, digits = read_idx(picture_file, 3), read_idx(label_file, 1).astype(np.int64)
            if pictures.shape[1:] != (SIDE, SIDE):
                height, width = pictures.shape[1:]
                raise DataError(
                    f"{picture_file} holds images of {height} x {width} pixels, but MNIST's have {SIDE} x {SIDE}: "
                    f"download it again ({cls.page})"
                )
            if len(pictures) != len(digits):
                raise DataError(
                    f"{picture_file} has {len(pictures)} images, but {label_file} has {len(digits)} labels: download "
                    f"both again ({cls.page})"
                )
            if digits.max(initial=0) > 9:
                raise DataError(
                    f"{label_file} has the label {digits.max()}, but MNIST's are 0 to 9: download it again ({cls.page})"
                )
            kept = np.isin(digits, space.seen) if name == "train" else np.ones(len(digits), dtype=bool)
            images.append(pictures[kept])
            labels.append(digits[kept])
        label = np.concatenate(labels)
        in_test = np.arange(len(label)) >= len(labels[0])
        return few_shot_benchmark(
            "mnist",
            space,
            np.concatenate(images)[:, None],
            label,
            test_seen=np.flatnonzero(in_test & np.isin(label, space.seen)),
            remedy=f": download its four files again ({cls.page})",
            image_shape=(1, SIDE, SIDE),
        )

    @classmethod
    def read(cls, path: Path, settings: Settings) -> NDArray[np.uint8]:
        """Read a picture of a digit as the benchmark's own are, shape (1, 1, 28, 28); see :func:`read_strokes`.

        Raises:
            DataError: if the file is missing or not a readable picture.
        """
        return np.rint(255 * read_strokes(Path(path), (SIDE, SIDE))).astype(np.uint8)[None, None]

    @classmethod
    def holds(cls, folder: Path) -> bool:
        """Say whether a folder has images in one of the two sets."""
        return any(_candidates(folder, f"{name}-images", 3) for name in SETS)


def read_idx(path: Path, dimensions: Literal[1, 3]) -> NDArray[np.uint8]:
    """Read an IDX file of bytes, gzipped if it is named so.

    No more is read than the file's own header promises, and that no more than 100,000 images of 28 x 28.

    Args:
        path: the file.
        dimensions: 1 for labels, 3 for images.

    Returns:
        Shape (n,), or (n, height, width).

    Raises:
        DataError: if the file is missing, is of another kind, cut short, longer than it says or far too large.
    """
    again = f"download it again ({Mnist.page})"
    magic = IMAGES if dimensions == 3 else LABELS
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(4 + 4 * dimensions)
            if len(head) < 4 + 4 * dimensions or struct.unpack(">I", head[:4])[0] != magic:
                what = "images" if dimensions == 3 else "labels"
                raise DataError(f"{path} is not an IDX file of {what} (it does not begin with {magic}): {again}")
            shape = struct.unpack(f">{dimensions}I", head[4:])
            wanted = int(np.prod(shape, dtype=object))
            if wanted > LARGEST * (SIDE * SIDE if dimensions == 3 else 1):
                raise DataError(f"{path} says that it holds {wanted:,} bytes, more than MNIST has: {again}")
            content = file.read(wanted + 1)
    except FileNotFoundError:
        raise DataError(f"{path} is missing: get MNIST's four IDX files from {Mnist.page}, or mend data.root") from None
    except EOFError:
        raise DataError(f"{path} is cut short: {again}") from None
    except (OSError, zlib.error):
        raise DataError(f"{path} is damaged, or not a gzip file: {again}") from None
    if len(content) < wanted:
        raise DataError(f"{path} is cut short, {len(content):,} of {wanted:,} bytes: {again}")
    if len(content) > wanted:
        raise DataError(f"{path} goes on after the {wanted:,} bytes that it says it holds: {again}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _candidates(root: Path, name: str, dimensions: int) -> list[Path]:
    """Return the files of one of the four parts that are there: gzipped or not, both common ways to write the name."""
    stems = (f"{name}-idx{dimensions}-ubyte", f"{name}.idx{dimensions}-ubyte")
    paths = [root / f"{stem}{ending}" for stem in stems for ending in ("", ".gz")]
    return [path for path in paths if path.is_file()]


def _file(root: Path, name: str, dimensions: int) -> Path:
    found = _candidates(root, name, dimensions)
    if not found:
        raise DataError(
            f"{root / f'{name}-idx{dimensions}-ubyte'} (or .gz) is missing: get MNIST's four IDX files from "
            f"{Mnist.page}, or mend data.root"
        )
    return found[0]
