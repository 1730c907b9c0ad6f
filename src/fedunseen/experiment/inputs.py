"""What a finished run is asked about: files, folders of files, arrays of pictures; read some dozens
at a time.

A picture is read as the run's own were, whether it comes as a file or as a row of an array.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedunseen.core.array_cache import Progress
from fedunseen.core.arrays import array_names, declared_shapes, load_arrays
from fedunseen.core.deadline import check_deadline
from fedunseen.core.errors import DataError
from fedunseen.data.io.features import FEATURE_SUFFIXES, read_features
from fedunseen.data.io.images import ImageBytes, list_images
from fedunseen.evaluation.summary import listed
from fedunseen.experiment.encoding import as_images
from fedunseen.experiment.result.stored import StoredRun

_NAMED = 3  # files that cannot be read
_BATCH = 64  # samples at once: a frozen encoder wants several, memory not too many


class _Part(NamedTuple):
    """Some samples: their names, their rows, and whether a frozen encoder still has to see them."""

    names: list[str]
    rows: NDArray[Any]
    pictures: bool


class Batch(NamedTuple):
    """Samples that are asked about at once.

    Attributes:
        names: of the files, or places in them.
        rows: (n, ...) as the run's model takes them, before scaling.
        pictures: (n, channels, height, width) what they look like; None where they are no pictures.
    """

    names: list[str]
    rows: NDArray[Any]
    pictures: NDArray[Any] | None


def batches(run: StoredRun, paths: Sequence[str | Path]) -> Iterator[Batch]:
    """Yield samples of files, folders and arrays; see :meth:`fedunseen.Run.batches`."""
    held: list[_Part] = []

    def joined() -> Batch:
        rows = np.concatenate([part.rows for part in held])
        names = [name for part in held for name in part.names]
        if held[0].pictures:
            return Batch(names, run.encoded(rows), rows)
        return Batch(names, rows, run.pixels(rows))

    reader = run.reader
    for given in paths:
        path = Path(given)
        parts: Iterator[_Part]
        if reader.takes_texts and _is_sentence(path):
            parts = iter([_Part([str(given)], reader.read_texts([str(given)]), False)])
        elif (table := reader.tabular(path)) is not None:
            parts = _of_table(path, table)
        else:
            parts = _folder(run, path) if path.is_dir() else _file(run, path)
        for part in parts:
            if held and (
                part.pictures != held[0].pictures
                or sum(len(held_part.names) for held_part in held) >= _BATCH
            ):
                yield joined()
                held.clear()
            held.append(part)
    if held:
        yield joined()


def _is_sentence(path: Path) -> bool:
    """Say whether what was given is a text, and no name of a file."""
    try:
        return not path.exists() and path.suffix.lower() not in (".txt", *FEATURE_SUFFIXES)
    except (OSError, ValueError):  # too long for a name
        return True


def _of_table(path: Path, table: Iterator[NDArray[Any]]) -> Iterator[_Part]:
    """Yield the samples of a table's blocks in parts."""
    count = 0
    for block in table:
        for start in range(0, len(block), _BATCH):
            rows = block[start : start + _BATCH]
            yield _Part([f"{path}[{count + i}]" for i in range(len(rows))], rows, False)
            count += len(rows)


def _folder(run: StoredRun, folder: Path) -> Iterator[_Part]:
    """Yield the samples of all files of a folder, and say at the end which could not be read."""
    unreadable: list[str] = []
    read = 0
    # the table that describes the classes is no sample
    files = [name for name in list_images(folder) if name != "classes.csv"]
    progress = Progress(f"reading {folder.name}", len(files))
    for name in files:
        progress.add(1)
        try:
            parts = list(_file(run, folder / name))
        except DataError as error:
            unreadable.append(str(error))
            continue
        read += 1
        yield from parts
    if not read:
        raise DataError(
            unreadable[0]
            if unreadable
            else f"{folder} is empty: name a folder that holds {run.sample}s"
        )
    if unreadable:
        warnings.warn(
            f"{len(unreadable)} of {read + len(unreadable)} files of {folder} are left out: "
            f"{listed(unreadable, _NAMED)}",
            stacklevel=2,
        )


def _file(run: StoredRun, path: Path) -> Iterator[_Part]:
    """Yield the samples of a file; those of an array in parts."""
    shape = tuple(run.manifest["input_shape"])
    suffix = path.suffix.lower()
    encoded: list[int] | None = run.manifest.get("picture_shape")
    pictures = encoded is not None and suffix not in FEATURE_SUFFIXES
    stack = _stack(path) if suffix in FEATURE_SUFFIXES else None
    if stack is None:
        if suffix not in FEATURE_SUFFIXES:
            rows = read_sample(run, path)
        elif len(shape) > 1:
            raise DataError(
                f"{path}: this run's model takes images, not feature files: give images"
            )
        else:
            rows = read_features(path, shape[0])
        names = [str(path)] if len(rows) == 1 else [f"{path}[{i}]" for i in range(len(rows))]
        yield _Part(names, rows, pictures)
        return
    if not len(stack):
        raise DataError(f"{path} has the shape {stack.shape}, so no sample: give at least one")
    for start in range(0, len(stack), _BATCH):
        block = stack[start : start + _BATCH]
        if block.shape[1:] == shape and encoded is None:  # maps, or images of the right size
            rows = block if block.dtype == np.uint8 else block.astype(np.float32)
        else:
            rows = _pictured(run, path, block)
        names = [f"{path}[{start + i}]" for i in range(len(block))]
        yield _Part(names, rows, encoded is not None)


def read_sample(run: StoredRun, file: Path | ImageBytes) -> NDArray[Any]:
    """Read a file as the run's benchmark reads one, as images (n, channels, height, width) where it
    has those.
    """
    encoded = run.manifest.get("picture_shape")
    shape = run.manifest["input_shape"]
    samples = run.reader.read(file)
    if samples.ndim == 2 and (encoded is not None or len(shape) > 1):
        return as_images(samples, encoded or shape)  # a flattened image
    return samples


def declared_pictures(path: Path) -> int:
    """Return how many pictures or maps a NumPy file holds, by its headers alone; 0 where it holds
    vectors.
    """
    shapes = declared_shapes(path)
    shape = shapes.get(_wanted(list(shapes)) or "", ())
    return 0 if len(shape) < 3 else 1 if _is_single(shape) else shape[0]


def _stack(path: Path) -> NDArray[Any] | None:
    """Return an array of pictures or maps (n, ...); None where a file holds vectors."""
    if path.suffix.lower() == ".csv":
        return None
    wanted = _wanted(array_names(path))
    if wanted is None:
        return None
    array = load_arrays(path, (wanted,))[wanted]
    if array.ndim < 3:
        return None
    return array[None] if _is_single(array.shape) else array


def _wanted(names: Sequence[str]) -> str | None:
    """Return which of a file's arrays has the samples."""
    usual = (name for name in ("images", "features") if name in names)
    return next(usual, names[0] if len(names) == 1 else None)


def _is_single(shape: Sequence[int]) -> bool:
    """Say whether an array is one picture (height, width, channels)."""
    return len(shape) == 3 and shape[-1] in (3, 4)


def _pictured(run: StoredRun, path: Path, rows: NDArray[Any]) -> NDArray[Any]:
    """Read rows of an array as the run's benchmark reads picture files."""
    if not run.reader.takes_pictures:
        raise DataError(f"{path} has the shape {rows.shape}: this run takes no pictures")
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        raise DataError(f"{path} holds numbers that are not finite: leave those pictures out")
    if rows.ndim == 4 and rows.shape[1] in (1, 3) and rows.shape[-1] not in (1, 3, 4):
        rows = rows.transpose(0, 2, 3, 1)
    if rows.dtype.kind == "f" and rows.min() >= 0 and rows.max() <= 1:
        rows = np.rint(rows * 255).astype(np.uint8)
    deep = rows.dtype == np.uint16 and rows.ndim == 3  # gray, shown in the run's window
    if (
        not (rows.dtype == np.uint8 or deep)
        or rows.ndim > 4
        or (rows.ndim == 4 and rows.shape[-1] not in (1, 3, 4))
    ):
        raise DataError(
            f"{path} has the shape {rows.shape} and the type {rows.dtype}: give pictures (n, "
            "height, width[, 3]) or (n, 3, height, width), bytes or numbers from 0 to 1"
        )
    if rows.ndim == 4 and rows.shape[-1] == 1:
        rows = rows[..., 0]
    read = []
    for row in rows:
        check_deadline()
        picture = ImageBytes(b"", str(path))
        Image.fromarray(np.ascontiguousarray(row)).save(picture, "png", compress_level=1)
        read.append(read_sample(run, picture))
    return np.concatenate(read)
