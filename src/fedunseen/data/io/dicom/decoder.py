"""Decode a frame in a process of its own: ``python decoder.py``, which imports no other module.

A damaged frame ends the libraries for some codecs together with the process that they run in. Each
question is a line of JSON (elements, and ``bytes``), then a codestream; each answer a line of JSON
(``shape``, ``dtype``, ``photometric`` or ``error``), then the pixels.
"""

import json
import sys
from contextlib import suppress
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset
from pydicom.dataset import FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.pixels import pixel_array

ELEMENTS = (
    "Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration",
    "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation",
)  # fmt: skip
MEMORY = 2**32  # bytes of address space


def decode(elements: dict[str, Any], codestream: bytes, plugin: str = "") -> NDArray[Any]:
    """Return a frame that is compressed; in RGB where it is in color."""
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = elements["syntax"]
    for name in ELEMENTS:
        if elements.get(name) is not None:
            setattr(dataset, name, elements[name])
    dataset.PixelData = encapsulate([codestream])
    dataset["PixelData"].VR = "OB"
    frame: NDArray[Any] = pixel_array(dataset, decoding_plugin=plugin)
    return frame


def _answer(questions: BinaryIO, answers: BinaryIO) -> bool:
    """Answer one question; False where there is none."""
    line = questions.readline()
    if not line:
        return False
    elements = json.loads(line)
    codestream = questions.read(elements["bytes"])
    pixels = b""
    try:
        frame = decode(elements, codestream)
        pixels = np.ascontiguousarray(frame).tobytes()
        said = {"shape": frame.shape, "dtype": frame.dtype.str}
    except Exception as error:
        said = {"error": type(error).__name__}
    answers.write(json.dumps({**said, "bytes": len(pixels)}).encode() + b"\n" + pixels)
    answers.flush()
    return True


def main() -> None:
    """Answer questions on standard input until it ends."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while _answer(sys.stdin.buffer, sys.stdout.buffer):
        pass


if __name__ == "__main__":
    main()
