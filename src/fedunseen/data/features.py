"""Feature files, as ``predict`` takes them: ``.npy``, ``.npz`` or ``.csv``. Nothing is ever unpickled."""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError, unknown
from fedunseen.data.tables import is_number, number, read_csv

__all__ = ["FEATURE_SUFFIXES", "array_names", "load_arrays", "read_features"]

FEATURE_SUFFIXES = (".npy", ".npz", ".csv")
SQUEEZED = 1100  # zip's usual compression makes a file at most 1,032 times smaller
DAMAGED = (
    OSError, ValueError, EOFError, KeyError, TypeError, OverflowError, RuntimeError, RecursionError, struct.error,
    zipfile.BadZipFile, zlib.error, NotImplementedError, SyntaxError, tokenize.TokenError,
)  # fmt: skip
"""What reading a damaged or encrypted file raises."""


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


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays in a ``.npz`` file, without reading them; ``[""]`` for a ``.npy`` file.

    Raises:
        DataError: if the file is missing or damaged.
    """
    with _readable(path):
        if not zipfile.is_zipfile(path):
            path.open("rb").close()
            return [""]
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]


def load_arrays(path: Path, wanted: Collection[str]) -> dict[str, NDArray[Any]]:
    """Read some arrays of a ``.npz`` file by name, or that of a ``.npy`` file, whose name is ``""``.

    Nothing else of the file is read. No memory is taken for an array before its size fits what the file holds.

    Args:
        path: the file.
        wanted: names; those that are not there are left out of the result.

    Raises:
        DataError: if the file is missing or damaged, an array says that it is larger than the file can hold, does not
            fit into memory, or holds Python objects, which would have to be unpickled.
    """
    with _readable(path):
        size = path.stat().st_size
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                return {"": _read_array(file, size, path)}
        arrays = {}
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name in wanted:
                    with archive.open(member) as packed:
                        arrays[name] = _read_array(packed, min(member.file_size, SQUEEZED * size), path)
        return arrays


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what reading a damaged file raises into one sentence."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except MemoryError:
        raise DataError(f"{path} does not fit into memory: save fewer samples, or smaller numbers") from None
    except DAMAGED:
        raise DataError(f"{path} is damaged or not a NumPy file") from None


def _read_array(file: IO[bytes], size: int, path: Path) -> NDArray[Any]:
    """Read an array from an open file that holds ``size`` bytes at most."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if dtype.hasobject:
        raise DataError(f"{path} holds Python objects, which are never loaded: save plain numbers or text")
    needed = math.prod(shape) * max(1, dtype.itemsize)
    if min(shape, default=1) < 0 or needed > size:
        raise DataError(
            f"{path} is damaged: an array of shape {shape} and type {dtype} takes {needed:,} bytes, more than the file "
            "holds"
        )
    file.seek(0)
    array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _from_numpy(path: Path) -> NDArray[Any]:
    names = array_names(path)
    if "features" not in names and len(names) != 1:
        raise DataError(f"{path} has no array 'features' (it has: {', '.join(sorted(names)) or 'none'})")
    return next(iter(load_arrays(path, ["features"] if "features" in names else names).values()))


def _from_csv(path: Path) -> NDArray[Any]:
    rows = read_csv(path)
    if not any(is_number(cell) for cell in rows[0][1]):
        rows = rows[1:]  # a header
    if not rows:
        raise DataError(f"{path} has a header, but no vector")
    return np.array([[number(cell, f"{path}, line {line}") for cell in row] for line, row in rows])
