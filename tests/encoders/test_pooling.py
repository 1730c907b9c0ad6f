"""Max pooling against PyTorch's, to the last bit: values, gradients of gradients, mapped over, and odd inputs."""

import pytest
import torch
import torch.nn.functional as F

from fedunseen.encoders.pooling import halve

SHAPES = [(3, 2, 8, 8), (2, 3, 7, 5), (1, 1, 2, 2), (4, 2, 21, 3), (2, 2, 1, 6)]


def by_torch(maps):
    return F.max_pool2d(maps, 2)


def drawn(shape, dtype=torch.float32):
    """Small whole numbers: of four places several are often the largest."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def gradients(pool, maps):
    """Return the pooled maps, a gradient that is not constant, and a gradient of that gradient."""
    maps = maps.clone().requires_grad_()
    pooled = pool(maps)
    weights = torch.arange(pooled.numel(), dtype=maps.dtype).view_as(pooled) + 1
    (once,) = torch.autograd.grad((weights * pooled.pow(3)).sum(), maps, create_graph=True)
    (twice,) = torch.autograd.grad((once * torch.arange(maps.numel()).view_as(maps)).sum(), maps)
    return pooled.detach(), once.detach(), twice


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_it_is_pytorchs_to_the_last_bit_ties_and_odd_sizes_included(shape, dtype):
    if min(shape[-2:]) < 2:
        with pytest.raises(RuntimeError, match="Output size is too small"):
            halve(drawn(shape, dtype))
        return
    for ours, theirs in zip(
        gradients(halve, drawn(shape, dtype)), gradients(by_torch, drawn(shape, dtype)), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_other_layouts_of_memory_are_pooled_as_well():
    maps = drawn((2, 4, 6, 6)).contiguous(memory_format=torch.channels_last)
    for ours, theirs in zip(gradients(halve, maps), gradients(by_torch, maps), strict=True):
        assert torch.equal(ours, theirs)


def test_the_gradient_is_that_of_finite_differences():
    maps = torch.randn(2, 2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(halve, (maps,))
    assert torch.autograd.gradgradcheck(halve, (maps,))


def test_nan_and_infinities_go_through():
    maps = drawn((1, 1, 4, 4))
    maps[0, 0, 0, 1], maps[0, 0, 2, 0], maps[0, 0, 3, 3] = float("nan"), float("inf"), float("-inf")
    torch.testing.assert_close(halve(maps), by_torch(maps), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("in_dim", [0, 2])
def test_mapped_over_it_is_one_at_a_time(in_dim):
    """As the trainer does: clients, or tasks, are one more dimension, and gradients are taken inside."""
    maps = drawn((5, 3, 2, 6, 6)).movedim(0, in_dim)

    def second(pool, one):
        inner = torch.func.grad(lambda given: pool(given).pow(3).sum())
        return torch.func.grad(lambda given: (inner(given) ** 2).sum())(one)

    mapped = torch.func.vmap(lambda one: second(halve, one), in_dims=in_dim)(maps)
    for one, result in zip(maps.movedim(in_dim, 0), mapped, strict=True):
        assert torch.equal(result, second(by_torch, one))


@pytest.mark.parametrize("in_dim", [0, 2])
def test_gradients_are_taken_of_what_was_mapped_over(in_dim):
    """As a step over tasks does: the tasks are one more dimension, and the gradient is that of their mean."""
    maps = drawn((5, 3, 2, 6, 7)).movedim(0, in_dim)

    def mapped(pool):
        return lambda given: torch.func.vmap(pool, in_dims=in_dim)(given)

    for ours, theirs in zip(gradients(mapped(halve), maps), gradients(mapped(by_torch), maps), strict=True):
        assert torch.equal(ours, theirs)


def test_maps_of_maps_and_gradients_in_between():
    """As batched clients with batched tasks do."""
    maps = drawn((4, 5, 3, 2, 6, 6))

    def client(pool, given):
        return torch.func.grad(lambda tasks: torch.func.vmap(pool)(tasks).pow(3).sum())(given)

    ours, theirs = (torch.func.vmap(lambda one, pool=pool: client(pool, one))(maps) for pool in (halve, by_torch))
    assert torch.equal(ours, theirs)


def test_what_was_pooled_can_be_changed_by_nobody_before_the_backward_pass():
    maps = drawn((1, 1, 4, 4)).requires_grad_()
    scaled = 2 * maps
    pooled = halve(scaled)
    scaled.mul_(-1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        pooled.sum().backward()
