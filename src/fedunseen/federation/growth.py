"""A class space that grows: which classes are known, held, or held no more, from which round on.

A version of the class space is in force from its round on, until the next one. The classes of a
version come first in every later one, in the same order, so that a class keeps its id. A class is
**seen** once someone has held it, and stays seen when its last holder has left, because the model
has learned it. A known class that no one has held yet is **unseen**.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedunseen.core.errors import DataError, ExperimentError, unknown
from fedunseen.core.settings import Settings
from fedunseen.data.benchmark import Benchmark
from fedunseen.data.class_space import ClassSpace, check_semantics, read_classes
from fedunseen.data.names import by_folded, folded, is_visible
from fedunseen.federation.partition import NEVER, Partition

Ids = NDArray[np.int64]


class GrowthSettings(Settings):
    """The section ``[growth]``.

    Example:
        >>> GrowthSettings(name="unknown", arrive={"okapi": 3}).arrive
        {'okapi': 3}
    """

    name: Literal["none", "described", "unknown"] = "none"
    """`none`: every class is known from the start, and counts as seen if anybody ever holds it.
    `described`: every class is known from the start, and is unseen until its first holder takes
    part. `unknown`: no one knows a class that clients hold until its first holder takes part; in a
    deployment, parties may bring classes of their own."""
    arrive: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    """Class -> the first round, counted from 0, in which it is known; its holder does not train on
    it before.
    """
    corrected: dict[str, Path] = Field(default_factory=dict)
    """Round ("3", counted from 0) -> CSV of classes that are described again from that round on:
    name, attributes...
    """

    @model_validator(mode="after")
    def _check(self) -> "GrowthSettings":
        for key in ("arrive", "corrected"):
            if self.name == "none" and getattr(self, key):
                raise ExperimentError(
                    f"growth.{key} has no effect with growth.name = 'none': set growth.name to "
                    "'described' or 'unknown'"
                )
        for key in self.corrected:
            if not key.isdecimal():
                raise ExperimentError(
                    f"growth.corrected: {key!r} is not a round: write its number, counted from 0"
                )
        return self

    def files(self) -> dict[int, Path]:
        """Return round -> file of corrected descriptions, in the order of the rounds."""
        return {
            round: self.corrected[str(round)].expanduser()
            for round in sorted(map(int, self.corrected))
        }


@dataclass(frozen=True, eq=False)
class Version:
    """A class space from one round on, and how it differs from the version before."""

    round: int
    space: ClassSpace
    held: Mapping[str, int]
    left: tuple[str, ...] = ()
    former: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    gained: tuple[str, ...] = ()
    corrected: tuple[str, ...] = ()

    def hash(self) -> str:
        """Return what the class space hashes to: the same for everyone who knows the same
        classes.
        """
        return hashlib.sha256(json.dumps(self.space.hashes(), sort_keys=True).encode()).hexdigest()[
            :16
        ]

    def groups(self) -> dict[str, Ids]:
        """Return the ids of the classes by what a growing model is measured on.

        ``new``: those that have their first holders since the last time that any had; ``old``: all
        other seen ones that someone holds; ``left``: those that no one holds any more; ``unseen``:
        those that no one has held yet; ``from round R``: those whose first holder took part in
        round R, counted from 1.
        """
        place = {name: i for i, name in enumerate(self.space.names)}
        rounds = sorted(set(self.held.values()))
        newest = rounds[-1] if len(rounds) > 1 else None
        ids_of: dict[str, list[int]] = {"old": [], "new": [], "left": []}
        for name, round in self.held.items():
            where = "left" if name in self.left else "new" if round == newest else "old"
            ids_of[where].append(place[name])
            ids_of.setdefault(f"from round {round + 1}", []).append(place[name])
        ids_of["unseen"] = self.space.unseen.tolist()
        return {
            name: np.sort(np.array(members, dtype=np.int64))
            for name, members in ids_of.items()
            if members
        }

    def line(self) -> dict[str, Any]:
        """Return what a round's metrics say of the class space."""
        space = self.space
        facts: dict[str, Any] = {
            "since": self.round + 1,
            "hash": self.hash(),
            "known": len(space.names),
        }
        facts |= {"seen": len(space.seen), "unseen": len(space.unseen)}
        changes = {
            key: list(getattr(self, key)) for key in ("added", "gained", "corrected", "left")
        }
        return facts | {key: names for key, names in changes.items() if names}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values; :meth:`from_dict` gives back the same bits."""
        space = self.space
        return {
            "round": self.round,
            "hash": self.hash(),
            **space_dict(space),
            "semantics": space.semantics.tolist(),
            "validation": space.validation.tolist(),
            "held": dict(self.held),
            "former": {name: list(hashes) for name, hashes in self.former.items()},
            **{key: list(getattr(self, key)) for key in ("left", "added", "gained", "corrected")},
        }

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> "Version":
        """Read what :meth:`to_dict` gave."""
        semantics = np.array(tree["semantics"], dtype=np.float64).reshape(len(tree["classes"]), -1)
        space = read_space(tree, semantics, tree["validation"])
        former = {name: tuple(hashes) for name, hashes in tree["former"].items()}
        changes = {key: tuple(tree[key]) for key in ("left", "added", "gained", "corrected")}
        version = cls(int(tree["round"]), space, dict(tree["held"]), former=former, **changes)
        if version.hash() != tree["hash"]:
            raise DataError("the class space is not the one whose hash it names")
        return version


def space_dict(space: ClassSpace) -> dict[str, Any]:
    """Return a class space without its semantics as JSON values."""
    return {
        "classes": list(space.names),
        "attributes": list(space.attribute_names),
        "groups": {name: list(columns) for name, columns in space.attribute_groups.items()},
        "seen": space.seen.tolist(),
        "unseen": space.unseen.tolist(),
    }


def read_space(
    tree: Mapping[str, Any], semantics: NDArray[np.float64], validation: Any = ()
) -> ClassSpace:
    """Read what :func:`space_dict` gave."""
    splits = tree["seen"], validation, tree["unseen"]
    return ClassSpace(tree["classes"], semantics, tree["attributes"], *splits, tree["groups"])


def described_as(row: NDArray[np.float64]) -> str:
    """Return what a description (attributes,) hashes to."""
    return hashlib.sha256(np.ascontiguousarray(row, dtype=np.float64).tobytes()).hexdigest()[:16]


def first_version(space: ClassSpace) -> Version:
    """Return the class space as a file gives it, before it is known who holds what."""
    return Version(-1, space, {})


def next_version(
    before: Version,
    round: int,
    *,
    held: Iterable[str],
    holders: Iterable[str],
    added: Mapping[str, NDArray[np.float64]] | None = None,
    corrected: Mapping[str, NDArray[np.float64]] | None = None,
) -> Version:
    """Return the class space from ``round`` (counted from 0) on."""
    space = before.space
    added = dict(added or {})
    corrected = dict(corrected or {})
    folded_names = by_folded(space.names)
    for name in added:
        check_new_name(name, folded_names)
    if added:
        check_semantics(list(added), np.stack(list(added.values())))
    now_held = set(held)
    names = (*space.names, *added)
    place = {name: i for i, name in enumerate(names)}
    semantics = np.concatenate([space.semantics, *(row[None] for row in added.values())])
    former = dict(before.former)
    changed = {
        name: row
        for name, row in corrected.items()
        if not np.array_equal(row, semantics[place[name]])
    }
    for name, row in changed.items():
        former[name] = (*former.get(name, ()), described_as(semantics[place[name]]))
        semantics[place[name]] = row
    gained = [name for name in names if name in now_held and name not in before.held]
    first_held = {**before.held, **dict.fromkeys(gained, round)}
    still_held = set(holders)
    seen = np.array(sorted(place[name] for name in first_held), np.int64)
    no_longer_held = tuple(name for name in first_held if name not in still_held)
    changes = (no_longer_held, former, tuple(added), tuple(gained), tuple(changed))
    return Version(round, _with_classes(space, names, semantics, seen, round), first_held, *changes)


def _with_classes(
    space: ClassSpace, names: tuple[str, ...], semantics: NDArray[np.float64], seen: Ids, round: int
) -> ClassSpace:
    """Return a class space with more classes; those in ``seen`` are seen, and the others keep their
    kind.
    """
    neither = np.setdiff1d(np.arange(len(space.names)), np.union1d(space.seen, space.unseen))
    unseen = np.setdiff1d(np.arange(len(names)), np.union1d(seen, neither))
    if not len(seen) or not len(unseen):
        lacks = "is held by no one" if not len(seen) else "has a holder, so that none is unseen"
        raise ExperimentError(
            f"in round {round} (counted from 0) every known class {lacks}: change [growth] or "
            "[partition], or describe more classes"
        )
    validation = np.intersect1d(space.validation, seen)
    return replace(
        space, names=names, semantics=semantics, seen=seen, validation=validation, unseen=unseen
    )


def check_new_name(name: str, folded_names: Mapping[str, str]) -> None:
    """Refuse the name of a new class that is a known one when compared, or has characters that do
    not show.

    ``folded_names``: the known names, :func:`~fedunseen.data.names.by_folded`.
    """
    if not is_visible(name):
        raise DataError(
            f"the name of the new class {name!a} has invisible characters: give it another name"
        )
    if known_name := folded_names.get(folded(name)):
        raise DataError(
            f"the new class {name!r} has the name of the known class {known_name!r}: leave it out "
            "if they are the same, and otherwise give it another name"
        )


def seen_through(benchmark: Benchmark, space: ClassSpace) -> Benchmark:
    """Return the samples of a benchmark as those of another class space: a version of its own, say.

    Samples of classes that the space does not have get the label -1 and are in no split; those of a
    class that is unseen there are test samples only. Sample ids and the features stay the same.
    """
    ids = {name: i for i, name in enumerate(space.names)}
    place = np.array([ids.get(name, -1) for name in benchmark.space.names], dtype=np.int64)
    labels = np.where(benchmark.labels < 0, -1, place[benchmark.labels])
    tests = np.concatenate([benchmark.test_seen, benchmark.test_unseen])
    return replace(
        benchmark,
        space=space,
        labels=labels,
        train=benchmark.train[np.isin(labels[benchmark.train], space.seen)],
        test_seen=tests[np.isin(labels[tests], space.seen)],
        test_unseen=tests[np.isin(labels[tests], space.unseen)],
        part=True,
    )


class Timeline:
    """The versions of a simulation's class space: they follow from the settings and from who holds
    what.
    """

    def __init__(
        self, settings: GrowthSettings, benchmark: Benchmark, partition: Partition
    ) -> None:
        self.settings = settings
        self.benchmark = benchmark
        self.partition = partition
        names = benchmark.space.names
        known_from = np.zeros(len(names), dtype=np.int64)
        counts = partition.counts(benchmark.labels, len(names)) > 0  # (clients, classes)
        first = np.where(counts, partition.first[:, None], NEVER).min(0)
        self.last = np.where(counts, partition.last[:, None], -1).max(0)
        if settings.name == "unknown":
            seen = benchmark.space.seen
            known_from[seen] = first[seen]
        for name, round in settings.arrive.items():
            if name not in names:
                raise ExperimentError("growth.arrive: " + unknown("class", name, names))
            known_from[names.index(name)] = round
        trainable = np.maximum(
            partition.first[:, None], known_from[None]
        )  # from when on a client can train on a class
        self.held = np.where(counts & (trainable < partition.last[:, None]), trainable, NEVER).min(
            0
        )
        self.known_from = known_from
        holder = np.where(
            counts & (trainable == self.held[None]), np.arange(len(counts))[:, None], len(counts)
        ).min(0)
        holder[self.held > self.known_from] = -1  # it arrives as a description alone
        self.order = [int(c) for c in np.lexsort((np.arange(len(names)), holder, self.known_from))]
        if not self.rounds()[1:]:
            raise ExperimentError(
                f"growth.name = {settings.name!r}, but every class has its holder in round 0 and "
                "none arrives later: set partition.join or growth.arrive, or leave [growth] out"
            )

    def rounds(self) -> list[int]:
        """Return the rounds (counted from 0) in which something may change, and round 0."""
        rounds = {
            0,
            *self.known_from.tolist(),
            *self.held.tolist(),
            *self.last.tolist(),
            *self.settings.files(),
        }
        return sorted(round for round in rounds if 0 <= round < NEVER)

    def version(self, round: int) -> Version:
        """Return the version that is in force in ``round``, counted from 0."""
        space = self.benchmark.space
        names = self.benchmark.space.names
        files = self.settings.files()
        version = first_version(_only(space, np.flatnonzero(self.known_from <= 0)))
        for now in (change for change in self.rounds() if change <= round):
            new = [
                c
                for c in self.order
                if self.known_from[c] <= now and names[c] not in version.space.names
            ]
            version = next_version(
                version,
                now,
                held=[names[c] for c in np.flatnonzero(self.held <= now)],
                holders=[names[c] for c in np.flatnonzero(self.last > now)],
                added={names[c]: space.semantics[c] for c in new},
                corrected=corrections(files[now], version.space, now) if now in files else {},
            )
        return version


def _only(space: ClassSpace, ids: Ids) -> ClassSpace:
    """Return a class space with some of the classes, whose ids are sorted."""
    splits = {"seen": space.seen, "validation": space.validation, "unseen": space.unseen}
    kept: dict[str, Any] = {
        s: np.searchsorted(ids, np.intersect1d(split_ids, ids)) for s, split_ids in splits.items()
    }
    return replace(
        space, names=tuple(space.names[c] for c in ids), semantics=space.semantics[ids], **kept
    )


def corrections(path: Path, space: ClassSpace, round: int) -> dict[str, NDArray[np.float64]]:
    """Read the classes that are described again from ``round`` (counted from 0) on: name ->
    description.
    """
    names, rows = read_classes(path, space)
    for name in names:
        if name not in space.names:
            raise ExperimentError(
                f"growth.corrected: {path} describes the class {name!r}, which no one knows before "
                f"round {round} (counted from 0): leave it out, or correct it later"
            )
    return dict(zip(names, rows, strict=True))
