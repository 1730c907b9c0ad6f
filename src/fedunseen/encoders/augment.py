"""Random changes of training images that do not change their class: shifts and mirror images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Augmentation = Literal["flip", "shift"]
DRAWS = 3  # random numbers that one image takes
_REACH = 8  # a shift moves an image by at most an eighth of its side


def augment(images: Tensor, draws: Tensor, steps: Sequence[Augmentation]) -> Tensor:
    """Mirror (``flip``) and shift images (..., C, H, W), as draws (..., 3) in [0, 1) say; what comes in is black."""
    height, width = images.shape[-2:]
    down, right = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    rows, columns = down.expand(*draws.shape[:-1], height), right.expand(*draws.shape[:-1], width)
    if "shift" in steps:
        rows = rows - _distance(draws[..., 1], height).unsqueeze(-1)
        columns = columns - _distance(draws[..., 2], width).unsqueeze(-1)
    if "flip" in steps:
        columns = torch.where(draws[..., :1] < 0.5, width - 1 - columns, columns)
    kept = _inside(rows, height).unsqueeze(-1) & _inside(columns, width).unsqueeze(-2)
    index = (rows.clamp(0, height - 1) * width).unsqueeze(-1) + columns.clamp(0, width - 1).unsqueeze(-2)
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
