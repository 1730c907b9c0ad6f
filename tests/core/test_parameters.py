import numpy as np
import pytest
import torch

from fedunseen.core.parameters import add_scaled, difference, finite, linear_layer, size_in_bytes
from same import same


def params(a, b):
    return {"a": torch.tensor(a), "b": torch.tensor(b)}


def test_difference_is_scaled():
    new, old = params([3.0, 5.0], 1.0), params([1.0, 1.0], 4.0)
    assert same(difference(new, old), params([2.0, 4.0], -3.0))
    assert same(difference(new, old, 0.5), params([1.0, 2.0], -1.5))


def test_add_scaled_adds_in_the_order_given():
    start, big, small = ({"w": torch.tensor(value)} for value in (0.0, 1e8, 1.0))
    # In float32, 1e8 + 1 is 1e8: only the order of the additions tells these apart.
    assert add_scaled(start, [big, small, big], [1, 1, -1])["w"].item() == 0.0
    assert add_scaled(start, [big, big, small], [1, -1, 1])["w"].item() == 1.0


@pytest.mark.parametrize(
    ("bad", "answer"), [(1.0, True), (float("nan"), False), (float("-inf"), False)]
)
def test_finite_finds_a_single_bad_number(bad, answer):
    assert (
        finite({"a": torch.ones(3), "n": torch.tensor([7]), "b": torch.tensor([[0.0, bad]])})
        is answer
    )


def test_size_in_bytes_counts_each_number_by_its_type():
    tensors = [
        torch.zeros(3, 2),
        torch.zeros(5, dtype=torch.bfloat16),
        torch.zeros(2, dtype=torch.int64),
    ]
    assert size_in_bytes(tensors) == 24 + 10 + 16
    assert size_in_bytes(dict(zip("abc", tensors, strict=True))) == 50


def test_linear_layer_is_drawn_from_the_given_generator_alone():
    layer = linear_layer("g", 25, 400, np.random.default_rng(0))
    assert {name: tuple(value.shape) for name, value in layer.items()} == {
        "g.weight": (400, 25),
        "g.bias": (400,),
    }
    weight = layer["g.weight"]
    assert 0.19 < weight.abs().max() <= 0.2  # 1 / sqrt(25)
    assert abs(weight.mean()) < 0.01
    assert weight.var().item() == pytest.approx(
        0.4**2 / 12, rel=0.05
    )  # of a uniform draw over a width of 0.4
    torch.manual_seed(1)
    assert same(linear_layer("g", 25, 400, np.random.default_rng(0)), layer)
