"""Random Fourier features: against the kernel that they stand for, and against single rows."""

import numpy as np
import pytest
import torch

from fedunseen.core.bounds import check_statistics
from fedunseen.core.errors import RefusedError
from fedunseen.data import Quantization, Scaler
from fedunseen.data.kernel import Kernel, bound_of

ROWS = np.random.default_rng(0).normal(3.0, [0.1, 5.0, 200.0], (300, 3)).astype(np.float32)
STEPS = ("standard", "kernel")


def test_products_are_the_gaussian_kernel_of_standardized_samples():
    z = Scaler.fit(ROWS, STEPS, Kernel(20_000))(ROWS)
    x = Scaler.fit(ROWS, ("standard",))(ROWS).astype(np.float64)
    squares = ((x[:, None] - x[None]) ** 2).sum(2)
    width = 0.7 * np.sqrt(squares.mean())
    np.testing.assert_allclose(z @ z.T, np.exp(-squares / 2 / width**2), atol=0.04)


def test_units_and_order_of_rows_change_nothing():
    z = Scaler.fit(ROWS, STEPS)(ROWS)
    other = (ROWS * np.float32([1024.0, 0.25, 1.0]))[::-1]
    np.testing.assert_allclose(Scaler.fit(other, STEPS)(other)[::-1], z, atol=1e-5)


def test_the_seed_alone_draws_the_features():
    drawn = [Kernel(64, seed).fit(ROWS[:n].var(0)) for seed, n in ((1, 300), (1, 200), (2, 300))]
    ratio = drawn[0]["frequencies"] / drawn[1]["frequencies"]
    np.testing.assert_allclose(ratio, ratio[0, 0])  # the width alone comes from samples
    assert np.array_equal(drawn[0]["phases"], drawn[1]["phases"])
    assert not np.allclose(drawn[0]["phases"], drawn[2]["phases"])


def test_stated_bounds_fix_the_features_without_a_sample():
    """They are those of samples that are uniform within the bounds."""
    rows = np.random.default_rng(0).random((5000, 50)).astype(np.float32)
    ends = np.broadcast_to(np.float32([[0.0], [1.0]]), (2, 50))
    stated = Scaler.fit(ends, ("min-max", "kernel"), Kernel(64, stated=True))(rows)
    fitted = Scaler.fit(rows, ("min-max", "kernel"), Kernel(64))(rows)
    np.testing.assert_allclose(stated, fitted, atol=0.01)


def test_whole_numbers_of_a_sample_do_not_depend_on_the_others():
    scaler = Scaler.fit(ROWS, STEPS, Kernel(2048)).quantized(Quantization.of_kernel(8, 2048))
    codes, clipped = scaler.codes(ROWS)
    assert clipped == 0
    assert codes.shape == (300, 2048)
    assert codes.dtype == np.int8
    assert np.abs(codes).max() == 127
    for some in (ROWS[:1], ROWS[7:140]):
        start = 0 if len(some) == 1 else 7
        assert np.array_equal(scaler.codes(some)[0], codes[start : start + len(some)])
    np.testing.assert_allclose(scaler(ROWS), codes * scaler.quantization.step, rtol=1e-6)


def test_the_range_is_that_of_the_features():
    z = Scaler.fit(ROWS, STEPS, Kernel(512))(ROWS)
    assert 0.99 * bound_of(512) < np.abs(z).max() <= np.float32(bound_of(512))


def test_samples_that_are_all_the_same_have_features():
    z = Scaler.fit(np.ones((5, 3)), ("kernel",))(np.ones((5, 3)))
    assert np.isfinite(z).all()


def test_a_scaler_says_of_what_samples_it_makes_what():
    scaler = Scaler.fit(ROWS, STEPS, Kernel(128))
    assert scaler.width(3) == 128
    assert scaler.sample_shape((128,)) == (3,)
    assert Scaler((), {}).width(3) == 3
    assert scaler.digest() != Scaler.fit(ROWS, STEPS, Kernel(128, seed=1)).digest()


@pytest.mark.parametrize(
    ("name", "shape", "value"),
    [
        ("1.frequencies", (3, 8), 0.1),  # fewer features than a setting may ask for
        ("1.frequencies", (4, 64), 0.1),  # of another sample
        ("1.frequencies", (3, 64), np.inf),
        ("1.phases", (3, 64), 7.0),
        ("1.phases", (64, 64), 0.1),
    ],
)
def test_a_party_takes_no_other_numbers_of_a_kernel(name, shape, value):
    check_statistics(
        {"1.frequencies": torch.ones(3, 64), "1.phases": torch.ones(64)}, [3], "semantics"
    )
    with pytest.raises(RefusedError):
        check_statistics({name: torch.full(shape, value)}, [3], "semantics")
