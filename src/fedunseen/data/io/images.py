"""Image files to arrays of bytes: read, turned upright, resized, cropped, and kept in a
memory-mapped file.

As usual for ImageNet networks, the shorter side is resized to ``resize`` (bilinear, with
antialiasing), then the center square of ``size`` is taken: 256 and 224, or 512 and 448 (GEM, MSDN).
A benchmark's images are decoded once.
"""

import io
import math
import mmap
import os
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

from fedunseen.core.array_cache import cache_path, cached_blocks, file_stamps
from fedunseen.core.errors import DataError
from fedunseen.core.files import parse_json, write_json
from fedunseen.data.io.decoding_cost import check_segments, decoded_pixels

Item = TypeVar("Item")
Box = tuple[int, int, int, int]
"""left, top, right, bottom in pixels; right and bottom are the first ones outside."""

UNREADABLE = (
    OSError, ValueError, SyntaxError, EOFError, KeyError, IndexError, TypeError, OverflowError, RuntimeError,
    struct.error, zlib.error, Image.DecompressionBombError, MemoryError,
)  # fmt: skip
"""What Pillow raises on files that are not images, damaged, cut short, or far too large."""

NO_IMAGES = ("thumbs.db", "desktop.ini")  # what file managers leave behind
MOST_WHOLE = 90_000_000  # pixels of a picture whose copies are made whole: they take a gigabyte
STEP = 4  # a larger picture is decoded at this part of its width and height
TILE = 256 * STEP  # side of the parts that it is read in
BLOCK = 256  # images decoded, then written, at a time

# Pillow warns above 89 million pixels, and refuses a picture of twice as many: see `upright` for
# those between.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


FORMATS = (
    "JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF", "ICO", "TGA",
    "HEIF",
)  # fmt: skip
"""What image files may be: Pillow decodes more, some of them by another program."""


# bytes 4 to 11 of a photo as telephones save it, which Pillow alone does not read
_HEIC = frozenset(
    b"ftyp" + brand
    for brand in (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
)
_HEIC_PACKAGE = "pillow_heif"


def fault_of(source: "Path | ImageBytes") -> str:
    """Return what is wrong with an image file that could not be read, and what helps if the fault
    is not the file's.
    """
    # an empty file has no bytes to map
    with suppress(OSError, ValueError), _content(source) as content:
        if content[4:12] in _HEIC and find_spec(_HEIC_PACKAGE) is None:
            return "is a HEIC photo, which needs a package: pip install pillow-heif"
    return "is not a readable image"


@cache
def _read_heic() -> None:
    """Let Pillow read HEIC photos, if the package for them is installed."""
    if find_spec(_HEIC_PACKAGE) is not None:
        import_module(_HEIC_PACKAGE).register_heif_opener()


class ImageBytes(io.BytesIO):
    """An image file in memory, by the name that messages give it; ``formats``: it is opened as
    these alone.
    """

    formats: tuple[str, ...] | None = None

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self._name = name

    def __str__(self) -> str:
        return self._name


def square(file: Image.Image, size: int, resize: int, box: Box | None = None) -> NDArray[np.uint8]:
    """Return the center square (3, size, size) of the first frame, upright, its shorter side at
    ``resize``.
    """
    before = max(file.size)
    whole = upright(file)
    if box is not None:
        part_of = max(whole.size) / before
        left, top = (max(math.floor(edge * part_of), 0) for edge in box[:2])
        right, bottom = (
            min(math.ceil(edge * part_of), end)
            for edge, end in zip(box[2:], whole.size, strict=True)
        )
        if left >= right or top >= bottom:
            raise ValueError(f"the box {box} lies outside of the image")
        whole = whole.crop((left, top, right, bottom))
    width, height = whole.size
    short = min(width, height)
    # Only the part that the crop needs is resized, so that a strip of 1 x 100,000 pixels stays
    # small.
    new_width = resize * width // short
    new_height = resize * height // short
    x = round((new_width - size) / 2)
    y = round((new_height - size) / 2)
    across = width / new_width
    down = height / new_height
    part = (x * across, y * down, min((x + size) * across, width), min((y + size) * down, height))
    return planes(whole.resize((size, size), Image.Resampling.BILINEAR, box=part))


def upright(file: Image.Image) -> Image.Image:
    """Turn an opened image as its EXIF data say, and return it in RGB; a very large one at a
    quarter of its sides.
    """
    if file.width * file.height > MOST_WHOLE:
        file.draft(None, (file.width // STEP, file.height // STEP))  # which a JPEG alone obeys
    if file.width * file.height > MOST_WHOLE:
        file = _reduced(file)
    ImageOps.exif_transpose(
        file, in_place=True
    )  # a copy of a photo takes half as long as decoding it
    return to_rgb(file)


def _reduced(file: Image.Image) -> Image.Image:
    """Return an image in RGB at a quarter of its width and height, read in parts."""
    if file.mode in ("I", "F"):  # a part does not say which value is white
        raise Image.DecompressionBombError(f"more than {MOST_WHOLE:,} pixels of 32 bits")
    small = Image.new("RGB", (math.ceil(file.width / STEP), math.ceil(file.height / STEP)))
    for top in range(0, file.height, TILE):
        for left in range(0, file.width, TILE):
            tile = file.crop(
                (left, top, min(left + TILE, file.width), min(top + TILE, file.height))
            )
            small.paste(to_rgb(tile).reduce(STEP), (left // STEP, top // STEP))
    small.getexif()[ExifTags.Base.Orientation] = file.getexif().get(ExifTags.Base.Orientation, 1)
    return small


def to_rgb(image: Image.Image) -> Image.Image:
    """Return an image of any mode in RGB with 8 bits; transparent parts become white."""
    if (
        image.mode.startswith("I") or image.mode == "F"
    ):  # 16 or 32 bits: Pillow's own conversion would clip them
        values = np.asarray(image).reshape(-1)
        if not np.isfinite(values).all():
            raise ValueError("not finite")
        white = 65535.0 if image.mode.startswith("I;16") else max(1.0, float(values.max()))
        grey = np.empty(values.shape, dtype=np.uint8)
        for start in range(
            0, len(values), TILE**2
        ):  # whole, each of these steps would take 8 bytes a pixel
            part = values[start : start + TILE**2].astype(np.float64) * (255 / white)
            grey[start : start + TILE**2] = np.clip(np.rint(part), 0, 255)
        image = Image.fromarray(grey.reshape(image.height, image.width))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def open_image(source: Path | ImageBytes) -> Image.Image:
    """Open an image file and read its header alone, once its segments and scans have been
    counted.
    """
    formats = source.formats if isinstance(source, ImageBytes) else None
    with _content(source) as content:
        check_segments(content)
        if formats is None and content[4:12] in _HEIC:
            _read_heic()
        picture = Image.open(source, formats=formats)
        try:
            if picture.format not in FORMATS:
                raise ValueError(f"{picture.format} is not opened")
            if decoded_pixels(picture, content) > 2 * (Image.MAX_IMAGE_PIXELS or math.inf):
                raise Image.DecompressionBombError("too many scans")
        except BaseException:
            picture.close()
            raise
    return picture


def is_readable(source: Path) -> bool:
    """Return whether the header of an image file can be read."""
    with suppress(*UNREADABLE), open_image(source):
        return True
    return False


@contextmanager
def _content(source: Path | ImageBytes) -> Iterator[Any]:
    """Yield the bytes of a file, which are read where they are looked at."""
    if isinstance(source, ImageBytes):
        yield source.getvalue()
        return
    if not source.is_file() and source.exists():  # a pipe would be waited for
        raise OSError(f"{source} is not a file")
    with (
        source.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        yield content


@contextmanager
def opened_image(
    source: Path | ImageBytes, remedy: str = ": give another file, or save it as PNG or JPEG"
) -> Iterator[Image.Image]:
    """Open an image to work on it; what is wrong with it becomes one sentence."""
    try:
        with open_image(source) as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"{source} is missing: correct its name") from None
    except Image.DecompressionBombError:
        raise DataError(f"{source} has too many pixels to be read: make it smaller") from None
    except UNREADABLE:
        raise DataError(f"{source} {fault_of(source)}{remedy}") from None


def read_image(source: Path | ImageBytes, size: int, resize: int) -> NDArray[np.uint8]:
    """Read one image, as :func:`decode` reads a benchmark's."""
    with opened_image(source) as file:
        return square(file, size, resize)[None]


def read_strokes(
    source: Path | ImageBytes,
    shape: tuple[int, int],
    resample: Image.Resampling = Image.Resampling.BOX,
) -> NDArray[np.float32]:
    """Read a picture of strokes, light on dark, in [0, 1]: turned gray, resized, inverted if its
    border is light.
    """
    with opened_image(source) as file:
        grey = upright(file).convert("L")
    small = grey.resize(shape[::-1], resample)
    width = shape[1]
    image = np.asarray(small, dtype=np.float32) / np.float32(255)
    values = small.tobytes()
    border = sorted(values[:width] + values[-width:] + values[::width] + values[width - 1 :: width])
    middle = len(border) // 2  # of an even number; NumPy takes as long as decoding a small picture
    return np.float32(1) - image if border[middle - 1] + border[middle] > 255 else image


def planes(image: Image.Image) -> NDArray[np.uint8]:
    """Return an image in RGB as bytes of shape (3, height, width)."""
    return np.ascontiguousarray(np.asarray(image, dtype=np.uint8).transpose(2, 0, 1))


def in_threads(
    read: Callable[[Item], NDArray[np.uint8]], items: Sequence[Item]
) -> Iterator[NDArray[np.uint8]]:
    """Yield ``read`` of each item, in order and in blocks, for :func:`cached_blocks`."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        for start in range(0, len(items), BLOCK):
            yield np.stack(list(threads.map(read, items[start : start + BLOCK])))


def list_images(folder: Path) -> list[str]:
    """Return all files of a folder and its sub-folders, sorted, but hidden ones; loops of links
    end.
    """
    files: list[str] = []
    visited = {_identity(folder)}
    for place, folders, names in os.walk(folder, followlinks=True):
        shown_folders = sorted(name for name in folders if not name.startswith("."))
        folders[:] = []
        for name in shown_folders:
            if (identity := _identity(Path(place, name))) not in visited:
                visited.add(identity)
                folders.append(name)
        shown = [
            name for name in names if not name.startswith(".") and name.lower() not in NO_IMAGES
        ]
        files += [(Path(place).relative_to(folder) / name).as_posix() for name in shown]
    return sorted(files)


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return the identity of a folder on its disk, through any links."""
    try:
        status = folder.stat()
    except OSError:  # it cannot be entered either
        return None
    return status.st_dev, status.st_ino


def decoded_bytes(count: int, size: int) -> int:
    """Return how much disk space ``count`` decoded images take."""
    return count * 3 * size * size


def decode(
    root: Path,
    files: Sequence[str],
    size: int,
    resize: int,
    skip: bool = False,
    boxes: Sequence[Box] | None = None,
) -> tuple[NDArray[np.uint8], list[int]]:
    """Return images (n, 3, size, size), decoded now or before, and which of them are unreadable,
    and black.
    """
    stamps, missing = file_stamps(root / file for file in files)
    if missing:
        raise DataError(
            f"{missing[0]} is missing ({len(missing)} of {len(set(files))} images are): unpack the "
            "images again, or correct data.root"
        )
    crops: Sequence[Box | None] = boxes if boxes is not None else [None] * len(files)
    more = [] if find_spec(_HEIC_PACKAGE) is None else [_HEIC_PACKAGE]  # reads more files
    key = ["images", size, resize, *more, *zip(files, stamps, crops, strict=True)]
    path = cache_path("images", key)
    record = path.with_suffix(".json")
    shape = (len(files), 3, size, size)

    def produce() -> Iterator[NDArray[Any]]:
        unreadable: list[int] = []

        def read(i: int) -> NDArray[np.uint8]:
            try:
                with open_image(root / files[i]) as file:
                    return square(file, size, resize, crops[i])
            except UNREADABLE:
                unreadable.append(i)
                return np.zeros(shape[1:], dtype=np.uint8)

        yield from in_threads(read, range(len(files)))
        write_json(
            record, {"unreadable": sorted(unreadable)}
        )  # before the images: see `cached_blocks`

    images = cached_blocks("images", key, shape, produce)
    try:
        unreadable = [int(i) for i in parse_json(record.read_text("utf-8"))["unreadable"]]
    except (OSError, ValueError, KeyError, TypeError):
        path.unlink(missing_ok=True)  # one of the two is gone or damaged: make both again
        images = cached_blocks("images", key, shape, produce)
        unreadable = parse_json(record.read_text("utf-8"))["unreadable"]
    if unreadable and not skip:
        raise DataError(
            f"{root / files[unreadable[0]]} {fault_of(root / files[unreadable[0]])} "
            f"({len(unreadable)} of "
            f"{len(files)} are not): fix or replace {'it' if len(unreadable) == 1 else 'them'}, or "
            "leave unreadable images out with data.skip_unreadable = true"
        )
    return images, unreadable
