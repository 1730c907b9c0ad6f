"""Convolutional networks, trained from scratch: for small images and for machines without a GPU.

``conv4`` is few-shot learning's usual one (Vinyals et al. 2016; 32 channels: Finn et al. 2017).
``resnet12`` is its deep one (Oreshkin et al. 2018, TADAM; Lee et al. 2019, MetaOptNet): no
published one has FedFSL's "about 5 million" parameters, the widths 50-100-200-400 have 4.88
million, 64-160-320-640 (MetaOptNet) 12.4 million.
"""

import math
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor

from fedunseen.core.parameters import Params, linear_layer, transformed
from fedunseen.core.settings import Widths
from fedunseen.encoders.backbone import Backbone, Encoder, EncoderSettings, Output
from fedunseen.encoders.images import as_floats, as_images

Norm = Literal["group", "batch", "batch-statistics", "none"]
_SLOPE = 0.1  # of ResNet-12's LeakyReLU, below zero


class ConvSettings(EncoderSettings):
    """Settings of the small convolutional network."""

    smallest: ClassVar[int] = 2
    """A block halves the map (the largest of 2 x 2 cells) as long as no side becomes shorter."""

    widths: Widths = Field((32, 64), min_length=1)
    """Channels of the blocks: of one 3 x 3 convolution each, with a normalization, ReLU and, where
    there is room, pooling; in `resnet12` of three."""
    norm: Norm = "group"
    """Normalization: `group` (of four to eight channels, within a sample), `batch` (BatchNorm with
    running statistics; clients then train one at a time), `batch-statistics` (those of the samples
    at hand, in tests too: what published MAML does, and transductive, since queries then help one
    another) or `none`."""
    outputs: PositiveInt | None = None
    """A linear layer to so many features at the end, for a method that takes vectors; 2 can be
    drawn in a plane."""


class Conv(Encoder, name="conv"):
    """A few blocks of 3 x 3 convolutions, trained in the model."""

    Settings: ClassVar[type[EncoderSettings]] = ConvSettings
    trained = True

    def backbone(self) -> "ConvBackbone":
        """Return the network."""
        return ConvBackbone(self.settings, self.image_shape, self.output)


class Conv4Settings(ConvSettings):
    """Settings of few-shot learning's network of four blocks."""

    smallest: ClassVar[int] = 1

    widths: Widths = Field((32, 32, 32, 32), min_length=1)
    """Channels of the blocks: of one 3 x 3 convolution each, with a normalization, ReLU and, where
    there is room, pooling; in `resnet12` of three."""


class Conv4(Conv, name="conv4"):
    """Four blocks of 3 x 3 convolutions."""

    Settings = Conv4Settings


class ResNet12Settings(EncoderSettings):
    """Settings of ResNet-12."""

    widths: Widths = Field((50, 100, 200, 400), min_length=1)
    """Channels of the blocks: of one 3 x 3 convolution each, with a normalization, ReLU and, where
    there is room, pooling; in `resnet12` of three."""
    norm: Norm = "group"
    """Normalization: `group` (of four to eight channels, within a sample), `batch` (BatchNorm with
    running statistics; clients then train one at a time), `batch-statistics` (those of the samples
    at hand, in tests too: what published MAML does, and transductive, since queries then help one
    another) or `none`."""
    outputs: PositiveInt | None = None
    """A linear layer to so many features at the end, for a method that takes vectors; 2 can be
    drawn in a plane."""


class ResNet12(Encoder, name="resnet12"):
    """Twelve convolutions in four residual blocks, trained in the model."""

    Settings = ResNet12Settings
    trained = True

    def backbone(self) -> "ResNet12Backbone":
        """Return the network."""
        return ResNet12Backbone(self.settings, self.image_shape, self.output)


class _Blocks(Backbone):
    """Blocks of convolutions that halve the map, then vectors or maps."""

    trained = True
    convolves = True
    smallest = 1
    averages = True

    def __init__(self, settings: Any, image_shape: tuple[int, int, int], output: Output) -> None:
        self.settings = settings
        self.output = output
        before, height, width = image_shape
        self.halves: list[bool] = []
        self._multiply_adds = 0
        for after in settings.widths:
            self._multiply_adds += self._cost(before, after) * height * width
            self.largest = max(self.largest, after * height * width)
            self.halves.append(min(height, width) // 2 >= self.smallest)
            if self.halves[-1]:
                height = height // 2
                width = width // 2
            before = after
        self.flat = before if self.averages else before * height * width
        self.projects = settings.outputs is not None and output == "vectors"
        super().__init__(
            (before, height, width) if output == "maps" else (settings.outputs or self.flat,)
        )
        self.image_shape: tuple[int, int, int] = image_shape
        # Pure without running statistics, but on a CPU seldom faster for it: mapped over 10
        # clients, the convolutions cost 0.7 (small batches, no normalization) to 3 times
        # (GroupNorm, 32 x 32 images) what one client at a time does. The trainer decides by the
        # number of multiplications; a GPU gains.
        self.batched = settings.norm != "batch"

    def _cost(self, before: int, after: int) -> int:
        """Return the multiplications of a block for one cell of its map."""
        raise NotImplementedError

    def _layer(
        self, names: tuple[str, str], shape: tuple[int, ...], fan: int, rng: np.random.Generator
    ) -> Params:
        """Draw a convolution from N(0, 2 / fan) (He et al. 2015); its normalization starts as the
        identity.
        """
        (conv, norm), width = names, shape[0]
        weight = rng.normal(0.0, math.sqrt(2 / fan), shape).astype(np.float32)
        params: Params = {f"{conv}.weight": torch.from_numpy(weight)}
        if self.settings.norm == "none":
            return params | {f"{conv}.bias": torch.zeros(width)}
        # it has a bias of its own, behind the scaling that would take the convolution's away
        params |= {f"{norm}.weight": torch.ones(width), f"{norm}.bias": torch.zeros(width)}
        if self.settings.norm == "batch":
            params |= {
                f"{norm}.running_mean": torch.zeros(width),
                f"{norm}.running_var": torch.ones(width),
            }
        return params

    def _outputs(self, rng: np.random.Generator) -> Params:
        return linear_layer("f.out", self.flat, self.shape[0], rng) if self.projects else {}

    def _features(self, params: Params, maps: Tensor) -> Tensor:
        """Return the last maps, or vectors of them."""
        maps = as_floats(maps)
        if self.output == "maps":
            return maps
        vectors = maps.mean((2, 3)) if self.averages else maps.flatten(1)
        return (
            F.linear(vectors, params["f.out.weight"], params["f.out.bias"])
            if self.projects
            else vectors
        )

    def multiply_adds(self) -> int:
        """Return the multiplications of the convolutions for one image."""
        return self._multiply_adds


class ConvBackbone(_Blocks):
    """The network; parameters ``f.conv0.weight`` (out, in, 3, 3), ``f.norm0.weight`` (out,), ..."""

    averages = False  # vectors keep where things are: the left and the right digit

    def __init__(
        self, settings: ConvSettings, image_shape: tuple[int, int, int], output: Output
    ) -> None:
        self.smallest = settings.smallest
        super().__init__(settings, image_shape, output)

    def _cost(self, before: int, after: int) -> int:
        return 9 * before * after

    def init(self, rng: np.random.Generator) -> Params:
        """Draw the convolutions by what goes in."""
        params: Params = {}
        before = self.image_shape[0]
        for i, width in enumerate(self.settings.widths):
            params |= self._layer(
                (f"f.conv{i}", f"f.norm{i}"), (width, before, 3, 3), 9 * before, rng
            )
            before = width
        return params | self._outputs(rng)

    def __call__(self, params: Params, inputs: Tensor, training: bool = False) -> Tensor:
        """Return maps (n, channels, height, width) or vectors (n, d) of images, flattened or
        not.
        """
        maps = as_images(inputs, self.image_shape) - 0.5
        for i, pooled in enumerate(self.halves):
            maps = F.conv2d(
                maps, params[f"f.conv{i}.weight"], params.get(f"f.conv{i}.bias"), padding=1
            )
            maps = normalize(params, f"f.norm{i}", maps, self.settings.norm, training)
            # The largest of some numbers, or zero: in which order makes no difference, but a
            # quarter of the work.
            maps = torch.relu(F.max_pool2d(maps, 2) if pooled else maps)
        return self._features(params, maps)


class ResNet12Backbone(_Blocks):
    """The network; parameters ``f.block0.conv0.weight``, ``f.block0.norm0.weight``,
    ``f.block0.shortcut.weight``...

    A block: three 3 x 3 convolutions with normalizations, a shortcut of one 1 x 1 convolution,
    LeakyReLU and pooling.
    """

    def _cost(self, before: int, after: int) -> int:
        return (9 * before + 18 * after + before) * after

    def init(self, rng: np.random.Generator) -> Params:
        """Draw the convolutions by what comes out, as MetaOptNet does."""
        params: Params = {}
        before = self.image_shape[0]
        for i, after in enumerate(self.settings.widths):
            for j in range(3):
                names = f"f.block{i}.conv{j}", f"f.block{i}.norm{j}"
                params |= self._layer(names, (after, after if j else before, 3, 3), 9 * after, rng)
            names = f"f.block{i}.shortcut", f"f.block{i}.norm3"
            params |= self._layer(names, (after, before, 1, 1), after, rng)
            before = after
        return params | self._outputs(rng)

    def __call__(self, params: Params, inputs: Tensor, training: bool = False) -> Tensor:
        """Return maps (n, channels, height, width) or vectors (n, d) of images, flattened or
        not.
        """
        maps = as_images(inputs, self.image_shape) - 0.5
        for i, pooled in enumerate(self.halves):
            name = f"f.block{i}"
            through = maps
            for j in range(3):
                conv = f"{name}.conv{j}"
                through = F.conv2d(
                    through, params[f"{conv}.weight"], params.get(f"{conv}.bias"), padding=1
                )
                through = normalize(
                    params, f"{name}.norm{j}", through, self.settings.norm, training
                )
                through = F.leaky_relu(through, _SLOPE) if j < 2 else through
            shortcut = F.conv2d(
                maps, params[f"{name}.shortcut.weight"], params.get(f"{name}.shortcut.bias")
            )
            through = through + normalize(
                params, f"{name}.norm3", shortcut, self.settings.norm, training
            )
            maps = F.leaky_relu(
                F.max_pool2d(through, 2) if pooled else through, _SLOPE
            )  # it grows: order is free
        return self._features(params, maps)


def groups(channels: int) -> int:
    """Return how many groups of four to eight channels there are, as large as they can be; one if
    there are none such.

    Example:
        >>> [groups(channels) for channels in (64, 50, 100, 6, 13)]
        [8, 10, 20, 1, 1]
    """
    return next((channels // size for size in range(8, 3, -1) if channels % size == 0), 1)


def normalize(params: Params, name: str, maps: Tensor, norm: Norm, training: bool) -> Tensor:
    """Normalize maps (n, channels, height, width) by the layer ``name``, as ``ConvSettings.norm``
    says.
    """
    if norm == "none":
        return maps
    weight = params[f"{name}.weight"]
    bias = params[f"{name}.bias"]
    if norm == "group":
        return F.group_norm(maps, groups(maps.shape[1]), weight, bias)
    if norm == "batch-statistics":
        if maps[:, 0].numel() == 1:  # a single number a channel is its own mean
            return bias[:, None, None] + 0 * maps
        if transformed(maps, weight):
            # Under vmap, PyTorch 2.13's second derivatives by the maps are wrong where a step
            # changes the weight.
            return (
                F.batch_norm(maps, None, None, training=True) * weight[:, None, None]
                + bias[:, None, None]
            )
        return F.batch_norm(maps, None, None, weight, bias, training=True)
    mean = params[f"{name}.running_mean"]
    var = params[f"{name}.running_var"]
    # One sample is not a batch: it has a mean, but says nothing of the spread between samples.
    return F.batch_norm(maps, mean, var, weight, bias, training=training and len(maps) > 1)
