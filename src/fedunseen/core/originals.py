"""What samples were before the settings of others made features of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
        cells: (n, d) what each feature was made of: a number before bounds clip it.
        sides: (n, d) -1 below the bounds, 1 above, 0 within, and :data:`ABSENT`.
    """

    digests: NDArray[np.uint8]
    cells: NDArray[np.float64]
    sides: NDArray[np.int8]

    @classmethod
    def joined(cls, parts: Sequence[Originals]) -> Originals:
        """Return the samples of all parts, in their order."""
        digests, cells, sides = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("digests", "cells", "sides")
        )
        return cls(digests, cells, sides)

    def __getitem__(self, rows: Any) -> Originals:
        """Return some of them."""
        return Originals(self.digests[rows], self.cells[rows], self.sides[rows])
