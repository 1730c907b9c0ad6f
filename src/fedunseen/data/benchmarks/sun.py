"""The benchmark ``sun``: the SUN Attribute Database, 14,340 photos of 717 scenes, 102 attributes in four groups.

Patterson and Hays, "SUN Attribute Database: Discovering, Annotating, and Recognizing Scene Attributes" (2012). The
layout is that of the published archives (``SUNAttributeDB`` and its images). A scene is an image's folder:
``a/airport/entrance`` is the class ``airport_entrance``. A class's semantics are the mean of its images' votes.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal

import numpy as np

from fedunseen.core.errors import DataError
from fedunseen.data.benchmarks.attribute_groups import builtin_groups
from fedunseen.data.benchmarks.image_benchmark import (
    ClassTable,
    ImageFiles,
    PublishedBenchmark,
    PublishedSettings,
    class_means,
)
from fedunseen.data.benchmarks.proposed_split import ClassSplit
from fedunseen.data.io.matlab import cell_texts, read_mat


class Sun(PublishedBenchmark):
    """Scenes with attributes."""

    title = "SUN Attribute Database"
    page = "https://cs.brown.edu/~gmpatter/sunattributes.html"
    dataset = "SUN"
    folders = ("SUNAttributeDB", "SUN")
    needs = (
        "attributeLabels_continuous.mat",
        "images.mat",
        "attributes.mat",
        "images|SUN/images|../images|../SUN/images",
    )

    class Settings(PublishedSettings):
        """``[data] name = "sun"``."""

        name: Literal["sun"] = "sun"

    @classmethod
    def contents(cls, settings: Settings) -> tuple[ImageFiles, ClassTable, ClassSplit | None]:
        """Read the tables; see :meth:`PublishedBenchmark.contents`."""
        _, (votes_file, images, attributes, folder) = cls.parts(settings.root)
        votes, image_cells, attribute_cells = (
            read_mat(path, (name,), source=f"the {cls.title}")[name]
            for path, name in ((votes_file, "labels_cv"), (images, "images"), (attributes, "attributes"))
        )
        files = [file.lstrip("/") for file in cell_texts(image_cells)]
        attribute_names = list(cell_texts(attribute_cells))
        if votes.shape != (len(files), len(attribute_names)):
            raise DataError(
                f"{votes_file}: the votes have the shape {votes.shape}, but there are {len(files)} images in "
                f"{images.name} and {len(attribute_names)} attributes in {attributes.name}"
            )
        scenes = [scene(file) for file in files]
        names = list(dict.fromkeys(scenes))  # in the images' order, which is the alphabet's
        ids = {name: i for i, name in enumerate(names)}
        labels = np.array([ids[name] for name in scenes], dtype=np.int64)
        table = ClassTable(
            names,
            class_means(votes, labels, len(names)),
            attribute_names,
            builtin_groups("SUN", len(attribute_names)),
        )
        return ImageFiles(folder, files, labels), table, None


def scene(file: str) -> str:
    """Return the class of an image.

    Example:
        >>> scene("a/airport/entrance/sun_abc.jpg"), scene("a/abbey/sun_abc.jpg")
        ('airport_entrance', 'abbey')
    """
    parts = PurePosixPath(file).parts[:-1]
    return "_".join(parts[1:] if len(parts) > 1 and len(parts[0]) == 1 else parts)
