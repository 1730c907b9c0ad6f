"""Stored values of a DICOM picture: to physical units, and what its tags say about the window."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset
from pydicom.pixels import apply_modality_lut

from fedunseen.data.io.depth import BITS, Stated, Window

TAGS = "its tags"


def rescaled(stored: NDArray[Any], dataset: Dataset) -> NDArray[Any]:
    """Return stored values in the units of the modality, such as Hounsfield units; what is not of
    the picture gets the value of its background.
    """
    values: NDArray[Any] = apply_modality_lut(stored, dataset)
    padding = dataset.get("PixelPaddingValue")
    if padding is not None:
        outside = stored == _as_stored(padding, stored)
        if outside.any() and not outside.all():
            inside = values[~outside]
            background = inside.max() if _inverted(dataset) else inside.min()
            values = np.where(outside, background, values)
    return values


def stated_of(dataset: Dataset) -> Stated | None:
    """Return what tags say about values in the modality's units; None where there are 8 bits to be
    shown as they are.
    """
    inverted = _inverted(dataset)
    bits = int(dataset.get("BitsStored") or dataset.BitsAllocated)
    deep = bits > 8
    if table := dataset.get("VOILUTSequence"):
        return _of_table(table[0], bool(dataset.get("PixelRepresentation")), inverted, deep)
    center, width = (_first(dataset.get(f"Window{name}")) for name in ("Center", "Width"))
    if center is not None and width is not None and width > 0:
        return _of_window(
            center, width, str(dataset.get("VOILUTFunction") or "LINEAR"), inverted, deep
        )
    plain = not dataset.get("ModalityLUTSequence") and _slope(dataset) == (1, 0)
    if bits == 8 and plain and not inverted and not dataset.get("PixelRepresentation"):
        return None
    whole = _whole_range(dataset, bits)
    return Stated(whole, BITS, None, inverted, deep)


def _of_table(item: Dataset, signed: bool, inverted: bool, deep: bool) -> Stated:
    """Return what a table shows: pydicom's own look-up wraps at 256 where its entries are bytes."""
    _, first, bits = (int(number) for number in item.LUTDescriptor)
    data = item.LUTData
    entries = np.frombuffer(data, "<u2") if isinstance(data, bytes) else np.asarray(data)
    start = first - 2**16 if signed and first >= 2**15 else first

    def from_table(values: NDArray[Any]) -> NDArray[Any]:
        places = np.clip(np.rint(values).astype(np.int64) - start, 0, len(entries) - 1)
        shown: NDArray[Any] = entries[places] / (2**bits - 1)
        return shown

    return Stated((start, start + len(entries) - 1), TAGS, from_table, inverted, deep)


def _of_window(center: float, width: float, function: str, inverted: bool, deep: bool) -> Stated:
    """Return a window as its function shows it (DICOM PS3.3, C.11.2.1)."""
    if function == "SIGMOID":

        def sigmoid(values: NDArray[Any]) -> NDArray[Any]:
            steep = np.clip(-4 * (values.astype(np.float64) - center) / width, -700, 700)
            shares: NDArray[Any] = 1 / (1 + np.exp(steep))
            return shares

        return Stated((center - width / 2, center + width / 2), TAGS, sigmoid, inverted, deep)
    half, middle = (
        (width / 2, center) if function == "LINEAR_EXACT" else ((width - 1) / 2, center - 0.5)
    )
    half = max(half, 1e-6 * max(1.0, abs(middle)))  # a width of 1 is a threshold
    return Stated((middle - half, middle + half), TAGS, None, inverted, deep)


def _whole_range(dataset: Dataset, bits: int) -> Window | None:
    """Return the lowest and highest value that the stored bits can have."""
    if bits > 16:
        return None
    if table := dataset.get("ModalityLUTSequence"):
        return 0.0, float(2 ** int(table[0].LUTDescriptor[2]) - 1)
    low = -(2 ** (bits - 1)) if dataset.get("PixelRepresentation") else 0
    slope, intercept = _slope(dataset)
    ends = sorted((low * slope + intercept, (low + 2**bits - 1) * slope + intercept))
    return (ends[0], ends[1]) if ends[0] < ends[1] else None


def _slope(dataset: Dataset) -> tuple[float, float]:
    slope, intercept = (_first(dataset.get(f"Rescale{name}")) for name in ("Slope", "Intercept"))
    return (1.0 if slope is None else slope), (0.0 if intercept is None else intercept)


def _first(value: Any) -> float | None:
    """Return a number; the first one of several, and None of none."""
    if value is None or value == "":
        return None
    number = float(value if isinstance(value, (int, float)) else np.ravel(value)[0])
    return number if math.isfinite(number) else None


def _inverted(dataset: Dataset) -> bool:
    return str(dataset.get("PhotometricInterpretation")) == "MONOCHROME1"


def _as_stored(padding: Any, stored: NDArray[Any]) -> int:
    """Return the value of padding as pixels have it: it may be read without its sign."""
    number = int.from_bytes(padding, "little") if isinstance(padding, bytes) else int(padding)
    bits = 8 * stored.dtype.itemsize
    signed = stored.dtype.kind == "i"
    return (
        number - 2**bits
        if signed and number >= 2 ** (bits - 1)
        else number % 2**bits
        if not signed
        else number
    )
