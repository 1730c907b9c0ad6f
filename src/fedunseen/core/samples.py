"""Samples that stay in main memory, or on disk, and go to the device batch by batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Inputs", "Samples"]


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples (N, ...) of which only those that are asked for are on the device that trains.

    Images and maps are larger than a GPU's memory (DeepFashion's are 43.5 GB), and a memory map keeps them on disk.

    Attributes:
        host: (N, ...) all of them, in main memory or on disk.
        device: where those that are asked for go.

    Example:
        >>> images = Samples(torch.arange(12).reshape(3, 4), torch.device("meta"))
        >>> images[torch.tensor([2, 0])].shape, images[1:2].device, images.shape
        (torch.Size([2, 4]), device(type='meta'), torch.Size([3, 4]))
    """

    host: Tensor
    device: torch.device

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Return samples on the device.

        Args:
            rows: their positions, of any shape and on any device, or a slice.
        """
        chosen = self.host[rows.cpu() if isinstance(rows, Tensor) else rows]
        return chosen.to(self.device, non_blocking=True)

    @property
    def shape(self) -> torch.Size:
        """Of all samples."""
        return self.host.shape

    @property
    def ndim(self) -> int:
        """Of all samples."""
        return self.host.ndim


Inputs = Tensor | Samples
"""(N, ...) all samples: on the device that trains, or to be sent there."""
