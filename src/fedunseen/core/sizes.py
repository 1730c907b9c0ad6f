"""The most that settings may make a run allocate, as numbers (products of settings), and the check
before anything is allocated.

Without it, a width of a million fills gigabytes before an allocation fails, or the system ends the
process.
"""

from typing import Any

import numpy as np

from fedunseen.core.errors import ExperimentError

NETWORK = 2**26
"""Numbers that a method draws for its model, with a trained encoder of stated widths: 256 MiB.
Training takes some eight times as much."""
ARCHITECTURE = 2**29
"""Numbers of a published architecture, whose sizes no setting chooses: 2 GiB."""
OUTPUTS = 2**29
"""Outputs of a layer for the samples of one step: 2 GiB."""
PLAN = 2**25
"""Places of samples in the steps of a client's round, or in episodes: 400 MiB."""
SYNTHETIC = 2**31
"""Numbers of the features that a generator makes for a classifier: 8 GiB."""

TOO_LARGE = "too-large"
"""Code of what is refused."""


def check_size(what: str, numbers: int, most: int, remedy: str) -> None:
    """Refuse what would have more than ``most`` numbers.

    Raises:
        ExperimentError: code ``too-large``.

    Example:
        >>> check_size("a layer", 128 * 1_000_000, NETWORK, "lower method.hidden")
        Traceback (most recent call last):
        ...
        fedunseen.core.errors.ExperimentError: a layer would be 128,000,000 numbers, and 67,108,864
        are the most: lower method.hidden
    """
    if numbers > most:
        raise ExperimentError(
            f"{what} would be {numbers:,} numbers, and {most:,} are the most: {remedy}", TOO_LARGE
        )


class BoundedDraws(np.random.Generator):
    """A generator of :data:`NETWORK` numbers at most, which it counts before they are drawn.

    Example:
        >>> BoundedDraws(np.random.PCG64(0)).random() == np.random.default_rng(0).random()
        True
    """

    drawn = 0

    def _count(self, size: Any) -> None:
        self.drawn += 1 if size is None else int(np.prod(size, dtype=object))
        check_size(
            "the model's first parameters",
            self.drawn,
            NETWORK,
            "lower method.hidden, method.width, method.noise or encoder.widths",
        )

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        """Draw as NumPy does."""
        self._count(size)
        return super().uniform(low, high, size)

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        """Draw as NumPy does."""
        self._count(size)
        return super().normal(loc, scale, size)

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """Draw as NumPy does."""
        self._count(size)
        return super().standard_normal(size, dtype, out)

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """Draw as NumPy does."""
        self._count(size)
        return super().random(size, dtype, out)


def unbounded(rng: np.random.Generator) -> np.random.Generator:
    """Return a generator that continues one without a bound."""
    return np.random.Generator(rng.bit_generator)
