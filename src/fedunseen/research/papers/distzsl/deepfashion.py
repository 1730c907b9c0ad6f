"""The benchmark ``deepfashion``: 289,222 photos of 50 kinds of clothes, 1,000 attributes (Liu et
al. 2016).

No zero-shot split is published: unseen classes and a fifth of the others' images are drawn by a
seed of their own, the same for all runs. A class's semantics are how often each attribute was
marked in its training images, or, for an unseen class, in all its images: the marks describe the
class, its images are never trained on.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.array_cache import cached_blocks, file_stamp
from fedunseen.core.errors import DataError
from fedunseen.core.random import stream
from fedunseen.data.benchmark import draw_test
from fedunseen.data.benchmarks import image_benchmark
from fedunseen.data.benchmarks.image_benchmark import ImageBenchmark, ImageSettings
from fedunseen.data.benchmarks.proposed_split import TEST_SHARE
from fedunseen.data.class_space import ClassSpace, draw_validation
from fedunseen.data.io.csv_io import read_lines
from fedunseen.data.names import grouped

TYPES = {"1": "texture", "2": "fabric", "3": "shape", "4": "part", "5": "style"}

UNSEEN_CLASSES = 10
"""How many classes are drawn as unseen."""
_SPLIT_SEED = 0  # of unseen classes, validation classes and test images


class DeepFashion(ImageBenchmark, name="deepfashion"):
    """Clothes with attributes."""

    title = "DeepFashion (Category and Attribute Prediction)"
    page = "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/AttributePrediction.html"
    folders = ("DeepFashion", "deepfashion", "Category and Attribute Prediction Benchmark")
    needs = (
        "Anno/list_category_cloth.txt|Anno_coarse/list_category_cloth.txt|Anno*/list_category_cloth.txt",
        "Anno/list_category_img.txt|Anno_coarse/list_category_img.txt|Anno*/list_category_img.txt",
        "Anno/list_attr_cloth.txt|Anno_coarse/list_attr_cloth.txt|Anno*/list_attr_cloth.txt",
        "Anno/list_attr_img.txt|Anno_coarse/list_attr_img.txt|Anno*/list_attr_img.txt",
        "Img/img|img",
    )

    class Settings(ImageSettings):
        """Settings of ``deepfashion``."""

        attributes: Literal["att", "original_att"] = "att"
        """`att`: scaled to unit length. `original_att`: as annotated, or shares of a class's
        images."""

    @classmethod
    def listing(cls, settings: Settings, seed: int) -> image_benchmark.Listing:
        """List the images; see :meth:`ImageBenchmark.listing`."""
        _, (cloth, images, attributes, marks_file, folder) = cls.parts(settings.root)
        names = [line.rsplit(None, 1)[0] for line in _rows(cloth)]
        files = []
        labels = []
        for line in _rows(images):
            file, _, number = " ".join(line.split()).rpartition(" ")
            if not number.isdecimal() or not 1 <= int(number) <= len(names):
                raise DataError(
                    f"{images}: '{file} {number}' does not end with the number of a class (1 to "
                    f"{len(names)})"
                )
            files.append(file)
            labels.append(int(number) - 1)
        classes = np.array(labels, dtype=np.int64)
        pairs = [line.rsplit(None, 1) for line in _rows(attributes)]
        if alone := [pair[0] for pair in pairs if len(pair) != 2]:
            raise DataError(f"{attributes}: {alone[0]!r} has no attribute type")
        groups = grouped(TYPES.get(kind, f"type {kind}") for _, kind in pairs)
        marks = _marks(marks_file, files, len(pairs))
        present = np.unique(
            classes
        )  # a few kinds have no image, and so nothing that describes them
        if len(present) <= UNSEEN_CLASSES:
            raise DataError(
                f"{images} has images of {len(present)} classes, and {UNSEEN_CLASSES} are drawn as "
                f"unseen: get the whole data set ({cls.page})"
            )
        classes = np.searchsorted(present, classes)
        count = len(present)
        unseen = np.sort(stream(_SPLIT_SEED, "unseen classes").choice(count, UNSEEN_CLASSES, False))
        seen = np.setdiff1d(np.arange(count), unseen)
        test = draw_test(classes, seen, TEST_SHARE, _SPLIT_SEED)
        shares = image_benchmark.class_means(marks[~test] > 0, classes[~test], count)
        space = ClassSpace(
            names=tuple(names[i] for i in present),
            semantics=image_benchmark.unit_length(shares)
            if settings.attributes == "att"
            else shares,
            attribute_names=tuple(name for name, _ in pairs),
            seen=seen,
            validation=draw_validation(seen, None, _SPLIT_SEED),
            unseen=unseen,
            attribute_groups=groups,
        )
        return image_benchmark.Listing("DeepFashion", folder.parent, files, classes, space, test)


def _rows(path: Path) -> list[str]:
    """Return the rows of a table that begins with their number and the columns' names."""
    lines = read_lines(path)
    if len(lines) < 3 or not lines[0].isdecimal() or int(lines[0]) != len(lines) - 2:
        raise DataError(
            f"{path} is cut short or changed: its first line says {lines[0]} rows, but it has "
            f"{max(0, len(lines) - 2)}"
        )
    return lines[2:]


def _marks(path: Path, files: list[str], attributes: int) -> NDArray[Any]:
    """Return the attributes of all images (1, 0 or -1), shape (images, attributes); kept in the
    cache.
    """

    def produce() -> Iterator[NDArray[np.int8]]:
        with path.open(
            encoding="utf-8"
        ) as file:  # line by line: the file has more than half a gigabyte
            next(file, None)
            next(file, None)
            for i, wanted in enumerate(files):
                words = next(file, "").split()
                if len(words) != 1 + attributes or words[0] != wanted:
                    raise DataError(
                        f"{path}, line {i + 3}: not {wanted} and {attributes} attributes"
                    )
                try:
                    yield np.array(words[1:]).astype(np.int8)[None]
                except ValueError:
                    raise DataError(
                        f"{path}, line {i + 3}: the attributes must be 1, 0 or -1"
                    ) from None

    depends = [file_stamp(path), attributes, files]
    return cached_blocks(
        "marks", depends, (len(files), attributes), produce, np.int8, "reading marks"
    )
