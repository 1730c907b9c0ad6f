"""Who holds what: samples dealt to clients, from plain labels.

============================ =======================================================================================
function                     a client holds
============================ =======================================================================================
:func:`iid`                  an even share of every class; with ``rho``, its own draw of that share
of every class, so
                             that clients may overlap (FedZSL, Fig. 13)
:func:`dirichlet`            a share of every class, class by class from Dir(alpha) ("non-i.i.d.",
FedZSL, Fig. 11) :func:`pccd`                 whole classes of its own (partial class-conditional
distribution, FedZSL, 4.2) ``counts = "even"``          as many classes as every other client, give
or take one ``counts = "uneven"``        at least ``floor`` classes, the rest cut at random (FZSL,
Table 6) ``counts = "dirichlet"``     at least ``floor`` classes, the rest in proportions from
Dir(alpha) (FedZSL, Fig. 10) ``phi``                      that share of all classes; several clients
hold a class where phi x clients > 1
                             (FedZSL, Table 1)
:func:`user`                 all samples of whole users, as many users as every other client, give
or take one
                             (FedFSL, 5.4.2: tweets)
============================ =======================================================================================

Each function takes (n,) labels, the number of ``clients`` and the ``seed`` of all draws, and
returns for each client the sorted positions of its samples, at least one. Labels are whole numbers
from 0, or names, which are numbered in sorted order: each class has random draws of its own.
``rho`` in (0, 1] leaves a client with a random share of the samples of each of its classes, at
least one. An argument that makes no sense raises ``ArgumentError``.

Example:
    >>> labels = ["cat", "dog", "cat", "eel", "dog", "eel"]
    >>> [ids.tolist() for ids in pccd(labels, clients=3)]
    [[0, 2], [3, 5], [1, 4]]
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedunseen.core.errors import ArgumentError
from fedunseen.core.random import stream

__all__ = ["dirichlet", "folders", "iid", "pccd", "user"]

_NOBODY = -1  # holds a sample that rho leaves out
ATTEMPTS = 100  # to draw a Dirichlet partition without an empty client

Ids = NDArray[np.int64]


def iid(labels: ArrayLike, clients: int = 10, seed: int = 0, rho: float | None = None) -> list[Ids]:
    """Deal every class evenly.

    Each class is dealt round the table from where the last one stopped: the clients' totals differ
    by one at most. With ``rho`` each client draws its own such share of every class.

    Example:
        >>> [len(ids) for ids in iid(np.repeat([0, 1], 6), clients=3)]
        [4, 4, 4]
    """
    samples = _samples(labels)
    _check(clients=clients, rho=rho)
    if rho is not None:
        return _held(
            [[_share(ids, rho, seed, k, c) for c, ids in samples.items()] for k in range(clients)]
        )
    holder = np.empty(len(np.asarray(labels)), dtype=np.int64)
    turn = 0
    for c, ids in samples.items():
        shuffled = stream(seed, "partition iid", c).permutation(ids)
        holder[shuffled] = (turn + np.arange(len(ids))) % clients
        turn = (turn + len(ids)) % clients
    return _by_holder(holder, clients)


def dirichlet(
    labels: ArrayLike,
    clients: int = 10,
    seed: int = 0,
    alpha: float = 0.5,
    rho: float | None = None,
) -> list[Ids]:
    """Cut every class by its own draw from Dir(``alpha``), again until every client has samples.

    The larger alpha > 0 is, the more even. 100 draws that all leave a client without samples raise
    ``ArgumentError``.

    Example:
        >>> parts = dirichlet(np.repeat([0, 1, 2], 50), clients=4)
        >>> np.sort(np.concatenate(parts)).tolist() == list(range(150))
        True
    """
    samples = _samples(labels)
    _check(clients=clients, alpha=alpha, rho=rho)
    holder = np.empty(len(np.asarray(labels)), dtype=np.int64)
    for attempt in range(ATTEMPTS):
        holder[:] = _NOBODY
        for c, ids in samples.items():
            random = stream(seed, "partition dirichlet", attempt, c)
            proportions = random.dirichlet(np.full(clients, alpha))
            cuts = (np.cumsum(proportions)[:-1] * len(ids)).astype(int)
            for k, part in enumerate(np.split(random.permutation(ids), cuts)):
                holder[part if rho is None or not len(part) else _share(part, rho, seed, k, c)] = k
        if len(np.setdiff1d(np.arange(clients), holder)) == 0:
            return _by_holder(holder, clients)
    raise ArgumentError(
        f"{ATTEMPTS} draws from Dir({alpha:g}) all left a client without samples: raise alpha or "
        f"lower clients ({clients})"
    )


def pccd(
    labels: ArrayLike,
    clients: int = 10,
    seed: int = 0,
    counts: Literal["even", "uneven", "dirichlet"] = "even",
    alpha: float = 0.5,
    floor: int | None = None,
    phi: float | None = None,
    rho: float | None = None,
) -> list[Ids]:
    """Give each client whole classes of its own: the partial class-conditional distribution.

    The table at the top of this file describes ``counts``, ``alpha`` and ``phi``. ``floor`` is by
    default half an even share (uneven) or 2 (dirichlet). Classes that do not suffice raise
    ``ArgumentError``.

    Example:
        >>> labels = np.repeat(np.arange(6), 10)
        >>> [np.unique(labels[ids]).tolist() for ids in pccd(labels, clients=3)]
        [[0, 4], [1, 2], [3, 5]]
    """
    samples = _samples(labels)
    _check(clients=clients, alpha=alpha, phi=phi, rho=rho)
    shuffled = stream(seed, "partition classes").permutation(
        np.array(list(samples), dtype=np.int64)
    )
    # how many clients hold a class on average; up to 1, classes are disjoint (1e-9: in floats 49 *
    # (1 / 49) < 1)
    times = 1.0 if phi is None else phi * clients
    if counts == "even" and times <= 1 + 1e-9 and clients > len(samples):
        raise ArgumentError(
            f"{clients} clients cannot each hold classes of their own out of {len(samples)} seen "
            "ones: lower clients, or let clients share classes (phi)"
        )
    sizes = [len(part) for part in np.array_split(shuffled, clients)]
    if counts != "even":
        sizes = _uneven_sizes(counts, clients, len(samples), alpha, floor, seed)
    dealt = [part.tolist() for part in np.split(shuffled, np.cumsum(sizes)[:-1])]
    if phi is not None and abs(times - 1) > 1e-9:
        wanted = max(1, round(phi * len(samples)))
        if times < 1:
            dealt = [class_ids[:wanted] for class_ids in dealt]
        else:
            # what was dealt sees to it that every class has a holder; the rest is each client's own draw
            for k, class_ids in enumerate(dealt):
                unheld = np.setdiff1d(shuffled, class_ids)
                extra = max(0, wanted - len(class_ids))
                class_ids += (
                    stream(seed, "partition shared classes", k)
                    .choice(unheld, size=extra, replace=False)
                    .tolist()
                )
    return _held(
        _shares([[samples[c] for c in class_ids] for class_ids in dealt], labels, rho, seed)
    )


def user(
    labels: ArrayLike, users: ArrayLike, clients: int = 10, seed: int = 0, rho: float | None = None
) -> list[Ids]:
    """Deal whole users in random order.

    ``users`` (n,) says who each sample comes from, by number or name. More clients than users raise
    ``ArgumentError``.

    Example:
        >>> [ids.tolist() for ids in user([0, 0, 1, 1], ["ann", "bob", "ann", "bob"], clients=2)]
        [[0, 2], [1, 3]]
    """
    numbers = _numbers(labels)
    whose = np.asarray(users)
    _check(clients=clients, rho=rho)
    if whose.shape != numbers.shape:
        raise ArgumentError(
            f"users have the shape {whose.shape} and labels {numbers.shape}: give a user for each "
            "sample"
        )
    user_ids = np.unique(whose)
    if clients > len(user_ids):
        raise ArgumentError(
            f"{clients} clients cannot each hold users of their own out of {len(user_ids)}: lower "
            "clients"
        )
    shuffled = stream(seed, "partition users").permutation(np.arange(len(user_ids)))
    client = np.empty(len(user_ids), dtype=np.int64)
    for k, places in enumerate(np.array_split(shuffled, clients)):
        client[places] = k
    return folders(labels, client[np.searchsorted(user_ids, whose)], seed, rho)


def folders(
    labels: ArrayLike, folders: ArrayLike, seed: int = 0, rho: float | None = None
) -> list[Ids]:
    """Give each client the samples of one folder, in the order of the folders.

    ``folders`` (n,) says where each sample lies, by number or name.

    Example:
        >>> [ids.tolist() for ids in folders([0, 1, 1, 2], ["north", "south", "north", "south"])]
        [[0, 2], [1, 3]]
    """
    numbers = _numbers(labels)
    _check(clients=1, rho=rho)
    holder = np.asarray(folders)
    parts = []
    for folder in np.unique(holder):
        mine = np.flatnonzero(holder == folder)
        parts.append([mine[numbers[mine] == c] for c in np.unique(numbers[mine])])
    return _held(_shares(parts, labels, rho, seed))


def _uneven_sizes(
    counts: str, clients: int, classes: int, alpha: float, floor: int | None, seed: int
) -> list[int]:
    """Return how many classes each client holds: the floor, and a random share of what is left
    over.
    """
    # uneven: half of an even share, rounded up, is at least FZSL's eighth of all classes for its 4
    # clients
    least = (
        floor if floor is not None else 2 if counts == "dirichlet" else -(-classes // (2 * clients))
    )
    if least * clients > classes:
        raise ArgumentError(
            f"{clients} clients with at least {least} classes each need {least * clients} seen "
            f"classes, but there are {classes}: lower clients or floor"
        )
    concentration = (
        alpha if counts == "dirichlet" else 1.0
    )  # Dir(1): any division is equally likely
    proportions = stream(seed, "partition class counts").dirichlet(np.full(clients, concentration))
    cuts = np.rint(np.cumsum(proportions) * (classes - least * clients)).astype(int)
    cuts[-1] = classes - least * clients
    return [least + int(extra) for extra in np.diff(cuts, prepend=0)]


def _numbers(labels: ArrayLike) -> Ids:
    """Return (n,) class numbers."""
    array = np.asarray(labels)
    if array.ndim != 1 or not len(array):
        raise ArgumentError(f"labels have the shape {array.shape}: give one a sample, (n,)")
    if array.dtype.kind in "iu" and array.min() >= 0:
        return array.astype(np.int64)
    return np.unique(array, return_inverse=True)[1].astype(np.int64)


def _samples(labels: ArrayLike) -> dict[int, Ids]:
    """Return class number -> the positions of its samples."""
    numbers = _numbers(labels)
    return {int(c): np.flatnonzero(numbers == c) for c in np.unique(numbers)}


def _shares(
    parts: list[list[Ids]], labels: ArrayLike, rho: float | None, seed: int
) -> list[list[Ids]]:
    """Leave every client with its share of each of its parts, which are of one class each."""
    if rho is None:
        return parts
    numbers = _numbers(labels)
    return [
        [_share(ids, rho, seed, k, int(numbers[ids[0]])) for ids in class_samples if len(ids)]
        for k, class_samples in enumerate(parts)
    ]


def _share(ids: Ids, rho: float, seed: int, client: int, c: int) -> Ids:
    """Draw a client's share of the samples of one class, at least one."""
    random = stream(seed, "partition samples", client, c)
    return random.choice(ids, size=max(1, round(rho * len(ids))), replace=False)


def _by_holder(holder: Ids, clients: int) -> list[Ids]:
    """Return each client's samples, sorted, from (n,) who holds each."""
    order = np.argsort(holder, kind="stable")
    ends = np.searchsorted(holder[order], np.arange(clients + 1))
    return _held([[order[start:end]] for start, end in pairwise(ends)])


def _held(parts: Sequence[Sequence[Ids]]) -> list[Ids]:
    """Return each client's samples, sorted, or raise ``ArgumentError`` if a client has none."""
    held = [np.sort(np.concatenate([np.empty(0, dtype=np.int64), *part])) for part in parts]
    for k, ids in enumerate(held):
        if not len(ids):
            raise ArgumentError(f"client {k} would hold no sample: lower clients ({len(held)})")
    return held


def _check(
    clients: int, alpha: float = 1.0, phi: float | None = None, rho: float | None = None
) -> None:
    """Raise ``ArgumentError`` for the first argument that makes no sense."""
    if clients < 1:
        raise ArgumentError(f"clients = {clients}: give at least 1")
    if not 0 < alpha < np.inf:
        raise ArgumentError(f"alpha = {alpha}: give a finite number above 0")
    for name, share in (("phi", phi), ("rho", rho)):
        if share is not None and not 0 < share <= 1:
            raise ArgumentError(f"{name} = {share}: give a share above 0 and at most 1")
