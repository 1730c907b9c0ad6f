"""t-SNE against its definition and scikit-learn's; silhouettes against scikit-learn's."""

import numpy as np
import pytest

from fedunseen.evaluation.plane import affinities, gradient, silhouette, tsne


@pytest.fixture(scope="module")
def blobs():
    """Three classes of ten points each in twelve dimensions."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 10)
    return rng.standard_normal((3, 12))[labels] * 4 + rng.standard_normal((30, 12)), labels


def squares(points):
    return ((points[:, None] - points[None]) ** 2).sum(-1)


def divergence(place, affine):
    near = 1 / (1 + squares(place))
    np.fill_diagonal(near, 0)
    kept = affine > 0
    return (affine[kept] * np.log(affine[kept] / (near / near.sum())[kept])).sum()


def test_every_point_has_as_many_neighbours_as_the_perplexity_says(blobs):
    points, _ = blobs
    joint = affinities(squares(points), 7.0)
    assert joint.sum() == pytest.approx(1)
    assert (joint == joint.T).all()
    assert (np.diag(joint) == 0).all()
    from sklearn.manifold._t_sne import _joint_probabilities

    theirs = _joint_probabilities(squares(points).astype(np.float32), 7.0, 0)
    assert joint[np.triu_indices(30, 1)] == pytest.approx(theirs, rel=1e-3, abs=1e-7)


def test_the_slope_is_that_of_the_divergence(blobs):
    points, _ = blobs
    joint = affinities(squares(points), 7.0)
    place = np.random.default_rng(1).standard_normal((30, 2))
    slope = gradient(place, joint)
    for i, k in ((0, 0), (7, 1), (29, 0)):
        step = np.zeros_like(place)
        step[i, k] = 1e-5
        difference = (divergence(place + step, joint) - divergence(place - step, joint)) / 2e-5
        assert slope[i, k] == pytest.approx(difference, abs=1e-8)


def test_the_picture_is_as_faithful_as_scikit_learn_s(blobs):
    from sklearn.manifold import TSNE

    points, labels = blobs
    place = tsne(points)
    assert place.shape == (30, 2)
    assert np.isfinite(place).all()
    assert (tsne(points) == place).all()
    joint = affinities(squares(points), 29 / 3)
    exact = TSNE(perplexity=29 / 3, max_iter=500, init="pca", method="exact").fit_transform(points.astype(np.float32))
    assert divergence(place.astype(float), joint) < 1.1 * divergence(exact.astype(float), joint)
    assert silhouette(place.astype(float), labels) > 0.5


@pytest.mark.parametrize("points", [np.eye(4), np.arange(5.0)[:, None], np.repeat(np.eye(3), 4, axis=0)])
def test_few_points_points_on_a_line_and_points_that_coincide_have_places(points):
    assert np.isfinite(tsne(points)).all()


def test_silhouettes_are_scikit_learn_s(blobs):
    from sklearn.metrics import silhouette_score

    points, labels = blobs
    assert silhouette(points, labels) == pytest.approx(silhouette_score(points, labels), abs=1e-12)
    alone = np.where(np.arange(30) == 5, 7, labels)  # a class of one sample
    assert silhouette(points, alone) == pytest.approx(silhouette_score(points, alone), abs=1e-12)
    assert silhouette(points[:, :3] * 0 + 1, labels) == 0
