"""The page of a few-shot run says what the run says."""

import base64
import io
import itertools
import re

import numpy as np
import pytest
import scipy.stats
from PIL import Image

from fedunseen.federation.run_directory import load_params
from fedunseen.pages.report.few_shot import half_width, verdict
from fedunseen.pages.report.maps import plane_map
from known_names import DIGITS_MAML
from pages import check_whole, page_of

NAMES = ("few_shot", "few_shot_pixels", "few_shot_random", "few_shot_base")
VARIANTS = {
    "plain": (("method.name", "maml"), ("method.inner_steps", 1), ("method.test_steps", 1)),
    "plane": (("encoder.outputs", 2), ("method.hidden", (8,)), ("method.test_steps", 2)),
    "stages": (("method.name", "maml-mi-adv"), ("method.hidden", (8,)), ("method.test_steps", 1)),
    "local": (("method.name", "protonet"), ("strategy.name", "local")),
    "centralised": (
        ("method.name", "protonet"),
        ("strategy.name", "centralised"),
        ("method.shots", 2),
    ),
    "seeds": (
        ("method.name", "protonet"),
        ("run.seeds", 3),
        ("evaluation.selection", "best-on-test"),
    ),
    "dirichlet": (
        ("method.name", "protonet"),
        ("partition.kind", "dirichlet"),
        ("method.queries", 2),
    ),
}


@pytest.fixture(scope="session")
def few(tiny):
    small = {
        "encoder.widths": (4, 4),
        "method.episodes": 4,
        "strategy.rounds": 2,
        "evaluation.episodes": 12,
    }
    small["evaluation.validation_episodes"] = 6
    return lambda kind: tiny(DIGITS_MAML, *(small | dict(VARIANTS[kind])).items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", VARIANTS)
def test_every_kind_of_run_has_a_whole_page_with_the_numbers_of_the_result(kind, few, tmp_path):
    made = few(kind)
    page, text = page_of(made, tmp_path)
    check_whole(page, text, 250_000)
    assert "ZSL" not in page.text
    for name in NAMES:
        assert page.numbers[name][0] == (made.result[name], f"{made.result[name]:.1f}")
        block = re.search(rf'id="number-{name}".*?</div>', text, re.DOTALL)[0]
        half = half_width(made.result, name)
        assert (f"± {half or 0:.1f}" in block) == (half is not None)
        assert ("standard deviation" in block) == (kind == "seeds")
    assert page.numbers["few_shot"][1] == (20.0, "20.0")


def test_the_verdict_agrees_with_the_intervals_themselves():
    rng, orders = np.random.default_rng(0), set()
    for _ in range(200):
        means, halves = rng.uniform(20, 40, 3), rng.uniform(0.5, 5, 3)
        result = dict(zip(NAMES[:3], means, strict=True))
        result |= {f"{name}_ci95": half for name, half in zip(NAMES, halves, strict=False)}
        order = verdict(result, "episodes")["order"]
        overlap = (means - halves)[:2].max() <= (means + halves)[:2].min()
        assert order == (0 if overlap else np.sign(means[0] - means[1]))
        orders.add(order)
    assert orders == {-1, 0, 1}


@pytest.mark.slow
def test_seeds_are_tabled_and_their_interval_is_that_of_student(few, tmp_path):
    made = few("seeds")
    page, text = page_of(made, tmp_path)
    cells = re.findall(
        r"<td>(.*?)</td>", re.search(r"<h2>3 seeds</h2>.*?</table>", text, re.DOTALL)[0]
    )
    for i, result in enumerate(one.result for one in made.seeds):
        numbers = [f"{result[name]:.1f} ± {result[f'{name}_ci95']:.1f}" for name in NAMES]
        assert cells[5 * i : 5 * i + 5] == [*numbers, str(result["selected_round"])]
    assert cells[15:19] == [
        f"{made.result[name]:.1f}, {made.result[f'{name}_sd']:.1f}" for name in NAMES
    ]
    values = [one.result["few_shot_pixels"] for one in made.seeds]
    low, high = scipy.stats.t.interval(0.95, 2, np.mean(values), scipy.stats.sem(values))
    assert half_width(made.result, "few_shot_pixels") == pytest.approx((high - low) / 2)
    assert "interval over 3 seeds (Student's t), not over their episodes." in page.text
    assert "so these seeds do not show" in page.text or "the intervals are apart" in page.text
    assert "From here on: seed 0 alone." in page.text
    single = page_of(few("plain"), tmp_path)[0].text
    assert "interval over 12 test episodes of this one run: another seed may lie outside." in single


@pytest.mark.slow
def test_curves_are_those_of_the_metrics_with_their_intervals(few, tmp_path):
    made = few("plain")
    _, text = page_of(made, tmp_path)
    chart = re.search(r'<svg[^>]*aria-label="Few-shot accuracy by round.*?</svg>', text, re.DOTALL)[
        0
    ]
    for line in made.metrics:
        mean, half = line["few_shot"], line["few_shot_ci95"]
        said = re.search(
            rf"<title>round {line['round']}, merged ([\d.]+)% \(([\d.]+) to ([\d.]+)\)</title>",
            chart,
        )
        np.testing.assert_allclose(
            [float(v) for v in said.groups()], [mean, mean - half, mean + half], atol=0.051
        )
    assert f"raw samples {made.result['few_shot_pixels']:.1f}%" in chart
    assert "guessing 20%" in chart
    assert chart.count('class="level"') == 4  # two lines, and what they are called
    frame = float(re.search(r'class="mark" cx="[\d.]+" cy="([\d.]+)"', chart)[1])
    levels = sorted(float(y) for y in re.findall(r'class="level"[^>]* d="M40 ([\d.]+)H', chart))
    value, pixels = made.metrics[-1]["few_shot"], made.result["few_shot_pixels"]
    scale = (levels[1] - levels[0]) / (pixels - 20)
    assert levels[1] - frame == pytest.approx((value - 20) * scale, abs=0.05)


def test_classes_are_ranked_by_their_queries(few, tmp_path):
    made = few("plain")
    page, text = page_of(made, tmp_path)
    tensors = load_params(made.path / "evaluation.safetensors")
    labels, answers = (tensors[name].numpy() for name in ("labels", "answers"))
    own = {str(c): round(100 * (answers[labels == c] == c).mean(), 1) for c in np.unique(labels)}
    part = re.search(r'<ol class="ranking.*?</ol>', text, re.DOTALL)[0]
    result = re.findall(r'title="60 queries">(\d)</span>.*?class="num">([\d.]+)<', part, re.DOTALL)
    assert {name: float(value) for name, value in result} == own
    assert [float(value) for _, value in result] == sorted(own.values(), reverse=True)
    assert 100 * np.mean(answers == labels) == pytest.approx(made.result["few_shot"])
    diagonal = re.search(
        r"Confusion among 5 unseen classes, ([\d.]+) percent on the diagonal", text
    )[1]
    assert float(diagonal) == pytest.approx(made.result["few_shot"], abs=0.051)
    assert "rows need not add up" not in page.text


def grounds(drawing):
    """Return the mask of each class's ground, and the class's number."""
    found = re.findall(
        r'href="data:image/png;base64,(.*?)"/></mask><rect class="region".*?--class-(\d)', drawing
    )
    return [
        (np.asarray(Image.open(io.BytesIO(base64.b64decode(source)))) > 127, int(k))
        for source, k in found
    ]


@pytest.mark.slow
def test_the_plane_shows_every_sample_and_every_answer(few, tmp_path):
    made = few("plane")
    page, text = page_of(made, tmp_path)
    section = re.search(r"<h2>The plane of two features</h2>.*?</section>", text, re.DOTALL)[0]
    drawn = re.findall(r"<svg.*?</svg>", section, re.DOTALL)
    assert len(drawn) == 2
    for round, drawing in zip((1, 2), drawn, strict=True):
        tensors = {
            k: v.numpy()
            for k, v in load_params(made.path / "plane" / f"round-{round}.safetensors").items()
        }
        assert f"Round {round}" in drawing
        assert f"{float(tensors['accuracy']):.1f} % right" in drawing
        paths = re.findall(r'class="samples" style="stroke:(.*?)" d="(.*?)"><title>(\d)', drawing)
        assert [(color, path.count("h0"), name) for color, path, name in paths] == [
            (f"var(--class-{n})", (tensors["labels"] == c).sum(), str(c))
            for n, c in zip(range(5), tensors["classes"], strict=True)
        ]
        grid = np.full((120, 120), -1)
        for mask, k in grounds(drawing):
            grid[mask] = k
        np.testing.assert_array_equal(grid[::-1], tensors["grid"])
    assert f"Round 2 {float(tensors['accuracy']):.1f} % right" in page.text
    assert re.findall(r'class="key class".*?</i>(\d)<', section) == [
        str(c) for c in tensors["classes"]
    ]


def test_dots_lie_on_the_ground_that_answers_for_them():
    """The nearest of two centres is drawn: each dot's color is that of the cell below it."""
    rng = np.random.default_rng(0)
    low, high, side = np.array([-3.0, 10.0]), np.array([5.0, 90.0]), 120

    def answer(x, y):
        return ((x - 1) * 10 + (y - 50) > 0).astype(np.int64)

    grid = answer(*np.meshgrid(*np.linspace(low, high, side).T))
    points = rng.uniform(low, high, (200, 2))
    drawing, wrong = (
        plane_map(points, answer(*points.T), grid, (low, high), ["a", "b"], "Round 1: all right"),
        0,
    )
    ground = {k: mask for mask, k in grounds(drawing)}
    for color, path in re.findall(
        r'class="samples" style="stroke:var\(--class-(\d)\)" d="(.*?)"', drawing
    ):
        for x, y in re.findall(r"M([\d.]+) ([\d.]+)h0", path):
            wrong += not ground[int(color)][int(float(y) / 300 * side), int(float(x) / 300 * side)]
    assert wrong <= 2  # those on the border itself


@pytest.mark.slow
def test_colors_of_classes_can_be_told_apart_by_the_color_blind(few, tmp_path):
    """Under the simulation of Machado et al. (2009), as dots and as ground, on light and on
    dark.
    """
    matrices = {
        "protan": [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
        "deutan": [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
        "tritan": [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ],
        "none": np.eye(3),
    }
    to_xyz = [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]

    def lab(color, matrix):
        linear = np.where(color <= 0.04045, color / 12.92, ((color + 0.055) / 1.055) ** 2.4)
        seen = np.clip(np.array(matrix) @ linear, 0, 1)
        x, y, z = np.cbrt(np.array(to_xyz) @ seen / [0.95047, 1, 1.08883])
        return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])

    _, text = page_of(few("plane"), tmp_path)
    schemes = [
        re.findall(r"--class-\d: (#\w{6})", line)
        for line in text.splitlines()
        if "--class-0:" in line
    ]
    assert [len(one) for one in schemes] == [7] * 2
    for scheme, paper in zip(schemes, ("#eeeeea", "#1f242a"), strict=True):
        rgb = [
            np.array([int(one[i : i + 2], 16) for i in (1, 3, 5)]) / 255 for one in (*scheme, paper)
        ]
        for matrix in matrices.values():
            for share, least in ((1.0, 15.0), (0.36, 7.0)):
                seen = [lab(share * one + (1 - share) * rgb[-1], matrix) for one in rgb[:-1]]
                apart = [np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)]
                assert min(apart) > least


def test_who_holds_what_is_counted(few, tmp_path):
    made = few("dirichlet")
    page, text = page_of(made, tmp_path)
    counts = load_params(made.path / "evaluation.safetensors")["client_counts"].numpy()
    for k, row in enumerate(counts):
        listed = re.search(rf"<dt>client {k} .*?<dd>(.*?)</dd>", text, re.DOTALL)[1]
        assert listed == ", ".join(f"{c} ({row[c]})" for c in np.flatnonzero(row))
    largest = np.mean([row.max() / row.sum() for row in counts if row.sum()])
    said = page.text.replace("\xa0", " ")
    assert (
        f"makes up {100 * largest:.0f} % of them on average; an even share would be 20 %." in said
    )
