"""DICOM files as images of Pillow."""

import io
import math
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError
from pydicom import Dataset, dcmread
from pydicom.dataelem import DataElement, RawDataElement
from pydicom.encaps import get_frame
from pydicom.pixels import apply_color_lut, get_decoder, pixel_array
from pydicom.sequence import Sequence
from pydicom.uid import UID, DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian

from fedunseen.data.io.decoding_cost import SEGMENTS, check_segments, decoded_pixels
from fedunseen.data.io.depth import STATED, PictureFault, Stated
from fedunseen.data.io.dicom.decoder import ELEMENTS, decode
from fedunseen.data.io.dicom.isolated import decode_apart
from fedunseen.data.io.dicom.values import rescaled, stated_of

# pydicom quotes values that it warns about
warnings.filterwarnings("ignore", module=r"pydicom\.")

MAGIC = b"DICM"  # at byte 128
_PALETTE = [
    f"{color}PaletteColorLookupTable{part}"
    for color in ("Red", "Green", "Blue")
    for part in ("Descriptor", "Data")
]
_FUNCTIONAL = {  # sequences of a frame's own elements
    "PixelValueTransformationSequence": ("RescaleSlope", "RescaleIntercept"),
    "FrameVOILUTSequence": ("WindowCenter", "WindowWidth", "VOILUTFunction"),
}
_HEADER = [
    "SOPClassUID", "NumberOfFrames", "RescaleSlope", "RescaleIntercept", "ModalityLUTSequence",
    "WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence", "PixelPaddingValue",
    "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence",
    *ELEMENTS, *_PALETTE, *(f"Segmented{name}" for name in _PALETTE if name.endswith("Data")),
]  # fmt: skip
"""All that is read of a file beside its pixels: no element of a patient, whose ID ``patient.py``
alone reads."""
_FIRST_ITEM = ("ModalityLUTSequence", "VOILUTSequence", "SharedFunctionalGroupsSequence")
"""Sequences of which nothing but the first item counts."""
_EACH_ITEM = "PerFrameFunctionalGroupsSequence"
_PIXELS = [
    "PixelData", "FloatPixelData", "DoubleFloatPixelData", "ExtendedOffsetTable",
    "ExtendedOffsetTableLengths",
]  # fmt: skip
_BYTES = (
    "OB",
    "OW",
    "OF",
    "OD",
    "OV",
    "UN",
    None,
)  # what pixels and their offsets may be said to be
_UNPACKED = 2**30  # bytes of a file that is deflated as a whole
_UNPACKED_IN_MEMORY = 2**28  # of one that was sent
_LEAST_UNPACKED = 2**26
_RATIO = (
    100  # times its length that a file unpacks to at most, if that is more: pictures have 2 to 20
)
_READS = 2**16
"""Steps in which pydicom may read a file: it makes an object of each element and item."""
_BLOCK = 2**12  # bytes that a step reads at least, of pixels without a length
_LONGEST = 2**10  # bytes of an element of the header
_TABLE = 2**17 + 2**12  # of an item of a sequence, or of a color's table
_DAMAGED = "is cut short or damaged: copy it again"
_MANY = "has more elements than a picture needs: export it again"

# Codecs whose library refuses damaged frames, each with pydicom's name for the library. GDCM and
# libjpeg may die of them, so other codecs are decoded apart.
_ROBUST = {
    **dict.fromkeys(("1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.51"), "pillow"),
    **dict.fromkeys(
        (f"1.2.840.10008.1.2.4.{number}" for number in (90, 91, 201, 202, 203)), "pylibjpeg"
    ),
    "1.2.840.10008.1.2.5": "pydicom",
}


class DicomImage(ImageFile.ImageFile):
    """A DICOM file, at its middle frame until ``seek``: gray values of the modality ("F"), 8 bits
    as they are ("L"), or color ("RGB").

    Raises:
        PictureFault: there is no picture, it is cut short, or no package decodes it.
    """

    format = "DICOM"
    format_description = "Digital Imaging and Communications in Medicine"

    def _open(self) -> None:
        content = self.fp
        assert content is not None
        content.seek(128)
        if content.read(4) != MAGIC:
            raise SyntaxError("not a DICOM file")
        with _damage_named():
            self._content = _unpacked(content)
            self.unpacked = 0 if self._content is content else self._content.seek(0, io.SEEK_END)
            self._read_header()

    def _read_header(self) -> None:
        self._header = header = _read(self._content, _HEADER, pixels=False)
        _check_header(header)
        self._pixels: Dataset | None = None
        if "Rows" not in header or "Columns" not in header or "BitsAllocated" not in header:
            kind = UID(str(header.get("SOPClassUID", "")))
            named = kind.name if kind.name != str(kind) else "of an unknown kind"
            raise PictureFault(f"is DICOM without a picture ({named}): take it out")
        self._size = int(header.Columns), int(header.Rows)
        self.n_frames = max(1, int(header.get("NumberOfFrames") or 1))
        self.is_animated = False
        self._mode = "RGB" if self._in_color else "F"
        self._check_length()
        self._decoded = False
        self.seek(self.n_frames // 2)

    @property
    def _in_color(self) -> bool:
        return not str(self._header.get("PhotometricInterpretation", "")).startswith("MONOCHROME")

    def _check_length(self) -> None:
        """Refuse a file that is too short for its frames: as damage, or as a bomb."""
        length = self._content.seek(0, io.SEEK_END)
        syntax = _syntax(self._header)
        pixels = math.prod(self._size)
        samples = int(self._header.get("SamplesPerPixel") or 1)
        whole = pixels * samples * int(self._header.BitsAllocated) // 8
        if "422" in str(self._header.get("PhotometricInterpretation")):
            whole = whole * 2 // 3
        least = 8 if syntax.is_compressed else whole
        if self.n_frames * least > length:
            raise PictureFault(_DAMAGED)

    def seek(self, frame: int) -> None:
        """Go to a frame."""
        if not 0 <= frame < self.n_frames:
            raise EOFError("no such frame")
        self._frame = frame
        self._decoded = False
        header = _of_frame(self._header, frame)
        self._own = header
        said = None if self._in_color else stated_of(header)
        self._mode = "RGB" if self._in_color else "L" if said is None else "F"
        self.info.pop(STATED, None)
        if isinstance(said, Stated):
            self.info[STATED] = said

    def tell(self) -> int:
        """Return the frame's number, counted from 0."""
        return self._frame

    def load(self) -> Any:
        """Decode the frame."""
        if not self._decoded:
            with _damage_named():
                if self._pixels is None:
                    wanted = [*ELEMENTS, "NumberOfFrames", *_PIXELS]
                    self._pixels = _read(self._content, wanted, pixels=True)
                stored = _decoded(self._pixels, self._frame, self.n_frames)
                if stored.shape[:2] != self._size[::-1]:
                    raise PictureFault("holds a picture of another size: export it again")
                array = self._as_shown(stored)
            self.im = Image.fromarray(np.ascontiguousarray(array)).im
            self._decoded = True
        return self.im.pixel_access(self.readonly) if self.im is not None else None

    def _as_shown(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return the pixels of the image's mode."""
        header = self._own
        if self._mode == "L":
            return stored.astype(np.uint8, copy=False)
        if self._mode == "F":
            return rescaled(stored, header).astype(np.float32)
        bits = int(header.get("BitsStored") or header.BitsAllocated)
        if stored.ndim == 2:  # numbers of colors
            stored = apply_color_lut(stored, header)
            bits = 8 * stored.dtype.itemsize
        if bits == 8:
            return stored.astype(np.uint8, copy=False)
        shown: NDArray[np.uint8] = np.clip(np.rint(stored * (255 / (2**bits - 1))), 0, 255).astype(
            np.uint8
        )
        return shown


def register() -> None:
    """Let Pillow read DICOM."""
    Image.register_open(DicomImage.format, DicomImage)


@contextmanager
def _damage_named() -> Iterator[None]:
    """Turn what pydicom raises on damaged files into one sentence: it quotes values."""
    try:
        yield
    except (PictureFault, Image.DecompressionBombError):
        raise
    except Exception:
        raise PictureFault(_DAMAGED) from None


class _Bounded:
    """A file that is read in a bounded number of steps."""

    def __init__(self, content: Any) -> None:
        self._content = content
        self._left = _READS + content.seek(0, io.SEEK_END) // _BLOCK
        self.seek = content.seek
        self.tell = content.tell

    def read(self, size: int = -1) -> Any:
        """Read some bytes; all of them at once are read of files that are deflated alone."""
        self._left -= 1
        if self._left < 0 or size < 0:
            raise PictureFault(_MANY)
        return self._content.read(size)


def _read(content: Any, elements: list[str], pixels: bool) -> Dataset:
    """Read some elements of a file."""
    bounded: Any = _Bounded(content)
    bounded.seek(0)
    tags: list[Any] = list(elements)
    dataset: Dataset = dcmread(bounded, stop_before_pixels=not pixels, specific_tags=tags)
    for name in _PIXELS:
        said = dataset.get_item(name) if name in dataset else None
        if isinstance(said, RawDataElement) and said.VR not in _BYTES:
            raise PictureFault(_DAMAGED)
    return dataset


def elements_of(content: Any, names: list[str]) -> Dataset:
    """Read some elements of a file beside its pixels, in a bounded number of steps."""
    return _read(_unpacked(content), names, pixels=False)


def _check_header(header: Dataset) -> None:
    """Refuse elements that are longer than a picture needs before any becomes objects; leave the
    first item alone of sequences.
    """
    for name in _FIRST_ITEM:
        if name in header and (item := _item(header, name, 0)) is not None:
            header[name] = item
    for name in _HEADER:
        raw = header.get_item(name) if name in header else None
        if name == _EACH_ITEM or not isinstance(raw, RawDataElement):
            continue
        most = _TABLE if name in _FIRST_ITEM or "Palette" in name else _LONGEST
        if len(raw.value or b"") > most:
            raise PictureFault(_MANY)


def _item(header: Dataset, name: str, index: int) -> Any:
    """Return a sequence of one of its items alone; None where there is none."""
    raw = header.get_item(name) if name in header else None
    if not isinstance(raw, RawDataElement):  # without a length: its items are objects already
        return None if raw is None else _sequence_of(raw, index)
    value = raw.value or b""
    order: Any = "little" if raw.is_little_endian else "big"
    at = begin = 0
    for _ in range(index + 1):
        begin = at
        length = int.from_bytes(value[at + 4 : at + 8], order)
        at += 8 + length
        if at > len(value):
            if length == 2**32 - 1 and len(value) <= _TABLE:
                return _sequence_of(header[name], index)
            if begin + 8 > len(value):
                return None
            raise PictureFault(_MANY if length == 2**32 - 1 else _DAMAGED)
    if at - begin > _TABLE:
        raise PictureFault(_MANY)
    return raw._replace(value=value[begin:at], length=at - begin)


def _sequence_of(element: Any, index: int) -> Any:
    items = element.value[index : index + 1]
    return DataElement(element.tag, "SQ", Sequence(items)) if items else None


def _syntax(dataset: Dataset) -> UID:
    """Return how a file's pixels lie in it."""
    syntax = dataset.file_meta.get("TransferSyntaxUID")
    if syntax is None:
        raise PictureFault("does not say how its pixels are compressed: export it again")
    return UID(str(syntax))


def _unpacked(content: Any) -> Any:
    """Return a file that is deflated as a whole as one that is not; any other as it is.

    Raises:
        DecompressionBombError: it unpacks to far more than pictures do.
    """
    length = content.seek(0, io.SEEK_END)
    content.seek(132)
    group = content.read(12)  # the length of the elements that are not packed
    content.seek(0)
    head = content.read(144 + min(int.from_bytes(group[8:], "little"), SEGMENTS))
    if DeflatedExplicitVRLittleEndian.encode() not in head:
        return content
    plain = ExplicitVRLittleEndian.encode().ljust(len(DeflatedExplicitVRLittleEndian), b"\0")
    parts = [head.replace(DeflatedExplicitVRLittleEndian.encode(), plain)]
    unpacked = 0
    most = _UNPACKED_IN_MEMORY if isinstance(content, io.BytesIO) else _UNPACKED
    most = min(most, max(_LEAST_UNPACKED, _RATIO * length))
    unpack = zlib.decompressobj(-zlib.MAX_WBITS)
    while block := content.read(2**20):
        while block:
            parts.append(unpack.decompress(block, 2**22))
            unpacked += len(parts[-1])
            block = unpack.unconsumed_tail
            if unpacked > most:
                raise Image.DecompressionBombError("unpacks to far more than a picture")
    return io.BytesIO(b"".join(parts))


def _of_frame(header: Dataset, frame: int) -> Dataset:
    """Return a header with the elements that hold for one frame alone."""
    shared = header.get("SharedFunctionalGroupsSequence") or []
    groups = [*shared[:1]]
    if (each := _item(header, _EACH_ITEM, frame)) is not None:
        alone = Dataset()
        alone[_EACH_ITEM] = each
        groups += alone[_EACH_ITEM].value
    frame_header = Dataset()
    frame_header.update(header)
    for group in groups:
        for sequence, names in _FUNCTIONAL.items():
            for item in (group.get(sequence) or [])[:1]:
                for name in names:
                    if name in item:
                        setattr(frame_header, name, item.get(name))
    return frame_header


def _decoded(dataset: Dataset, frame: int, frames: int) -> NDArray[Any]:
    """Return the stored values of a frame; in RGB where they are in color."""
    syntax = _syntax(dataset)
    if not any(name in dataset for name in _PIXELS[:3]):
        raise PictureFault("has no pixels: export it again")
    if not syntax.is_compressed:
        whole: NDArray[Any] = pixel_array(dataset, index=frame)
        return whole
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        decoder = None
    if decoder is None or not decoder.is_available:
        raise _undecoded(syntax.name if syntax.name != str(syntax) else "an unknown codec")
    _check_fragments(dataset.PixelData)
    codestream = get_frame(dataset.PixelData, frame, number_of_frames=frames)
    _check_codestream(codestream, (int(dataset.Columns), int(dataset.Rows)))
    elements = {name: _plain(dataset.get(name)) for name in ELEMENTS} | {"syntax": str(syntax)}
    plugin = _ROBUST.get(str(syntax), "")
    if plugin == "pillow" and int(dataset.BitsAllocated) > 8:
        try:
            return decode_apart(elements, codestream)
        except ValueError:
            raise _undecoded(f"{syntax.name} of more than 8 bits") from None
    if plugin in decoder.available_plugins:
        return decode(elements, codestream, plugin)
    return decode_apart(elements, codestream)


def _check_fragments(pixels: bytes) -> None:
    """Refuse pixels in more parts than a picture has."""
    at = 0
    for _ in range(SEGMENTS):
        if at + 8 > len(pixels):
            return
        at += 8 + int.from_bytes(pixels[at + 4 : at + 8], "little")
    raise PictureFault(_MANY)


def _undecoded(kind: str) -> PictureFault:
    return PictureFault(
        f"is compressed as {kind}, which no installed package decodes: export it uncompressed"
    )


def _check_codestream(codestream: bytes, size: tuple[int, int]) -> None:
    """Refuse a picture in JPEG or JPEG 2000 of another size, or that takes long to decode."""
    check_segments(codestream)
    try:
        picture = Image.open(io.BytesIO(codestream), formats=("JPEG", "JPEG2000"))
    except UnidentifiedImageError:  # a codec that Pillow does not have
        return
    with picture:
        if picture.size != size:
            raise PictureFault("holds a picture of another size: export it again")
        decoded_pixels(picture, codestream)  # refuses too many scans


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int) else str(value)
