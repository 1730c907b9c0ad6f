"""A small DICOM file of very many elements, items, values or fragments, of each of which pydicom
would make an object: they are bounded by their bytes before.
"""

import io
import struct
from types import SimpleNamespace

import numpy as np
import pytest

from fedunseen.data.io.depth import STATED
from fedunseen.data.io.images import ImageBytes, open_image, read_image
from fedunseen.pages.serve import uploads
from fedunseen.pages.serve.uploads import Upload
from refusals import message_of

pydicom = pytest.importorskip("pydicom")
from pydicom.dataset import Dataset, FileMetaDataset  # noqa: E402
from pydicom.uid import (  # noqa: E402
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    RLELossless,
)

from fedunseen.data.io.dicom import image  # noqa: E402
from fedunseen.data.io.dicom.patient import patient_digest  # noqa: E402

EACH, SHARED, OTHER, WINDOWS = 0x52009230, 0x52009229, 0x00400275, 0x00289132
SIDE = 16
MANY = "a has more elements than a picture needs: export it again"


def element(tag, kind, value, length=None):
    long = kind in (b"SQ", b"OW", b"UT")
    length = len(value) if length is None else length
    size = struct.pack("<HI", 0, length) if long else struct.pack("<H", length)
    return struct.pack("<HH", tag >> 16, tag & 0xFFFF) + kind + size + value


def sequence(tag, items, stated):
    """Return a sequence whose length is stated, or ends with a mark."""
    content = b"".join(struct.pack("<HHI", 0xFFFE, 0xE000, len(item)) + item for item in items)
    if stated:
        return element(tag, b"SQ", content)
    return element(tag, b"SQ", content + struct.pack("<HHI", 0xFFFE, 0xE0DD, 0), 2**32 - 1)


def saved(more=b"", frames=1, pixels=None):
    """Return a gray picture of 16 bits with further elements before its pixels."""
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    dataset.Rows = dataset.Columns = SIDE
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 16, 15
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.PixelRepresentation, dataset.NumberOfFrames = 0, frames
    file = io.BytesIO()
    dataset.preamble = bytes(128)
    dataset.save_as(file, enforce_file_format=True)
    values = (80 * np.arange(frames * SIDE**2)).astype("<u2").tobytes()
    return (
        file.getvalue() + more + (element(0x7FE00010, b"OW", values) if pixels is None else pixels)
    )


def shown(content):
    return read_image(ImageBytes(content, "a"), 8, 9)


def refused(content):
    assert message_of(lambda: shown(content)) == MANY
    assert message_of(lambda: Upload("a", content).picture) == MANY


@pytest.fixture
def items(monkeypatch):
    """Return the list of items that pydicom makes objects of."""
    made, before = [], pydicom.filereader.read_sequence_item

    def read(*given, **named):
        made.append(given)
        return before(*given, **named)

    monkeypatch.setattr(pydicom.filereader, "read_sequence_item", read)
    return made


def window(low):
    """Return what a frame's item says: that it is shown from ``low`` on."""
    values = element(0x00281050, b"DS", f"{low + 50} ".encode())
    return sequence(WINDOWS, [values + element(0x00281051, b"DS", b"100 ")], True)


@pytest.mark.parametrize("tag", [EACH, SHARED])
def test_items_of_other_frames_are_not_made(tag, items):
    content = saved(sequence(tag, [window(100 * i) for i in range(3000)], True), 3)
    with open_image(ImageBytes(content, "a")) as picture:
        assert picture.info[STATED].window[0] == (0 if tag == SHARED else 100)
        picture.seek(2)
        assert picture.info[STATED].window[0] == (0 if tag == SHARED else 200)
        picture.load()
    assert 0 < len(items) < 20


@pytest.mark.parametrize("tag", [EACH, OTHER])
def test_items_without_a_length_are_few(tag, items, monkeypatch):
    monkeypatch.setattr(image, "_READS", 200)
    assert shown(saved(sequence(tag, [b""] * 20, False))).std() > 1
    assert len(items) >= 20
    items.clear()
    refused(saved(sequence(tag, [b""] * 2000, False)))
    assert len(items) < 1000  # opened several times


def test_elements_that_no_one_asks_for_are_few(monkeypatch):
    monkeypatch.setattr(image, "_READS", 200)
    other = element(0x00291010, b"LO", b"")
    assert shown(saved(other * 20)).std() > 1
    refused(saved(other * 2000))


def test_a_patient_is_looked_for_in_few_steps(items, monkeypatch, tmp_path):
    monkeypatch.setattr(image, "_READS", 200)
    said = element(0x00100020, b"LO", b"ab")
    for count in (20, 2000):
        content = saved(said + sequence(OTHER, [b""] * count, False))
        (tmp_path / "a.dcm").write_bytes(content)
        items.clear()
        assert (patient_digest(tmp_path / "a.dcm") is None) == (count == 2000)
        assert 20 <= len(items) < 200


def test_an_item_is_not_longer_than_a_table(items):
    nested = sequence(WINDOWS, [b""] * 20_000, True)
    refused(saved(sequence(SHARED, [nested], True)))
    refused(saved(sequence(EACH, [nested], True)))
    assert items == []


@pytest.mark.parametrize("count", [8, 2000])
def test_values_of_an_element_are_few(count):
    centers = b"\\".join([b"900"] * count) + (b"" if count % 2 else b" ")
    wide = element(0x00281051, b"DS", b"1800")
    content = saved(element(0x00281050, b"DS", centers) + wide)
    if count == 8:
        assert shown(content).std() > 1
    else:
        refused(content)


def test_pixels_are_bytes(monkeypatch):
    numbers, sizes = pydicom.values.converters["IS"], []

    def converted(value, *more):
        sizes.append(len(value))
        return numbers(value, *more)

    monkeypatch.setitem(pydicom.values.converters, "IS", converted)
    content = saved(pixels=element(0x7FE00010, b"IS", b"1\\" * SIDE**2))
    assert "cut short or damaged" in message_of(lambda: shown(content))
    assert sizes  # of the number of frames
    assert max(sizes) < 10


def test_fragments_are_few(monkeypatch):
    dataset = pydicom.dcmread(io.BytesIO(saved()))
    dataset.compress(RLELossless)
    file = io.BytesIO()
    dataset.save_as(file)
    assert shown(file.getvalue()).std() > 1
    monkeypatch.setattr(image, "SEGMENTS", 1)
    assert message_of(lambda: shown(file.getvalue())) == MANY


def test_a_deflated_file_is_bounded_too(items, monkeypatch):
    monkeypatch.setattr(image, "_READS", 200)
    for count in (20, 2000):
        dataset = pydicom.dcmread(io.BytesIO(saved(sequence(OTHER, [b""] * count, False))))
        dataset.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
        file = io.BytesIO()
        dataset.save_as(file)
        items.clear()
        if count == 20:
            assert shown(file.getvalue()).std() > 1
            assert len(items) >= 20
        else:
            refused(file.getvalue())
            assert len(items) < 1000


@pytest.mark.parametrize(
    ("length", "sent"), [(2**20, True), (2**23, True), (2**23, False)], ids=["", "sent", "a file"]
)
def test_a_deflated_file_unpacks_to_little_more_than_a_picture(length, sent, monkeypatch, tmp_path):
    """One of a megabyte was unpacked to a gigabyte, each time that it was opened."""
    monkeypatch.setattr(image, "_LEAST_UNPACKED", 2**21)
    monkeypatch.setattr(image, "_UNPACKED_IN_MEMORY", 2**22)
    dataset = pydicom.dcmread(io.BytesIO(saved()))
    dataset.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    rng = np.random.default_rng(0)
    dataset.add_new(0x00091010, "OB", rng.integers(0, 2, length, dtype=np.uint8).tobytes())
    file = io.BytesIO()
    dataset.save_as(file)
    assert 100 * len(file.getvalue()) > length  # is no question of the ratio
    path = tmp_path / "a.dcm"
    path.write_bytes(file.getvalue())
    source = ImageBytes(file.getvalue(), "a") if sent else path
    if length == 2**23 and sent:
        assert "too many pixels" in message_of(read_image, source, 8, 9)
    else:
        assert read_image(source, 8, 9).std() > 1
    dataset.PixelData = bytes(2 * len(dataset.PixelData))
    dataset.add_new(0x00091010, "OB", bytes(2**24))
    dataset.save_as(path)
    assert "too many pixels" in message_of(read_image, path, 8, 9)


def test_what_deflated_files_unpack_to_counts_as_pixels(monkeypatch):
    """Many small files were unpacked to 64 MiB each, and counted by their pictures."""
    monkeypatch.setattr(uploads, "MOST_PIXELS", 100_000)
    dataset = pydicom.dcmread(io.BytesIO(saved()))
    dataset.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    dataset.add_new(0x00091010, "OB", bytes(90_000))
    file = io.BytesIO()
    dataset.save_as(file)
    opened = []

    def answer(count):
        files = [Upload(f"{i}.dcm", file.getvalue()) for i in range(count)]
        model = SimpleNamespace(
            kind="pictures",
            each_frame=True,
            read=lambda one: opened.append(one) or np.zeros((1, 3)),
        )
        return uploads.read_files(model, files)

    assert len(answer(3)) == len(opened) == 3
    assert "more than 100,000 pixels" in message_of(answer, 4, error=uploads.TooLargeError)
    assert len(opened) == 3
