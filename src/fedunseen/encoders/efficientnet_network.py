"""The network of EfficientNet-Lite (M. Tan et al. 2020): to be trained, and fused for inference.

Inverted residual blocks with ReLU6, without squeeze and excitation. Padding is TensorFlow's SAME.
The names of the tensors are those of the files of weights (``_blocks.0._depthwise_conv.weight``).
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

STEM_CHANNELS = 32
CHANNELS = 1280
_WHOLE_IMAGES = 3
"""Blocks that a CPU computes image by image: their maps are large, and those of one image fit its
cache.
"""


class Variant(NamedTuple):
    """How a variant scales the network: width, depth, and the side of its images in pixels."""

    width: float
    depth: float
    side: int


class _Stage(NamedTuple):
    """Blocks of one resolution, before the variant scales them."""

    repeats: int
    kernel: int
    stride: int
    expansion: int
    channels: int


_STAGES = (
    _Stage(1, 3, 1, 1, 16),
    _Stage(2, 3, 2, 6, 24),
    _Stage(2, 5, 2, 6, 40),
    _Stage(3, 3, 2, 6, 80),
    _Stage(3, 5, 1, 6, 112),
    _Stage(4, 5, 2, 6, 192),
    _Stage(1, 3, 1, 6, 320),
)


def scaled_channels(channels: int, width: float) -> int:
    """Return the channels of a scaled layer: a multiple of eight, at most a tenth below the exact
    number.

    Example:
        >>> [scaled_channels(channels, 1.1) for channels in (16, 24, 40, 320)]
        [16, 24, 48, 352]
    """
    exact = channels * width
    rounded = max(8, int(exact + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * exact else rounded


def same_padding(side: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the cells that SAME padding adds before and behind a side, so that ceil(side / stride)
    remain.

    Example:
        >>> same_padding(224, 3, 2), same_padding(56, 5, 2), same_padding(33, 3, 2)
        ((0, 1), (1, 2), (1, 1))
    """
    total = max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
    return total // 2, total - total // 2


class PaddedConv2d(nn.Conv2d):
    """A convolution with SAME padding of maps with a fixed side.

    Attributes:
        edges: cells added before and behind each side.
    """

    def __init__(
        self, before: int, after: int, kernel: int, stride: int, side: int, groups: int = 1
    ) -> None:
        super().__init__(before, after, kernel, stride, groups=groups, bias=False)
        self.edges = same_padding(side, kernel, stride)

    def forward(self, maps: Tensor) -> Tensor:
        """Return maps (n, channels, ceil(side / stride), ceil(side / stride))."""
        first, last = self.edges
        return super().forward(F.pad(maps, (first, last, first, last)) if last else maps)


class Block(nn.Module):
    """An inverted residual block: expand, convolve each channel, project; added to what came in
    where shapes agree.
    """

    def __init__(self, before: int, stage: _Stage, side: int) -> None:
        super().__init__()
        inner = before * stage.expansion
        self.expands = stage.expansion > 1
        self.residual = stage.stride == 1 and before == stage.channels
        if self.expands:
            self._expand_conv = PaddedConv2d(before, inner, 1, 1, side)
            self._bn0 = _norm(inner)
        self._depthwise_conv = PaddedConv2d(
            inner, inner, stage.kernel, stage.stride, side, groups=inner
        )
        self._bn1 = _norm(inner)
        self._project_conv = PaddedConv2d(inner, stage.channels, 1, 1, side)
        self._bn2 = _norm(stage.channels)

    def forward(self, maps: Tensor) -> Tensor:
        """Return the block's maps."""
        inner = F.relu6(self._bn0(self._expand_conv(maps))) if self.expands else maps
        inner = F.relu6(self._bn1(self._depthwise_conv(inner)))
        projected: Tensor = self._bn2(self._project_conv(inner))
        return projected + maps if self.residual else projected

    def fused(self) -> "FusedBlock":
        """Return the block for inference."""
        layers = [FusedLayer(self._expand_conv, self._bn0)] if self.expands else []
        layers.append(FusedLayer(self._depthwise_conv, self._bn1))
        layers.append(FusedLayer(self._project_conv, self._bn2, clips=False))
        return FusedBlock(layers, self.residual)


class EfficientNetLiteNetwork(nn.Module):
    """The network without ImageNet's classifier, with random numbers; images (n, 3, side, side) to
    its last maps.
    """

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self._conv_stem = PaddedConv2d(3, STEM_CHANNELS, 3, 2, variant.side)
        self._bn0 = _norm(STEM_CHANNELS)
        self._blocks = nn.ModuleList()
        before = STEM_CHANNELS
        side = math.ceil(variant.side / 2)
        for stage in _scaled_stages(variant):
            self._blocks.append(Block(before, stage, side))
            before = stage.channels
            side = math.ceil(side / stage.stride)
        self._conv_head = PaddedConv2d(before, CHANNELS, 1, 1, side)
        self._bn1 = _norm(CHANNELS)

    def forward(self, images: Tensor) -> Tensor:
        """Return maps (n, 1280, cells, cells)."""
        maps = F.relu6(self._bn0(self._conv_stem(images)))
        for block in self._blocks:
            maps = block(maps)
        return F.relu6(self._bn1(self._conv_head(maps)))

    def fused(self) -> "FusedNetwork":
        """Return the network for inference, with these weights."""
        stem = FusedLayer(self._conv_stem, self._bn0)
        blocks = [block.fused() for block in self._blocks if isinstance(block, Block)]
        return FusedNetwork(stem, blocks, FusedLayer(self._conv_head, self._bn1))


def _scaled_stages(variant: Variant) -> list[_Stage]:
    """Return a stage for each block; the depth of the first and the last stage is fixed."""
    stages = []
    for place, stage in enumerate(_STAGES):
        inside = 0 < place < len(_STAGES) - 1
        repeats = math.ceil(stage.repeats * variant.depth) if inside else stage.repeats
        first = stage._replace(channels=scaled_channels(stage.channels, variant.width))
        stages += [first, *[first._replace(stride=1)] * (repeats - 1)]
    return stages


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=1 - 0.99)  # TensorFlow's momentum is 0.99


class FusedLayer(nn.Module):
    """A frozen convolution with its padding, its normalization and perhaps its ReLU6, in one pass
    over the maps.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, convolution: PaddedConv2d, norm: nn.BatchNorm2d, clips: bool = True) -> None:
        super().__init__()
        fused = fuse_conv_bn_eval(convolution, norm).requires_grad_(False)
        first, last = convolution.edges
        # Padding by a row more behind than before is a kernel with a row of zeros first, padded
        # alike on both sides.
        self.register_buffer("weight", F.pad(fused.weight, (last - first, 0, last - first, 0)))
        self.register_buffer("bias", fused.bias)
        self.clips = clips
        self.options = convolution.stride, last, 1, convolution.groups

    def forward(self, maps: Tensor) -> Tensor:
        """Return the layer's maps."""
        maps = F.conv2d(maps, self.weight, self.bias, *self.options)
        return maps.clamp_(0, 6) if self.clips else maps


class FusedBlock(nn.Module):
    """A block of fused layers."""

    def __init__(self, layers: list[FusedLayer], residual: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.residual = residual

    def forward(self, maps: Tensor) -> Any:
        """Return the block's maps."""
        inner = self.layers(maps)
        return inner + maps if self.residual else inner


class FusedNetwork(nn.Module):
    """The network as PyTorch is fastest: fused layers, channels last, large maps image by image."""

    def __init__(self, stem: FusedLayer, blocks: list[FusedBlock], head: FusedLayer) -> None:
        super().__init__()
        self.first = nn.Sequential(stem, *blocks[:_WHOLE_IMAGES])
        self.others = nn.Sequential(*blocks[_WHOLE_IMAGES:], head)

    def forward(self, images: Tensor) -> Any:
        """Return maps (n, 1280, cells, cells)."""
        images = images.contiguous(memory_format=torch.channels_last)
        parts = images.chunk(len(images)) if images.is_cpu else [images]
        return self.others(torch.cat([self.first(part) for part in parts]))
