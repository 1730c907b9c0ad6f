r"""Random Fourier features (Rahimi and Recht 2007): linear in them is curved in samples.

.. math:: z(x) = \sqrt{2 / D}\,\cos(x W + b), \quad z(x)^T z(y) \approx
    \exp(-\|x - y\|^2 / 2 \sigma^2)

W (d, D) is Gaussian with the deviation 1 / sigma, and b (D,) uniform over a circle. Both are drawn
from a seed; sigma alone may come from samples: of standardized columns it is known. All parties
have the same features, so that their sums add up, and their range is known beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.random import stream

FEATURES = 1024
"""How many there are, unless ``data.kernel_features`` says so."""
_WIDTH = 0.7
"""Of the kernel, in root mean square distances between samples (docs/research/scales.md)."""


@dataclass(frozen=True)
class Kernel:
    """How random features are drawn.

    Attributes:
        features: how many, D.
        seed: what they are drawn from.
        stated: the rows that scalings are fitted to are stated bounds, not samples.
    """

    features: int = FEATURES
    seed: int = 0
    stated: bool = False

    def fit(self, variance: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Return ``frequencies`` W (d, D) and ``phases`` b (D,).

        Args:
            variance: (d,) of each column, which says how far samples are usually apart. Of stated
                bounds it is that of their two ends; a uniform column has a third of it.
        """
        rng = stream(self.seed, "kernel features")
        directions = rng.standard_normal((len(variance), self.features))
        phases = rng.uniform(0, 2 * np.pi, self.features)
        usual = np.sqrt(2 * variance.sum() / (3 if self.stated else 1))
        return {"frequencies": directions / (_WIDTH * usual or 1.0), "phases": phases}


def fourier_features(
    rows: NDArray[Any], frequencies: NDArray[Any], phases: NDArray[Any]
) -> NDArray[np.float32]:
    """Return z (n, D) of rows (n, d).

    Example:
        >>> rows = np.random.default_rng(0).standard_normal((200, 3)).astype(np.float32)
        >>> drawn = Kernel(4096).fit(rows.var(axis=0))
        >>> z = fourier_features(rows, **drawn)
        >>> squares = ((rows[0] - rows[1]) ** 2).sum() * (drawn["frequencies"] ** 2).mean()
        >>> bool(abs(z[0] @ z[1] - np.exp(-squares / 2)) < 0.05)
        True
    """
    # in float64, so that a row's rounded features do not depend on the rows beside it
    angles = rows.astype(np.float64) @ frequencies.astype(np.float64) + phases
    return np.asarray(bound_of(len(phases)) * np.cos(angles), dtype=np.float32)


def bound_of(features: int) -> float:
    """Return the largest value of a feature; the smallest is its opposite."""
    return float(np.sqrt(2 / features))
