import re
from collections import Counter

import numpy as np
import pytest

from fedunseen.federation.run_directory import load_params
from fedunseen.pages.report.communication_cost import modules, traffic, written_bytes
from pages import copied, page_of

SIZES = {"generator": 90, "critic": 60, "softmax": 10}
MODEL = {
    "generator.0.weight": 80,
    "generator.0.bias": 10,
    "critic.0.weight": 50,
    "critic.1.weight": 10,
    "zsl.bias": 7,
}


@pytest.mark.parametrize(
    ("shared", "expected"),
    [
        (["*"], [(90, "travels"), (60, "travels"), (0, "stays")]),  # the softmax is private
        (["generator.*"], [(90, "travels"), (0, "stays"), (0, "stays")]),
        (
            ["generator.*", "critic.1.*"],
            [(90, "travels"), (10, "16.7 % of it travels"), (0, "stays")],
        ),
        ([], [(0, "stays")] * 3),
    ],
)
def test_of_each_module_it_is_counted_how_much_travels(shared, expected):
    found = modules(SIZES, {**MODEL, "softmax.weight": 10}, shared, ["softmax.*"])
    assert [(one.name, one.parameters) for one in found] == list(SIZES.items())
    assert [(one.shared, one.words) for one in found] == expected


def test_traffic_is_that_of_one_client_however_many_take_part():
    lines = [
        {"participants": [0, 1, 2], "bytes_down": 300, "bytes_up": 150},
        {"participants": [4], "bytes_down": 100, "bytes_up": 50},
    ]
    assert traffic(lines) == {"down": 100.0, "up": 50.0, "total": 600.0}
    assert traffic([{"round": 1}]) is traffic([]) is None


def test_bytes_are_written_with_three_digits():
    said = [written_bytes(n) for n in (999, 999.7, 1000, 1_234_567, 2.5e9, 7.1e12)]
    assert said == ["999 B", "1 kB", "1 kB", "1.23 MB", "2.5 GB", "7,100 GB"]


def page(run, tmp_path):
    parsed, text = page_of(run, tmp_path)
    return re.sub(r"\s+", " ", text), parsed.text


@pytest.mark.slow
def test_the_page_gives_the_bytes_of_one_client(made, tmp_path):
    run = made()
    assert {len(line["participants"]) for line in run.metrics} == {10}
    total = sum(line["bytes_down"] + line["bytes_up"] for line in run.metrics)
    model = 4 * sum(value.numel() for value in run.params.values())  # in 32 bits
    assert run.metrics[0]["bytes_down"] / 10 == model
    _, words = page(run, tmp_path)
    assert (
        f"{written_bytes(model)} down and {written_bytes(model)} up per client and round" in words
    )
    assert f"{written_bytes(total)} in 2 rounds, all clients together." in words


def test_modules_that_stay_are_marked(made, tmp_path):
    sizes = Counter()
    for name, value in sorted(made().params.items()):
        sizes[name.partition(".")[0]] += value.numel()
    first, *others = sizes
    assert others
    sizes["critic"] = 1234
    tree = made().manifest["experiment"]
    strategy, method = (
        {**tree["strategy"], "shared": [f"{first}.*"]},
        {**tree["method"], "text": "minilm"},
    )
    manifest = {"experiment": {**tree, "strategy": strategy, "method": method}}
    run = copied(
        made(),
        tmp_path / "copy",
        {"parameters": sizes, "parameters_shared": sizes[first]},
        manifest,
    )
    html, words = page(run, tmp_path)
    rows = re.findall(r'<tr( class="stays")?><th scope="row">(\w+)</th><td>([\d,]+)</td>', html)
    found = {
        (name, int(n.replace(",", "")), bool(stays)) for stays, name, n in rows if name in sizes
    }
    assert found == {(name, n, name != first) for name, n in sizes.items()}
    assert f"travels {sizes[first]:,} of {sizes.total():,} parameters" in words
    assert f"Parameters named {first}.* travel; the others stay" in words
    assert "The text encoder is frozen" in words


def test_covered_attributes_are_drawn(made, tmp_path):
    """digit-pairs: an attribute is a digit at a place, so what a client covers is counted from its
    classes' names.
    """
    run = made()
    counts = load_params(run.path / "evaluation.safetensors")["client_counts"].numpy()
    cover = np.zeros((len(counts), 20))
    for k, c in np.argwhere(counts):
        left, right = map(int, run.space.names[c])
        cover[k, [left, 10 + right]] += 1
    html, words = page(run, tmp_path)
    assert "10 clients and 20 attributes in 2 groups" in html
    assert f"the strongest color for {cover.max():g}." in words


@pytest.mark.slow
def test_generated_features_stand_beside_real_ones_with_the_accuracy_of_each_class(made, tmp_path):
    """Of two unseen classes, one without an accuracy."""
    unseen = made().space.unseen
    accuracy = np.full(len(unseen), np.nan, dtype=np.float32)
    accuracy[2] = 61.25
    tensors = {
        "generated_labels": np.repeat(unseen[[2, 5]], 12), "generated_kind": np.tile([0, 1, 1], 8),
        "generated_plane": np.random.default_rng(0).normal(size=(24, 2)).astype(np.float32),
    }  # fmt: skip
    run = copied(made(), tmp_path / "copy", tensors={**tensors, "generated_accuracy": accuracy})
    names = [run.space.names[c] for c in unseen[[2, 5]]]
    html, words = page(run, tmp_path)
    assert "16 generated and 8 real samples of 2 classes" in html
    listed = re.findall(
        r'class="key swatch" style="--hue:(\d+)"></i>(.*?)</span> <span class="num">(.*?)</span>',
        html,
    )
    assert [(name, said) for _, name, said in listed] == [(names[0], "61.2 %"), (names[1], "–")]  # noqa: RUF001
    drawn = re.findall(r'class="(?:generated|real)" style="--hue:(\d+)"', html)
    assert sorted(set(drawn)) == sorted(one for one, _, _ in listed)
    assert "First two principal components of 16 generated and 8 real features" in words
    _, words = page(made(), tmp_path)
    assert "Generated and real features" not in words
