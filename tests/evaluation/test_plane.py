"""Pictures of the plane have a place for each point, and silhouettes are scikit-learn's."""

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.metrics import silhouette_score

from fedunseen.evaluation.plane import plane, silhouette

FEW = [np.eye(4), np.arange(5.0)[:, None], np.repeat(np.eye(3), 4, axis=0)]


@pytest.mark.parametrize("kind", ["pca", "tsne"])
@pytest.mark.parametrize("points", FEW, ids=["four", "on-a-line", "coincident"])
def test_few_points_points_on_a_line_and_coincident_points_have_places(points, kind):
    places = plane(points, kind)
    assert places.shape == (len(points), 2)
    assert np.isfinite(places).all()
    assert (plane(points, kind) == places).all()


def test_principal_components_are_those_of_scikit_learn():
    points = np.random.default_rng(0).standard_normal((50, 6)) * np.arange(1, 7)
    np.testing.assert_allclose(
        np.abs(plane(points, "pca")), np.abs(PCA(2).fit_transform(points)), atol=1e-4
    )


def test_t_sne_keeps_neighbors_of_the_same_class():
    labels = np.repeat([0, 1, 2], 10)
    random = np.random.default_rng(0)
    places = plane(
        random.standard_normal((3, 12))[labels] * 20 + random.standard_normal((30, 12)), "tsne"
    )
    distances = np.linalg.norm(places[:, None] - places, axis=-1) + np.diag(np.full(30, np.inf))
    assert (labels[distances.argmin(axis=1)] == labels).all()


@pytest.mark.parametrize("single", [False, True], ids=["pairs", "a class of one"])
def test_silhouettes_are_those_of_scikit_learn(single):
    labels = np.repeat([2, 5, 7], 10)
    labels[0] = 9 if single else 2
    points = np.random.default_rng(0).standard_normal((30, 4)) + labels[:, None]
    assert silhouette(points, labels) == pytest.approx(silhouette_score(points, labels), abs=1e-12)
