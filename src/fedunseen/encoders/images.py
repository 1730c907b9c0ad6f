"""Images to what a network takes: float32 planes of one size; and random changes that do not change
their class.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Resize = Literal["bilinear", "bicubic"]
Normalization = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and deviation of each channel."""

IMAGENET: Normalization = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP: Normalization = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALF: Normalization = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))

Augmentation = Literal["flip", "shift"]
DRAWS = 3  # random numbers that one image takes
_REACH = 8  # a shift moves an image by at most an eighth of its side


def as_images(inputs: Tensor, image_shape: tuple[int, int, int]) -> Tensor:
    """Return images (n, C, H, W), at least float32, in [0, 1]."""
    images = inputs.reshape(-1, *image_shape)
    return images.float().div_(255) if images.dtype == torch.uint8 else as_floats(images)


def as_floats(values: Tensor) -> Tensor:
    """Return ``values`` as float32, or float64 if they are: autocast leaves bfloat16 behind."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def resized(images: Tensor, size: tuple[int, int], resize: Resize) -> Tensor:
    """Resize images (n, C, H, W) in [0, 1] to (n, C, *size); shrinking averages over what it leaves
    out.
    """
    if tuple(images.shape[-2:]) == size:
        return images
    return F.interpolate(images, size=size, mode=resize, antialias=True).clamp(
        0, 1
    )  # bicubic may overshoot


class Preparation(NamedTuple):
    """How images become what a network takes: resized, gray repeated, normalized."""

    image_shape: tuple[int, int, int]
    size: int
    resize: Resize
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return (n, 3, size, size) of images, bytes or floats in [0, 1]."""
        images = resized(as_images(inputs, self.image_shape), (self.size, self.size), self.resize)
        shift, scale = (
            torch.tensor(each, device=images.device)[:, None, None]
            for each in (self.mean, self.deviation)
        )
        return (images - shift).div_(scale)  # gray is repeated


class LinearPreparation(nn.Module):
    """What a :class:`Preparation` does to bytes, with the resize as two products of matrices, which
    every runtime of graphs computes alike.
    """

    down: Tensor
    across: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, preparation: Preparation) -> None:
        super().__init__()
        _, height, width = preparation.image_shape
        for name, side in (("down", height), ("across", width)):
            unit = torch.eye(side)[None, None]
            size = (preparation.size, side)
            resize = preparation.resize
            rows = F.interpolate(unit, size=size, mode=resize, antialias=True)[0, 0]
            self.register_buffer(name, unit[0, 0] if side == preparation.size else rows)
        for name in ("mean", "deviation"):
            values = torch.tensor(getattr(preparation, name))[:, None, None]
            self.register_buffer(name, values)

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, 3, size, size) of images (n, C, H, W) in bytes."""
        floats = images.float() / 255
        resized = (self.down @ floats @ self.across.T).clamp(0, 1)
        prepared: Tensor = (resized - self.mean) / self.deviation
        return prepared


def augment(images: Tensor, draws: Tensor, steps: Sequence[Augmentation]) -> Tensor:
    """Mirror (``flip``) and shift images (..., C, H, W), as draws (..., 3) in [0, 1) say; what
    comes in is black.
    """
    height, width = images.shape[-2:]
    down = torch.arange(height, device=images.device)
    right = torch.arange(width, device=images.device)
    rows = down.expand(*draws.shape[:-1], height)
    columns = right.expand(*draws.shape[:-1], width)
    if "shift" in steps:
        rows = rows - _distance(draws[..., 1], height).unsqueeze(-1)
        columns = columns - _distance(draws[..., 2], width).unsqueeze(-1)
    if "flip" in steps:
        columns = torch.where(draws[..., :1] < 0.5, width - 1 - columns, columns)
    kept = _inside(rows, height).unsqueeze(-1) & _inside(columns, width).unsqueeze(-2)
    index = (rows.clamp(0, height - 1) * width).unsqueeze(-1) + columns.clamp(
        0, width - 1
    ).unsqueeze(-2)
    index = index.flatten(-2).unsqueeze(-2).expand(*images.shape[:-2], height * width)
    moved = images.flatten(-2).gather(-1, index).reshape(images.shape)
    changed: Tensor = moved * kept.unsqueeze(-3)
    return changed


def _distance(draw: Tensor, side: int) -> Tensor:
    """Turn a uniform draw into a whole number of pixels, as likely one way as the other."""
    reach = side // _REACH
    return (draw * (2 * reach + 1)).floor().long() - reach


def _inside(places: Tensor, side: int) -> Tensor:
    return (places >= 0) & (places < side)
