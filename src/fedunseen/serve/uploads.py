"""What clients send, as samples: untrusted files and numbers."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedunseen.core.arrays import declared_bytes
from fedunseen.core.errors import DataError
from fedunseen.data.io.features import FEATURE_SUFFIXES
from fedunseen.data.io.images import UNREADABLE, ImageBytes
from fedunseen.serve.model import Recognizer

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MOST_PIXELS = 40_000_000  # of a picture; more than a telephone's camera makes, and 120 MB when decoded
MOST_SAMPLES = 1000  # in one request
MOST_BYTES = 2**26  # that the numbers of a file take as float32
_SHOWN = 80  # characters of a file's name


class TooLargeError(DataError):
    """Something that was sent is larger than this service takes: send less at a time."""


def read_file(model: Recognizer, name: str, content: bytes) -> NDArray[Any]:
    """Return what a file holds as samples (n, ...)."""
    path = PurePath(name)
    shown = "".join(c if c.isprintable() else "?" for c in path.name)[:_SHOWN] or "file"
    if not content:
        raise DataError(f"{shown} is empty")
    suffix = path.suffix.lower()
    if suffix not in FEATURE_SUFFIXES and model.kind != "text":
        return checked(model.read(_image(shown, content)))
    number, place = tempfile.mkstemp(suffix if suffix in FEATURE_SUFFIXES else ".txt", "fedunseen-")
    try:
        with open(number, "wb") as file:
            file.write(content)
        if suffix in (".npy", ".npz") and (size := declared_bytes(Path(place))) > MOST_BYTES:
            raise TooLargeError(f"{shown} unpacks to {size:,} bytes, more than {MOST_BYTES:,}: send fewer samples")
        return checked(model.read(Path(place)))
    except DataError as error:
        raise error.reworded(str(error).replace(place, shown)) from None
    finally:
        os.unlink(place)


def _image(shown: str, content: bytes) -> ImageBytes:
    """Return a picture whose format and size are allowed: its first bytes alone are read."""
    file = ImageBytes(content, shown)
    try:
        with Image.open(file, formats=FORMATS) as picture:
            width, height = picture.size
    except Image.DecompressionBombError:
        raise TooLargeError(f"{shown} has more than {MOST_PIXELS:,} pixels: make it smaller") from None
    except UNREADABLE:
        raise DataError(f"{shown} is not a readable image: send {', '.join(FORMATS[:-1])} or {FORMATS[-1]}") from None
    if width * height > MOST_PIXELS:
        raise TooLargeError(f"{shown} has {width * height:,} pixels, more than {MOST_PIXELS:,}: make it smaller")
    return file


def read_texts(model: Recognizer, texts: Sequence[Any]) -> NDArray[Any]:
    """Return texts as samples (n, ...)."""
    if model.kind != "text":
        raise DataError(f"this run takes {model.kind}, not text")
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise DataError("text must be a list of texts, none of them empty")
    if len(texts) > MOST_SAMPLES:
        raise TooLargeError(f"there are {len(texts)} texts: send at most {MOST_SAMPLES} at a time")
    lines = "\n".join(" ".join(text.split()) for text in texts)
    return read_file(model, "text.txt", lines.encode("utf-8", "replace"))


def checked(samples: NDArray[Any]) -> NDArray[Any]:
    """Return samples (n, ...) if they are not too many."""
    if len(samples) > MOST_SAMPLES:
        raise TooLargeError(f"there are {len(samples)} samples: send at most {MOST_SAMPLES} at a time")
    if not len(samples):
        raise DataError("there is no sample: send at least one")
    return np.asarray(samples)
