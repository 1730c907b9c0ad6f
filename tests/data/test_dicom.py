"""DICOM files: pydicom's own test data, and files that are written here."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedunseen.data.io.depth import eight_bits, stated
from fedunseen.data.io.images import decode, fault_of, open_image, read_image
from refusals import message_of

pydicom = pytest.importorskip("pydicom")
from pydicom.dataset import FileDataset, FileMetaDataset  # noqa: E402
from pydicom.encaps import encapsulate  # noqa: E402
from pydicom.pixels import apply_modality_lut, apply_voi_lut, pixel_array  # noqa: E402
from pydicom.sequence import Sequence  # noqa: E402
from pydicom.uid import ExplicitVRLittleEndian, JPEGLSLossless  # noqa: E402

FILES = Path(pydicom.__file__).parent / "data" / "test_files"
RAMP = np.arange(256, dtype=np.uint16).reshape(16, 16) * 16  # 12 bits


def dataset_of(pixels, **elements):
    """A picture as a file would hold it; of three dimensions: frames."""
    dataset = FileDataset(None, {}, preamble=bytes(128))
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    color = pixels.shape[-1] == 3
    dataset.Rows, dataset.Columns = pixels.shape[-3:-1] if color else pixels.shape[-2:]
    dataset.SamplesPerPixel = 3 if color else 1
    dataset.PhotometricInterpretation = "RGB" if color else "MONOCHROME2"
    if color:
        dataset.PlanarConfiguration = 0
    if pixels.ndim - color == 3:
        dataset.NumberOfFrames = len(pixels)
    dataset.BitsAllocated = dataset.BitsStored = 8 * pixels.dtype.itemsize
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
    dataset.PixelData = pixels.tobytes()
    for name, value in elements.items():
        setattr(dataset, name, value)
    return dataset


def written(place, pixels, **elements):
    dataset_of(pixels, **elements).save_as(place, enforce_file_format=True)
    return place


def levels(path, window=None):
    with open_image(path) as image:
        return np.asarray(eight_bits(image, window).convert("L")).astype(int)


READABLE = [
    "MR_small.dcm", "MR_small_RLE.dcm", "MR_small_bigendian.dcm", "MR_small_implicit.dcm",
    "MR_small_jp2klossless.dcm", "MR_small_jpeg_ls_lossless.dcm", "693_J2KI.dcm",
    "J2K_pixelrep_mismatch.dcm", "examples_overlay.dcm", "CT_small.dcm", "image_dfl.dcm",
    "liver_1frame.dcm",
]  # fmt: skip


@pytest.mark.parametrize("name", READABLE)
def test_gray_files_are_shown_as_pydicom_shows_them(name):
    """Its range of the values shown depends on the bits that are stored; ours is 0 to 255."""
    dataset = pydicom.dcmread(FILES / name)
    values = apply_modality_lut(pixel_array(dataset), dataset)
    bits, signed = dataset.BitsStored, dataset.PixelRepresentation
    ends = np.array([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1] if signed else [0, 2**bits - 1])
    low, high = apply_modality_lut(ends, dataset)
    shown = apply_voi_lut(values, dataset)
    expected = (shown.astype(float) - low) / (high - low) * 255
    assert np.abs(levels(FILES / name) - expected).max() <= 1


COLOR = [
    "SC_rgb_jpeg_gdcm.dcm", "SC_rgb_jpeg_dcmtk.dcm", "SC_rgb_rle.dcm", "SC_rgb_gdcm_KY.dcm",
    "SC_rgb_jls_lossy_line.dcm", "SC_ybr_full_422_uncompressed.dcm", "SC_rgb_dcmtk_+eb+cr.dcm",
    "examples_jpeg2k.dcm", "ExplVR_BigEnd.dcm",
]  # fmt: skip


@pytest.mark.parametrize("name", COLOR)
def test_color_files_keep_their_bits(name):
    expected = pixel_array(pydicom.dcmread(FILES / name))
    with open_image(FILES / name) as image:
        assert image.mode == "RGB"
        assert (np.asarray(image) == expected).all()


def test_palettes_and_sixteen_bits_of_color():
    dataset = pydicom.dcmread(FILES / "examples_palette.dcm")
    expected = pydicom.pixels.apply_color_lut(pixel_array(dataset), dataset)
    with open_image(FILES / "examples_palette.dcm") as image:
        top = 255 if expected.dtype == np.uint8 else 65535
        assert np.abs(np.asarray(image) - expected / top * 255).max() <= 1
    deep = pixel_array(pydicom.dcmread(FILES / "SC_rgb_rle_16bit.dcm"))
    with open_image(FILES / "SC_rgb_rle_16bit.dcm") as image:
        assert np.abs(np.asarray(image) - deep / 257).max() <= 0.5


def test_windows_by_their_formulas(tmp_path):
    path, elements = tmp_path / "a", {"BitsStored": 12, "HighBit": 11}
    units = {"RescaleSlope": 0.5, "RescaleIntercept": -1000}
    values = RAMP * 0.5 - 1000
    window = {"WindowCenter": [0, 40], "WindowWidth": [400, 80]}  # the first one counts
    linear = np.clip((values - (0 - 0.5)) / 399 + 0.5, 0, 1)
    exact = np.clip(values / 400 + 0.5, 0, 1)
    sigmoid = 1 / (1 + np.exp(-4 * values / 400))
    for function, share in (("", linear), ("LINEAR_EXACT", exact), ("SIGMOID", sigmoid)):
        named = {"VOILUTFunction": function} if function else {}
        written(path, RAMP, **elements, **units, **window, **named)
        assert np.abs(levels(path) - 255 * share).max() < 0.501
    written(path, RAMP, **elements, **units, **window, PhotometricInterpretation="MONOCHROME1")
    assert np.abs(levels(path) - 255 * (1 - linear)).max() < 0.501
    of_setting = np.clip((values + 1000) / 2000, 0, 1)  # in units of the modality
    assert np.abs(levels(path, (-1000.0, 1000.0)) - 255 * (1 - of_setting)).max() < 0.501
    written(path, RAMP, **elements, **units)
    with open_image(path) as image:
        assert stated(image).window == (-1000, 4095 * 0.5 - 1000)
    written(path, RAMP, WindowCenter=2000, WindowWidth=1, **elements)
    assert set(np.unique(levels(path))) <= {0, 255}


def test_tables_of_values(tmp_path):
    modality, voi = pydicom.Dataset(), pydicom.Dataset()
    modality.LUTDescriptor, modality.LUTData = [256, 0, 16], [i * 10 for i in range(256)]
    modality["LUTDescriptor"].VR = "US"
    modality.ModalityLUTType = "US"
    voi.LUTDescriptor, voi.LUTData = [2551, 0, 8], [255 - i // 10 for i in range(2551)]
    voi["LUTDescriptor"].VR = voi["LUTData"].VR = modality["LUTData"].VR = "US"
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    path = tmp_path / "a"
    written(path, pixels, ModalityLUTSequence=Sequence([modality]), VOILUTSequence=Sequence([voi]))
    assert (levels(path) == 255 - pixels).all()


def test_eight_bits_keep_theirs_and_padding_is_background(tmp_path):
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    path = written(tmp_path / "a", pixels)
    assert (levels(path, (0.0, 3.0)) == pixels).all()
    written(path, pixels, PhotometricInterpretation="MONOCHROME1")
    assert (levels(path, (0.0, 3.0)) == 255 - pixels).all()
    padded = np.full((4, 4), 100, dtype=np.int16)
    padded[0], padded[1] = -2000, 900
    dataset = dataset_of(padded)
    dataset.add_new(0x00280120, "SS", -2000)
    dataset.save_as(path, enforce_file_format=True)
    with open_image(path) as image:
        assert np.asarray(image)[:, 0].tolist() == [100, 900, 100, 100]


def test_frames_and_the_window_of_each(tmp_path):
    frames = np.stack([np.full((8, 8), 100 * i, dtype=np.uint16) for i in range(5)])
    path = written(tmp_path / "a", frames, WindowCenter=256, WindowWidth=513)
    assert levels(path)[0, 0] == round(200 / 512 * 255)  # the middle one
    each = read_image(path, 8, 8, None, each=True)[:, 0, 0, 0]
    assert np.abs(each - (np.arange(5) * 100 + 0.5) / 512 * 255).max() < 0.501
    found = decode(tmp_path, ["a", "a"], 8, 8, frames=[4, 0])
    assert found.images[:, 0, 0, 0].tolist() == [199, 0]

    def item(**elements):
        dataset = pydicom.Dataset()
        for name, value in elements.items():
            setattr(dataset, name, value)
        return dataset

    shared = item(PixelValueTransformationSequence=[item(RescaleSlope=2, RescaleIntercept=10)])
    groups = [
        item(FrameVOILUTSequence=[item(WindowCenter=c, WindowWidth=101)])
        for c in range(100, 600, 100)
    ]
    written(
        path,
        frames,
        SharedFunctionalGroupsSequence=[shared],
        PerFrameFunctionalGroupsSequence=groups,
    )
    with open_image(path) as image:
        for i in range(5):
            image.seek(i)
            assert stated(image).window == (100 * (i + 1) - 50.5, 100 * (i + 1) + 49.5)
            assert np.asarray(image)[0, 0] == 200 * i + 10


def changed(name, place, **elements):
    dataset = pydicom.dcmread(FILES / name)
    for key, value in elements.items():
        setattr(dataset, key, value)
    dataset.save_as(place)
    return place


def test_what_cannot_be_shown_is_refused_in_a_sentence(tmp_path):
    path = tmp_path / "a"
    copy = "is cut short or damaged: copy it again"

    def refused(file=path):
        said = message_of(read_image, file, 8, 8)
        assert "\n" not in said
        return said.removeprefix(f"{file} ")

    assert refused(FILES / "test-SR.dcm") == (
        "is DICOM without a picture (Comprehensive SR Storage): take it out"
    )
    assert refused(FILES / "rtdose.dcm").startswith("has more than 16 bits a pixel, and nothing")
    assert refused(FILES / "JPGExtended.dcm") == (
        "is compressed as JPEG Extended (Process 2 and 4) of more than 8 bits, which no installed "
        "package decodes: export it uncompressed"
    )
    assert refused(FILES / "MR_truncated.dcm") == copy
    whole = written(path, RAMP).read_bytes()
    for length in (140, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert refused() in (copy, "is DICOM without a picture (Secondary Capture Image Storage): take it out",
                             "is DICOM without a picture (of an unknown kind): take it out",
                             "does not say how its pixels are compressed: export it again")  # fmt: skip
    dataset = dataset_of(RAMP)
    dataset.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.4.102"
    dataset.PixelData = encapsulate([b"\0\0\0\1"])
    dataset["PixelData"].VR = "OB"
    dataset.save_as(path, enforce_file_format=True)
    assert refused().startswith("is compressed as MPEG-4")
    sealed = tmp_path / "sealed.dcm"
    sealed.write_bytes(os.urandom(1000))
    assert refused(sealed).startswith("lacks the mark DICM of a DICOM file at byte 128, or is enc")
    sealed.write_bytes(b"")
    assert refused(sealed) == "is empty: copy it again"
    dataset = dataset_of(RAMP)
    del dataset.PixelData
    dataset.save_as(path, enforce_file_format=True)
    assert refused() in (copy, "has no pixels: export it again")


def test_bombs_are_refused_before_they_are_decoded(tmp_path):
    path = tmp_path / "a"
    written(path, RAMP, NumberOfFrames=2**31 - 1)
    assert "is cut short" in message_of(read_image, path, 8, 8)
    written(path, RAMP, Rows=65535, Columns=65535)
    assert "is cut short" in message_of(read_image, path, 8, 8)
    dataset = dataset_of(RAMP, Rows=65535, Columns=65535)
    dataset.file_meta.TransferSyntaxUID = JPEGLSLossless
    dataset.PixelData = encapsulate([bytes(100)])
    dataset["PixelData"].VR = "OB"
    dataset.save_as(path, enforce_file_format=True)
    assert "has too many pixels to be read" in message_of(read_image, path, 8, 8)
    other = tmp_path / "other.jpg"  # a larger picture than the elements say
    Image.new("L", (4000, 4000)).save(other)
    dataset = dataset_of(RAMP.astype(np.uint8))
    dataset.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.4.50"
    dataset.PixelData = encapsulate([other.read_bytes()])
    dataset["PixelData"].VR = "OB"
    dataset.save_as(path, enforce_file_format=True)
    assert "holds a picture of another size: export it again" in message_of(read_image, path, 8, 8)


@pytest.mark.slow
def test_a_decoder_that_dies_takes_nothing_with_it(tmp_path, monkeypatch):
    from fedunseen.data.io.dicom import isolated

    whole = read_image(FILES / "SC_rgb_jpeg_gdcm.dcm", 8, 8)
    dead = isolated._processes[os.getpid()]
    dead.kill()
    dead.wait()
    assert (read_image(FILES / "SC_rgb_jpeg_gdcm.dcm", 8, 8) == whole).all()
    isolated._processes[os.getpid()].kill()  # while it is asked
    monkeypatch.setattr(isolated, "_running", lambda: dead)
    assert "is cut short or damaged" in message_of(read_image, FILES / "SC_rgb_jpeg_gdcm.dcm", 8, 8)
    monkeypatch.undo()
    assert (read_image(FILES / "SC_rgb_jpeg_gdcm.dcm", 8, 8) == whole).all()


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    path = written(tmp_path / "scan", RAMP)
    monkeypatch.setattr("fedunseen.data.io.further_formats.find_spec", lambda name: None)
    monkeypatch.delitem(Image.OPEN, "DICOM", raising=False)  # as where no file was read before
    monkeypatch.setattr(Image, "ID", [name for name in Image.ID if name != "DICOM"])
    assert message_of(read_image, path, 8, 8) == (
        f"{path} is a DICOM file, which needs a package: pip install 'fedunseen[medical]'"
    )
    assert fault_of(path) in message_of(decode, tmp_path, ["scan"], 8, 8)


@pytest.mark.slow
def test_pillow_alone_does_not_load_pydicom():
    code = (
        "import sys; from fedunseen.data.io import images; from pathlib import Path;"
        "images.is_readable(Path('examples/digit-pairs/47.png')); print('pydicom' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
