"""What it costs to decode a picture from outside, from its bytes, before it is decoded.

Pillow handles the segments before the pixels in Python, one by one. libjpeg goes over all pixels
with each scan of a JPEG. A small file can have millions of segments, or thousands of scans: both
are counted first.
"""

import math
import re
from collections.abc import Callable, Iterator

from PIL import Image
from PIL.TiffImagePlugin import (
    COMPRESSION,
    STRIPBYTECOUNTS,
    STRIPOFFSETS,
    TILEBYTECOUNTS,
    TILELENGTH,
    TILEOFFSETS,
    TILEWIDTH,
)

SEGMENTS = 2**16
"""Segments that a picture may have: chunks of a PNG, markers of a JPEG, blocks of a GIF, tiles."""
DIRECTORIES = 4096
"""Directories that a TIFF may have: Pillow's time to count its frames grows with their square."""
SCANS = 24
"""Scans that count as one pass over a JPEG's pixels: programs make a dozen, a preview as many."""
_RUN_LENGTH = 16  # pixels that a byte or pixel of a BMP in run lengths counts as: Python decodes it
_START_OF_SCAN = re.compile(b"\xff\xda")
_COPIED = 2**14  # bytes that Pillow copies which count as a segment
_BARE = {0x01, *range(0xD0, 0xDA)}  # markers of a JPEG without a length
_JPEG_IN_TIFF = (6, 7)


def check_segments(content: bytes) -> None:
    """Raise ValueError if a picture, by its first bytes, has more than ``SEGMENTS`` of them."""
    for mark, segments in _SEGMENTS.items():
        if content[: len(mark)] == mark:
            for count, repeats in enumerate(segments(content), 1):
                if count > SEGMENTS or repeats > SEGMENTS:
                    raise ValueError(f"more than {SEGMENTS:,} segments")


def decoded_pixels(picture: Image.Image, content: bytes, scans: int | None = None) -> int:
    """Return the pixels that decoding an opened picture goes over, maybe more than it has.

    ``scans``: those of the content, if they were counted before.

    Raises:
        DecompressionBombError: they are more than Pillow takes.
    """
    pixels = picture.width * picture.height
    if picture.format in ("JPEG", "MPO"):
        pixels = max(pixels, pixels * scans_of(content) // SCANS)
    elif picture.format == "TIFF":
        pixels = _tiff_pixels(picture, content, scans)
    elif any(tile.codec_name == "bmp_rle" for tile in picture.tile):  # type: ignore[attr-defined]
        pixels = _RUN_LENGTH * (pixels + len(content))
    if pixels > 2 * (Image.MAX_IMAGE_PIXELS or math.inf):
        raise Image.DecompressionBombError("too many pixels or scans")
    return pixels


def scans_of(content: bytes) -> int:
    """Return at least the number of scans: other bytes may look like one, and none is missed."""
    return sum(1 for _ in _START_OF_SCAN.finditer(content))


def _tiff_pixels(picture: Image.Image, content: bytes, scans: int | None) -> int:
    """Return the pixels of all tiles: they may be larger than the picture, and have JPEG's
    scans.
    """
    tags = picture.tag_v2  # type: ignore[attr-defined]
    across, down = (max(1, int(tags.get(tag, 1))) for tag in (TILEWIDTH, TILELENGTH))
    pixels = math.ceil(picture.width / across) * across * math.ceil(picture.height / down) * down
    if tags.get(COMPRESSION) not in _JPEG_IN_TIFF:
        return pixels
    # Where tiles share no bytes, all together have the scans of the file; one may have them all.
    sizes = [*tags.get(STRIPBYTECOUNTS, ()), *tags.get(TILEBYTECOUNTS, ())]
    tiles = len([*tags.get(STRIPOFFSETS, ()), *tags.get(TILEOFFSETS, ())])
    if len(sizes) != tiles or not tiles or not all(sizes) or sum(sizes) > len(content):
        raise ValueError("tiles that share their bytes")
    scans = scans_of(content) if scans is None else scans
    return max(pixels, pixels * scans // (SCANS * tiles))


def _jpeg_markers(content: bytes) -> Iterator[int]:
    """Yield 0 for each step to the first scan: a marker, or a byte that fills or is stray. Yield
    more at a part of the Exif data: with each, Pillow copies those before it.
    """
    at = 2
    exif = copied = 0
    while at + 1 < len(content):
        yield copied // _COPIED
        marker = content[at + 1]
        if content[at] != 0xFF or marker == 0xFF:
            at += 1
        elif marker == 0xDA:
            return
        elif marker in _BARE or marker == 0:
            at += 2
        else:
            length = max(2, int.from_bytes(content[at + 2 : at + 4], "big"))
            if content[at + 4 : at + 8] == b"Exif":
                exif += length
                copied += exif
            at += 2 + length


def _png_chunks(content: bytes) -> Iterator[int]:
    at = 8
    while at < len(content):
        yield 0
        at += 12 + int.from_bytes(content[at : at + 4], "big")


def _gif_blocks(content: bytes) -> Iterator[int]:
    """Yield 0 for each block of an extension before the first frame, and for each stray byte."""
    at = 13 + (3 << (content[10] & 7) + 1 if content[10:11] and content[10] & 0x80 else 0)
    while at < len(content) and content[at] not in b",;":
        yield 0
        if content[at] != 0x21:
            at += 1
            continue
        at += 2
        while at < len(content) and content[at]:
            yield 0
            at += 1 + content[at]
        at += 1


def _tiff_entries(content: bytes) -> Iterator[int]:
    """Yield what :func:`_entries_of` does of the layout that Pillow reads: it looks at the third
    byte, where a BigTIFF of the other order of bytes has a 0.
    """
    if content[2:3] != b"\x2b":
        yield from _entries_of(content, False)
    if b"\x2b" in content[2:4]:
        yield from _entries_of(content, True)


def _entries_of(content: bytes, big: bool) -> Iterator[int]:
    """Yield for each entry of each directory how many strips or tiles it lists; and more than
    ``SEGMENTS`` where there are too many directories, as in a loop of them.
    """
    order = "little" if content[:1] == b"I" else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(content[at : at + size], order)  # type: ignore[arg-type]

    start, head, entry, field = (number(8, 8), 8, 20, 8) if big else (number(4, 4), 2, 12, 4)
    for _ in range(DIRECTORIES):
        end = start + head + entry * number(start, head)
        for at in range(start + head, end, entry):
            if at >= len(content):
                return
            yield number(at + 4, field) if number(at, 2) in (STRIPOFFSETS, TILEOFFSETS) else 0
        start = number(end, field)
        if not 0 < start < len(content):
            return
    yield SEGMENTS + 1


_SEGMENTS: dict[bytes, Callable[[bytes], Iterator[int]]] = {
    b"\xff\xd8": _jpeg_markers,
    b"\x89PNG": _png_chunks,
    b"GIF8": _gif_blocks,
    b"II": _tiff_entries,
    b"MM": _tiff_entries,
}
