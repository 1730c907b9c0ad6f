r"""Sums over samples: all that a method in closed form asks of a party.

For every class c the number of its samples n_c and their sum S_c, and over all classes together the matrix of second
moments G:

.. math:: n_c = \sum_i [y_i = c], \qquad S_c = \sum_i [y_i = c]\, x_i, \qquad G = \sum_i x_i x_i^T .

Sums add up: the sums of ten parties are those of one place, to rounding, whoever holds what. A party that comes late is
added, and one that leaves is subtracted.

They are a plain dictionary of tensors, all float64 but the last:

========== ================== ==================================================================
``count``  (C,)               n_c, for all classes of the space
``total``  (C, d)             S_c
``square`` (d (d + 1) / 2,)   G's upper triangle, row by row
``space``  (32,) bytes        what the class space hashes to: sums of different ones are never added
========== ================== ==================================================================

Their shapes depend on the class space and the features alone, so that sums can be masked before they are sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen.core.errors import DataError
from fedunseen.core.memory import free_pages
from fedunseen.core.parameters import Params
from fedunseen.data import ClassSpace

__all__ = [
    "add",
    "expand_classes",
    "no_sums",
    "packed",
    "scatter",
    "statistics",
    "subtract",
    "unpacked",
    "validate_statistics",
]

COLUMNS = 256  # of the matrix of second moments at once
WIDEST = 16_384  # numbers of a feature vector: 2 GiB a matrix, seven of which a model is made with
BLOCK = 4096  # samples at once: 64 MiB at 2,048 numbers each, in float64

_SLACK = 1e-6  # relative; rounding, and the steps in which masked sums are counted
_FACTORISED = 4096  # numbers of a feature vector up to which second moments are factorised for a check


def statistics(
    inputs: Tensor | NDArray[Any],
    labels: Tensor | NDArray[np.int64],
    space: ClassSpace,
    clip_norm: float | None = None,
) -> Params:
    """Return the sums of samples, read block by block: memory beside them is d x d numbers and one block.

    Args:
        inputs: (n, d) any real type; an array on disk (``numpy.memmap``) is read once, front to back.
        labels: (n,) class ids.
        space: the classes.
        clip_norm: to which length samples are shortened that are longer; None: none is.

    Raises:
        DataError: an input is not finite, or so large that its square is not.

    Example:
        >>> space = ClassSpace(("cat", "dog"), np.eye(2), ("fur", "bark"), [0], [], [1])
        >>> sums = statistics(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 0]), space)
        >>> sums["count"].tolist(), sums["total"][0].tolist(), sums["square"].tolist()
        ([2.0, 0.0], [4.0, 6.0], [10.0, 14.0, 20.0])
    """
    found = no_sums(inputs.shape[1], space)
    width = inputs.shape[1]
    square = torch.zeros(width, width, dtype=torch.float64)
    for start in range(0, len(labels), BLOCK):
        rows, own = inputs[start : start + BLOCK], torch.as_tensor(labels[start : start + BLOCK])
        if isinstance(rows, np.ndarray):  # a copy: torch does not take what is read-only
            rows = torch.from_numpy(np.array(rows, dtype=np.float64))
        rows, own = rows.to(torch.float64), own.to(rows.device)
        if clip_norm is not None:
            rows = rows * (clip_norm / rows.norm(dim=1, keepdim=True).clamp(min=clip_norm))
        square = square.to(rows.device)
        for left in range(0, width, COLUMNS):  # what is below the diagonal is not asked for
            right = left + COLUMNS
            square[:right, left:right].addmm_(rows[:, :right].T, rows[:, left:right])
        found["count"] += torch.bincount(own, minlength=len(space.names)).double().cpu()
        found["total"] = found["total"].to(rows.device).index_add_(0, own, rows)
        if isinstance(inputs, np.memmap):  # its pages count as this process's memory until they are freed
            free_pages(inputs)
    found |= {"total": found["total"].cpu(), "square": packed(square.cpu())}
    if not all(bool(torch.isfinite(found[name]).all()) for name in ("total", "square")):
        raise DataError(
            "the sums over samples are not finite: leave out those that are not, or scale the features (data.features)"
        )
    return found


def no_sums(width: int, space: ClassSpace) -> Params:
    """Return the sums of no sample at all, of features of ``width`` numbers.

    Raises:
        DataError: the features are too wide for a matrix of width x width.
    """
    classes = len(space.names)
    if width > WIDEST:
        raise DataError(
            f"features of {width} numbers make a matrix of {width**2 / 2**27:.0f} GiB: reduce them to {WIDEST} numbers "
            "at most, for example by a random projection that all parties share"
        )
    return {
        "count": torch.zeros(classes, dtype=torch.float64),
        "total": torch.zeros(classes, width, dtype=torch.float64),
        "square": torch.zeros(width * (width + 1) // 2, dtype=torch.float64),
        "space": _hash(space),
    }


def expand_classes(sums: Params, space: ClassSpace) -> Params:
    """Return the sums as those of a class space that has grown: what the same samples give there, bit for bit.

    Args:
        sums: of a class space whose classes are the first ones of ``space``, whatever describes them.
        space: the class space now.

    Example:
        >>> pets = ClassSpace(("cat", "dog"), np.eye(2), ("fur", "bark"), [0], [], [1])
        >>> more = ClassSpace(("cat", "dog", "fox"), np.ones((3, 2)), ("fur", "bark"), [0, 2], [], [1])
        >>> sums = statistics(torch.ones(5, 3), torch.zeros(5, dtype=torch.int64), pets)
        >>> expand_classes(sums, more)["count"].tolist()
        [5.0, 0.0, 0.0]
    """
    new = len(space.names) - len(sums["count"])
    return {
        **sums,
        "count": torch.cat([sums["count"], sums["count"].new_zeros(new)]),
        "total": torch.cat([sums["total"], sums["total"].new_zeros(new, sums["total"].shape[1])]),
        "space": _hash(space).to(sums["space"].device),
    }


def add(many: Iterable[Params], space: ClassSpace) -> Params:
    """Return the sum of sums, added in the order given.

    Raises:
        DataError: they are of another class space or of other features, or are not finite sums.
    """
    total: Params | None = None
    for sums in many:
        check(sums, space)
        if total is None:
            total = {name: value.clone() for name, value in sums.items()}
            continue
        if total["total"].shape != sums["total"].shape:
            raise DataError(
                f"sums over features of {sums['total'].shape[1]} numbers do not add to sums over "
                f"{total['total'].shape[1]}: let all parties make their features in the same way"
            )
        for name in ("count", "total", "square"):
            total[name] += sums[name]
    if total is None:
        raise DataError("there are no sums to add: at least one party must send some")
    return total


def subtract(sums: Params, part: Params, space: ClassSpace) -> Params:
    """Return ``sums`` without ``part``: to rounding, what was added without it.

    Raises:
        DataError: they do not fit together, or ``part`` has more samples of a class than ``sums``.
    """
    check(part, space)
    less = add([sums, {name: -value if value.is_floating_point() else value for name, value in part.items()}], space)
    if bool((less["count"] < 0).any()):
        name = space.names[int(less["count"].argmin())]
        raise DataError(
            f"the sums to take away hold more samples of {name!r} than there are: they were never part of these"
        )
    gone = less["count"] == 0
    less["total"][gone] = 0.0  # not what rounding has left
    return less


def check(sums: Params, space: ClassSpace) -> None:
    """Refuse sums that are of another class space, of wrong shapes or not finite.

    Raises:
        DataError: says what is wrong.
    """
    if not torch.equal(sums["space"], _hash(space)):
        raise DataError(
            "the sums are of another class space: all parties need the same classes with the same descriptions, in "
            "the same order"
        )
    width = sums["total"].shape[-1]
    if any(
        sums[name].shape != value.shape or sums[name].dtype != value.dtype
        for name, value in no_sums(width, space).items()
    ):
        raise DataError("the sums are damaged, their parts do not fit together: let the party send them again")
    if not all(bool(torch.isfinite(sums[name]).all()) for name in ("count", "total", "square")):
        raise DataError("the sums hold numbers that are not finite: leave the party that sent them out")


def validate_statistics(sums: Params, clip_norm: float | None = None) -> str:
    """Return why these statistics are infeasible, or "".

    Args:
        sums: a party's.
        clip_norm: the length that no sample exceeds; None: any.

    The scatter within classes of real samples has no negative direction. Whoever makes sums up without making samples
    up has to know that; whoever makes samples up is not found.

    Example:
        >>> space = ClassSpace(("cat", "dog"), np.eye(2), ("fur", "bark"), [0], [], [1])
        >>> sums = statistics(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 0]), space)
        >>> validate_statistics(sums), validate_statistics(sums | {"total": 10 * sums["total"]})
        ('', 'their second moments are too small for their means')
    """
    count, total = sums["count"], sums["total"]
    if bool((count < -_SLACK).any()):
        return "a class has fewer than no samples"
    there = count > 0.5
    if bool((total[~there].abs() > _SLACK * (1 + total.abs().max())).any()):
        return "a class without samples has a sum"
    width = total.shape[1]
    square = unpacked(sums["square"], width)
    level = float(square.diagonal().clamp(min=0.0).mean()) + float(torch.finfo(torch.float64).tiny)
    own = total[there]
    least = (own.square() / count[there][:, None]).sum(0)
    if clip_norm is not None and float(square.diagonal().sum()) > (1 + _SLACK) * clip_norm**2 * float(count.sum()):
        return f"their samples are longer than {clip_norm:g} on average"
    if bool((square.diagonal() - least < -_SLACK * level).any()):
        return "their second moments are too small for their means"
    if width <= _FACTORISED:
        square.addmm_((own / count[there][:, None]).T, own, alpha=-1.0).diagonal().add_(_SLACK * width * level)
        if int(torch.linalg.cholesky_ex(square).info):
            return "their second moments are no sum of squares"
    return ""


def scatter(sums: Params) -> Tensor:
    """Return the scatter within classes (d, d): G - sum_c S_c S_c^T / n_c, no value on its diagonal below zero."""
    there = sums["count"] > 0
    total, count = sums["total"][there], sums["count"][there]
    within = unpacked(sums["square"], total.shape[1]).addmm_((total / count[:, None]).T, total, alpha=-1.0)
    within.diagonal().clamp_(min=0.0)
    return within


def packed(square: Tensor) -> Tensor:
    """Return the upper triangle (d (d + 1) / 2,) of a symmetric matrix (d, d), row by row.

    Example:
        >>> packed(torch.tensor([[1.0, 2.0], [2.0, 3.0]])).tolist()
        [1.0, 2.0, 3.0]
    """
    width = len(square)  # by rows: indices of all places would take twice the memory of the matrix
    out = square.new_empty(width * (width + 1) // 2)
    start = 0
    for i in range(width):
        out[start : start + width - i] = square[i, i:]
        start += width - i
    return out


def unpacked(upper: Tensor, width: int) -> Tensor:
    """Return the symmetric matrix (d, d) whose upper triangle :func:`packed` gave."""
    square = upper.new_empty(width, width)
    start = 0
    for i in range(width):
        row = upper[start : start + width - i]
        square[i, i:] = row
        square[i:, i] = row
        start += width - i
    return square


def _hash(space: ClassSpace) -> Tensor:
    """Return (32,) bytes: what the names and descriptions of the classes hash to; who is seen is no part of it."""
    digest = hashlib.sha256(json.dumps([space.names, space.attribute_names]).encode())
    digest.update(space.semantics.tobytes())
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
