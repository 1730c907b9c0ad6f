"""The benchmark ``xlsa17``: features in the layout of the "proposed split" (Xian et al. 2017).

A data set is a folder with two MATLAB files (v5): ``res101.mat`` with ``features`` (d x samples)
and ``labels``, ``att_splits.mat`` with ``att`` and ``original_att`` (attributes x classes),
``allclasses_names`` and the numbers of the samples of each split, all counted from 1.
"""

import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedunseen.core.errors import DataError, unknown
from fedunseen.core.files import existing_folder
from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.benchmark import Benchmark, DataSettings
from fedunseen.data.benchmarks import proposed_split
from fedunseen.data.class_space import ClassSpace, draw_validation
from fedunseen.data.io.csv_io import read_lines
from fedunseen.data.names import grouped


class Xlsa17(BenchmarkLoader, name="xlsa17"):
    """A data set in the xlsa17 layout."""

    title = "features of CUB, AWA, SUN, aPY, ... in the proposed split"
    page = "https://www.mpi-inf.mpg.de/departments/computer-vision-and-machine-learning/research/zero-shot-learning"
    needs = (proposed_split.FEATURES, proposed_split.SPLITS)
    layout = f"DATASET/{proposed_split.FEATURES}, DATASET/{proposed_split.SPLITS}"
    folders = (".", "xlsa17", "xlsa17/data", "data")

    class Settings(DataSettings):
        """Settings of ``xlsa17``."""

        root: Path
        """The folder of the data set, or of several for `xlsa17`, with the files that `fedunseen
        data list` names."""
        dataset: str = Field(min_length=1)
        """The data set's folder, for example ``"AWA2"``."""
        attributes: Literal["att", "original_att"] = "att"
        """`att`: scaled to unit length. `original_att`: as annotated, or shares of a class's
        images."""

    @classmethod
    def load(cls, settings: Settings, seed: int) -> Benchmark:
        """Read the data set; ``seed`` draws a fifth of the seen classes for validation if the file
        names none.
        """
        folder = _folder(settings.root.expanduser(), settings.dataset)
        splits = proposed_split.read_mat(
            folder / proposed_split.SPLITS,
            (settings.attributes, "allclasses_names", *proposed_split.LOCATIONS),
            ("train_loc", "val_loc"),
        )
        measured = proposed_split.read_mat(folder / proposed_split.FEATURES, ("features", "labels"))
        names = proposed_split.cell_texts(splits["allclasses_names"])
        semantics = splits[settings.attributes].T
        if semantics.ndim != 2 or len(semantics) != len(names):
            raise DataError(
                f"{folder / proposed_split.SPLITS}: {settings.attributes} describes "
                f"{len(semantics)} classes, but allclasses_names has {len(names)}"
            )
        features, labels = _samples(folder / proposed_split.FEATURES, measured, len(names))
        index = proposed_split.sample_ids(folder / proposed_split.SPLITS, splits, len(labels))
        seen = np.unique(labels[index["trainval_loc"]])
        validation = proposed_split.validation_classes(index, labels)
        if validation is None:
            validation = draw_validation(seen, None, seed)
        attribute_names, groups = _attribute_names(folder, semantics.shape[1])
        groups = groups or proposed_split.builtin_groups(folder.name, semantics.shape[1])
        unseen = np.unique(labels[index["test_unseen_loc"]])
        space = ClassSpace(
            names, semantics.astype(np.float64), attribute_names, seen, validation, unseen, groups
        )
        train, test_seen, test_unseen = (index[key] for key in proposed_split.LOCATIONS)
        return Benchmark(
            f"xlsa17/{settings.dataset}", space, features, labels, train, test_seen, test_unseen
        )

    @classmethod
    def find(cls, folder: Path) -> list[Path]:
        """Return the folders of the data sets with both files: ``folder`` itself, or those in
        it.
        """
        places = [folder / name for name in cls.folders]
        inside = [child for place in places if place.is_dir() for child in sorted(place.iterdir())]
        return [folder] if _complete(folder) else list(filter(_complete, inside))

    @classmethod
    def section(cls, root: Path) -> dict[str, Any]:
        """Return what ``[data]`` says to use the data set in the folder ``root``."""
        return {"root": str(root.parent), "dataset": root.name}


def _folder(root: Path, dataset: str) -> Path:
    """Return the data set's folder, which holds both files."""
    hint = "unpack the archive xlsa17.zip (proposed split) from its authors' page there, or correct data.root"
    folders = {folder.name: folder for folder in reversed(Xlsa17.find(existing_folder(root, hint)))}
    folder = root / dataset
    if dataset in folders or list(folders.values()) == [root]:
        return folders.get(dataset, root)
    for file in (proposed_split.FEATURES, proposed_split.SPLITS):
        if folder.is_dir() and not (folder / file).is_file():
            raise DataError(f"{folder / file} is missing: {hint}")
    if folders:
        raise DataError(f"{unknown('dataset', dataset, folders)} in {root}")
    raise DataError(f"{folder} is missing, and no other dataset is in {root}: {hint}")


def _complete(folder: Path) -> bool:
    return (folder / proposed_split.FEATURES).is_file() and (
        folder / proposed_split.SPLITS
    ).is_file()


def _samples(
    path: Path, measured: dict[str, Any], classes: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return features of shape (samples, d) and labels counted from 0."""
    labels = measured["labels"].ravel()
    features = measured["features"]
    if features.ndim != 2 or features.shape[1] != len(labels):
        raise DataError(
            f"{path}: the features have the shape {features.shape}, but there are {len(labels)} "
            "labels: features must be d x samples"
        )
    outside = ~((labels >= 1) & (labels <= classes) & (labels == np.floor(labels)))
    if outside.any():
        bad = labels[int(np.argmax(outside))]
        raise DataError(
            f"{path}: the label {bad} of sample {int(np.argmax(outside)) + 1} is outside the class "
            f"space (1..{classes})"
        )
    # bytes stay bytes (a quarter of the memory); anything else is worked on in float32 anyway
    kept = features.dtype if features.dtype == np.uint8 else np.float32
    return np.ascontiguousarray(features.T, dtype=kept), labels.astype(np.int64) - 1


def _attribute_names(
    folder: Path, count: int
) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]]]:
    """Return the attributes' names and groups (``has_bill_shape::curved``) from ``predicates.txt``,
    if it is there.
    """
    path = folder / "predicates.txt"
    if not path.is_file():
        return tuple(f"attribute {i}" for i in range(count)), {}
    names = tuple(re.sub(r"^\d+\s+", "", line) for line in read_lines(path))
    if len(names) != count:
        raise DataError(
            f"{path} names {len(names)} attributes, but {folder / proposed_split.SPLITS} has "
            f"{count}"
        )
    return names, grouped(name.partition("::")[0] if "::" in name else "" for name in names)
