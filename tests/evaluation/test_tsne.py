"""t-SNE and silhouettes: few points have places too, and both agree with scikit-learn's."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.manifold import TSNE, trustworthiness
from sklearn.metrics import silhouette_score

from fedunseen.evaluation.tsne import silhouette, tsne

FEW = [np.eye(4), np.arange(5.0)[:, None], np.repeat(np.eye(3), 4, axis=0)]


@pytest.mark.parametrize("points", FEW, ids=["four", "on-a-line", "coincident"])
def test_few_points_points_on_a_line_and_coincident_points_have_places(points):
    places = tsne(points)
    assert places.shape == (len(points), 2)
    assert np.isfinite(places).all()
    assert (tsne(points) == places).all()


def test_the_plane_keeps_neighbors_as_well_as_scikit_learn_does():
    points, labels = (part[:300] for part in load_digits(return_X_y=True))
    places = tsne(points)
    reference = TSNE(init="pca", max_iter=500, random_state=0).fit_transform(points)
    assert trustworthiness(points, places, n_neighbors=10) > trustworthiness(points, reference, n_neighbors=10) - 0.005
    assert silhouette_score(places, labels) > silhouette_score(reference, labels) - 0.05


@pytest.mark.parametrize("single", [False, True], ids=["pairs", "a class of one"])
def test_silhouettes_are_those_of_scikit_learn(single):
    labels = np.repeat([2, 5, 7], 10)
    labels[0] = 9 if single else 2
    points = np.random.default_rng(0).standard_normal((30, 4)) + labels[:, None]
    assert silhouette(points, labels) == pytest.approx(silhouette_score(points, labels), abs=1e-12)
