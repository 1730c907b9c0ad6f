"""Named scalings of features and semantics, fitted on training rows only and applied to all.

======== =========================================== ==========================
name     what it does to a row x                     fitted
======== =========================================== ==========================
l2       x / ||x||; a row of zeros stays             nothing
min-max  (x - min) / (max - min) per column          smallest, largest
centre   x - mean per column                         mean
standard (x - mean) / standard deviation per column  mean, standard deviation
x10      10 x                                        nothing
======== =========================================== ==========================

Rows that were not fitted may leave [0, 1] under min-max: they are not clipped. A column that is constant over
the fitted rows becomes 0 under min-max and standard. A generator wants features
that are about as long as its noise, the root of how many numbers that has: unit length times ten, say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError
from fedunseen.data.class_space import ClassSpace

__all__ = ["Scaler", "Scaling", "blocks", "fit_semantics"]

Scaling = Literal["l2", "min-max", "centre", "standard", "x10"]

BLOCK = 2**18  # numbers a block: 1 MiB in float32, 2 MiB in float64


def blocks(rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield consecutive views of ``rows`` that are small enough to be copied without a second thought."""
    step = max(1, BLOCK // max(1, rows[:1].size))
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


@dataclass(frozen=True, eq=False)
class Scaler:
    """Scalings in the order in which they apply, with what was fitted.

    Attributes:
        steps: names of the scalings.
        statistics: ``"<step>.<what>"`` -> shape (d,), for example ``"0.mean"``, ``"1.min"``. A ``range`` or
            ``deviation`` is infinite for a constant column, so that dividing by it gives 0.

    Example:
        >>> scaler = Scaler.fit(np.array([[0.0, 5.0], [2.0, 5.0]]), ("min-max",))
        >>> scaler(np.array([[1.0, 7.0]])).tolist()
        [[0.5, 0.0]]
    """

    steps: tuple[Scaling, ...]
    statistics: Mapping[str, NDArray[np.float32]]

    @staticmethod
    def fit(rows: NDArray[Any], steps: tuple[Scaling, ...]) -> Scaler:
        """Fit ``steps`` one after the other, each on what the earlier ones make of ``rows``.

        Args:
            rows: shape (n, d) with n >= 1, any real numeric type, finite.
            steps: names of scalings.
        """
        statistics: dict[str, NDArray[np.float32]] = {}
        for i, step in enumerate(steps):
            earlier = Scaler(steps[:i], statistics)
            fitted: dict[str, NDArray[Any]] = {}
            if step == "min-max":
                low, high = _extent(rows, earlier)
                fitted = {"min": low, "range": np.where(high > low, high - low, np.inf)}
            elif step in ("centre", "standard"):
                total = sum(earlier(block).sum(axis=0, dtype=np.float64) for block in blocks(rows))
                fitted["mean"] = mean = np.asarray(total / len(rows))
                if step == "standard":
                    squares = sum(((earlier(block) - mean) ** 2).sum(axis=0) for block in blocks(rows))
                    low, high = _extent(rows, earlier)  # a rounded mean gives a constant column a tiny deviation
                    fitted["deviation"] = np.where(high > low, np.sqrt(squares / len(rows)), np.inf)
            statistics |= {f"{i}.{what}": value.astype(np.float32) for what, value in fitted.items()}
        return Scaler(tuple(steps), statistics)

    def __call__(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return the scaled ``rows``, shape (n, d); without steps, float32 rows come back as they are."""
        if not self.steps:
            return rows.astype(np.float32, copy=False)
        scaled = np.empty(rows.shape, dtype=np.float32)
        for block, out in zip(blocks(rows), blocks(scaled), strict=True):
            out[:] = block
            for i, step in enumerate(self.steps):
                self._apply(step, i, out)
        return scaled

    def _apply(self, step: Scaling, i: int, rows: NDArray[np.float32]) -> None:
        """Apply one step in place."""
        if step == "l2":
            # squares in float64: those of large raw features overflow float32
            norms = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float64))
            rows /= np.where(norms > 0, norms, 1.0).astype(np.float32)[:, None]
        elif step == "min-max":
            rows -= self.statistics[f"{i}.min"]
            rows /= self.statistics[f"{i}.range"]
        elif step == "x10":
            rows *= 10
        else:
            rows -= self.statistics[f"{i}.mean"]
            if step == "standard":
                rows /= self.statistics[f"{i}.deviation"]


def fit_semantics(space: ClassSpace, steps: tuple[Scaling, ...]) -> Scaler:
    """Fit the scalings of semantics on the seen classes of ``space``.

    Raises:
        DataError: if a class that had attributes has only zeros left, as centring does to a class that is the
            mean.
    """
    if not space.attributes:  # few-shot: nothing describes the classes
        return Scaler.fit(space.semantics, ())
    scaler = Scaler.fit(space.semantics[space.seen], steps)
    empty = ~scaler(space.semantics).any(axis=1)
    if empty.any():
        name = space.names[int(np.argmax(empty))]
        raise DataError(
            f"the scalings {', '.join(steps)} leave the class {name!r} only zeros as attributes: "
            "choose others in data.semantics"
        )
    return scaler


def _extent(rows: NDArray[Any], earlier: Scaler) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the smallest and the largest value of each column, after the ``earlier`` scalings."""
    lows, highs = zip(*((b.min(axis=0), b.max(axis=0)) for b in map(earlier, blocks(rows))), strict=True)
    return np.min(lows, axis=0), np.max(highs, axis=0)
