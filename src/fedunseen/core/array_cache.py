"""Arrays on disk: what takes long to decode, encode or look up is done once and kept in the cache
folder.

The name of a file holds the SHA-256 of all that its content depends on. A file is whole or absent.
A process that is killed while encoding loses one chunk at most; processes that need the same
features share the work.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.arrays import MAPPED, load_arrays
from fedunseen.core.errors import DataError
from fedunseen.core.files import cache_folder, check_ordinary, make_private, replacing
from fedunseen.core.memory import Mapped

CHUNK = 256
"""Inputs in a chunk. Fewer than a quarter of a chunk are encoded each time, without a file."""

_BLOCK = 2**24  # bytes read or hashed at once
_QUIET = 2.0  # seconds before the first line of progress
_PAUSE = 30.0  # seconds between two lines
_STALE = 3600  # seconds after which an unfinished file is taken for that of a killed process

_keeps: ContextVar[bool] = ContextVar("keeps", default=True)

shown: ContextVar[Callable[[str, int, int], None] | None] = ContextVar("shown", default=None)
"""Shows what is done, how much of it and of how much, in place of lines on standard error."""


@contextmanager
def keeping_nothing() -> Iterator[None]:
    """Write no features and texts to the cache folder in this context: the samples are somebody
    else's. What is there already is used.
    """
    before = _keeps.set(False)
    try:
        yield
    finally:
        _keeps.reset(before)


def cached_blocks(
    kind: str,
    depends: Any,
    shape: tuple[int, ...],
    produce: Callable[[], Iterable[NDArray[Any]]],
    dtype: Any = np.uint8,
    doing: str = "decoding images",
) -> NDArray[Any]:
    """Return a memory map of an array in the cache folder, which is written first if it is
    absent.
    """
    path = cache_path(kind, depends)
    if (kept := _open(path, shape, np.dtype(dtype))) is not None:
        return kept
    with usable(path.parent):
        make_private(path.parent)
    for unfinished in path.parent.glob(".*.tmp"):
        with suppress(OSError):  # another process was faster
            if time.time() - unfinished.stat().st_mtime > _STALE:
                unfinished.unlink()
    _check_room(doing, path.parent, int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize)
    progress = Progress(doing, shape[0])
    with replacing(path, private=True) as temporary, temporary.open("wb") as file:
        header = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
            "fortran_order": False,
            "shape": shape,
        }
        np.lib.format.write_array_header_1_0(file, header)
        for block in produce():
            file.write(np.ascontiguousarray(block, dtype=dtype).data)
            progress.add(len(block))
    blocks: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False).view(Mapped)
    return blocks


def cache_path(kind: str, depends: Any) -> Path:
    """Return where :func:`cached_blocks` keeps an array."""
    digest = hashlib.sha256(json.dumps(depends).encode()).hexdigest()
    return cache_folder() / "images" / f"{kind}-{digest[:32]}.npy"


def cached_features(
    depends: Mapping[str, Any],
    images: NDArray[Any],
    shape: tuple[int, ...],
    dtype: str,
    encode: Callable[[NDArray[Any]], NDArray[Any]],
) -> NDArray[Any]:
    """Return ``encode(images)``, from the cache folder if it was there before."""
    if len(images) < CHUNK // 4:
        return encode(images).astype(dtype, copy=False)
    content = {
        **depends,
        "images": array_digest(images),
        "shape": [len(images), *shape],
        "dtype": dtype,
    }
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    folder = cache_folder() / "features"
    while (features := _undamaged(folder, key, (len(images), *shape), np.dtype(dtype))) is None:
        if not _keeps.get():
            return encode(images).astype(dtype, copy=False)
        _encode_chunks(folder, key, images, shape, np.dtype(dtype), encode)
    shutil.rmtree(folder / key, ignore_errors=True)  # the chunks
    return features


def cached_arrays(
    kind: str, depends: Any, names: tuple[str, ...], make: Callable[[], Mapping[str, NDArray[Any]]]
) -> dict[str, NDArray[Any]]:
    """Return a few arrays by name, from the cache folder if they were there before."""
    digest = hashlib.sha256(json.dumps(depends).encode()).hexdigest()
    path = cache_folder() / kind / f"{digest[:32]}.npz"
    try:
        arrays = load_arrays(path, names)
        return {name: arrays[name] for name in names}
    except (DataError, KeyError):
        computed = make()
    if not _keeps.get():
        return dict(computed)
    with (
        usable(path.parent),
        replacing(path, private=True) as temporary,
        temporary.open("wb") as file,
    ):
        np.savez(file, allow_pickle=False, **computed)
    return dict(computed)


def joined_rows(blocks: Iterable[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return blocks (n, d) as one array; from 64 MiB on it is a memory map.

    The map's file has no name: the system removes it with the array.
    """
    parts: list[NDArray[np.float32]] = []
    file = None
    rows = width = 0
    for block in blocks:
        rows += len(block)
        width = block.shape[1]
        parts.append(block)
        if file is None and 4 * rows * width >= MAPPED:
            with usable(folder := cache_folder()):
                make_private(folder)
                file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # the map outlives this
        if file is not None:
            with usable(cache_folder()):
                for part in parts:
                    file.write(np.ascontiguousarray(part, dtype=np.float32).data)
            parts.clear()
    if file is None:
        return np.concatenate(parts)
    file.flush()
    return Mapped(file, np.float32, "c", 0, (rows, width))


def array_digest(array: NDArray[Any]) -> str:
    """Return the SHA-256 of an array's type, shape and content."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    for part in _parts(array):
        digest.update(part)
    return digest.hexdigest()


def files_digest(paths: list[Path]) -> str:
    """Return the SHA-256 of files' names and contents, in any order."""
    return _digest(paths, lambda path, size: f"{path.name} {size} ")


def content_digest(paths: list[Path]) -> str:
    """Return the SHA-256 of files' contents, in the order of their names. The names themselves do
    not count.
    """
    several = (
        len(paths) > 1
    )  # the sizes mark where each begins; a single file's digest is that of sha256sum
    return _digest(paths, lambda path, size: f"{size} " if several else "")


FileStamp = tuple[int, int, int, int]
"""Inode, size, time of change, and time of change of the inode, which no program can set."""


def file_stamp(path: Path) -> FileStamp:
    """Return what changes where a file is written again, or another one takes its place, even of
    the same size with the same time of change.
    """
    facts = path.stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def file_stamps(paths: Iterable[Path]) -> tuple[list[FileStamp], list[Path]]:
    """Return the stamp of every file, and the files that are missing."""
    stamps: dict[Path, FileStamp] = {}
    paths = list(paths)
    for path in dict.fromkeys(paths):
        with suppress(OSError):
            stamps[path] = file_stamp(path)
    return [stamps[path] for path in paths if path in stamps], [
        p for p in dict.fromkeys(paths) if p not in stamps
    ]


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Turn an error of writing to the cache folder into one that says what to do."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"the cache folder {folder} cannot be used ({error.strerror or error}): set "
            "FEDUNSEEN_CACHE to another one"
        ) from None


def _digest(paths: list[Path], head: Callable[[Path, int], str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda path: path.name):
        check_ordinary(path)
        with path.open("rb") as file:
            digest.update(head(path, os.fstat(file.fileno()).st_size).encode())
            while block := file.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()


def _undamaged(
    folder: Path, key: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any] | None:
    """Return the features if their file is there and whole; a damaged file is removed."""
    for path in sorted(folder.glob(f"{key}.*.npy")):
        array = _open(path, shape, dtype)
        if array is not None and f"{_checksum(0, array):08x}" == path.name.split(".")[1]:
            return array
        print(f"{path} is damaged: it is made again", file=sys.stderr, flush=True)
        with usable(folder):
            path.unlink(missing_ok=True)
    return None


def _encode_chunks(
    folder: Path,
    key: str,
    images: NDArray[Any],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    encode: Callable[[NDArray[Any]], NDArray[Any]],
) -> None:
    """Encode the missing chunks and join all; only then does the file get the name that
    `_undamaged` looks for.
    """
    parts = [images[start : start + CHUNK] for start in range(0, len(images), CHUNK)]
    chunks = [folder / key / f"{i:06d}.npy" for i in range(len(parts))]

    def load(i: int) -> NDArray[Any] | None:
        return _open(chunks[i], (len(parts[i]), *shape), dtype)

    missing = [i for i in range(len(parts)) if load(i) is None]
    with usable(folder):
        make_private(folder)
        bytes_each = int(np.prod(shape)) * dtype.itemsize
        _check_room("encoding images", folder, bytes_each * (len(images) + CHUNK * len(missing)))
    progress = Progress(
        "encoding images", len(images), len(images) - sum(len(parts[i]) for i in missing)
    )
    # In an order of its own for each process: in one order, those that meet at a chunk encode all
    # later ones twice.
    for i in np.random.default_rng(os.getpid()).permutation(missing).tolist():
        if any(folder.glob(f"{key}.*.npy")):  # another process has just joined them
            return
        if load(i) is None:
            features = encode(parts[i]).astype(dtype, copy=False)
            with usable(folder):
                try:
                    with (
                        replacing(chunks[i], private=True) as temporary,
                        temporary.open("wb") as file,
                    ):
                        np.save(file, features, allow_pickle=False)
                except (
                    FileNotFoundError
                ):  # another process has just joined the chunks and removed their folder
                    return
        progress.add(len(parts[i]))
    arrays = [load(i) for i in range(len(parts))]
    checksum = 0
    for array in arrays:
        if array is None:  # another process has just joined and removed them
            return
        checksum = _checksum(checksum, array)
    with usable(folder), replacing(folder / f"{key}.{checksum:08x}.npy", private=True) as temporary:
        whole = np.lib.format.open_memmap(temporary, "w+", dtype, (len(images), *shape))
        for i, array in enumerate(arrays):
            whole[i * CHUNK : (i + 1) * CHUNK] = array
        whole.flush()


def _open(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Open an array's file if it is there and has the right type, shape and length."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False).view(Mapped)
    except (OSError, ValueError, EOFError):
        return None
    return array if array.shape == shape and array.dtype == dtype else None


def _checksum(start: int, array: NDArray[Any]) -> int:
    for part in _parts(array):
        start = zlib.crc32(part, start)
    return start


def _parts(array: NDArray[Any]) -> Iterator[memoryview]:
    """Yield an array's bytes in order, a bounded piece at a time."""
    rows = max(1, _BLOCK // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        yield np.ascontiguousarray(array[start : start + rows]).reshape(-1).view(np.uint8).data


def _check_room(doing: str, folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"{doing} takes {needed / 1e9:.1f} GB in {folder}, but {free / 1e9:.1f} GB are free: "
            "set FEDUNSEEN_CACHE to a folder on a larger disk, or take fewer or smaller images "
            "(data.train_per_class, data.size)"
        )


class Progress:
    """Shows how far the work is; without :data:`shown`, on standard error, if it takes more than
    two seconds.
    """

    def __init__(self, doing: str, total: int, done: int = 0) -> None:
        self.doing = doing
        self.total = total
        self.done = done
        self.next = time.monotonic() + _QUIET
        self.printed = False
        if (show := shown.get()) is not None and done < total:
            show(doing, done, total)

    def add(self, count: int) -> None:
        """Count what was done since."""
        self.done += count
        if (show := shown.get()) is not None:
            show(self.doing, self.done, self.total)
            return
        now = time.monotonic()
        if count == self.total or (
            now < self.next and not (self.done == self.total and self.printed)
        ):
            return  # work of one piece has no progress to show
        self.next = now + _PAUSE
        self.printed = True
        print(f"{self.doing}: {self.done:,} of {self.total:,}", file=sys.stderr, flush=True)
