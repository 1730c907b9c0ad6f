"""The benchmarks ``cub``, ``awa2``, ``sun`` and ``apy``: photos with attributes, in the layouts of
their archives.

A class per data set declares its files and reads its tables; the base joins them with the proposed
split where it is given or lies beside the data set, else with the data set's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError
from fedunseen.data.benchmark import draw_test
from fedunseen.data.benchmarks import image_benchmark, proposed_split
from fedunseen.data.benchmarks.image_benchmark import ImageBenchmark, ImageSettings
from fedunseen.data.class_space import ClassSpace, draw_validation
from fedunseen.data.io.csv_io import read_lines
from fedunseen.data.io.images import Box, list_images
from fedunseen.data.names import did_you_mean, grouped


class PublishedSettings(ImageSettings):
    """Further settings of the published benchmarks."""

    attributes: Literal["att", "original_att"] = "att"
    """`att`: scaled to unit length. `original_att`: as annotated, or shares of a class's images."""
    splits: Path | None = None
    """The folder of the published split, if it is not the root: `att_splits.mat`, best with
    `res101.mat`; of `miniimagenet` its three lists."""


@dataclass(frozen=True, eq=False)
class Tables:
    """The images and classes of a data set."""

    root: Path
    files: Sequence[str]
    labels: NDArray[np.int64]
    names: Sequence[str]
    semantics: NDArray[np.float64]
    attribute_names: Sequence[str]
    groups: Mapping[str, tuple[int, ...]]
    boxes: Sequence[Box] | None = None


class PublishedBenchmark(ImageBenchmark):
    """Base of the published data sets of images. A subclass reads its tables in :meth:`tables`."""

    Settings = PublishedSettings
    dataset: ClassVar[str]
    """Its name in the release of the proposed split."""

    @classmethod
    def tables(cls, settings: Any) -> Tables:
        """Read the data set's own tables."""
        raise TypeError(f"{cls.__name__} must say what it holds")

    @classmethod
    def listing(cls, settings: Any, seed: int) -> image_benchmark.Listing:
        """Join images, class table and split; see :meth:`ImageBenchmark.listing`."""
        tables = cls.tables(settings)
        root = cls.home(settings.root)
        labels = tables.labels
        split = proposed_split.class_split(root, tables.names)
        place = proposed_split.find_split(settings.splits, root, cls.dataset)
        if place is not None:
            split = proposed_split.read_split(cls.title, place, tables.files, labels, tables.names)
        if split is None:
            raise DataError(
                f"{cls.title} does not say which classes are seen: set data.splits to the folder "
                f"{cls.dataset} of the proposed split ({proposed_split.SPLITS} and "
                f"{proposed_split.FEATURES} of xlsa17, {proposed_split.PROPOSED_PAGE})"
            )
        validation = (
            split.validation
            if split.validation is not None
            else draw_validation(split.seen, None, seed)
        )
        names = tuple(tables.names)
        columns = tuple(tables.attribute_names)
        semantics = (
            image_benchmark.unit_length(tables.semantics)
            if settings.attributes == "att"
            else tables.semantics
        )
        space = ClassSpace(
            names, semantics, columns, split.seen, validation, split.unseen, tables.groups
        )
        test = split.test
        if test is None:
            test = draw_test(
                labels, split.seen, proposed_split.TEST_SHARE, image_benchmark.SPLIT_SEED
            )
        return image_benchmark.Listing(
            cls.dataset, tables.root, tables.files, labels, space, test, split.used, tables.boxes
        )


class Cub(PublishedBenchmark, name="cub"):
    """CUB-200-2011 (Wah et al. 2011): 11,788 photos of 200 kinds of birds, 312 attributes in 28
    groups.

    A class's semantics are the shares, in percent, of the people who saw an attribute in its
    images.
    """

    title = "CUB-200-2011"
    page = "https://www.vision.caltech.edu/datasets/cub_200_2011"
    dataset = "CUB"
    folders = ("CUB_200_2011", "CUB")
    needs = (
        "attributes/class_attribute_labels_continuous.txt",
        "images.txt",
        "image_class_labels.txt",
        "classes.txt",
        # the archive puts it beside its folder
        "attributes.txt|attributes/attributes.txt|../attributes.txt",
        "images",
    )

    @classmethod
    def tables(cls, settings: Any) -> Tables:
        """Read the tables, the attributes' groups from their names, such as
        ``has_bill_shape::hooked``.
        """
        _, (matrix, images, image_labels, classes, attributes, folder) = cls.parts(settings.root)
        numbered = _read_numbered(classes)
        numbers = {number: i for i, number in enumerate(numbered)}
        class_of = _read_numbered(image_labels)
        files = []
        labels = []
        for number, file in _read_numbered(images).items():
            label = class_of.get(number, "")
            if not label.isdecimal() or int(label) not in numbers:
                raise DataError(
                    f"{image_labels} gives no class of {classes.name} to image {number} ({file})"
                )
            files.append(file)
            labels.append(numbers[int(label)])
        names = list(numbered.values())
        attribute_names = list(_read_numbered(attributes).values())
        groups = grouped(name.partition("::")[0] for name in attribute_names)
        semantics = _read_matrix(matrix, len(names), len(attribute_names))
        return Tables(folder, files, np.array(labels), names, semantics, attribute_names, groups)


class Awa2(PublishedBenchmark, name="awa2"):
    """Animals with Attributes 2 (Xian et al. 2017): 37,322 photos of 50 animals, 85 attributes in
    nine groups.

    Semantics are the strengths of association, 0 to 100, -1 where no one was asked.
    """

    title = "Animals with Attributes 2"
    page = "https://cvml.ista.ac.at/AwA2"
    dataset = "AWA2"
    folders = ("Animals_with_Attributes2", "AwA2", "AWA2")
    needs = ("predicate-matrix-continuous.txt", "predicates.txt", "classes.txt", "JPEGImages")

    @classmethod
    def tables(cls, settings: Any) -> Tables:
        """Read the tables."""
        _, (matrix, predicates, classes, folder) = cls.parts(settings.root)
        names, attributes = (list(_read_numbered(path).values()) for path in (classes, predicates))
        ids = {name: i for i, name in enumerate(names)}
        files = [file for file in list_images(folder) if "/" in file]
        of_class = [file.partition("/")[0] for file in files]
        if unknown := sorted(set(of_class) - set(ids)):
            raise DataError(
                f"{folder / unknown[0]} is not a class of "
                f"{classes.name}{did_you_mean(unknown[0], ids)}"
            )
        labels = np.array([ids[name] for name in of_class], dtype=np.int64)
        semantics = _read_matrix(matrix, len(names), len(attributes))
        groups = proposed_split.builtin_groups("AWA2", len(attributes))
        return Tables(folder, files, labels, names, semantics, attributes, groups)


class Sun(PublishedBenchmark, name="sun"):
    """The SUN Attribute Database (Patterson and Hays 2012): 14,340 photos of 717 scenes, 102
    attributes in four groups.

    A scene is an image's folder: ``a/airport/entrance`` is the class ``airport_entrance``. A
    class's semantics are the mean of its images' votes.
    """

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

    @classmethod
    def tables(cls, settings: Any) -> Tables:
        """Read the three MATLAB files."""
        _, (votes_file, images, attributes, folder) = cls.parts(settings.root)
        votes, image_cells, attribute_cells = (
            proposed_split.read_mat(path, (name,), source=f"the {cls.title}")[name]
            for path, name in (
                (votes_file, "labels_cv"),
                (images, "images"),
                (attributes, "attributes"),
            )
        )
        files = [file.lstrip("/") for file in proposed_split.cell_texts(image_cells)]
        attribute_names = proposed_split.cell_texts(attribute_cells)
        if votes.shape != (len(files), len(attribute_names)):
            raise DataError(
                f"{votes_file}: the votes have the shape {votes.shape}, but there are {len(files)} "
                f"images in {images.name} and {len(attribute_names)} attributes in "
                f"{attributes.name}"
            )
        folders = [PurePosixPath(file).parts[:-1] for file in files]
        scenes = [
            "_".join(parts[1:] if len(parts) > 1 and len(parts[0]) == 1 else parts)
            for parts in folders
        ]
        names = list(dict.fromkeys(scenes))  # in the images' order, which is the alphabet's
        labels = np.array([names.index(name) for name in scenes], dtype=np.int64)
        groups = proposed_split.builtin_groups("SUN", len(attribute_names))
        means = image_benchmark.class_means(votes, labels, len(names))
        return Tables(folder, files, labels, names, means, attribute_names, groups)


class Apy(PublishedBenchmark, name="apy"):
    """aPascal and aYahoo (Farhadi et al. 2009): 15,339 objects of 32 kinds in 64 attributes.

    The images of PASCAL VOC 2008 lie beside them. A sample is the part of an image inside its
    bounding box; a class's semantics are the mean of its objects' attributes.
    """

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

    @classmethod
    def tables(cls, settings: Any) -> Tables:
        """Read the lists of objects: image, class, the box's corners (counted from 1, both inside),
        attributes.
        """
        root, (yahoo, train, test, attributes, classes, yahoo_images, voc_images) = cls.parts(
            settings.root
        )
        names = read_lines(classes)
        attribute_names = read_lines(attributes)
        width = 6 + len(attribute_names)
        files: list[str] = []
        labels: list[int] = []
        boxes: list[Box] = []
        values: list[list[float]] = []
        for path, folder in ((train, voc_images), (test, voc_images), (yahoo, yahoo_images)):
            for i, line in enumerate(read_lines(path), 1):
                words = line.split()
                if len(words) != width:
                    raise DataError(
                        f"{path}, line {i}: {len(words)} words, but image, class, four corners and "
                        f"{len(attribute_names)} attributes are {width}"
                    )
                try:
                    left, top, right, bottom = (round(float(word)) for word in words[2:6])
                    values.append([float(word) for word in words[6:]])
                except (ValueError, OverflowError):
                    raise DataError(
                        f"{path}, line {i}: corners and attributes must be numbers"
                    ) from None
                if words[1] not in names:
                    raise DataError(
                        f"{path}, line {i}: unknown class "
                        f"{words[1]!r}{did_you_mean(words[1], names)}"
                    )
                files.append((folder.relative_to(root) / words[0]).as_posix())
                labels.append(names.index(words[1]))
                boxes.append((left - 1, top - 1, right, bottom))
        means = image_benchmark.class_means(np.array(values), np.array(labels), len(names))
        return Tables(root, files, np.array(labels), names, means, attribute_names, {}, boxes)


def _read_numbered(path: Path) -> dict[int, str]:
    """Return number -> text of lines such as ``12 012.Yellow_headed_Blackbird``, in their order."""
    texts: dict[int, str] = {}
    for i, line in enumerate(read_lines(path), 1):
        number, *text = line.split(None, 1)
        if not number.isdecimal() or not text:
            raise DataError(f"{path}, line {i}: {line!r} is not a number and a text")
        if int(number) in texts:
            raise DataError(f"{path}, line {i}: the number {number} occurs twice")
        texts[int(number)] = text[0]
    return texts


def _read_matrix(path: Path, rows: int, columns: int) -> NDArray[np.float64]:
    """Read a text file of numbers, a row a line."""
    try:
        values = [[float(word) for word in line.split()] for line in read_lines(path)]
    except ValueError as error:
        raise DataError(
            f"{path}: {error}".replace("could not convert string to float", "not a number")
        ) from None
    for i, row in enumerate(values, 1):
        if len(row) != columns:
            raise DataError(
                f"{path}, line {i}: {len(row)} numbers, but there are {columns} attributes"
            )
    if len(values) != rows:
        raise DataError(f"{path} has {len(values)} lines, but there are {rows} classes")
    return np.array(values, dtype=np.float64)
