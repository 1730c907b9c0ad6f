"""The embedding of a report: few points have places too."""

import numpy as np
import pytest

from fedunseen.tasks.zero_shot_summary import embed

FEW = [np.eye(4), np.arange(5.0)[:, None], np.repeat(np.eye(3), 4, axis=0)]


@pytest.mark.parametrize("points", FEW, ids=["four", "on-a-line", "coincident"])
def test_few_points_points_on_a_line_and_coincident_points_have_places(points):
    places = embed(points)
    assert places.shape == (len(points), 2)
    assert np.isfinite(places).all()
    assert (embed(points) == places).all()


def test_neighbors_are_of_the_same_class():
    labels = np.repeat([0, 1, 2], 10)
    random = np.random.default_rng(0)
    places = embed(random.standard_normal((3, 12))[labels] * 20 + random.standard_normal((30, 12)))
    distances = np.linalg.norm(places[:, None] - places, axis=-1) + np.diag(np.full(30, np.inf))
    assert (labels[distances.argmin(axis=1)] == labels).all()
