"""The benchmark ``cifar100``: 60,000 photos of 32 x 32 pixels, 100 classes, described by their names.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images" (2009). The layouts are those of ``cifar_files``.

The classes' semantics are embeddings of the sentence "a photo of a CLASS.". Twenty classes are unseen and 16 of the
others are for validation, always the same ones: there is no published split, name it beside any number. All images of
an unseen class are for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedunseen.core.errors import DataError
from fedunseen.core.settings import FolderOrName
from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.benchmark import Benchmark, DataSettings
from fedunseen.data.benchmarks import cifar_files
from fedunseen.data.benchmarks.cifar_files import SIDE, class_images, find_source, layout_in, published_split
from fedunseen.data.class_space import ClassSpace
from fedunseen.data.class_table import PROMPT, describe, read_class_table
from fedunseen.data.io.images import read_image
from fedunseen.data.names import check_collisions, did_you_mean, plain


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
        classes: Path | None = None
        """A class table (name, split, attributes...) instead of the built-in split; others are left out."""
        text_encoder: FolderOrName = "minilm"
        """Describes classes by their names, unless `classes` gives attributes: `"minilm"`, a hub name or a folder."""
        prompt: str = Field(PROMPT, pattern=r"^[^{}]*\{\}[^{}]*$")
        """The sentence that the text encoder reads, with `{}` for the class's name."""

    @classmethod
    def load(cls, settings: Settings, seed: int) -> Benchmark:
        """Return the benchmark; ``seed`` is not used (see the top of this file)."""
        source = find_source(settings.root.expanduser())
        space = _space(settings, source.names)
        label_of = {plain(name): i for i, name in enumerate(source.names)}
        kept = np.sort(np.concatenate([space.seen, space.unseen])).tolist()
        counts = (settings.train_per_class or cifar_files.TRAIN, settings.test_per_class or cifar_files.TEST)
        images = class_images(source, [label_of[plain(space.names[c])] for c in kept], counts)
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
        """Read an image of any size as the benchmark's own are, shape (1, 3, 32, 32)."""
        return read_image(Path(path), SIDE, SIDE)

    @classmethod
    def holds(cls, folder: Path) -> bool:
        """Say whether a folder has the images in sheets or in the binary version."""
        return layout_in(folder)


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
    part_of = published_split("zero_shot")
    for name, part in part_of.items():
        if part != "seen" and name not in names:
            raise DataError(f"the files name no class {name!r}, which CIFAR-100 has: unpack them again")
    semantics, attributes = describe(names, settings.text_encoder, settings.prompt)
    parts = np.array([part_of.get(name, "seen") for name in names])
    return ClassSpace(
        names=tuple(names),
        semantics=semantics,
        attribute_names=attributes,
        seen=np.flatnonzero(parts != "unseen"),
        validation=np.flatnonzero(parts == "validation"),
        unseen=np.flatnonzero(parts == "unseen"),
    )
