"""Class similarities Gamma: the sparse-inverse covariance of the classes' semantics (FedZSL Eq. 4,
DistZSL Eq. 5).

S is the **correlation** of the classes' attribute vectors, the papers' normalized covariance. Gamma
is the covariance of the graphical lasso: its inverse Theta minimizes
tr(S Theta) - log det Theta + alpha * (sum of |Theta_ij|, i != j). The alternating direction method
of multipliers finds it, also where S is singular, because classes outnumber attributes.
scikit-learn's solver, which descends one class after the other, fails there and on CUB.
"""

import hashlib
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedunseen.core.files import cache_folder, write_tensors

_GAP = 1e-3
"""The highest duality gap of a class, in nats, at which an answer is not warned of."""
_STEPS = 5000
_VERSION = 3  # of the estimate: a change here makes cached answers of the old one unused


def correlation(semantics: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (C, C) correlation of the rows of ``semantics`` (C, attributes); a row that has the
    same value everywhere correlates with no other.
    """
    varied = np.ptp(semantics, axis=1) > 0
    matrix = np.eye(len(semantics))
    if varied.any():
        matrix[np.ix_(varied, varied)] = np.corrcoef(semantics[varied])
    np.fill_diagonal(matrix, 1.0)
    return matrix


def duality_gap(gamma: NDArray[np.float64], s: NDArray[np.float64], alpha: float) -> float:
    """Return by how much the inverse of ``gamma`` (C, C) may miss the least objective, in nats.

    It is tr(S Theta) - C + alpha * (sum of |Theta_ij|, i != j), which is 0 at the optimum alone and
    bounds the distance from it where Gamma_ii = S_ii and |Gamma_ij - S_ij| <= alpha. An answer that
    breaks these, or is not positive definite, has an infinite gap.
    """
    off = ~np.eye(len(s), dtype=bool)
    apart = np.abs(gamma - s)
    keeps = np.diag(apart).max() <= 1e-6 and apart[off].max(initial=0.0) <= alpha * 1.0001
    if not keeps or np.linalg.eigvalsh(gamma).min() <= 0:
        return float("inf")
    theta = np.linalg.inv(gamma)
    return float((s * theta).sum() - len(s) + alpha * np.abs(theta[off]).sum())


def class_similarity(semantics: NDArray[np.float64], alpha: float = 0.01) -> NDArray[np.float64]:
    """Estimate Gamma (C, C) from ``semantics`` (C, attributes), or read it from the cache; warn
    where the estimate is not the optimum.
    """
    s = correlation(semantics)
    key = hashlib.sha256(f"{_VERSION} {alpha!r} {s.shape}".encode() + s.tobytes()).hexdigest()[:32]
    cached = cache_folder() / "class-similarity" / f"{key}.safetensors"
    stored = _read(cached)
    if stored is not None:
        gamma, gap = stored
    else:
        gamma = _by_multipliers(s, alpha)
        gap = duality_gap(gamma, s, alpha)
        with suppress(OSError):  # a cache that cannot be written is merely no help next time
            write_tensors(cached, {"gamma": gamma, "gap": np.array([gap])}, private=True)
    if gap > _GAP * len(s):
        warnings.warn(
            f"the graphical lasso did not converge for these {len(s)} classes: their similarities "
            f"may be off by up to method.alpha = {alpha} from those of the paper; set a larger one",
            stacklevel=2,
        )
    return gamma


def _by_multipliers(s: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Solve the graphical lasso by the alternating direction method of multipliers (Boyd et al.
    2011, section 6.5).
    """
    off = ~np.eye(len(s), dtype=bool)
    sparse = np.eye(len(s))
    multiplier = np.zeros_like(s)
    rho = 1.0
    for step in range(_STEPS):
        values, vectors = np.linalg.eigh(rho * sparse - multiplier - s)
        exact = (vectors * ((values + np.sqrt(values**2 + 4 * rho)) / (2 * rho))) @ vectors.T
        wished = multiplier + rho * exact
        before = sparse
        multiplier = np.where(off, np.clip(wished, -alpha, alpha), 0.0)
        sparse = (wished - multiplier) / rho
        apart = np.abs(exact - sparse).max() / np.abs(sparse).max()
        moved = rho * np.abs(sparse - before).max() / alpha
        if max(apart, moved) < 1e-5:
            break
        if step % 20 == 19 and max(apart, moved) > 10 * min(apart, moved):
            rho *= 2.0 if apart > moved else 0.5
    gamma: NDArray[np.float64] = s + multiplier
    return (gamma + gamma.T) / 2


def _read(path: Path) -> tuple[NDArray[np.float64], float] | None:
    try:
        tensors = load_file(path)
        return tensors["gamma"], float(tensors["gap"][0])
    except (SafetensorError, KeyError, OSError):  # none yet, or damaged: it is made again
        return None
