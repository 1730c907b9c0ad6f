"""What benchmarks of image files share: how their images are listed, without opening one, and how
they are loaded.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedunseen.core.errors import counted
from fedunseen.core.files import cache_folder
from fedunseen.core.random import stream
from fedunseen.data.base import BenchmarkLoader, count
from fedunseen.data.benchmark import Benchmark, DataSettings, empty_split, split_ids
from fedunseen.data.class_space import ClassSpace
from fedunseen.data.io.depth import FEWEST, SETTING, Window
from fedunseen.data.io.images import Box, Decoded, ImageBytes, decode, decoded_bytes, read_image

# draws what a published split leaves open; the same for every run, so that runs can be compared
SPLIT_SEED = 0


class ImageSettings(DataSettings):
    """Settings of every benchmark of image files."""

    root: Path
    """The folder of the data set, or of several for `xlsa17`, with the files that `fedunseen data
    list` names."""
    size: int = Field(224, ge=8, le=2048)
    """Side of the decoded images in pixels: the center square that is cut out."""
    resize: int | None = Field(None, ge=8, le=4096)
    """Length of the shorter side before the cut; unset, 8/7 of `size`: 256 for 224, 512 for 448."""
    window: Window | None = None
    """The values that are shown black and white in pictures of more than 8 bits, the same at all
    parties; unset, what a file's tags say (DICOM), or its bit depth.
    """
    skip_unreadable: bool = False
    """Leave out images that cannot be read, with a warning that names them, instead of refusing to
    start.
    """
    train_per_class: int | None = Field(None, ge=1)
    """At most so many training images of each class, drawn once for all runs; unset takes all."""
    test_per_class: int | None = Field(None, ge=1)
    """At most so many test images of each class, drawn once for all runs; unset takes all."""

    @model_validator(mode="after")
    def _check(self) -> "ImageSettings":
        if self.window is not None and not -math.inf < self.window[0] < self.window[1] < math.inf:
            raise ValueError(f"window = {list(self.window)} is no range: give black, then white")
        if self.resize is not None and self.resize < self.size:
            raise ValueError(
                f"resize = {self.resize} is less than size = {self.size}: the square would not fit"
            )
        return self

    @property
    def shorter_side(self) -> int:
        """The length of the shorter side before the cut, in pixels."""
        return self.resize if self.resize is not None else round(self.size * 8 / 7)


@dataclass(frozen=True, eq=False)
class Listing:
    """The images of a data set and their classes, before an image is opened."""

    name: str
    root: Path
    files: Sequence[str]
    labels: NDArray[np.int64]
    space: ClassSpace
    test: NDArray[np.bool_]
    used: NDArray[np.bool_] | None = None  # False for images that the split leaves out
    boxes: Sequence[Box] | None = None
    users: NDArray[np.int64] | None = None  # the party in whose folder each image lies
    part: bool = False  # what one party of a deployment holds: see `Benchmark`
    frames: Sequence[int] | None = None  # of each image, where a file holds several

    def ids(self, settings: ImageSettings) -> dict[str, NDArray[np.int64]]:
        """Return the sorted ids of ``train``, ``test_seen`` and ``test_unseen``, cut to the
        settings' numbers.
        """
        splits = split_ids(self.space, self.labels, self.test)
        for split, ids in splits.items():
            limit = settings.train_per_class if split == "train" else settings.test_per_class
            splits[split] = _limited(
                ids if self.used is None else ids[self.used[ids]], self.labels, limit, split
            )
        return splits

    def name_of(self, i: int) -> str:
        """Return the name of an image: its file, and the frame where that has several."""
        return self.files[i] if self.frames is None else f"{self.files[i]}[{self.frames[i]}]"

    def decode(self, kept: NDArray[np.int64], settings: Any, skip: bool) -> Decoded:
        """Return the images ``kept``."""
        ids = kept.tolist()
        files = [self.files[i] for i in ids]
        boxes = None if self.boxes is None else [self.boxes[i] for i in ids]
        frames = None if self.frames is None else [self.frames[i] for i in ids]
        side = settings.shorter_side
        return decode(self.root, files, settings.size, side, skip, boxes, settings.window, frames)


class ImageBenchmark(BenchmarkLoader):
    """Base of the benchmarks whose samples are image files. A subclass lists them in
    :meth:`listing`.
    """

    Settings: ClassVar[type[ImageSettings]]

    @classmethod
    def listing(cls, settings: Any, seed: int) -> Listing:
        """List the images and read the class table, without opening an image."""
        raise TypeError(f"{cls.__name__} must say which images it holds")

    @classmethod
    def load(cls, settings: Any, seed: int) -> Benchmark:
        """Decode the images, unless that was done before; ``seed`` matters only where classes or
        images are drawn.
        """
        listing = cls.listing(settings, seed)
        ids = listing.ids(settings) | {"unlabelled": np.flatnonzero(listing.labels < 0)}
        kept = np.sort(np.concatenate(list(ids.values())))
        files = [listing.name_of(i) for i in kept.tolist()]
        decoded = listing.decode(kept, settings, settings.skip_unreadable)
        unreadable = decoded.unreadable
        if decoded.few_levels:
            warnings.warn(
                few_levels([str(listing.root / files[i]) for i in decoded.few_levels]),
                WindowWarning,
                stacklevel=2,
            )
        if unreadable:
            names = ", ".join(files[i] for i in unreadable[:5]) + (
                ", ..." if len(unreadable) > 5 else ""
            )
            warnings.warn(
                f"{listing.name}: {len(unreadable)} of {len(files)} images cannot be read and are "
                f"left out: {names}",
                stacklevel=2,
            )
        splits: dict[str, Any] = {
            split: np.setdiff1d(np.searchsorted(kept, mine), unreadable)
            for split, mine in ids.items()
        }
        return Benchmark(
            name=listing.name,
            space=listing.space,
            features=decoded.images,
            labels=listing.labels[kept],
            image_shape=(3, settings.size, settings.size),
            files=tuple(files),
            users=None if listing.users is None else listing.users[kept],
            part=listing.part,
            reading=(*described_windows(decoded.windows, settings.window), *_lost(decoded)),
            **splits,
        )

    @classmethod
    def read(cls, path: Path | ImageBytes, settings: Any) -> NDArray[np.uint8]:
        """Read an image as the benchmark's own are read, shape (1, 3, size, size)."""
        return read_image(path, settings.size, settings.shorter_side, settings.window)

    @classmethod
    def inspect(cls, settings: Any, everything: bool = False) -> dict[str, Any]:
        """Count the images that are listed; decode them if ``everything`` is asked for."""
        listing = cls.listing(settings, seed=0)
        ids = listing.ids(settings)
        kept = np.sort(np.concatenate(list(ids.values())))
        files = [listing.name_of(i) for i in kept.tolist()]
        different = dict.fromkeys(listing.files[i] for i in kept.tolist())
        empty = [split for split, mine in ids.items() if not len(mine) and not listing.part]
        problems = [empty_split(listing.name, split) for split in empty]
        facts = count(listing.space, listing.labels, ids, "images")
        facts |= {
            "bytes": decoded_bytes(len(kept), settings.size),
            "cache": str(cache_folder()),
            "problems": problems,
        }
        if absent := [file for file in different if not (listing.root / file).is_file()]:
            problems.append(
                f"{listing.root / absent[0]} is missing ({len(absent)} of {len(different)} images "
                "are): unpack the images again"
            )
        elif everything:
            decoded = listing.decode(kept, settings, skip=True)
            facts["unreadable"] = [files[i] for i in decoded.unreadable]
            if facts["unreadable"] and not settings.skip_unreadable:
                problems.append(
                    f"{len(facts['unreadable'])} of {len(files)} images cannot be read: "
                    f"{', '.join(facts['unreadable'])}; fix or replace them, or leave them out "
                    "with data.skip_unreadable = true"
                )
        return facts


class WindowWarning(UserWarning):
    """Pictures of more than 8 bits lose most of what they show."""


def few_levels(files: Sequence[str]) -> str:
    """Say that pictures lose most of what they show, and name two of them."""
    named = " and ".join(files[:2])
    return (
        f"{counted(len(files), 'picture')} of more than 8 bits become fewer than {FEWEST} gray "
        f"levels, such as {named}: set data.window = [black, white] to the values that they use"
    )


def _lost(decoded: Decoded) -> list[str]:
    """Say how many pictures lose most of what they show, without their names: reports travel."""
    if not (lost := len(decoded.few_levels)):
        return []
    become = "picture becomes" if lost == 1 else "pictures become"
    return [
        f"{lost} {become} fewer than {FEWEST} gray levels in this window: fedunseen data check "
        "names them"
    ]


def described_windows(windows: Mapping[str, int], window: Window | None) -> list[str]:
    """Say which window the pictures of more than 8 bits are shown in."""
    shown = "" if window is None else f" = [{window[0]:g}, {window[1]:g}]"
    return [
        f"{counted(n, 'picture')} of more than 8 bits: black and white by "
        f"{source}{shown if source == SETTING else ''}"
        for source, n in windows.items()
    ]


def class_means(
    values: NDArray[Any], labels: NDArray[np.int64], classes: int
) -> NDArray[np.float64]:
    """Return the mean of each class's rows of ``values``, shape (classes, columns); zeros for a
    class without any.
    """
    means = np.zeros((classes, values.shape[1]))
    for c in np.unique(labels).tolist():
        means[c] = values[labels == c].mean(axis=0, dtype=np.float64)
    return means


def unit_length(semantics: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each class's attributes scaled to unit length; zeros stay."""
    norms = np.linalg.norm(semantics, axis=1, keepdims=True)
    return semantics / np.where(norms > 0, norms, 1.0)


def _limited(
    ids: NDArray[np.int64], labels: NDArray[np.int64], limit: int | None, split: str
) -> NDArray[np.int64]:
    """Keep at most ``limit`` ids of each class; a larger limit keeps those of a smaller one too."""
    if limit is None:
        return ids
    kept: list[NDArray[np.int64]] = [ids[:0]]
    for c in np.unique(labels[ids]).tolist():
        mine = ids[labels[ids] == c]
        kept.append(mine[stream(SPLIT_SEED, f"{split} images", c).permutation(len(mine))[:limit]])
    return np.sort(np.concatenate(kept))
