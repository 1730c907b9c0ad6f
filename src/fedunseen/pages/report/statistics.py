"""What the figures show, computed from what the run directory holds. NaN stands for "not measured"
throughout.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


def curve(lines: Sequence[Mapping[str, Any]], name: str) -> Floats:
    """Return (T,) the value ``name`` of every round."""
    return np.array([line.get(name, np.nan) for line in lines], dtype=np.float64)


def measured(lines: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """Return the lines of the rounds that were measured (``evaluation.every``): those that have
    ``name``.
    """
    return [line for line in lines if name in line]


def measured_by_all(
    runs: Sequence[Sequence[Mapping[str, Any]]], name: str
) -> list[list[Mapping[str, Any]]]:
    """Return of each run the lines of those rounds that all of them have measured."""
    by_run = [measured(lines, name) for lines in runs]
    common = set.intersection(*({line["round"] for line in lines} for lines in by_run))
    return [[line for line in lines if line["round"] in common] for lines in by_run]


def band(rows: Sequence[Sequence[float]]) -> list[Floats]:
    """Return (T,) the lowest, mean and highest of each row; rows may differ in length, an empty one
    gives NaN.
    """
    full = [row if len(row) else [np.nan] for row in rows]
    return [np.array([f(row) for row in full], dtype=np.float64) for f in (np.min, np.mean, np.max)]


def bridged(values: Floats) -> Floats:
    """Fill gaps (NaN) of a curve (T,) between known values by straight lines."""
    finite = np.flatnonzero(np.isfinite(values))
    if not len(finite):
        return values
    at = np.arange(len(values))
    return np.interp(at, finite, values[finite], left=np.nan, right=np.nan)


def leaf_order(similarity: Floats) -> Ids:
    """Return the order in which similar classes stand together, classes without a similarity last.

    It is the optimal order of the leaves of average linkage on 1 - correlation (Bar-Joseph et al.
    2001).
    """
    from scipy.cluster import hierarchy  # here, because only pages need it
    from scipy.spatial.distance import squareform

    missing = np.isnan(np.diag(similarity))
    finite = np.flatnonzero(~missing)
    unknown = np.flatnonzero(missing)
    if len(finite) < 2:
        return np.concatenate([finite, unknown]).astype(np.int64)
    block = similarity[np.ix_(finite, finite)].astype(np.float64)
    distance = np.nan_to_num(np.clip(1.0 - (block + block.T) / 2, 0.0, None), nan=1.0)
    apart = squareform(distance, checks=False)
    tree = hierarchy.linkage(apart, "average", optimal_ordering=True)
    return np.concatenate([finite[hierarchy.leaves_list(tree)], unknown]).astype(np.int64)


def row_scaled(values: Floats) -> Floats:
    """Return (m, m) each row less its mean and over its largest departure from it, so in [-1, 1].

    What is left is which columns a row prefers: its level and length, which no answer depends on,
    are taken out.
    """
    centred = values - values.mean(axis=1, keepdims=True)
    return np.asarray(centred / np.maximum(np.abs(centred).max(axis=1, keepdims=True), 1e-12))


def agreement(first: Floats, second: Floats) -> float:
    """Return the Pearson correlation of the off-diagonal entries that both (m, m) matrices know;
    NaN for under 3.
    """
    rows, columns = np.triu_indices(len(first), 1)
    x = first[rows, columns].astype(np.float64)
    y = second[rows, columns].astype(np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    x = x[finite]
    y = y[finite]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return round(float(np.corrcoef(x, y)[0, 1]), 12)


def holding_order(counts: Ids, unseen: Ids) -> tuple[Ids, int, int]:
    """Order classes by who holds most of each, so that disjoint holdings stand as blocks along the
    diagonal.
    """
    owner = counts.argmax(axis=0)
    held = np.flatnonzero(counts.sum(axis=0) > 0)
    held = held[np.argsort(owner[held], kind="stable")]
    idle = np.setdiff1d(np.flatnonzero(counts.sum(axis=0) == 0), unseen)
    rest = np.setdiff1d(unseen, held)
    return np.concatenate([held, idle, rest]).astype(np.int64), len(held), len(idle)


def attribute_order(
    groups: Mapping[str, Sequence[int]], attributes: int
) -> tuple[Ids, list[tuple[str, int]]]:
    """Order attributes by their groups, in the order of the groups; those without one go last,
    under no name.
    """
    grouped = [column for columns in groups.values() for column in columns]
    rest = [column for column in range(attributes) if column not in set(grouped)]
    sizes = [(name, len(columns)) for name, columns in groups.items() if len(columns)]
    if sizes and rest:
        sizes.append(("", len(rest)))
    return np.array([*grouped, *rest], dtype=np.int64), sizes


def spaced(count: int, most: int) -> slice:
    """Return every so many places of ``count``, so that they are at most ``most``; all where there
    are no more.
    """
    return slice(None, None, max(1, -(-count // most)))
