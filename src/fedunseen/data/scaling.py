"""Named scalings of features and semantics, fitted on training rows only and applied to all.

``l2``: x / ||x||, zeros stay. ``min-max``: (x - min) / (max - min) per column, not clipped.
``centre``: x - mean. ``standard``: (x - mean) / deviation. ``x10``: 10 x, for generators, whose
noise is about as long. A constant column becomes 0. ``kernel``, the last: features of another
number, in which curved boundaries are flat (:mod:`fedunseen.data.kernel`). Methods in closed form
add up whole numbers: :class:`Quantization` rounds each scaled feature.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.errors import DataError, unknown
from fedunseen.core.memory import free_pages
from fedunseen.data.class_space import ClassSpace
from fedunseen.data.kernel import Kernel, bound_of, fourier_features

Scaling = Literal["l2", "min-max", "centre", "standard", "x10"]
FeatureScaling = Literal["l2", "min-max", "centre", "standard", "x10", "kernel"]

_MOST_STEPS = 16
FITTED: tuple[FeatureScaling, ...] = ("min-max", "centre", "standard", "kernel")
"""Scalings that depend on training rows."""
_OF_STEP = {
    "min-max": ("min", "range"),
    "centre": ("mean",),
    "standard": ("mean", "deviation"),
    "kernel": ("frequencies", "phases"),
}
"""Step -> what is fitted for it."""
_UNITS_APART = 15.0  # times the median of columns' standard deviations
_LOOKED_AT = 4096  # rows, about
BLOCK = 2**18  # numbers a block: 1 MiB in float32, 2 MiB in float64


def blocks(rows: NDArray[Any], width: int = 0) -> Iterator[NDArray[Any]]:
    """Yield consecutive views of ``rows`` that are small enough to be copied without a second
    thought, to rows of ``width`` numbers if that is more.

    Pages of rows on disk are given back on the way.
    """
    step = max(1, BLOCK // max(1, rows[:1].size, width))
    for start in range(0, len(rows), step):
        yield rows[start : start + step]
        if start % (64 * step) == 0:
            free_pages(rows)


@dataclass(frozen=True, eq=False)
class Quantization:
    """Rounds scaled features x to whole numbers q = round((x - offset) / step), half to even,
    clipped to +-levels.

    A :class:`Scaler` subtracts the offset.

    Attributes:
        bits: of a whole number with its sign, 2 to 16; ``levels`` is the largest one.
        step: (1,) for all features or (d,) for each, float32; 0 for a constant feature, which
            becomes 0.
        offset: (1,) or (d,) float32.

    Example:
        >>> quantization = Quantization.of_unit_length(8, 5.0, 25)
        >>> codes, clipped = quantization.codes(np.array([[0.0, 0.5, -3.0]]))
        >>> codes.tolist(), clipped
        ([[0, 64, -127]], 1)
    """

    bits: int
    step: NDArray[np.float32]
    offset: NDArray[np.float32]

    @staticmethod
    def of_unit_length(bits: int, reach: float, width: int) -> Quantization:
        """Return that of features of unit length: +- ``reach`` root mean squares, which are 1 /
        sqrt(width).
        """
        return Quantization._within(
            bits, np.full(1, -reach / np.sqrt(width)), np.full(1, reach / np.sqrt(width))
        )

    @staticmethod
    def of_kernel(bits: int, features: int) -> Quantization:
        """Return that of so many features of a kernel."""
        bound = np.full(1, bound_of(features))
        return Quantization._within(bits, -bound, bound)

    @staticmethod
    def of_grey_values(bits: int) -> Quantization:
        """Return that of numbers in [0, 1]."""
        return Quantization._within(bits, np.zeros(1), np.ones(1))

    @staticmethod
    def of_rows(
        bits: int, reach: float, rows: NDArray[Any], scaler: Scaler, sampled: bool = False
    ) -> Quantization:
        """Fit bounds for each feature to rows (n, d): +- ``reach`` deviations around the mean, at
        most their extent, unless they are ``sampled`` from more.
        """
        scaled = scaler(rows).astype(np.float64)
        with np.errstate(
            invalid="ignore"
        ):  # NaN and infinity are refused where samples are rounded
            mean = scaled.mean(axis=0)
            spread = reach * scaled.std(axis=0)
        if sampled:
            return Quantization._within(bits, mean - spread, mean + spread)
        low = np.maximum(scaled.min(axis=0), mean - spread)
        high = np.minimum(scaled.max(axis=0), mean + spread)
        return Quantization._within(bits, low, high)

    @staticmethod
    def of_bounds(bits: int, bounds: NDArray[Any], scaler: Scaler) -> Quantization:
        """Return that of features from ``bounds[0]`` to ``bounds[1]``, (2, d) before scaling."""
        low, high = scaler(bounds).astype(np.float64)
        return Quantization._within(bits, low, high)

    @staticmethod
    def _within(bits: int, low: NDArray[Any], high: NDArray[Any]) -> Quantization:
        levels = 2 ** (bits - 1) - 1
        step = (high - low) / (2 * levels)
        offset = (low + high) / 2
        return Quantization(bits, step.astype(np.float32), offset.astype(np.float32))

    def around_zero(self) -> Quantization:
        """Return the quantization without an offset that covers the same range."""
        reach = np.abs(self.offset) + self.levels * self.step
        return Quantization._within(self.bits, -reach, reach)

    @staticmethod
    def read(statistics: Mapping[str, NDArray[np.float32]]) -> Quantization | None:
        """Return what :attr:`statistics` holds; None if features are not quantized.

        Raises:
            DataError: the bits are not 2 to 16, so that powers of 2 would have no bound, or step and
                offset are no lists.
        """
        if "quantize.bits" not in statistics:
            return None
        bits, step, offset = (statistics[f"quantize.{name}"] for name in ("bits", "step", "offset"))
        if bits.size != 1 or not 2 <= bits.item() <= 16:
            raise DataError(
                "quantize.bits of the features' scaling is not a number from 2 to 16: restore "
                "its file, or run the experiment again"
            )
        if step.ndim != 1 or offset.ndim != 1:
            raise DataError(
                "quantize.step or quantize.offset of the features' scaling is not a list: restore "
                "its file, or run the experiment again"
            )
        return Quantization(int(bits.item()), step, offset)

    @property
    def statistics(self) -> dict[str, NDArray[np.float32]]:
        """Name -> array: what a party or a finished run needs to round as this does."""
        bits = np.array([self.bits], dtype=np.float32)
        return {"quantize.bits": bits, "quantize.step": self.step, "quantize.offset": self.offset}

    @property
    def levels(self) -> int:
        """The largest whole number."""
        return int(2 ** (self.bits - 1) - 1)

    @property
    def digest(self) -> bytes:
        """What identifies this quantization."""
        parts = (
            np.array([self.bits]).astype("<i8"),
            self.step.astype("<f4"),
            self.offset.astype("<f4"),
        )
        return b"".join(part.tobytes() for part in parts)

    def codes(self, rows: NDArray[Any]) -> tuple[NDArray[np.signedinteger[Any]], int]:
        """Return the whole numbers (n, d) of features as a :class:`Scaler` gives them, and how many
        were clipped.
        """
        codes = rows.astype(np.float32)
        beyond = self._round(codes)
        return codes.astype(np.int8 if self.bits <= 8 else np.int16), beyond

    def clipped(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        """Return (n, d) which features, as a :class:`Scaler` gives them, are beyond the range."""
        step = np.where(self.step > 0, self.step, np.float32(np.inf))
        return np.asarray(np.abs(np.rint(rows.astype(np.float32) / step)) > self.levels)

    def _round(self, rows: NDArray[np.float32], raw: NDArray[Any] | None = None) -> int:
        """Replace features by whole numbers, and return how many were clipped; refuse NaN and
        infinity in ``raw``.
        """
        rows /= np.where(self.step > 0, self.step, np.float32(np.inf))
        np.rint(rows, out=rows)
        most = np.maximum.reduce(rows, None, initial=0)
        least = np.minimum.reduce(rows, None, initial=0)
        if most <= self.levels and least >= -self.levels:
            return 0
        if raw is not None and not np.isfinite(most - least) and not np.isfinite(raw).all():
            raise DataError("the features of some samples hold NaN or infinity: leave those out")
        if np.isnan(most + least) and np.isnan(rows).any():  # infinities make a NaN of the sum
            raise DataError(
                "scaled features are not numbers: features and their scaling are of another size"
            )
        beyond = np.count_nonzero(rows > self.levels) + np.count_nonzero(rows < -self.levels)
        np.clip(rows, -self.levels, self.levels, out=rows)
        return int(beyond)


def in_several_units(rows: NDArray[Any]) -> bool:
    """Return whether columns of features (n, d) are in several units: the largest standard
    deviation is fifteen times the median, or more.

    Features of networks that were tried have 2 and 12 times (docs/research/scales.md). Of many rows
    some thousands are looked at.
    """
    some = np.linspace(0, len(rows) - 1, min(len(rows), _LOOKED_AT)).astype(np.int64)
    deviations = rows[some].astype(np.float64).std(axis=0)
    varying = deviations[deviations > 0]
    return bool(len(varying) > 1 and varying.max() >= _UNITS_APART * np.median(varying))


@dataclass(frozen=True, eq=False)
class Scaler:
    """Scalings in the order in which they apply, with what was fitted.

    Attributes:
        steps: names of the scalings.
        statistics: ``"<step>.<what>"`` -> shape (d,), for example ``"0.mean"``, ``"1.min"``. A
            ``range`` or ``deviation`` is infinite for a constant column, so that dividing by it
            gives 0. A kernel has ``frequencies`` (d, D) and ``phases`` (D,). With those of a
            :class:`Quantization`, scaled rows are rounded.

    Example:
        >>> scaler = Scaler.fit(np.array([[0.0, 5.0], [2.0, 5.0]]), ("min-max",))
        >>> scaler(np.array([[1.0, 7.0]])).tolist()
        [[0.5, 0.0]]
    """

    steps: tuple[FeatureScaling, ...]
    statistics: Mapping[str, NDArray[np.float32]]

    def __post_init__(self) -> None:
        if len(self.steps) > _MOST_STEPS:  # each takes a pass over all rows
            raise DataError(
                f"there are {len(self.steps)} scalings in a row: give at most {_MOST_STEPS}"
            )
        for step in self.steps:
            if step not in get_args(FeatureScaling):
                raise DataError(unknown("scaling", str(step), get_args(FeatureScaling)))

    @staticmethod
    def fit(
        rows: NDArray[Any], steps: tuple[FeatureScaling, ...], kernel: Kernel | None = None
    ) -> Scaler:
        """Fit ``steps`` one after the other, each on what the earlier ones make of ``rows``.

        Args:
            rows: shape (n, d) with n >= 1, any real numeric type, finite.
            steps: names of scalings; ``kernel`` may be the last one alone.
            kernel: how a kernel's features are drawn; by default as :class:`Kernel` says.
        """
        Scaler(steps, {})  # refuses them before anything is computed
        statistics: dict[str, NDArray[np.float32]] = {}
        for i, step in enumerate(steps):
            earlier = Scaler(steps[:i], statistics)
            fitted: dict[str, NDArray[Any]] = {}
            if step == "min-max":
                low, high = _extent(rows, earlier)
                fitted = {"min": low, "range": np.where(high > low, high - low, np.inf)}
            elif step == "kernel":
                fitted = (kernel or Kernel()).fit(_variance(rows, earlier, _mean(rows, earlier)))
            elif step in ("centre", "standard"):
                fitted["mean"] = mean = _mean(rows, earlier)
                if step == "standard":
                    variance = _variance(rows, earlier, mean)
                    low, high = _extent(
                        rows, earlier
                    )  # a rounded mean gives a constant column a tiny deviation
                    fitted["deviation"] = np.where(high > low, np.sqrt(variance), np.inf)
            statistics |= {
                f"{i}.{statistic}": value.astype(np.float32) for statistic, value in fitted.items()
            }
        return Scaler(tuple(steps), statistics)

    def __call__(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return the scaled ``rows``, shape (n, d); without steps, float32 rows come back as they
        are.
        """
        if not self.steps and self.quantization is None:
            return rows.astype(np.float32, copy=False)
        columns = rows.shape[1]
        width = self.width(columns)
        scaled = np.empty((len(rows), width), dtype=np.float32)
        small = max(rows.size, scaled.size) <= BLOCK
        for block, out in (
            ((rows, scaled),)
            if small
            else zip(blocks(rows, width), blocks(scaled, columns), strict=True)
        ):
            self._scale(block, out)
            if self.quantization is not None:
                self.quantization._round(out)
                out *= self.quantization.step
        return scaled

    def codes(self, rows: NDArray[Any]) -> tuple[NDArray[np.signedinteger[Any]], int]:
        """Return the whole numbers (n, d) of ``rows``, where they are quantized, and how many
        features were clipped.
        """
        assert self.quantization is not None
        columns = rows.shape[1]
        width = self.width(columns)
        kind = np.int8 if self.quantization.bits <= 8 else np.int16
        codes = np.empty((len(rows), width), dtype=kind)
        beyond = 0
        space = np.empty(next(blocks(codes, columns), codes).shape, dtype=np.float32)
        for block, out in zip(blocks(rows, width), blocks(codes, columns), strict=True):
            scaled = space[: len(block)]
            self._scale(block, scaled)
            beyond += self.quantization._round(scaled, block)
            out[:] = scaled
        return codes, beyond

    def width(self, columns: int) -> int:
        """Return how many numbers a scaled row of so many columns has."""
        phases = self.statistics.get(f"{len(self.steps) - 1}.phases")
        return columns if phases is None else len(phases)

    def sample_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a sample that becomes one of ``shape``."""
        frequencies = self.statistics.get(f"{len(self.steps) - 1}.frequencies")
        return shape if frequencies is None else (len(frequencies),)

    def clipped(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        """Return (n, d) which features of ``rows``, where they are quantized, are clipped."""
        assert self.quantization is not None
        return self.quantization.clipped(self.unrounded(rows))

    def share_clipped(self, features: NDArray[Any], rows: NDArray[np.int64]) -> float:
        """Return which share of ``features[rows]``, (n, d), is clipped; 0 without rounding."""
        if self.quantization is None or not len(rows):
            return 0.0
        step = max(1, BLOCK // features[:1].size)
        parts = np.split(rows, range(step, len(rows), step))
        beyond = sum(int(self.clipped(features[part]).sum()) for part in parts)
        return beyond / (len(rows) * features[:1].size)

    def unrounded(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return (n, d) what the whole numbers of quantized ``rows`` are made of."""
        scaled = np.empty((len(rows), self.width(rows.shape[1])), dtype=np.float32)
        self._scale(rows, scaled)
        return scaled

    def stages(self, rows: NDArray[Any]) -> list[NDArray[Any]]:
        """Return ``rows`` (n, d) before and after each step, up to what whole numbers are made of.

        Each step rounds to float32: a large mean makes different values one. Of a kernel, whose
        features are of none of the rows' numbers alone, only the last stage is there.
        """
        if self.steps[-1:] == ("kernel",):
            return [self.unrounded(rows)]
        scaled = rows.astype(np.float32)
        stages: list[NDArray[Any]] = [rows]
        for i, step in enumerate(self.steps):
            self._apply(step, i, scaled)
            stages.append(scaled.copy())
        return [*stages, self.unrounded(rows)]

    def near_mean(self, features: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return (n,) which of ``features[rows]``, (n, d), are so near the mean that unit length
        after it makes much of their distance from it: at most half the median distance.

        Whoever chooses the mean can put it at or beside a known sample, which becomes 0 or a
        direction of its own. The same sample counts once, so that half of the samples at most are
        near.
        """
        mean = self.statistics.get("0.mean", features[:0])
        fits = mean.shape == features.shape[1:]  # otherwise refused with the features
        if self.steps[:2] != ("centre", "l2") or not len(rows) or not fits:
            return np.zeros(len(rows), dtype=np.bool_)
        step = max(1, BLOCK // mean.size)
        distances = np.concatenate(
            [
                np.linalg.norm(features[part].astype(np.float64) - mean, axis=1)
                for part in np.split(rows, range(step, len(rows), step))
            ]
        )
        return np.asarray(distances <= np.median(np.unique(distances)) / 2)

    def of_parts(self, rows: NDArray[Any], parts: NDArray[Any]) -> NDArray[np.float64]:
        """Return ``parts`` (n, p, d) scaled so that their mean over p is what :meth:`unrounded`
        makes of ``rows`` (n, d), the mean of parts as they came.

        A sample's length is that of its row.
        """
        scaled = np.empty((len(rows), 1 + parts.shape[1], rows.shape[1]))
        scaled[:, 0] = rows
        scaled[:, 1:] = parts
        for i, step in enumerate(self.steps):
            if step == "l2":
                norms = np.linalg.norm(scaled[:, :1], axis=2, keepdims=True)
                scaled /= np.where(norms > 0, norms, 1.0)
            else:
                flat = scaled.reshape(-1, rows.shape[1])
                self._apply(step, i, flat)
        offset = 0.0 if self.quantization is None else self.quantization.offset
        return np.asarray(scaled[:, 1:] - offset)

    def digest(self) -> str:
        """Return the SHA-256 of all that the scaled rows depend on beside the rows."""
        content = json.dumps(self.steps).encode()
        for name, value in sorted(self.statistics.items()):
            content += name.encode() + value.tobytes()
        return hashlib.sha256(content).hexdigest()

    @property
    def missing(self) -> list[str]:
        """The names of statistics that are needed and not here."""
        needed = [
            f"{i}.{name}" for i, step in enumerate(self.steps) for name in _OF_STEP.get(step, ())
        ]
        rounding = [f"quantize.{name}" for name in ("bits", "step", "offset")]
        if not self.statistics.keys().isdisjoint(rounding):
            needed += rounding
        return [name for name in needed if name not in self.statistics]

    @cached_property
    def quantization(self) -> Quantization | None:
        """How scaled rows are rounded; None: they are not."""
        return Quantization.read(self.statistics)

    def quantized(self, quantization: Quantization) -> Scaler:
        """Return the scaler that rounds too."""
        return Scaler(self.steps, {**self.statistics, **quantization.statistics})

    def _scale(self, rows: NDArray[Any], out: NDArray[np.float32]) -> None:
        offset = None if self.quantization is None else self.quantization.offset
        if not self.steps and offset is not None and offset.any():
            # once through memory instead of twice
            np.subtract(rows, offset, out=out, dtype=np.float32, casting="unsafe")
            return
        kernel = self.steps[-1:] == ("kernel",)
        scaled = np.empty(rows.shape, dtype=np.float32) if kernel else out
        scaled[:] = rows
        last = len(self.steps) - kernel
        for i, step in enumerate(self.steps[:last]):
            self._apply(step, i, scaled)
        if kernel:
            drawn = (self.statistics[f"{last}.{name}"] for name in ("frequencies", "phases"))
            out[:] = fourier_features(scaled, *drawn)
        if offset is not None and offset.any():
            out -= offset

    def _apply(self, step: FeatureScaling, i: int, rows: NDArray[Any]) -> None:
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


def fit_semantics(space: ClassSpace, steps: tuple[FeatureScaling, ...]) -> Scaler:
    """Fit the scalings of semantics on the seen classes of ``space``."""
    if not space.attributes:  # few-shot: nothing describes the classes
        return Scaler.fit(space.semantics, ())
    scaler = Scaler.fit(space.semantics[space.seen], steps)
    empty = space.semantics.any(axis=1) & ~scaler(space.semantics).any(axis=1)
    if empty.any():
        name = space.names[int(np.argmax(empty))]
        raise DataError(
            f"the scalings {', '.join(steps)} leave the class {name!r} only zeros as attributes: "
            "choose others in data.semantics"
        )
    return scaler


def _mean(rows: NDArray[Any], earlier: Scaler) -> NDArray[np.float64]:
    """Return the mean of each column, after the ``earlier`` scalings."""
    total = sum(earlier(block).sum(axis=0, dtype=np.float64) for block in blocks(rows))
    return np.asarray(total / len(rows))


def _variance(
    rows: NDArray[Any], earlier: Scaler, mean: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the variance of each column, after the ``earlier`` scalings."""
    squares = sum(((earlier(block) - mean) ** 2).sum(axis=0) for block in blocks(rows))
    return np.asarray(squares / len(rows))


def _extent(rows: NDArray[Any], earlier: Scaler) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the smallest and the largest value of each column, after the ``earlier`` scalings."""
    lows, highs = zip(
        *((b.min(axis=0), b.max(axis=0)) for b in map(earlier, blocks(rows))), strict=True
    )
    return np.min(lows, axis=0), np.max(highs, axis=0)
