"""Networks of few-shot learning against PyTorch's own and published sizes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedunseen.encoders.conv import (
    Conv4Settings,
    ConvBackbone,
    ConvSettings,
    ResNet12,
    ResNet12Backbone,
    ResNet12Settings,
)
from fedunseen.encoders.gru import GRUBackbone, GRUSettings


def count(params):
    return sum(value.numel() for value in params.values())


@pytest.mark.parametrize(
    ("widths", "millions"),
    [
        ((64, 160, 320, 640), 12.42), ((64, 128, 256, 512), 8.00), ((50, 100, 200, 400), 4.88),
        ((64, 96, 128, 256), 2.23),
    ],
)  # fmt: skip
def test_resnet12_and_conv4_have_the_published_numbers_of_parameters(widths, millions):
    backbone = ResNet12(ResNet12Settings(widths=widths), (3, 84, 84), "vectors").backbone()
    assert count(backbone.init(np.random.default_rng(0))) / 1e6 == pytest.approx(millions, abs=0.005)
    assert backbone.shape == (widths[-1],)
    # 28 x 28 gray images, 32 channels: 28,320 without the classifier, less four biases of convolutions (128)
    backbone = ConvBackbone(Conv4Settings(), (1, 28, 28), "vectors")
    assert (backbone.shape, count(backbone.init(np.random.default_rng(0)))) == ((32,), 28_485 - (32 * 5 + 5) - 4 * 32)


def test_resnet12_written_out():
    """One block, as the papers describe it: three convolutions and a shortcut, added, then LeakyReLU and pooling."""
    backbone = ResNet12Backbone(ResNet12Settings(widths=(8,), norm="batch-statistics"), (2, 6, 6), "maps")
    params = backbone.init(np.random.default_rng(1))
    images = torch.rand(3, 2, 6, 6)

    def norm(maps):
        variance = maps.var((0, 2, 3), keepdim=True, unbiased=False)
        return (maps - maps.mean((0, 2, 3), keepdim=True)) / (variance + 1e-5).sqrt()

    maps = images - 0.5
    through = maps
    for j in range(3):
        through = norm(F.conv2d(through, params[f"f.block0.conv{j}.weight"], padding=1))
        through = F.leaky_relu(through, 0.1) if j < 2 else through
    expected = F.leaky_relu(through + norm(F.conv2d(maps, params["f.block0.shortcut.weight"])), 0.1)
    torch.testing.assert_close(backbone(params, images), F.max_pool2d(expected, 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [ConvBackbone, ResNet12Backbone])
def test_two_outputs_can_be_drawn_in_a_plane(kind):
    settings = {ConvBackbone: Conv4Settings, ResNet12Backbone: ResNet12Settings}[kind](widths=(8,), outputs=2)
    backbone = kind(settings, (1, 8, 8), "vectors")
    params = backbone.init(np.random.default_rng(0))
    assert (backbone.shape, backbone(params, torch.rand(5, 1, 8, 8)).shape) == ((2,), (5, 2))
    assert "f.out.weight" not in kind(settings, (1, 8, 8), "maps").init(np.random.default_rng(0))


def test_batch_statistics_are_those_of_the_samples_at_hand():
    """An image's features depend on what else is in the batch, in tests too; with groups they do not."""
    images = torch.rand(4, 1, 8, 8)
    for norm, alike in (("group", True), ("batch-statistics", False)):
        backbone = ConvBackbone(ConvSettings(norm=norm, widths=(8,)), (1, 8, 8), "vectors")
        params = backbone.init(np.random.default_rng(0))
        together, alone = backbone(params, images)[:2], backbone(params, images[:2])
        assert torch.allclose(together, alone, atol=1e-6) == alike
        assert backbone.batched


def test_the_gru_is_pytorchs_and_padding_at_the_end_changes_nothing():
    torch.manual_seed(0)
    backbone = GRUBackbone(GRUSettings(hidden=7), (5, 3))
    params = backbone.init(np.random.default_rng(0))
    reference = torch.nn.GRU(3, 7, batch_first=True)
    with torch.no_grad():
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(reference, f"{name}_l0").copy_(params[f"f.gru.{name}"])
        sequences = torch.randn(6, 5, 3)
        torch.testing.assert_close(backbone(params, sequences), reference(sequences)[1][0])
    padded = torch.cat([sequences[:, :3], torch.zeros(6, 2, 3)], 1)
    torch.testing.assert_close(backbone(params, padded), backbone(params, sequences[:, :3]))


def test_the_gru_maps_over_tasks_and_differentiates_twice():
    backbone = GRUBackbone(GRUSettings(hidden=4), (3, 2))
    params = {n: v.double() for n, v in backbone.init(np.random.default_rng(0)).items()}
    tasks = torch.randn(5, 6, 3, 2, dtype=torch.float64)

    def gradient(own, sequences):
        return torch.func.grad(lambda p: backbone(p, sequences).square().sum())(own)["f.gru.weight_hh"].square().sum()

    mapped = torch.func.vmap(torch.func.grad(gradient), in_dims=(None, 0))(params, tasks)
    alone = torch.func.grad(gradient)(params, tasks[2])
    for name, value in alone.items():
        torch.testing.assert_close(mapped[name][2], value)
