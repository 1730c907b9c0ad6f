import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedunseen.core.errors import DataError
from fedunseen.data import ClassSpace
from fedunseen.methods.closed_form import statistics as module
from fedunseen.methods.closed_form.statistics import (
    add,
    packed,
    statistics,
    subtract,
    unpacked,
    validate_statistics,
)


def digits():
    """Real images (1797, 64) of ten classes."""
    images, labels = load_digits(return_X_y=True)
    semantics = np.random.default_rng(0).normal(size=(10, 4))
    space = ClassSpace(tuple("0123456789"), semantics, tuple("abcd"), range(8), [], [8, 9])
    return torch.from_numpy(images).float(), torch.from_numpy(labels), space


def by_hand(inputs, labels, classes):
    """One sample after the other."""
    width = inputs.shape[1]
    count, total, square = np.zeros(classes), np.zeros((classes, width)), np.zeros((width, width))
    for x, c in zip(np.asarray(inputs, dtype=np.float64), labels.tolist(), strict=True):
        count[c] += 1
        total[c] += x
        square += np.outer(x, x)
    return count, total, square


def relative(one, other):
    return max(float((one[name] - other[name]).norm() / other[name].norm()) for name in ("count", "total", "square"))


@pytest.mark.parametrize("kind", [torch.float32, torch.uint8, torch.float16])
def test_the_sums_are_those_of_one_sample_after_the_other(kind, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 100)
    monkeypatch.setattr(module, "COLUMNS", 24)
    inputs, labels, space = digits()
    inputs = inputs.to(kind)
    found = statistics(inputs, labels, space)
    count, total, square = by_hand(inputs, labels, 10)
    np.testing.assert_array_equal(found["count"], count)
    np.testing.assert_allclose(found["total"], total, rtol=1e-13)
    np.testing.assert_allclose(unpacked(found["square"], 64), square, rtol=1e-13)


def test_samples_on_disk_give_the_same_bits(tmp_path):
    inputs, labels, space = digits()
    on_disk = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, tuple(inputs.shape))
    on_disk[:] = inputs.numpy()
    on_disk.flush()
    found = statistics(np.load(tmp_path / "x.npy", mmap_mode="r"), labels.numpy(), space)
    expected = statistics(inputs, labels, space)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("kind", ["disjoint", "iid", "dirichlet"])
def test_ten_parties_have_the_sums_of_one_place(kind):
    inputs, labels, space = digits()
    rng = np.random.default_rng(1)
    shares = rng.dirichlet(np.full(10, 0.3), size=10)
    owner = {
        "disjoint": labels.numpy(),
        "iid": rng.integers(10, size=len(labels)),
        "dirichlet": np.array([rng.choice(10, p=shares[c]) for c in labels]),
    }[kind]
    parts = [statistics(inputs[owner == k], labels[owner == k], space) for k in range(10)]
    assert relative(add(parts, space), statistics(inputs, labels, space)) < 1e-14


def test_a_party_can_be_taken_away_again():
    inputs, labels, space = digits()
    one, other = (statistics(inputs[labels % 2 == k], labels[labels % 2 == k], space) for k in (0, 1))
    left = subtract(add([one, other], space), other, space)
    assert relative(left, one) < 1e-13
    assert torch.equal(left["count"], one["count"])
    assert not left["total"][1].any()


def other_space(space):
    return ClassSpace(space.names, -space.semantics, space.attribute_names, space.seen, [], space.unseen)


def test_what_does_not_add_up_is_refused():
    inputs, labels, space = digits()
    good = statistics(inputs, labels, space)
    elsewhere = statistics(inputs, labels, other_space(space))
    for call, words in (
        (lambda: add([good, elsewhere], space), "^the sums are of another class space or another quantization: all"),
        (lambda: add([good, statistics(inputs[:, :9], labels, space)], space), "^sums over features of 9 numbers do"),
        (lambda: add([good | {"total": 0 / (0 * good["total"])}], space), "^the sums hold numbers that are not finite"),
        (lambda: add([good | {"square": good["square"][1:]}], space), "^the sums are damaged, their parts do not fit"),
        (lambda: statistics(torch.zeros(1, 20_000), labels[:1], space), "make a matrix of 3 GiB: reduce them to 16384"),
        (lambda: add([], space), "^there are no sums to add: at least one party must send some$"),
        (lambda: subtract(good, add([good, good], space), space), "^the sums to take away hold more samples of '3'"),
        (lambda: statistics(inputs / 0, labels, space), "^the sums over samples are not finite: leave out those"),
    ):
        with pytest.raises(DataError, match=words):
            call()


def test_sums_of_longer_samples_than_agreed_are_told():
    inputs, labels, space = digits()
    clip_norm = float(inputs.norm(dim=1).median())
    assert validate_statistics(statistics(inputs, labels, space, clip_norm), clip_norm) == ""
    assert validate_statistics(statistics(2 * inputs, labels, space), clip_norm) == (
        f"their samples are longer than {clip_norm:g} on average"
    )


def test_sums_that_no_samples_have_are_told_from_those_of_samples():
    inputs, labels, space = digits()
    whole, few = statistics(inputs, labels, space), statistics(inputs[:3], labels[:3], space)
    for real in (whole, few, statistics(inputs[:0], labels[:0], space), statistics(1e6 * inputs, labels, space)):
        assert validate_statistics(real) == ""
    square = unpacked(whole["square"], 64)
    i, j = square.diagonal().topk(2).indices.tolist()
    square[i, j] = square[j, i] = 1.5 * square[i, i]  # more than two features can have in common
    for change, why in (
        ({"count": whole["count"] - 1000}, "a class has fewer than no samples"),
        ({"count": torch.where(torch.arange(10) == 4, 0.0, whole["count"])}, "a class without samples has a sum"),
        ({"total": 3 * whole["total"]}, "their second moments are too small for their means"),
        ({"square": packed(square)}, "their second moments are not a sum of squares"),
    ):
        assert validate_statistics(whole | change) == why, why
