r"""Samples that exact second moments show alone.

Counts, class sums and second moments together are :math:`M = \sum_i z_i z_i^T` of
:math:`z_i = (e_{y_i}, x_i)`, the class's indicator and the features. For a direction p,
:math:`M p = \sum_i (z_i^T p)\, z_i`: whoever finds a direction in which one sample alone differs
from 0 reads that sample. The largest share that a sample has of a direction is its leverage,

.. math:: h_i = z_i^T M^+ z_i = \frac{1}{n_c} + (x_i - \mu_c)^T W^+ (x_i - \mu_c),

with W the scatter within classes. It is 1 for the only sample of a class, for a sample that alone
has another value of some feature, and for every sample where these are no more than features and
classes. Features are directions that anyone can try, so that there nine tenths are too much. Whole
numbers are alone, too, where floating point finds next to nothing (:mod:`~.span`). W is never
formed: its smallest directions would be lost, since it has the squares of those of the samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedunseen.core.samples import CodedRows, first_of_equal
from fedunseen.data import Quantization
from fedunseen.methods.closed_form.span import outside_span
from fedunseen.methods.closed_form.statistics import (
    BLOCK,
    Hidden,
    hidden_features,
    raw_rows,
    rows_summed,
)

_LEVERAGE = 0.99  # of a sample, at most
_SHARE = 0.9  # of what a feature varies within classes, at most
_NUMBERS = 2**24  # in float64 at once
_ROUNDING = 1e-12  # what is left of a feature of length 1 that is a combination of others, at most
_SMALLEST = float(torch.finfo(torch.float64).tiny)


class Apart(NamedTuple):
    """What second moments show.

    Attributes:
        alone: (n,) bool, the samples that they show alone.
        samples: how many different samples there are.
        features: how many features vary within a class.
    """

    alone: Tensor
    samples: int
    features: int


@dataclass(frozen=True, eq=False)
class Moments:
    """Samples whose exact statistics are sent.

    Attributes:
        inputs: (n, d).
        labels: (n,).
        classes: how many classes there are.
        min_samples: that a class must have.
        fewest: different samples of a class that must stay, of the party's own choice: what the
            coordinator asks for would show whether one was left out.
        clip_norm: the length to which samples are shortened.
        quantization: how samples are rounded.
    """

    inputs: Tensor | CodedRows
    labels: Tensor
    classes: int
    min_samples: int
    fewest: int
    clip_norm: float | None = None
    quantization: Quantization | None = None

    def left_out(self) -> Apart:
        """Return which samples must leave so that statistics of the others show none alone.

        Without them others may stand alone, or too few of their class be left, so that they leave
        too. Features are hidden as for those that stay.
        """
        copies = self._copies()
        labels = self.labels.cpu()
        stays = torch.ones(len(labels), dtype=torch.bool)
        first: Apart | None = None
        while bool(stays.any()):
            kept = torch.nonzero(stays)[:, 0]
            rows = self._rows(kept)
            apart = _set_apart(rows, labels[kept], copies[kept], self._whole)
            first = first or apart
            if not bool(apart.alone.any()):
                break
            while bool(apart.alone.any()):
                stays[kept[apart.alone]] = False
                self._leave_small(stays, labels, copies)
                still = stays[kept]
                kept = kept[still]
                rows = rows[still.to(rows.device)]
                apart = _set_apart(rows, labels[kept], copies[kept], self._whole)
        return Apart(~stays, *(first[1:] if first else (0, 0)))

    def show_one(self, places: Tensor) -> bool:
        """Return whether statistics of some of the samples show one alone, with the features
        hidden that are hidden of all.
        """
        if not len(places):
            return False
        rows = torch.cat(list(self._blocks(*self._some(places), self._hidden, self.clip_norm)))
        copies = self._copies()
        apart = _set_apart(rows, self.labels.cpu()[places], copies[places], self._whole)
        return bool(apart.alone.any())

    def show_few(self, places: Tensor) -> bool:
        """Return whether sums of some of the samples show a feature of fewer than ``min_samples``
        of a class, which sums of all do not: few of them are within a range, or few differ much
        from a number that half of the class or more have.
        """
        inputs, labels = self._some(places)
        hidden = self._hidden
        few = hidden_features(inputs, labels, self.classes, self.quantization, self.min_samples)
        if not len(places) or hidden is None or few is None:
            return False
        rows = torch.cat(list(self._blocks(inputs, labels, hidden, None))).cpu()
        labels = labels.cpu()
        varies = hidden.least < hidden.most
        narrow = (varies & few.narrow)[labels]
        if bool((narrow & (few.applied(rows, labels) != rows)).any()):
            return True
        copies = self._copies()[places]
        return any(
            _few_differ(
                rows[_once(copies, labels == c)][:, (varies & hidden.changed)[c]], self.min_samples
            )
            for c in torch.unique(labels).tolist()
        )

    @cached_property
    def _hidden(self) -> Hidden | None:
        given = self.inputs, self.labels, self.classes, self.quantization, self.min_samples
        return hidden_features(*given)

    @property
    def _whole(self) -> bool:
        return self.quantization is not None

    def _rows(self, places: Tensor) -> Tensor:
        """Return some samples as statistics add them up."""
        inputs, labels = self._some(places)
        hidden = hidden_features(inputs, labels, self.classes, self.quantization, self.min_samples)
        return torch.cat(list(self._blocks(inputs, labels, hidden, self.clip_norm)))

    def _some(self, places: Tensor) -> tuple[Tensor | CodedRows, Tensor]:
        inputs = self.inputs
        labels = self.labels[places.to(self.labels.device)]
        if isinstance(inputs, CodedRows):
            return CodedRows(inputs.samples, inputs.rows[places.to(inputs.rows.device)]), labels
        return inputs[places.to(inputs.device)], labels

    def _blocks(
        self,
        inputs: Tensor | CodedRows,
        labels: Tensor,
        hidden: Hidden | None,
        clip_norm: float | None,
    ) -> Iterator[Tensor]:
        for start in range(0, len(labels), BLOCK):
            some = slice(start, start + BLOCK)
            yield rows_summed(inputs, labels, some, clip_norm, self.quantization, hidden)[0]

    def _copies(self) -> Tensor:
        """Return (n,) numbers that are the same for the same sample, saved again in any class, or
        standing in for another one.
        """
        raw = raw_rows(self.inputs, torch.arange(len(self.labels)))
        digests = [hashlib.sha256(np.ascontiguousarray(row).data).digest() for row in raw]
        numbers = {digest: number for number, digest in enumerate(dict.fromkeys(digests))}
        return torch.tensor([numbers[digest] for digest in digests], dtype=torch.int64)

    def _leave_small(self, stays: Tensor, labels: Tensor, copies: Tensor) -> None:
        """Let classes leave of which fewer than ``fewest`` different samples stay.

        A sample that another one stands in for counts: otherwise counts would show that it is near
        the mean.
        """
        repeated = torch.zeros_like(copies)
        if isinstance(self.inputs, CodedRows):
            repeated = torch.from_numpy(self.inputs.samples.repeated(self.inputs.rows))
        held = torch.stack([copies, repeated])
        for c in torch.unique(labels[stays]).tolist():
            of_class = labels == c
            if torch.unique(held[:, stays & of_class], dim=1).shape[1] < self.fewest:
                stays &= ~of_class


def _once(copies: Tensor, among: Tensor) -> Tensor:
    """Return the places of different samples ``among`` some."""
    places = torch.nonzero(among)[:, 0]
    return places[torch.tensor(first_of_equal(copies[places].numpy()[:, None]), dtype=torch.bool)]


def _few_differ(numbers: Tensor, few: int) -> bool:
    """Return whether half or more of samples (n, k) have one number of a feature, and fewer than
    ``few`` of the others nearly all of the difference from it.
    """
    count = len(numbers)
    ordered = numbers.sort(0).values.double()
    for usual in ordered[[(count - 1) // 2, count // 2]] if count else ():
        away = (numbers - usual).square()
        others = (away > 0).sum(0)
        largest = away.topk(min(few - 1, count), dim=0).values.sum(0)
        shown = (2 * others <= count) & (largest > _SHARE * away.sum(0))
        if bool(shown.any()):
            return True
    return False


def _set_apart(rows: Tensor, labels: Tensor, copies: Tensor, whole: bool) -> Apart:
    """Return which samples (n, d) exact statistics show alone; copies count together.

    Args:
        rows: as they are summed.
        labels: (n,) on the CPU.
        copies: (n,) the same number for the same sample.
        whole: they are whole numbers.
    """
    if not len(rows):
        return Apart(torch.zeros(0, dtype=torch.bool), 0, 0)
    count = torch.bincount(labels).double().to(rows.device)
    labels = labels.to(rows.device)
    parts = torch.split(
        torch.arange(len(rows), device=rows.device), max(1, _NUMBERS // rows[0].numel())
    )
    means = rows.new_zeros(len(count), rows.shape[1], dtype=torch.float64)
    for part in parts:
        means.index_add_(0, labels[part], rows[part].double())
    means /= count.clamp(min=1)[:, None]
    energy = means.new_zeros(rows.shape[1])
    for part in parts:
        energy += (rows[part] - means[labels[part]]).square().sum(0)
    scale = torch.where(energy > 0, energy, 1.0).rsqrt()
    factor = means.new_zeros(0, rows.shape[1])
    for part in parts:
        differences = (rows[part] - means[labels[part]]) * scale
        factor = torch.linalg.qr(torch.cat([factor, differences]), mode="r").R
    factor, features = _independent(factor)
    largest = []
    for part in parts:
        differences = rows[part] - means[labels[part]]
        scaled = (differences * scale)[:, features]
        whitened = torch.linalg.solve_triangular(factor, scaled, upper=True, left=False)
        leverage = whitened.square().sum(1) + 1 / count[labels[part]]
        share = (differences.square() / energy.clamp(min=_SMALLEST)).amax(1)
        largest.append(torch.maximum(leverage / _LEVERAGE, share / _SHARE).cpu())
    times = torch.bincount(copies)[copies]
    alone = times * torch.cat(largest) > 1
    if whole:
        alone |= _outside(rows, labels, copies)
    return Apart(alone, len(torch.unique(copies)), int((energy > 0).sum()))


def _outside(rows: Tensor, labels: Tensor, copies: Tensor) -> Tensor:
    """Return which samples of whole numbers (n, d) are alone in some direction, however little of
    it is in floating point; the same sample saved again counts once.
    """
    numbers, place = torch.unique(copies, return_inverse=True)
    once = torch.full((len(numbers),), len(rows)).scatter_reduce(
        0, place, torch.arange(len(rows)), "amin"
    )
    present, classes = torch.unique(labels.cpu()[once], return_inverse=True)
    indicators = torch.nn.functional.one_hot(classes, len(present))
    return outside_span(torch.cat([indicators, rows.cpu()[once].long()], 1))[place]


def _independent(factor: Tensor) -> tuple[Tensor, Tensor]:
    """Return the triangular factor of features that are no combination of each other, and which
    these are, from one (k, d) of all, whose length is 1.
    """
    from scipy.linalg import qr  # takes a sixth of a second to import, and few runs ask

    triangle, order = qr(factor.cpu().numpy(), mode="r", pivoting=True)
    rank = int((np.abs(triangle.diagonal()) > _ROUNDING).sum())
    kept = torch.from_numpy(triangle[:rank, :rank].copy()).to(factor)
    return kept, torch.from_numpy(order[:rank].astype(np.int64)).to(factor.device)
