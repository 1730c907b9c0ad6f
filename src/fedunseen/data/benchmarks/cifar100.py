"""CIFAR-100 (Krizhevsky 2009), 60,000 photos of 32 x 32 pixels: the benchmarks ``cifar100``,
``fc100``, ``cifar-fs``.

``cifar100``: semantics are embeddings of "a photo of a CLASS."; 20 classes are unseen and 16 for
validation, always the same: no split is published, name it beside any number. ``fc100`` (Oreshkin
et al. 2018): whole superclasses are novel. ``cifar-fs`` (Bertinetto et al. 2019): 64 / 16 / 20
classes drawn at random, which makes it the easier of the two.

``cifar100.csv`` names the 100 classes in the order of their labels, their superclasses and the
splits. The images lie in the authors' binary version, or in one sheet a class (``00_apple.webp``,
600 tiles, 30 a row, training images first); the authors' pickles are never read.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedunseen.core.array_cache import cached_blocks, file_stamps
from fedunseen.core.errors import DataError
from fedunseen.core.settings import FolderOrName
from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.benchmark import Benchmark, DataSettings, split_ids
from fedunseen.data.benchmarks.few_shot import PARTS, FewShotBenchmark
from fedunseen.data.class_space import ClassSpace
from fedunseen.data.class_table import PROMPT, Prompt, describe
from fedunseen.data.io.csv_io import read_csv, read_lines
from fedunseen.data.io.images import ImageBytes, opened_image, read_image

SIDE = 32
CLASSES = 100
# images of each class
TRAIN = 500
TEST = 100
ACROSS = 30  # tiles in a row of a sheet
RECORD = (
    2 + 3 * SIDE * SIDE
)  # bytes of an image in the binary version: coarse label, fine label, red, green, blue
PICKLED = ("cifar-100-python/train", "cifar-100-python.tar.gz", "train", "meta")


class _CifarLoader(BenchmarkLoader):
    """Where the benchmarks find their images."""

    page = "https://www.cs.toronto.edu/~kriz/cifar.html"
    layout = "train.bin, test.bin, fine_label_names.txt; or 00_apple.webp, ..."
    folders = ("cifar-100-binary", "cifar100", "cifar-100", "CIFAR100")

    @classmethod
    def holds(cls, folder: Path) -> bool:
        """Say whether a folder has the images in sheets or in the binary version."""
        return (folder / "train.bin").is_file() or len(_sheets(folder)) > CLASSES // 2


class Cifar100(_CifarLoader, name="cifar100"):
    """Small photos, described by the names of their classes."""

    title = "CIFAR-100"

    class Settings(DataSettings):
        """Settings of ``cifar100``."""

        root: Path
        """The folder of the data set, or of several for `xlsa17`, with the files that `fedunseen
        data list` names."""
        train_per_class: int | None = Field(None, ge=1, le=TRAIN)
        """At most so many training images of each class, drawn once for all runs; unset takes
        all."""
        test_per_class: int | None = Field(None, ge=1, le=TEST)
        """At most so many test images of each class, drawn once for all runs; unset takes all."""
        text_encoder: FolderOrName = "minilm"
        """Describes classes by their names, unless the class table has attributes: `minilm`, a hub
        name or a folder."""
        prompt: Prompt = PROMPT
        """The sentence that the text encoder reads, with `{}` for the class's name."""

    @classmethod
    def load(cls, settings: Settings, seed: int) -> Benchmark:
        """Return the benchmark; ``seed`` is not used (see the top of this file)."""
        source = find_source(settings.root)
        parts = class_parts("zero_shot")
        semantics, attributes = describe(list(parts), settings.text_encoder, settings.prompt)
        part_of = np.array(list(parts.values()))
        held, unseen = (np.flatnonzero(part_of == part) for part in ("validation", "unseen"))
        space = ClassSpace(
            tuple(parts), semantics, attributes, np.flatnonzero(part_of != "unseen"), held, unseen
        )
        counts = (settings.train_per_class or TRAIN, settings.test_per_class or TEST)
        labels = np.repeat(np.arange(CLASSES), sum(counts))
        is_test = np.tile(np.arange(sum(counts)) >= counts[0], CLASSES)
        images = class_images(source, counts)
        splits = split_ids(space, labels, is_test)
        return Benchmark("cifar100", space, images, labels, image_shape=(3, SIDE, SIDE), **splits)

    @classmethod
    def read(cls, path: Path | ImageBytes, settings: Settings) -> NDArray[np.uint8]:
        """Read an image of any size as the benchmark's own are, shape (1, 3, 32, 32)."""
        return read_image(path, SIDE, SIDE)


class _CifarSplit(_CifarLoader, FewShotBenchmark):
    """What the two few-shot splits share: images (n, 3, 32, 32), 600 a class."""

    image_shape = (3, SIDE, SIDE)

    class Settings(DataSettings):
        """Where the images lie."""

        root: Path
        """The folder of the data set, or of several for `xlsa17`, with the files that `fedunseen
        data list` names."""

    @classmethod
    def load(cls, settings: Any, seed: int) -> Benchmark:
        """Read all images of each class; the split is fixed."""
        images = class_images(find_source(settings.root))
        parts = class_parts(settings.name.replace("-", "_"))
        roles = [[c for c, part in enumerate(parts.values()) if part == role] for role in PARTS]
        return cls.build(
            settings.name, list(parts), roles, images, np.repeat(np.arange(CLASSES), TRAIN + TEST)
        )


class Fc100(_CifarSplit, name="fc100"):
    """Photos of 32 x 32 pixels, few-shot: the novel classes are of other superclasses."""

    title = "FC100: CIFAR-100 split by superclasses, few-shot"


class CifarFs(_CifarSplit, name="cifar-fs"):
    """Photos of 32 x 32 pixels, few-shot: the novel classes were drawn at random."""

    title = "CIFAR-FS: CIFAR-100 split at random, few-shot"


@cache
def class_parts(column: str) -> dict[str, str]:
    """Return class -> part of the splits ``zero_shot``, ``fc100`` and ``cifar_fs``, or -> its
    ``superclass``.
    """
    (_, header), *rows = read_csv(Path(__file__).with_name("cifar100.csv"))
    return {row[0]: row[header.index(column)] for _, row in rows}


class Source(NamedTuple):
    """Where the images lie; ``images`` yields those of each class, (600, 3, 32, 32), its training
    images first.
    """

    place: Path
    files: tuple[Path, ...]
    images: Callable[[], Iterator[NDArray[np.uint8]]]


def find_source(root: Path) -> Source:
    """Find one of the two layouts in ``root`` or in a folder of the usual name there."""
    folder = Cifar100.home(root)
    if sheets := _sheets(folder):
        numbers = [int(path.name.partition("_")[0]) for path in sheets]
        if numbers != list(range(CLASSES)):
            lacking = min(set(range(CLASSES)) - set(numbers), default=CLASSES)
            raise _damaged(
                folder,
                f"has {len(sheets)} of {CLASSES} sheets, that of class {lacking:02d} not once",
            )
        _check_names(folder, [path.stem.partition("_")[2] for path in sheets])
        return Source(folder, tuple(sheets), partial(_from_sheets, sheets))
    binary = [folder / name for name in ("train.bin", "test.bin", "fine_label_names.txt")]
    get = f"unpack CIFAR-100's binary version (cifar-100-binary.tar.gz, {Cifar100.page}) there"
    if absent := [path for path in binary if not path.is_file()]:
        if pickled := [folder / name for name in PICKLED if (folder / name).is_file()]:
            raise DataError(
                f"{pickled[0]} is CIFAR-100's Python version, a pickle, and nothing is ever "
                f"unpickled: {get} instead"
            )
        raise DataError(f"{absent[0]} is missing: {get}, or correct data.root")
    for path, count in zip(binary, (TRAIN, TEST), strict=False):
        if path.stat().st_size != CLASSES * count * RECORD:
            raise _damaged(path, f"has {path.stat().st_size} bytes, not {CLASSES * count * RECORD}")
    _check_names(binary[2], read_lines(binary[2]))
    return Source(folder, tuple(binary[:2]), partial(_from_binary, binary[:2]))


def class_images(source: Source, counts: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """Return the first images of each class: its training images, then its test images; kept in the
    cache.
    """
    counts = counts or (TRAIN, TEST)
    take = np.concatenate([np.arange(counts[0]), TRAIN + np.arange(counts[1])])
    names = [path.relative_to(source.place).as_posix() for path in source.files]
    depends = [names, file_stamps(source.files)[0], counts]
    shape = (CLASSES * sum(counts), 3, SIDE, SIDE)
    return cached_blocks(
        "cifar100", depends, shape, lambda: (images[take] for images in source.images())
    )


def _check_names(where: Path, names: Sequence[str]) -> None:
    for name, expected in zip(names, class_parts("zero_shot"), strict=False):
        if name != expected:
            raise _damaged(where, f"names the class {name!r} where CIFAR-100 has {expected!r}")
    if len(names) != CLASSES:
        raise _damaged(where, f"names {len(names)} classes, not {CLASSES}")


def _damaged(where: Path, problem: str) -> DataError:
    return DataError(f"{where} {problem}: unpack it again")


def _sheets(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.webp") if re.match(r"\d\d_", path.name))


def _from_sheets(files: Sequence[Path]) -> Iterator[NDArray[np.uint8]]:
    """Cut the images of each class out of its sheet."""
    rows = (TRAIN + TEST) // ACROSS
    for path in files:
        with opened_image(path, remedy=": unpack it again") as file:
            sheet = np.asarray(file.convert("RGB"))
        if sheet.shape != (rows * SIDE, ACROSS * SIDE, 3):
            size = (
                f"{sheet.shape[1]} x {sheet.shape[0]} pixels, not {ACROSS * SIDE} x {rows * SIDE}"
            )
            raise _damaged(path, f"has {size}")
        tiles = sheet.reshape(rows, SIDE, ACROSS, SIDE, 3).transpose(0, 2, 4, 1, 3)
        yield tiles.reshape(TRAIN + TEST, 3, SIDE, SIDE)


def _from_binary(files: Sequence[Path]) -> Iterator[NDArray[np.uint8]]:
    """Take the images of each class in the order in which the two files have them."""
    halves = [np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, RECORD) for path in files]
    fine = [np.array(half[:, 1]) for half in halves]
    for path, labels, count in zip(files, fine, (TRAIN, TEST), strict=True):
        if not np.array_equal(np.bincount(labels, minlength=CLASSES), np.full(CLASSES, count)):
            raise _damaged(path, f"has not {count} images of each class")
    for c in range(CLASSES):
        rows = [half[labels == c, 2:] for half, labels in zip(halves, fine, strict=True)]
        yield np.concatenate(rows).reshape(-1, 3, SIDE, SIDE)
