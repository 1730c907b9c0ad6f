import json
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from fedunseen.core.errors import DataError
from fedunseen.data.io.images import (
    Decoded,
    decode,
    decoded_bytes,
    fault_of,
    list_images,
    read_image,
    square,
)
from published_layouts import write_image
from refusals import message_of


def protocol(picture, size, resize):
    """The usual protocol, word for word: resize the shorter side, then cut out the centre."""
    width, height = picture.size
    short = min(width, height)
    new = (int(resize * width / short), int(resize * height / short))
    picture = picture.resize(new, Image.Resampling.BILINEAR)
    left, top = round((new[0] - size) / 2.0), round((new[1] - size) / 2.0)
    return np.asarray(picture.crop((left, top, left + size, top + size))).transpose(2, 0, 1)


@pytest.mark.parametrize(
    "shape", [(300, 200), (200, 300), (64, 64), (17, 230), (500, 499), (40, 31)]
)
@pytest.mark.parametrize(("size", "resize"), [(56, 64), (32, 32), (41, 63)])
def test_the_protocol_is_the_usual_one(shape, size, resize):
    picture = Image.fromarray(
        np.random.default_rng(0).integers(0, 256, (*shape[::-1], 3), dtype=np.uint8)
    )
    ours, theirs = square(picture, size, resize), protocol(picture, size, resize)
    assert (ours.shape, ours.dtype) == ((3, size, size), np.uint8)
    assert (
        np.abs(ours.astype(int) - theirs).max() <= 1
    )  # one gray level: rounding of the crop's place


def test_a_long_strip_is_not_blown_up_and_a_box_is_the_part_that_counts():
    strip = Image.new(
        "RGB", (1, 200_000), "red"
    )  # resized whole, it would have 256 x 51,200,000 pixels
    assert (square(strip, 224, 256)[0] == 255).all()
    picture = Image.new("RGB", (30, 20), "black")
    picture.paste("red", (10, 5, 20, 15))
    assert (square(picture, 8, 8, (10, 5, 20, 15))[0] == 255).all()
    beyond = square(
        picture, 8, 8, (-5, 5, 20, 15)
    )  # cut off at the edge: 20 x 10, of which the middle counts
    assert beyond[0, 4].tolist() == square(picture.crop((0, 5, 20, 15)), 8, 8)[0, 4].tolist()
    said = message_of(square, picture, 8, 8, (40, 0, 50, 5), error=ValueError)
    assert said == "the box (40, 0, 50, 5) lies outside of the image"


UNDO = (
    None,
    "FLIP_LEFT_RIGHT",
    "ROTATE_180",
    "FLIP_TOP_BOTTOM",
    "TRANSPOSE",
    "ROTATE_90",
    "TRANSVERSE",
    "ROTATE_270",
)


@pytest.mark.parametrize(("turn", "undo"), list(enumerate(UNDO, 1)))
def test_the_orientation_of_the_camera_is_respected(tmp_path, turn, undo):
    upright = Image.new("RGB", (40, 40), "black")
    upright.paste("red", (0, 0, 20, 20))  # top left
    exif = Image.Exif()
    exif[0x0112] = turn
    (upright if undo is None else upright.transpose(Image.Transpose[undo])).save(
        tmp_path / "turned.png", exif=exif
    )
    red = read_image(tmp_path / "turned.png", 8, 8)[0, 0]
    assert (red[:3, :3] == 255).all()
    assert not red[5:].any()
    assert not red[:, 5:].any()


def test_every_mode_becomes_rgb_transparent_parts_white_and_only_the_first_frame_counts(tmp_path):
    def read(picture, kind="png", **how):
        picture.save(tmp_path / f"a.{kind}", **how)
        return read_image(tmp_path / f"a.{kind}", 16, 16)[0].astype(int)

    clear = Image.new("RGBA", (16, 16), (10, 20, 30, 0))
    clear.paste((200, 0, 0, 255), (0, 0, 8, 16))
    assert read(clear)[:, 8, [2, 14]].T.tolist() == [[200, 0, 0], [255, 255, 255]]
    palette = Image.new("P", (16, 16), 1)
    palette.putpalette([9, 9, 9, 0, 0, 255])
    assert (read(palette, transparency=1) == 255).all()
    assert (read(Image.new("LA", (16, 16), (50, 0))) == 255).all()
    assert (read(Image.new("1", (16, 16), 1)) == 255).all()
    assert (read(Image.fromarray(np.full((16, 16), 32768, dtype=np.uint16))) == 128).all()
    assert (
        np.abs(
            read(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "jpg")[:, 4, 4] - [255, 0, 0]
        ).max()
        <= 4
    )
    red, blue = (Image.new("RGB", (16, 16), color) for color in ("red", "blue"))
    assert read(red, "gif", save_all=True, append_images=[blue])[:, 0, 0].tolist() == [255, 0, 0]


@pytest.fixture
def folder(tmp_path):
    """Ten pictures of several shapes."""
    for i in range(10):
        write_image(tmp_path / "in" / "sub" / f"{i}.png", i, (20 + i, 30 - i))
    return tmp_path / "in"


FILES = [f"sub/{i}.png" for i in range(10)]


def test_pictures_are_decoded_once(folder, own_cache, monkeypatch):
    read = np.concatenate([read_image(folder / file, 8, 9) for file in FILES])
    expected = Decoded(read, [], [], {})
    np.testing.assert_equal(decode(folder, FILES, 8, 9), expected)
    monkeypatch.setattr(Image, "open", lambda *_: pytest.fail("opened again"))
    again = decode(folder, FILES, 8, 9)
    np.testing.assert_equal(again, expected)
    assert isinstance(again[0], np.memmap)
    again[0][0] = 7  # a scratch pad of this process
    np.testing.assert_equal(decode(folder, FILES, 8, 9), expected)
    assert (
        sum(path.stat().st_size for path in own_cache.rglob("*.npy")) == decoded_bytes(10, 8) + 128
    )


def test_what_changes_the_pixels_changes_the_file(folder, own_cache):
    same, boxes = (FILES, 8, 9), [(0, 0, 10, 10)] * 10
    changes = (same, (FILES, 8, 10), (FILES, 9, 9), (FILES[::-1], 8, 9), (*same, False, boxes))
    for count, given in enumerate(changes, 1):
        decode(folder, *given)
        decode(folder, *same)
        assert len(list(own_cache.rglob("*.npy"))) == count
    write_image(folder / FILES[3], 99, (23, 27))
    os.utime(folder / FILES[3], ns=(1, 1))
    assert np.array_equal(decode(folder, FILES, 8, 9)[0][3:4], read_image(folder / FILES[3], 8, 9))
    shutil.move(folder, folder.with_name("moved"))
    decode(folder.with_name("moved"), FILES, 8, 9)  # another place, the same pictures
    assert len(list(own_cache.rglob("*.npy"))) == 6


def spoil(folder):
    (folder / FILES[2]).write_bytes(b"no picture")
    os.truncate(folder / FILES[5], (folder / FILES[5]).stat().st_size // 2)
    (folder / FILES[7]).write_bytes(b"")


def test_unreadable_pictures_are_named_and_counted(folder, monkeypatch):
    spoil(folder)
    said = message_of(decode, folder, FILES, 8, 9)
    assert said.startswith(f"{folder / FILES[2]} is not a readable image (3 of 10 are not): fix or")
    for i in (2, 5):
        assert "is not a readable image: give another file" in message_of(
            read_image, folder / FILES[i], 8, 9
        )
    right = read_image(folder / FILES[3], 8, 9)
    monkeypatch.setattr(Image, "open", lambda *_: pytest.fail("decoded again"))
    images, unreadable, *_ = decode(folder, FILES, 8, 9, skip=True)
    assert unreadable == [2, 5, 7]
    assert not images[unreadable].any()
    assert np.array_equal(images[3:4], right)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_whatever_is_broken_in_a_picture_it_is_unreadable_at_most(tmp_path):
    """Bits turned and ends cut off: Pillow answers with many kinds of exceptions, and none of them
    may get through.
    """
    random = np.random.default_rng(0)
    picture = Image.fromarray(random.integers(0, 256, (20, 30, 3), dtype=np.uint8))
    outcomes = set()
    suffixes = {".jpg", ".png", ".gif", ".webp", ".tiff", ".bmp", ".ico", ".jp2", ".avif"}
    for suffix in sorted(suffixes & set(Image.registered_extensions())):
        picture.save(tmp_path / f"whole{suffix}")
        whole = (tmp_path / f"whole{suffix}").read_bytes()
        for i in range(40):
            broken = bytearray(whole[: random.integers(1, len(whole)) if i % 3 == 0 else None])
            for place in random.integers(0, min(len(broken), 200 if i % 2 else len(broken)), 3):
                broken[place] = random.integers(0, 256)
            (tmp_path / "broken").write_bytes(broken)
            try:
                outcomes.add(read_image(tmp_path / "broken", 8, 9).shape)
            except DataError as error:
                outcomes.add(str(error))
    outcomes.discard(
        f"{tmp_path / 'broken'} has too many pixels to be read: make it smaller"
    )  # a broken header
    unreadable = f"{tmp_path / 'broken'} is not a readable image: give another file, or save it as PNG or JPEG"
    assert outcomes == {(1, 3, 8, 8), unreadable}


def test_a_decompression_bomb_is_unreadable(folder, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert "0.png is not a readable image (10 of 10 are not)" in message_of(
        decode, folder, FILES, 8, 9
    )
    said = message_of(read_image, folder / FILES[0], 8, 9)
    assert said == f"{folder / FILES[0]} has too many pixels to be read: make it smaller"


def test_an_interrupt_leaves_nothing_half_decoded(folder, own_cache, monkeypatch):
    def stop(path):
        if path == folder / FILES[6]:
            raise KeyboardInterrupt
        return Image.open(path)

    right, *_ = decode(folder, FILES, 8, 9)
    shutil.rmtree(own_cache)
    with monkeypatch.context() as patch:
        patch.setattr(
            "fedunseen.data.io.images.BLOCK", 4
        )  # the first block is written, the second is stopped
        patch.setattr("fedunseen.data.io.images.open_image", stop)
        message_of(decode, folder, FILES, 8, 9, error=KeyboardInterrupt)
    assert [path for path in own_cache.rglob("*") if path.is_file()] == []
    np.testing.assert_array_equal(decode(folder, FILES, 8, 9)[0], right)


def test_a_missing_picture_is_never_left_out(folder):
    for i in (1, 4):
        (folder / FILES[i]).unlink()
    for skip in (False, True):
        said = message_of(decode, folder, FILES, 8, 9, skip=skip)
        assert said.startswith(
            f"{folder / FILES[1]} is missing (2 of 10 images are): unpack the images"
        )
    assert (
        message_of(read_image, folder / FILES[1], 8, 9)
        == f"{folder / FILES[1]} is missing: correct its name"
    )


def test_a_damaged_cache_is_made_anew(folder, own_cache):
    spoil(folder)
    right = decode(folder, FILES, 8, 9, skip=True)[0].copy()
    (record,), (array,) = own_cache.rglob("*.json"), own_cache.rglob("*.npy")
    for damage in (
        lambda: array.write_bytes(array.read_bytes()[:200]),
        lambda: array.write_bytes(b""),
        lambda: np.save(array, np.zeros((3, 3))),
        record.unlink,
        lambda: record.write_text("{"),
        lambda: record.write_text(json.dumps({"other": 1})),
    ):
        damage()
        found = Decoded(right, [2, 5, 7], [], {})
        np.testing.assert_equal(decode(folder, FILES, 8, 9, skip=True), found)


def test_every_file_of_a_class_counts(tmp_path):
    counted = ["a.JPEG", "b.jpg", "deep/er/c.png", "odd.xyz"]
    for name in (
        "only/.hidden/y.jpg",
        *counted[::-1],
        "Thumbs.db",
        ".hidden.jpg",
        ".cache/x.jpg",
        "desktop.ini",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list_images(tmp_path) == counted


def test_an_empty_file_is_no_image(tmp_path):
    empty = tmp_path / "empty.png"
    empty.touch()
    assert fault_of(empty) == "is not a readable image"
