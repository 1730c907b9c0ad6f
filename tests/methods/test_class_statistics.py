"""Statistics: those of one sample after the other; of whole numbers exact, whatever the order,
partition or machine.
"""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedunseen import run
from fedunseen.core.errors import DataError
from fedunseen.data import ClassSpace, Quantization, Scaler
from fedunseen.methods.closed_form import statistics as module
from fedunseen.methods.closed_form.statistics import (
    add,
    statistics,
    subtract,
    unpacked,
    validate_statistics,
)
from refusals import message_of
from same import same
from small_runs import CLOSED, experiment


def digits():
    """Real images (1797, 64) of ten classes."""
    images, labels = load_digits(return_X_y=True)
    semantics = np.random.default_rng(0).normal(size=(10, 4))
    space = ClassSpace(tuple("0123456789"), semantics, tuple("abcd"), range(8), [], [8, 9])
    return torch.from_numpy(images).float(), torch.from_numpy(labels), space


def relative(one, other):
    return max(
        float((one[name] - other[name]).norm() / other[name].norm())
        for name in ("count", "total", "square")
    )


@pytest.mark.parametrize("kind", [torch.float32, torch.uint8, torch.float16])
def test_the_sums_are_those_of_one_sample_after_the_other(kind, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 100)
    monkeypatch.setattr(module, "COLUMNS", 24)
    inputs, labels, space = digits()
    found = statistics(inputs.to(kind), labels, space)
    count, total, square = np.zeros(10), np.zeros((10, 64)), np.zeros((64, 64))
    for x, c in zip(inputs.double().numpy(), labels.tolist(), strict=True):
        count[c] += 1
        total[c] += x
        square += np.outer(x, x)
    np.testing.assert_array_equal(found["count"], count)
    np.testing.assert_allclose(found["total"], total, rtol=1e-13)
    np.testing.assert_allclose(unpacked(found["square"], 64), square, rtol=1e-13)


def test_samples_on_disk_give_the_same_bits(tmp_path):
    inputs, labels, space = digits()
    np.save(tmp_path / "x.npy", inputs.numpy())
    found = statistics(np.load(tmp_path / "x.npy", mmap_mode="r"), labels.numpy(), space)
    assert same(found, statistics(inputs, labels, space))


def test_ten_parties_have_the_sums_of_one_place_and_can_be_taken_away_again():
    inputs, labels, space = digits()
    parts = [statistics(inputs[labels == k], labels[labels == k], space) for k in range(10)]
    whole = statistics(inputs, labels, space)
    assert relative(add(parts, space), whole) < 1e-14
    left = subtract(whole, add(parts[::2], space), space)
    assert relative(left, add(parts[1::2], space)) < 1e-13
    assert left["count"].tolist() == [
        0 if k % 2 == 0 else int((labels == k).sum()) for k in range(10)
    ]
    assert not left["total"][0].any()


def test_what_does_not_add_up_is_refused():
    inputs, labels, space = digits()
    good = statistics(inputs, labels, space)
    elsewhere = statistics(inputs, labels, replace(space, semantics=-space.semantics))
    gaps = good["total"] / good["total"]  # NaN for features that are zero in all samples of a class
    huge = (
        1 + 1e200 * (torch.arange(64) == 20).double()
    )  # one feature, whose square alone overflows
    for call, words in (
        (
            lambda: add([good, elsewhere], space),
            "^the sums are of another class space or another quantization: all",
        ),
        (
            lambda: add([good, statistics(inputs[:, :9], labels, space)], space),
            "^sums over features of 9 numbers do",
        ),
        (
            lambda: add([good | {"total": gaps}], space),
            "^the sums hold numbers that are not finite",
        ),
        (
            lambda: add([good | {"square": good["square"][1:]}], space),
            "^the sums are damaged, their parts do not fit",
        ),
        (
            lambda: statistics(torch.zeros(1, 20_000), labels[:1], space),
            "make a matrix of 3 GiB: reduce them to 16384",
        ),
        (lambda: add([], space), "^there are no sums to add: at least one party must send some$"),
        (
            lambda: subtract(good, add([good, good], space), space),
            "^the sums to take away hold more samples of '3'",
        ),
        (
            lambda: statistics(inputs / 0, labels, space),
            "^the sums over samples are not finite: leave out those",
        ),
        (
            lambda: statistics(inputs * huge, labels, space),
            "^the sums over samples are not finite: leave out",
        ),
    ):
        with pytest.raises(DataError, match=words):
            call()


def test_sums_that_no_samples_have_and_those_of_samples_longer_than_agreed_are_told():
    inputs, labels, space = digits()
    whole, few = statistics(inputs, labels, space), statistics(inputs[:3], labels[:3], space)
    for real in (
        whole,
        few,
        statistics(inputs[:0], labels[:0], space),
        statistics(1e6 * inputs, labels, space),
    ):
        assert validate_statistics(real) == ""
    square = unpacked(whole["square"], 64)
    i, j = square.diagonal().topk(2).indices.tolist()
    square[i, j] = square[j, i] = 1.5 * square[i, i]  # more than two features can have in common
    for change, why in (
        ({"count": whole["count"] - 1000}, "a class has fewer than no samples"),
        (
            {"count": torch.where(torch.arange(10) == 4, 0.0, whole["count"])},
            "a class without samples has a sum",
        ),
        ({"total": 3 * whole["total"]}, "their second moments are too small for their means"),
        ({"square": module.packed(square)}, "their second moments are not a sum of squares"),
    ):
        assert validate_statistics(whole | change) == why, why
    clip_norm = float(inputs.norm(dim=1).median())
    assert validate_statistics(statistics(inputs, labels, space, clip_norm), clip_norm) == ""
    longer = validate_statistics(statistics(2 * inputs, labels, space), clip_norm)
    assert longer == f"their samples are longer than {clip_norm:g} on average"


# Whole numbers

SPACE = ClassSpace(("cat", "dog", "fox", "cow"), np.eye(4), tuple("abcd"), [0, 1, 2], [], [3])


def samples(bits, n=300, width=70, seed=0):
    rng = np.random.default_rng(seed)
    quantization = Quantization.of_unit_length(bits, 5.0, width)
    codes = rng.integers(-quantization.levels, quantization.levels + 1, (n, width))
    codes[: n // 2] = quantization.levels * rng.choice(
        [-1, 1], (n // 2, width)
    )  # the largest products there are
    labels = torch.from_numpy(rng.integers(0, 3, n))
    return (
        torch.from_numpy(codes).to(torch.int8 if bits <= 8 else torch.int16),
        labels,
        quantization,
    )


@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, 6, 8, 16])
@pytest.mark.parametrize("int8", [True, False])
@pytest.mark.parametrize("width", [1, 3, 64, 257])
def test_statistics_are_those_of_python_integers(bits, int8, width, monkeypatch):
    assert module.EXACT_ROWS * 127**2 < 2**24  # float32 is exact below
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
    pieces = zip(codes.split(4), labels.split(4), strict=True)
    parts = [statistics(rows, own, SPACE, quantization=quantization) for rows, own in pieces]
    for _ in range(1000):
        total, inside = module.no_sums(5, SPACE, quantization), set()
        for place in rng.integers(0, len(parts), rng.integers(2, 12)).tolist():
            change = subtract if place in inside else lambda a, b, *more: add([a, b], *more)
            total, inside = change(total, parts[place], SPACE, quantization), inside ^ {place}
        never = add(
            [module.no_sums(5, SPACE, quantization), *(parts[i] for i in sorted(inside))],
            SPACE,
            quantization,
        )
        assert module.sums_sha256(total, quantization) == module.sums_sha256(never, quantization)


@pytest.mark.parametrize("steps", [("l2",), ("standard",), ()])
def test_codes_are_what_scaled_features_are_rounded_from(steps):
    rows = np.random.default_rng(1).normal(3, 2, (200, 6)) * [1, 10, 1e-3, 1e4, 1, 0]
    scaler = Scaler.fit(rows, steps)
    fitted = (
        Quantization.of_rows(8, 5.0, rows, scaler)
        if steps != ("l2",)
        else Quantization.of_unit_length(8, 5.0, 6)
    )
    quantized = scaler.quantized(fitted)
    codes, clipped = quantized.codes(rows)
    scaled = quantized(rows)
    assert np.array_equal(scaled, codes * fitted.step)
    assert np.array_equal(fitted.codes(scaled)[0], codes)
    assert clipped == 0
    error = np.abs(scaled - (scaler(rows) - fitted.offset))
    assert (error <= 0.5001 * fitted.step + 1e-6 * np.abs(fitted.offset)).all()
    sums = statistics(
        torch.from_numpy(codes), torch.zeros(200, dtype=int), SPACE, quantization=fitted
    )
    sums = module.dequantized(sums, fitted)
    exact = codes * fitted.step.astype(float)
    torch.testing.assert_close(sums["total"][0], torch.from_numpy(exact.sum(0)))
    torch.testing.assert_close(unpacked(sums["square"], 6), torch.from_numpy(exact.T @ exact))


def test_clipped_features_are_counted_and_shortened_rows_are_never_longer():
    quantization = Quantization.of_unit_length(8, 1.0, 4)
    rows = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.5]])
    assert statistics(rows, torch.tensor([0, 1]), SPACE, quantization=quantization)[
        "clipped"
    ].tolist() == [1]
    codes, labels, quantization = samples(8)
    sums = statistics(codes, labels, SPACE, 1.0, quantization)
    assert (
        float(unpacked(sums["square"], 70).diagonal().sum()) * float(quantization.step[0]) ** 2
        <= 300
    )
    assert validate_statistics(sums, 1.0, quantization) == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda s: s | {"count": s["count"] - 1000}, "a class has fewer than no samples"),
        (
            lambda s: s | {"total": s["total"] * 200},
            "a class's sum is beyond the range of its samples",
        ),
        (lambda s: s | {"square": s["square"] * 200}, "their second moments are beyond the range"),
        (
            lambda s: s | {"square": s["square"] // 2},
            "their second moments are too small for their means",
        ),
        (
            lambda s: s | {"clipped": s["clipped"] - 1},
            "they have more clipped features than features",
        ),
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
    assert "another quantization" in message_of(
        add, [sums, sums], SPACE, Quantization.of_unit_length(8, 8.0, 70)
    )
    assert "do not fit 64 bits" in message_of(module.check_capacity, 2**50, quantization)


def digest(tmp_path, name="run", **settings):
    result = run(experiment("digit-pairs-gaussian", **settings), tmp_path / name).result
    assert "clipped" not in result
    return result["sums_sha256"]


@pytest.mark.slow
def test_one_digest_for_partitions_threads_and_processors(tmp_path):
    wanted = digest(tmp_path, partition__clients=10)
    for i, settings in enumerate((
        {"partition.clients": 2},
        {"partition.clients": 10, "partition.kind": "iid"},
        {"partition.clients": 5, "partition.kind": "dirichlet", "partition.alpha": 0.3},
        {"strategy.name": "centralised"},
    )):  # fmt: skip
        assert digest(tmp_path, str(i), **settings) == wanted, settings
    program = (
        "import sys, pathlib, torch; from fedunseen import Experiment, run; "
        f"torch.set_num_threads(2);done = run(Experiment.load('digit-pairs-gaussian', {CLOSED}), "
        "pathlib.Path(sys.argv[1]));print(done.result['sums_sha256'])"
    )
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", program, str(tmp_path / "other")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == wanted, done.stderr


@pytest.mark.slow
def test_more_than_a_hundredth_of_features_clipped_is_a_warning_with_the_number(tmp_path):
    chosen = experiment("digit-pairs-gaussian", data__quantization_range=1.0, data__features=["l2"])
    result = run(chosen, tmp_path / "run").result
    (warning,) = [one for one in result["warnings"] if "range of quantization" in one["what"]]
    assert warning["what"].startswith(f"{100 * result['clipped']:.1f} %")


def test_on_a_gpu_products_take_float32_and_nothing_changes_its_place(monkeypatch):
    """On the meta device, whose tensors have no numbers and refuse operands in main memory."""
    monkeypatch.setattr(torch, "_int_mm", None)  # is for processors
    rows = torch.empty(3000, 128, dtype=torch.int8, device="meta")
    labels = torch.empty(3000, dtype=torch.int64, device="meta")
    square = torch.empty(128, 128, dtype=torch.int64, device="meta")
    module.add_products(square, rows)
    module.add_products(square, rows.to(torch.int16))  # more than 8 bits
    total = module.add_totals(torch.empty(7, 128, dtype=torch.int64, device="meta"), rows, labels)
    assert {(sums.device.type, sums.dtype) for sums in (total, square)} == {("meta", torch.int64)}
    with pytest.raises(RuntimeError):
        module.add_totals(torch.zeros(7, 128, dtype=torch.int64), rows, labels)


@pytest.mark.usefixtures("two_threads")
def test_small_matrices_have_one_thread_and_others_keep_theirs():
    for side, threads in ((module.SMALL - 1, 1), (module.SMALL, 2)):
        with module.few_threads(side):
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 2
