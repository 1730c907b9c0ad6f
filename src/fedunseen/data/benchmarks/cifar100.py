"""CIFAR-100 (Krizhevsky 2009), 60,000 photos of 32 x 32 pixels: the benchmarks ``cifar100``, ``fc100``, ``cifar-fs``.

``cifar100``: semantics are embeddings of "a photo of a CLASS."; 20 classes are unseen and 16 for validation, always the
same: no split is published, name it beside any number. ``fc100`` (Oreshkin et al. 2018): whole superclasses are novel.
``cifar-fs`` (Bertinetto et al. 2019): 64 / 16 / 20 classes drawn at random, which makes it the easier of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedunseen.core.errors import DataError
from fedunseen.core.settings import FolderOrName
from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.benchmark import Benchmark, DataSettings, split_ids
from fedunseen.data.benchmarks import cifar_files
from fedunseen.data.benchmarks.cifar_files import (
    SIDE,
    archive_in,
    class_images,
    find_source,
    layout_in,
    published_split,
)
from fedunseen.data.benchmarks.few_shot import FewShotBenchmark, Samples
from fedunseen.data.class_space import ClassSpace
from fedunseen.data.class_table import PROMPT, Prompt, describe
from fedunseen.data.io.csv_io import read_lines
from fedunseen.data.io.images import read_image
from fedunseen.data.names import check_collisions, did_you_mean, plain

PARTS = ("train", "val", "test")
LISTS = Path("splits") / "bertinetto"


class Cifar100(BenchmarkLoader):
    """Small photos, described by the names of their classes."""

    title = "CIFAR-100"
    page = cifar_files.PAGE
    layout = "train.bin, test.bin, fine_label_names.txt; or 00_apple.webp, ..."
    folders = cifar_files.FOLDERS

    class Settings(DataSettings):
        """``[data] name = "cifar100"``."""

        name: Literal["cifar100"] = "cifar100"
        root: Path
        """The folder with `train.bin`, `test.bin` and `fine_label_names.txt`, or with one sheet a class."""
        train_per_class: int | None = Field(None, ge=1, le=cifar_files.TRAIN)
        """Take the first so many of each class's 500 training images; unset takes all."""
        test_per_class: int | None = Field(None, ge=1, le=cifar_files.TEST)
        """Take the first so many of each class's 100 test images; unset takes all."""
        text_encoder: FolderOrName = "minilm"
        """Describes classes by their names: `"minilm"`, a hub name or a folder."""
        prompt: Prompt = PROMPT
        """The sentence that the text encoder reads, with `{}` for the class's name."""

    @classmethod
    def load(cls, settings: Settings, seed: int) -> Benchmark:
        """Return the benchmark; ``seed`` is not used (see the top of this file)."""
        source = find_source(settings.root.expanduser())
        space = _space(settings, source.names)
        every = np.arange(len(space.names))
        counts = (settings.train_per_class or cifar_files.TRAIN, settings.test_per_class or cifar_files.TEST)
        images = class_images(source, every.tolist(), counts)
        labels = np.repeat(every, sum(counts))
        is_test = np.tile(np.arange(sum(counts)) >= counts[0], len(every))
        splits = split_ids(space, labels, is_test)
        return Benchmark("cifar100", space, images, labels, image_shape=(3, SIDE, SIDE), **splits)

    @classmethod
    def read(cls, path: Path, settings: Settings) -> NDArray[np.uint8]:
        """Read an image of any size as the benchmark's own are, shape (1, 3, 32, 32)."""
        return read_image(Path(path), SIDE, SIDE)

    @classmethod
    def holds(cls, folder: Path) -> bool:
        """Say whether a folder has the images in sheets or in the binary version."""
        return layout_in(folder)


def _space(settings: Cifar100.Settings, names: Sequence[str]) -> ClassSpace:
    """Return the class space of the built-in split."""
    check_collisions(names, "the classes")
    part_of = published_split("zero_shot")
    for name, part in part_of.items():
        if part != "seen" and name not in names:
            raise DataError(f"the files name no class {name!r}, which CIFAR-100 has: unpack them again")
    semantics, attributes = describe(names, settings.text_encoder, settings.prompt)
    parts = np.array([part_of.get(name, "seen") for name in names])
    held, unseen = (np.flatnonzero(parts == part) for part in ("validation", "unseen"))
    return ClassSpace(tuple(names), semantics, attributes, np.flatnonzero(parts != "unseen"), held, unseen)


class _CifarSplit(FewShotBenchmark):
    """What the two splits share: images (n, 3, 32, 32), 600 a class."""

    name: ClassVar[str]
    folders = cifar_files.FOLDERS
    image_shape = (3, SIDE, SIDE)

    @classmethod
    def split(cls, settings: Any, root: Path) -> tuple[dict[str, list[str]], str]:
        """Return the classes of each part, and what names them, for messages."""
        part_of = published_split(cls.name.replace("-", "_"))
        return {part: [name for name in part_of if part_of[name] == part] for part in PARTS}, cls.name

    @classmethod
    def samples(cls, settings: Any) -> Samples:
        """Read the images and the split; see :meth:`FewShotBenchmark.samples`."""
        root = settings.root.expanduser()
        source = find_source(root)
        split, origin = cls.split(settings, source.place)
        label_of = {plain(name): i for i, name in enumerate(source.names)}
        part_of: dict[int, str] = {}
        for part in PARTS:
            for name in split[part]:
                label = label_of.get(plain(name))
                if label is None:
                    hint = did_you_mean(name, source.names) or ": unpack its images there"
                    raise DataError(f"{origin} names the class {name!r}, which {source.place} does not have{hint}")
                if label in part_of:
                    raise DataError(f"{origin} names the class {name!r} more than once: fix its lists")
                part_of[label] = part
        kept = sorted(part_of)
        return Samples(
            cls.name,
            [source.names[label] for label in kept],
            [[i for i, label in enumerate(kept) if part_of[label] == part] for part in PARTS],
            class_images(source, kept),
            np.repeat(np.arange(len(kept), dtype=np.int64), cifar_files.TRAIN + cifar_files.TEST),
        )

    @classmethod
    def find(cls, folder: Path) -> list[Path]:
        """Return the folder of the images in a folder, in one of the three layouts."""
        archive = archive_in(folder)
        return [archive] if archive is not None else Cifar100.find(folder)


class Fc100(_CifarSplit):
    """Photos of 32 x 32 pixels, few-shot: the novel classes are of other superclasses."""

    name = "fc100"
    title = "FC100: CIFAR-100 split by superclasses, few-shot"
    page = cifar_files.PAGE
    layout = "as cifar100; or data/CLASS/*.png"

    class Settings(DataSettings):
        """``[data] name = "fc100"``."""

        name: Literal["fc100"] = "fc100"
        root: Path
        """The folder with CIFAR-100 in one of the layouts of `cifar100`, or with `data/CLASS/*.png`."""


class CifarFs(_CifarSplit):
    """Photos of 32 x 32 pixels, few-shot: the novel classes were drawn at random."""

    name = "cifar-fs"
    title = "CIFAR-FS: CIFAR-100 split at random, few-shot"
    page = "https://github.com/bertinetto/r2d2"
    layout = "data/CLASS/*.png, splits/bertinetto/train.txt, val.txt, test.txt; or as cifar100"

    class Settings(DataSettings):
        """``[data] name = "cifar-fs"``."""

        name: Literal["cifar-fs"] = "cifar-fs"
        root: Path
        """The folder with `data/CLASS/*.png`, or with CIFAR-100 in one of the layouts of `cifar100`."""
        splits: Path | None = None
        """The folder of `train.txt`, `val.txt` and `test.txt`; unset, `splits/bertinetto` in the root, or the same
        published lists from the source."""

    @classmethod
    def split(cls, settings: Settings, root: Path) -> tuple[dict[str, list[str]], str]:
        """Return the classes of each part by the lists that are given or lie in the archive, else the published."""
        folder = settings.splits.expanduser() if settings.splits is not None else root / LISTS
        if settings.splits is None and not folder.is_dir():
            return super().split(settings, root)
        for path in (folder / f"{part}.txt" for part in PARTS):
            if not path.is_file():
                raise DataError(
                    f"{path} is missing: get the archive's splits/bertinetto ({cls.page}), or leave data.splits out"
                )
        return {part: read_lines(folder / f"{part}.txt") for part in PARTS}, str(folder)
