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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

from fedunseen.core.array_cache import cache_path, cached_blocks, file_stamps
from fedunseen.core.deadline import check_deadline
from fedunseen.core.errors import DataError
from fedunseen.core.files import parse_json, write_json
from fedunseen.data.io.decoding_cost import check_segments, decoded_pixels
from fedunseen.data.io.depth import FEW_LEVELS, SOURCE, PictureFault, Window, eight_bits
from fedunseen.data.io.further_formats import FURTHER, installed_packages

Item = TypeVar("Item")
Box = tuple[int, int, int, int]
"""left, top, right, bottom in pixels; right and bottom are the first ones outside."""

UNREADABLE = (
    OSError, ValueError, SyntaxError, EOFError, KeyError, IndexError, TypeError, OverflowError, RuntimeError,
    struct.error, zlib.error, Image.DecompressionBombError, MemoryError,
)  # fmt: skip
"""What Pillow raises on files that are not images, damaged, cut short, or far too large."""

NO_IMAGES = ("thumbs.db", "desktop.ini", "dicomdir")  # what other programs leave behind
MOST_WHOLE = 90_000_000  # pixels of a picture whose copies are made whole: they take a gigabyte
STEP = 4  # a larger picture is decoded at this part of its width and height
EIGHT_BITS = ("1", "L", "LA", "P", "PA")
"""Modes of Pillow that never stand for more, except in a TIFF: its bytes may have a sign."""
NOT_READABLE = "is not a readable image"
DICOM_SUFFIXES = (".dcm", ".dicom")
FRAMES = ("DICOM", "TIFF")
"""Formats whose further frames are pictures of their own."""
TILE = 256 * STEP  # side of the parts that it is read in
BLOCK = 256  # images decoded, then written, at a time

# Pillow warns above 89 million pixels, and refuses a picture of twice as many: see `upright` for
# those between.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


FORMATS = (
    "JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF", "ICO", "TGA",
    "HEIF", "DICOM",
)  # fmt: skip
"""What image files may be: Pillow opens more, and starts another program for some."""


def fault_of(source: "Path | ImageBytes", window: Window | None = None) -> str:
    """Return what is wrong with an image file that could not be read, and what helps if the fault
    is not the file's.
    """
    try:
        with open_image(source) as file:
            eight_bits(file, window).load()
    except PictureFault as fault:
        return str(fault)
    except UNREADABLE:
        pass
    return _fault_of_format(source)


def _fault_of_format(source: "Path | ImageBytes") -> str:
    """Return what is wrong with a file that Pillow does not open."""
    # an empty file has no bytes to map
    with suppress(OSError, ValueError), _content(source) as content:
        for kind in FURTHER:
            if content[kind.place : kind.end] in kind.marks and not kind.installed:
                return kind.missing
    if Path(str(source)).suffix.lower() in DICOM_SUFFIXES:
        with suppress(OSError):
            if not Path(str(source)).stat().st_size:
                return "is empty: copy it again"
        return "lacks the mark DICM of a DICOM file at byte 128, or is encrypted: export it again"
    return NOT_READABLE


class ImageBytes(io.BytesIO):
    """An image file in memory, by the name that messages give it; ``formats``: it is opened as
    these alone.
    """

    formats: tuple[str, ...] = FORMATS

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
    if file.mode not in EIGHT_BITS or file.format == "TIFF":
        file = eight_bits(file)
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
    """Return an image of 8 bits and any mode in RGB; transparent parts become white."""
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def open_image(source: Path | ImageBytes) -> Image.Image:
    """Open an image file and read its header alone, once its segments and scans have been
    counted.
    """
    formats = source.formats if isinstance(source, ImageBytes) else FORMATS
    with _content(source) as content:
        check_segments(content)
        known = (kind for kind in FURTHER if content[kind.place : kind.end] in kind.marks)
        kind = next(known, None)
        if kind is not None and kind.installed and kind.name in formats:
            kind.register()
            formats = (kind.name,) if kind.alone else formats
        Image.init()  # an older Pillow lacks some formats
        allowed = tuple(name for name in formats if name in Image.OPEN)
        picture = Image.open(source, formats=allowed)
        try:
            decoded_pixels(picture, content)
        except BaseException:
            picture.close()
            raise
    return picture


def seek_frame(
    picture: Image.Image, source: Path | ImageBytes, frame: int, scans: int | None = None
) -> int:
    """Go to a frame of an opened file; return the pixels that decoding it goes over.

    Those of a TIFF differ in size, and Pillow checks the first one alone. ``scans``: those of the
    file, if they were counted before.
    """
    check_deadline()
    picture.seek(frame)
    with _content(source) as content:
        return decoded_pixels(picture, content, scans)


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
    except PictureFault as fault:
        raise DataError(f"{source} {fault}") from None
    except UNREADABLE:
        if (fault_text := _fault_of_format(source)) == NOT_READABLE:
            fault_text += remedy
        raise DataError(f"{source} {fault_text}") from None


def read_image(
    source: Path | ImageBytes,
    size: int,
    resize: int,
    window: Window | None = None,
    each: bool = False,
) -> NDArray[np.uint8]:
    """Read one image, as :func:`decode` reads a benchmark's; with ``each``, all its frames."""
    with opened_image(source) as file:
        if not each:
            return square(eight_bits(file, window), size, resize)[None]
        read = []
        for frame in range(frames_of(file)):
            seek_frame(file, source, frame)
            read.append(square(eight_bits(file, window), size, resize))
        return np.stack(read)


def frames_of(file: Image.Image) -> int:
    """Return how many pictures of their own an opened file holds."""
    return int(getattr(file, "n_frames", 1)) if file.format in FRAMES else 1


def first_shown(path: Path) -> int:
    """Return which frame of a file is its picture where frames are none of their own."""
    with suppress(*UNREADABLE), open_image(path) as file:
        return file.tell()
    return 0


def count_frames(path: Path) -> int:
    """Return how many pictures of their own a file holds; 1 where it cannot be read."""
    with suppress(*UNREADABLE), open_image(path) as file:
        return frames_of(file)
    return 1


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


class Decoded(NamedTuple):
    """Images (n, 3, size, size), and what decoding them showed.

    Attributes:
        images: bytes; black where an image is unreadable.
        unreadable: which ones are.
        few_levels: which have few gray levels, and would have more under another window.
        windows: how many have more than 8 bits, by where their window stands.
    """

    images: NDArray[np.uint8]
    unreadable: list[int]
    few_levels: list[int]
    windows: dict[str, int]


@dataclass
class _Decoding:
    """Images that are decoded in any order, and what that shows of them; see :func:`decode`."""

    paths: Sequence[Path]
    size: int
    resize: int
    boxes: Sequence[Box | None]
    window: Window | None
    frames: Sequence[int | None]
    unreadable: list[int] = field(default_factory=list)
    few_levels: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)

    def read(self, i: int) -> NDArray[np.uint8]:
        """Return an image; black where it is unreadable."""
        try:
            with open_image(self.paths[i]) as file:
                if (frame := self.frames[i]) is not None:
                    seek_frame(file, self.paths[i], frame)
                shown = eight_bits(file, self.window)
                pixels = square(shown, self.size, self.resize, self.boxes[i])
        except UNREADABLE:
            self.unreadable.append(i)
            return np.zeros((3, self.size, self.size), dtype=np.uint8)
        if source := shown.info.get(SOURCE):
            self.sources.append(source)
        if shown.info.get(FEW_LEVELS):
            self.few_levels.append(i)
        return pixels

    def notes(self) -> dict[str, Any]:
        """Return what is kept beside the images."""
        return {
            "unreadable": sorted(self.unreadable),
            "few_levels": sorted(self.few_levels),
            "windows": dict(sorted(Counter(self.sources).items())),
        }


def decode(
    root: Path,
    files: Sequence[str],
    size: int,
    resize: int,
    skip: bool = False,
    boxes: Sequence[Box] | None = None,
    window: Window | None = None,
    frames: Sequence[int | None] | None = None,
) -> Decoded:
    """Return images, decoded now or before.

    Args:
        root: of the files.
        files: a file for each image.
        size: side of the center square that is cut out, in pixels.
        resize: the shorter side before the cut.
        skip: leave unreadable images black.
        boxes: the part of each image that counts.
        window: black and white of images of more than 8 bits.
        frames: the frame of each image; None takes the one that its format opens at.
    """
    stamps, missing = file_stamps(root / file for file in files)
    if missing:
        raise DataError(
            f"{missing[0]} is missing ({len(missing)} of {len(set(files))} images are): unpack the "
            "images again, or correct data.root"
        )
    none = [None] * len(files)
    crops: Sequence[Box | None] = none if boxes is None else boxes
    parts: Sequence[int | None] = none if frames is None else frames
    of_each = zip(files, stamps, crops, parts, strict=True)
    key = ["images", size, resize, window, *installed_packages(), *of_each]
    path = cache_path("images", key)
    record = path.with_suffix(".json")
    shape = (len(files), 3, size, size)

    def produce() -> Iterator[NDArray[Any]]:
        paths = [root / file for file in files]
        decoding = _Decoding(paths, size, resize, crops, window, parts)
        yield from in_threads(decoding.read, range(len(files)))
        write_json(record, decoding.notes(), private=True)  # before the images: see `cached_blocks`

    images = cached_blocks("images", key, shape, produce)
    try:
        kept = Decoded(images, **_read_notes(record))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        path.unlink(missing_ok=True)  # one of the two is gone or damaged: make both again
        images = cached_blocks("images", key, shape, produce)
        kept = Decoded(images, **_read_notes(record))
    if kept.unreadable and not skip:
        raise DataError(_refusal(root / files[kept.unreadable[0]], kept, window))
    return kept


def _read_notes(record: Path) -> dict[str, Any]:
    content = parse_json(record.read_text("utf-8"))
    return {
        "unreadable": [int(i) for i in content["unreadable"]],
        "few_levels": [int(i) for i in content["few_levels"]],
        "windows": {str(source): int(n) for source, n in content["windows"].items()},
    }


def _refusal(first: Path, decoded: Decoded, window: Window | None) -> str:
    """Say what is wrong with unreadable images, and what helps."""
    count = len(decoded.unreadable)
    total = len(decoded.images)
    leave = "leave unreadable images out with data.skip_unreadable = true"
    if (fault := fault_of(first, window)) != NOT_READABLE:
        return f"{first} {fault}, or {leave} ({count} of {total} cannot be read)"
    fix = f"fix or replace {'it' if count == 1 else 'them'}"
    return f"{first} {fault} ({count} of {total} are not): {fix}, or {leave}"
