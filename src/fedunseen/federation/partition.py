"""Who holds what: the section ``[partition]``, and how it deals a benchmark's training samples to
clients.

:mod:`fedunseen.partitions` has the kinds but ``kind = "file"``, which deals as a file says.
``join`` and ``leave`` name the rounds in which clients come and go (FedZSL, Fig. 14).
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from fedunseen import partitions
from fedunseen.core.errors import ArgumentError, DataError, ExperimentError
from fedunseen.core.random import stream
from fedunseen.core.settings import Settings
from fedunseen.data.benchmark import Benchmark
from fedunseen.data.io.csv_io import number, read_csv
from fedunseen.data.names import did_you_mean

NEVER = int(np.iinfo(np.int64).max)
"""The round of leaving of a client that stays to the end."""

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

    kind: Literal["iid", "dirichlet", "pccd", "user", "folders", "file"] = "pccd"
    """How the samples are dealt: every class evenly, every class by its own Dirichlet draw, each
    client classes of its own (partial class-conditional distribution), each client whole users,
    each client the folder of one party (`data.folders`), or as a file says."""
    clients: int = Field(10, ge=1, le=1_000_000)
    """How many clients."""
    counts: Literal["even", "uneven", "dirichlet"] = "even"
    """pccd: how many classes each client holds."""
    alpha: float = Field(0.5, gt=0, allow_inf_nan=False)
    """Concentration of the Dirichlet distribution: the larger, the more even."""
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
    without: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Clients that never take part, though the samples are dealt as if they did: what
    `fedunseen forget` sets.
    """
    without_samples: dict[str, tuple[Annotated[int, Field(ge=0)], ...]] = Field(
        default_factory=dict
    )
    """Clients ("3") -> positions, from 0, of samples that never take part: what
    `fedunseen forget --samples` sets."""

    @model_validator(mode="after")
    def _check(self) -> "PartitionSettings":
        pccd = self.kind == "pccd"
        even = self.counts == "even"
        drawn = "dirichlet" in (self.kind, self.counts)
        for option, sense, where in (
            ("counts", pccd, 'partition.kind = "pccd"'),
            ("alpha", drawn, 'partition.kind = "dirichlet" or partition.counts = "dirichlet"'),
            ("phi", pccd and even, 'partition.kind = "pccd" with partition.counts = "even"'),
            ("rho", self.kind != "file", "the other kinds: in a file, the column share says it"),
            ("file", self.kind == "file", 'partition.kind = "file"'),
        ):
            value = getattr(self, option)
            # Compared with the default, because a dumped experiment sets every option.
            if value != type(self).model_fields[option].default and not sense:
                shown = f'"{value}"' if isinstance(value, str | Path) else value
                raise ExperimentError(
                    f"partition.{option} = {shown} makes no sense here: it belongs to {where}"
                )
        if self.kind == "file" and self.file is None:
            raise ExperimentError(
                'partition.kind = "file" needs partition.file: lines of class,client[,share]'
            )
        for k in self.without:
            if k >= self.clients:
                raise ExperimentError(
                    f"partition.without: there is no client {k}: the {self.clients} clients are "
                    f"numbered from 0 to {self.clients - 1}"
                )
        for key in self.without_samples:
            _client_range("without_samples", key, self.clients)
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
        """Return in which round each client joins and in which it leaves, each of shape
        (clients,).
        """
        first = np.zeros(self.clients, dtype=np.int64)
        last = np.full(self.clients, NEVER, dtype=np.int64)
        for option, rounds, target in (("join", self.join, first), ("leave", self.leave, last)):
            listed: set[int] = set()
            for key, value in rounds.items():
                clients = _client_range(option, key, self.clients)
                twice = listed.intersection(clients)
                if twice:
                    raise ExperimentError(f"partition.{option} names client {min(twice)} twice")
                listed.update(clients)
                target[clients.start : clients.stop] = value
        return first, last


@dataclass(frozen=True, eq=False)
class Partition:
    """Who holds which samples, and in which rounds each client takes part.

    Attributes:
        clients: for each client the sorted ids of its samples.
        first: shape (clients,), the first round (counted from 0) of each.
        last: shape (clients,), the first round in which it takes part no more; ``NEVER`` if it
            stays.
        remote: the clients hold their samples elsewhere: none of them is known here.
    """

    clients: tuple[Ids, ...]
    first: Ids
    last: Ids
    remote: bool = False

    @classmethod
    def of(cls, clients: Sequence[ArrayLike]) -> "Partition":
        """Return a partition whose clients are there in every round, from the ids of each one's
        samples.

        Example:
            >>> Partition.of([[2, 0], [1]]).present(0)
            [0, 1]
        """
        held = tuple(np.sort(np.asarray(ids, dtype=np.int64)) for ids in clients)
        return cls(held, np.zeros(len(held), dtype=np.int64), np.full(len(held), NEVER))

    def counts(self, labels: Ids, classes: int) -> Ids:
        """Return how many samples of each class each client holds.

        Args:
            labels: shape (samples,), the class of every sample of the benchmark.
            classes: how many classes there are.

        Returns:
            Shape (clients, classes).
        """
        return np.array(
            [np.bincount(labels[ids], minlength=classes) for ids in self.clients], dtype=np.int64
        )

    def restricted_to(self, sample_ids: Ids) -> "Partition":
        """Return the same clients with only their samples in ``sample_ids``; some clients may hold
        none.
        """
        return replace(self, clients=tuple(ids[np.isin(ids, sample_ids)] for ids in self.clients))

    def present(self, round: int) -> list[int]:
        """Return the clients that take part in ``round`` (counted from 0) and hold at least one
        sample.
        """
        holding = [self.remote or len(ids) > 0 for ids in self.clients]
        return [
            k for k, holds in enumerate(holding) if holds and self.first[k] <= round < self.last[k]
        ]


def make_partition(settings: PartitionSettings, benchmark: Benchmark, seed: int) -> Partition:
    """Deal the training samples of ``benchmark`` to clients, by :mod:`fedunseen.partitions` or by
    the file.

    The same settings, benchmark and seed give the same partition.
    """
    try:
        held = _deal(settings, benchmark, seed)
    except ArgumentError as error:
        raise ExperimentError(f"[partition]: {error}") from None
    first, last = settings.rounds()
    kept = _left(held, _gone(settings, held))
    return Partition(tuple(benchmark.train[ids] for ids in kept), first, last)


def never_taking_part(settings: PartitionSettings, benchmark: Benchmark, seed: int) -> Ids:
    """Return the ids of the samples that clients are dealt, but never take part with."""
    if not (settings.without or settings.without_samples):
        return np.empty(0, dtype=np.int64)
    held = _deal(settings, benchmark, seed)
    absent = _gone(settings, held)
    taking_part = np.concatenate(_left(held, absent))
    return benchmark.train[np.setdiff1d(np.concatenate(absent), taking_part)]


def _left(held: Sequence[Ids], absent: Sequence[Ids]) -> list[Ids]:
    """Return what each client holds without what never takes part."""
    return [
        np.setdiff1d(ids, removed) if len(removed) else ids
        for ids, removed in zip(held, absent, strict=True)
    ]


def _gone(settings: PartitionSettings, held: Sequence[Ids]) -> list[Ids]:
    """Return for each client which of the dealt positions never take part.

    Raises:
        ExperimentError: a client does not have so many samples.
    """
    absent = [ids if k in settings.without else ids[:0] for k, ids in enumerate(held)]
    for key, places in settings.without_samples.items():
        for k in _client_range("without_samples", key, settings.clients):
            if places and max(places) >= len(held[k]):
                raise ExperimentError(
                    f"partition.without_samples: client {k} has {len(held[k])} samples, counted "
                    f"from 0, and no sample {max(places)}: name others"
                )
            absent[k] = np.union1d(absent[k], held[k][list(places)])
    return absent


def _deal(settings: PartitionSettings, benchmark: Benchmark, seed: int) -> list[Ids]:
    """Return for each client the positions of its samples among the training samples."""
    labels = benchmark.labels[benchmark.train]
    clients = settings.clients
    rho = settings.rho
    if settings.kind == "iid":
        return partitions.iid(labels, clients, seed, rho)
    if settings.kind == "dirichlet":
        return partitions.dirichlet(labels, clients, seed, settings.alpha, rho)
    if settings.kind == "pccd":
        s = settings
        return partitions.pccd(labels, clients, seed, s.counts, s.alpha, None, s.phi, rho)
    if settings.kind == "file":
        return _from_file(settings, benchmark, labels, seed)
    if settings.kind == "folders":
        return _of_folders(settings, benchmark, seed)
    if benchmark.users is None:
        raise ExperimentError(
            f'partition.kind = "user" needs samples with users, but {benchmark.name} does not say '
            'whose they are: use another kind, such as "iid"'
        )
    _, each = np.unique(benchmark.users[benchmark.train], return_counts=True)
    if (alone := int((each == 1).sum())) > 0.8 * len(each):
        warnings.warn(
            f"{alone} of {len(each)} users have a single training sample, so that clients of other "
            "users each differ little: for data that differ from client to client set "
            "partition.kind = 'dirichlet', or data.min_per_user",
            stacklevel=2,
        )
    return partitions.user(labels, benchmark.users[benchmark.train], clients, seed, rho)


def _of_folders(settings: PartitionSettings, benchmark: Benchmark, seed: int) -> list[Ids]:
    """Give each client the training samples of the folder of a party."""
    if benchmark.users is None:
        raise ExperimentError(
            'partition.kind = "folders" needs a folder for each party: set data.folders = '
            "'parties', or use another kind, such as \"pccd\""
        )
    holders = benchmark.users[benchmark.train]
    count = len(np.unique(holders))
    if count != settings.clients:
        raise ExperimentError(
            f"partition.clients is {settings.clients}, but {count} folders of parties have "
            f"training samples: set partition.clients = {count}"
        )
    return partitions.folders(benchmark.labels[benchmark.train], holders, seed, settings.rho)


def elsewhere(settings: PartitionSettings) -> Partition:
    """Return the partition of a deployment, which knows when clients come and go, but not what they
    hold.
    """
    if settings.without_samples:
        raise ExperimentError(
            "partition.without_samples is for simulations: in a deployment a party removes samples "
            "of its own"
        )
    first, last = settings.rounds()
    first[list(settings.without)] = NEVER
    return Partition((np.empty(0, dtype=np.int64),) * settings.clients, first, last, remote=True)


def _from_file(
    settings: PartitionSettings, benchmark: Benchmark, labels: Ids, seed: int
) -> list[Ids]:
    """Deal as the file says: a class on several lines is cut between their clients, evenly or by
    share.
    """
    assert settings.file is not None  # PartitionSettings sees to it
    holders = _read_holders(settings, settings.file.expanduser(), benchmark)
    clients: list[list[Ids]] = [[] for _ in range(settings.clients)]
    for c in benchmark.space.seen.tolist():
        if c not in holders:
            name = benchmark.space.names[c]
            raise ExperimentError(
                f"{settings.file}: no one holds the seen class {name!r}: add a line for it"
            )
        ids = np.flatnonzero(labels == c)
        # the shares of a class may leave some of its samples to no one
        cuts = np.rint(np.cumsum(list(holders[c].values())) * len(ids)).astype(int)
        parts = np.split(stream(seed, "partition file", c).permutation(ids), cuts)
        for k, part in zip(holders[c], parts, strict=False):
            clients[k].append(part)
    for k, parts_of_client in enumerate(clients):
        if not any(map(len, parts_of_client)):
            raise ExperimentError(
                f"client {k} would hold no sample: lower partition.clients ({settings.clients}) or "
                "give it a class in partition.file"
            )
    return [np.sort(np.concatenate(parts_of_client)) for parts_of_client in clients]


def _read_holders(
    settings: PartitionSettings, path: Path, benchmark: Benchmark
) -> dict[int, dict[int, float]]:
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
            raise ExperimentError(
                f"{where}: the class {name!r} is not a seen class: no one can hold it"
            )
        if not client.isdecimal() or int(client) >= settings.clients:
            raise ExperimentError(
                f"{where}: the client {client!r} is not a number from 0 to {settings.clients - 1} "
                "(partition.clients)"
            )
        shares = holders.setdefault(names[name], {})
        if int(client) in shares:
            raise ExperimentError(f"{where}: client {client} holds the class {name!r} already")
        shares[int(client)] = number(share[0], where) if share else 0.0
        if share and not 0 < shares[int(client)] <= 1:
            raise ExperimentError(f"{where}: the share {share[0]} is not above 0 and at most 1")
        if sum(shares.values()) > 1 + 1e-9:
            raise ExperimentError(
                f"{where}: the shares of the class {name!r} add up to more than 1"
            )
    if "share" not in header:
        holders = {c: dict.fromkeys(shares, 1 / len(shares)) for c, shares in holders.items()}
    return holders


def _client_range(option: str, key: str, clients: int) -> range:
    """Return the clients that a key of ``join`` or ``leave`` names."""
    match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", key)
    if match is None:
        raise ExperimentError(
            f'partition.{option}: {key!r} is neither a client ("3") nor a range of clients ("5-9")'
        )
    start = int(match[1])
    stop = int(match[2] or match[1])
    if start > stop:
        raise ExperimentError(
            f'partition.{option}: the range {key!r} is empty: write "{stop}-{start}"'
        )
    if stop >= clients:
        raise ExperimentError(
            f"partition.{option}: there is no client {stop}: the {clients} clients are numbered "
            f"from 0 to {clients - 1}"
        )
    return range(start, stop + 1)
