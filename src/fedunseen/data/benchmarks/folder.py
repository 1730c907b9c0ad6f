"""The benchmark ``folder``: your own features in ``features.npz``, described by ``classes.csv``.

``features``: (n, d), (n, steps, width) or (n, channels, height, width); ``labels``: (n,) names or
rows of classes, "" for unlabelled samples; ``split``: (n,) "train" or "test". Optional:
``image_shape`` (the features are images, bytes or numbers in [0, 1]), ``users`` (n,) and
``answers`` (classes,), both counted from 0.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.arrays import listed_names, load_arrays, to_float32
from fedunseen.core.errors import DataError, unknown
from fedunseen.core.files import existing_folder, replacing
from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.benchmark import Benchmark, check_unlabelled, split_ids
from fedunseen.data.class_space import ClassSpace
from fedunseen.data.class_table import OwnData, class_names, own_class_space
from fedunseen.data.names import composed, did_you_mean
from fedunseen.data.scaling import blocks

REQUIRED = ("features", "labels", "split")


class Folder(BenchmarkLoader, name="folder"):
    """Your own features and classes."""

    title = "your own features"
    page = "yours"
    needs = ("classes.csv", "features.npz")

    class Settings(OwnData):
        """Settings of ``folder``."""

        root: Path
        """The folder of the data set, or of several for `xlsa17`, with the files that `fedunseen
        data list` names."""

    @classmethod
    def load(cls, settings: Settings, seed: int) -> Benchmark:
        """Read the folder; without validation classes ``seed`` draws a fifth of the seen classes
        (not of a part).
        """
        root = existing_folder(settings.root.expanduser(), "correct data.root")
        space = own_class_space(settings, root, seed)
        path = root / "features.npz"
        arrays = load_arrays(path, (*REQUIRED, "image_shape", "users", "answers"))
        _check_arrays(path, arrays)
        labels = _labels(path, arrays["labels"], space)
        words = _as_text(path, "split", np.atleast_1d(arrays["split"]).ravel())
        if wrong := np.setdiff1d(words, ["train", "test"]).tolist():
            raise DataError(f"{path}: {unknown('split', wrong[0], ('train', 'test'))}")
        test = np.asarray(words == "test")
        if settings.unlabelled and not settings.part:
            check_unlabelled(int((labels < 0).sum()), str(path))
        if not len(arrays["features"]) == len(labels) == len(test):
            raise DataError(
                f"{path}: features, labels and split have {len(arrays['features'])}, {len(labels)} "
                f"and {len(test)} entries, and must have one a sample"
            )
        unseen = np.isin(labels, space.unseen)
        if (unseen & ~test).any():
            name = space.names[labels[int(np.argmax(unseen & ~test))]]
            raise DataError(
                f"{path}: a sample of the unseen class {name!r} is marked 'train': mark it 'test'"
            )
        features = arrays["features"]
        halved = (
            features.ndim == 3 and features.dtype == np.float16
        )  # word vectors: batches are widened
        if features.dtype.kind in "fiub" and features.dtype != np.uint8 and not halved:
            features = to_float32(features, path)
        return Benchmark(
            name=f"folder/{root.resolve().name}",
            space=space,
            features=features,
            labels=labels,
            image_shape=_image_shape(path, arrays.get("image_shape"), features),
            users=_counted(path, "users", arrays.get("users"), len(labels), "sample"),
            answers=_counted(path, "answers", arrays.get("answers"), len(space.names), "class"),
            part=settings.part,
            unlabelled=np.flatnonzero(labels < 0)
            if arrays["labels"].dtype.kind in "US"
            else np.array([], np.int64),
            **split_ids(space, labels, test),
        )

    @classmethod
    def glance(cls, settings: Settings) -> None:
        """Read the class table's names; see :meth:`BenchmarkLoader.glance`."""
        root = existing_folder(settings.root.expanduser(), "correct data.root")
        if settings.text_encoder is None:
            ClassSpace.load(root / "classes.csv")
        else:
            class_names(root / "classes.csv", settings.text_encoder)

    @classmethod
    def holds(cls, folder: Path) -> bool:
        """Say whether a folder has both files."""
        return not cls.missing(folder, {})


class Arrays(BenchmarkLoader, name="arrays"):
    """Arrays in memory: :func:`fedunseen.experiment.running.run` is given their benchmark."""

    title = "Arrays of a Python program"
    page = "your own"
    mixed_units = True

    @classmethod
    def load(cls, settings: Any, seed: int) -> Benchmark:
        """Refuse: the arrays were those of another process."""
        raise DataError(
            "data.name = 'arrays' stands for arrays in memory, which are in no file: give them "
            "from Python, fedunseen.run(experiment, benchmark=Benchmark.from_arrays(...))"
        )


def _check_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Refuse a file without what every folder needs."""
    for key in REQUIRED:
        if key not in arrays:
            raise DataError(f"{path} has no array {key!r} (it has: {listed_names(path)})")
    if not arrays["features"].ndim:
        raise DataError(
            f"{path}: features is a single number, not an array with an entry for each sample"
        )


def write_folder(
    folder: Path, benchmark: Benchmark, samples: NDArray[np.int64], split: Literal["train", "test"]
) -> None:
    """Write some samples of a benchmark as the benchmark ``folder``, which gives back their bits
    with ``part``.
    """
    space = benchmark.space
    labels = benchmark.labels[samples]
    arrays: dict[str, NDArray[Any]] = {
        "features": np.asarray(benchmark.features[samples]),
        "labels": np.array([*space.names, ""])[labels],  # an unlabelled sample has the label -1
        "split": np.full(len(samples), split),
    }
    if benchmark.image_shape is not None:
        arrays["image_shape"] = np.array(benchmark.image_shape)
    if benchmark.users is not None:
        arrays["users"] = benchmark.users[samples]
    if benchmark.answers is not None:
        arrays["answers"] = benchmark.answers
    space.save(folder / "classes.csv")
    with replacing(folder / "features.npz") as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _image_shape(
    path: Path, array: NDArray[Any] | None, features: NDArray[Any]
) -> tuple[int, ...] | None:
    """Return the shape of the images that the features are, None if they are none."""
    if array is None:
        return None
    shape = tuple(array.ravel().tolist()) if array.dtype.kind in "iu" else ()
    sample_shape = features.shape[1:]
    fits = (
        math.prod(shape) == math.prod(sample_shape)
        if len(sample_shape) == 1
        else shape == sample_shape
    )
    if len(shape) not in (2, 3) or min(shape) < 1 or not fits:
        raise DataError(
            f"{path}: image_shape is {array.ravel().tolist()}, but the features have the shape "
            f"{features.shape}: give (height, width) or (channels, height, width) of a sample, or "
            "leave it out"
        )
    numbers = features.dtype.kind in "fiub"  # anything else the benchmark refuses
    if (
        numbers
        and features.dtype != np.uint8
        and not all(((block >= 0) & (block <= 1)).all() for block in blocks(features))
    ):
        raise DataError(
            f"{path}: images of type {features.dtype} have numbers outside [0, 1]: scale them, or "
            "save bytes"
        )
    return shape


def _counted(
    path: Path, key: str, array: NDArray[Any] | None, count: int, each: str
) -> NDArray[np.int64] | None:
    """Return an optional array of numbers that are counted from 0."""
    if array is None:
        return None
    if array.shape != (count,) or array.dtype.kind not in "iu" or (count and array.min() < 0):
        raise DataError(
            f"{path}: {key} must have a whole number from 0 on for each {each}: {count} numbers"
        )
    return array.astype(np.int64)


def _labels(path: Path, labels: NDArray[Any], space: ClassSpace) -> NDArray[np.int64]:
    """Return class ids for labels that are names or ids."""
    labels = np.atleast_1d(labels).ravel()
    if labels.dtype.kind in "iu":
        return labels.astype(np.int64)  # the benchmark checks their range
    if labels.dtype.kind not in "US":
        raise DataError(
            f"{path}: the labels are of type {labels.dtype}, neither class names nor row numbers"
        )
    names, inverse = np.unique(_as_text(path, "labels", labels), return_inverse=True)
    ids = {composed(name): i for i, name in enumerate(space.names)} | {"": -1}
    for name in names.tolist():
        if composed(name) not in ids:
            raise DataError(
                f"{path}: the label {name!r} is not a class of "
                f"classes.csv{did_you_mean(name, space.names)}"
            )
    return np.array([ids[composed(name)] for name in names.tolist()], dtype=np.int64)[inverse]


def _as_text(path: Path, key: str, words: NDArray[Any]) -> NDArray[np.str_]:
    """Return an array as text, checked to be such: NumPy's own holds any 32-bit numbers as
    characters.
    """
    try:
        if words.dtype.kind == "S":
            return np.char.decode(words, "utf-8")
        if words.dtype.kind == "U" and words.dtype.itemsize:
            codes = np.ascontiguousarray(words.astype(words.dtype.newbyteorder("="))).view(
                np.uint32
            )
            if ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes < 0xE000))).any():
                raise ValueError
        return words.astype(np.str_)
    except (UnicodeError, ValueError):
        raise DataError(
            f"{path}: {key} holds text that is not UTF-8: save it as Python text"
        ) from None
