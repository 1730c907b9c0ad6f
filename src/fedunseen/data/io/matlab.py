"""MATLAB files, v5: only the variables that are asked for, in MATLAB's own orientation."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.arrays import check_unpacked
from fedunseen.core.errors import DataError

TEXTS = ("allclasses_names", "image_files", "attributes", "images")  # variables that hold text
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
COMPRESSED = 15  # the type of a compressed variable in a MATLAB v5 file


def read_mat(
    path: Path, required: Sequence[str], optional: Sequence[str] = (), source: str = "the xlsa17 proposed split"
) -> dict[str, Any]:
    """Read variables of a MATLAB file, in MATLAB's own orientation."""
    import scipy.io  # here, because other runs need not wait for it

    names = [*required, *optional]
    try:
        with path.open("rb") as file:
            head = file.read(520)
        if HDF5_SIGNATURE in (head[:8], head[512:]):  # MATLAB puts 512 bytes of its own before HDF5's
            raise DataError(f"{path} is a MATLAB v7.3 file, as the authors' are not: save it again with the option -v7")
        check_unpacked(path, _unpacked_bytes(path))
        variables = scipy.io.loadmat(path, variable_names=names)
    except DataError:
        raise
    except Exception as error:  # on a damaged file the readers raise almost anything
        raise DataError(
            f"{path} is damaged, perhaps cut short ({type(error).__name__}): copy or unpack it again"
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


def cell_texts(cells: NDArray[Any]) -> tuple[str, ...]:
    """Return the texts of a MATLAB cell array, or of a character matrix with a text a row."""
    return tuple("".join(map(str, np.ravel(cell))).strip() for cell in cells.ravel())
