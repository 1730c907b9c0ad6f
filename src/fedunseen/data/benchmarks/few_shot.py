"""What the few-shot benchmarks share: a benchmark declares its files, image shape and classes, and
reads its samples.

``miniimagenet`` is here too: 100 classes of ImageNet with 600 photos each (Vinyals et al. 2016), in
the split of Ravi and Larochelle (2017). Its images have to be cut out of ImageNet; they become 84 x
84 pixels without keeping their proportions (Pillow's Lanczos filter), as in that split's own
script.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedunseen.core.array_cache import cached_blocks, file_stamps
from fedunseen.core.errors import DataError
from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.benchmark import Benchmark, DataSettings, split_ids
from fedunseen.data.class_space import ClassSpace
from fedunseen.data.io.csv_io import iter_csv, read_csv
from fedunseen.data.io.images import (
    ImageBytes,
    in_threads,
    opened_image,
    planes,
    read_image,
    read_strokes,
    upright,
)

SIDE = 84
PARTS = ("train", "val", "test")
PLACES = ("images/{file}", "{file}", "images/{label}/{file}", "{label}/{file}")


class FewShotBenchmark(BenchmarkLoader):
    """Base of the few-shot benchmarks. Their splits are fixed: the run's seed draws nothing."""

    image_shape: ClassVar[tuple[int, ...] | None] = None
    """(channels, height, width), or (height, width) of flattened gray values; None: the samples are
    not images.
    """
    resample: ClassVar[Image.Resampling] = Image.Resampling.BOX
    """How a picture of strokes is resized."""
    remedy: ClassVar[str] = ""
    """What helps where a class has no sample."""

    @classmethod
    def build(
        cls,
        name: str,
        names: Sequence[str],
        roles: Sequence[Sequence[int]],
        features: NDArray[Any],
        labels: NDArray[np.int64],
        held_out: Sequence[int] | NDArray[np.int64] = (),
        **fields: Any,
    ) -> Benchmark:
        """Return the benchmark, whose classes are learned from examples alone: nothing describes
        them.

        Args:
            name: of the benchmark.
            names: of the classes.
            roles: ids of the training, validation and novel classes.
            features: (n, ...) the samples.
            labels: (n,) ids of their classes.
            held_out: ids of samples of training classes that are for tests.
            fields: further fields of the benchmark.
        """
        training, validation, novel = roles
        seen, held, unseen = (
            np.array(ids, dtype=np.int64) for ids in ([*training, *validation], validation, novel)
        )
        space = ClassSpace(tuple(names), np.zeros((len(names), 0)), (), seen, held, unseen)
        for c in np.concatenate([space.seen, space.unseen]).tolist():
            if not (labels == c).any():
                raise DataError(f"{name}: the class {names[c]!r} has no sample{cls.remedy}")
        splits = split_ids(space, labels, np.isin(np.arange(len(labels)), held_out))
        return Benchmark(
            name, space, features, labels, image_shape=cls.image_shape, **splits, **fields
        )

    @classmethod
    def read(cls, path: Path | ImageBytes, settings: Any) -> NDArray[Any]:
        """Read a picture as the benchmark's own samples are: (1, channels, height, width) bytes, or
        flattened.
        """
        assert cls.image_shape is not None
        *channels, height, width = cls.image_shape
        if channels == [3]:
            return read_image(path, height, width)
        strokes = read_strokes(path, (height, width), cls.resample)
        return (
            np.rint(255 * strokes).astype(np.uint8)[None, None]
            if channels
            else strokes.reshape(1, -1)
        )


class MiniImageNet(FewShotBenchmark, name="miniimagenet"):
    """Photos of 84 x 84 pixels, few-shot."""

    title = "miniImageNet, Ravi's split of 64 / 16 / 20 classes, few-shot"
    page = "https://github.com/twitter-research/meta-learning-lstm"
    layout = "train.csv, val.csv, test.csv, images/*.jpg"
    folders = ("miniimagenet", "mini-imagenet", "mini_imagenet", "miniImageNet")
    image_shape = (3, SIDE, SIDE)

    class Settings(DataSettings):
        """Settings of ``miniimagenet``."""

        root: Path
        """The folder of the data set, or of several for `xlsa17`, with the files that `fedunseen
        data list` names."""
        splits: Path | None = None
        """The folder of the published split, if it is not the root: `att_splits.mat`, best with
        `res101.mat`; of `miniimagenet` its three lists."""

    @classmethod
    def load(cls, settings: Settings, seed: int) -> Benchmark:
        """Read the lists and the images."""
        root = (
            settings.root.expanduser() if settings.splits is not None else cls.home(settings.root)
        )
        rows = cls.read_split(settings.splits.expanduser() if settings.splits is not None else root)
        labels = {part: sorted({label for _, label in rows[part]}) for part in PARTS}
        names = [label for part in PARTS for label in labels[part]]
        ids = {label: c for c, label in enumerate(names)}
        listed = [row for part in PARTS for row in rows[part]]
        roles = [[ids[label] for label in labels[part]] for part in PARTS]
        of_each = np.array([ids[label] for _, label in listed], dtype=np.int64)
        return cls.build("miniimagenet", names, roles, cls._images(root, listed), of_each)

    @classmethod
    def read(cls, path: Path | ImageBytes, settings: Settings) -> NDArray[np.uint8]:
        """Read an image of any size as the benchmark's own are, shape (1, 3, 84, 84)."""
        return _read(path)[None]

    @classmethod
    def holds(cls, folder: Path) -> bool:
        """Say whether a folder has the three lists."""
        return all((folder / f"{part}.csv").is_file() for part in PARTS)

    @classmethod
    def missing(cls, root: Path, settings: Mapping[str, Any]) -> list[str]:
        """Return the image that the lists name first, if it is not there; what is wrong with lists
        says `load`.
        """
        with suppress(DataError, ValueError, StopIteration):
            rows = iter_csv(Path(settings.get("splits") or root) / "train.csv")
            next(rows)
            _, (file, label) = next(rows)
            if _is_name(file) and _is_name(label) and _place(root, file, label) is None:
                return [PLACES[0].format(file=file)]
        return []

    @classmethod
    def read_split(cls, folder: Path) -> dict[str, list[tuple[str, str]]]:
        """Read the three lists."""
        rows: dict[str, list[tuple[str, str]]] = {}
        part_of: dict[str, str] = {}
        for part in PARTS:
            path = folder / f"{part}.csv"
            if not path.is_file():
                raise DataError(
                    f"{path} is missing: get Ravi's lists train.csv, val.csv and test.csv "
                    f"({cls.page}), or name their folder in data.splits"
                )
            (_, header), *lines = read_csv(path)
            if header != ["filename", "label"]:
                raise cls.damaged(path, "does not begin with the line 'filename,label'")
            if not lines:
                raise cls.damaged(path, "names no image")
            for number, (file, label) in lines:
                where = f"{path}, line {number}:"
                if not _is_name(file) or not _is_name(label):
                    raise cls.damaged(
                        where, f"{file!r} and {label!r} are not the names of a file and a class"
                    )
                if part_of.setdefault(label, part) != part:
                    raise cls.damaged(where, f"the class {label!r} is in {part_of[label]}.csv too")
            rows[part] = [(file, label) for _, (file, label) in lines]
        return rows

    @classmethod
    def _images(cls, root: Path, listed: list[tuple[str, str]]) -> NDArray[np.uint8]:
        """Return the images (n, 3, 84, 84), kept in the cache."""
        place = _place(root, *listed[0]) or PLACES[0]
        paths = [root / place.format(file=file, label=label) for file, label in listed]
        stamps, missing = file_stamps(paths)
        if missing:
            raise DataError(
                f"{missing[0]} is missing ({len(missing):,} of {len(paths):,} images are): get "
                "ImageNet (ILSVRC 2012, https://image-net.org), cut miniImageNet's images out of "
                f"it as {cls.page} says, and put them there, or correct data.root"
            )
        depends = [str(root.resolve()), [path.name for path in paths], stamps]
        return cached_blocks(
            "miniimagenet", depends, (len(paths), 3, SIDE, SIDE), lambda: in_threads(_read, paths)
        )


def _place(root: Path, file: str, label: str) -> str | None:
    """Return how an image that is there is placed."""
    return next(
        (place for place in PLACES if (root / place.format(file=file, label=label)).is_file()), None
    )


def _is_name(text: str) -> bool:
    """Say whether a text names a file in a folder, not elsewhere."""
    return text not in ("", ".", "..") and "/" not in text and "\\" not in text


def _read(path: Path | ImageBytes) -> NDArray[np.uint8]:
    with opened_image(path, remedy=f": get it again ({MiniImageNet.page})") as file:
        return planes(upright(file).resize((SIDE, SIDE), Image.Resampling.LANCZOS))
