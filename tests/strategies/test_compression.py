"""Short forms of updates: each against a slow, obvious reference, in its limits, and against what
no one may send.
"""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedunseen.core.parameters import add_scaled, size_in_bytes
from fedunseen.strategies.compression import FORMS, Codec, CompressionSettings
from refusals import message_of

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
    """Return what a client sends whose parameters change by ``update``, what arrives, and the
    client's new state.
    """
    short, state = codec.encode(update, state or {})
    return short, codec.decode(short, like()), state


def slow_top_k(value, keep):
    flat = value.reshape(-1).tolist()
    kept = sorted(range(len(flat)), key=lambda i: -abs(flat[i]))[: max(1, round(keep * len(flat)))]
    return torch.tensor([flat[i] if i in kept else 0.0 for i in range(len(flat))]).reshape(
        value.shape
    )


def slow_8_bit(value):
    flat = value.reshape(-1).numpy()
    step = np.float32(max(abs(x) for x in flat)) / np.float32(127)
    return torch.from_numpy(
        np.array([np.float32(round(float(x / step))) * step for x in flat])
    ).reshape(value.shape)


def slow_1_bit(value):
    flat = value.reshape(-1).double().tolist()
    mean = sum(abs(x) for x in flat) / len(flat)
    return torch.tensor([mean if x >= 0 else -mean for x in flat]).reshape(value.shape)


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
    for codec, slow, rtol in (
        (made("top-k", keep=0.2), lambda value: slow_top_k(value, 0.2), 0),
        (made("8-bit"), slow_8_bit, 0),
        (made("1-bit"), slow_1_bit, 1e-6),
    ):
        _, got, _ = sent(codec, update)
        for name in ("f.weight", "f.bias", "conv.weight"):
            torch.testing.assert_close(got[name], slow(update[name]), rtol=rtol, atol=0)
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
    count = {name: max(1, round(0.1 * n)) for name, n in (("w", 84), ("b", 7), ("c", 108))}
    assert size_in_bytes(sent(made("top-k", keep=0.1), update)[0]) == 8 * sum(count.values()) + 36
    assert size_in_bytes(sent(made("8-bit"), update)[0]) == 199 + 3 * 4 + 36
    assert size_in_bytes(sent(made("1-bit"), update)[0]) == 11 + 1 + 14 + 3 * 4 + 36
    assert (
        size_in_bytes(sent(made("low-rank", rank=1), update)[0])
        == 4 * ((12 + 7) + 7 + (6 + 18)) + 36
    )


@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_out_comes_later(name):
    """After any number of rounds, what has arrived and what is left add up to what the client has
    done.
    """
    codec, state, arrived, done = made(name), None, like(), like()
    for round in range(6):
        update = change(round)
        _, got, state = sent(codec, update, state)
        done, arrived = add_scaled(done, [update], [1.0]), add_scaled(arrived, [got], [1.0])
    for key, value in done.items():
        assert torch.allclose(
            arrived[key] + state.get(f"left/{key}", torch.zeros(())), value, atol=1e-5
        )


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
    assert all(not value.any() for value in sent(made(name), like())[1].values())
    for bad in (torch.nan, torch.inf):
        spoilt = change()
        spoilt["f.weight"][3, 4] = bad
        short, _ = made(name).encode(spoilt, {})
        assert not all(
            torch.isfinite(value).all() for value in short.values() if value.is_floating_point()
        )


LIES = {
    "places twice": (
        "top-k",
        "f.weight:index",
        lambda t: torch.zeros_like(t),
        "its places are not in ascending order",
    ),
    "places outside": (
        "top-k",
        "f.weight:index",
        lambda t: t + 84,
        "its places are not in ascending order",
    ),
    "places below": (
        "top-k",
        "f.weight:index",
        lambda t: t - 84,
        "its places are not in ascending order",
    ),
    "a scale below zero": ("8-bit", "f.weight:scale", lambda t: -t, "its scale is below zero"),
    "no code": (
        "8-bit",
        "f.weight:code",
        lambda t: torch.full_like(t, -128),
        "a code is below -127",
    ),
    "another scale below zero": (
        "1-bit",
        "f.weight:scale",
        lambda t: -t,
        "its scale is below zero",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_stands_for_no_update_is_refused(lie):
    name, key, spoil, why = LIES[lie]
    codec = made(name, **({"keep": 0.1} if name == "top-k" else {}))
    short, _, _ = sent(codec, change())
    refusal = message_of(codec.decode, {**short, key: spoil(short[key])}, like(), error=ValueError)
    assert f"'f.weight' of its update cannot be read: {why}" in refusal


@pytest.mark.parametrize("name", NAMES)
def test_the_form_that_is_expected_is_sent_and_running_statistics_travel_as_they_are(name):
    codec, update = made(name), change()
    short, got, _ = sent(codec, update)
    assert all(torch.equal(form["f.running_var"], update["f.running_var"]) for form in (short, got))
    forms = [
        {key: (v.shape, v.dtype) for key, v in form.items()}
        for form in (short, codec.expects(like()))
    ]
    assert forms[0] == forms[1]


@pytest.mark.parametrize(
    ("own", "value", "form"), [("keep", 0.1, "top-k"), ("rank", 3, "low-rank")]
)
def test_a_setting_of_another_form_is_refused(own, value, form):
    with pytest.raises(
        ValidationError, match=f"{own} has no effect with name = '8-bit': it is for name = '{form}'"
    ):
        CompressionSettings(name="8-bit", **{own: value})
