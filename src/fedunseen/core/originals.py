"""What samples were before the settings of others made features of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

ABSENT = 2
"""The side of a number that is not there."""


@dataclass(frozen=True, eq=False)
class Originals:
    """Samples as their owner's files hold them.

    Attributes:
        digests: (n, 32) bytes, of each sample as a whole: no setting that reads it changes them.
        exact: (n, 32) bytes, of the same, and of how each cell is written: samples that have the
            same have the same features, whatever is made of them.
        unlabelled: (n, 32) bytes, of each sample without its class: saved under another one, it is
            the same.
        cells: (n, d) what each feature was made of: a number before bounds clip it.
        sides: (n, d) -1 below the bounds, 1 above, 0 within, and :data:`ABSENT`.
    """

    digests: NDArray[np.uint8]
    exact: NDArray[np.uint8]
    unlabelled: NDArray[np.uint8]
    cells: NDArray[np.float64]
    sides: NDArray[np.int8]

    @classmethod
    def joined(cls, parts: Sequence[Originals]) -> Originals:
        """Return the samples of all parts, in their order."""
        names = [field.name for field in fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def __getitem__(self, rows: Any) -> Originals:
        """Return some of them."""
        return Originals(*(getattr(self, field.name)[rows] for field in fields(self)))
