import numpy as np
import pytest
from sklearn.preprocessing import MinMaxScaler, StandardScaler, normalize

from fedunseen.data import Quantization, Scaler, fit_semantics, scaling
from refusals import message_of

REFERENCES = {
    "l2": lambda train, rows: normalize(rows),
    "min-max": lambda train, rows: MinMaxScaler().fit(train).transform(rows),
    "centre": lambda train, rows: rows - train.mean(axis=0),
    "x10": lambda train, rows: 10 * rows,
    "standard": lambda train, rows: StandardScaler().fit(train).transform(rows),
}


@pytest.mark.parametrize(
    "steps", [*((step,) for step in REFERENCES), ("l2", "centre", "l2"), ("centre", "l2", "x10")]
)
@pytest.mark.parametrize(
    "block", [scaling.BLOCK, 6 * 16]
)  # one block, and several with an uneven end
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint8, np.int16, ">f4"])
def test_agrees_with_scikit_learn_fitted_on_the_training_rows(dtype, steps, block, monkeypatch):
    rows = np.random.default_rng(0).uniform(1, 200, (70, 6)).astype(dtype)
    monkeypatch.setattr(scaling, "BLOCK", block)
    scaled = Scaler.fit(rows[:50], steps)(rows)
    assert scaled.dtype == np.float32
    train, expected = rows[:50].astype(np.float64), rows.astype(np.float64)
    for step in steps:
        train, expected = REFERENCES[step](train, train), REFERENCES[step](train, expected)
    np.testing.assert_allclose(scaled, expected, atol=2e-5)


@pytest.mark.parametrize("step", ["min-max", "standard"])
def test_a_constant_column_becomes_zero(step):
    rows = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    rows[:, 1] = 0.1  # its mean in floating point is not 0.1
    scaler = Scaler.fit(rows, (step,))
    scaled = scaler(np.append(rows, [[1, 50, 1]], axis=0).astype(np.float32))
    assert np.isfinite(scaled).all()
    assert not scaled[:, 1].any()


def test_zeros_stay_under_l2_large_rows_do_not_overflow_and_the_source_is_left_alone():
    rows = np.array([[0, 0], [3e30, 4e30]], dtype=np.float32)
    np.testing.assert_allclose(Scaler.fit(rows, ("l2",))(rows), [[0, 0], [0.6, 0.8]], rtol=1e-6)
    rows = np.ones((4, 2), dtype=np.float32)
    assert Scaler.fit(rows, ())(rows) is rows
    Scaler.fit(rows, ("centre", "l2"))(rows)
    assert (rows == 1).all()


def test_semantics_that_scaling_erases_are_refused(make_space):
    space = make_space(
        3, unseen=(2,), validation=(), attributes=2, semantics=np.array([[1, 2], [3, 4], [2, 3.0]])
    )
    said = message_of(fit_semantics, space, ("centre", "l2"))
    reason = "leave the class 'class 2' only zeros as attributes: choose others in data.semantics"
    assert said == f"the scalings centre, l2 {reason}"


@pytest.mark.parametrize(
    "steps", [(), ("centre", "l2"), ("standard",), ("min-max", "x10"), ("l2",)]
)
def test_the_mean_of_scaled_parts_is_what_their_mean_is_scaled_to(steps):
    rng = np.random.default_rng(0)
    maps = rng.normal(size=(6, 4, 2, 5)).astype(np.float32)
    rows = maps.mean((2, 3))
    scaler = Scaler.fit(rows, steps)
    scaler = scaler.quantized(Quantization.of_rows(8, 5.0, rows, scaler))
    parts = scaler.of_parts(rows, maps.reshape(6, 4, -1).transpose(0, 2, 1))
    assert parts.shape == (6, 10, 4)
    np.testing.assert_allclose(parts.mean(1), scaler.unrounded(rows), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("deviations", "several"),
    [
        ([0.12, 1.1, 315.0], True),
        ([1.0, 1.0, 14.9], False),
        ([1.0, 1.0, 15.1], True),
        ([0.0, 3.0], False),
    ],
)
def test_columns_are_in_several_units_where_their_deviations_are_far_apart(deviations, several):
    rows = np.where(np.arange(10_000) % 2, 1.0, -1.0)[:, None] * deviations
    assert scaling.in_several_units(rows) is several
    assert scaling.in_several_units(rows.astype(np.float32)) is several
