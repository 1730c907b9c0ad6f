"""ResNet-12, the deep network of few-shot learning (Oreshkin et al. 2018, TADAM; Lee et al. 2019, MetaOptNet).

Four blocks, each of three 3 x 3 convolutions with normalizations, a shortcut of one 1 x 1 convolution, LeakyReLU (0.1)
and 2 x 2 pooling; then the mean over cells. No published one has FedFSL's "about 5 million" parameters: the widths
50-100-200-400 have 4.88 million, 64-160-320-640 (MetaOptNet) 12.4 million.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor

from fedunseen.core.parameters import Params, linear_layer
from fedunseen.encoders.backbone import Backbone, Encoder, EncoderSettings, Output
from fedunseen.encoders.conv import Norm, normalize
from fedunseen.encoders.images import as_floats, as_images

_SLOPE = 0.1  # of LeakyReLU, below zero


class ResNet12Settings(EncoderSettings):
    """Settings of ResNet-12."""

    name: Literal["resnet12"] = "resnet12"
    widths: tuple[PositiveInt, ...] = Field((50, 100, 200, 400), min_length=1)
    """Channels of the blocks; the default has 4.88 million parameters."""
    norm: Norm = "group"
    """Normalization, as for `conv`: `group`, `batch`, `batch-statistics` or `none`."""
    outputs: PositiveInt | None = None
    """A linear layer to so many features at the end, for a method that takes vectors."""


class ResNet12(Encoder):
    """Twelve convolutions in four residual blocks, trained in the model."""

    Settings = ResNet12Settings
    trained = True

    def __init__(self, settings: ResNet12Settings, image_shape: tuple[int, int, int], output: Output) -> None:
        super().__init__(settings, image_shape, output)
        self.config = settings

    def backbone(self) -> ResNet12Backbone:
        """Return the network."""
        return ResNet12Backbone(self.config, self.image_shape, self.output)


class ResNet12Backbone(Backbone):
    """The network; parameters ``f.block0.conv0.weight``, ``f.block0.norm0.weight``, ``f.block0.shortcut.weight``..."""

    trained = True
    convolves = True

    def __init__(self, settings: ResNet12Settings, image_shape: tuple[int, int, int], output: Output) -> None:
        self.settings, self.output = settings, output
        before, height, width = image_shape
        self.halves: list[bool] = []
        self._multiply_adds = 0
        for after in settings.widths:
            self._multiply_adds += (9 * before + 18 * after + before) * after * height * width
            self.halves.append(min(height, width) >= 2)
            if self.halves[-1]:
                height, width = height // 2, width // 2
            before = after
        self.projects = settings.outputs is not None and output == "vectors"
        super().__init__((before, height, width) if output == "maps" else (settings.outputs or before,))
        self.image_shape = image_shape
        self.batched = settings.norm != "batch"

    def init(self, rng: np.random.Generator) -> Params:
        """Draw the convolutions from N(0, 2 / (out k k)), He et al. 2015 by what comes out, as MetaOptNet does."""
        assert self.image_shape is not None
        params: Params = {}

        def convolution(name: str, before: int, after: int, side: int) -> None:
            weight = rng.normal(0.0, math.sqrt(2 / (after * side * side)), (after, before, side, side))
            params[f"{name}.weight"] = torch.from_numpy(weight.astype(np.float32))
            if self.settings.norm == "none":
                params[f"{name}.bias"] = torch.zeros(after)

        def norm(name: str, width: int) -> None:
            if self.settings.norm == "none":
                return
            params[f"{name}.weight"], params[f"{name}.bias"] = torch.ones(width), torch.zeros(width)
            if self.settings.norm == "batch":
                params[f"{name}.running_mean"], params[f"{name}.running_var"] = torch.zeros(width), torch.ones(width)

        before = self.image_shape[0]
        for i, after in enumerate(self.settings.widths):
            for j in range(3):
                convolution(f"f.block{i}.conv{j}", after if j else before, after, 3)
                norm(f"f.block{i}.norm{j}", after)
            convolution(f"f.block{i}.shortcut", before, after, 1)
            norm(f"f.block{i}.norm3", after)
            before = after
        return params | (linear_layer("f.out", before, self.shape[0], rng) if self.projects else {})

    def __call__(self, params: Params, inputs: Tensor, training: bool = False) -> Tensor:
        """Return maps (n, channels, height, width) or vectors (n, d) of images, flattened or not."""
        assert self.image_shape is not None
        maps = as_images(inputs, self.image_shape) - 0.5
        for i, pooled in enumerate(self.halves):
            name, through = f"f.block{i}", maps
            for j in range(3):
                conv = f"{name}.conv{j}"
                through = F.conv2d(through, params[f"{conv}.weight"], params.get(f"{conv}.bias"), padding=1)
                through = normalize(params, f"{name}.norm{j}", through, self.settings.norm, training)
                through = F.leaky_relu(through, _SLOPE) if j < 2 else through
            shortcut = F.conv2d(maps, params[f"{name}.shortcut.weight"], params.get(f"{name}.shortcut.bias"))
            through = through + normalize(params, f"{name}.norm3", shortcut, self.settings.norm, training)
            maps = F.leaky_relu(F.max_pool2d(through, 2) if pooled else through, _SLOPE)  # it grows: order is free
        maps = as_floats(maps)
        if self.output == "maps":
            return maps
        vectors = maps.mean((2, 3))
        return F.linear(vectors, params["f.out.weight"], params["f.out.bias"]) if self.projects else vectors

    def multiply_adds(self) -> int:
        """Return the multiplications of the convolutions for one image."""
        return self._multiply_adds
