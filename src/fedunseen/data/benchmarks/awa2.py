"""The benchmark ``awa2``: Animals with Attributes 2, 37,322 photos of 50 animals, 85 attributes in nine groups.

Xian et al., "Zero-Shot Learning - A Comprehensive Evaluation of the Good, the Bad and the Ugly" (2017). The layout is
that of the published archives. Semantics are the strengths of association in ``predicate-matrix-continuous.txt``, 0
to 100, -1 where no one was asked. The data set's own lists of training and test classes are used where no proposed
split is given.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedunseen.core.errors import DataError
from fedunseen.data.benchmarks.attribute_groups import builtin_groups
from fedunseen.data.benchmarks.image_benchmark import (
    ClassTable,
    ImageFiles,
    PublishedBenchmark,
    PublishedSettings,
    read_matrix,
    read_numbered,
)
from fedunseen.data.benchmarks.proposed_split import ClassSplit, class_split
from fedunseen.data.io.images import list_images
from fedunseen.data.names import did_you_mean


class Awa2(PublishedBenchmark):
    """Animals with attributes."""

    title = "Animals with Attributes 2"
    page = "https://cvml.ista.ac.at/AwA2"
    dataset = "AWA2"
    folders = ("Animals_with_Attributes2", "AwA2", "AWA2")
    needs = ("predicate-matrix-continuous.txt", "predicates.txt", "classes.txt", "JPEGImages")

    class Settings(PublishedSettings):
        """``[data] name = "awa2"``."""

        name: Literal["awa2"] = "awa2"

    @classmethod
    def contents(cls, settings: Settings) -> tuple[ImageFiles, ClassTable, ClassSplit | None]:
        """Read the tables; see :meth:`PublishedBenchmark.contents`."""
        root, (matrix, predicates, classes, folder) = cls.parts(settings.root)
        names = [name for _, name in read_numbered(classes)]
        ids = {name: i for i, name in enumerate(names)}
        files = [file for file in list_images(folder) if "/" in file]
        for name in sorted({file.partition("/")[0] for file in files}):
            if name not in ids:
                raise DataError(f"{folder / name} is not a class of {classes.name}{did_you_mean(name, ids)}")
        labels = np.array([ids[file.partition("/")[0]] for file in files], dtype=np.int64)
        attributes = [name for _, name in read_numbered(predicates)]
        table = ClassTable(
            names,
            read_matrix(matrix, len(names), len(attributes)),
            attributes,
            builtin_groups("AWA2", len(attributes)),
        )
        split = class_split(root, names, "trainclasses.txt", "testclasses.txt", "valclasses.txt")
        return ImageFiles(folder, files, labels), table, split
