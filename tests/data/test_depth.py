"""Pictures of more than 8 bits: which value is black and which is white, from a stated place."""

import zlib

import numpy as np
import pytest
from PIL import Image

from fedunseen.core.errors import DataError
from fedunseen.data.benchmarks.image_folder import ImageFolder
from fedunseen.data.io.depth import deep_values, eight_bits, stated
from fedunseen.data.io.images import decode, open_image, read_image, upright
from fedunseen.experiment.picture_depth import Depths, depth_remarks, suited_window
from refusals import message_of

GREY = np.random.default_rng(0).integers(0, 256, (16, 16), dtype=np.uint8)


def saved(folder, array, name="a.png", **how):
    Image.fromarray(array).save(folder / name, **how)
    return folder / name


def shown(path, window=None):
    """The gray levels of a picture, or its channels, as a run reads it at its own size."""
    rgb = read_image(path, 16, 16, window)[0]
    return rgb[0] if (rgb == rgb[0]).all() else rgb.transpose(1, 2, 0)


def close(levels, grey=GREY):
    return np.abs(levels.astype(int) - grey).max() <= 1


@pytest.mark.parametrize("kind", ["png", "tif", "pgm", "jp2"])
def test_sixteen_bits_are_the_whole_range_and_eight_bits_keep_theirs(tmp_path, kind):
    assert (shown(saved(tmp_path, GREY.astype(np.uint16) * 257, f"a.{kind}")) == GREY).all()
    assert (shown(saved(tmp_path, GREY, f"b.{kind}"), (0.0, 9.0)) == GREY).all()


@pytest.mark.parametrize("form", [0, 1], ids=["codestream", "boxes"])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("bits", [10, 12, 16])
def test_jpeg_2000_counts_in_the_units_that_it_stores(tmp_path, bits, signed, form):
    encode = pytest.importorskip("openjpeg.utils").encode_array
    low = -(2 ** (bits - 1)) if signed else 0
    grey = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    values = (grey.astype(np.int64) << (bits - 8)) + low
    stored = values.astype(np.int16 if signed else np.uint16)
    path = tmp_path / "a.jp2"
    path.write_bytes(
        encode(stored, bits_stored=bits, photometric_interpretation=2, codec_format=form)
    )
    with open_image(path) as image:
        said = stated(image)
        assert said.window == (low, low + 2**bits - 1)
        assert (deep_values(image, said) == values).all()
    assert close(read_image(path, 64, 64)[0, 0], grey)
    middle = np.clip(np.rint((values - low - 2**bits / 4) / 2**bits * 510), 0, 255)
    half = (low + 2**bits / 4, low + 2**bits * 3 / 4)
    assert close(read_image(path, 64, 64, half)[0, 0], middle)


@pytest.mark.parametrize("bits", [10, 12, 14])
def test_a_window_shows_what_uses_fewer_bits(tmp_path, bits):
    path = saved(tmp_path, GREY.astype(np.uint16) << (bits - 8))
    assert close(shown(path, (0.0, float(255 << (bits - 8)))))
    assert len(np.unique(shown(path))) <= (1 << (bits - 8)) + 1  # as it is without one


def test_a_window_is_a_line_that_is_clipped_at_its_ends(tmp_path):
    values = np.array([[-1, 0, 999, 1000, 1150, 1399, 1400, 65535]], dtype=np.float64)
    for dtype, low in ((np.uint16, 0), (np.float32, -1)):
        array = np.maximum(values, low).astype(dtype)
        image = Image.open(saved(tmp_path, array, "a.tif"))
        found = np.asarray(eight_bits(image, (1000, 1400)))
        expected = [round(min(max((v - 1000) / 400, 0), 1) * 255) for v in values[0]]
        assert found[0].tolist() == expected


def test_signed_and_white_is_zero_and_twelve_packed_bits(tmp_path):
    signed = np.array([[-32768, -1, 0, 32767]], dtype=np.int16)
    path = tmp_path / "s.tif"
    path.write_bytes(tiff(signed.tobytes(), 4, 1, {258: 16, 339: 2}))
    assert stated(Image.open(path)).window == (-32768, 32767)
    assert np.asarray(eight_bits(Image.open(path))).tolist() == [[0, 127, 128, 255]]
    assert np.asarray(eight_bits(Image.open(path), (-1, 0))).tolist() == [[0, 0, 255, 255]]
    path.write_bytes(tiff(np.array([0, 65535], np.uint16).tobytes(), 2, 1, {258: 16, 262: 0}))
    assert np.asarray(eight_bits(Image.open(path))).tolist() == [[255, 0]]
    path.write_bytes(tiff(bytes([0xFF, 0xF0, 0x00]), 2, 1, {258: 12}))
    assert np.asarray(eight_bits(Image.open(path))).tolist() == [[255, 0]]
    path.write_bytes(tiff(np.array([-128, 127], np.int8).tobytes(), 2, 1, {258: 8, 339: 2}))
    assert np.asarray(upright(Image.open(path)))[0, :, 0].tolist() == [0, 255]
    big = np.array([0, 2**32 - 1], np.uint32)
    path.write_bytes(tiff(big.tobytes(), 2, 1, {258: 32, 339: 1}))
    assert np.asarray(eight_bits(Image.open(path), (0, 2.0**32))).tolist() == [[0, 255]]


def tiff(pixels, width, height, further):
    """An uncompressed TIFF of one strip, its tags written by hand: Pillow writes few kinds."""
    tags = {256: width, 257: height, 259: 1, 262: 1, 273: 0, 277: 1, 278: height,
            279: len(pixels), **further}  # fmt: skip
    tags[273] = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(
        tag.to_bytes(2, "little") + (4).to_bytes(2, "little") + (1).to_bytes(4, "little")
        + value.to_bytes(4, "little")
        for tag, value in sorted(tags.items())
    )  # fmt: skip
    head = b"II*\0" + (8).to_bytes(4, "little") + len(tags).to_bytes(2, "little")
    return head + entries + bytes(4) + pixels


def png16(array, kind):
    """A PNG of 16 bits a channel, which Pillow does not write in color."""

    def chunk(name, content):
        return (
            len(content).to_bytes(4, "big")
            + name
            + content
            + zlib.crc32(name + content).to_bytes(4, "big")
        )

    height, width = array.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in array)
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([16, kind, 0, 0, 0])
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


@pytest.mark.parametrize(("kind", "channels"), [(2, 3), (6, 4), (4, 2)])
def test_color_of_sixteen_bits_keeps_the_lower_eight(tmp_path, kind, channels):
    rng = np.random.default_rng(1)
    bytes_ = rng.integers(0, 256, (16, 16, channels)).astype(np.uint16)
    if channels in (2, 4):
        bytes_[..., -1] = 255
    twelve = bytes_ << 4
    if channels in (2, 4):
        twelve[..., -1] = 65535
    path = tmp_path / "a.png"
    path.write_bytes(png16(twelve, kind))
    colors = bytes_[..., :3] if channels > 2 else np.repeat(bytes_[..., :1], 3, axis=2)
    rgb = read_image(path, 16, 16, (0.0, 4080.0))[0].transpose(1, 2, 0)
    assert np.abs(rgb.astype(int) - colors).max() == 0
    path.write_bytes(png16(bytes_ * 257, kind))
    assert (read_image(path, 16, 16)[0].transpose(1, 2, 0) == colors).all()


@pytest.mark.parametrize("packed", [False, True])
def test_color_tiffs_of_sixteen_bits(tmp_path, packed):
    colors = np.random.default_rng(2).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    pixels = (colors.astype("<u2") << 4).tobytes()
    tags = {258: 16, 262: 2, 277: 3, 259: 8 if packed else 1}
    path = tmp_path / "a.tif"
    path.write_bytes(tiff(zlib.compress(pixels) if packed else pixels, 16, 16, tags))
    assert np.abs(shown(path, (0.0, 4080.0)).astype(int) - colors).max() == 0


def test_the_orientation_and_transparency_of_deep_pictures(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 3
    path = saved(tmp_path, GREY.astype(np.uint16) * 257, exif=exif)
    assert (shown(path) == GREY[::-1, ::-1]).all()
    clear = np.zeros((16, 16, 4), dtype=np.uint16)
    (tmp_path / "b.png").write_bytes(png16(clear, 6))
    assert (shown(tmp_path / "b.png") == 255).all()


def test_numbers_without_a_range_are_refused_with_the_remedy(tmp_path):
    path = saved(tmp_path, GREY.astype(np.float32), "f.tif")
    sentence = message_of(read_image, path, 8, 8)
    assert sentence == (
        f"{path} has more than 16 bits a pixel, and nothing says which value is black and which "
        "is white: set data.window = [black, white], as `fedunseen init` measures them"
    )
    said = message_of(decode, tmp_path, ["f.tif"], 8, 8)
    assert said.startswith(sentence)
    assert said.endswith("data.skip_unreadable = true (1 of 1 cannot be read)")
    assert (shown(path, (0.0, 255.0)) == GREY).all()
    holes = saved(tmp_path, np.full((4, 4), np.nan, dtype=np.float32), "n.tif")
    assert message_of(read_image, holes, 8, 8, (0.0, 1.0)) == (
        f"{holes} holds values that are not finite: save it without them"
    )


def test_pictures_of_which_little_is_left_are_noted_in_the_cache(tmp_path, own_cache):
    narrow = (1000 + GREY * (399 / 255)).round().astype(np.uint16)
    saved(tmp_path, narrow, "a.png")
    saved(tmp_path, GREY, "b.png")
    saved(tmp_path, np.where(GREY > 127, 65535, 0).astype(np.uint16), "c.png")  # a real mask
    files = ["a.png", "b.png", "c.png"]
    for _ in range(2):  # decoded, then from the cache
        found = decode(tmp_path, files, 16, 16)
        assert (found.few_levels, found.windows) == ([0], {"bit depth": 2})
        assert len(np.unique(found.images[0])) == 2
        found = decode(tmp_path, files, 16, 16, window=(1000, 1399))
        assert (found.few_levels, found.windows) == ([], {"data.window": 2})
        assert close(found.images[0][0])


def depths(folder):
    found = Depths()
    for path in sorted(folder.iterdir()):
        with open_image(path) as image:
            found.add(path, image)
    return found


def test_the_window_of_a_folder_is_percentiles_of_its_values(tmp_path):
    pooled = []
    for i in range(5):
        values = np.random.default_rng(i).normal(2000, 300, (32, 32)).clip(0, 4095)
        saved(tmp_path, values.astype(np.uint16), f"{i}.png")
        pooled.append(values.astype(np.uint16))
    low, high = suited_window(depths(tmp_path))
    expected = np.percentile(pooled, [0.5, 99.5])
    assert (low, high) == (np.floor(expected[0]), np.ceil(expected[1]))
    (only,) = depth_remarks(depths(tmp_path), (low, high))
    assert only.what == "5 pictures of more than 8 bits"
    lost = depth_remarks(depths(tmp_path), None)[-1]
    assert lost.what == "look at the window"
    assert f"such as {tmp_path / '0.png'} and {tmp_path / '1.png'}" in lost.why


def test_pictures_that_use_their_bits_need_no_window(tmp_path):
    saved(tmp_path, GREY.astype(np.uint16) * 257)
    assert suited_window(depths(tmp_path)) is None
    saved(tmp_path, GREY, "b.png")
    mixed = depth_remarks(depths(tmp_path), None)
    assert [remark.what for remark in mixed] == [
        "1 picture of more than 8 bits", "look at the depths of pictures",
    ]  # fmt: skip
    assert f"1 of 8 bits such as {tmp_path / 'b.png'}" in mixed[1].why


@pytest.mark.parametrize("window", [(5, 5), (5, 1), (0, float("inf")), (float("nan"), 1)])
def test_a_window_is_a_range(tmp_path, window):
    with pytest.raises(ValueError, match="no range"):
        ImageFolder.Settings(root=tmp_path, window=window)


def test_frames_of_a_tiff_are_samples_of_one_side_of_the_split(tmp_path):
    pages = [Image.new("L", (8, 8), 10 * i) for i in range(4)]
    for name in ("cat", "dog"):
        for i in range(5):
            (tmp_path / name).mkdir(exist_ok=True)
            pages[0].save(tmp_path / name / f"{i}.tif", save_all=True, append_images=pages[1:])
    (tmp_path / "classes.csv").write_text("name,split,a\ncat,seen,1\ndog,seen,2\nelk,unseen,3\n")
    settings = ImageFolder.Settings(root=tmp_path, size=8, resize=8, frames="each")
    listing = ImageFolder.listing(settings, 0)
    assert len(listing.files) == 40
    sides = {file: {bool(t) for f, t in zip(listing.files, listing.test, strict=True) if f == file}
             for file in listing.files}  # fmt: skip
    assert all(len(side) == 1 for side in sides.values())
    assert listing.test.sum() == 8  # two files of ten
    assert listing.name_of(2) == "cat/0.tif[2]"
    decoded = listing.decode(np.arange(4), settings, skip=False)
    assert decoded.images[:, 0, 0, 0].tolist() == [0, 10, 20, 30]
    assert ImageFolder.read(tmp_path / "cat" / "0.tif", settings)[:, 0, 0, 0].tolist() == [
        0,
        10,
        20,
        30,
    ]
    one = ImageFolder.Settings(root=tmp_path, size=8, resize=8)
    assert len(ImageFolder.listing(one, 0).files) == 10


def test_what_is_damaged_is_refused(tmp_path):
    for content in (b"", b"II*\0", tiff(b"", 16, 16, {258: 16}), png16(np.zeros((2, 2)), 0)[:45]):
        (tmp_path / "a.img").write_bytes(content)
        with pytest.raises(DataError):
            read_image(tmp_path / "a.img", 8, 8, (0.0, 1.0))
