"""Places of real photos: hiding what speaks for an answer lowers its score."""

import numpy as np
import pytest
from PIL import Image

from fedunseen import load_run
from photo_runs import ANIMALS, SIDE, tiles

pytestmark = pytest.mark.slow

EACH = 4  # photos of a class
TURNS = 3  # quarters that are drawn for a photo


def hidden(picture, places):
    """Return a picture (3, side, side) with some places of a map in its mean color."""
    mask = Image.fromarray(places.astype(np.uint8)).resize((SIDE, SIDE), Image.Resampling.NEAREST)
    covered = picture.copy()
    covered[:, np.asarray(mask) > 0] = picture.mean((1, 2)).astype(np.uint8)[:, None]
    return covered


def test_hiding_the_hottest_quarter_lowers_a_score_more_than_hiding_a_random_one(photos, real_data):
    done = load_run(photos)
    model = done.model
    pictures = np.stack(
        [
            np.moveaxis(np.asarray(tile), -1, 0)
            for name in ANIMALS
            for tile in tiles(real_data, name, EACH, first=500)
        ]
    )
    rows = done.encoded(pictures)
    found = model.explain(rows, maps=done.maps_of(pictures))
    scores = model.scores(rows)
    np.testing.assert_allclose([one.places.score for one in found], scores.max(1), atol=1e-6)
    rounding = [abs(one.places.rounding) for one in found]
    assert max(rounding) < 0.05 * np.ptp(scores)

    answers = scores.argmax(1)

    def lost(quarters):
        covered = np.stack([hidden(*each) for each in zip(pictures, quarters, strict=True)])
        after = model.scores(done.encoded(covered))
        return (scores - after)[np.arange(len(rows)), answers]

    rng = np.random.default_rng(0)
    hottest = [one.places.hottest() for one in found]
    side = len(hottest[0])
    most = lost(hottest)
    drawn = [
        lost([rng.permutation(quarter.ravel()).reshape(side, side) for quarter in hottest])
        for _ in range(TURNS)
    ]
    moved = [
        lost([np.roll(quarter, rng.integers(side, size=2), (0, 1)) for quarter in hottest])
        for _ in range(TURNS)
    ]
    assert np.median(most - np.median(drawn, axis=0)) > 0
    assert np.median(most - np.median(moved, axis=0)) > 0
    assert np.median(most) > 1.2 * np.median(drawn)
