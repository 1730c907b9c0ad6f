"""Pictures that are small and take long: refused by what decoding them would go over, which is
counted before.
"""

import io
import os
import struct
import subprocess
import sys
import tomllib
import tracemalloc
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from packaging.requirements import Requirement
from PIL import EpsImagePlugin, Image

from fedunseen.core.errors import DataError
from fedunseen.data.io import decoding_cost
from fedunseen.data.io.decoding_cost import decoded_pixels
from fedunseen.data.io.images import ImageBytes, decode, open_image, read_image
from fedunseen.pages import photo_export
from fedunseen.pages.serve import uploads
from fedunseen.pages.serve.uploads import TooLargeError, Upload
from refusals import message_of

SIDE = 64


def saved(kind, mode="RGB", **settings):
    values = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).convert(mode).save(file, kind, **settings)
    return file.getvalue()


def with_scans(count, progressive=True):
    """Return a JPEG whose last scan comes so often that it has ``count`` of them."""
    content = saved("JPEG", "YCbCr", progressive=progressive)
    last = content.rindex(b"\xff\xda")
    more = count - content.count(b"\xff\xda")
    return content[:-2] + content[last:-2] * more + content[-2:]


def tiff_of(jpeg, tiles=1, size=None):
    """Return a TIFF of strips that all are the same JPEG."""
    high, place = SIDE // tiles, 8 + len(jpeg) + len(jpeg) % 2
    lists = {273: [8] * tiles, 279: [len(jpeg) if size is None else size] * tiles}
    tags = {256: SIDE, 257: SIDE, 259: 7, 262: 6, 277: 3, 278: high, 530: 2 | 2 << 16}
    entries, values = [], struct.pack("<HHH", 8, 8, 8)
    after = place + 2 + 12 * (len(tags) + len(lists) + 1) + 4
    entries.append((258, 3, 3, after))
    for tag, many in lists.items():
        entries.append((tag, 4, tiles, many[0] if tiles == 1 else after + len(values)))
        values += struct.pack(f"<{tiles}I", *many)
    entries += [(tag, 3, 2 if tag == 530 else 1, value) for tag, value in tags.items()]
    packed = b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    count = struct.pack("<H", len(entries))
    padded = jpeg.ljust(place - 8, b"\0")
    return b"II*\0" + struct.pack("<I", place) + padded + count + packed + bytes(4) + values


def work(content):
    with open_image(ImageBytes(content, "a")) as picture:
        return decoded_pixels(picture, content)


@pytest.mark.parametrize("progressive", [True, False])
def test_each_scan_counts(progressive, monkeypatch):
    ordinary = with_scans(10 if progressive else 1, progressive)
    many = with_scans(99, progressive)
    assert work(ordinary) == SIDE**2
    assert work(many) == SIDE**2 * 99 // decoding_cost.SCANS
    monkeypatch.setattr(uploads, "MOST_PIXELS", 3 * SIDE**2)
    assert Upload("a.jpg", ordinary).picture[1] == SIDE**2
    file, _ = Upload("a.jpg", ordinary).picture
    assert read_image(file, 8, 9).std() > 1  # and is read
    why = message_of(lambda: Upload("a.jpg", many).picture, error=TooLargeError)
    assert (
        why
        == f"a.jpg has {SIDE**2 * 99 // 24:,} pixels, more than {3 * SIDE**2:,}: make it smaller"
    )


def test_a_folder_keeps_progressive_pictures_and_refuses_many_scans(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDUNSEEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", SIDE**2)
    loads = counted(monkeypatch, Image.Image, "resize")
    (tmp_path / "a.jpg").write_bytes(with_scans(10))
    (tmp_path / "b.jpg").write_bytes(with_scans(99))
    images, unreadable, *_ = decode(tmp_path, ["a.jpg", "b.jpg"], 8, 9, skip=True)
    assert unreadable == [1]
    assert images[0].std() > 1
    assert len(loads) == 1
    assert "has too many pixels" in message_of(read_image, tmp_path / "b.jpg", 8, 9)


def test_scans_of_a_tiff_count_by_its_tiles():
    plain = saved("JPEG", "YCbCr")
    assert work(tiff_of(plain)) == SIDE**2
    assert work(tiff_of(with_scans(240))) == 10 * SIDE**2
    for shared in (tiff_of(plain, 4), tiff_of(plain, 4, 0)):
        with pytest.raises(ValueError, match="tiles that share their bytes"):
            work(shared)


def tiff_of_pages(*sides):
    file = io.BytesIO()
    first, *others = (Image.new("RGB", (side, side), (9, 99, 199)) for side in sides)
    first.save(file, "TIFF", save_all=True, append_images=others, compression="tiff_lzw")
    return file.getvalue()


def test_all_pages_of_a_tiff_count_by_their_own_size_where_each_is_a_sample(monkeypatch):
    """A service decodes them all. It once took the size of each for that of the first."""
    monkeypatch.setattr(uploads, "MOST_PIXELS", SIDE**2)
    read = []

    def answer(each, *sides):
        frames = 1 if each is False else len(sides)
        model = SimpleNamespace(
            kind="pictures",
            each_frame=each,
            read=lambda file: read.append(file) or np.zeros((frames, 3)),
        )
        return uploads.read_files(model, [Upload("a.tif", tiff_of_pages(*sides))])

    half = SIDE // 2
    assert [len(block) for block in answer(True, half, half, half, half)] == [4]
    assert [len(block) for block in answer(False, half, SIDE, 4 * SIDE)] == [1]  # reads the first
    assert len(read) == 2
    for sides in ((half, half, half, half, 8), (8, SIDE), (8, *[half] * 4)):
        why = message_of(answer, True, *sides, error=TooLargeError)
        assert f"the pictures have more than {SIDE**2:,} pixels" in why
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", SIDE**2)
    assert "a.tif has more than" in message_of(answer, True, 8, 2 * SIDE, error=TooLargeError)
    assert len(read) == 2


def test_a_folder_refuses_the_pages_of_a_tiff_that_are_too_large(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDUNSEEN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.tif").write_bytes(tiff_of_pages(8, SIDE, 2 * SIDE))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", SIDE**2)
    of_each = ["a.tif"] * 3, 8, 9, True, None, None, [0, 1, 2]
    images, unreadable, *_ = decode(tmp_path, *of_each)
    assert unreadable == [2]
    assert [len(np.unique(image)) for image in images] == [3, 3, 1]
    assert "has too many pixels" in message_of(read_image, tmp_path / "a.tif", 8, 9, None, True)


def test_scans_count_on_each_page_of_a_tiff(monkeypatch):
    """The first page here has none, as the tag of its compression says."""
    content = tiff_of(with_scans(240))
    page = struct.unpack_from("<I", content, 4)[0]
    small = tiff_of_pages(8)
    start = len(small) + len(small) % 2
    moved = bytearray(small.ljust(start, b"\0") + content)
    at = struct.unpack_from("<I", small, 4)[0]
    after = at + 2 + 12 * struct.unpack_from("<H", small, at)[0]
    struct.pack_into("<I", moved, after, start + page)
    for k in range(struct.unpack_from("<H", content, page)[0]):
        entry = start + page + 2 + 12 * k
        tag, _, _, value = struct.unpack_from("<HHII", moved, entry)
        if tag in (258, 273):
            struct.pack_into("<I", moved, entry + 8, start + value)
    file = Upload("a.tif", bytes(moved))
    assert file.picture[1] == 64
    assert file.pixels_of_frames == 64 + 10 * SIDE**2


def counted(monkeypatch, place, name):
    """Return the list that grows with each call."""
    calls, before = [], getattr(place, name)

    def call(*arguments, **settings):
        calls.append(arguments)
        return before(*arguments, **settings)

    monkeypatch.setattr(place, name, call)
    return calls


def chunk(kind, data=b""):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def between(content, at, more):
    return content[:at] + more + content[at:]


GIF_FRAME = saved("GIF", "L").index(b"\x2c\0\0\0\0")
SEGMENTS = {  # n -> a picture with about n segments
    "png chunks": lambda n: between(saved("PNG"), 33, chunk(b"prVt") * n),
    "png data": lambda n: between(saved("PNG"), 33, chunk(b"IDAT") * n),
    "jpeg markers": lambda n: between(saved("JPEG"), 2, b"\xff\xe5\0\2" * n),
    "jpeg comments": lambda n: between(saved("JPEG"), 2, b"\xff\xfe\0\2" * n),
    "jpeg exif": lambda n: between(saved("JPEG"), 2, b"\xff\xe1\0\x09Exif\0\0x" * n),
    "jpeg fill": lambda n: between(saved("JPEG"), 2, b"\xff" * n),
    "jpeg stray": lambda n: between(saved("JPEG"), 2, b"\xff\xe5\0\2" + b"x" * n),
    "jpeg bare": lambda n: between(saved("JPEG"), 2, b"\xff\xd0" * n),
    "gif comments": lambda n: between(saved("GIF", "L"), GIF_FRAME, b"\x21\xfe\x01a\0" * (n // 2)),
    "gif blocks": lambda n: between(
        saved("GIF", "L"), GIF_FRAME, b"\x21\xfe" + b"\x01a" * n + b"\0"
    ),
    "gif stray": lambda n: between(saved("GIF", "L"), GIF_FRAME, b"x" * n),
}


@pytest.mark.parametrize("name", SEGMENTS)
def test_many_segments_are_refused_before_pillow_handles_one(name, monkeypatch):
    monkeypatch.setattr(decoding_cost, "SEGMENTS", 200)
    opened = counted(monkeypatch, Image, "open")
    assert read_image(ImageBytes(SEGMENTS[name](100), "a"), 8, 9).std() > 1
    assert len(opened) == 1
    many = SEGMENTS[name](260)
    assert "a is not a readable image" in message_of(read_image, ImageBytes(many, "a"), 8, 9)
    why = message_of(lambda: Upload("a.png", many).picture)
    assert "a.png is not a readable image" in why
    assert len(opened) == 1


@pytest.mark.parametrize(("parts", "size", "taken"), [(143, 65_000, True), (20_000, 140, False)])
def test_parts_of_exif_data_count_by_what_pillow_copies(parts, size, taken, monkeypatch):
    """Pillow copies all parts before with each further one: 63,000 of them took 9 s in 9 MB."""
    opened = counted(monkeypatch, Image, "open")
    part = b"\xff\xe1" + (size + 8).to_bytes(2, "big") + b"Exif\0\0" + b"x" * size
    picture = ImageBytes(between(saved("JPEG"), 2, part * parts), "a")
    if taken:
        assert read_image(picture, 8, 9).std() > 1
    else:
        assert "a is not a readable image" in message_of(read_image, picture, 8, 9)
    assert len(opened) == taken


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("big", [False, True])
def test_many_tiles_are_refused_before_pillow_handles_one(order, big, monkeypatch):
    """The directory comes first, since nothing is read of the strips."""

    def tiff(strips):
        mark = b"II" if order == "<" else b"MM"
        if big:
            head = mark + struct.pack(order + "HHHQ", 43, 8, 0, 16)
            return head + struct.pack(order + "QHHQQ", 1, 273, 4, strips, 0) + bytes(8)
        return mark + struct.pack(order + "HIHHHII", 42, 8, 1, 273, 4, strips, 0) + bytes(4)

    opened = counted(monkeypatch, Image, "open")
    for strips, calls in ((decoding_cost.SEGMENTS, 1), (decoding_cost.SEGMENTS + 1, 1)):
        message_of(read_image, ImageBytes(tiff(strips), "a"), 8, 9)
        assert len(opened) == calls


def chain(count, mark, big, loop=False):
    """Return a TIFF of so many directories of one strip: of one pixel, all the same."""
    order = "<" if mark[:1] == b"I" else ">"
    offset, head, last = ("Q", "Q", "HHQQ") if big else ("I", "H", "HHII")
    tags = {256: 1, 257: 1, 258: 8, 259: 1, 262: 1, 273: 0, 277: 1, 278: 1, 279: 1}
    entries = [struct.pack(order + last, tag, 16 if big else 4, 1, n) for tag, n in tags.items()]
    directory = struct.pack(order + head, len(entries)) + b"".join(entries)
    size = len(directory) + struct.calcsize(order + offset)
    start = 16 if big else 8
    content = mark + (struct.pack(order + "HHQ", 8, 0, 16) if big else struct.pack(order + "I", 8))
    for i in range(1, count + 1):
        after = start + i * size if i < count else start if loop else 0
        content += directory + struct.pack(order + offset, after)
    return content


@pytest.mark.parametrize(
    ("mark", "big"),
    [
        (b"II\x2a\0", False),
        (b"MM\0\x2a", False),
        (b"II\x2b\0", True),
        (b"MM\0\x2b", False),  # a BigTIFF that Pillow reads as none
    ],
)
def test_directories_of_a_tiff_are_counted_before_pillow_follows_them(mark, big, monkeypatch):
    monkeypatch.setattr(decoding_cost, "DIRECTORIES", 20)
    opened = counted(monkeypatch, Image, "open")
    many = Upload("a.tif", chain(20, mark, big))
    assert (many.picture[1], many.frames, len(opened)) == (1, 20, 1)
    for refused in (chain(21, mark, big), chain(20, mark, big, loop=True)):
        why = message_of(lambda refused=refused: Upload("a.tif", refused).picture)
        assert "a.tif is not a readable image" in why
    monkeypatch.setattr(decoding_cost, "SEGMENTS", 9 * 20 - 1)  # entries of all directories
    message_of(lambda: Upload("a.tif", chain(20, mark, big)).picture)
    assert len(opened) == 1


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM"])
def test_ordinary_pictures_have_few_segments(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(decoding_cost, "SEGMENTS", 40)
    content = saved(kind)
    assert work(content) == SIDE**2
    (tmp_path / "a").write_bytes(content)
    assert np.array_equal(
        read_image(tmp_path / "a", 8, 9), read_image(ImageBytes(content, "a"), 8, 9)
    )


def with_runs(side, runs):
    """Return a BMP in run lengths."""
    sizes = (40, side, side, 1, 8, 1, len(runs), 0, 0, 256, 0)
    head = struct.pack("<IHHI", 14 + 40 + 1024 + len(runs), 0, 0, 14 + 40 + 1024)
    return b"BM" + head + struct.pack("<IiiHHIIiiII", *sizes) + bytes(1024) + runs


def test_run_lengths_count_more_since_python_decodes_them():
    content = with_runs(8, b"\x01\x07" * 500 + b"\0\1")
    assert work(content) == 16 * (8 * 8 + len(content))


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n%%EOF\n"


def test_no_picture_starts_another_program(tmp_path, monkeypatch):
    """Pillow gives EPS to Ghostscript."""
    begun = counted(monkeypatch, EpsImagePlugin.EpsImageFile, "_open")
    path = tmp_path / "a.jpg"
    path.write_bytes(EPS)
    with Image.open(path) as picture:
        assert picture.format == "EPS"
    assert len(begun) == 1
    for source in (path, ImageBytes(EPS, "a")):
        why = message_of(read_image, source, 4, 5, error=DataError)
        assert "is not a readable image" in why
    assert len(begun) == 1


@pytest.mark.slow
def test_an_exported_program_opens_what_the_package_does(tmp_path):
    """Who runs it reads the pictures of others, too."""
    folder = tmp_path / "out"
    folder.mkdir()
    photo_export._write_program(folder)
    (folder / "onnxruntime.py").touch()
    program, started = tmp_path / "gs", tmp_path / "started"
    program.write_text(f"#!/bin/sh\ntouch {started}\n")
    program.chmod(0o755)
    names = ["picture", "eps", "segments", "runs", "missing", "heic", "pipe"]
    (tmp_path / "picture").write_bytes(saved("PNG"))
    (tmp_path / "eps").write_bytes(EPS)
    (tmp_path / "segments").write_bytes(SEGMENTS["png chunks"](decoding_cost.SEGMENTS))
    (tmp_path / "runs").write_bytes(with_runs(4000, b"\0\1"))
    (tmp_path / "heic").write_bytes(b"\0\0\0\x18ftypheic".ljust(200, b"\0"))
    os.mkfifo(tmp_path / "pipe")
    code = f"""
import predict
type(predict.FURTHER[0]).installed = False
about = {{"each_frame": False, "frames": [], "window": None, "size": 4, "resize": 5}}
for name in {names}:
    try:
        print(name, *(pixels.shape for pixels in predict.read(name, about).values()))
    except Exception as error:
        print(name, predict.missing(name) or getattr(error, "strerror", None) or error)
"""
    paths = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    environment = {**os.environ, "PATH": paths, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        "picture (3, 4, 4)",
        "eps cannot identify image file 'eps'",
        "segments more than 65,536 segments",
        "runs too many pixels or scans",
        "missing No such file or directory",
        "heic it needs the package pillow_heif",
        "pipe pipe is not a file",
    ]
    assert not started.exists()


def with_shared_entries(count, size):
    """Return a TIFF of a pixel whose further entries all are the same bytes."""
    place = 8 + 2 + 12 * (count + 8) + 4
    tags = {256: 1, 257: 1, 258: 8, 259: 1, 262: 1, 273: place, 278: 1, 279: 1}
    entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items()]
    entries += [struct.pack("<HHII", 40000 + i, 1, size, place) for i in range(count)]
    head = b"II*\0" + struct.pack("<IH", 8, len(entries))
    return head + b"".join(entries) + bytes(4) + b"\x7f" * size


def in_png(exif):
    content = saved("PNG")
    chunk = b"eXIf" + exif
    added = struct.pack(">I", len(exif)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return content[:33] + added + content[33:]  # after the header


@pytest.mark.filterwarnings("ignore:Tag data larger")
@pytest.mark.parametrize("wrapped", [bytes, in_png])
def test_entries_that_share_their_bytes_are_not_copied_each(wrapped):
    """Pillow before 13 took 3 GB for a TIFF of 4 MB, which `pillow>=10.3` allowed."""
    size = 2**20
    taken = []
    for count in (1, 32):
        content = wrapped(with_shared_entries(count, size))
        tracemalloc.start()
        try:
            read_image(ImageBytes(content, "shared"), 4, 4)
            taken.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert taken[1] < taken[0] + 4 * size


def test_no_older_pillow_is_allowed():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    (needed,) = (each for each in project["project"]["dependencies"] if "pillow" in each)
    assert not Requirement(needed).specifier.contains("12.3.0")
