import base64
import io
import re

import numpy as np
from PIL import Image

from fedunseen.report.figures import Curve, Frame, histogram, image_source, line_chart, raster, ticks

NAN = float("nan")


def points(path):
    return [tuple(map(float, pair)) for pair in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]


def test_a_line_goes_through_its_values():
    x, y = np.arange(1.0, 6.0), np.array([10.0, 40.0, 35.0, 80.0, 60.0])
    drawing = line_chart([Curve(y, "merged", "orange")], "ZSL", x, 100.0)
    path = re.search(r'class="line" stroke="var\(--orange\)" d="(.*?)"', drawing)[1]
    drawn = np.array(points(path))
    frame = Frame((1.0, 5.0), (0.0, 100.0))
    assert len(drawn) == 5
    across = (drawn[:, 0] - frame.left) / (frame.width - frame.left - frame.right)
    np.testing.assert_allclose(across, (x - 1) / 4, atol=1e-4)
    up = (frame.height - frame.bottom - drawn[:, 1]) / (frame.height - frame.bottom - frame.top)
    np.testing.assert_allclose(up, y / 100, atol=1e-4)


def test_gaps_are_left_where_nothing_was_measured():
    frame = Frame((0.0, 4.0), (0.0, 1.0))
    x, y = np.arange(5.0), np.array([0.1, NAN, 0.3, 0.4, NAN])
    assert frame.path(x, y).count("M") == 2
    assert len(points(frame.path(x, y))) == 3
    assert frame.area(x, y, y + 0.1).count("Z") == 2
    assert "nan" not in line_chart([Curve(y, "a", low=y, high=y)], "t", x)


def test_the_reported_round_is_marked_with_its_value():
    y = np.array([10.0, 42.25, 35.0])
    drawing = line_chart([Curve(y, "merged")], "ZSL", np.arange(1.0, 4.0), 100.0, mark=2, unit="%")
    assert re.findall(r'class="value[^>]*>([^<]*)<', drawing) == ["42.2%"]


def test_a_single_round_is_drawn_as_a_point():
    assert "<circle" in line_chart([Curve(np.array([3.0]), "a")], "t", np.array([1.0]))


def test_names_are_escaped():
    drawing = line_chart([Curve(np.array([1.0, 2.0]), "<b>")], "<i>", np.arange(2.0), legend=True)
    assert "<b>" not in drawing
    assert "<i>" not in drawing


def test_ticks_are_round_and_inside():
    for low, high in ((0, 100), (1, 40), (0, 0.07), (3, 3), (1, 2)):
        found = ticks(low, high)
        assert found
        assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)


def test_histogram_counts_every_class_once():
    values = np.array([0.0, 4.9, 5.0, 50.0, 100.0, NAN])
    drawing = histogram(values, "t", "x")
    counted = [int(n) for n in re.findall(r"%: (\d+) classes", drawing)]
    assert counted == [2, 1, 1, 1]
    assert "no class was tested" in histogram(np.array([]), "t", "x")


def test_an_image_comes_back_from_its_address():
    pixels = np.array([[0.0, 0.5], [1.0, 2.0]])
    data = base64.b64decode(image_source(pixels).partition(",")[2])
    assert np.asarray(Image.open(io.BytesIO(data))).tolist() == [[0, 128], [255, 255]]
    colour = base64.b64decode(image_source(np.ones((2, 3, 3))).partition(",")[2])
    assert Image.open(io.BytesIO(colour)).mode == "RGB"


def test_a_matrix_shows_positive_negative_and_unknown_in_their_own_colours():
    drawing = raster(np.array([[1.0, -0.5], [np.nan, 0.0]]), 0, 0, 10, 10)
    assert re.findall(r'fill="var\(--(\w+)\)"', drawing) == ["blue", "orange", "unknown"]
    assert re.findall(r'fill="var\(--(\w+)\)"', raster(np.eye(2), 0, 0, 10, 10)) == ["blue"]
    masks, used = re.findall(r'mask id="(\w+)"', drawing), re.findall(r"url\(#(\w+)\)", drawing)
    assert masks == used
    assert len(set(masks)) == 3
