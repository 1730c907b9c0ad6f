"""The small convolutional network: shapes, gradients, clients at once, running statistics, unseen pairs."""

import numpy as np
import pytest
import torch
from torch import nn

from fedunseen.encoders.conv import Conv, ConvSettings
from same import same

pytestmark = pytest.mark.usefixtures("one_thread")

PAIRS, COLOUR = (1, 8, 16), (3, 32, 32)


def backbone(shape=PAIRS, output="vectors", **settings):
    return Conv(ConvSettings(**settings), shape, output).backbone()


@pytest.mark.parametrize(
    ("shape", "settings", "maps", "vectors"),
    [
        (PAIRS, {}, (64, 2, 4), (512,)),
        (PAIRS, {"smallest": 4}, (64, 4, 8), (2048,)),
        (COLOUR, {"widths": (8, 16, 24)}, (24, 4, 4), (384,)),
        ((3, 5, 7), {"widths": (3, 4)}, (4, 2, 3), (24,)),
    ],
)
def test_shapes_are_what_comes_out(shape, settings, maps, vectors):
    images = torch.rand(2, *shape)
    for output, expected in (("maps", maps), ("vectors", vectors)):
        network = backbone(shape, output, **settings)
        assert network.shape == expected
        features = network(network.init(np.random.default_rng(0)), images)
        assert (features.shape, features.dtype) == ((2, *expected), torch.float32)


def block(inputs, outputs, norm):
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), norm, nn.ReLU(), nn.MaxPool2d(2)


def test_it_is_the_network_that_torch_has():
    network = backbone(COLOUR, "maps", widths=(8, 16), norm="group")
    params = network.init(np.random.default_rng(0))
    params["f.norm0.weight"], params["f.norm1.bias"] = torch.rand(8), torch.rand(16)
    reference = nn.Sequential(*block(3, 8, nn.GroupNorm(1, 8)), *block(8, 16, nn.GroupNorm(2, 16)))
    places = {"conv0": "0", "norm0": "1", "conv1": "4", "norm1": "5"}
    state = {}
    for name, value in params.items():
        _, layer, kind = name.split(".")
        state[f"{places[layer]}.{kind}"] = value
    reference.load_state_dict(state)
    images = torch.rand(2, *COLOUR)
    torch.testing.assert_close(network(params, images), reference(images - 0.5))


def test_init_depends_on_the_generator_alone_and_keeps_the_scale():
    network = backbone(COLOUR, widths=(64, 64), norm="none")
    torch.manual_seed(1)
    first = network.init(np.random.default_rng(5))
    torch.manual_seed(2)
    assert same(first, network.init(np.random.default_rng(5)))
    assert all(name.startswith("f.") for name in first)
    assert first["f.conv1.weight"].std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)


def by_tape(loss, params):
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    return dict(zip(leaves, torch.autograd.grad(loss(leaves), list(leaves.values())), strict=True))


@pytest.mark.parametrize("norm", ["group", "none"])
@pytest.mark.parametrize("output", ["vectors", "maps"])
def test_clients_at_once_are_clients_one_by_one(norm, output):
    network = backbone(norm=norm, output=output, widths=(8, 16))
    assert network.batched
    clients = [network.init(np.random.default_rng(k)) for k in range(3)]
    images, goal = torch.rand(3, 5, 128), torch.rand(network.shape)

    def loss(params, images):
        return (network(params, images, training=True) - goal).square().mean()

    stacked = {name: torch.stack([client[name] for client in clients]) for name in clients[0]}
    together = torch.func.vmap(torch.func.grad(loss))(stacked, images)
    for k, client in enumerate(clients):
        alone = by_tape(lambda params, k=k: loss(params, images[k]), client)
        for name, gradient in alone.items():
            torch.testing.assert_close(together[name][k], gradient, rtol=1e-4, atol=1e-6)


def test_batch_statistics_are_those_of_batchnorm():
    network = backbone(norm="batch", widths=(8,), output="maps")
    assert not network.batched
    params = network.init(np.random.default_rng(0))
    reference = nn.Sequential(*block(1, 8, nn.BatchNorm2d(8)))
    reference[0].weight.data = params["f.conv0.weight"].clone()
    mean, var = params["f.norm0.running_mean"], params["f.norm0.running_var"]
    for _ in range(3):
        images = torch.rand(6, *PAIRS)
        torch.testing.assert_close(network(params, images, training=True), reference(images - 0.5))
    leaf = params["f.conv0.weight"].requires_grad_()
    (own,) = torch.autograd.grad(network(params, images, training=True).square().sum(), leaf)
    (expected,) = torch.autograd.grad(reference(images - 0.5).square().sum(), reference[0].weight)
    torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-4)
    assert mean is params["f.norm0.running_mean"]  # updated where it is
    torch.testing.assert_close(mean, reference[1].running_mean)
    torch.testing.assert_close(var, reference[1].running_var)
    before = mean.clone(), var.clone()
    images = torch.rand(6, *PAIRS)
    torch.testing.assert_close(network(params, images), reference.eval()(images - 0.5))
    network(params, images[:1], training=True)  # one image has no spread between samples
    assert torch.equal(mean, before[0])
    assert torch.equal(var, before[1])


def test_multiply_adds_are_counted_by_hand():
    assert backbone(widths=(32, 64)).multiply_adds() == 8 * 16 * 9 * 32 + 4 * 8 * 9 * 32 * 64
