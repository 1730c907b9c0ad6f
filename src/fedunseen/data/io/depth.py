"""Pictures of more than 8 bits: which of their values is black, and which is white.

That is never read off a single picture: two pictures of one scene must stay alike. It comes from a
stated place: the experiment (``data.window``), the file's own tags, or its bit depth.
"""

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

Window = tuple[float, float]
"""The values that are shown black and white; those outside are clipped."""

STATED = "stated values"  # where a reader leaves a `Stated` in `Image.info`
FEW_LEVELS = "few levels"  # where `eight_bits` notes a picture of which little is left
SOURCE = "window's source"  # where it notes which window it took
SETTING = "data.window"
MOST_DEEP = 90_000_000  # pixels of 32 bits, or of 16 bits in color
FEWEST = 32  # gray levels: a picture that has more values should show more
BITS = "bit depth"
_LOOKED_AT = 2**16  # pixels whose values are counted
_BLOCK = 2**20  # values at once: whole, each step would take 8 bytes a pixel
_SIZE_MARKER = b"\xff\x4f\xff\x51"  # with which a codestream of JPEG 2000 begins
_SIZE_LENGTH = 42  # bytes from there to the depth of the first channel
_LONGEST_HEADER = 2**16  # bytes before it: boxes with a palette or a color profile
_BITS_PER_SAMPLE = 258  # tags of a TIFF
_PHOTOMETRIC = 262
_SAMPLE_FORMAT = 339
_UNSIGNED = 1
_SIGNED = 2


class PictureFault(ValueError):
    """A picture cannot be read: the message goes on after its name, and ends with a remedy."""


@dataclass(frozen=True)
class Stated:
    """What a file says about its values.

    Attributes:
        window: black and white; None where the file does not say.
        source: where that stands.
        curve: values to shares of white in [0, 1], where they do not rise along a line.
        inverted: the lowest value is white.
        deep: there are more than 8 bits, so that ``data.window`` counts.
    """

    window: Window | None
    source: str = BITS
    curve: Callable[[NDArray[Any]], NDArray[Any]] | None = None
    inverted: bool = False
    deep: bool = True


def stated(image: Image.Image) -> Stated | None:
    """Return what an opened file says about its values; None where it has 8 bits or fewer."""
    said = image.info.get(STATED)
    if isinstance(said, Stated):
        return said
    tags: Any = getattr(image, "tag_v2", {}) if image.format == "TIFF" else {}
    inverted = tags.get(_PHOTOMETRIC) == 0 and image.mode[0] in "IF"
    signed = _SIGNED in np.ravel(tags.get(_SAMPLE_FORMAT, _UNSIGNED))
    bits = int(np.ravel(tags.get(_BITS_PER_SAMPLE, 16))[0])
    if image.mode == "L" and signed:
        return Stated((-128, 127), deep=False)
    tiles: Any = getattr(image, "tile", ())
    if image.mode[0] not in "IF" and any(";16" in str(tile.args) for tile in tiles):
        return Stated((0, 65535))
    if image.format == "JPEG2000" and image.mode.startswith("I;16"):
        bits, signed = _coded_bits(image)
    if image.mode.startswith("I;16") or (image.mode == "I" and (tags or image.format == "PPM")):
        if bits > 16:
            return Stated(None, inverted=inverted)
        low = -(2 ** (bits - 1)) if signed else 0
        return Stated((low, low + 2**bits - 1), inverted=inverted)
    return Stated(None, inverted=inverted) if image.mode in ("I", "F") else None


def eight_bits(image: Image.Image, window: Window | None = None) -> Image.Image:
    """Return an opened image with 8 bits a channel: the same object where it has no more.

    Args:
        image: opened, and not loaded: pixels of 16 bits in color are decoded twice.
        window: black and white of all pictures of more than 8 bits, in place of what a file says.

    Raises:
        PictureFault: nothing says which value is white, or values are not finite.
    """
    said = stated(image)
    if said is None:
        return image
    source = SETTING if window is not None and said.deep else said.source
    window = window if source == SETTING else said.window
    if window is None:
        raise PictureFault(
            "has more than 16 bits a pixel, and nothing says which value is black and which is "
            "white: set data.window = [black, white], as `fedunseen init` measures them"
        )
    values = deep_values(image, said)
    curve = None if source == SETTING else said.curve
    shown = _shown(values, window, curve, said.inverted)
    result = Image.fromarray(shown)
    if image.mode == "RGBA":
        result.putalpha(image.getchannel("A"))
    result.getexif()[ExifTags.Base.Orientation] = image.getexif().get(ExifTags.Base.Orientation, 1)
    result.info[SOURCE] = source if said.deep else ""
    result.info[FEW_LEVELS] = said.deep and _collapsed(values, shown)
    return result


def deep_values(image: Image.Image, said: Stated) -> NDArray[Any]:
    """Return the values of an opened image of more than 8 bits, (height, width) or (height, width,
    3).
    """
    if image.mode != "L" and not image.mode.startswith("I;16"):
        if image.width * image.height > MOST_DEEP:
            raise Image.DecompressionBombError(f"more than {MOST_DEEP:,} pixels of 32 bits")
        if image.mode in ("RGB", "RGBA", "CMYK") and ";16" in _layout(image):
            return _color_values(image)
    values = np.asarray(image)
    if image.mode == "F" and not np.isfinite(values).all():
        raise PictureFault("holds values that are not finite: save it without them")
    if image.mode == "L":
        return values.view(np.int8)
    if image.format == "JPEG2000" and image.mode.startswith("I;16") and said.window is not None:
        low, high = map(int, said.window)
        stretch = 16 - (high - low).bit_length()  # Pillow gives 16 bits
        return (values.astype(np.int32) >> stretch) + low if low else values >> stretch
    unsigned = said.window is None and _sample_format(image) == _UNSIGNED
    return values.view(np.uint32) if image.mode == "I" and unsigned else values


def _coded_bits(image: Any) -> tuple[int, bool]:
    """Return how many bits a value of an opened JPEG 2000 file has, and whether it has a sign."""
    file = image.fp
    place = file.tell()
    file.seek(0)
    header = file.read(_LONGEST_HEADER)
    file.seek(place)
    start = header.find(_SIZE_MARKER)
    if not 0 <= start < len(header) - _SIZE_LENGTH:
        return 16, False
    depth = header[start + _SIZE_LENGTH]
    return min((depth & 0x7F) + 1, 16), bool(depth & 0x80)


def _sample_format(image: Image.Image) -> int:
    tags: Any = getattr(image, "tag_v2", {})
    return int(np.ravel(tags.get(_SAMPLE_FORMAT, _UNSIGNED if tags else _SIGNED))[0])


def _layout(image: Image.Image) -> str:
    """Return how the pixels of an opened file lie in it, in Pillow's words."""
    tiles: Any = getattr(image, "tile", ())
    arguments = tiles[0].args if tiles else ""
    first = arguments[0] if isinstance(arguments, tuple) and arguments else arguments
    return first if isinstance(first, str) else ""


def _color_values(image: Image.Image) -> NDArray[np.uint16]:
    """Return 16 bits of each channel, of which Pillow gives the upper 8: read in the other byte
    order, it gives the lower ones.
    """
    other: Any = _opened_again(image)
    layout = _layout(image)
    if layout == "LA;16B":  # four bytes: both of gray, both of alpha
        _lay_out(other, "RGBA")
        both = np.asarray(other).astype(np.uint16)
        image.load()
        return np.repeat(both[..., :1] * np.uint16(256) + both[..., 1:2], 3, axis=2)
    swapped = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
    if image.mode == "CMYK" or layout[-1] not in swapped:
        raise PictureFault(f"has 16 bits a channel as {layout}, which is not read: save it as RGB")
    _lay_out(other, layout[:-1] + swapped[layout[-1]])
    upper, lower = (np.asarray(half)[..., :3].astype(np.uint16) for half in (image, other))
    return upper * np.uint16(256) + lower


def _opened_again(image: Any) -> Image.Image:
    """Return a second object of an opened file's picture."""
    place = image.fp.tell()
    image.fp.seek(0)
    content = io.BytesIO(image.fp.read())
    image.fp.seek(place)
    other = Image.open(content, formats=(image.format,))
    if image.tell():
        other.seek(image.tell())
    return other


def _lay_out(image: Any, layout: str) -> None:
    def changed(arguments: Any) -> Any:
        return (layout, *arguments[1:]) if isinstance(arguments, tuple) else layout

    image.tile = [tile._replace(args=changed(tile.args)) for tile in image.tile]


def _shown(
    values: NDArray[Any],
    window: Window,
    curve: Callable[[NDArray[Any]], NDArray[Any]] | None,
    inverted: bool,
) -> NDArray[np.uint8]:
    """Return the values as gray levels, or as levels of each channel."""
    low, high = window

    def levels(part: NDArray[Any]) -> NDArray[np.uint8]:
        shares = (part.astype(np.float64) - low) * (255 / (high - low))
        scaled = shares if curve is None else 255 * curve(part)
        rounded: NDArray[np.uint8] = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
        return np.invert(rounded) if inverted else rounded

    if values.dtype == np.uint16:
        shown: NDArray[np.uint8] = levels(np.arange(2**16))[values]
        return shown
    flat = values.reshape(-1)
    grey = np.empty(flat.shape, dtype=np.uint8)
    for start in range(0, len(flat), _BLOCK):
        grey[start : start + _BLOCK] = levels(flat[start : start + _BLOCK])
    return grey.reshape(values.shape)


def _collapsed(values: NDArray[Any], shown: NDArray[np.uint8]) -> bool:
    """Return whether a picture has few gray levels, and would have more under another window."""
    step = max(1, values.size // _LOOKED_AT)
    levels = len(np.unique(shown.reshape(-1)[::step]))
    return levels < FEWEST and len(np.unique(values.reshape(-1)[::step])) > 2 * levels
