"""Charts and maps, and the statistics and orders of what they show."""

import base64
import io
import math
import re

import numpy as np
import pytest
from PIL import Image
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from fedunseen.pages.report.charts import Curve, Scale, line_chart, value_chart
from fedunseen.pages.report.maps import class_map, coverage_map, spread
from fedunseen.pages.report.statistics import (
    agreement,
    attribute_order,
    holding_order,
    leaf_order,
    row_scaled,
)
from fedunseen.pages.report.svg import Frame, image_source, ticks

NAN = float("nan")


def image(source):
    return Image.open(io.BytesIO(base64.b64decode(source)))


def points(path):
    return [tuple(map(float, pair)) for pair in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]


def test_a_line_goes_through_its_values():
    x, y = np.arange(1.0, 6.0), np.array([10.0, 40.0, 35.0, 80.0, 60.0])
    drawing = line_chart([Curve(y, "merged", "orange")], "ZSL", x, Scale(100.0))
    drawn = np.array(
        points(re.search(r'class="line" stroke="var\(--orange\)" d="(.*?)"', drawing)[1])
    )
    frame = Frame((1.0, 5.0), (0.0, 100.0))
    assert len(drawn) == 5
    across = (drawn[:, 0] - frame.left) / (frame.width - frame.left - frame.right)
    np.testing.assert_allclose(across, (x - 1) / 4, atol=1e-4)
    up = (frame.height - frame.bottom - drawn[:, 1]) / (frame.height - frame.bottom - frame.top)
    np.testing.assert_allclose(up, y / 100, atol=1e-4)


def test_gaps_are_left_where_nothing_was_measured():
    frame = Frame((0.0, 4.0), (0.0, 1.0))
    x, y = np.arange(5.0), np.array([0.1, NAN, 0.3, 0.4, NAN])
    line = frame.line(x, y)
    assert (line.count("M"), len(points(line)), frame.area(x, y, y + 0.1).count("Z")) == (2, 3, 2)
    assert "nan" not in line_chart([Curve(y, "a", low=y, high=y)], "t", x)


def test_ticks_are_round_and_inside():
    for low, high in ((0, 100), (1, 40), (0, 0.07), (3, 3), (1, 2)):
        found = ticks(low, high)
        assert found
        assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)


def test_an_image_comes_back_from_its_address():
    pixels = np.array([[0.0, 0.5], [1.0, 2.0]])
    assert np.asarray(image(image_source(pixels).partition(",")[2])).tolist() == [
        [0, 128],
        [255, 255],
    ]
    assert image(image_source(np.ones((2, 3, 3))).partition(",")[2]).mode == "RGB"


def test_values_of_a_setting_are_evenly_spaced():
    curves = [
        Curve(np.array([10.0, 40.0, 30.0]), "H", "green"),
        Curve(np.array([20.0, NAN, 60.0]), "ZSL", "orange"),
    ]
    drawing = value_chart(curves, "t", ["0.01", "0.1", "1"], "method.lr")
    said = re.findall("<title>(.*?)</title>", drawing)
    expected = [
        ("H", 10, "0.01"),
        ("H", 40, "0.1"),
        ("H", 30, "1"),
        ("ZSL", 20, "0.01"),
        ("ZSL", 60, "1"),
    ]
    assert sorted(said) == sorted(
        f"{name} method.lr {setting}: {value}.0%" for name, value, setting in expected
    )
    across = sorted({float(x) for x in re.findall(r'<circle[^>]* cx="([\d.]+)" cy="', drawing)})
    assert across[1] - across[0] == pytest.approx(across[2] - across[1], abs=0.02)


def apart(points):
    return np.linalg.norm(points[:, None] - points[None], axis=2)[np.triu_indices(len(points), 1)]


def test_generated_are_circles_and_real_ones_crosses_in_the_color_of_their_class_and_in_one_plane():
    plane, labels = (
        np.random.default_rng(0).normal(size=(60, 2)) * [1.0, 4.0],
        np.repeat([0, 1, 2], 20),
    )
    generated = np.arange(60) % 2 == 0
    drawing = class_map(plane, labels, ["a", "<b>", "c"], "t", generated)
    paths = re.findall(r'class="(\w+)" style="--hue:(\d+)" d="(.*?)"><title>(.*?)</title>', drawing)
    assert [(kind, said) for kind, _, _, said in paths] == [
        (kind, f"{name}, {kind}")
        for name in ("a", "&lt;b&gt;", "c")
        for kind in ("generated", "real")
    ]
    hues = [shade for _, shade, _, _ in paths]
    assert hues[::2] == hues[1::2]
    assert len(set(hues)) == 3
    drawn = np.zeros((60, 2))
    for place, (kind, _, path, _) in enumerate(paths):
        mine = (labels == place // 2) & (generated == (kind == "generated"))
        mark = r"M([\d.]+) ([\d.]+)m-2.6 0a" if kind == "generated" else r"M([\d.]+) ([\d.]+)m-3-3l"
        drawn[mine] = [tuple(map(float, pair)) for pair in re.findall(mark, path)]
    ratio = apart(drawn) / apart(plane)
    assert ratio.std() / ratio.mean() < 0.02  # one plane for both, no distance changed
    named = re.findall(r'class="where"[^>]*x="([\d.]+)" y="([\d.]+)">(.*?)<', drawing)
    assert [name for _, _, name in named] == ["a", "&lt;b&gt;", "c"]
    means = np.array([drawn[(labels == c) & ~generated].mean(axis=0) for c in range(3)])
    np.testing.assert_allclose(
        [[float(x), float(y)] for x, y, _ in named], means + np.array([0, 13 * 0.35]), atol=0.2
    )
    assert "30 generated and 30 real samples of 3 classes" in drawing


def cells(drawing):
    """Return the gray levels of the masks of a raster, by color."""
    sources = re.findall(r'<mask id="(\w+)".*?href="data:image/png;base64,(.*?)"', drawing)
    colors = [
        re.search(rf'fill="var\(--(\w+)\)" mask="url\(#{name}\)"', drawing)[1]
        for name, _ in sources
    ]
    return {
        color: np.asarray(image(source)) / 255
        for color, (_, source) in zip(colors, sources, strict=True)
    }


def test_the_map_of_attributes_shows_values_on_one_scale_and_brackets_groups():
    cover = np.array([[4.0, 1.0, -2.0], [0.0, 2.0, 0.0]])
    drawing = coverage_map(
        cover, ["big", "<old>", "new"], [("size", 1), ("", 2)], ["client 0", "client 1"]
    )
    np.testing.assert_allclose(
        cells(drawing)["blue"], [[1.0, 0.25, 0.0], [0.0, 0.5, 0.0]], atol=0.003
    )
    np.testing.assert_allclose(
        cells(drawing)["orange"], [[0.0, 0.0, 0.5], [0.0, 0.0, 0.0]], atol=0.003
    )
    brackets = re.findall(r'd="M([\d.]+) [\d.]+v5h([\d.]+)v-5"><title>(.*?)</title>', drawing)
    assert [said for _, _, said in brackets] == ["size: 1", "no group: 2"]
    starts, widths = (np.array([float(one[i]) for one in brackets]) for i in (0, 1))
    assert widths[1] + 2 == pytest.approx(2 * (widths[0] + 2), abs=0.05)  # as wide as their columns
    assert starts[1] - starts[0] == pytest.approx(widths[0] + 2, abs=0.05)
    assert "&lt;old&gt;" in drawing
    assert "2 clients and 3 attributes in 2 groups" in drawing
    plain = coverage_map(np.zeros((1, 400)), [], [], ["client 0"])
    assert "nan" not in plain
    assert "bracket" not in plain


def test_no_two_labels_overlap():
    """Thirty labels thrown on a heap: no pair is nearer than their sizes, and a free one stays
    where it was.
    """
    rng = np.random.default_rng(0)
    places, widths = (
        np.vstack([rng.normal(200, 25, (30, 2)), [[5000.0, 5000.0]]]),
        rng.uniform(10, 60, 31),
    )
    placed = spread(places, widths, 12.0)
    one, other = np.triu_indices(31, 1)
    across, down = np.abs(placed[one] - placed[other]).T
    assert ((across >= (widths[one] + widths[other]) / 2 - 1e-3) | (down >= 12 - 1e-3)).all()
    np.testing.assert_array_equal(placed[30], places[30])


def test_every_cluster_of_scipy_s_average_linkage_stands_together():
    alike = np.corrcoef(np.random.default_rng(0).normal(size=(30, 6)))
    place = np.argsort(leaf_order(np.pad(alike, (0, 1), constant_values=np.nan)))
    assert place[30] == 30
    assert np.argsort(leaf_order(alike)).tolist() == place[:30].tolist()
    assert leaf_order(np.eye(2)).tolist() == [0, 1]
    clusters = [[c] for c in range(30)]
    for i, j, _, size in linkage(squareform(1 - alike, checks=False), "average"):
        clusters.append(clusters[int(i)] + clusters[int(j)])
        assert np.ptp(place[clusters[-1]]) == size - 1
    greedy = leaves_list(linkage(squareform(1 - alike, checks=False), "average"))
    best = leaf_order(alike)
    assert alike[best[1:], best[:-1]].sum() > alike[greedy[1:], greedy[:-1]].sum()


def test_agreement_uses_only_what_both_know():
    rng = np.random.default_rng(1)
    a, b = (np.corrcoef(rng.normal(size=(12, 5))) for _ in range(2))
    b[3] = b[:, 3] = np.nan
    i, j = np.triu_indices(12, 1)
    known = (i != 3) & (j != 3)
    assert agreement(a, b) == pytest.approx(np.corrcoef(a[i, j][known], b[i, j][known])[0, 1])
    assert math.isnan(agreement(np.eye(2), np.eye(2)))
    assert math.isnan(agreement(np.ones((5, 5)), a[:5, :5]))


def test_holding_order_makes_blocks_and_keeps_unheld_classes_last():
    order, held, idle = holding_order(
        np.array([[0, 5, 0, 1, 0, 0], [4, 0, 0, 3, 0, 0]]), np.array([2, 5])
    )
    assert (order.tolist(), held, idle) == ([1, 0, 3, 4, 2, 5], 3, 1)


def test_row_scaled_takes_out_level_and_length_of_every_row():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(6, 6))
    other = values * rng.uniform(0.1, 9, (6, 1)) + rng.normal(size=(6, 1))
    np.testing.assert_allclose(row_scaled(other), row_scaled(values))
    assert np.abs(row_scaled(values)).max(axis=1) == pytest.approx(np.ones(6))
    assert (row_scaled(values).argmax(axis=1) == values.argmax(axis=1)).all()


def test_attributes_stand_group_by_group_and_each_once():
    order, sizes = attribute_order({"b": (4, 1), "none": (), "a": (0,)}, 7)
    assert (order.tolist(), sizes) == ([4, 1, 0, 2, 3, 5, 6], [("b", 2), ("a", 1), ("", 4)])
    order, sizes = attribute_order({}, 3)
    assert (order.tolist(), sizes) == ([0, 1, 2], [])
    assert attribute_order({"all": (1, 0)}, 2)[1] == [("all", 2)]
