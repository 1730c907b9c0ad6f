"""What samples were before the settings of others made features of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Originals:
    """Samples as their owner's files hold them.

    Attributes:
        digests: (n, 32) bytes, of each sample as a whole: no setting that reads it changes them.
    """

    digests: NDArray[np.uint8]

    @classmethod
    def joined(cls, parts: Sequence[Originals]) -> Originals:
        """Return the samples of all parts, in their order."""
        return cls(np.concatenate([part.digests for part in parts]))

    def __getitem__(self, rows: Any) -> Originals:
        """Return some of them."""
        return Originals(self.digests[rows])
