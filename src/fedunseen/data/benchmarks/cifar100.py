"""The benchmark ``cifar100``: 60,000 photos of 32 x 32 pixels, 100 classes, described by their names.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images" (2009). Two layouts are read: the authors'
*binary* version (``train.bin``, ``test.bin``, ``fine_label_names.txt``), and one sheet a class (``00_apple.webp``:
600 tiles, 30 a row, the 500 training images first). The authors' Python version is a pickle, and nothing is ever
unpickled.

The classes' semantics are embeddings of the sentence "a photo of a CLASS.". Twenty classes are unseen and 16 of the
others are for validation, always the same ones: there is no published split, name it beside any number. All images of
an unseen class are for tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedunseen.core.errors import DataError
from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.benchmark import Benchmark, DataSettings
from fedunseen.data.class_space import ClassSpace
from fedunseen.data.class_table import PROMPT, check_collisions, describe, read_class_table
from fedunseen.data.io.csv_io import did_you_mean, plain, read_lines
from fedunseen.data.io.images import UNREADABLE, cached, open_image, read_image

__all__ = ["UNSEEN", "VALIDATION", "Cifar100", "Source", "class_images", "find_source"]

UNSEEN = (
    "baby", "bus", "can", "castle", "caterpillar", "cattle", "crocodile", "dolphin", "flatfish", "fox", "house", "pear",
    "plate", "ray", "skyscraper", "sweet_pepper", "telephone", "whale", "wolf", "woman",
)  # fmt: skip
VALIDATION = (
    "aquarium_fish", "bee", "beetle", "chair", "cloud", "maple_tree", "motorcycle", "plain", "possum", "rabbit",
    "raccoon", "road", "snail", "tiger", "willow_tree", "worm",
)  # fmt: skip

SIDE = 32
CLASSES = 100
TRAIN, TEST = 500, 100  # images of each class
ACROSS = 30  # tiles in a row of a sheet
RECORD = 2 + 3 * SIDE * SIDE  # bytes of an image in the binary version: coarse label, fine label, red, green, blue
PICKLED = ("cifar-100-python/train", "cifar-100-python.tar.gz", "train", "meta")


class Source(NamedTuple):
    """Where the images lie.

    Attributes:
        names: of the 100 classes, in the order of their labels.
        files: of the layout: a sheet a class, or ``train.bin`` and ``test.bin``.
        sheets: which of the two layouts.
    """

    names: tuple[str, ...]
    files: tuple[Path, ...]
    sheets: bool


class Cifar100(BenchmarkLoader):
    """Small photos, described by the names of their classes."""

    title = "CIFAR-100"
    page = "https://www.cs.toronto.edu/~kriz/cifar.html"
    layout = "train.bin, test.bin, fine_label_names.txt; or 00_apple.webp, ..."
    folders = ("cifar-100-binary", "cifar100", "cifar-100", "CIFAR100")

    class Settings(DataSettings):
        """``[data] name = "cifar100"``."""

        name: Literal["cifar100"] = "cifar100"
        root: Path
        """The folder with `train.bin`, `test.bin` and `fine_label_names.txt`, or with one sheet a class."""
        train_per_class: int | None = Field(None, ge=1, le=TRAIN)
        """Take the first so many of each class's 500 training images; unset takes all."""
        test_per_class: int | None = Field(None, ge=1, le=TEST)
        """Take the first so many of each class's 100 test images; unset takes all."""
        classes: Path | None = None
        """A class table (name, split, attributes...) instead of the built-in split; others are left out."""
        text_encoder: str = "minilm"
        """Describes classes by their names, unless `classes` gives attributes: `"minilm"`, a hub name or a folder."""
        prompt: str = Field(PROMPT, pattern=r"^[^{}]*\{\}[^{}]*$")
        """The sentence that the text encoder reads, with `{}` for the class's name."""

    @classmethod
    def load(cls, settings: Settings, seed: int) -> Benchmark:
        """Return the benchmark; ``seed`` is not used (see the top of this file).

        Raises:
            DataError: if a file is missing or damaged, or the class table names other classes.
            MissingDependencyError: if the text encoder is not installed.
        """
        source = find_source(settings.root.expanduser())
        space = _space(settings, source.names)
        own = {plain(name): i for i, name in enumerate(source.names)}
        known = [own[plain(name)] for name in space.names]  # label in the files, by class
        kept = np.sort(np.concatenate([space.seen, space.unseen])).tolist()
        counts = (settings.train_per_class or TRAIN, settings.test_per_class or TEST)
        images = class_images(source, [known[c] for c in kept], counts)
        labels = np.repeat(np.array(kept, dtype=np.int64), sum(counts))
        is_test = np.tile(np.arange(sum(counts)) >= counts[0], len(kept))
        seen = np.isin(labels, space.seen)
        return Benchmark(
            name="cifar100",
            space=space,
            features=images,
            labels=labels,
            train=np.flatnonzero(seen & ~is_test),
            test_seen=np.flatnonzero(seen & is_test),
            test_unseen=np.flatnonzero(~seen),
            image_shape=(3, SIDE, SIDE),
        )

    @classmethod
    def read(cls, path: Path, settings: Settings) -> NDArray[np.uint8]:
        """Read an image of any size as the benchmark's own are, shape (1, 3, 32, 32).

        Raises:
            DataError: if the file is missing or not a readable image.
        """
        return read_image(Path(path), SIDE, SIDE)

    @classmethod
    def holds(cls, folder: Path) -> bool:
        """Say whether a folder has the images in one of the two layouts."""
        return (folder / "train.bin").is_file() or len(_sheets(folder)) > CLASSES // 2


def find_source(root: Path) -> Source:
    """Find one of the two layouts in ``root`` or in a folder of the usual name there.

    Raises:
        DataError: if neither is there, or a file is missing or has another size.
    """
    folder = Cifar100.home(root)
    sheets = _sheets(folder)
    if sheets:
        numbers = [int(path.name.partition("_")[0]) for path in sheets]
        if numbers != list(range(CLASSES)):
            lacking = min(set(range(CLASSES)) - set(numbers), default=CLASSES)
            raise DataError(
                f"{folder} has {len(sheets)} of {CLASSES} sheets: that of class {lacking:02d} is missing or twice"
            )
        return Source(tuple(path.stem.partition("_")[2] for path in sheets), tuple(sheets), True)
    files = [folder / name for name in ("train.bin", "test.bin", "fine_label_names.txt")]
    for path in files:
        if path.is_file():
            continue
        for name in PICKLED:
            if (root / name).is_file():
                raise DataError(
                    f"{root / name} is CIFAR-100's Python version, a pickle, and nothing is ever unpickled: unpack its "
                    f"binary version (cifar-100-binary.tar.gz, {Cifar100.page}) there instead"
                )
        raise DataError(
            f"{path} is missing: unpack CIFAR-100's binary version (cifar-100-binary.tar.gz, {Cifar100.page}) there, "
            "or mend data.root"
        )
    for path, count in zip(files, (TRAIN, TEST), strict=False):
        if path.stat().st_size != CLASSES * count * RECORD:
            raise DataError(f"{path} has {path.stat().st_size} bytes, not {CLASSES * count * RECORD}: unpack it again")
    names = read_lines(files[2])
    if len(names) != CLASSES:
        raise DataError(f"{files[2]} names {len(names)} classes, not {CLASSES}: unpack it again")
    return Source(tuple(names), tuple(files[:2]), False)


def _sheets(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.webp") if re.match(r"\d\d_", path.name))


def _space(settings: Cifar100.Settings, names: Sequence[str]) -> ClassSpace:
    """Return the class space of the class table, or of the built-in split."""
    if settings.classes is not None:
        path = settings.classes.expanduser()
        space = read_class_table(path, settings.text_encoder, settings.prompt)
        known = {plain(name) for name in names}
        for name in space.names:
            if plain(name) not in known:
                raise DataError(f"{path}: {name!r} is not a class of CIFAR-100{did_you_mean(name, names)}")
        return space
    check_collisions(names, "the classes")
    for name in (*UNSEEN, *VALIDATION):
        if name not in names:
            raise DataError(f"the files name no class {name!r}, which CIFAR-100 has: unpack them again")
    semantics, attributes = describe(names, settings.text_encoder, settings.prompt)
    return ClassSpace(
        names=tuple(names),
        semantics=semantics,
        attribute_names=attributes,
        seen=np.array([i for i, name in enumerate(names) if name not in UNSEEN]),
        validation=np.array([i for i, name in enumerate(names) if name in VALIDATION]),
        unseen=np.array([i for i, name in enumerate(names) if name in UNSEEN]),
    )


def class_images(source: Source, labels: Sequence[int], counts: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """Return the first images of each class: its training images, then its test images; kept in the cache.

    Args:
        source: where they lie.
        labels: of L classes.
        counts: how many of each class's training and test images; unset takes all 500 and 100.

    Returns:
        (L x sum of ``counts``, 3, 32, 32), class by class.

    Raises:
        DataError: if a file is damaged.
    """
    counts = counts or (TRAIN, TEST)
    stamps = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in source.files]
    take = np.concatenate([np.arange(counts[0]), TRAIN + np.arange(counts[1])])

    def produce() -> Iterator[NDArray[Any]]:
        of_class = _from_sheets(source.files) if source.sheets else _from_binary(source.files)
        for label in labels:
            yield of_class(label)[take]

    shape = (len(labels) * sum(counts), 3, SIDE, SIDE)
    return cached("cifar100", [stamps, list(labels), counts], shape, produce)


def _from_sheets(files: Sequence[Path]) -> Callable[[int], NDArray[np.uint8]]:
    """Return what gives the 600 images of a class, cut out of its sheet."""
    rows = (TRAIN + TEST) // ACROSS

    def of_class(label: int) -> NDArray[np.uint8]:
        try:
            with open_image(files[label]) as file:
                sheet = np.asarray(file.convert("RGB"))
        except UNREADABLE:
            raise DataError(f"{files[label]} is not a readable image: copy it again") from None
        if sheet.shape != (rows * SIDE, ACROSS * SIDE, 3):
            raise DataError(
                f"{files[label]} has {sheet.shape[1]} x {sheet.shape[0]} pixels, not {ACROSS * SIDE} x {rows * SIDE}"
            )
        tiles = sheet.reshape(rows, SIDE, ACROSS, SIDE, 3).transpose(0, 2, 4, 1, 3)
        return tiles.reshape(TRAIN + TEST, 3, SIDE, SIDE)

    return of_class


def _from_binary(files: Sequence[Path]) -> Callable[[int], NDArray[np.uint8]]:
    """Return what gives the 600 images of a class, in the order in which the two files have them."""
    halves = [np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, RECORD) for path in files]
    fine = [np.array(half[:, 1]) for half in halves]
    for path, mine, count in zip(files, fine, (TRAIN, TEST), strict=True):
        if not np.array_equal(np.bincount(mine, minlength=CLASSES), np.full(CLASSES, count)):
            raise DataError(f"{path} has not {count} images of each class: unpack it again")

    def of_class(label: int) -> NDArray[np.uint8]:
        rows = [half[mine == label, 2:] for half, mine in zip(halves, fine, strict=True)]
        return np.concatenate(rows).reshape(-1, 3, SIDE, SIDE)

    return of_class
