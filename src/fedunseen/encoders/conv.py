"""A small convolutional network, trained from scratch: the backbone for small images and for machines without a GPU."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.encoders.backbone import Backbone, Encoder, EncoderSettings, Output
from fedunseen.encoders.images import as_floats, as_images

__all__ = ["Conv", "ConvBackbone", "ConvSettings"]


class ConvSettings(EncoderSettings):
    """Settings of the small convolutional network."""

    name: Literal["conv"] = "conv"
    widths: tuple[PositiveInt, ...] = Field((32, 64), min_length=1)
    """Channels of the blocks, each a 3 x 3 convolution, a normalisation, ReLU and, where there is room, pooling."""
    smallest: PositiveInt = 2
    """A block halves the map (the largest of 2 x 2 cells) as long as no side becomes shorter than this."""
    norm: Literal["group", "batch", "none"] = "group"
    """Normalisation: `group` (of eight channels, within a sample), `batch` (BatchNorm with running statistics; clients
    then train one at a time) or `none`."""
    pool: Literal["flatten", "average"] = "flatten"
    """How a method that takes vectors gets the map: `flatten` keeps where things are (the left and the right digit),
    `average` forgets it."""


class Conv(Encoder):
    """A few blocks of 3 x 3 convolutions, trained in the model."""

    Settings = ConvSettings
    trained = True

    def __init__(self, settings: ConvSettings, image_shape: tuple[int, int, int], output: Output) -> None:
        super().__init__(settings, image_shape, output)
        self.config = settings

    def backbone(self) -> ConvBackbone:
        """Return the network."""
        return ConvBackbone(self.config, self.image_shape, self.output)


class ConvBackbone(Backbone):
    """The network; parameters ``f.conv0.weight`` (out, in, 3, 3), ``f.norm0.weight`` (out,), ..."""

    trained = True

    def __init__(self, settings: ConvSettings, image_shape: tuple[int, int, int], output: Output) -> None:
        self.settings, self.image_shape, self.output = settings, image_shape, output
        before, height, width = image_shape
        self.halves: list[bool] = []
        self._multiply_adds = 0
        for after in settings.widths:
            self._multiply_adds += 9 * before * after * height * width
            self.halves.append(min(height, width) // 2 >= settings.smallest)
            if self.halves[-1]:
                height, width = height // 2, width // 2
            before = after
        channels = settings.widths[-1]
        maps = (channels, height, width)
        vectors = (channels,) if settings.pool == "average" else (math.prod(maps),)
        super().__init__(maps if output == "maps" else vectors)
        # Pure without running statistics, but on a CPU seldom faster for it: mapped over 10 clients, the convolutions
        # cost 0.7 (small batches, no normalisation) to 3 times (GroupNorm, 32 x 32 images) what one client at a time
        # does. The trainer decides by the number of multiplications; a GPU gains.
        self.batched = settings.norm != "batch"

    def init(self, rng: np.random.Generator) -> Params:
        """Draw the convolutions from N(0, 2 / (9 channels)) (He et al. 2015); normalisations start as identities."""
        params: Params = {}
        before = self.image_shape[0]
        for i, width in enumerate(self.settings.widths):
            weight = rng.normal(0.0, math.sqrt(2 / (9 * before)), (width, before, 3, 3)).astype(np.float32)
            params[f"f.conv{i}.weight"] = torch.from_numpy(weight)
            if self.settings.norm == "none":
                params[f"f.conv{i}.bias"] = torch.zeros(width)
            else:  # it has a bias of its own, behind the scaling that would take the convolution's away
                params[f"f.norm{i}.weight"] = torch.ones(width)
                params[f"f.norm{i}.bias"] = torch.zeros(width)
            if self.settings.norm == "batch":
                params[f"f.norm{i}.running_mean"] = torch.zeros(width)
                params[f"f.norm{i}.running_var"] = torch.ones(width)
            before = width
        return params

    def __call__(self, params: Params, inputs: Tensor, training: bool = False) -> Tensor:
        """Return maps (n, channels, height, width) or vectors (n, d) of images, flattened or not."""
        maps = as_images(inputs, self.image_shape) - 0.5
        for i, halve in enumerate(self.halves):
            maps = F.conv2d(maps, params[f"f.conv{i}.weight"], params.get(f"f.conv{i}.bias"), padding=1)
            maps = torch.relu(self._normalise(params, f"f.norm{i}", maps, training))
            if halve:
                maps = F.max_pool2d(maps, 2)
        maps = as_floats(maps)
        if self.output == "maps":
            return maps
        return maps.mean((2, 3)) if self.settings.pool == "average" else maps.flatten(1)

    def _normalise(self, params: Params, name: str, maps: Tensor, training: bool) -> Tensor:
        if self.settings.norm == "none":
            return maps
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        if self.settings.norm == "group":
            channels = maps.shape[1]
            return F.group_norm(maps, channels // 8 if channels % 8 == 0 else 1, weight, bias)
        mean, var = params[f"{name}.running_mean"], params[f"{name}.running_var"]
        # One sample is no batch: it has a mean, but says nothing of the spread between samples.
        return F.batch_norm(maps, mean, var, weight, bias, training=training and len(maps) > 1)

    def multiply_adds(self) -> int:
        """Return the multiplications of the convolutions for one image."""
        return self._multiply_adds
