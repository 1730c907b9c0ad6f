import math

import numpy as np
import pytest
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from fedunseen.report.statistics import agreement, attribute_order, holding_order, leaf_order, row_scaled


def test_every_cluster_of_scipy_s_average_linkage_stands_together():
    alike = np.corrcoef(np.random.default_rng(0).normal(size=(30, 6)))
    with_unknown = np.pad(alike, (0, 1), constant_values=np.nan)
    place = np.argsort(leaf_order(with_unknown))
    assert place[30] == 30
    assert np.argsort(leaf_order(alike)).tolist() == place[:30].tolist()
    assert leaf_order(np.eye(2)).tolist() == [0, 1]
    clusters = [[c] for c in range(30)]
    for i, j, _, size in linkage(squareform(1 - alike, checks=False), "average"):
        clusters.append(clusters[int(i)] + clusters[int(j)])
        assert np.ptp(place[clusters[-1]]) == size - 1


def test_agreement_uses_only_what_both_know():
    rng = np.random.default_rng(1)
    a, b = (np.corrcoef(rng.normal(size=(12, 5))) for _ in range(2))
    b[3] = b[:, 3] = np.nan
    kept = [i for i in range(12) if i != 3]
    pairs = [(a[i, j], b[i, j]) for i in kept for j in kept if i < j]
    assert agreement(a, b) == pytest.approx(np.corrcoef(np.array(pairs).T)[0, 1])
    assert math.isnan(agreement(np.eye(2), np.eye(2)))
    assert math.isnan(agreement(np.ones((5, 5)), a[:5, :5]))


def test_holding_order_makes_blocks_and_keeps_unheld_classes_last():
    counts = np.array([[0, 5, 0, 1, 0, 0], [4, 0, 0, 3, 0, 0]])
    order, held, idle = holding_order(counts, np.array([2, 5]))
    assert order.tolist() == [1, 0, 3, 4, 2, 5]
    assert (held, idle) == (3, 1)


def test_row_scaled_takes_out_level_and_length_of_every_row():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(6, 6))
    other = values * rng.uniform(0.1, 9, (6, 1)) + rng.normal(size=(6, 1))
    np.testing.assert_allclose(row_scaled(other), row_scaled(values))
    assert np.abs(row_scaled(values)).max(axis=1) == pytest.approx(np.ones(6))
    assert (row_scaled(values).argmax(axis=1) == values.argmax(axis=1)).all()


def test_attributes_stand_group_by_group_and_each_once():
    groups = {"b": (4, 1), "none": (), "a": (0,)}
    order, sizes = attribute_order(groups, 7)
    assert order.tolist() == [4, 1, 0, 2, 3, 5, 6]
    assert sizes == [("b", 2), ("a", 1), ("", 4)]
    order, sizes = attribute_order({}, 3)
    assert (order.tolist(), sizes) == ([0, 1, 2], [])
    assert attribute_order({"all": (1, 0)}, 2)[1] == [("all", 2)]
