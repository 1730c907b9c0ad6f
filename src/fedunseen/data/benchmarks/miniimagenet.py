"""The benchmark ``miniimagenet``: 100 classes of ImageNet with 600 photos each, 64 / 16 / 20 of them.

Vinyals et al. (2016) made the benchmark, but not their list of classes; the split that everybody uses is that of Ravi
and Larochelle, "Optimization as a Model for Few-Shot Learning" (2017): ``train.csv``, ``val.csv`` and ``test.csv`` with
the columns ``filename,label``. The images are ImageNet's (ILSVRC 2012), which may not be passed on: the three lists are
easy to find, the images have to be cut out of ImageNet.

An image becomes 84 x 84 pixels without keeping its proportions (Pillow's Lanczos filter), as in that split's own
script. That is done once, see ``fedunseen.data.io.images.cached``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedunseen.core.errors import DataError
from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.benchmark import Benchmark, DataSettings
from fedunseen.data.benchmarks.digits import few_shot_benchmark, few_shot_space
from fedunseen.data.io.csv_io import read_csv
from fedunseen.data.io.images import UNREADABLE, cached, open_image, upright

__all__ = ["MiniImageNet"]

SIDE = 84
PARTS = ("train", "val", "test")
PLACES = ("images/{file}", "{file}", "images/{label}/{file}", "{label}/{file}")
BLOCK = 256  # images decoded, then written, at a time


class MiniImageNet(BenchmarkLoader):
    """Photos of 84 x 84 pixels, few-shot."""

    title = "miniImageNet, Ravi's split of 64 / 16 / 20 classes, few-shot"
    page = "https://github.com/twitter-research/meta-learning-lstm"
    layout = "train.csv, val.csv, test.csv, images/*.jpg"
    folders = ("miniimagenet", "mini-imagenet", "mini_imagenet", "miniImageNet")

    class Settings(DataSettings):
        """``[data] name = "miniimagenet"``."""

        name: Literal["miniimagenet"] = "miniimagenet"
        root: Path
        """The folder with `images/*.jpg` (or `LABEL/*.jpg`) and, unless `splits` is given, the three lists."""
        splits: Path | None = None
        """The folder of `train.csv`, `val.csv` and `test.csv`, if it is not the root."""

    @classmethod
    def load(cls, settings: Settings, seed: int) -> Benchmark:
        """Return the benchmark, images (n, 3, 84, 84); ``seed`` is not used.

        Raises:
            DataError: if a list or an image is missing or damaged.
        """
        root = settings.root.expanduser() if settings.splits is not None else cls.home(settings.root)
        rows = read_split(settings.splits.expanduser() if settings.splits is not None else root)
        labels = {part: sorted({label for _, label in rows[part]}) for part in PARTS}
        names = [label for part in PARTS for label in labels[part]]
        ids = {label: c for c, label in enumerate(names)}
        listed = [row for part in PARTS for row in rows[part]]
        return few_shot_benchmark(
            "miniimagenet",
            few_shot_space(names, *([ids[label] for label in labels[part]] for part in PARTS)),
            _images(root, listed),
            np.array([ids[label] for _, label in listed], dtype=np.int64),
            image_shape=(3, SIDE, SIDE),
        )

    @classmethod
    def read(cls, path: Path, settings: Settings) -> NDArray[np.uint8]:
        """Read an image of any size as the benchmark's own are, shape (1, 3, 84, 84).

        Raises:
            DataError: if the file is missing or not a readable image.
        """
        return _read(Path(path))[None]

    @classmethod
    def holds(cls, folder: Path) -> bool:
        """Say whether a folder has the three lists."""
        return all((folder / f"{part}.csv").is_file() for part in PARTS)


def read_split(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Read the three lists.

    Returns:
        ``train``, ``val``, ``test`` -> (file, label) of each image.

    Raises:
        DataError: if a list is missing, damaged or empty, or a class is in two of them.
    """
    rows: dict[str, list[tuple[str, str]]] = {}
    part_of: dict[str, str] = {}
    for part in PARTS:
        path = folder / f"{part}.csv"
        if not path.is_file():
            raise DataError(
                f"{path} is missing: get Ravi's lists train.csv, val.csv and test.csv ({MiniImageNet.page}), or name "
                "their folder in data.splits"
            )
        (_, header), *lines = read_csv(path)
        if header != ["filename", "label"]:
            raise DataError(f"{path}: the first line must be 'filename,label': get the list again")
        if not lines:
            raise DataError(f"{path} names no image: get the list again")
        for number, (file, label) in lines:
            if not _is_name(file) or not _is_name(label):
                raise DataError(
                    f"{path}, line {number}: {file!r} and {label!r} are not the names of a file and a class: get the "
                    "list again"
                )
            if part_of.setdefault(label, part) != part:
                raise DataError(f"{path}, line {number}: the class {label!r} is in {part_of[label]}.csv too: mend one")
        rows[part] = [(file, label) for _, (file, label) in lines]
    return rows


def _is_name(text: str) -> bool:
    """Say whether a text names a file in a folder, not elsewhere."""
    return text not in ("", ".", "..") and "/" not in text and "\\" not in text


def _images(root: Path, listed: list[tuple[str, str]]) -> NDArray[np.uint8]:
    """Return the images, kept in the cache."""
    file, label = listed[0]
    place = next((place for place in PLACES if (root / place.format(file=file, label=label)).is_file()), PLACES[0])
    paths = [root / place.format(file=file, label=label) for file, label in listed]
    stamps: list[tuple[str, int, int]] = []
    missing: list[Path] = []
    for path in paths:
        try:
            found = path.stat()
            stamps.append((path.name, found.st_size, found.st_mtime_ns))
        except OSError:
            missing.append(path)
    if missing:
        raise DataError(
            f"{missing[0]} is missing ({len(missing):,} of {len(paths):,} images are): get ImageNet (ILSVRC 2012, "
            f"https://image-net.org), cut miniImageNet's images out of it as {MiniImageNet.page} says, and put them "
            "there, or mend data.root"
        )

    def produce() -> Iterator[NDArray[np.uint8]]:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
            for start in range(0, len(paths), BLOCK):
                yield np.stack(list(threads.map(_read, paths[start : start + BLOCK])))

    return cached("miniimagenet", [str(root.resolve()), stamps], (len(paths), 3, SIDE, SIDE), produce)


def _read(path: Path) -> NDArray[np.uint8]:
    try:
        with open_image(path) as file:
            small = upright(file).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except UNREADABLE:
        raise DataError(f"{path} is not a readable image: get it again") from None
    return np.ascontiguousarray(np.asarray(small, dtype=np.uint8).transpose(2, 0, 1))
