"""The benchmark ``apy``: aPascal and aYahoo, 15,339 objects of 32 kinds in 64 attributes.

Farhadi et al., "Describing Objects by their Attributes" (2009). The layout is that of the published archives
(``attribute_data`` and ``ayahoo_test_images``) with the images of PASCAL VOC 2008 beside them. A sample is the part
of an image inside its bounding box; a class's semantics are the mean of its objects' attributes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from fedunseen.core.errors import DataError
from fedunseen.data.benchmarks.image_benchmark import (
    ClassTable,
    ImageFiles,
    PublishedBenchmark,
    PublishedSettings,
    class_means,
)
from fedunseen.data.benchmarks.proposed_split import ClassSplit
from fedunseen.data.io.csv_io import read_lines
from fedunseen.data.io.images import Box
from fedunseen.data.names import did_you_mean


class Apy(PublishedBenchmark):
    """Objects with attributes."""

    title = "aPascal and aYahoo"
    page = "https://vision.cs.uiuc.edu/attributes; PASCAL VOC 2008: http://host.robots.ox.ac.uk/pascal/VOC/voc2008"
    dataset = "APY"
    folders = ("aPY", "APY", "apy")
    needs = (
        "attribute_data/ayahoo_test.txt",
        "attribute_data/apascal_train.txt",
        "attribute_data/apascal_test.txt",
        "attribute_data/attribute_names.txt",
        "attribute_data/class_names.txt",
        "ayahoo_test_images",
        "VOCdevkit/VOC2008/JPEGImages|VOC2008/JPEGImages|JPEGImages|VOCdevkit/VOC2012/JPEGImages|VOC2012/JPEGImages",
    )

    class Settings(PublishedSettings):
        """``[data] name = "apy"``."""

        name: Literal["apy"] = "apy"

    @classmethod
    def contents(cls, settings: Settings) -> tuple[ImageFiles, ClassTable, ClassSplit | None]:
        """Read the tables; see :meth:`PublishedBenchmark.contents`."""
        root, (yahoo, train, test, attributes, classes, yahoo_images, voc_images) = cls.parts(settings.root)
        names, attribute_names = read_lines(classes), read_lines(attributes)
        ids = {name: i for i, name in enumerate(names)}
        files: list[str] = []
        labels: list[int] = []
        boxes: list[Box] = []
        values: list[list[float]] = []
        for path, folder in ((train, voc_images), (test, voc_images), (yahoo, yahoo_images)):
            for i, line in enumerate(read_lines(path), 1):
                file, name, box, numbers = _object(path, i, line, len(attribute_names))
                if name not in ids:
                    raise DataError(f"{path}, line {i}: unknown class {name!r}{did_you_mean(name, ids)}")
                files.append((folder.relative_to(root) / file).as_posix())
                labels.append(ids[name])
                boxes.append(box)
                values.append(numbers)
        classes_of = np.array(labels)
        means = class_means(np.array(values), classes_of, len(names))
        table = ClassTable(names, means, attribute_names, {})
        return ImageFiles(root, files, classes_of, boxes), table, None


def _object(path: Path, i: int, line: str, attributes: int) -> tuple[str, str, Box, list[float]]:
    """Read a line: image, class, the box's corners (counted from 1, both inside), attributes."""
    words = line.split()
    if len(words) != 6 + attributes:
        raise DataError(
            f"{path}, line {i}: {len(words)} words, but image, class, four corners and {attributes} attributes "
            f"are {6 + attributes}"
        )
    try:
        left, top, right, bottom = (round(float(word)) for word in words[2:6])
        return words[0], words[1], (left - 1, top - 1, right, bottom), [float(word) for word in words[6:]]
    except (ValueError, OverflowError):
        raise DataError(f"{path}, line {i}: corners and attributes must be numbers") from None
