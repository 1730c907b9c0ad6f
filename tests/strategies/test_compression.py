"""Short forms of updates: each against a slow, obvious reference, in its limits, and against what no one may send."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedunseen.core.parameters import add_scaled, size_in_bytes
from fedunseen.strategies.compression import FORMS, Codec, CompressionSettings

SHAPES = {"f.weight": (12, 7), "f.bias": (7,), "conv.weight": (6, 2, 3, 3), "f.running_var": (9,)}
NAMES = sorted(FORMS)


def made(name, **more):
    return Codec(CompressionSettings(name=name, **more), seed=3)


def change(seed=0):
    rng = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=rng) for name, shape in SHAPES.items()}


def like():
    return {name: torch.zeros(shape) for name, shape in SHAPES.items()}


def sent(codec, update, state=None):
    """Return what a client sends whose parameters change by ``update``, what arrives, and the client's new state."""
    short, state = codec.encode(update, state or {})
    return short, codec.decode(short, like()), state


def slow_8_bit(value):
    flat = value.reshape(-1).numpy()
    step = np.float32(max(abs(x) for x in flat)) / np.float32(127)
    return torch.from_numpy(np.array([np.float32(round(float(x / step))) * step for x in flat])).reshape(value.shape)


def slow_low_rank(value, start):
    """Gram and Schmidt on M Q, column by column, then the projection of M on what they span."""
    matrix = value.reshape(value.shape[0], -1).double()
    basis = []
    for column in (matrix @ start.double()).T:
        for item in basis:
            column = column - (item @ column) * item
        basis.append(column / column.norm())
    return sum(torch.outer(item, item @ matrix) for item in basis).reshape(value.shape)


def test_each_form_is_its_slow_reference():
    update = change()
    _, got, _ = sent(made("8-bit"), update)
    for name in ("f.weight", "f.bias", "conv.weight"):
        torch.testing.assert_close(got[name], slow_8_bit(update[name]), rtol=0, atol=0)
    codec = made("low-rank", rank=2)
    _, got, _ = sent(codec, update)
    for name in ("f.weight", "conv.weight"):
        start = codec.start(name, codec.parts(name, update[name]), update[name])
        assert torch.allclose(got[name].double(), slow_low_rank(update[name], start), atol=1e-5)
    assert torch.equal(got["f.bias"], update["f.bias"])  # a vector has no low rank


def test_the_bytes_of_each_form():
    """84 + 7 + 108 + 9 numbers of four bytes; the last nine travel as they are."""
    update = change()
    assert size_in_bytes(update) == 4 * 208
    assert size_in_bytes(sent(made("8-bit"), update)[0]) == 199 + 3 * 4 + 36
    assert size_in_bytes(sent(made("low-rank", rank=1), update)[0]) == 4 * ((12 + 7) + 7 + (6 + 18)) + 36


@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_out_comes_later(name):
    """After any number of rounds, what has arrived and what is left add up to what the client has done."""
    codec, state = made(name), None
    arrived, done = {}, {}
    for round in range(6):
        update = change(round)
        _, got, state = sent(codec, update, state)
        done = add_scaled(done or {n: torch.zeros_like(v) for n, v in update.items()}, [update], [1.0])
        arrived = add_scaled(arrived or {n: torch.zeros_like(v) for n, v in update.items()}, [got], [1.0])
    for key, value in done.items():
        left = state.get(f"left/{key}", torch.zeros(()))
        assert torch.allclose(arrived[key] + left, value, atol=1e-5)


def test_the_search_for_factors_goes_on_from_the_last_round():
    """Subspace iteration of one matrix comes near its best approximation of that rank."""
    matrix = change()["f.weight"]
    u, s, v = torch.linalg.svd(matrix)
    best = (matrix - (u[:, :2] * s[:2]) @ v[:2]).norm()
    codec, update = made("low-rank", rank=2), {"f.weight": matrix}
    state, error = {}, []
    for _ in range(60):
        state.pop("left/f.weight", None)  # the same matrix again, not what is left of it
        short, state = codec.encode(update, state)
        error.append(float((matrix - codec.decode(short, update)["f.weight"]).norm()))
    assert error[0] > 1.05 * best
    assert error[-1] == pytest.approx(float(best), rel=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_an_update_of_zeros_and_one_that_is_not_finite(name):
    zero = {key: torch.zeros(shape) for key, shape in SHAPES.items()}
    assert all(not value.any() for value in sent(made(name), zero)[1].values())
    for bad in (torch.nan, torch.inf):
        spoilt = change()
        spoilt["f.weight"][3, 4] = bad
        short, _ = made(name).encode(spoilt, {})
        assert not all(torch.isfinite(value).all() for value in short.values() if value.is_floating_point())


@pytest.mark.parametrize(
    ("key", "spoil", "why"),
    [
        ("f.weight:scale", torch.neg, "its scale is below zero"),
        ("f.weight:code", lambda t: torch.full_like(t, -128), "a code is below -127"),
    ],
)
def test_what_stands_for_no_update_is_refused(key, spoil, why):
    codec = made("8-bit")
    short, _, _ = sent(codec, change())
    with pytest.raises(ValueError, match=f"'f.weight' of its update cannot be read: {why}"):
        codec.decode({**short, key: spoil(short[key])}, like())


@pytest.mark.parametrize("name", NAMES)
def test_the_form_that_is_expected_is_sent_and_running_statistics_travel_as_they_are(name):
    codec, update = made(name), change()
    short, got, _ = sent(codec, update)
    assert torch.equal(short["f.running_var"], update["f.running_var"])
    assert torch.equal(got["f.running_var"], update["f.running_var"])
    expected = codec.expects(like())
    assert short.keys() == expected.keys()
    for key, value in expected.items():
        assert (short[key].shape, short[key].dtype) == (value.shape, value.dtype)


def test_a_rank_without_low_rank_is_refused():
    with pytest.raises(ValidationError, match="rank has no effect with name = '8-bit': it is for name = 'low-rank'"):
        CompressionSettings(name="8-bit", rank=3)
