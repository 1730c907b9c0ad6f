"""Feature files, as ``predict`` takes them: ``.npy``, ``.npz`` or ``.csv``. Nothing is ever unpickled."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError, unknown
from fedunseen.data.tables import number, read_csv

__all__ = ["FEATURE_SUFFIXES", "load_arrays", "read_features"]

FEATURE_SUFFIXES = (".npy", ".npz", ".csv")


def read_features(path: Path, width: int | None = None) -> NDArray[np.float32]:
    """Read feature vectors from a file.

    Args:
        path: ``.npy``; ``.npz`` with the array ``features`` or a single array; ``.csv`` of numbers, a vector
            a line, whose first line may be a header. One vector alone may be one-dimensional.
        width: how many numbers a vector must have; None takes any.

    Returns:
        Shape (n, width).

    Raises:
        DataError: if the file is missing, damaged or of an unknown kind, holds no vector, vectors of another
            width, something else than finite numbers, or Python objects.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in FEATURE_SUFFIXES:
        raise DataError(f"{path}: {unknown('kind of feature file', suffix or path.name, FEATURE_SUFFIXES)}")
    rows = _from_csv(path) if suffix == ".csv" else _from_numpy(path)
    if rows.ndim == 1:
        rows = rows[None, :]
    if rows.ndim != 2 or rows.size == 0:
        raise DataError(f"{path}: the features have the shape {rows.shape}, not (vectors, numbers)")
    if rows.dtype.kind not in "fiub":
        raise DataError(f"{path}: the features are of type {rows.dtype}, not real numbers")
    if width is not None and rows.shape[1] != width:
        raise DataError(f"{path}: its vectors have {rows.shape[1]} numbers, but the model takes {width}")
    with np.errstate(over="ignore"):
        features = rows.astype(np.float32)
    bad = int((~np.isfinite(features).all(axis=1)).sum())
    if bad:
        raise DataError(f"{path}: {bad} of {len(features)} vectors hold NaN or infinity")
    return features


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of a ``.npz`` file by name, or the array of a ``.npy`` file under the name ``""``.

    Raises:
        DataError: if the file is missing or damaged, or holds Python objects, which would have to be
            unpickled.
    """
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"": loaded}
        with loaded:
            return {key: loaded[key] for key in loaded.files}
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except ValueError as error:
        if "Object arrays" in str(error):
            raise DataError(
                f"{path} holds Python objects, which are never loaded: save plain numbers or text"
            ) from None
        raise DataError(f"{path} is damaged or not a NumPy file") from None
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, KeyError, NotImplementedError):
        raise DataError(f"{path} is damaged or not a NumPy file") from None


def _from_numpy(path: Path) -> NDArray[Any]:
    arrays = load_arrays(path)
    if "features" in arrays:
        return arrays["features"]
    if len(arrays) != 1:
        raise DataError(f"{path} has no array 'features' (it has: {', '.join(sorted(arrays)) or 'none'})")
    return next(iter(arrays.values()))


def _from_csv(path: Path) -> NDArray[Any]:
    rows = read_csv(path)
    if not any(_is_number(cell) for cell in rows[0][1]):
        rows = rows[1:]  # a header
    if not rows:
        raise DataError(f"{path} has a header, but no vector")
    return np.array([[number(cell, f"{path}, line {line}") for cell in row] for line, row in rows])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
