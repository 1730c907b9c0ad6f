"""The benchmark ``xlsa17``: any data set in the layout of the "proposed split", for example CUB, AWA2 or SUN.

The layout is that of Xian et al., "Zero-Shot Learning - A Comprehensive Evaluation of the Good, the Bad and
the Ugly" (2017).

A data set is a folder with two MATLAB files (v5 or v7.3). In ``res101.mat``: ``features`` (d x samples) and
``labels`` (counted from 1). In ``att_splits.mat``: ``att`` and ``original_att`` (attributes x classes),
``allclasses_names``, and sample numbers, counted from 1: ``trainval_loc``, ``test_seen_loc``,
``test_unseen_loc`` and sometimes ``train_loc``, ``val_loc``.

Beware of ``train_loc`` and ``val_loc``: in the files as published, their union is trainval **and test_seen**,
so whoever tunes with them has looked at test images. Here they only say which *classes* are for validation,
and only through samples of trainval.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedunseen.core.arrays import check_unpacked
from fedunseen.core.errors import DataError, MissingDependencyError, unknown
from fedunseen.core.files import existing_folder
from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.benchmark import Benchmark, DataSettings
from fedunseen.data.benchmarks.attribute_groups import builtin_groups
from fedunseen.data.class_space import ClassSpace, draw_validation
from fedunseen.data.io.csv_io import read_lines

__all__ = ["Xlsa17", "read_mat", "texts"]

FEATURES, SPLITS = "res101.mat", "att_splits.mat"
TEXTS = ("allclasses_names", "image_files", "attributes", "images")  # variables that hold text
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
COMPRESSED = 15  # the type of a compressed variable in a MATLAB v5 file


class Xlsa17(BenchmarkLoader):
    """A data set in the xlsa17 layout."""

    title = "features of CUB, AWA, SUN, aPY, ... in the proposed split"
    page = "https://www.mpi-inf.mpg.de/departments/computer-vision-and-machine-learning/research/zero-shot-learning"
    needs = (FEATURES, SPLITS)
    layout = f"DATASET/{FEATURES}, DATASET/{SPLITS}"
    folders = (".", "xlsa17", "xlsa17/data", "data")

    class Settings(DataSettings):
        """``[data] name = "xlsa17"``."""

        name: Literal["xlsa17"] = "xlsa17"
        root: Path
        """The folder that holds the data sets' folders, or one such folder itself."""
        dataset: str = Field(min_length=1)
        """The data set's folder, for example ``"AWA2"``."""
        attributes: Literal["att", "original_att"] = "att"
        """``att``: scaled to unit length by the authors. ``original_att``: as annotated."""
        validation_classes: int | None = Field(None, ge=0)
        """Draw this many validation classes; unset takes the file's, or draws a fifth of the seen classes."""

    @classmethod
    def load(cls, settings: Settings, seed: int) -> Benchmark:
        """Read the data set; ``seed`` matters only if validation classes have to be drawn.

        Raises:
            DataError: if a file is missing, damaged or inconsistent.
            MissingDependencyError: if a file is MATLAB v7.3 and h5py is not installed.
        """
        folder = _folder(settings.root.expanduser(), settings.dataset)
        splits = read_mat(
            folder / SPLITS,
            (settings.attributes, "allclasses_names", "trainval_loc", "test_seen_loc", "test_unseen_loc"),
            ("train_loc", "val_loc"),
        )
        measured = read_mat(folder / FEATURES, ("features", "labels"))
        names = texts(splits["allclasses_names"])
        semantics = splits[settings.attributes].T
        if semantics.ndim != 2 or len(semantics) != len(names):
            raise DataError(
                f"{folder / SPLITS}: {settings.attributes} describes {len(semantics)} classes, "
                f"but allclasses_names has {len(names)}"
            )
        features, labels = _samples(folder / FEATURES, measured, len(names))
        index = {key: _index(folder / SPLITS, key, splits[key], len(labels)) for key in splits if key.endswith("_loc")}
        seen = np.unique(labels[index["trainval_loc"]])
        attribute_names, groups = _attribute_names(folder, semantics.shape[1])
        groups = groups or builtin_groups(folder.name, semantics.shape[1])
        return Benchmark(
            name=f"xlsa17/{settings.dataset}",
            space=ClassSpace(
                names=names,
                semantics=semantics.astype(np.float64),
                attribute_names=attribute_names,
                seen=seen,
                validation=_validation(settings.validation_classes, index, labels, seen, seed),
                unseen=np.unique(labels[index["test_unseen_loc"]]),
                attribute_groups=groups,
            ),
            features=features,
            labels=labels,
            train=index["trainval_loc"],
            test_seen=index["test_seen_loc"],
            test_unseen=index["test_unseen_loc"],
        )

    @classmethod
    def find(cls, folder: Path) -> list[Path]:
        """Return the folders of the data sets with both files: ``folder`` itself, or those in it."""
        places = [folder / name for name in cls.folders]
        inside = [child for place in places if place.is_dir() for child in sorted(place.iterdir())]
        return [folder] if _complete(folder) else [child for child in inside if _complete(child)]

    @classmethod
    def section(cls, root: Path) -> dict[str, Any]:
        """Return what ``[data]`` says to use the data set in the folder ``root``."""
        return {"root": str(root.parent), "dataset": root.name}


def _validation(
    count: int | None,
    index: dict[str, NDArray[np.int64]],
    labels: NDArray[np.int64],
    seen: NDArray[np.int64],
    seed: int,
) -> NDArray[np.int64]:
    """Return the validation classes: those of ``val_loc`` within trainval (see the top), or drawn ones."""
    if count is None and {"train_loc", "val_loc"} <= index.keys():
        train, validation = (np.intersect1d(index[k], index["trainval_loc"]) for k in ("train_loc", "val_loc"))
        # a class in both was split by samples, not set aside
        classes = np.setdiff1d(labels[validation], labels[train])
        if 0 < len(classes) < len(seen):
            return classes
    return draw_validation(seen, count, seed)


def _folder(root: Path, dataset: str) -> Path:
    """Return the data set's folder, which holds both files."""
    hint = "unpack the archive xlsa17.zip (proposed split) from its authors' page there, or mend data.root"
    existing_folder(root, hint)
    places = [root / name for name in Xlsa17.folders]  # the root may be a folder too high
    for place in places:
        if _complete(place / dataset):
            return place / dataset
    folder = root / dataset
    if not folder.is_dir():
        if _complete(root):
            return root
        for place in places:
            found = [child.name for child in place.iterdir() if _complete(child)] if place.is_dir() else []
            if found:
                raise DataError(f"{unknown('dataset', dataset, found)} in {place}")
        raise DataError(f"{folder} is missing, and no other dataset is in {root}: {hint}")
    for file in (FEATURES, SPLITS):
        if not (folder / file).is_file():
            raise DataError(f"{folder / file} is missing: {hint}")
    return folder


def _complete(folder: Path) -> bool:
    return (folder / FEATURES).is_file() and (folder / SPLITS).is_file()


def _samples(path: Path, measured: dict[str, Any], classes: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return features of shape (samples, d) and labels counted from 0."""
    labels, features = measured["labels"].ravel(), measured["features"]
    if features.ndim != 2 or features.shape[1] != len(labels):
        raise DataError(
            f"{path}: the features have the shape {features.shape}, but there are {len(labels)} labels: "
            "features must be d x samples"
        )
    outside = ~((labels >= 1) & (labels <= classes) & (labels == np.floor(labels)))
    if outside.any():
        bad = labels[int(np.argmax(outside))]
        raise DataError(
            f"{path}: the label {bad} of sample {int(np.argmax(outside)) + 1} is outside the class space (1..{classes})"
        )
    # bytes stay bytes (a quarter of the memory); anything else is worked on in float32 anyway
    kept = features.dtype if features.dtype == np.uint8 else np.float32
    return np.ascontiguousarray(features.T, dtype=kept), labels.astype(np.int64) - 1


def _index(path: Path, key: str, numbers: NDArray[Any], samples: int) -> NDArray[np.int64]:
    """Return sample ids, counted from 0."""
    flat = numbers.ravel()
    outside = ~((flat >= 1) & (flat <= samples) & (flat == np.floor(flat)))
    if outside.any():
        bad = flat[int(np.argmax(outside))]
        raise DataError(f"{path}: {key} names sample {bad}, but {FEATURES} has samples 1 to {samples}")
    return flat.astype(np.int64) - 1


def _attribute_names(folder: Path, count: int) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]]]:
    """Return the attributes' names and groups from ``predicates.txt`` ("1 black"), if it is there.

    CUB writes its attributes as ``has_bill_shape::curved``: what stands before the double colon is the group.
    """
    path = folder / "predicates.txt"
    if not path.is_file():
        return tuple(f"attribute {i}" for i in range(count)), {}
    names = tuple(re.sub(r"^\d+\s+", "", line) for line in read_lines(path))
    if len(names) != count:
        raise DataError(f"{path} names {len(names)} attributes, but {folder / SPLITS} has {count}")
    groups: dict[str, tuple[int, ...]] = {}
    for i, name in enumerate(names):
        group, separator, _ = name.partition("::")
        if separator:
            groups[group] = (*groups.get(group, ()), i)
    return names, groups


def read_mat(
    path: Path, required: Sequence[str], optional: Sequence[str] = (), source: str = "the xlsa17 proposed split"
) -> dict[str, Any]:
    """Read variables of a MATLAB file (v5 or v7.3), in MATLAB's own orientation.

    Args:
        path: the file.
        required: variables that must be there.
        optional: variables that may be there.
        source: where the file should come from, for messages.

    Raises:
        DataError: if the file is damaged, lacks a variable, or one that is not text does not hold real numbers.
        MissingDependencyError: if the file is MATLAB v7.3 and h5py is not installed.
    """
    import scipy.io  # here, because whoever has no such file does not wait for it

    names = [*required, *optional]
    try:
        with path.open("rb") as file:
            head = file.read(520)
        is_hdf5 = HDF5_SIGNATURE in (head[:8], head[512:])  # MATLAB puts 512 bytes of its own before HDF5's
        if not is_hdf5:
            check_unpacked(path, _unpacked_bytes(path))
        variables = _read_hdf5(path, names) if is_hdf5 else scipy.io.loadmat(path, variable_names=names)
    except (DataError, MissingDependencyError):
        raise
    except Exception as error:  # on a damaged file the readers raise almost anything
        raise DataError(
            f"{path} is damaged, perhaps cut short ({type(error).__name__}): copy or unpack it again"
        ) from None
    missing = [name for name in required if name not in variables]
    if missing:
        raise DataError(f"{path} has no variable {missing[0]!r}: is it a file of {source}?")
    found = {name: variables[name] for name in names if name in variables}
    for name, value in found.items():
        if name not in TEXTS and value.dtype.kind not in "fiub":
            raise DataError(f"{path}: {name} is of type {value.dtype}, not real numbers")
    return found


def _unpacked_bytes(path: Path) -> int:
    """Return what the compressed variables of a MATLAB v5 file unpack to, by the size that each says it has."""
    total = 0
    with path.open("rb") as file:
        order = {b"IM": "<", b"MI": ">"}.get(file.read(128)[126:128])
        while order is not None and len(tag := file.read(8)) == 8:
            kind, size = struct.unpack(f"{order}II", tag)
            packed = file.read(min(size, 4096))  # enough for the tables that begin a compressed block
            if kind == COMPRESSED:
                total += struct.unpack(f"{order}II", zlib.decompressobj().decompress(packed, 8))[1]
            file.seek(size - len(packed), 1)
    return total


def _read_hdf5(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Read a MATLAB v7.3 file: HDF5 with arrays transposed and texts as references to character codes."""
    try:
        import h5py
    except ImportError:
        raise MissingDependencyError(
            f"{path} is a MATLAB v7.3 file, which needs h5py: pip install 'fedunseen[matlab73]'"
        ) from None
    variables: dict[str, Any] = {}
    with h5py.File(path, "r") as file:
        for name in names:
            if name not in file:
                continue
            check_unpacked(path, file[name].nbytes)
            value = file[name][()].T
            if value.dtype == object:
                value = np.array(["".join(map(chr, file[ref][()].T.ravel())) for ref in value.ravel()])
            variables[name] = value
    return variables


def texts(cells: NDArray[Any]) -> tuple[str, ...]:
    """Return the texts of a MATLAB cell array, or of a character matrix with a text a row."""
    return tuple("".join(map(str, np.ravel(cell))).strip() for cell in cells.ravel())
