"""What benchmarks of image files share: the list of their images, the proposed split, and how they are loaded.

A layout (CUB, AWA2, SUN, aPY, DeepFashion, a folder of your own) says with a :class:`Listing` which images there are
and what is known of their classes, without opening an image. :class:`ImageBenchmark` makes a benchmark of it.

The proposed split is that of Xian et al., "Zero-Shot Learning - A Comprehensive Evaluation of the Good, the Bad and
the Ugly" (2017), in the files of their release "xlsa17". ``att_splits.mat`` numbers the samples, and ``res101.mat``
names the image of each number: with both, the split is exactly the published one. Without ``res101.mat`` only the seen,
validation and unseen *classes* are, and a fifth of each seen class's images is drawn for the tests.
"""

from __future__ import annotations

import warnings
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedunseen.core.errors import DataError
from fedunseen.core.files import cache_folder, existing_folder
from fedunseen.core.random import stream
from fedunseen.data.base import BenchmarkLoader, count, part_of_layout
from fedunseen.data.benchmark import Benchmark, DataSettings, empty_split
from fedunseen.data.benchmarks.xlsa17 import read_mat, texts
from fedunseen.data.class_space import ClassSpace, draw_validation
from fedunseen.data.io.csv_io import did_you_mean, plain, read_lines
from fedunseen.data.io.images import Box, decode, decoded_bytes, read_image

__all__ = [
    "ClassSplit",
    "ClassTable",
    "ImageBenchmark",
    "ImageFiles",
    "ImageSettings",
    "Listing",
    "PublishedSettings",
    "class_means",
    "class_split",
    "draw_test",
    "published",
    "read_matrix",
    "read_numbered",
    "unit_length",
]

TEST_SHARE = 0.2  # of each seen class's images, as in the proposed split
PROPOSED_PAGE = (
    "https://www.mpi-inf.mpg.de/departments/computer-vision-and-machine-learning/research/zero-shot-learning/"
    "zero-shot-learning-the-good-the-bad-and-the-ugly"
)
SPLITS, FEATURES = "att_splits.mat", "res101.mat"
SEEN_LIST, UNSEEN_LIST, VALIDATION_LIST = "trainvalclasses.txt", "testclasses.txt", "valclasses1.txt"
SPLIT_SEED = 0  # draws what a published split leaves open; the same for every run, so that runs can be compared


class ImageSettings(DataSettings):
    """Settings of every benchmark of image files."""

    root: Path
    """The folder of the data set."""
    size: int = Field(224, ge=8, le=2048)
    """Side of the decoded images in pixels: the centre square that is cut out."""
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
class ClassSplit:
    """Which classes are seen and unseen, and, where the split says so, which images are for tests.

    Attributes:
        seen: ids of the seen classes.
        unseen: ids of the unseen classes.
        validation: ids of the validation classes, or None if they have to be drawn.
        test: shape (images,), True for those of ``test_seen``; None if they have to be drawn.
        used: shape (images,), False for those that the split leaves out.
    """

    seen: NDArray[np.int64]
    unseen: NDArray[np.int64]
    validation: NDArray[np.int64] | None = None
    test: NDArray[np.bool_] | None = None
    used: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class Listing:
    """The images of a data set and their classes, before an image is opened.

    Attributes:
        name: of the benchmark, for people.
        root: the folder that ``files`` are relative to.
        files: the images, with ``/`` between folders.
        labels: shape (images,), class ids.
        space: the classes.
        test: shape (images,), True for the test images of seen classes.
        used: shape (images,), False for those that the split leaves out; None if it has all.
        boxes: the part of each image that shows its class; None takes them whole.
        part: it is what one party of a deployment holds: see ``Benchmark``.
    """

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
        """List the images and read the class table, without opening an image.

        Raises:
            DataError: if a file is missing, damaged or inconsistent.
        """
        raise TypeError(f"{cls.__name__} must say which images it holds")

    @classmethod
    def load(cls, settings: Any, seed: int) -> Benchmark:
        """Decode the images, unless that was done before, and return the benchmark.

        ``seed`` matters only where validation classes or test images have to be drawn.

        Raises:
            DataError: if a file is missing, damaged or inconsistent.
        """
        listing = cls.listing(settings, seed)
        ids = listing.ids(settings) | {"unlabelled": np.flatnonzero(listing.labels < 0)}
        kept = np.sort(np.concatenate(list(ids.values())))
        files = [listing.files[i] for i in kept.tolist()]
        boxes = None if listing.boxes is None else [listing.boxes[i] for i in kept.tolist()]
        images, unreadable = decode(
            listing.root, files, settings.size, settings.shorter_side, settings.skip_unreadable, boxes
        )
        if unreadable:
            shown = ", ".join(files[i] for i in unreadable[:5]) + (", ..." if len(unreadable) > 5 else "")
            warnings.warn(
                f"{listing.name}: {len(unreadable)} of {len(files)} images cannot be read and are left out: {shown}",
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
        """Read an image as the benchmark's own are read, shape (1, 3, size, size).

        Raises:
            DataError: if the file is missing or not a readable image.
        """
        return read_image(Path(path), settings.size, settings.shorter_side)

    @classmethod
    def inspect(cls, settings: Any, everything: bool = False) -> dict[str, Any]:
        """Count the images that are listed; decode them if ``everything`` is asked for.

        Returns:
            As :meth:`BenchmarkLoader.inspect`, and ``bytes``, what the decoded images take in the folder ``cache``;
            ``unreadable``, the names of those that cannot be read, if they were decoded.
        """
        listing = cls.listing(settings, seed=0)
        ids = listing.ids(settings)
        kept = sorted(int(i) for mine in ids.values() for i in mine)
        files = [listing.files[i] for i in kept]
        told = count(listing.space, listing.labels, ids, "images")
        told |= {"bytes": decoded_bytes(len(kept), settings.size), "cache": str(cache_folder())}
        empty = [split for split, mine in ids.items() if not len(mine) and not listing.part]
        told["problems"] = [empty_split(listing.name, split) for split in empty]
        absent = [file for file in dict.fromkeys(files) if not (listing.root / file).is_file()]
        if absent:
            told["problems"].append(
                f"{listing.root / absent[0]} is missing ({len(absent)} of {len(set(files))} images are): "
                "unpack the images again"
            )
        elif everything:
            boxes = None if listing.boxes is None else [listing.boxes[i] for i in kept]
            unreadable = decode(listing.root, files, settings.size, settings.shorter_side, True, boxes).unreadable
            told["unreadable"] = [files[i] for i in unreadable]
            if unreadable and not settings.skip_unreadable:
                told["problems"].append(
                    f"{len(unreadable)} of {len(files)} images cannot be read: {', '.join(told['unreadable'])}; mend "
                    "or replace them, or leave them out with data.skip_unreadable = true"
                )
        return told

    @classmethod
    def parts(cls, root: Path) -> tuple[Path, list[Path]]:
        """Return the root and the places of all that the layout needs.

        Raises:
            DataError: naming the first thing that is missing.
        """
        remedy = f"unpack {cls.title} ({cls.page}) there, or mend data.root"
        root = cls.home(existing_folder(root.expanduser(), remedy))
        if missing := cls.missing(root, {}):
            raise DataError(
                f"{root} has no {missing[0]}: unpack {cls.title} ({cls.page}) there as published, or mend data.root"
            )
        return root, [found for need in cls.needs if (found := part_of_layout(root, need)) is not None]


def published(
    benchmark: type[ImageBenchmark],
    dataset: str,
    settings: PublishedSettings,
    seed: int,
    images: ImageFiles,
    classes: ClassTable,
    own: ClassSplit | None = None,
) -> Listing:
    """Join images, class table and split of a published data set.

    The proposed split is taken if it is given or lies beside the data set, else ``own``.

    Args:
        benchmark: whose split it is.
        dataset: its name in the xlsa17 release.
        settings: say where the proposed split is, and how many validation classes to draw.
        seed: draws validation classes.
        images: of the data set.
        classes: of the data set.
        own: the split that the data set itself comes with.

    Raises:
        DataError: if there is no split at all, or it does not fit the images.
    """
    root, files, labels, boxes = images
    place = _find_splits(settings.splits, benchmark.home(settings.root), dataset)
    split = _proposed(benchmark.title, place, files, labels, classes.names) if place is not None else own
    if split is None:
        raise DataError(
            f"{benchmark.title} does not say which classes are seen: set data.splits to the folder {dataset} of the "
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
    return Listing(dataset, root, files, labels, space, test, split.used, boxes)


def draw_test(labels: NDArray[np.int64], classes: NDArray[np.int64], share: float, seed: int) -> NDArray[np.bool_]:
    """Draw a share of the images of each class for tests: at least one, but a class's only image stays.

    Args:
        labels: shape (images,), class ids.
        classes: ids of the classes that are drawn from.
        share: in (0, 1).
        seed: of the draw.

    Returns:
        Shape (images,), True for those drawn.
    """
    test = np.zeros(len(labels), dtype=bool)
    for c in classes.tolist():
        mine = np.flatnonzero(labels == c)
        if count := min(len(mine) - 1, max(1, round(share * len(mine)))) if len(mine) else 0:
            test[stream(seed, "test images", c).choice(mine, size=count, replace=False)] = True
    return test


def class_means(values: NDArray[Any], labels: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """Return the mean of each class's rows of ``values``, shape (classes, columns); zeros for a class without any.

    Example:
        >>> class_means(np.array([[1.0, 0.0], [0.0, 0.0], [3.0, 3.0]]), np.array([0, 0, 1]), 2).tolist()
        [[0.5, 0.0], [3.0, 3.0]]
    """
    means = np.zeros((classes, values.shape[1]))
    for c in np.unique(labels).tolist():
        means[c] = values[labels == c].mean(axis=0, dtype=np.float64)
    return means


def unit_length(semantics: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each class's attributes scaled to unit length; zeros stay.

    Example:
        >>> unit_length(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
        [[0.6, 0.8], [0.0, 0.0]]
    """
    norms = np.linalg.norm(semantics, axis=1, keepdims=True)
    return semantics / np.where(norms > 0, norms, 1.0)


def class_split(path: Path, names: Sequence[str], seen: str, unseen: str, validation: str) -> ClassSplit | None:
    """Read a split of classes from lists of names, a class a line.

    Args:
        path: the folder of the lists.
        names: of the classes.
        seen: file of the seen classes; if it is missing, all others are seen.
        unseen: file of the unseen classes.
        validation: file of the validation classes, which may be missing.

    Returns:
        The split, or None without a file of unseen classes.

    Raises:
        DataError: if a list names an unknown class, or a class is in both.
    """
    if not (path / unseen).is_file():
        return None
    hidden = _class_ids(path / unseen, names)
    shown = _class_ids(path / seen, names) if (path / seen).is_file() else np.setdiff1d(np.arange(len(names)), hidden)
    both = np.intersect1d(shown, hidden)
    if len(both):
        raise DataError(f"{path}: the class {names[both[0]]!r} is in both {seen} and {unseen}")
    held = np.intersect1d(_class_ids(path / validation, names), shown) if (path / validation).is_file() else None
    return ClassSplit(shown, hidden, held)


def read_numbered(path: Path) -> list[tuple[int, str]]:
    """Return (number, text) of lines such as ``12 012.Yellow_headed_Blackbird``.

    Raises:
        DataError: if a line is otherwise, or a number occurs twice.
    """
    found: dict[int, str] = {}
    for i, line in enumerate(read_lines(path), 1):
        number, *text = line.split(None, 1)
        if not number.isdecimal() or not text:
            raise DataError(f"{path}, line {i}: {line!r} is not a number and a text")
        if int(number) in found:
            raise DataError(f"{path}, line {i}: the number {number} occurs twice")
        found[int(number)] = text[0]
    return list(found.items())


def read_matrix(path: Path, rows: int, columns: int) -> NDArray[np.float64]:
    """Read a text file of numbers, a row a line.

    Raises:
        DataError: if it holds something else, or another number of rows or columns.
    """
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


def _class_ids(path: Path, names: Sequence[str]) -> NDArray[np.int64]:
    """Return the sorted ids of the classes that a file lists."""
    ids = {plain(name): i for i, name in enumerate(names)}
    return np.unique([_class_id(path, name, ids, names) for name in read_lines(path)]).astype(np.int64)


def _class_id(path: Path, name: str, ids: Mapping[str, int], names: Iterable[str]) -> int:
    if plain(name) not in ids:
        raise DataError(f"{path}: unknown class {name!r}{did_you_mean(name, names)}")
    return ids[plain(name)]


def _find_splits(given: Path | None, root: Path, dataset: str) -> Path | None:
    """Return ``att_splits.mat`` of the data set, or the folder of its class lists; None if none is given or found."""
    if given is None:
        around = (root, root.parent / "xlsa17" / dataset, root.parent / "xlsa17" / "data" / dataset)
        return next((folder / SPLITS for folder in around if (folder / SPLITS).is_file()), None)
    given = given.expanduser()
    if given.is_file():
        return given
    folders = (given, given / dataset, given / "data" / dataset)
    for folder in folders:
        if (folder / SPLITS).is_file():
            return folder / SPLITS
    for folder in folders:
        if (folder / UNSEEN_LIST).is_file():
            return folder
    raise DataError(f"{given} has no {SPLITS}: set data.splits to the folder {dataset} of the proposed split")


def _proposed(
    title: str, place: Path, files: Sequence[str], labels: NDArray[np.int64], names: Sequence[str]
) -> ClassSplit:
    """Return the proposed split (see the top of this file)."""
    if place.is_dir():
        split = class_split(place, names, SEEN_LIST, UNSEEN_LIST, VALIDATION_LIST)
        assert split is not None  # `_find_splits` saw the file
        _say_drawn(title, place / UNSEEN_LIST)
        return split
    wanted = ("trainval_loc", "test_seen_loc", "test_unseen_loc")
    mat = read_mat(place, ("allclasses_names", *wanted), ("train_loc", "val_loc"))
    known = {plain(name): i for i, name in enumerate(names)}
    own = np.array([_class_id(place, name, known, names) for name in texts(mat["allclasses_names"])])
    loc = {key: value.ravel().astype(np.int64) - 1 for key, value in mat.items() if key.endswith("_loc")}
    for key, ids in loc.items():
        if ids.min(initial=0) < 0:
            raise DataError(f"{place}: {key} names sample {ids.min() + 1}, but samples are counted from 1")
    total = max(int(ids.max(initial=-1)) for ids in loc.values()) + 1
    features = place.parent / FEATURES
    images: NDArray[np.int64] | None = None
    if features.is_file():
        measured = read_mat(features, ("labels", "image_files"))
        numbers = measured["labels"].ravel().astype(np.int64)
        named = texts(measured["image_files"])
        if len(named) != len(numbers) or numbers.min(initial=1) < 1 or numbers.max(initial=1) > len(own):
            raise DataError(f"{features}: its labels do not fit its image_files and the classes of {place}")
        theirs = own[numbers - 1]
        images = _match(features, named, theirs, files, labels)
        if len(images) < total:
            raise DataError(f"{place} names sample {total}, but {features} has {len(images)}")
        sample_labels = theirs
    else:
        split = class_split(place.parent, names, SEEN_LIST, UNSEEN_LIST, VALIDATION_LIST)
        if split is not None:
            _say_drawn(title, place)
            return split
        # The samples of the release are in the data set's own order, class by class. If so, no class is in both parts.
        sample_labels = labels
        together = np.concatenate([loc["trainval_loc"], loc["test_seen_loc"]])
        if total != len(labels) or len(np.intersect1d(labels[together], labels[loc["test_unseen_loc"]])):
            raise DataError(
                f"{place} numbers its samples, but {features} that names the images of these numbers is missing: "
                f"put it there, or the lists {UNSEEN_LIST} and {VALIDATION_LIST} of the same release"
            )
    trainval, unseen = sample_labels[loc["trainval_loc"]], sample_labels[loc["test_unseen_loc"]]
    validation = None
    if {"train_loc", "val_loc"} <= loc.keys():  # as in xlsa17: only through samples of trainval
        train, held = (np.intersect1d(loc[key], loc["trainval_loc"]) for key in ("train_loc", "val_loc"))
        classes = np.setdiff1d(sample_labels[held], sample_labels[train])
        validation = classes if 0 < len(classes) < len(np.unique(trainval)) else None
    if images is None:
        _say_drawn(title, place)
        return ClassSplit(np.unique(trainval), np.unique(unseen), validation)
    test, used = np.zeros(len(files), dtype=bool), np.zeros(len(files), dtype=bool)
    test[images[loc["test_seen_loc"]]] = True
    for key in wanted:
        used[images[loc[key]]] = True
    if not used.all():
        warnings.warn(f"{title}: {int((~used).sum())} images are in no split of {place} and not used", stacklevel=2)
    return ClassSplit(np.unique(trainval), np.unique(unseen), validation, test, used)


def _say_drawn(title: str, place: Path) -> None:
    warnings.warn(
        f"{title}: {place} gives the seen and unseen classes; without {FEATURES} beside it the test images of seen "
        f"classes are drawn ({TEST_SHARE:.0%} of each, always the same), not the published ones",
        stacklevel=2,
    )


def _match(
    place: Path,
    image_files: Sequence[str],
    theirs: NDArray[np.int64],
    files: Sequence[str],
    labels: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the image of each sample, by file name and class; several crops of one file are taken in order."""
    waiting: dict[tuple[str, int], deque[int]] = defaultdict(deque)
    for i, (file, label) in enumerate(zip(files, labels.tolist(), strict=True)):
        waiting[PurePosixPath(file).name, label].append(i)
    images = np.full(len(image_files), -1, dtype=np.int64)
    for i, (file, label) in enumerate(zip(image_files, theirs.tolist(), strict=True)):
        if here := waiting.get((PurePosixPath(file.replace("\\", "/")).name, label)):
            images[i] = here.popleft()
    lost = np.flatnonzero(images < 0)
    if len(lost):
        raise DataError(
            f"{place} names the image {image_files[lost[0]]!r}, which the data set lacks or has under another class "
            f"({len(lost)} of {len(image_files)} are so): unpack all images, or use the split of this data set"
        )
    return images
