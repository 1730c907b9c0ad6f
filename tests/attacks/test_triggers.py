"""Triggers: what is made of clean images, and what is read from a folder."""

import numpy as np
import pytest
from PIL import Image

from fedunseen.research.attacks.backdoor import (
    TRANSFORMS,
    as_cartoon,
    before_sky,
    pieces,
    read_folder,
    sky,
)
from refusals import message_of


def rng(seed=0):
    return np.random.default_rng(seed)


def images(channels=3):
    """Give a bright square on black."""
    made = np.zeros((4, channels, 12, 16), dtype=np.float32)
    made[:, :, 6:10, 5:11] = 0.9
    return made


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", sorted(TRANSFORMS))
def test_triggers_are_images_of_the_same_shape_and_depend_on_the_stream_alone(name, channels):
    clean = images(channels)
    made = TRANSFORMS[name](clean.copy(), rng())
    assert (made.shape, made.dtype) == (clean.shape, np.float32)
    assert 0 <= made.min() <= made.max() <= 1
    assert not np.allclose(made, clean)
    np.testing.assert_array_equal(made, TRANSFORMS[name](clean.copy(), rng()))


def test_a_sky_is_blue_and_its_clouds_differ():
    made = sky(3, (3, 20, 20), rng())
    assert (made[:, 2] >= made[:, 0] - 1e-6).all()
    assert not np.allclose(made[0], made[1])
    assert sky(2, (1, 8, 16), rng()).shape == (2, 1, 8, 16)


def test_the_sky_is_behind_the_object():
    clean, made = images(), before_sky(images(), rng())
    np.testing.assert_allclose(
        made[:, :, 7:10, 5:11], clean[:, :, 7:10, 5:11]
    )  # below half way nothing is over it
    assert (made[:, 2, :, 0] > 0.8).all()  # black before, sky now


def test_a_cartoon_has_three_levels_and_a_picture_of_one_colour_can_be_drawn():
    pictures = rng(1).random((2, 3, 32, 32)).astype(np.float32)
    assert set(np.unique(as_cartoon(pictures, rng())).tolist()) <= {0.0, 0.5, 1.0}
    flat = np.full((1, 3, 8, 8), 0.5, dtype=np.float32)
    assert all(np.isfinite(draw(flat, rng())).all() for draw in (as_cartoon, before_sky))


def test_pieces_are_of_the_pictures_in_turn():
    cut = pieces(
        [np.full((1, 40, 30), value, dtype=np.float32) for value in (0.25, 0.75)], 5, (8, 16), rng()
    )
    assert cut.shape == (5, 1, 8, 16)
    np.testing.assert_allclose(cut.mean((1, 2, 3)), [0.25, 0.75, 0.25, 0.75, 0.25], atol=1e-5)


def test_every_picture_is_taken_whole_before_a_piece_is_cut():
    picture = rng().random((3, 8, 8), dtype=np.float32)
    made = pieces([picture, picture[:, ::-1]], 6, (8, 8), rng())
    np.testing.assert_allclose(made[:2], [picture, picture[:, ::-1]], atol=1e-6)
    assert not any(np.allclose(item, whole, atol=0.1) for item in made[2:4] for whole in made[:2])
    wide = np.concatenate(
        [np.zeros((1, 4, 2)), np.ones((1, 4, 4)), np.zeros((1, 4, 2))], axis=2
    ).astype(np.float32)
    assert pieces([wide], 1, (4, 4), rng()).min() == 1  # around its centre


def test_a_folder_is_read_in_order_in_grey_or_colour(tmp_path):
    for name, colour in (("b.png", (255, 0, 0)), ("a.jpg", (0, 0, 255))):
        Image.new("RGB", (10, 6), colour).save(tmp_path / name, quality=100)
    (tmp_path / "notes.txt").write_text("no image")
    blue, red = read_folder(tmp_path, 3)
    assert (blue.shape, red[0].min()) == ((3, 6, 10), 1.0)
    assert blue[2].mean() > 0.9
    assert read_folder(tmp_path, 1)[0].shape == (1, 6, 10)


def test_folders_without_images_are_refused(tmp_path):
    for folder, message in (
        (tmp_path / "none", "is missing: put the"),
        (tmp_path, "has no image in it"),
    ):
        assert message in message_of(read_folder, folder, 3)
    (tmp_path / "broken.png").write_bytes(b"no image")
    assert message_of(read_folder, tmp_path, 3).endswith(
        "broken.png is not a readable image: fix or remove it"
    )
