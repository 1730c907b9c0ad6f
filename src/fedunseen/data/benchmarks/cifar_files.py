"""CIFAR-100's classes in three splits, and its images in three layouts; the authors' pickles are never read.

``cifar100.csv`` names the 100 classes in the order of their labels, their superclasses and the splits. The layouts: the
authors' binary version; one sheet a class (``00_apple.webp``, 600 tiles, 30 a row, training images first); Bertinetto's
archive, ``data/CLASS/*.png``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.array_cache import cached_blocks, file_stamps
from fedunseen.core.errors import DataError
from fedunseen.data.io.csv_io import read_csv, read_lines
from fedunseen.data.io.images import opened_image, planes, to_rgb

PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
FOLDERS = ("cifar-100-binary", "cifar100", "cifar-100", "CIFAR100", "cifar-fs", "CIFAR-FS")
SIDE = 32
CLASSES = 100
TRAIN, TEST = 500, 100  # images of each class
ACROSS = 30  # tiles in a row of a sheet
RECORD = 2 + 3 * SIDE * SIDE  # bytes of an image in the binary version: coarse label, fine label, red, green, blue
PICKLED = ("cifar-100-python/train", "cifar-100-python.tar.gz", "train", "meta")

ImagesOf = Callable[[int], NDArray[np.uint8]]
"""Class -> its images (600, 3, 32, 32), the training images first."""


class Source(NamedTuple):
    """Where the images lie."""

    names: tuple[str, ...]
    place: Path
    files: tuple[Path, ...]
    open: Callable[[], ImagesOf]


@cache
def published_split(column: str) -> dict[str, str]:
    """Return class -> part of the splits ``zero_shot``, ``fc100`` and ``cifar_fs``, or -> its ``superclass``."""
    (_, header), *rows = read_csv(Path(__file__).with_name("cifar100.csv"))
    return {row[0]: row[header.index(column)] for _, row in rows}


def layout_in(folder: Path) -> bool:
    """Say whether a folder has the images as CIFAR-100 itself: in sheets or in the binary version."""
    return (folder / "train.bin").is_file() or len(_sheets(folder)) > CLASSES // 2


def archive_in(root: Path) -> Path | None:
    """Return the folder that holds ``data/CLASS``: ``root``, or one of the usual names in it."""
    for folder in (root, *(root / name for name in FOLDERS)):
        # the name of a class identifies it among folders named data
        if any((folder / "data" / name).is_dir() for name in ("apple", "baby")):
            return folder
    return None


def find_source(root: Path) -> Source:
    """Find one of the three layouts in ``root`` or in a folder of the usual name there."""
    if (archive := archive_in(root)) is not None:
        names = sorted(path.name for path in (archive / "data").iterdir() if path.is_dir() and path.name[0] != ".")
        folders = [archive / "data" / name for name in names]
        pictures = [sorted(folder.glob("*.png")) for folder in folders]
        return Source(tuple(names), archive, tuple(chain(*pictures)), lambda: _from_archive(folders, pictures))
    folder = next((place for place in (root, *(root / name for name in FOLDERS)) if layout_in(place)), root)
    if sheets := _sheets(folder):
        numbers = [int(path.name.partition("_")[0]) for path in sheets]
        if numbers != list(range(CLASSES)):
            lacking = min(set(range(CLASSES)) - set(numbers), default=CLASSES)
            raise _damaged(folder, f"has {len(sheets)} of {CLASSES} sheets, that of class {lacking:02d} not once")
        return Source(
            tuple(path.stem.partition("_")[2] for path in sheets), folder, tuple(sheets), lambda: _from_sheets(sheets)
        )
    binary = [folder / name for name in ("train.bin", "test.bin", "fine_label_names.txt")]
    get = f"unpack CIFAR-100's binary version (cifar-100-binary.tar.gz, {PAGE}) there"
    if absent := [path for path in binary if not path.is_file()]:
        if pickled := [root / name for name in PICKLED if (root / name).is_file()]:
            raise DataError(
                f"{pickled[0]} is CIFAR-100's Python version, a pickle, and nothing is ever unpickled: {get} instead"
            )
        raise DataError(f"{absent[0]} is missing: {get}, or correct data.root")
    for path, count in zip(binary, (TRAIN, TEST), strict=False):
        if path.stat().st_size != CLASSES * count * RECORD:
            raise _damaged(path, f"has {path.stat().st_size} bytes, not {CLASSES * count * RECORD}")
    listed = read_lines(binary[2])
    if len(listed) != CLASSES:
        raise _damaged(binary[2], f"names {len(listed)} classes, not {CLASSES}")
    return Source(tuple(listed), folder, tuple(binary[:2]), lambda: _from_binary(binary[:2]))


def class_images(source: Source, labels: Sequence[int], counts: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """Return the first images of each class: its training images, then its test images; kept in the cache."""
    counts = counts or (TRAIN, TEST)
    take = np.concatenate([np.arange(counts[0]), TRAIN + np.arange(counts[1])])
    names = [path.relative_to(source.place).as_posix() for path in source.files]

    def produce() -> Iterator[NDArray[Any]]:
        images_of = source.open()
        for label in labels:
            yield images_of(label)[take]

    depends = [names, file_stamps(source.files)[0], list(labels), counts]
    return cached_blocks("cifar100", depends, (len(labels) * sum(counts), 3, SIDE, SIDE), produce)


def _damaged(where: Path, problem: str) -> DataError:
    return DataError(f"{where} {problem}: unpack it again")


def _sheets(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.webp") if re.match(r"\d\d_", path.name))


def _from_sheets(files: Sequence[Path]) -> ImagesOf:
    """Cut the images of a class out of its sheet."""
    rows = (TRAIN + TEST) // ACROSS

    def images_of(label: int) -> NDArray[np.uint8]:
        with opened_image(files[label], remedy=": unpack it again") as file:
            sheet = np.asarray(file.convert("RGB"))
        if sheet.shape != (rows * SIDE, ACROSS * SIDE, 3):
            size = f"{sheet.shape[1]} x {sheet.shape[0]} pixels, not {ACROSS * SIDE} x {rows * SIDE}"
            raise _damaged(files[label], f"has {size}")
        tiles = sheet.reshape(rows, SIDE, ACROSS, SIDE, 3).transpose(0, 2, 4, 1, 3)
        return tiles.reshape(TRAIN + TEST, 3, SIDE, SIDE)

    return images_of


def _from_binary(files: Sequence[Path]) -> ImagesOf:
    """Take the images of a class in the order in which the two files have them."""
    halves = [np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, RECORD) for path in files]
    fine = [np.array(half[:, 1]) for half in halves]
    for path, labels, count in zip(files, fine, (TRAIN, TEST), strict=True):
        if not np.array_equal(np.bincount(labels, minlength=CLASSES), np.full(CLASSES, count)):
            raise _damaged(path, f"has not {count} images of each class")

    def images_of(label: int) -> NDArray[np.uint8]:
        rows = [half[labels == label, 2:] for half, labels in zip(halves, fine, strict=True)]
        return np.concatenate(rows).reshape(-1, 3, SIDE, SIDE)

    return images_of


def _from_archive(folders: Sequence[Path], pictures: Sequence[Sequence[Path]]) -> ImagesOf:
    """Read the images of a class in the order of their file names."""

    def picture(path: Path) -> NDArray[np.uint8]:
        with opened_image(path, remedy=": unpack it again") as file:
            if file.size != (SIDE, SIDE):
                raise _damaged(path, f"has {file.width} x {file.height} pixels, not {SIDE} x {SIDE}")
            return planes(to_rgb(file))

    def images_of(label: int) -> NDArray[np.uint8]:
        if len(pictures[label]) != TRAIN + TEST:
            raise _damaged(folders[label], f"has {len(pictures[label])} images, not {TRAIN + TEST}")
        return np.stack([picture(path) for path in pictures[label]])

    return images_of
