"""Feature files, as ``predict`` takes them: ``.npy``, ``.npz`` or ``.csv``. Nothing is ever
unpickled.
"""

from array import array as numbers
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.arrays import array_names, is_number, listed_names, load_arrays, to_float32
from fedunseen.core.errors import DataError, unknown
from fedunseen.data.io.csv_io import iter_csv, number

FEATURE_SUFFIXES = (".npy", ".npz", ".csv")


def read_features(path: Path, width: int | None = None) -> NDArray[np.float32]:
    """Read feature vectors from a file.

    Args:
        path: ``.npy``; ``.npz`` with the array ``features`` or a single array; ``.csv`` of numbers,
            a vector a line, whose first line may be a header. One vector alone may be
            one-dimensional.
        width: how many numbers a vector must have; None takes any.

    Returns:
        Shape (n, width).

    Raises:
        DataError: if the file is missing, damaged or of an unknown kind, holds no vector, vectors
            of another width, something else than finite numbers, or Python objects.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in FEATURE_SUFFIXES:
        kind = unknown("kind of feature file", suffix or path.name, FEATURE_SUFFIXES)
        raise DataError(f"{path}: {kind}: give features in such a file")
    if suffix == ".csv":
        rows = _from_csv(path)
    else:
        names = array_names(path)
        if "features" not in names and len(names) != 1:
            raise DataError(f"{path} has no array 'features' (it has: {listed_names(path)})")
        rows = next(
            iter(load_arrays(path, ["features"] if "features" in names else names).values())
        )
    if rows.ndim == 1:
        rows = rows[None, :]
    if rows.ndim != 2 or rows.size == 0:
        raise DataError(
            f"{path}: the features have the shape {rows.shape}, not (vectors, numbers): give at "
            "least one"
        )
    if rows.dtype.kind not in "fiub":
        raise DataError(
            f"{path}: the features are of type {rows.dtype}, not real numbers: save numbers"
        )
    if width is not None and rows.shape[1] != width:
        raise DataError(
            f"{path}: its vectors have {rows.shape[1]} numbers, but the model takes {width}: give "
            "so many"
        )
    features = to_float32(rows, path)
    bad = int((~np.isfinite(features).all(axis=1)).sum())
    if bad:
        raise DataError(
            f"{path}: {bad} of {len(features)} vectors hold NaN or infinity: leave those out"
        )
    return features


def _from_csv(path: Path) -> NDArray[Any]:
    rows = iter_csv(path)
    begin, first = next(rows)
    values = numbers(
        "f"
    )  # a row at a time: as Python's numbers a large table would take ten times the memory
    for line, row in rows if not any(map(is_number, first)) else chain([(begin, first)], rows):
        values.extend(number(cell, "{}, line {}", path, line) for cell in row)
    if not values:
        raise DataError(f"{path} has a header, but no vector")
    return np.frombuffer(values, dtype=np.float32).reshape(-1, len(first))
