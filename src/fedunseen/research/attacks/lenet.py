"""The classifier that sees images: the smooth LeNet of *Deep leakage from gradients* (Zhu et al.
2019).
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedunseen.core.parameters import Params

CHANNELS = 12
KERNEL = 5
STRIDES = (2, 2, 1)


def lenet_init(image_shape: tuple[int, int, int], classes: int, rng: np.random.Generator) -> Params:
    """Draw all weights and biases from U(-0.5, 0.5), as the published attack does."""
    before, height, width = image_shape
    params: Params = {}

    def draw(*shape: int) -> Tensor:
        return torch.from_numpy(rng.uniform(-0.5, 0.5, shape).astype(np.float32))

    for i, stride in enumerate(STRIDES):
        params[f"conv{i}.weight"] = draw(CHANNELS, before, KERNEL, KERNEL)
        params[f"conv{i}.bias"] = draw(CHANNELS)
        before = CHANNELS
        height = -(-height // stride)
        width = -(-width // stride)
    params["head.weight"] = draw(classes, CHANNELS * height * width)
    params["head.bias"] = draw(classes)
    return params


def lenet(params: Params, images: Tensor) -> Tensor:
    """Return the logits (n, classes) of images (n, channels, height, width) in [0, 1]."""
    for i, stride in enumerate(STRIDES):
        images = F.conv2d(
            images, params[f"conv{i}.weight"], params[f"conv{i}.bias"], stride, padding=KERNEL // 2
        )
        images = torch.sigmoid(images)
    return F.linear(images.flatten(1), params["head.weight"], params["head.bias"])
