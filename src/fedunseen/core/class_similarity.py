"""Class similarities Gamma: the sparse-inverse covariance of the classes' semantics (FedZSL Eq. 4,
DistZSL Eq. 5).

S is the **correlation** of the classes' attribute vectors, the papers' normalized covariance. An
answer is accepted if Gamma_ii = S_ii and |Gamma_ij - S_ij| <= alpha. scikit-learn often fails where
S is close to singular: then up to alpha = 0.01 S itself is taken, and above that the alternating
direction method of multipliers finds the optimum.
"""

import hashlib
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedunseen.core.errors import DataError
from fedunseen.core.files import cache_folder, write_tensors

# by how much S may differ from the optimum that it stands for; the papers' alpha, and the default
_NEAR = 0.01
_VERSION = 2  # of the estimate: a change here makes cached answers of the old one unused


def correlation(semantics: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (C, C) correlation of the rows of ``semantics`` (C, attributes)."""
    constant = np.flatnonzero(np.ptp(semantics, axis=1) == 0)
    if len(constant):
        raise DataError(
            f"class number {constant[0]} has the same value for every attribute, so that it is "
            "similar to no class: give it semantics that differ, or switch off the loss that "
            "compares classes with method.kl = 0"
        )
    matrix = np.atleast_2d(np.corrcoef(semantics))
    np.fill_diagonal(matrix, 1.0)
    return matrix


def is_optimal_covariance(gamma: NDArray[np.float64], s: NDArray[np.float64], alpha: float) -> bool:
    """Say whether ``gamma`` (C, C) keeps to the bounds that the optimum for ``s`` and ``alpha``
    obeys.
    """
    if not np.isfinite(gamma).all():
        return False
    off = np.abs(gamma - s)
    diagonal = np.diag(off).max()
    np.fill_diagonal(off, 0.0)
    return bool(diagonal <= 1e-6 and off.max() <= alpha * 1.01 + 1e-6)


def class_similarity(semantics: NDArray[np.float64], alpha: float = 0.01) -> NDArray[np.float64]:
    """Estimate Gamma (C, C) from ``semantics`` (C, attributes), or read it from the cache; warn of
    an idle alpha.
    """
    s = correlation(semantics)
    key = hashlib.sha256(f"{_VERSION} {alpha!r} {s.shape}".encode() + s.tobytes()).hexdigest()[:32]
    cached = cache_folder() / "class-similarity" / f"{key}.safetensors"
    stored = _read(cached)
    if stored is not None:
        gamma, solved = stored
    else:
        solution = _solve(s, alpha)
        if solution is None and alpha > _NEAR:
            solution = _by_multipliers(s, alpha)
        gamma, solved = (s, False) if solution is None else (solution, True)
        with suppress(OSError):  # a cache that cannot be written is merely no help next time
            write_tensors(cached, {"gamma": gamma, "solved": np.array([solved])})
    if not solved and alpha < _NEAR:
        warnings.warn(
            f"the graphical lasso found no optimum for these {len(s)} classes: their correlation "
            f"is used instead, no entry of it off by more than method.alpha = {alpha}; only an "
            f"alpha above {_NEAR} changes that",
            stacklevel=2,
        )
    return gamma


def _solve(s: NDArray[np.float64], alpha: float) -> NDArray[np.float64] | None:
    """Try scikit-learn's solver as it is and with a tighter inner tolerance; None if neither answer
    is the optimum.
    """
    from sklearn.covariance import (
        graphical_lasso,
    )  # a second to import, and the answer is often in the cache
    from sklearn.exceptions import ConvergenceWarning

    for settings in ({}, {"enet_tol": 1e-8, "max_iter": 200}):
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore", ConvergenceWarning)
                warnings.simplefilter("ignore", RuntimeWarning)
                gamma, _ = graphical_lasso(s, alpha=alpha, **settings)
        except (
            FloatingPointError,
            ValueError,
            np.linalg.LinAlgError,
        ):  # "Non SPD result", overflow
            continue
        if is_optimal_covariance(gamma, s, alpha):
            return np.asarray(gamma, dtype=np.float64)
    return None


def _by_multipliers(s: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Solve the graphical lasso by the alternating direction method of multipliers (Boyd et al.
    2011, section 6.5).
    """
    off = ~np.eye(len(s), dtype=bool)
    sparse = np.eye(len(s))
    multiplier = np.zeros_like(s)
    rho = 1.0
    for step in range(5000):
        values, vectors = np.linalg.eigh(rho * sparse - multiplier - s)
        exact = (vectors * ((values + np.sqrt(values**2 + 4 * rho)) / (2 * rho))) @ vectors.T
        wished = multiplier + rho * exact
        before = sparse
        multiplier = np.where(off, np.clip(wished, -alpha, alpha), 0.0)
        sparse = (wished - multiplier) / rho
        apart = np.abs(exact - sparse).max() / np.abs(sparse).max()
        moved = rho * np.abs(sparse - before).max() / alpha
        if max(apart, moved) < 1e-6:
            break
        if step % 20 == 19 and max(apart, moved) > 10 * min(apart, moved):
            rho *= 2.0 if apart > moved else 0.5
    gamma: NDArray[np.float64] = s + multiplier
    return (gamma + gamma.T) / 2


def _read(path: Path) -> tuple[NDArray[np.float64], bool] | None:
    try:
        tensors = load_file(path)
        return tensors["gamma"], bool(tensors["solved"][0])
    except (SafetensorError, KeyError, OSError):  # none yet, or damaged: it is made again
        return None
