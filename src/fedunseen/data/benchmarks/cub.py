"""The benchmark ``cub``: CUB-200-2011, 11,788 photos of 200 kinds of birds, 312 attributes in 28 groups.

Wah et al., "The Caltech-UCSD Birds-200-2011 Dataset" (2011). The layout is that of the published archive. A class's
semantics are the shares, in percent, of the people who saw an attribute in its images; the part of an attribute's
name before the double colon is its group.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedunseen.core.errors import DataError
from fedunseen.data.benchmarks.image_benchmark import (
    ClassTable,
    ImageFiles,
    PublishedBenchmark,
    PublishedSettings,
    read_matrix,
    read_numbered,
)
from fedunseen.data.benchmarks.proposed_split import ClassSplit


class Cub(PublishedBenchmark):
    """Birds with attributes."""

    title = "CUB-200-2011"
    page = "https://www.vision.caltech.edu/datasets/cub_200_2011"
    dataset = "CUB"
    folders = ("CUB_200_2011", "CUB")
    needs = (
        "attributes/class_attribute_labels_continuous.txt",
        "images.txt",
        "image_class_labels.txt",
        "classes.txt",
        "attributes.txt|attributes/attributes.txt|../attributes.txt",  # the archive puts it beside its folder
        "images",
    )

    class Settings(PublishedSettings):
        """``[data] name = "cub"``."""

        name: Literal["cub"] = "cub"

    @classmethod
    def contents(cls, settings: Settings) -> tuple[ImageFiles, ClassTable, ClassSplit | None]:
        """Read the tables; see :meth:`PublishedBenchmark.contents`."""
        _, (matrix, images, image_labels, classes, attributes, folder) = cls.parts(settings.root)
        numbers = {number: i for i, (number, _) in enumerate(read_numbered(classes))}
        names = [name for _, name in read_numbered(classes)]
        class_of = dict(read_numbered(image_labels))
        files, labels = [], []
        for number, file in read_numbered(images):
            label = class_of.get(number, "")
            if not label.isdecimal() or int(label) not in numbers:
                raise DataError(f"{image_labels} gives no class of {classes.name} to image {number} ({file})")
            files.append(file)
            labels.append(numbers[int(label)])
        attribute_names = [name for _, name in read_numbered(attributes)]
        groups: dict[str, tuple[int, ...]] = {}
        for i, name in enumerate(attribute_names):
            group = name.partition("::")[0]
            groups[group] = (*groups.get(group, ()), i)
        table = ClassTable(names, read_matrix(matrix, len(names), len(attribute_names)), attribute_names, groups)
        return ImageFiles(folder, files, np.array(labels)), table, None
