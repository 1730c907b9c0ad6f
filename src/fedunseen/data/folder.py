"""The benchmark ``folder``: bring your own features and descriptions.

A folder with two files:

- ``classes.csv``: ``name``, ``split`` (seen, validation or unseen) and one column an attribute; see
  ``fedunseen.data.class_space``.
- ``features.npz``: ``features`` of shape (n, d), numbers; ``labels`` of shape (n,), names of classes, or
  their rows in ``classes.csv`` counted from 0; ``split`` of shape (n,), ``"train"`` or ``"test"``. Samples of
  unseen classes are all ``"test"``.

Made, for example, by::

    np.savez("features.npz", features=vectors, labels=["cat", "dog"], split=["train", "test"])
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError, unknown
from fedunseen.data.benchmark import Benchmark, DataSettings
from fedunseen.data.class_space import ClassSpace, draw_validation
from fedunseen.data.features import load_arrays, read_features
from fedunseen.data.tables import did_you_mean

__all__ = ["Folder"]


class Folder:
    """Your own features and classes."""

    class Settings(DataSettings):
        """``[data] name = "folder"``."""

        name: Literal["folder"] = "folder"
        root: Path
        """The folder that holds ``classes.csv`` and ``features.npz``."""

    @staticmethod
    def load(settings: Folder.Settings, seed: int) -> Benchmark:
        """Read the folder; if it marks no validation class, ``seed`` draws a fifth of the seen classes.

        Raises:
            DataError: if a file is missing, damaged or inconsistent.
        """
        root = settings.root.expanduser()
        if not root.is_dir():
            raise DataError(f"the folder {root} is missing: mend data.root")
        space = ClassSpace.load(root / "classes.csv")
        if not len(space.validation):
            space = replace(space, validation=draw_validation(space.seen, None, seed))
        path = root / "features.npz"
        arrays = load_arrays(path)
        for key in ("features", "labels", "split"):
            if key not in arrays:
                raise DataError(f"{path} has no array {key!r} (it has: {', '.join(sorted(arrays)) or 'none'})")
        labels = _labels(path, arrays["labels"], space)
        test = _is_test(path, arrays["split"])
        if not len(arrays["features"]) == len(labels) == len(test):
            raise DataError(
                f"{path}: features, labels and split have {len(arrays['features'])}, {len(labels)} and "
                f"{len(test)} entries, and must have one a sample"
            )
        unseen = np.isin(labels, space.unseen)
        if (unseen & ~test).any():
            name = space.names[labels[int(np.argmax(unseen & ~test))]]
            raise DataError(f"{path}: a sample of the unseen class {name!r} is marked 'train': mark it 'test'")
        seen = np.isin(labels, space.seen)  # a class may be neither
        features = arrays["features"]
        if features.dtype.kind in "fiub" and features.dtype != np.uint8:
            features = features.astype(np.float32, copy=False)
        return Benchmark(
            name=f"folder/{root.resolve().name}",
            space=space,
            features=features,
            labels=labels,
            train=np.flatnonzero(seen & ~test),
            test_seen=np.flatnonzero(seen & test),
            test_unseen=np.flatnonzero(unseen),
        )

    @staticmethod
    def read(path: Path, width: int | None = None) -> NDArray[np.float32]:
        """Read a feature file; see ``fedunseen.data.features.read_features``."""
        return read_features(path, width)


def _labels(path: Path, labels: NDArray[Any], space: ClassSpace) -> NDArray[np.int64]:
    """Return class ids for labels that are names or ids."""
    labels = np.atleast_1d(labels).ravel()
    if labels.dtype.kind in "iu":
        return labels.astype(np.int64)  # the benchmark checks their range
    if labels.dtype.kind not in "US":
        raise DataError(f"{path}: the labels are of type {labels.dtype}, neither class names nor row numbers")
    names, inverse = np.unique(_as_text(labels), return_inverse=True)
    ids = {name: i for i, name in enumerate(space.names)}
    for name in names.tolist():
        if name not in ids:
            raise DataError(f"{path}: the label {name!r} is not a class of classes.csv{did_you_mean(name, ids)}")
    return np.array([ids[name] for name in names.tolist()], dtype=np.int64)[inverse]


def _is_test(path: Path, split: NDArray[Any]) -> NDArray[np.bool_]:
    words = _as_text(np.atleast_1d(split).ravel())
    for word in np.unique(words).tolist():
        if word not in ("train", "test"):
            raise DataError(f"{path}: {unknown('split', word, ('train', 'test'))}")
    return np.asarray(words == "test")


def _as_text(words: NDArray[Any]) -> NDArray[np.str_]:
    return np.char.decode(words, "utf-8") if words.dtype.kind == "S" else words.astype(np.str_)
