"""The networks that are trained here against PyTorch's own and published sizes: small convolutional
ones, and a GRU.
"""

from collections import OrderedDict

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedunseen.encoders.conv import (
    Conv,
    Conv4,
    Conv4Settings,
    ConvSettings,
    ResNet12,
    ResNet12Settings,
)
from fedunseen.encoders.gru import GRUBackbone
from same import same

pytestmark = pytest.mark.usefixtures("one_thread")

PAIRS, COLOUR = (1, 8, 16), (3, 32, 32)


def backbone(shape=PAIRS, output="vectors", **settings):
    return Conv(ConvSettings(**settings), shape, output).backbone()


@pytest.mark.parametrize(
    ("shape", "settings", "maps", "vectors"),
    [
        (PAIRS, {}, (64, 2, 4), (512,)),
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


def block(place, inputs, outputs, norm):
    layers = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), norm, nn.ReLU(), nn.MaxPool2d(2)
    return {
        f"{kind}{place}": layer
        for kind, layer in zip(("conv", "norm", "relu", "pool"), layers, strict=True)
    }


def test_it_is_the_network_that_torch_has():
    network = backbone(COLOUR, "maps", widths=(8, 16), norm="group")
    params = network.init(np.random.default_rng(0))
    params["f.norm0.weight"], params["f.norm1.bias"] = torch.rand(8), torch.rand(16)
    reference = nn.Sequential(
        OrderedDict(block(0, 3, 8, nn.GroupNorm(1, 8)) | block(1, 8, 16, nn.GroupNorm(2, 16)))
    )
    reference.load_state_dict({name.removeprefix("f."): value for name, value in params.items()})
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
        leaves = {name: value.clone().requires_grad_() for name, value in client.items()}
        alone = torch.autograd.grad(loss(leaves, images[k]), list(leaves.values()))
        for name, gradient in zip(leaves, alone, strict=True):
            torch.testing.assert_close(together[name][k], gradient, rtol=1e-4, atol=1e-6)


def test_batch_statistics_are_those_of_batchnorm():
    network = backbone(norm="batch", widths=(8,), output="maps")
    assert not network.batched
    params = network.init(np.random.default_rng(0))
    reference = nn.Sequential(OrderedDict(block(0, 1, 8, nn.BatchNorm2d(8))))
    reference.conv0.weight.data = params["f.conv0.weight"].clone()
    mean, var = params["f.norm0.running_mean"], params["f.norm0.running_var"]
    for _ in range(3):
        images = torch.rand(6, *PAIRS)
        torch.testing.assert_close(network(params, images, training=True), reference(images - 0.5))
    leaf = params["f.conv0.weight"].requires_grad_()
    (own,) = torch.autograd.grad(network(params, images, training=True).square().sum(), leaf)
    (expected,) = torch.autograd.grad(
        reference(images - 0.5).square().sum(), reference.conv0.weight
    )
    torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-4)
    assert mean is params["f.norm0.running_mean"]  # updated where it is
    torch.testing.assert_close(
        (mean, var), (reference.norm0.running_mean, reference.norm0.running_var)
    )
    before = {"mean": mean.clone(), "var": var.clone()}
    images = torch.rand(6, *PAIRS)
    torch.testing.assert_close(network(params, images), reference.eval()(images - 0.5))
    network(params, images[:1], training=True)  # one image has no spread between samples
    assert same({"mean": mean, "var": var}, before)


def test_multiply_adds_are_counted_by_hand():
    assert backbone(widths=(32, 64)).multiply_adds() == 8 * 16 * 9 * 32 + 4 * 8 * 9 * 32 * 64


def count(network):
    return sum(value.numel() for value in network.init(np.random.default_rng(0)).values())


WIDTHS = {
    12.42: (64, 160, 320, 640),
    8.0: (64, 128, 256, 512),
    4.88: (50, 100, 200, 400),
    2.23: (64, 96, 128, 256),
}


@pytest.mark.slow
@pytest.mark.parametrize(("millions", "widths"), WIDTHS.items())
def test_resnet12_and_conv4_have_the_published_numbers_of_parameters(millions, widths):
    large = ResNet12(ResNet12Settings(widths=widths), (3, 84, 84), "vectors").backbone()
    assert (large.shape, count(large) / 1e6) == ((widths[-1],), pytest.approx(millions, abs=0.005))
    # 28 x 28 gray images, 32 channels: 28,320 without the classifier, less four biases of
    # convolutions (128)
    small = Conv4(Conv4Settings(), (1, 28, 28), "vectors").backbone()
    assert (small.shape, count(small)) == ((32,), 28_485 - (32 * 5 + 5) - 4 * 32)


def test_resnet12_written_out():
    """One block, as the papers describe it: three convolutions and a shortcut, added, then
    LeakyReLU and pooling.
    """
    network = ResNet12(
        ResNet12Settings(widths=(8,), norm="batch-statistics"), (2, 6, 6), "maps"
    ).backbone()
    params = network.init(np.random.default_rng(1))
    images = torch.rand(3, 2, 6, 6)

    def norm(maps):
        variance = maps.var((0, 2, 3), keepdim=True, unbiased=False)
        return (maps - maps.mean((0, 2, 3), keepdim=True)) / (variance + 1e-5).sqrt()

    through = maps = images - 0.5
    for j in range(3):
        through = norm(F.conv2d(through, params[f"f.block0.conv{j}.weight"], padding=1))
        through = F.leaky_relu(through, 0.1) if j < 2 else through
    expected = F.leaky_relu(through + norm(F.conv2d(maps, params["f.block0.shortcut.weight"])), 0.1)
    torch.testing.assert_close(
        network(params, images), F.max_pool2d(expected, 2), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("kind", [Conv4, ResNet12])
def test_two_outputs_can_be_drawn_in_a_plane(kind):
    settings = kind.Settings(widths=(8,), outputs=2)
    vectors, maps = (kind(settings, (1, 8, 8), output).backbone() for output in ("vectors", "maps"))
    params = vectors.init(np.random.default_rng(0))
    assert (vectors.shape, vectors(params, torch.rand(5, 1, 8, 8)).shape) == ((2,), (5, 2))
    assert "f.out.weight" not in maps.init(np.random.default_rng(0))


def test_batch_statistics_are_those_of_the_samples_at_hand():
    """An image's features depend on what else is in the batch, in tests too; with groups they do
    not.
    """
    images = torch.rand(4, 1, 8, 8)
    for norm, alike in (("group", True), ("batch-statistics", False)):
        network = backbone((1, 8, 8), norm=norm, widths=(8,))
        params = network.init(np.random.default_rng(0))
        assert (
            torch.allclose(network(params, images)[:2], network(params, images[:2]), atol=1e-6)
            == alike
        )
        assert network.batched


def test_the_gru_is_pytorchs_and_padding_at_the_end_changes_nothing():
    torch.manual_seed(0)
    network = GRUBackbone((5, 3), hidden=7)
    params = network.init(np.random.default_rng(0))
    reference = torch.nn.GRU(3, 7, batch_first=True)
    with torch.no_grad():
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(reference, f"{name}_l0").copy_(params[f"f.gru.{name}"])
        sequences = torch.randn(6, 5, 3)
        torch.testing.assert_close(network(params, sequences), reference(sequences)[1][0])
    padded = torch.cat([sequences[:, :3], torch.zeros(6, 2, 3)], 1)
    torch.testing.assert_close(network(params, padded), network(params, sequences[:, :3]))


def test_the_gru_maps_over_tasks_and_differentiates_twice():
    network = GRUBackbone((3, 2), hidden=4)
    params = {n: v.double() for n, v in network.init(np.random.default_rng(0)).items()}
    tasks = torch.randn(5, 6, 3, 2, dtype=torch.float64)

    def gradient(own, sequences):
        return (
            torch.func.grad(lambda p: network(p, sequences).square().sum())(own)["f.gru.weight_hh"]
            .square()
            .sum()
        )

    mapped = torch.func.vmap(torch.func.grad(gradient), in_dims=(None, 0))(params, tasks)
    for name, value in torch.func.grad(gradient)(params, tasks[2]).items():
        torch.testing.assert_close(mapped[name][2], value)
