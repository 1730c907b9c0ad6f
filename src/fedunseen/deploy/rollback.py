"""The history of a run, and its return to an earlier round.

``history.jsonl`` of the run directory is the audit trail: a line for each return, written before
anything changes, with its reason. The rounds that a return takes back stay in
``taken-back-N.jsonl``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from fedunseen.core.errors import ArgumentError, RunDirectoryError
from fedunseen.core.files import (
    DEEPEST,
    check_ordinary,
    check_unlinked,
    depth,
    parse_json,
    write_json,
    write_tensors,
    write_text,
)
from fedunseen.core.run_forms import has_form
from fedunseen.core.runs import read_manifest
from fedunseen.deploy import rosters
from fedunseen.federation.callbacks import scalars
from fedunseen.federation.run_directory import RunDirectory, is_whole, load_params

FILE = "history.jsonl"
_EVENT = {"time!": str, "event!": str, "round!": int, "from!": int, "reason!": str}
"""What each line of it has; see :mod:`fedunseen.core.run_forms`."""
_ROUND: Mapping[str, Any] = {"participants": []}
"""What a line of ``metrics.jsonl`` has beside numbers."""


def history(run: Path) -> dict[str, Any]:
    """Return what a run has been through: ``rounds``, ``rosters`` and ``events``, JSON values.

    A round says whether a run can return to it (``kept``).
    """
    read_manifest(run)
    directory = RunDirectory(run)
    kept = kept_rounds(directory)
    try:
        rounds = [
            {
                "round": line["round"],
                "participants": line.get("participants", []),
                "numbers": scalars(line),
                "kept": line["round"] in kept,
            }
            for line in _checked(directory.metrics_path, directory.metrics(), _ROUND)
        ]
    except OverflowError:  # a whole number that is too large
        raise _damaged(directory.metrics_path) from None
    lists = [
        {"round": roster.round + 1, "parties": list(roster.expected), "serial": roster.serial}
        for roster in rosters.read(run)
    ]
    return {"rounds": rounds, "rosters": lists, "events": events(run)}


def events(run: Path) -> list[dict[str, Any]]:
    """Read the audit trail of a run, the oldest first.

    Raises:
        RunDirectoryError: a line of it is damaged.
    """
    path = run / FILE
    check_ordinary(path)
    if not path.exists():
        return []
    try:
        lines = [parse_json(line) for line in path.read_bytes().splitlines()]
    except (OSError, ValueError):
        raise _damaged(path) from None
    return _checked(path, lines, _EVENT)


def _checked(path: Path, lines: list[Any], form: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of a file; refuse one of another form, which a stranger may have written."""
    if depth(lines) > DEEPEST or not has_form(lines, [form]):
        raise _damaged(path)
    return lines


def _damaged(path: Path) -> RunDirectoryError:
    return RunDirectoryError(f"{path} is damaged: restore it from a copy")


def kept_rounds(directory: RunDirectory) -> list[int]:
    """Return the rounds, counted from 1, whose state is there whole."""
    paths = directory.checkpoints.glob("*.safetensors")
    return sorted(int(p.stem) for p in paths if p.stem.isdecimal() and is_whole(p))


def rollback(run: Path, round: int, reason: str) -> dict[str, Any]:
    """Return a run to the state after ``round`` (counted from 1); a resume continues from there.

    Returns:
        The line of the audit trail.

    Raises:
        ArgumentError: there is no reason, no state of that round, or the run has noise, whose
            budget the rounds that are taken back have spent.
        RunDirectoryError: it is no run directory, holds links, or a process uses it.
    """
    if not reason.strip() or not reason.isprintable():
        raise ArgumentError("--reason is empty or has control characters: write one line")
    check_unlinked(run)
    manifest = read_manifest(run)
    noise = manifest["experiment"].get("privacy", {}).get("name", "none")
    if noise != "none":
        raise ArgumentError(
            f"privacy.name = {noise!r}: the rounds that would be taken back have spent of the "
            "budget, which counts the others alone: start a new run",
            "noise-was-spent",
        )
    directory = RunDirectory(run)
    with directory.locked():
        directory.settle()
        lines = _checked(directory.metrics_path, directory.metrics(), _ROUND)
        before = events(run)
        kept = kept_rounds(directory)
        if round not in kept:
            those = ", ".join(map(str, kept)) or "none"
            raise ArgumentError(
                f"the state after round {round} is not kept (kept: {those}): choose one of these, "
                "and keep more in the next run with --set run.keep=N",
                "round-not-kept",
            )
        if round >= len(lines):
            raise ArgumentError(
                f"the run has done {len(lines)} rounds: choose an earlier one than the last",
                "round-not-earlier",
            )
        event = {
            "time": datetime.now().astimezone().isoformat(timespec="seconds"),
            "event": "rollback",
            "round": round,
            "from": len(lines),
            "reason": reason.strip(),
        }
        entries = [*before, event]  # written whole: a full disk would cut a line that is appended
        text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        write_text(run / FILE, text)
        number = sum(entry.get("event") == "rollback" for entry in entries)
        taken = "".join(json.dumps(line) + "\n" for line in lines[round:])
        write_text(run / f"taken-back-{number}.jsonl", taken)
        _return(directory, manifest, round, lines)
    return event


def _return(
    directory: RunDirectory, manifest: Mapping[str, Any], round: int, lines: list[dict[str, Any]]
) -> None:
    """Let the state after ``round`` be the newest; a result of later rounds is no more."""
    identity = directory.identity()  # parties know the run by it
    directory.result_path.unlink(missing_ok=True)
    for name in ("confidence", "secagg"):
        shutil.rmtree(directory.path / name, ignore_errors=True)
    path = directory.checkpoints / f"{round:06d}.safetensors"
    params = load_params(path, torch.device("cpu"), under="params/")
    if directory.model_path.exists():
        write_tensors(directory.model_path, params)
    directory.rewind(round, lines)
    stored = parse_json(directory.manifest_path.read_bytes())
    write_json(directory.manifest_path, {**stored, "run": identity, "rolled_back": round})
