"""The proposed split of Xian et al. (2017), the release xlsa17: ``att_splits.mat`` and
``res101.mat``.

The first numbers the samples, the second names the image of each number. Beware: the union of
``train_loc`` and ``val_loc`` as published is trainval **and test_seen**. Here they only say which
classes are for validation, through trainval alone.
"""

import struct
import warnings
import zlib
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.arrays import check_unpacked
from fedunseen.core.errors import DataError
from fedunseen.data.io.csv_io import read_lines
from fedunseen.data.names import did_you_mean, plain

PROPOSED_PAGE = (
    "https://www.mpi-inf.mpg.de/departments/computer-vision-and-machine-learning/research/zero-shot-learning/"
    "zero-shot-learning-the-good-the-bad-and-the-ugly"
)
SPLITS = "att_splits.mat"
FEATURES = "res101.mat"
LOCATIONS = ("trainval_loc", "test_seen_loc", "test_unseen_loc")
TEST_SHARE = 0.2  # of each seen class's images, as in the proposed split

Ids = NDArray[np.int64]

TEXTS = ("allclasses_names", "image_files", "attributes", "images")  # variables that hold text
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
COMPRESSED = 15  # the type of a compressed variable in a MATLAB v5 file

# The groups of attributes: CUB's are the prefixes of their names; AWA's and SUN's are those of APN
# (Xu et al. 2020).
_CUB_STARTS = {
    "bill shape": 0, "wing color": 9, "upperparts color": 24, "underparts color": 39, "breast "
                                                                                      "pattern": 54,
    "back color": 58, "tail shape": 73, "upper tail color": 79, "head pattern": 94, "breast "
                                                                                    "color": 105,
    "throat color": 120, "eye color": 135, "bill length": 149, "forehead color": 152, "under tail "
                                                                                      "color": 167,
    "nape color": 182, "belly color": 197, "wing shape": 212, "size": 217, "shape": 222, "back "
                                                                                         "pattern": 236,
    "tail pattern": 240, "belly pattern": 244, "primary color": 248, "leg color": 263, "bill "
                                                                                       "color": 278,
    "crown color": 293, "wing pattern": 308,
}  # fmt: skip
_CUB = {
    group: [(start, end - 1)]
    for (group, start), (_, end) in pairwise([*_CUB_STARTS.items(), ("", 312)])
}
_AWA = {
    "colour": [(0, 7)], "texture": [(8, 13)], "shape": [(14, 17)], "body parts": [(18, 33), (44, 45)],
    "behaviour": [(34, 43)], "nutrition": [(46, 50)], "activity": [(51, 62)], "habitat": [(63, 77)],
    "character": [(78, 84)],
}  # fmt: skip
_SUN = {
    "functions": [(0, 35)], "materials": [(36, 73), (80, 80), (99, 99)], "surface": [(74, 79), (81, 84)],
    "spatial envelope": [(85, 98), (100, 101)],
}  # fmt: skip
_BUILTIN = {("CUB", 312): _CUB, ("SUN", 102): _SUN}
_BUILTIN |= {(name, 85): _AWA for name in ("AWA", "AWA1", "AWA2", "AWA1_LAMPERT")}
"""A data set and the number of its attributes -> group -> first and last columns."""


@dataclass(frozen=True, eq=False)
class ClassSplit:
    """Which classes are seen and unseen, and, where the split has them, which images are for
    tests.
    """

    seen: NDArray[np.int64]
    unseen: NDArray[np.int64]
    validation: NDArray[np.int64] | None = None
    test: NDArray[np.bool_] | None = None
    used: NDArray[np.bool_] | None = None


def class_split(folder: Path, names: Sequence[str]) -> ClassSplit | None:
    """Read the split of classes that a data set comes with: lists of names, a class a line; None if
    there is none.
    """
    seen, unseen = paths = [folder / "trainclasses.txt", folder / "testclasses.txt"]
    if not all(path.is_file() for path in paths):
        return None
    shown, hidden = (np.unique(_class_ids(path, read_lines(path), names)) for path in paths)
    if len(shared := np.intersect1d(shown, hidden)):
        raise DataError(
            f"{folder}: the class {names[shared[0]]!r} is in both {seen.name} and {unseen.name}"
        )
    return ClassSplit(shown, hidden)


def find_split(splits: Path | None, root: Path, dataset: str) -> Path | None:
    """Return ``att_splits.mat`` of the data set."""
    if splits is None:
        folders = (
            root,
            root.parent / "xlsa17" / dataset,
            root.parent / "xlsa17" / "data" / dataset,
        )
    else:
        splits = splits.expanduser()
        if splits.is_file():
            return splits
        folders = (splits, splits / dataset, splits / "data" / dataset)
    place = next((folder / SPLITS for folder in folders if (folder / SPLITS).is_file()), None)
    if place is None and splits is not None:
        raise DataError(
            f"{splits} has no {SPLITS}: set data.splits to the folder {dataset} of the proposed "
            "split"
        )
    return place


def read_split(
    title: str, place: Path, files: Sequence[str], labels: Ids, names: Sequence[str]
) -> ClassSplit:
    """Read the proposed split (see the top of this file)."""
    mat = read_mat(place, ("allclasses_names", *LOCATIONS), ("train_loc", "val_loc"))
    of_class = _class_ids(place, cell_texts(mat["allclasses_names"]), names)
    features = place.parent / FEATURES
    if not features.is_file():
        raise DataError(
            f"{place} numbers its samples, but {features}, which names the images of these "
            "numbers, is missing: put it there"
        )
    measured = read_mat(features, ("labels", "image_files"))
    numbers = measured["labels"].ravel().astype(np.int64)
    image_files = cell_texts(measured["image_files"])
    if (
        len(image_files) != len(numbers)
        or numbers.min(initial=1) < 1
        or numbers.max(initial=1) > len(of_class)
    ):
        raise DataError(
            f"{features}: its labels do not fit its image_files and the classes of {place}"
        )
    sample_labels = of_class[numbers - 1]
    images = _match(features, image_files, sample_labels, files, labels)
    loc = sample_ids(place, mat, len(images))
    test = np.zeros(len(files), dtype=bool)
    used = np.zeros(len(files), dtype=bool)
    test[images[loc["test_seen_loc"]]] = True
    for key in LOCATIONS:
        used[images[loc[key]]] = True
    if not used.all():
        warnings.warn(
            f"{title}: {int((~used).sum())} images are in no split of {place} and not used",
            stacklevel=2,
        )
    seen, unseen = (
        np.unique(sample_labels[loc[key]]) for key in ("trainval_loc", "test_unseen_loc")
    )
    return ClassSplit(seen, unseen, validation_classes(loc, sample_labels), test, used)


def sample_ids(path: Path, mat: Mapping[str, NDArray[Any]], samples: int) -> dict[str, Ids]:
    """Return the sample ids of each ``..._loc``, counted from 0."""
    loc = {}
    for key in (key for key in mat if key.endswith("_loc")):
        numbers = mat[key].ravel()
        outside = ~((numbers >= 1) & (numbers <= samples) & (numbers % 1 == 0))
        if outside.any():
            bad = numbers[int(np.argmax(outside))]
            raise DataError(
                f"{path}: {key} names sample {bad}, but the samples of {FEATURES} have the numbers "
                f"1 to {samples}"
            )
        loc[key] = numbers.astype(np.int64) - 1
    return loc


def validation_classes(loc: Mapping[str, Ids], labels: Ids) -> Ids | None:
    """Return the classes that ``train_loc`` and ``val_loc`` set aside, through samples of trainval;
    None if none.
    """
    if not {"train_loc", "val_loc"} <= loc.keys():
        return None
    train, held = (
        np.intersect1d(loc[key], loc["trainval_loc"]) for key in ("train_loc", "val_loc")
    )
    classes = np.setdiff1d(
        labels[held], labels[train]
    )  # a class in both was split by samples, not set aside
    return classes if 0 < len(classes) < len(np.unique(labels[loc["trainval_loc"]])) else None


def _class_ids(path: Path, listed: Sequence[str], names: Sequence[str]) -> Ids:
    """Return the ids of the classes that a file names."""
    ids = {plain(name): i for i, name in enumerate(names)}
    for name in listed:
        if plain(name) not in ids:
            raise DataError(f"{path}: unknown class {name!r}{did_you_mean(name, names)}")
    return np.array([ids[plain(name)] for name in listed], dtype=np.int64)


def _match(
    place: Path,
    image_files: Sequence[str],
    theirs: NDArray[np.int64],
    files: Sequence[str],
    labels: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the image of each sample, by file name and class; several crops of one file are taken
    in order.
    """
    waiting: dict[tuple[str, int], deque[int]] = defaultdict(deque)
    for i, (file, label) in enumerate(zip(files, labels.tolist(), strict=True)):
        waiting[PurePosixPath(file).name, label].append(i)
    images = np.full(len(image_files), -1, dtype=np.int64)
    for i, (file, label) in enumerate(zip(image_files, theirs.tolist(), strict=True)):
        if candidates := waiting.get((PurePosixPath(file.replace("\\", "/")).name, label)):
            images[i] = candidates.popleft()
    lost = np.flatnonzero(images < 0)
    if len(lost):
        raise DataError(
            f"{place} names the image {image_files[lost[0]]!r}, which the data set lacks or has "
            f"under another class ({len(lost)} of {len(image_files)} are so): unpack all images, "
            "or use the split of this data set"
        )
    return images


def builtin_groups(dataset: str, attributes: int) -> dict[str, tuple[int, ...]]:
    """Return the groups of a published data set, each attribute in exactly one."""
    ranges = _BUILTIN.get((dataset.upper(), attributes), {})
    return {
        group: tuple(i for a, b in parts for i in range(a, b + 1))
        for group, parts in ranges.items()
    }


# MATLAB files, v5: only the variables that are asked for, in MATLAB's own orientation


def read_mat(
    path: Path,
    required: Sequence[str],
    optional: Sequence[str] = (),
    source: str = "the xlsa17 proposed split",
) -> dict[str, Any]:
    """Read variables of a MATLAB file, in MATLAB's own orientation."""
    import scipy.io  # here, because other runs need not wait for it

    names = [*required, *optional]
    try:
        with path.open("rb") as file:
            head = file.read(520)
        if HDF5_SIGNATURE in (
            head[:8],
            head[512:],
        ):  # MATLAB puts 512 bytes of its own before HDF5's
            raise DataError(
                f"{path} is a MATLAB v7.3 file, as the authors' are not: save it again with the "
                "option -v7"
            )
        check_unpacked(path, _unpacked_bytes(path))
        variables = scipy.io.loadmat(path, variable_names=names)
    except DataError:
        raise
    except Exception as error:  # on a damaged file the readers raise almost anything
        raise DataError(
            f"{path} is damaged, perhaps cut short ({type(error).__name__}): copy or unpack it "
            "again"
        ) from None
    missing = [name for name in required if name not in variables]
    if missing:
        raise DataError(f"{path} has no variable {missing[0]!r}: is it a file of {source}?")
    arrays = {name: variables[name] for name in names if name in variables}
    for name, value in arrays.items():
        if name not in TEXTS and value.dtype.kind not in "fiub":
            raise DataError(f"{path}: {name} is of type {value.dtype}, not real numbers")
    return arrays


def _unpacked_bytes(path: Path) -> int:
    """Return what the compressed variables of a MATLAB v5 file unpack to, by the size that each
    says it has.
    """
    total = 0
    with path.open("rb") as file:
        order = {b"IM": "<", b"MI": ">"}.get(file.read(128)[126:128])
        while order is not None and len(tag := file.read(8)) == 8:
            kind, size = struct.unpack(f"{order}II", tag)
            packed = file.read(
                min(size, 4096)
            )  # enough for the tables that begin a compressed block
            if kind == COMPRESSED:
                total += struct.unpack(f"{order}II", zlib.decompressobj().decompress(packed, 8))[1]
            file.seek(size - len(packed), 1)
    return total


def cell_texts(cells: NDArray[Any]) -> tuple[str, ...]:
    """Return the texts of a MATLAB cell array, or of a character matrix with a text a row."""
    return tuple("".join(map(str, np.ravel(cell))).strip() for cell in cells.ravel())
