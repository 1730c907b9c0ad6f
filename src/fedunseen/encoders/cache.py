"""Features on disk: encoding thousands of images takes minutes, so each set of them is encoded once.

The name of a file of features has two parts. The SHA-256 of all that they depend on (weights, preprocessing, images)
makes sure that nothing stale is found. A checksum of the content shows damage, and a damaged file is made again. The
work is done in chunks, each a file of its own until all are there. So a process that is killed loses one chunk at most,
and processes that need the same features at the same time share the work.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError
from fedunseen.core.files import cache_folder, replacing

__all__ = ["CHUNK", "array_digest", "cached", "content_digest", "files_digest", "usable"]

CHUNK = 256
"""Images in a chunk. Fewer than a quarter of a chunk are encoded each time, without a file."""

_BLOCK = 2**24  # bytes read or hashed at once
_QUIET = 5.0  # seconds before the first line of progress, and between two


def cached(
    depends: Mapping[str, Any],
    images: NDArray[Any],
    shape: tuple[int, ...],
    dtype: str,
    encode: Callable[[NDArray[Any]], NDArray[Any]],
) -> NDArray[Any]:
    """Return ``encode(images)``, from the cache folder if it was there before.

    Args:
        depends: all that the features depend on beside the images, JSON values: digests of files, settings.
        images: (n, ...).
        shape: of one image's features.
        dtype: of the features.
        encode: images (m, ...) to features (m, *shape), the same for an image whatever stands beside it.

    Returns:
        (n, *shape), a copy-on-write memory map of the file, or an array where there are few images.

    Raises:
        DataError: if the cache folder cannot be written, or has too little room.
    """
    if len(images) < CHUNK // 4:
        return encode(images).astype(dtype, copy=False)
    wanted = {**depends, "images": array_digest(images), "shape": [len(images), *shape], "dtype": dtype}
    key = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()
    folder = cache_folder() / "features"
    while (found := _find(folder, key, (len(images), *shape), dtype)) is None:
        _make(folder, key, images, shape, dtype, encode)
    shutil.rmtree(folder / key, ignore_errors=True)  # the chunks
    return found


def array_digest(array: NDArray[Any]) -> str:
    """Return the SHA-256 of an array's type, shape and content."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    for part in _parts(array):
        digest.update(part)
    return digest.hexdigest()


def files_digest(paths: list[Path]) -> str:
    """Return the SHA-256 of files' names and contents, whatever their order."""
    return _digest(paths, lambda path, size: f"{path.name} {size} ")


def content_digest(paths: list[Path]) -> str:
    """Return the SHA-256 of files' contents, in the order of their names. The names themselves do not count."""
    several = len(paths) > 1  # the sizes mark where each begins; a single file's digest is that of sha256sum
    return _digest(paths, lambda path, size: f"{size} " if several else "")


def _digest(paths: list[Path], head: Callable[[Path, int], str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda path: path.name):
        with path.open("rb") as file:
            digest.update(head(path, os.fstat(file.fileno()).st_size).encode())
            while block := file.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()


def _find(folder: Path, key: str, shape: tuple[int, ...], dtype: str) -> NDArray[Any] | None:
    """Return the features if their file is there and whole; a damaged file is removed."""
    for path in sorted(folder.glob(f"{key}.*.npy")):
        array = _load(path, shape, dtype)
        if array is not None and f"{_checksum(0, array):08x}" == path.name.split(".")[1]:
            return array
        _say(f"{path} is damaged: it is made again")
        with usable(folder):
            path.unlink(missing_ok=True)
    return None


def _make(
    folder: Path,
    key: str,
    images: NDArray[Any],
    shape: tuple[int, ...],
    dtype: str,
    encode: Callable[[NDArray[Any]], NDArray[Any]],
) -> None:
    """Encode the missing chunks and put all together; only then does the file get the name that `_find` looks for."""
    parts = [images[start : start + CHUNK] for start in range(0, len(images), CHUNK)]
    chunks = [folder / key / f"{i:06d}.npy" for i in range(len(parts))]

    def load(i: int) -> NDArray[Any] | None:
        return _load(chunks[i], (len(parts[i]), *shape), dtype)

    missing = [i for i in range(len(parts)) if load(i) is None]
    with usable(folder):
        bytes_each = int(np.prod(shape)) * np.dtype(dtype).itemsize
        _check_room(folder, bytes_each * (len(images) + CHUNK * len(missing)))
    progress = _Progress(len(images), len(images) - sum(len(parts[i]) for i in missing))
    first = os.getpid() * 7919 % len(parts)  # processes that begin together begin at different chunks
    for i in sorted(missing, key=lambda i: (i - first) % len(parts)):
        if any(folder.glob(f"{key}.*.npy")):  # another process has just put them together
            return
        if load(i) is None:
            features = encode(parts[i]).astype(dtype, copy=False)
            with usable(folder), replacing(chunks[i]) as temporary, temporary.open("wb") as file:
                np.save(file, features, allow_pickle=False)
        progress.add(len(parts[i]))
    arrays = [load(i) for i in range(len(parts))]
    checksum = 0
    for array in arrays:
        if array is None:  # another process has just put them together and removed them
            return
        checksum = _checksum(checksum, array)
    with usable(folder), replacing(folder / f"{key}.{checksum:08x}.npy") as temporary:
        whole = np.lib.format.open_memmap(temporary, "w+", np.dtype(dtype), (len(images), *shape))
        for i, array in enumerate(arrays):
            whole[i * CHUNK : (i + 1) * CHUNK] = array
        whole.flush()


def _load(path: Path, shape: tuple[int, ...], dtype: str) -> NDArray[Any] | None:
    """Open an array's file if it is there and has the right type, shape and length."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return array if array.shape == shape and array.dtype == np.dtype(dtype) else None


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Turn an error of writing to the cache folder into one that says what to do."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"the cache folder {folder} cannot be used ({error.strerror or error}): set FEDUNSEEN_CACHE to another one"
        ) from None


def _checksum(start: int, array: NDArray[Any]) -> int:
    for part in _parts(array):
        start = zlib.crc32(part, start)
    return start


def _parts(array: NDArray[Any]) -> Iterator[memoryview]:
    """Yield an array's bytes in order, a bounded piece at a time."""
    rows = max(1, _BLOCK // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        yield np.ascontiguousarray(array[start : start + rows]).reshape(-1).view(np.uint8).data


def _check_room(folder: Path, needed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"the features take {needed / 2**30:.1f} GB while they are made, but the cache folder {folder} has "
            f"{free / 2**30:.1f} GB left: set FEDUNSEEN_CACHE to a folder with more room"
        )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


shown: ContextVar[Callable[[int, int], None] | None] = ContextVar("shown", default=None)
"""Shows how many images of how many are encoded, in the place of a line every few seconds."""


class _Progress:
    """Prints every few seconds how far the work is; nothing if it takes less time than that."""

    def __init__(self, total: int, done: int = 0) -> None:
        self.total, self.done, self.here = total, done, 0
        self.start = self.last = time.monotonic()

    def add(self, count: int) -> None:
        self.done, self.here = self.done + count, self.here + count
        now = time.monotonic()
        if (show := shown.get()) is not None:
            show(self.done, self.total)
        elif now - self.last >= _QUIET:
            self.last = now
            rate = self.here / (now - self.start)
            _say(f"encoding images: {self.done} of {self.total} ({rate:.0f} a second, kept in the cache)")
