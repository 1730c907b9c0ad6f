"""Samples that stay in main memory, or on disk, and go to the device batch by batch."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.memory import free_pages
from fedunseen.core.originals import Originals


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples (N, ...) ; only those that are asked for are on the device that trains."""

    host: Tensor
    device: torch.device

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Return samples on the device."""
        chosen = self.host[rows.cpu() if isinstance(rows, Tensor) else rows]
        return chosen.to(self.device, non_blocking=True)

    @property
    def shape(self) -> torch.Size:
        """Of all samples."""
        return self.host.shape


class RoundingScaler(Protocol):
    """What scales feature vectors and rounds them (:class:`fedunseen.data.Scaler`)."""

    def __call__(self, rows: NDArray[Any]) -> NDArray[Any]: ...  # noqa: D102
    def codes(self, rows: NDArray[Any]) -> tuple[NDArray[Any], int]: ...  # noqa: D102
    def clipped(self, rows: NDArray[Any]) -> NDArray[np.bool_]: ...  # noqa: D102
    def stages(self, rows: NDArray[Any]) -> list[NDArray[Any]]: ...  # noqa: D102
    def width(self, columns: int) -> int: ...  # noqa: D102
    @property
    def quantization(self) -> object | None: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class ScaledSamples:
    """Feature vectors (N, d) that are scaled when they are read, so that no second copy of them is
    in memory.

    ``originals``: what the features were made of, if the settings of others made them.
    ``repeats`` (N,): 0, but k for the k-th sample that another one stands in for; None: none is.
    """

    rows: NDArray[Any]
    device: torch.device
    scaler: RoundingScaler
    originals: Originals | None = None
    repeats: NDArray[np.int64] | None = None

    def clipped(self, rows: Tensor | slice) -> Tensor:
        """Return (n, d) which features of some samples are clipped, or stand for nothing."""
        place = _place(rows)
        clipped = self.scaler.clipped(self.rows[place])
        if self.originals is not None:
            clipped |= self.originals.sides[place] != 0
        return torch.from_numpy(clipped)

    def stages(self, rows: Tensor | slice) -> list[Tensor]:
        """Return (n, d) some samples before and after each scaling; the last become whole
        numbers.
        """
        place = _place(rows)
        before = [] if self.originals is None else [self.originals.cells[place]]
        stages = [*before, *self.scaler.stages(self.rows[place])]
        return [torch.from_numpy(np.array(stage)) for stage in stages]

    def sides(self, rows: Tensor) -> Tensor | None:
        """Return (n, d) on which side of its bounds each feature is (:class:`Originals`); None
        where nothing but a scaling has clipped them.
        """
        return None if self.originals is None else torch.from_numpy(self.originals.sides)[rows]

    @property
    def tabular(self) -> bool:
        """Whether features are cells of a table, whose most common value says something of a row
        that lacks it.
        """
        return self.originals is not None

    def told_apart(self) -> NDArray[Any]:
        """Return (N, ...) what is the same for the same sample alone; one that another stands in
        for is that other one.
        """
        return self.rows if self.originals is None else self.originals.unlabelled

    def repeated(self, rows: Tensor) -> NDArray[np.int64]:
        """Return (n,) which of the samples that have the same features these are, where one stands
        in for others: 0 is itself.
        """
        place = rows.cpu().numpy()
        return np.zeros(len(place), np.int64) if self.repeats is None else self.repeats[place]

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Return scaled samples on the device; see :class:`Samples`."""
        return torch.from_numpy(self.scaler(self.rows[_place(rows)])).to(self.device)

    def codes(self, rows: Tensor | slice) -> tuple[Tensor, int]:
        """Return the samples' whole numbers on the device, and how many features were clipped."""
        place = _place(rows)
        some = (
            [place]
            if isinstance(place, slice)
            else np.array_split(place, -(-len(place) // 256) or 1)
        )  # few copies
        codes, beyond = zip(*(self.scaler.codes(self.rows[part]) for part in some), strict=True)
        free_pages(self.rows)
        return torch.from_numpy(codes[0] if len(codes) == 1 else np.concatenate(codes)).to(
            self.device
        ), sum(beyond)

    @property
    def shape(self) -> torch.Size:
        """Of all samples, scaled."""
        return torch.Size((len(self.rows), self.scaler.width(self.rows.shape[1])))


@dataclass(frozen=True, eq=False)
class CodedRows:
    """The whole numbers of some samples, read in slices."""

    samples: ScaledSamples
    rows: Tensor

    @property
    def shape(self) -> torch.Size:
        """Of the samples that are meant."""
        return torch.Size((len(self.rows), *self.samples.shape[1:]))

    def codes(self, rows: slice) -> tuple[Tensor, int]:
        """Return the whole numbers of some of them, and how many features were clipped."""
        return self.samples.codes(self.rows[rows])


def first_of_equal(samples: Iterable[NDArray[Any]], enough: int | None = None) -> list[bool]:
    """Return for each sample whether none before it is the same; stop after ``enough`` that are
    not.
    """
    digests = set[bytes]()
    first = list[bool]()
    for sample in samples:
        distinct = len(digests)
        digests.add(hashlib.sha256(np.ascontiguousarray(sample).data).digest())
        first.append(len(digests) > distinct)
        if len(digests) == enough:
            break
    return first


def _place(rows: Tensor | slice) -> NDArray[Any] | slice:
    """Return positions for NumPy."""
    return rows if isinstance(rows, slice) else slice_of(rows.cpu().numpy())


def slice_of(places: NDArray[Any]) -> NDArray[Any] | slice:
    """Return positions; neighbors in order as a slice, which copies nothing."""
    if places.ndim == 1 and len(places) and (np.diff(places) == 1).all():
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


Inputs = Tensor | Samples | ScaledSamples
"""(N, ...) all samples: on the device that trains, or to be sent there."""


def gather(samples: Inputs, rows: Tensor) -> Tensor:
    """Return the samples at ``rows`` (...), as (..., *shape of one) on the device."""
    if not isinstance(samples, Tensor):
        return samples[rows]
    chosen = samples.index_select(0, rows.flatten())  # in a third of the time of samples[rows]
    return chosen.reshape(*rows.shape, *samples.shape[1:])
