"""Statistics of whole numbers: exact, whatever the order, partition, engine, masks, threads and processor."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedunseen import Experiment, run
from fedunseen.core.errors import DataError
from fedunseen.data import ClassSpace, Quantization, Scaler
from fedunseen.methods.closed_form import statistics as module
from fedunseen.methods.closed_form.statistics import (
    EXACT_ROWS,
    add,
    add_products,
    add_totals,
    check_capacity,
    dequantized,
    no_sums,
    statistics,
    subtract,
    sums_sha256,
    unpacked,
    validate_statistics,
)

SPACE = ClassSpace(("cat", "dog", "fox", "cow"), np.eye(4), tuple("abcd"), [0, 1, 2], [], [3])
FEW = {"data.train_per_class": 8, "data.test_per_class": 4, "evaluation.embedding": False, "evaluation.theory": False}
FEW |= {"evaluation.selection": "last"}


def samples(bits, n=300, width=70, seed=0):
    rng = np.random.default_rng(seed)
    quantization = Quantization.of_unit_length(bits, 5.0, width)
    most = quantization.levels
    codes = rng.integers(-most, most + 1, (n, width))
    codes[: n // 2] = most * rng.choice([-1, 1], (n // 2, width))  # the largest products there are
    labels = torch.from_numpy(rng.integers(0, 3, n))
    return torch.from_numpy(codes).to(torch.int8 if bits <= 8 else torch.int16), labels, quantization


@pytest.mark.parametrize("bits", [4, 6, 8, 16])
@pytest.mark.parametrize("int8", [True, False])
@pytest.mark.parametrize("width", [1, 3, 64, 257])
def test_statistics_are_those_of_python_integers(bits, int8, width, monkeypatch):
    if not int8:
        monkeypatch.setattr(module, "_multiplies_int8", lambda: False)
    monkeypatch.setattr(module, "BLOCK", 128)
    monkeypatch.setattr(module, "EXACT_ROWS", 50)
    codes, labels, quantization = samples(bits, width=width)
    sums = statistics(codes, labels, SPACE, quantization=quantization)
    exact = codes.numpy().astype(object)
    assert (unpacked(sums["square"], width).numpy() == exact.T @ exact).all()
    for c in range(4):
        assert (sums["total"][c].numpy() == exact[labels.numpy() == c].sum(0)).all()
    assert validate_statistics(sums, None, quantization) == ""


@pytest.mark.parametrize("bits", [8, 16])
def test_adding_and_removing_ends_with_the_digest_of_a_model_that_never_saw_what_was_removed(bits):
    rng = np.random.default_rng(bits)
    codes, labels, quantization = samples(bits, n=120, width=5)
    parts = [
        statistics(codes[i : i + 4], labels[i : i + 4], SPACE, quantization=quantization) for i in range(0, 120, 4)
    ]
    for _ in range(1000):
        total, inside = no_sums(5, SPACE, quantization), set()
        for place in rng.integers(0, len(parts), rng.integers(2, 12)).tolist():
            change = subtract if place in inside else lambda a, b, *more: add([a, b], *more)
            total, inside = change(total, parts[place], SPACE, quantization), inside ^ {place}
        never = add([no_sums(5, SPACE, quantization), *(parts[i] for i in sorted(inside))], SPACE, quantization)
        assert sums_sha256(total, quantization) == sums_sha256(never, quantization)


@pytest.mark.parametrize("steps", [("l2",), ("standard",), ()])
def test_codes_are_what_scaled_features_are_rounded_from(steps):
    rows = np.random.default_rng(1).normal(3, 2, (200, 6)) * [1, 10, 1e-3, 1e4, 1, 0]
    scaler = Scaler.fit(rows, steps)
    fitted = Quantization.of_rows(8, 5.0, rows, scaler) if steps != ("l2",) else Quantization.of_unit_length(8, 5.0, 6)
    quantized = scaler.quantized(fitted)
    codes, clipped = quantized.codes(rows)
    scaled = quantized(rows)
    assert np.array_equal(scaled, codes * fitted.step)
    assert np.array_equal(fitted.codes(scaled)[0], codes)
    error = np.abs(scaled - (scaler(rows) - fitted.offset))
    assert clipped == 0
    assert (error <= 0.5001 * fitted.step + 1e-6 * np.abs(fitted.offset)).all()
    sums = dequantized(
        statistics(torch.from_numpy(codes), torch.zeros(200, dtype=int), SPACE, quantization=fitted), fitted
    )
    exact = codes * fitted.step.astype(float)
    torch.testing.assert_close(sums["total"][0], torch.from_numpy(exact.sum(0)))
    torch.testing.assert_close(unpacked(sums["square"], 6), torch.from_numpy(exact.T @ exact))


def test_clipped_features_are_counted_and_shortened_rows_are_never_longer():
    quantization = Quantization.of_unit_length(8, 1.0, 4)
    rows = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.5]])
    assert statistics(rows, torch.tensor([0, 1]), SPACE, quantization=quantization)["clipped"].tolist() == [1]
    codes, labels, quantization = samples(8)
    sums = statistics(codes, labels, SPACE, 1.0, quantization)
    step = float(quantization.step[0])
    assert float(unpacked(sums["square"], 70).diagonal().sum()) * step**2 <= 300
    assert validate_statistics(sums, 1.0, quantization) == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda s: s | {"count": s["count"] - 1000}, "a class has fewer than no samples"),
        (lambda s: s | {"total": s["total"] * 200}, "a class's sum is beyond the range of its samples"),
        (lambda s: s | {"square": s["square"] * 200}, "their second moments are beyond the range"),
        (lambda s: s | {"square": s["square"] // 2}, "their second moments are too small for their means"),
        (lambda s: s | {"clipped": s["clipped"] - 1}, "they have more clipped features than features"),
    ],
)
def test_infeasible_statistics_are_found(change, why):
    quantization = Quantization.of_unit_length(8, 5.0, 70)
    codes = torch.full((40, 70), 100, dtype=torch.int8)
    sums = statistics(codes, torch.arange(40) % 3, SPACE, quantization=quantization)
    assert validate_statistics(sums, None, quantization) == ""
    assert validate_statistics(change(sums), None, quantization) == why


def test_other_quantizations_and_too_many_samples_are_refused():
    codes, labels, quantization = samples(8)
    sums = statistics(codes, labels, SPACE, quantization=quantization)
    other = Quantization.of_unit_length(8, 8.0, 70)
    with pytest.raises(DataError, match="another quantization"):
        add([sums, sums], SPACE, other)
    with pytest.raises(DataError, match="do not fit 64 bits"):
        check_capacity(2**50, quantization)


def digest(tmp_path, name="run", **settings):
    result = run(Experiment.load("digit-pairs-gaussian", {**FEW, **settings}), tmp_path / name).result
    assert result["clipped"] == 0
    return result["sums_sha256"]


SETTINGS = [
    {"partition.clients": 2},
    {"partition.clients": 10, "partition.kind": "iid"},
    {"partition.clients": 5, "partition.kind": "dirichlet", "partition.alpha": 0.3},
    {"partition.clients": 5, "privacy.aggregation": "masked"},
    {"strategy.name": "centralised"},
]


def test_one_digest_for_partitions_masks_threads_and_processors(tmp_path):
    wanted = digest(tmp_path)
    for i, settings in enumerate(SETTINGS):
        assert digest(tmp_path, str(i), **settings) == wanted, settings
    program = (
        "import sys, pathlib, torch; from fedunseen import Experiment, run; torch.set_num_threads(2);"
        f"done = run(Experiment.load('digit-pairs-gaussian', {FEW}), pathlib.Path(sys.argv[1]));"
        "print(done.result['sums_sha256'])"
    )
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "other")], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == wanted, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["flower", "nvflare"])
@pytest.mark.parametrize("aggregation", ["plain", "masked"])
def test_one_digest_for_engines(tmp_path, engine, aggregation):
    told = {"engine.name": engine, "engine.processes": 2, "privacy.aggregation": aggregation, "partition.clients": 4}
    assert digest(tmp_path, **told) == digest(tmp_path, "in-process")


@pytest.mark.slow
def test_more_than_a_hundredth_of_features_clipped_is_a_warning_with_the_number(tmp_path):
    told = {**FEW, "data.quantization_range": 1.0, "data.features": ["l2"]}
    result = run(Experiment.load("digit-pairs-gaussian", told), tmp_path / "run").result
    (warning,) = [one for one in result["warnings"] if "range of quantization" in one["what"]]
    assert warning["what"].startswith(f"{100 * result['clipped']:.1f} %")


def test_on_a_gpu_products_take_float32_and_nothing_changes_its_place(monkeypatch):
    """On the meta device, whose tensors have no numbers and refuse operands in main memory."""
    monkeypatch.setattr(torch, "_int_mm", None)  # is for processors
    rows = torch.empty(3000, 128, dtype=torch.int8, device="meta")
    labels = torch.empty(3000, dtype=torch.int64, device="meta")
    square = torch.empty(128, 128, dtype=torch.int64, device="meta")
    add_products(square, rows)
    add_products(square, rows.to(torch.int16))  # more than 8 bits
    total = add_totals(torch.empty(7, 128, dtype=torch.int64, device="meta"), rows, labels)
    assert (total.device.type, total.dtype) == ("meta", torch.int64)
    assert (square.device.type, square.dtype) == ("meta", torch.int64)
    with pytest.raises(RuntimeError):
        add_totals(torch.zeros(7, 128, dtype=torch.int64), rows, labels)


def test_blocks_of_float32_are_exact_for_the_largest_numbers(monkeypatch):
    """What a GPU takes: 1,024 rows a block, whose products stay below 2^24."""
    monkeypatch.setattr(module, "_multiplies_int8", lambda: False)
    rows = torch.full((3 * EXACT_ROWS + 5, 70), 127, dtype=torch.int8)
    rows[:, ::3] = -127
    square = torch.zeros(70, 70, dtype=torch.int64)
    add_products(square, rows)
    exact = rows.long().T @ rows.long()
    assert torch.equal(square.triu(), exact.triu())
    assert EXACT_ROWS * 127**2 < 2**24
