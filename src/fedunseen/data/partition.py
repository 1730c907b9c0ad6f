"""Who holds what: the training samples of a benchmark, dealt to clients.

====================== ===================================================================================
kind                   a client holds
====================== ===================================================================================
iid                    an even share of every class; with ``rho``, its own draw of that share of every
                       class, so that clients may overlap (FedZSL, Fig. 13)
dirichlet              a share of every class, class by class from Dir(alpha) ("non-i.i.d.", FedZSL, Fig. 11)
pccd                   whole classes of its own (partial class-conditional distribution, FedZSL, 4.2)
  counts = "even"      as many classes as every other client, give or take one
  counts = "uneven"    at least ``floor`` classes, the rest cut at random (FZSL, Table 6)
  counts = "dirichlet" at least ``floor`` classes, the rest in proportions from Dir(alpha) (FedZSL, Fig. 10)
  phi                  that share of all seen classes; several clients hold a class where phi x clients > 1
                       (FedZSL, Table 1)
user                   all samples of whole users, as many users as every other client, give or take one
                       (FedFSL, 5.4.2: tweets)
file                   what a file says, by hand
====================== ===================================================================================

``rho`` leaves a client with a random share of the samples of each of its classes. ``join`` and ``leave`` say
from and until which round a client takes part (FedZSL, Fig. 14).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.core.random import stream
from fedunseen.core.settings import Settings
from fedunseen.data.benchmark import Benchmark
from fedunseen.data.tables import did_you_mean, number, read_csv

__all__ = ["NEVER", "Partition", "PartitionSettings", "make_partition"]

NEVER = int(np.iinfo(np.int64).max)
"""The round in which a client leaves that never leaves."""

ATTEMPTS = 100  # to draw a Dirichlet partition without an empty client

Ids = NDArray[np.int64]
Rounds = dict[str, Annotated[int, Field(ge=0)]]


class PartitionSettings(Settings):
    """The section ``[partition]``.

    Raises:
        ExperimentError: if an option makes no sense beside the others.

    Example:
        >>> PartitionSettings(kind="pccd", clients=4, counts="uneven", join={"2-3": 10}).join
        {'2-3': 10}
    """

    kind: Literal["iid", "dirichlet", "pccd", "user", "file"] = "pccd"
    """How the samples are dealt: every class evenly, every class by its own Dirichlet draw, each client classes of its
    own (partial class-conditional distribution), each client whole users, or as a file says."""
    clients: int = Field(10, ge=1)
    """How many clients."""
    counts: Literal["even", "uneven", "dirichlet"] = "even"
    """pccd: how many classes each client holds."""
    alpha: float = Field(0.5, gt=0, allow_inf_nan=False)
    """Concentration of the Dirichlet distribution: the larger, the more even."""
    floor: int | None = Field(None, ge=1)
    """pccd: least number of classes of a client; unset, half an even share (uneven) or 2 (dirichlet)."""
    phi: float | None = Field(None, gt=0, le=1)
    """pccd: share of all seen classes that each client holds."""
    rho: float | None = Field(None, gt=0, le=1)
    """Share of the samples of each of its classes that a client keeps, at least one."""
    file: Path | None = None
    """file: CSV with the columns class, client (counted from 0) and, optionally, share."""
    join: Rounds = Field(default_factory=dict)
    """Clients ("3" or "5-9") -> the first round, counted from 0, in which they take part."""
    leave: Rounds = Field(default_factory=dict)
    """Clients ("3" or "5-9") -> the first round in which they take part no more."""

    @model_validator(mode="after")
    def _check(self) -> PartitionSettings:
        # compared with the default, not asked whether it was set: a dumped experiment sets everything
        for option, default, sense, where in (
            ("counts", "even", self.kind == "pccd", 'partition.kind = "pccd"'),
            (
                "alpha",
                0.5,
                self.kind == "dirichlet" or self.counts == "dirichlet",
                'partition.kind = "dirichlet" or partition.counts = "dirichlet"',
            ),
            (
                "floor",
                None,
                self.kind == "pccd" and self.counts != "even",
                'partition.counts = "uneven" or "dirichlet"',
            ),
            (
                "phi",
                None,
                self.kind == "pccd" and self.counts == "even",
                'partition.kind = "pccd" with partition.counts = "even"',
            ),
            ("rho", None, self.kind != "file", "the other kinds: in a file, the column share says it"),
            ("file", None, self.kind == "file", 'partition.kind = "file"'),
        ):
            if getattr(self, option) != default and not sense:
                raise ExperimentError(
                    f"partition.{option} = {_toml(getattr(self, option))} makes no sense here: it belongs to {where}"
                )
        if self.kind == "file" and self.file is None:
            raise ExperimentError('partition.kind = "file" needs partition.file: lines of class,client[,share]')
        if self.counts == "dirichlet" and self.floor is not None and self.floor < 2:
            raise ExperimentError(
                'partition.floor must be at least 2 with partition.counts = "dirichlet": raise it, or use "uneven"'
            )
        first, last = self.rounds()
        absent = np.flatnonzero(first >= last)
        if len(absent):
            c = int(absent[0])
            raise ExperimentError(
                f"client {c} joins in round {first[c]} and leaves in round {last[c]}, "
                "so it never takes part: let it leave later"
            )
        return self

    def rounds(self) -> tuple[Ids, Ids]:
        """Return in which round each client joins and in which it leaves, each of shape (clients,)."""
        first, last = np.zeros(self.clients, dtype=np.int64), np.full(self.clients, NEVER, dtype=np.int64)
        for option, rounds, target in (("join", self.join, first), ("leave", self.leave, last)):
            named: set[int] = set()
            for key, value in rounds.items():
                clients = _client_range(option, key, self.clients)
                twice = named.intersection(clients)
                if twice:
                    raise ExperimentError(f"partition.{option} names client {min(twice)} twice")
                named.update(clients)
                target[clients.start : clients.stop] = value
        return first, last


@dataclass(frozen=True, eq=False)
class Partition:
    """Who holds which samples, and in which rounds each client takes part.

    Attributes:
        clients: for each client the sorted ids of its samples.
        first: shape (clients,), the first round (counted from 0) of each.
        last: shape (clients,), the first round in which it takes part no more; ``NEVER`` if it stays.
        remote: the clients hold their samples elsewhere: none of them is known here.
    """

    clients: tuple[Ids, ...]
    first: Ids
    last: Ids
    remote: bool = False

    def counts(self, labels: Ids, classes: int) -> Ids:
        """Return how many samples of each class each client holds.

        Args:
            labels: shape (samples,), the class of every sample of the benchmark.
            classes: how many classes there are.

        Returns:
            Shape (clients, classes).
        """
        return np.array([np.bincount(labels[ids], minlength=classes) for ids in self.clients], dtype=np.int64)

    def restricted_to(self, sample_ids: Ids) -> Partition:
        """Return the same clients with only their samples in ``sample_ids``; some clients may hold none."""
        return replace(self, clients=tuple(ids[np.isin(ids, sample_ids)] for ids in self.clients))

    def present(self, round: int) -> list[int]:
        """Return the clients that take part in ``round`` (counted from 0) and hold at least one sample."""
        there = [self.remote or len(ids) > 0 for ids in self.clients]
        return [k for k, holds in enumerate(there) if holds and self.first[k] <= round < self.last[k]]


def make_partition(settings: PartitionSettings, benchmark: Benchmark, seed: int) -> Partition:
    """Deal the training samples of ``benchmark`` to clients.

    The same settings, benchmark and seed give the same partition.

    Raises:
        ExperimentError: if the classes, samples or users do not suffice, or the file does not place every class.
        DataError: if the file is missing or damaged.
    """
    samples = {int(c): benchmark.train[benchmark.labels[benchmark.train] == c] for c in benchmark.space.seen}
    if settings.kind == "iid":
        clients = _iid(settings, samples, seed)
    elif settings.kind == "dirichlet":
        clients = _dirichlet(settings, samples, seed)
    elif settings.kind == "user":
        clients = _by_user(settings, benchmark, seed)
    elif settings.kind == "file":
        clients = _from_file(settings, benchmark, samples, seed)
    else:
        clients = [[samples[c] for c in classes] for classes in _pccd(settings, list(samples), seed)]
    if settings.rho is not None and settings.kind != "iid":  # iid has drawn its shares already
        clients = [
            [_share(ids, settings.rho, seed, k, int(benchmark.labels[ids[0]])) for ids in parts if len(ids)]
            for k, parts in enumerate(clients)
        ]
    held = tuple(np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts])) for parts in clients)
    empty = [k for k, ids in enumerate(held) if not len(ids)]
    if empty:
        raise ExperimentError(
            f"client {empty[0]} would hold no sample: lower partition.clients ({settings.clients})"
            + (" or give it a class in partition.file" if settings.kind == "file" else "")
        )
    first, last = settings.rounds()
    return Partition(held, first, last)


def elsewhere(settings: PartitionSettings) -> Partition:
    """Return the partition of a deployment: who comes and goes is known, who holds what is not."""
    first, last = settings.rounds()
    return Partition((np.empty(0, dtype=np.int64),) * settings.clients, first, last, remote=True)


def _iid(settings: PartitionSettings, samples: dict[int, Ids], seed: int) -> list[list[Ids]]:
    """Deal each class round the table from where the last one stopped: totals differ by one at most."""
    everyone = range(settings.clients)
    if settings.rho is not None:
        return [[_share(ids, settings.rho, seed, k, c) for c, ids in samples.items()] for k in everyone]
    clients: list[list[Ids]] = [[] for _ in everyone]
    turn = 0
    for c, ids in samples.items():
        shuffled = stream(seed, "partition iid", c).permutation(ids)
        for k in everyone:
            clients[k].append(shuffled[(k - turn) % settings.clients :: settings.clients])
        turn = (turn + len(ids)) % settings.clients
    return clients


def _dirichlet(settings: PartitionSettings, samples: dict[int, Ids], seed: int) -> list[list[Ids]]:
    """Cut every class by its own draw from Dir(alpha), anew until nobody is left with nothing."""
    for attempt in range(ATTEMPTS):
        clients: list[list[Ids]] = [[] for _ in range(settings.clients)]
        for c, ids in samples.items():
            random = stream(seed, "partition dirichlet", attempt, c)
            proportions = random.dirichlet(np.full(settings.clients, settings.alpha))
            cuts = (np.cumsum(proportions)[:-1] * len(ids)).astype(int)
            for parts, part in zip(clients, np.split(random.permutation(ids), cuts), strict=True):
                parts.append(part)
        if all(any(map(len, parts)) for parts in clients):
            return clients
    raise ExperimentError(
        f"{ATTEMPTS} draws from Dir({settings.alpha:g}) all left a client without samples: "
        f"raise partition.alpha or lower partition.clients ({settings.clients})"
    )


def _by_user(settings: PartitionSettings, benchmark: Benchmark, seed: int) -> list[list[Ids]]:
    """Deal whole users in random order; a client's samples come class by class."""
    if benchmark.users is None:
        raise ExperimentError(
            f'partition.kind = "user" needs samples with users, but {benchmark.name} does not say whose they are: use '
            'another kind, such as "iid"'
        )
    users = benchmark.users[benchmark.train]
    labels = benchmark.labels[benchmark.train]
    known = np.unique(users)
    if settings.clients > len(known):
        raise ExperimentError(
            f"{settings.clients} clients cannot each hold users of their own out of {len(known)}: lower "
            "partition.clients"
        )
    shuffled = stream(seed, "partition users").permutation(known)
    client = np.empty(len(known), dtype=np.int64)
    for k, own in enumerate(np.array_split(shuffled, settings.clients)):
        client[np.searchsorted(known, own)] = k
    holder = client[np.searchsorted(known, users)]
    clients: list[list[Ids]] = []
    for k in range(settings.clients):
        mine, of_class = benchmark.train[holder == k], labels[holder == k]
        clients.append([mine[of_class == c] for c in np.unique(of_class)])
    return clients


def _pccd(settings: PartitionSettings, classes: list[int], seed: int) -> list[list[int]]:
    """Return the classes of each client."""
    clients = settings.clients
    shuffled = stream(seed, "partition classes").permutation(np.array(classes, dtype=np.int64))
    # how many clients hold a class on average; up to 1, classes are disjoint (1e-9: in floats 49 * (1 / 49) < 1)
    times = 1.0 if settings.phi is None else settings.phi * clients
    if settings.counts == "even" and times <= 1 + 1e-9 and clients > len(classes):
        raise ExperimentError(
            f"{clients} clients cannot each hold classes of their own out of {len(classes)} seen ones: "
            "lower partition.clients, or let clients share classes (partition.phi)"
        )
    sizes = [len(part) for part in np.array_split(shuffled, clients)]
    if settings.counts != "even":
        sizes = _uneven_sizes(settings, len(classes), seed)
    dealt = [part.tolist() for part in np.split(shuffled, np.cumsum(sizes)[:-1])]
    if settings.phi is None or abs(times - 1) <= 1e-9:
        return dealt
    wanted = max(1, round(settings.phi * len(classes)))
    if times < 1:
        return [own[:wanted] for own in dealt]
    # what was dealt sees to it that every class has a holder; the rest is each client's own draw
    for k, own in enumerate(dealt):
        others = np.setdiff1d(shuffled, own)
        extra = max(0, wanted - len(own))
        own += stream(seed, "partition shared classes", k).choice(others, size=extra, replace=False).tolist()
    return dealt


def _uneven_sizes(settings: PartitionSettings, classes: int, seed: int) -> list[int]:
    """Return how many classes each client holds: the floor, and a random share of what is left over."""
    clients = settings.clients
    # uneven: half of an even share, rounded up, is at least FZSL's eighth of all classes for its 4 clients
    default = 2 if settings.counts == "dirichlet" else -(-classes // (2 * clients))
    floor = settings.floor if settings.floor is not None else default
    if floor * clients > classes:
        raise ExperimentError(
            f"{clients} clients with at least {floor} classes each need {floor * clients} seen classes, "
            f"but there are {classes}: lower partition.clients or partition.floor"
        )
    alpha = settings.alpha if settings.counts == "dirichlet" else 1.0  # Dir(1): any division is equally likely
    proportions = stream(seed, "partition class counts").dirichlet(np.full(clients, alpha))
    cuts = np.rint(np.cumsum(proportions) * (classes - floor * clients)).astype(int)
    cuts[-1] = classes - floor * clients
    return [floor + int(extra) for extra in np.diff(cuts, prepend=0)]


def _from_file(
    settings: PartitionSettings, benchmark: Benchmark, samples: dict[int, Ids], seed: int
) -> list[list[Ids]]:
    """Deal as the file says: a class on several lines is cut between their clients, evenly or by share."""
    assert settings.file is not None  # PartitionSettings sees to it
    holders = _read_holders(settings, settings.file.expanduser(), benchmark)
    clients: list[list[Ids]] = [[] for _ in range(settings.clients)]
    for c, ids in samples.items():
        if c not in holders:
            name = benchmark.space.names[c]
            raise ExperimentError(f"{settings.file}: nobody holds the seen class {name!r}: add a line for it")
        # the shares of a class may leave some of its samples to nobody
        cuts = np.rint(np.cumsum(list(holders[c].values())) * len(ids)).astype(int)
        parts = np.split(stream(seed, "partition file", c).permutation(ids), cuts)
        for k, part in zip(holders[c], parts, strict=False):
            clients[k].append(part)
    return clients


def _read_holders(settings: PartitionSettings, path: Path, benchmark: Benchmark) -> dict[int, dict[int, float]]:
    """Return class id -> client -> share of the class's samples."""
    (_, header), *rows = read_csv(path)
    if header not in (["class", "client"], ["class", "client", "share"]):
        raise DataError(f"{path}: the first line must be 'class,client' or 'class,client,share'")
    names = {name: i for i, name in enumerate(benchmark.space.names)}
    seen = {benchmark.space.names[c] for c in benchmark.space.seen}
    holders: dict[int, dict[int, float]] = {}
    for line, (name, client, *share) in rows:
        where = f"{path}, line {line}"
        if name not in names:
            raise ExperimentError(f"{where}: unknown class {name!r}{did_you_mean(name, names)}")
        if name not in seen:
            raise ExperimentError(f"{where}: the class {name!r} is not a seen class: nobody can hold it")
        if not client.isdecimal() or int(client) >= settings.clients:
            raise ExperimentError(
                f"{where}: the client {client!r} is not a number from 0 to {settings.clients - 1} (partition.clients)"
            )
        shares = holders.setdefault(names[name], {})
        if int(client) in shares:
            raise ExperimentError(f"{where}: client {client} holds the class {name!r} already")
        shares[int(client)] = number(share[0], where) if share else 0.0
        if share and not 0 < shares[int(client)] <= 1:
            raise ExperimentError(f"{where}: the share {share[0]} is not above 0 and at most 1")
        if sum(shares.values()) > 1 + 1e-9:
            raise ExperimentError(f"{where}: the shares of the class {name!r} add up to more than 1")
    if "share" not in header:
        holders = {c: dict.fromkeys(shares, 1 / len(shares)) for c, shares in holders.items()}
    return holders


def _share(ids: Ids, rho: float, seed: int, client: int, c: int) -> Ids:
    """Draw a client's share of the samples of one class, at least one."""
    random = stream(seed, "partition samples", client, c)
    return random.choice(ids, size=max(1, round(rho * len(ids))), replace=False)


def _client_range(option: str, key: str, clients: int) -> range:
    """Return the clients that a key of ``join`` or ``leave`` names."""
    match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", key)
    if match is None:
        raise ExperimentError(f'partition.{option}: {key!r} is neither a client ("3") nor a range of clients ("5-9")')
    start, stop = int(match[1]), int(match[2] or match[1])
    if start > stop:
        raise ExperimentError(f'partition.{option}: the range {key!r} is empty: write "{stop}-{start}"')
    if stop >= clients:
        raise ExperimentError(
            f"partition.{option}: there is no client {stop}: the {clients} clients are numbered from 0 to {clients - 1}"
        )
    return range(start, stop + 1)


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str | Path) else str(value)
