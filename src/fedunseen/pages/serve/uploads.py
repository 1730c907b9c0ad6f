"""What clients send, as samples: untrusted files and numbers."""

import os
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedunseen.core.arrays import declared_bytes
from fedunseen.core.deadline import check_deadline
from fedunseen.core.errors import DataError
from fedunseen.core.text import printable
from fedunseen.data.io.apart import read_apart
from fedunseen.data.io.decoding_cost import decoded_pixels, scans_of
from fedunseen.data.io.features import FEATURE_SUFFIXES
from fedunseen.data.io.images import (
    NOT_READABLE,
    UNREADABLE,
    ImageBytes,
    fault_of,
    frames_of,
    open_image,
    seek_frame,
)
from fedunseen.data.io.parquet_size import TOO_LARGE
from fedunseen.data.io.tables import SUFFIXES, Table, open_table
from fedunseen.experiment.inputs import declared_pictures
from fedunseen.pages.serve.model import Recognizer

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "DICOM")
# of a request; more than a telephone's camera makes, and up to a gigabyte when decoded
MOST_PIXELS = 40_000_000
MOST_SAMPLES = 1000  # in one request
MOST_BYTES = 2**26  # that the numbers of a file take as float32
_COLOR = 3  # bytes of a deflated DICOM file that count as a pixel: it may hold more than pictures
_SHOWN = 80  # characters of a file's name


class TooLargeError(DataError):
    """Something that was sent is larger than this service takes: send less at a time."""


class Upload:
    """A file that a client sends; ``shown``: its name in messages."""

    def __init__(self, name: str, content: bytes) -> None:
        path = PurePath(name)
        self.name = name
        self.content = content
        self.frames = 1  # of a picture, once its first bytes are read
        self.suffix = path.suffix.lower()
        self.shown = printable(path.name, _SHOWN) or "file"

    def is_picture(self, model: Recognizer) -> bool:
        """Return whether it has to be a picture."""
        return self.suffix not in FEATURE_SUFFIXES and model.kind not in ("text", "rows")

    @cached_property
    def picture(self) -> tuple[ImageBytes, int]:
        """The picture, of a format that is allowed, and the pixels to decode: its first bytes alone
        are read.
        """
        check_deadline()
        shown = self.shown
        if not self.content:
            raise DataError(f"{shown} is empty")
        file = ImageBytes(self.content, shown)
        file.formats = FORMATS
        try:
            with open_image(file) as picture:
                unpacked = getattr(picture, "unpacked", 0) // _COLOR
                pixels = max(decoded_pixels(picture, self.content), unpacked)
                self.frames = frames_of(picture)
                file.formats = (
                    "JPEG" if picture.format == "MPO" else str(picture.format),
                )  # JPEG's reader makes both
        except Image.DecompressionBombError:
            raise self._too_large() from None
        except UNREADABLE:
            if (fault := fault_of(file)) != NOT_READABLE:
                raise DataError(f"{shown} {fault}") from None
            formats = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
            raise DataError(f"{shown} is not a readable image: send {formats}") from None
        if pixels > MOST_PIXELS:
            raise TooLargeError(
                f"{shown} has {pixels:,} pixels, more than {MOST_PIXELS:,}: make it smaller"
            )
        return file, pixels

    def _too_large(self) -> TooLargeError:
        return TooLargeError(f"{self.shown} has more than {MOST_PIXELS:,} pixels: make it smaller")

    @cached_property
    def pixels_of_frames(self) -> int:
        """The pixels to decode of all frames, which differ in size in a TIFF."""
        file, pixels = self.picture
        scans = scans_of(self.content)
        try:
            with open_image(file) as picture:
                if picture.format != "TIFF":
                    return max(pixels, self.frames * picture.width * picture.height)
                return sum(seek_frame(picture, file, n, scans) for n in range(self.frames))
        except Image.DecompressionBombError:
            raise self._too_large() from None


def read_files(model: Recognizer, files: Sequence[Upload]) -> list[NDArray[Any]]:
    """Return what each file holds as samples (n, ...); before one is decoded, the pixels of all are
    counted.
    """
    pictures = [file for file in files if file.is_picture(model)]
    each = model.each_frame
    frames = pixels = 0
    for file in pictures:
        check_deadline()
        _, own = file.picture
        frames += file.frames if each else 1
        _check_count(frames)
        pixels += file.pixels_of_frames if each else own
        if pixels > MOST_PIXELS:
            raise TooLargeError(
                f"the pictures have more than {MOST_PIXELS:,} pixels: send fewer at a time"
            )
    blocks = []
    count = 0
    for file in files:
        check_deadline()
        blocks.append(_read_file(model, file))
        count += len(blocks[-1])
        _check_count(count)
    return blocks


def _read_file(model: Recognizer, file: Upload) -> NDArray[Any]:
    if file.is_picture(model):
        return checked(model.read(file.picture[0]))
    if not file.content:
        raise DataError(f"{file.shown} is empty")
    known: tuple[str, ...] = FEATURE_SUFFIXES
    if model.kind == "rows":
        known = (*FEATURE_SUFFIXES, *SUFFIXES)
        if file.suffix not in known:
            raise DataError(f"{file.shown} is no table: send CSV, Parquet or Arrow", "no-table")
    number, place = tempfile.mkstemp(file.suffix if file.suffix in known else ".txt", "fedunseen-")
    try:
        with open(number, "wb") as temporary:
            temporary.write(file.content)
        if model.kind == "rows" and file.suffix in SUFFIXES:
            return checked(model.read(_table(Path(place))))
        if file.suffix in (".npy", ".npz"):
            _check_arrays(file, Path(place))
        return checked(model.read(Path(place)))
    except DataError as error:
        raise error.reworded(str(error).replace(place, file.shown)) from None
    finally:
        os.unlink(place)


def _check_arrays(file: Upload, place: Path) -> None:
    """Refuse arrays of too many bytes or pictures before any is unpacked."""
    if (size := declared_bytes(place)) > MOST_BYTES:
        raise TooLargeError(
            f"{file.shown} unpacks to {size:,} bytes, more than {MOST_BYTES:,}: send fewer samples"
        )
    _check_count(declared_pictures(place))


def _table(place: Path) -> Path | Table:
    """Return a table without too many rows: where a CSV file lies, or what another one has."""
    if place.suffix == ".csv":
        rows = 0
        for block in open_table(place).blocks(()):
            rows += block.rows
            _check_count(rows)
        return place
    try:
        rows, table = read_apart(place, MOST_SAMPLES)
    except DataError as error:
        if error.code == TOO_LARGE:
            raise TooLargeError(str(error), TOO_LARGE) from None
        raise
    _check_count(rows)
    return table


def read_texts(model: Recognizer, texts: Sequence[Any]) -> NDArray[Any]:
    """Return texts as samples (n, ...)."""
    if model.kind != "text":
        raise DataError(f"this run takes {model.kind}, not text")
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise DataError("text must be a list of texts, none of them empty")
    if len(texts) > MOST_SAMPLES:
        raise TooLargeError(f"there are {len(texts)} texts: send at most {MOST_SAMPLES} at a time")
    return checked(model.read_texts([" ".join(text.split()) for text in texts]))


def not_too_many(samples: list[Any]) -> list[Any]:
    """Return samples as they were sent, if they are not too many."""
    _check_count(len(samples))
    return samples


def checked(samples: NDArray[Any]) -> NDArray[Any]:
    """Return samples (n, ...) if they are not too many."""
    _check_count(len(samples))
    if not len(samples):
        raise DataError("there is no sample: send at least one")
    return np.asarray(samples)


def _check_count(samples: int) -> None:
    if samples > MOST_SAMPLES:
        raise TooLargeError(f"there are {samples} samples: send at most {MOST_SAMPLES} at a time")
