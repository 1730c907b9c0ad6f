"""The proposed split of Xian et al. (2017), the release xlsa17: ``att_splits.mat`` and ``res101.mat``.

The first numbers the samples, the second names the image of each number. Without it only the *classes* are known, and
a fifth of each seen class's images is drawn for the tests. Beware: the union of ``train_loc`` and ``val_loc`` as
published is trainval **and test_seen**. Here they only say which classes are for validation, through trainval alone.
"""

from __future__ import annotations

import warnings
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError
from fedunseen.data.io.csv_io import read_lines
from fedunseen.data.io.matlab import cell_texts, read_mat
from fedunseen.data.names import did_you_mean, plain

PROPOSED_PAGE = (
    "https://www.mpi-inf.mpg.de/departments/computer-vision-and-machine-learning/research/zero-shot-learning/"
    "zero-shot-learning-the-good-the-bad-and-the-ugly"
)
SPLITS, FEATURES = "att_splits.mat", "res101.mat"
LOCATIONS = ("trainval_loc", "test_seen_loc", "test_unseen_loc")
SEEN_LIST, UNSEEN_LIST, VALIDATION_LIST = "trainvalclasses.txt", "testclasses.txt", "valclasses1.txt"
TEST_SHARE = 0.2  # of each seen class's images, as in the proposed split

Ids = NDArray[np.int64]

# The groups of attributes: CUB's are the prefixes of their names; AWA's and SUN's are those of APN (Xu et al. 2020).
CUB_STARTS = {
    "bill shape": 0, "wing color": 9, "upperparts color": 24, "underparts color": 39, "breast pattern": 54,
    "back color": 58, "tail shape": 73, "upper tail color": 79, "head pattern": 94, "breast color": 105,
    "throat color": 120, "eye color": 135, "bill length": 149, "forehead color": 152, "under tail color": 167,
    "nape color": 182, "belly color": 197, "wing shape": 212, "size": 217, "shape": 222, "back pattern": 236,
    "tail pattern": 240, "belly pattern": 244, "primary color": 248, "leg color": 263, "bill color": 278,
    "crown color": 293, "wing pattern": 308,
}  # fmt: skip
CUB_ATTRIBUTES = 312

AWA_RANGES = {
    "colour": [(0, 7)], "texture": [(8, 13)], "shape": [(14, 17)], "body parts": [(18, 33), (44, 45)],
    "behaviour": [(34, 43)], "nutrition": [(46, 50)], "activity": [(51, 62)], "habitat": [(63, 77)],
    "character": [(78, 84)],
}  # fmt: skip
SUN_RANGES = {
    "functions": [(0, 35)], "materials": [(36, 73), (80, 80), (99, 99)], "surface": [(74, 79), (81, 84)],
    "spatial envelope": [(85, 98), (100, 101)],
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class ClassSplit:
    """Which classes are seen and unseen, and, where the split has them, which images are for tests."""

    seen: NDArray[np.int64]
    unseen: NDArray[np.int64]
    validation: NDArray[np.int64] | None = None
    test: NDArray[np.bool_] | None = None
    used: NDArray[np.bool_] | None = None


def class_split(path: Path, names: Sequence[str], seen: str, unseen: str, validation: str) -> ClassSplit | None:
    """Read a split of classes from lists of names, a class a line."""
    if not (path / unseen).is_file():
        return None
    hidden = _class_ids(path / unseen, names)
    shown = _class_ids(path / seen, names) if (path / seen).is_file() else np.setdiff1d(np.arange(len(names)), hidden)
    if len(both := np.intersect1d(shown, hidden)):
        raise DataError(f"{path}: the class {names[both[0]]!r} is in both {seen} and {unseen}")
    held = np.intersect1d(_class_ids(path / validation, names), shown) if (path / validation).is_file() else None
    return ClassSplit(shown, hidden, held)


def find_split(given: Path | None, root: Path, dataset: str) -> Path | None:
    """Return ``att_splits.mat`` of the data set, or the folder of its class lists."""
    if given is None:
        around = (root, root.parent / "xlsa17" / dataset, root.parent / "xlsa17" / "data" / dataset)
        return next((folder / SPLITS for folder in around if (folder / SPLITS).is_file()), None)
    given = given.expanduser()
    if given.is_file():
        return given
    folders = (given, given / dataset, given / "data" / dataset)
    for name in (SPLITS, UNSEEN_LIST):
        for folder in folders:
            if (folder / name).is_file():
                return folder / name if name == SPLITS else folder
    raise DataError(f"{given} has no {SPLITS}: set data.splits to the folder {dataset} of the proposed split")


def read_split(title: str, place: Path, files: Sequence[str], labels: Ids, names: Sequence[str]) -> ClassSplit:
    """Read the proposed split (see the top of this file)."""
    if place.is_dir():
        return _by_lists(title, place, place / UNSEEN_LIST, names)
    mat = read_mat(place, ("allclasses_names", *LOCATIONS), ("train_loc", "val_loc"))
    ids = {plain(name): i for i, name in enumerate(names)}
    of_class = np.array([_class_id(place, name, ids, names) for name in cell_texts(mat["allclasses_names"])])
    features = place.parent / FEATURES
    if not features.is_file():
        if (place.parent / UNSEEN_LIST).is_file():
            return _by_lists(title, place.parent, place, names)
        return _by_order(title, place, sample_ids(place, mat, None), labels)
    measured = read_mat(features, ("labels", "image_files"))
    numbers = measured["labels"].ravel().astype(np.int64)
    image_files = cell_texts(measured["image_files"])
    if len(image_files) != len(numbers) or numbers.min(initial=1) < 1 or numbers.max(initial=1) > len(of_class):
        raise DataError(f"{features}: its labels do not fit its image_files and the classes of {place}")
    sample_labels = of_class[numbers - 1]
    images = _match(features, image_files, sample_labels, files, labels)
    loc = sample_ids(place, mat, len(images))
    test, used = np.zeros(len(files), dtype=bool), np.zeros(len(files), dtype=bool)
    test[images[loc["test_seen_loc"]]] = True
    for key in LOCATIONS:
        used[images[loc[key]]] = True
    if not used.all():
        warnings.warn(f"{title}: {int((~used).sum())} images are in no split of {place} and not used", stacklevel=2)
    seen, unseen = (np.unique(sample_labels[loc[key]]) for key in ("trainval_loc", "test_unseen_loc"))
    return ClassSplit(seen, unseen, validation_classes(loc, sample_labels), test, used)


def sample_ids(path: Path, mat: Mapping[str, NDArray[Any]], samples: int | None) -> dict[str, Ids]:
    """Return the sample ids of each ``..._loc``, counted from 0."""
    loc = {}
    for key in (key for key in mat if key.endswith("_loc")):
        numbers = mat[key].ravel()
        outside = ~((numbers >= 1) & (numbers <= (np.inf if samples is None else samples)) & (numbers % 1 == 0))
        if outside.any():
            known = "are counted from 1" if samples is None else f"have the numbers 1 to {samples}"
            bad = numbers[int(np.argmax(outside))]
            raise DataError(f"{path}: {key} names sample {bad}, but the samples of {FEATURES} {known}")
        loc[key] = numbers.astype(np.int64) - 1
    return loc


def validation_classes(loc: Mapping[str, Ids], labels: Ids) -> Ids | None:
    """Return the classes that ``train_loc`` and ``val_loc`` set aside, through samples of trainval; None if none."""
    if not {"train_loc", "val_loc"} <= loc.keys():
        return None
    train, held = (np.intersect1d(loc[key], loc["trainval_loc"]) for key in ("train_loc", "val_loc"))
    classes = np.setdiff1d(labels[held], labels[train])  # a class in both was split by samples, not set aside
    return classes if 0 < len(classes) < len(np.unique(labels[loc["trainval_loc"]])) else None


def _by_lists(title: str, folder: Path, place: Path, names: Sequence[str]) -> ClassSplit:
    split = class_split(folder, names, SEEN_LIST, UNSEEN_LIST, VALIDATION_LIST)
    assert split is not None  # the caller saw the file
    _warn_drawn(title, place)
    return split


def _by_order(title: str, place: Path, loc: Mapping[str, Ids], labels: Ids) -> ClassSplit:
    """Return the classes of a split whose samples are the images in the data set's own order, class by class."""
    seen = np.concatenate([loc["trainval_loc"], loc["test_seen_loc"]])
    total = max(int(ids.max(initial=-1)) for ids in loc.values()) + 1
    # if the order is the same, no class is both seen and unseen
    if total != len(labels) or len(np.intersect1d(labels[seen], labels[loc["test_unseen_loc"]])):
        raise DataError(
            f"{place} numbers its samples, but {place.parent / FEATURES} that names the images of these numbers is "
            f"missing: put it there, or the lists {UNSEEN_LIST} and {VALIDATION_LIST} of the same release"
        )
    _warn_drawn(title, place)
    trainval, unseen = (np.unique(labels[loc[key]]) for key in ("trainval_loc", "test_unseen_loc"))
    return ClassSplit(trainval, unseen, validation_classes(loc, labels))


def _warn_drawn(title: str, place: Path) -> None:
    warnings.warn(
        f"{title}: {place} gives the seen and unseen classes; without {FEATURES} beside it the test images of seen "
        f"classes are drawn ({TEST_SHARE:.0%} of each, always the same), not the published ones",
        stacklevel=2,
    )


def _class_ids(path: Path, names: Sequence[str]) -> Ids:
    """Return the sorted ids of the classes that a file lists."""
    ids = {plain(name): i for i, name in enumerate(names)}
    return np.unique([_class_id(path, name, ids, names) for name in read_lines(path)]).astype(np.int64)


def _class_id(path: Path, name: str, ids: Mapping[str, int], names: Sequence[str]) -> int:
    if plain(name) not in ids:
        raise DataError(f"{path}: unknown class {name!r}{did_you_mean(name, names)}")
    return ids[plain(name)]


def _match(
    place: Path, image_files: Sequence[str], theirs: NDArray[np.int64], files: Sequence[str], labels: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the image of each sample, by file name and class; several crops of one file are taken in order."""
    waiting: dict[tuple[str, int], deque[int]] = defaultdict(deque)
    for i, (file, label) in enumerate(zip(files, labels.tolist(), strict=True)):
        waiting[PurePosixPath(file).name, label].append(i)
    images = np.full(len(image_files), -1, dtype=np.int64)
    for i, (file, label) in enumerate(zip(image_files, theirs.tolist(), strict=True)):
        if here := waiting.get((PurePosixPath(file.replace("\\", "/")).name, label)):
            images[i] = here.popleft()
    lost = np.flatnonzero(images < 0)
    if len(lost):
        raise DataError(
            f"{place} names the image {image_files[lost[0]]!r}, which the data set lacks or has under another class "
            f"({len(lost)} of {len(image_files)} are so): unpack all images, or use the split of this data set"
        )
    return images


def builtin_groups(dataset: str, attributes: int) -> dict[str, tuple[int, ...]]:
    """Return the groups of a published data set, each attribute in exactly one."""
    name = dataset.upper()
    if name == "CUB" and attributes == CUB_ATTRIBUTES:
        starts = [*CUB_STARTS.values(), CUB_ATTRIBUTES]
        return {group: tuple(range(starts[i], starts[i + 1])) for i, group in enumerate(CUB_STARTS)}
    if name in ("AWA", "AWA1", "AWA2", "AWA1_LAMPERT") and attributes == 85:
        return _columns(AWA_RANGES)
    if name == "SUN" and attributes == 102:
        return _columns(SUN_RANGES)
    return {}


def _columns(ranges: dict[str, list[tuple[int, int]]]) -> dict[str, tuple[int, ...]]:
    return {group: tuple(i for a, b in parts for i in range(a, b + 1)) for group, parts in ranges.items()}
