"""The parties of a deployment's run over its life: one that goes on takes parties that were added,
and no longer waits for those that were shut out.

A client is a party's place in the run's first list; later ones come behind, so that no place
changes. ``rosters.json`` in the run directory has a version for each change, and none is removed.
Who is revoked while the run goes on is missing from a new version at once.
From which round a party takes part, and until which, stands in ``partition.join`` and
``partition.leave`` of the run's settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedunseen.core.errors import DataError, ExperimentError, RefusedError
from fedunseen.core.files import check_ordinary, check_unlinked, parse_json, write_json
from fedunseen.core.runs import read_manifest
from fedunseen.experiment.parsing import in_closed_form
from fedunseen.federation.partition import NEVER, PartitionSettings
from fedunseen.federation.run_directory import RunDirectory

FILE = "rosters.json"


@dataclass(frozen=True)
class Roster:
    """Who takes part from a round on.

    Attributes:
        round: counted from 0.
        parties: all that the run has had, in the order of the clients.
        expected: those that are waited for.
        serial: of the list that the authority has signed; 0 without one.
    """

    round: int
    parties: tuple[str, ...]
    expected: tuple[str, ...]
    serial: int = 0

    def keys(self, names: Sequence[str]) -> set[int]:
        """Return the places of parties."""
        return {self.parties.index(name) for name in names}


def read(out: Path) -> list[Roster]:
    """Read the versions of a run's list, the oldest first.

    Raises:
        DataError: the file is damaged.
    """
    path = out / FILE
    check_ordinary(path)
    if not path.exists():
        return []
    try:
        return [
            Roster(
                int(version["round"]),
                tuple(map(str, version["parties"])),
                tuple(map(str, version["expected"])),
                int(version["serial"]),
            )
            for version in parse_json(path.read_bytes())
        ]
    except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise DataError(f"{path} is damaged ({error}): restore it from a copy") from None


def record(out: Path, roster: Roster) -> None:
    """Add a version of the list, unless it is that of the last one. Of a finished run that is to
    go on, it counts once a further round is merged.
    """
    directory = RunDirectory(out)
    place = directory.further if directory.further_manifest.exists() else out
    versions = read(place)
    if not versions or replace(versions[-1], round=roster.round) != roster:
        write_json(place / FILE, [asdict(version) for version in [*versions, roster]])


def continued(out: Path, now: Roster, settings: Mapping[str, Any]) -> tuple[Roster, dict[str, Any]]:
    """Return who takes part in a run that goes on, and the settings that follow.

    Where the list has changed, the run directory is opened for the rounds that come: a finished run
    in closed form for one in which the new parties alone send their statistics. It stays finished
    until the first of these rounds is merged, and an earlier call counts no more that had none.

    Args:
        out: the run directory.
        now: who is enrolled, by the coordinator's credentials.
        settings: by dotted key, as they were given.

    Raises:
        RefusedError: the list is older than the run's, lacks a party of it, or masks do not allow
            the change.
        ExperimentError: no round is left for the new parties.
        RunDirectoryError: a process uses the run, or it holds links.
    """
    read_manifest(out)
    check_unlinked(out)
    with RunDirectory(out).locked():
        RunDirectory(out).settle()
        return _continued(out, now, settings)


def _continued(
    out: Path, now: Roster, settings: Mapping[str, Any]
) -> tuple[Roster, dict[str, Any]]:
    """Do what :func:`continued` says, while no other process uses the run."""
    experiment = read_manifest(out)["experiment"]
    versions = read(out)
    clients = int(experiment["partition"]["clients"])
    # before there was a file, a run had the first of the kit's parties
    before = versions[-1] if versions else Roster(0, now.parties[:clients], now.parties[:clients])
    _check(before, now)
    added = tuple(name for name in now.expected if name not in before.parties)
    here = set(now.expected)
    coming = here - set(before.expected)
    going = (set(before.expected) | _shut_out(before, experiment)) - here
    changed = bool(coming or going or versions[1:])
    more = _more_rounds(experiment, settings) if changed else 0
    kept = _kept(read_manifest(out), settings, bool(versions[1:]))
    if not (coming or going or more):
        return replace(before, serial=now.serial), kept
    state = RunDirectory(out).newest_checkpoint(torch.device("cpu"))
    done = 0 if state is None else state.round
    roster = Roster(done, before.parties + added, now.expected, now.serial)
    over = done >= int(experiment["strategy"]["rounds"])
    if over and not (coming or more):  # what follows counts them out
        record(out, before)
        record(out, roster)
        return roster, kept
    leave = {name: min(done, _left(versions, name, done)) for name in going}
    changes = _changes(experiment, before, roster, settings, leave)
    _reopen(out, experiment, changes)
    record(out, before)
    record(out, roster)
    return roster, {**settings, **changes}


def shut_out(out: Path, roster: Roster, names: Set[str]) -> None:
    """Add the version of a run that goes on without parties that were revoked meanwhile."""
    expected = tuple(name for name in roster.expected if name not in names)
    record(out, replace(roster, round=len(RunDirectory(out).metrics()), expected=expected))


def _shut_out(before: Roster, experiment: Mapping[str, Any]) -> set[str]:
    """Return who was revoked while the run went on, so that its settings do not know it."""
    partition = _partition(experiment)
    stay = zip(before.parties, partition.rounds()[1], strict=False)
    known = {name for name, last in stay if last == NEVER}
    absent = {before.parties[client] for client in partition.without}
    return known - absent - set(before.expected)


def _left(versions: Sequence[Roster], name: str, done: int) -> int:
    """Return the round from which a party was no longer expected; ``done``: it was until now."""
    round = done
    for version in reversed(versions):
        if name in version.expected:
            break
        round = version.round
    return round


def _more_rounds(experiment: Mapping[str, Any], settings: Mapping[str, Any]) -> int:
    """Return how many rounds a trained run is to have, if that is more than it was to; else 0."""
    rounds = int(experiment["strategy"]["rounds"])
    more = int(settings.get("strategy.rounds", rounds))
    return 0 if more <= rounds or in_closed_form(experiment) else more


def _partition(experiment: Mapping[str, Any]) -> PartitionSettings:
    """Return which clients take part when."""
    partition = experiment["partition"]
    keys = ("clients", "join", "leave", "without")
    return PartitionSettings.model_validate({k: partition[k] for k in keys if k in partition})


def _check(before: Roster, now: Roster) -> None:
    if now.serial < before.serial:
        raise RefusedError(
            f"the list of parties (serial {now.serial}) is older than the one that this run has "
            f"used ({before.serial}): copy the newest federation.json and parties.json",
            "roster-older",
        )
    if missing := [name for name in before.parties if name not in now.parties]:
        raise RefusedError(
            f"the coordinator's list lacks {missing[0]!r}, a party of this run: take the list with "
            "all parties; `fedunseen certs revoke` shuts one out",
            "roster-lacks",
        )


def _kept(
    manifest: Mapping[str, Any], settings: Mapping[str, Any], changed: bool
) -> dict[str, Any]:
    """Return the settings of a run whose list has not changed now, but may have before."""
    experiment = manifest["experiment"]
    partition = experiment["partition"]
    keys = ("clients", "join", "leave", "without") if changed else ("clients",)
    kept = {f"partition.{key}": partition[key] for key in keys if key in partition}
    if changed and not ("rolled_back" in manifest and "strategy.rounds" in settings):
        kept["strategy.rounds"] = experiment["strategy"]["rounds"]
    if changed:
        kept["evaluation.confidence"] = experiment["evaluation"]["confidence"]
    return {**settings, **kept}


def _changes(
    experiment: Mapping[str, Any],
    before: Roster,
    now: Roster,
    settings: Mapping[str, Any],
    leave: Mapping[str, int],
) -> dict[str, Any]:
    """Return which settings another list changes, by dotted key.

    ``leave``: from which round who is gone.
    """
    if experiment["evaluation"]["selection"] == "validation":
        raise RefusedError(
            "rounds and the offset of this run were chosen with its parties "
            "(evaluation.selection = 'validation'), so that its list cannot change: start a "
            "new run",
            "roster-of-choice",
        )
    coming = now.keys([name for name in now.expected if name not in before.expected])
    going = {now.parties.index(name): round for name, round in leave.items()}
    more = _more_rounds(experiment, settings)
    changes: dict[str, Any] = {"strategy.rounds": more} if more else {}
    over = now.round >= max(more, int(experiment["strategy"]["rounds"]))
    if over and coming and in_closed_form(experiment):
        _check_alone(experiment)
        going = dict.fromkeys(now.keys(before.expected), now.round) | going
        changes = {"strategy.rounds": now.round + 1, "evaluation.confidence": "draws"}
    elif over and coming:
        raise ExperimentError(
            f"the run has done its {now.round} rounds, and none is left for new parties: give "
            "more with --set strategy.rounds=N",
            "roster-rounds",
        )
    if more:
        _check_noise(experiment)
    if experiment.get("privacy", {}).get("aggregation") == "masked":
        changes |= _masked(experiment, settings)
    return changes | _presence(experiment, now, coming, going)


def _check_noise(experiment: Mapping[str, Any]) -> None:
    """Refuse more rounds than noise was chosen for."""
    privacy = experiment.get("privacy", {})
    if privacy.get("name", "none") != "none" and privacy.get("noise") is None:
        raise RefusedError(
            f"the noise of this run was chosen for its {experiment['strategy']['rounds']} rounds, "
            "which is all that privacy.epsilon pays for: start a new run with more",
            "roster-noise",
        )


def _check_alone(experiment: Mapping[str, Any]) -> None:
    """Refuse statistics of new parties alone where the coordinator must not see one party's."""
    if experiment.get("privacy", {}).get("aggregation") == "masked":
        raise RefusedError(
            "under masks statistics are added up once, and those of new parties alone would be "
            "seen: start a new run with all, which every party joins with --consent again",
            "roster-alone",
        )


def _masked(experiment: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return how masks allow another list, which takes everyone's consent."""
    chosen = settings.get("privacy.dropouts", experiment["privacy"]["dropouts"])
    if chosen != "allow":
        raise RefusedError(
            "under masks one list of parties serves all sums, since the difference of two lists "
            "can show one party's update: give --set privacy.dropouts=allow, and let every party "
            "join with --consent dropouts --consent again",
            "roster-consent",
        )
    return {"privacy.dropouts": chosen}


def _presence(
    experiment: Mapping[str, Any], now: Roster, coming: set[int], going: Mapping[int, int]
) -> dict[str, Any]:
    """Return the settings that say in which rounds parties take part."""
    known = _partition(experiment)
    grown = len(now.parties) - known.clients
    first, last = (
        np.concatenate([times, np.full(grown, fill)])
        for times, fill in zip(known.rounds(), (now.round, NEVER), strict=True)
    )
    without = set(known.without)
    for client in coming:
        if client in without:
            without.discard(client)
            first[client] = now.round
        last[client] = NEVER
    for client, round in going.items():
        if first[client] >= round:  # it has taken part in no round
            without.add(client)
            first[client] = 0
        else:
            last[client] = round
    return {
        "partition.clients": len(now.parties),
        "partition.join": {str(k): int(n) for k, n in enumerate(first) if n > 0},
        "partition.leave": {str(k): int(n) for k, n in enumerate(last) if n < NEVER},
        "partition.without": sorted(without),
    }


def _reopen(out: Path, experiment: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Let a run directory go on with other settings: one that is finished once a round came."""
    directory = RunDirectory(out)
    run = directory.identity()  # parties know the run by it
    for section_key, value in changes.items():
        section, key = section_key.split(".")
        experiment[section][key] = value
    manifest = parse_json(directory.manifest_path.read_bytes())
    manifest |= {"experiment": experiment, "run": run}
    if directory.result_path.exists():
        versions = [asdict(version) for version in read(out)]
        directory.reopen({FILE: versions, "manifest.json": manifest})
    else:
        write_json(directory.manifest_path, manifest)
