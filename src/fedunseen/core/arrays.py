"""Read arrays of ``.npy`` and ``.npz`` files within bounds of memory. Nothing is ever unpickled."""

import io
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

from fedunseen.core.deadline import check_deadline
from fedunseen.core.errors import FEW, DataError, shortened
from fedunseen.core.files import check_ordinary
from fedunseen.core.memory import Mapped

MAPPED = (
    2**26
)  # bytes from which an array in a file without compression stays on disk: a memory map
# bytes that a compressed file may unpack to: so many, or so many times its own, if more
UNPACKED = 2**28
TIMES = 64
ARRAYS = 64  # that a file may hold: each is opened before one is read
HEADER = 2**16  # bytes in which an array's header ends: NumPy reads no longer one
_MEMBER = 30  # bytes before a member's name, at least
DAMAGED = (
    OSError, ValueError, EOFError, KeyError, TypeError, OverflowError, RuntimeError, RecursionError, struct.error,
    zipfile.BadZipFile, zlib.error, NotImplementedError, SyntaxError, tokenize.TokenError,
)  # fmt: skip
"""What reading a damaged or encrypted file raises."""


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays in a ``.npz`` file, without reading them; ``[""]`` for a
    ``.npy`` file.
    """
    with readable(path):
        if not zipfile.is_zipfile(path):
            path.open("rb").close()
            return [""]
        with zipfile.ZipFile(path) as archive:
            return list(_members(archive, path))


def listed_names(path: Path) -> str:
    """Return the names of a file's arrays for a message: a stranger's may be many and long."""
    names = sorted(map(shortened, array_names(path)))
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return (", ".join(names[:FEW]) or "none") + more


def load_arrays(path: Path, wanted: Collection[str]) -> dict[str, NDArray[Any]]:
    """Read some arrays of a ``.npz`` file by name, or that of a ``.npy`` file, whose name is
    ``""``.

    Arrays of 64 MiB and more that are not compressed are memory maps (``"c"``: nothing is written
    to the file).
    """
    with readable(path):
        size = path.stat().st_size
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                return {"": _read_array(file, size, path)}
        arrays: dict[str, NDArray[Any]] = {}
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            for name, member in _members(archive, path).items():
                if name not in wanted:
                    continue
                check_deadline()
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise DataError(
                        f"{path} is compressed in a way that NumPy does not write: save it with "
                        "np.savez"
                    )
                check_unpacked(
                    path, member.file_size + sum(array.nbytes for array in arrays.values())
                )
                on_disk = member.compress_type == zipfile.ZIP_STORED and member.file_size >= MAPPED
                with archive.open(member) as packed:
                    # opening a member reads its header in the archive, behind which it begins
                    begins = file.tell() if on_disk else None
                    arrays[name] = _read_array(packed, member.file_size, path, begins)
        return arrays


def check_unpacked(path: Path, needed: int) -> None:
    """Refuse to unpack far more bytes than a file has."""
    size = path.stat().st_size
    if needed > (most := max(UNPACKED, TIMES * size)):
        raise DataError(
            f"{path} has {size:,} bytes and would unpack to more than {most:,}: if its arrays are "
            "meant to be so large, save them without compression (np.savez)"
        )


def declared_bytes(path: Path) -> int:
    """Return how many bytes the numbers of a NumPy file take as float32, by its headers alone;
    unpacks nothing.
    """
    with readable(path):
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                return _as_float32(file)
        with zipfile.ZipFile(path) as archive:
            total = 0
            for member in _checked(archive, path):
                check_deadline()
                with archive.open(member) as packed:
                    total += max(member.file_size, _as_float32(packed))
            return total


def declared_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of a NumPy file by their names, as :func:`array_names` has
    them; unpacks nothing.
    """
    with readable(path):
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                return {"": _read_header(file)[0]}
        with zipfile.ZipFile(path) as archive:
            shapes = {}
            for name, member in _members(archive, path).items():
                check_deadline()
                with archive.open(member) as packed:
                    shapes[name] = _read_header(packed)[0]
            return shapes


def _as_float32(file: IO[bytes]) -> int:
    shape, _, dtype = _read_header(file)
    return math.prod(shape) * max(4, dtype.itemsize)


def _checked(archive: zipfile.ZipFile, path: Path) -> list[zipfile.ZipInfo]:
    """Return the members of an archive; refuse many, and some that share their bytes, before one is
    opened.

    ``zipfile`` itself refuses shared bytes from Python 3.11.8 on, where a member is opened.
    """
    members = archive.infolist()
    if len(members) > ARRAYS:
        raise DataError(
            f"{path} holds {len(members):,} arrays, more than {ARRAYS}: save those alone that are "
            "needed"
        )
    begins = sorted(member.header_offset for member in members)
    ends = sorted(m.header_offset + _MEMBER + m.compress_size for m in members)
    after = [*begins, archive.start_dir][1:]
    if any(end > begin for end, begin in zip(ends, after, strict=True)):
        raise ValueError("members that share their bytes")
    return members


def _members(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    """Return the members by the names of their arrays; of two with one name the last, as
    ``zipfile`` does.
    """
    return {member.filename.removesuffix(".npy"): member for member in _checked(archive, path)}


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what reading a damaged file raises into one sentence."""
    check_ordinary(path)
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path} is missing: correct its name") from None
    except MemoryError:
        raise DataError(
            f"{path} does not fit into memory: save fewer samples, or smaller numbers"
        ) from None
    except DAMAGED:
        raise DataError(f"{path} is damaged or not a NumPy file: save it again") from None


def _read_array(file: IO[bytes], size: int, path: Path, begins: int | None = None) -> NDArray[Any]:
    """Read an array from an open file of at most ``size`` bytes; map it if it ``begins`` there in
    the file ``path``.
    """
    shape, columns_first, dtype = _read_header(file)
    if dtype.hasobject:
        raise DataError(
            f"{path} holds Python objects, which are never loaded: save plain numbers or text"
        )
    needed = math.prod(shape) * max(1, dtype.itemsize)
    if min(shape, default=1) < 0 or needed > size:
        raise DataError(
            f"{path} is damaged: an array of shape {shape} and type {dtype} takes {needed:,} "
            "bytes, more than the file holds"
        )
    if begins is not None:
        with path.open("rb") as whole:
            whole.seek(begins)
            if _read_header(whole) != (shape, columns_first, dtype):
                raise ValueError("the array begins at another place of the file")
        return Mapped(path, dtype, "c", begins + file.tell(), shape, "F" if columns_first else "C")
    file.seek(0)
    array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an array; the file is then at the array's first byte.

    NumPy allocates as many bytes as a header states that it has, up to 4 GiB, before it refuses
    more than 10,000 of them.
    """
    begins = file.tell()
    head = io.BytesIO(file.read(HEADER))
    header = _parsed_header(head)
    file.seek(begins + head.tell())
    return header


def _parsed_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read_header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    return read_header(file)


def to_float32(rows: NDArray[Any], where: object, first: int = 0) -> NDArray[np.float32]:
    """Return samples as float32; refuse numbers that it cannot hold. ``first`` is the place of
    ``rows[0]``.
    """
    try:
        with np.errstate(over="raise"):
            return rows.astype(np.float32, copy=False)
    except FloatingPointError:
        most = np.finfo(np.float32).max
        place = np.argwhere(np.isfinite(rows) & ((rows > most) | (rows < -most)))[0].tolist()
        raise DataError(
            f"{where}: the number {rows[tuple(place)]:g} of sample {first + place[0]} is too "
            "large: float32 holds at most 3.4e38: scale the samples, or leave it out"
        ) from None


def is_number(text: str) -> bool:
    """Say whether Python reads a text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
