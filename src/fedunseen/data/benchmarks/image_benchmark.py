"""What benchmarks of image files share: the list of their images, the proposed split, and how they are loaded.

A layout (CUB, AWA2, SUN, aPY, DeepFashion, a folder of your own) says with a :class:`Listing` which images there are
and what is known of their classes, without opening an image. :class:`ImageBenchmark` makes a benchmark of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedunseen.core.errors import DataError
from fedunseen.core.files import cache_folder
from fedunseen.core.random import stream
from fedunseen.data.base import BenchmarkLoader, count
from fedunseen.data.benchmark import Benchmark, DataSettings, empty_split
from fedunseen.data.benchmarks.proposed_split import (
    FEATURES,
    PROPOSED_PAGE,
    SPLITS,
    TEST_SHARE,
    ClassSplit,
    find_split,
    read_split,
)
from fedunseen.data.class_space import ClassSpace, draw_validation
from fedunseen.data.io.csv_io import read_lines
from fedunseen.data.io.images import Box, decode, decoded_bytes, read_image

SPLIT_SEED = 0  # draws what a published split leaves open; the same for every run, so that runs can be compared


class ImageSettings(DataSettings):
    """Settings of every benchmark of image files."""

    root: Path
    """The folder of the data set."""
    size: int = Field(224, ge=8, le=2048)
    """Side of the decoded images in pixels: the center square that is cut out."""
    resize: int | None = Field(None, ge=8, le=4096)
    """Length of the shorter side before the cut; unset, 8/7 of `size`: 256 for 224, 512 for 448."""
    skip_unreadable: bool = False
    """Leave out images that cannot be read, with a warning that names them, instead of refusing to start."""
    train_per_class: int | None = Field(None, ge=1)
    """At most so many training images of each class, drawn once for all runs; unset takes all."""
    test_per_class: int | None = Field(None, ge=1)
    """At most so many test images of each class, drawn once for all runs; unset takes all."""

    @model_validator(mode="after")
    def _check(self) -> ImageSettings:
        if self.resize is not None and self.resize < self.size:
            raise ValueError(f"resize = {self.resize} is less than size = {self.size}: the square would not fit")
        return self

    @property
    def shorter_side(self) -> int:
        """The length of the shorter side before the cut, in pixels."""
        return self.resize if self.resize is not None else round(self.size * 8 / 7)


class PublishedSettings(ImageSettings):
    """Further settings of the published benchmarks."""

    attributes: Literal["att", "original_att"] = "att"
    """`att`: scaled to unit length, as in the proposed split. `original_att`: as annotated."""
    splits: Path | None = None
    """Folder with the proposed split of this data set (`att_splits.mat`, best with `res101.mat`), or that file."""
    validation_classes: int | None = Field(None, ge=0)
    """Draw this many validation classes; unset takes the split's, or draws a fifth of the seen classes."""


@dataclass(frozen=True, eq=False)
class Listing:
    """The images of a data set and their classes, before an image is opened."""

    name: str
    root: Path
    files: Sequence[str]
    labels: NDArray[np.int64]
    space: ClassSpace
    test: NDArray[np.bool_]
    used: NDArray[np.bool_] | None = None
    boxes: Sequence[Box] | None = None
    part: bool = False

    def ids(self, settings: ImageSettings) -> dict[str, NDArray[np.int64]]:
        """Return the sorted ids of ``train``, ``test_seen`` and ``test_unseen``, cut to the settings' numbers."""
        seen, unseen = np.isin(self.labels, self.space.seen), np.isin(self.labels, self.space.unseen)
        if self.used is not None:
            seen, unseen = seen & self.used, unseen & self.used
        splits = {"train": seen & ~self.test, "test_seen": seen & self.test, "test_unseen": unseen}
        limits = {"train": settings.train_per_class}
        return {
            split: _limited(np.flatnonzero(mask), self.labels, limits.get(split, settings.test_per_class), split)
            for split, mask in splits.items()
        }


class ImageFiles(NamedTuple):
    """The images of a data set: see :class:`Listing`."""

    root: Path
    files: Sequence[str]
    labels: NDArray[np.int64]
    boxes: Sequence[Box] | None = None


class ClassTable(NamedTuple):
    """The classes of a data set and what describes them: see ``fedunseen.data.class_space``."""

    names: Sequence[str]
    semantics: NDArray[np.float64]
    attribute_names: Sequence[str]
    groups: Mapping[str, tuple[int, ...]]


class ImageBenchmark(BenchmarkLoader):
    """Base of the benchmarks whose samples are image files. A subclass lists them in :meth:`listing`."""

    Settings: ClassVar[type[ImageSettings]]

    @classmethod
    def listing(cls, settings: Any, seed: int) -> Listing:
        """List the images and read the class table, without opening an image."""
        raise TypeError(f"{cls.__name__} must say which images it holds")

    @classmethod
    def load(cls, settings: Any, seed: int) -> Benchmark:
        """Decode the images, unless that was done before, and return the benchmark.

        ``seed`` matters only where validation classes or test images have to be drawn.
        """
        listing = cls.listing(settings, seed)
        ids = listing.ids(settings) | {"unlabelled": np.flatnonzero(listing.labels < 0)}
        kept = np.sort(np.concatenate(list(ids.values())))
        files, images, unreadable = cls._decoded(listing, kept, settings, settings.skip_unreadable)
        if unreadable:
            names = ", ".join(files[i] for i in unreadable[:5]) + (", ..." if len(unreadable) > 5 else "")
            warnings.warn(
                f"{listing.name}: {len(unreadable)} of {len(files)} images cannot be read and are left out: {names}",
                stacklevel=2,
            )
        splits = {split: np.setdiff1d(np.searchsorted(kept, mine), unreadable) for split, mine in ids.items()}
        return Benchmark(
            name=listing.name,
            space=listing.space,
            features=images,
            labels=listing.labels[kept],
            image_shape=(3, settings.size, settings.size),
            files=tuple(files),
            part=listing.part,
            **splits,
        )

    @classmethod
    def read(cls, path: Path, settings: Any) -> NDArray[np.uint8]:
        """Read an image as the benchmark's own are read, shape (1, 3, size, size)."""
        return read_image(Path(path), settings.size, settings.shorter_side)

    @classmethod
    def inspect(cls, settings: Any, everything: bool = False) -> dict[str, Any]:
        """Count the images that are listed; decode them if ``everything`` is asked for."""
        listing = cls.listing(settings, seed=0)
        ids = listing.ids(settings)
        kept = np.sort(np.concatenate(list(ids.values())))
        files = dict.fromkeys(listing.files[i] for i in kept.tolist())
        empty = [split for split, mine in ids.items() if not len(mine) and not listing.part]
        problems = [empty_split(listing.name, split) for split in empty]
        facts = count(listing.space, listing.labels, ids, "images")
        facts |= {"bytes": decoded_bytes(len(kept), settings.size), "cache": str(cache_folder()), "problems": problems}
        absent = [file for file in files if not (listing.root / file).is_file()]
        if absent:
            problems.append(
                f"{listing.root / absent[0]} is missing ({len(absent)} of {len(files)} images are): unpack the images "
                "again"
            )
        elif everything:
            decoded = cls._decoded(listing, kept, settings, True)
            facts["unreadable"] = [decoded[0][i] for i in decoded[2]]
            if facts["unreadable"] and not settings.skip_unreadable:
                problems.append(
                    f"{len(decoded[2])} of {len(decoded[0])} images cannot be read: {', '.join(facts['unreadable'])}; "
                    "fix or replace them, or leave them out with data.skip_unreadable = true"
                )
        return facts

    @staticmethod
    def _decoded(
        listing: Listing, kept: NDArray[np.int64], settings: Any, skip: bool
    ) -> tuple[list[str], NDArray[np.uint8], list[int]]:
        """Return the files ``kept``, their images, and which of them are unreadable."""
        files = [listing.files[i] for i in kept.tolist()]
        boxes = None if listing.boxes is None else [listing.boxes[i] for i in kept.tolist()]
        return files, *decode(listing.root, files, settings.size, settings.shorter_side, skip, boxes)


class PublishedBenchmark(ImageBenchmark):
    """Base of the published data sets of images. A subclass reads its tables in :meth:`contents`.

    The proposed split is taken if it is given or lies beside the data set, else the data set's own.
    """

    dataset: ClassVar[str]
    """Its name in the release of the proposed split."""

    @classmethod
    def contents(cls, settings: Any) -> tuple[ImageFiles, ClassTable, ClassSplit | None]:
        """Read which images and classes there are, and the split that the data set itself comes with, if any."""
        raise TypeError(f"{cls.__name__} must say what it holds")

    @classmethod
    def listing(cls, settings: Any, seed: int) -> Listing:
        """Join images, class table and split; see :meth:`ImageBenchmark.listing`."""
        (root, files, labels, boxes), classes, split = cls.contents(settings)
        place = find_split(settings.splits, cls.home(settings.root), cls.dataset)
        if place is not None:
            split = read_split(cls.title, place, files, labels, classes.names)
        if split is None:
            raise DataError(
                f"{cls.title} does not say which classes are seen: set data.splits to the folder {cls.dataset} of the "
                f"proposed split ({SPLITS} and {FEATURES} of xlsa17, {PROPOSED_PAGE})"
            )
        validation = split.validation
        if validation is None or settings.validation_classes is not None:
            validation = draw_validation(split.seen, settings.validation_classes, seed)
        space = ClassSpace(
            names=tuple(classes.names),
            semantics=unit_length(classes.semantics) if settings.attributes == "att" else classes.semantics,
            attribute_names=tuple(classes.attribute_names),
            seen=split.seen,
            validation=validation,
            unseen=split.unseen,
            attribute_groups=classes.groups,
        )
        test = split.test if split.test is not None else draw_test(labels, split.seen, TEST_SHARE, SPLIT_SEED)
        return Listing(cls.dataset, root, files, labels, space, test, split.used, boxes)


def draw_test(labels: NDArray[np.int64], classes: NDArray[np.int64], share: float, seed: int) -> NDArray[np.bool_]:
    """Draw a share of the images of each class for tests: at least one, but a class's only image stays."""
    test = np.zeros(len(labels), dtype=bool)
    for c in classes.tolist():
        mine = np.flatnonzero(labels == c)
        if count := min(len(mine) - 1, max(1, round(share * len(mine)))) if len(mine) else 0:
            test[stream(seed, "test images", c).choice(mine, size=count, replace=False)] = True
    return test


def class_means(values: NDArray[Any], labels: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """Return the mean of each class's rows of ``values``, shape (classes, columns); zeros for a class without any."""
    means = np.zeros((classes, values.shape[1]))
    for c in np.unique(labels).tolist():
        means[c] = values[labels == c].mean(axis=0, dtype=np.float64)
    return means


def unit_length(semantics: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each class's attributes scaled to unit length; zeros stay."""
    norms = np.linalg.norm(semantics, axis=1, keepdims=True)
    return semantics / np.where(norms > 0, norms, 1.0)


def read_numbered(path: Path) -> list[tuple[int, str]]:
    """Return (number, text) of lines such as ``12 012.Yellow_headed_Blackbird``."""
    texts: dict[int, str] = {}
    for i, line in enumerate(read_lines(path), 1):
        number, *text = line.split(None, 1)
        if not number.isdecimal() or not text:
            raise DataError(f"{path}, line {i}: {line!r} is not a number and a text")
        if int(number) in texts:
            raise DataError(f"{path}, line {i}: the number {number} occurs twice")
        texts[int(number)] = text[0]
    return list(texts.items())


def read_matrix(path: Path, rows: int, columns: int) -> NDArray[np.float64]:
    """Read a text file of numbers, a row a line."""
    lines = read_lines(path)
    try:
        values = [[float(word) for word in line.split()] for line in lines]
    except ValueError as error:
        raise DataError(f"{path}: {error}".replace("could not convert string to float", "not a number")) from None
    for i, row in enumerate(values, 1):
        if len(row) != columns:
            raise DataError(f"{path}, line {i}: {len(row)} numbers, but there are {columns} attributes")
    if len(values) != rows:
        raise DataError(f"{path} has {len(values)} lines, but there are {rows} classes")
    return np.array(values, dtype=np.float64)


def _limited(ids: NDArray[np.int64], labels: NDArray[np.int64], limit: int | None, split: str) -> NDArray[np.int64]:
    """Keep at most ``limit`` ids of each class; a larger limit keeps those of a smaller one too."""
    if limit is None:
        return ids
    kept: list[NDArray[np.int64]] = [ids[:0]]
    for c in np.unique(labels[ids]).tolist():
        mine = ids[labels[ids] == c]
        kept.append(mine[stream(SPLIT_SEED, f"{split} images", c).permutation(len(mine))[:limit]])
    return np.sort(np.concatenate(kept))
