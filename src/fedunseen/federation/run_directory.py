"""The run directory: everything a run leaves behind, written so that a kill at any instant loses at
most one round.

docs/run-directory.md lists the files. A round is made durable in this order: its line in
``metrics.jsonl``, its model if it is the chosen one, its checkpoint. A resume starts from the
newest checkpoint and drops lines of later rounds, so what a kill left in between is done again,
with the same result.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from fedunseen.core.errors import DataError, RunDirectoryError
from fedunseen.core.files import (
    TensorHeaderError,
    check_ordinary,
    check_tensor_header,
    check_unlinked,
    holding,
    is_occupied,
    parse_json,
    write_json,
    write_tensors,
    write_text,
)
from fedunseen.core.model_file import before_parameters
from fedunseen.core.parameters import Params, of_each_client, within
from fedunseen.core.runs import read_json, read_manifest, read_result
from fedunseen.core.tensor_store import StoredTensors, TensorStore, read_records, write_records
from fedunseen.data import ClassSpace
from fedunseen.evaluation.diagnosis import conspicuous, diagnose
from fedunseen.evaluation.summary import pool_advice, summarize
from fedunseen.federation.engine import PartyStatus
from fedunseen.federation.federation import State
from fedunseen.metrics import accuracy_intervals

_WAITING = (
    "quorum",
    "timeout",
    "patience",
    "deliver",
    "processes",
)  # of [engine]: a resume may change them
_PARTS = "clients"  # of a checkpoint's metadata: the files beside it
_IDS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)
class Measured:
    """What the warnings and the summary of a run are drawn from."""

    manifest: Mapping[str, Any]
    space: ClassSpace
    answers: Mapping[str, NDArray[Any]]
    metrics: Sequence[Mapping[str, Any]]


class RunDirectory:
    """One run's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest_path = path / "manifest.json"
        self.metrics_path = path / "metrics.jsonl"
        self.model_path = path / "model.safetensors"
        self.personal_path = path / "personal.safetensors"
        self.result_path = path / "result.json"
        self.parties_path = path / "parties.json"
        self.checkpoints = path / "checkpoints"
        self.spaces = path / "spaces"
        self.further = path / "further"  # what a finished run becomes with its next round
        self.further_manifest = self.further / "manifest.json"  # there if it is to go on
        self.keep = 2  # checkpoints: the newest, and the one before
        self._written: Mapping[int, StoredTensors] = {}  # what the files of clients' states hold
        self._parts: list[str] = []  # their names
        self._since = 0  # records in all of them but the first

    def check(self, experiment: Mapping[str, Any], fingerprint: str, resume: bool) -> None:
        """Refuse a directory that holds something else, before anything is written."""
        if not os.path.lexists(self.manifest_path):
            if is_occupied(self.path, lambda name: name == ".lock" or _is_leftover(name)):
                raise RunDirectoryError(
                    f"{self.path} exists and is not a run directory: choose another --out"
                )
            return
        if not resume:
            raise RunDirectoryError(
                f"{self.path} already holds a run: add --resume to continue with it, or choose "
                "another --out"
            )
        check_unlinked(self.path)
        manifest = self.manifest()
        changes = differences(manifest["experiment"], experiment)
        if "rolled_back" in manifest:  # it may end earlier than it was to
            changes = [change for change in changes if not change.startswith("strategy.rounds ")]
        if changes:
            raise RunDirectoryError(
                f"{self.path} holds a run of another experiment ({'; '.join(changes[:3])}): "
                "choose another --out, or resume it with the settings that it was started with"
            )
        if manifest["data_fingerprint"] != fingerprint:
            raise RunDirectoryError(
                f"{self.path}: the data have changed since this run was started: "
                "restore them, or start a new run in another --out"
            )

    def create(self, manifest: Mapping[str, Any]) -> None:
        """Make the directory, unless it is there, and sweep up what a kill left half-written."""
        self.path.mkdir(parents=True, exist_ok=True)
        for folder in ("", "checkpoints/", "similarity/", "magnitudes/"):
            for leftover in self.path.glob(f"{folder}.*"):
                if _is_leftover(leftover.name):
                    leftover.unlink()
        if not self.manifest_path.exists():
            write_json(self.manifest_path, manifest)

    @contextmanager
    def begun(self, manifest: Mapping[str, Any], keep: bool) -> Iterator[None]:
        """Create the directory; unless it is to ``keep``, an error before the first round of a new
        run removes it.
        """
        new = not (keep or self.manifest_path.exists())
        self.create(manifest)
        try:
            yield
        except Exception:
            if new and not any(path.stat().st_size for path in self.path.rglob("metrics.jsonl")):
                for path in self.path.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                self.path.rmdir()
            raise

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory against a second process."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with holding(self.path) as held:
                if not held:
                    raise RunDirectoryError(
                        f"{self.path} is in use by another process: wait for it, or choose another "
                        "--out"
                    )
                yield
        except OSError as error:
            raise RunDirectoryError(
                f"{self.path} cannot be written ({error.strerror or error}): "
                "choose another --out, or fix that and call the command again, with --resume if it "
                "has that"
            ) from None

    def manifest(self) -> dict[str, Any]:
        """Read the manifest; of a finished run that is to go on, the one with further rounds."""
        return read_manifest(self.further if self.further_manifest.exists() else self.path)

    def reopen(self, files: Mapping[str, Any]) -> None:
        """Let a finished run go on with other files of JSON, once a further round is merged; until
        then the run stays as it is.
        """
        self.further.mkdir(exist_ok=True)
        for name in sorted(files, key="manifest.json".__eq__):  # it says that all are there
            write_json(self.further / name, files[name])

    def settle(self) -> None:
        """Undo :meth:`reopen`, since no further round came; a kill while one did is made good."""
        if self.further_manifest.exists() and not self.result_path.exists():
            self._go_on()
        shutil.rmtree(self.further, ignore_errors=True)

    def _go_on(self) -> None:
        """Replace a finished run by the one with further rounds: its result is no more."""
        self.result_path.unlink(missing_ok=True)
        shutil.rmtree(self.path / "confidence", ignore_errors=True)
        for path in sorted(
            self.further.glob("*.json"), key=lambda path: path.name == "manifest.json"
        ):
            path.replace(self.path / path.name)
        shutil.rmtree(self.further)

    def identity(self) -> str:
        """Return the id of this run, which stays the same when it is resumed."""
        content = self.manifest_path.read_bytes()
        # a manifest that was changed for other parties has kept the id that it had
        changed = parse_json(content).get("run")
        return str(changed) if changed else hashlib.sha256(content).hexdigest()[:16]

    def note_parties(self, parties: Sequence[PartyStatus]) -> None:
        """Record who the parties of a deployment are, and what each held when it was last
        connected.
        """
        recorded: dict[str, Any] = {}
        check_ordinary(self.parties_path)
        with suppress(OSError, ValueError, TypeError, KeyError):
            recorded = {
                party["name"]: party for party in parse_json(self.parties_path.read_bytes())
            }
        now = {
            p.name: {"name": p.name, "classes": p.classes, "samples": p.samples} for p in parties
        }
        write_json(
            self.parties_path,
            [
                party if party["samples"] else recorded.get(name, party)
                for name, party in now.items()
            ],
        )

    def _party_names(self) -> list[str]:
        """Return what the clients of a deployment are called; [] of a simulation."""
        check_ordinary(self.parties_path)
        with suppress(OSError, ValueError, TypeError, KeyError):
            return [str(party["name"]) for party in parse_json(self.parties_path.read_bytes())]
        return []

    def result(self) -> dict[str, Any] | None:
        """Read the final numbers; None while the run is not complete."""
        return read_result(self.path)

    def finish(self, result: Mapping[str, Any], measured: Measured | None = None) -> dict[str, Any]:
        """Write the final numbers, their summary and the warnings, and return them. All else must
        have been written before; what is not in ``measured`` is read from its files.
        """
        final = {**result, **self._judged(result, measured)}
        write_json(self.result_path, final)
        return final

    def _measured(self) -> Measured:
        space = ClassSpace.load(self.path / "classes.csv", of_run=True)
        answers = load_params(self.path / "evaluation.safetensors", classes=len(space.names))
        return Measured(
            self.manifest(),
            space,
            {name: value.numpy() for name, value in answers.items()},
            self.metrics(),
        )

    def _judged(self, result: Mapping[str, Any], measured: Measured | None) -> dict[str, Any]:
        """Return ``warnings``, ``intervals`` and ``summary``; of several seeds, their warnings."""
        if "seeds" in result:
            runs = {
                seed: RunDirectory(self.path / f"seed-{seed}").result() or {}
                for seed in result["seeds"]
            }
            of_seed = {seed: run_result.get("warnings", []) for seed, run_result in runs.items()}
            first, *others = of_seed.values()
            common = [
                sign for sign in first if all(sign in other for other in others)
            ]  # of the data, not of chance
            signs = [
                (seed, sign)
                for seed, warnings in of_seed.items()
                for sign in warnings
                if sign not in common
            ]
            seed_warnings = [
                {**sign, "what": f"Seed {seed}: {sign['what']}"} for seed, sign in signs
            ]
            return {"warnings": common + seed_warnings}
        if measured is None and self.manifest().get("brought_home"):
            return {"warnings": list(result["warnings"])}  # the coordinator's, who has the tests
        measured = self._measured() if measured is None else measured
        manifest = measured.manifest
        space = measured.space
        answers = measured.answers
        descriptions = manifest.get("traits", {}).get("zero_shot", True)
        scaled = bool(
            {"l2", "standard", "min-max"}
            & set(manifest["experiment"]["data"].get("features") or ())
        )
        evaluation = manifest["experiment"]["evaluation"]
        chosen = (
            evaluation["selection"] != "last",
            evaluation["calibration"],
            evaluation.get("factor"),
        )
        prior = evaluation.get("prior", "balanced")
        findings = diagnose(
            measured.metrics,
            result,
            answers,
            space.names,
            space.unseen,
            descriptions,
            scaled,
            prior if chosen == (True, "stacking", None) else None,
        )
        findings = [*conspicuous(result, space.names, self._party_names()), *findings]
        intervals = _intervals(answers, space.unseen)
        summary = summarize(result, answers, space.names, space.unseen, descriptions, prior)
        if summary.get("weak_unseen") or summary.get("weak_by_rule"):
            summary["text"] += pool_advice(result, manifest["experiment"]["method"]["name"])
        return {
            "warnings": [warning._asdict() for warning in findings],
            **({"intervals": intervals} if intervals else {}),
            **({"summary": summary} if summary else {}),
        }

    def complete(self) -> bool:
        """Say whether the run is complete, and not to go on, and all that it left behind is
        whole.
        """
        result = None if self.further_manifest.exists() else self.result()
        if result is None:
            return False
        if "seeds" in result:
            return all(
                RunDirectory(self.path / f"seed-{seed}").complete() for seed in result["seeds"]
            )
        tensors = [self.model_path, self.path / "evaluation.safetensors"]
        if not is_model(self.model_path):  # whose file has the scaling, too
            tensors.append(self.path / "scaling.safetensors")
        try:
            ClassSpace.load(self.path / "classes.csv", of_run=True)
        except DataError:
            return False
        return len(self.metrics()) == result["rounds"] and all(map(is_whole, tensors))

    def metrics(self) -> list[dict[str, Any]]:
        """Read the lines of all rounds, up to the first that is not whole: a kill may have cut the
        last one short.
        """
        if not self.metrics_path.exists():
            return []
        check_ordinary(self.metrics_path)
        lines: list[dict[str, Any]] = []
        for line in self.metrics_path.read_bytes().split(b"\n")[
            :-1
        ]:  # a whole line ends in a newline
            try:
                value = parse_json(line)
            except ValueError:
                break
            if not isinstance(value, dict) or value.get("round") != len(lines) + 1:
                break
            lines.append(value)
        return lines

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        """Append one round's line, flushed to disk."""
        if self.further_manifest.exists():
            self._go_on()
        with open(self.metrics_path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def rewind(self, rounds: int, metrics: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Delete metrics, checkpoints and class spaces after the first ``rounds`` rounds.

        Return the ``metrics`` that stay.
        """
        if len(metrics) > rounds and self.further_manifest.exists():
            self._go_on()
        for path in _numbered(self.spaces, "json"):
            if int(path.stem) >= rounds:
                path.unlink()
        for path in _numbered(self.checkpoints, "safetensors"):
            if int(path.stem) > rounds:
                path.unlink()
        lines = list(metrics[:rounds])
        write_text(self.metrics_path, "".join(json.dumps(line) + "\n" for line in lines))
        return lines

    def save_checkpoint(self, state: State) -> None:
        """Write the state after a round, then drop the oldest.

        What clients keep is a part of the checkpoint's file where it is in memory. Where it is on a
        store (many clients), only what has changed is written, to a file beside it; the checkpoint
        says which of these files make up the whole, the latest last.
        """
        tensors = {f"params/{name}": value for name, value in state.params.items()}
        tensors |= {f"state/{name}": value for name, value in state.server.items()}
        stored: dict[int, StoredTensors] = {}
        for client, values in state.clients.items():
            if isinstance(values, StoredTensors) and (
                not stored or values.layout == next(iter(stored.values())).layout
            ):
                stored[client] = values
            else:
                tensors |= {f"client/{client}/{name}": value for name, value in values.items()}
        metadata = {}
        if stored:
            changed = {
                client: values
                for client, values in stored.items()
                if self._written.get(client) is not values
            }
            if len(changed) + self._since >= len(
                stored
            ):  # what is out of date would take as much room as what is not
                changed = stored
                self._parts = []
                self._since = 0
            else:
                self._since += len(changed)
            if changed:
                name = f"{state.round:06d}.clients"
                write_records(self.checkpoints / name, changed)
                self._parts = [*self._parts, name]
            self._written = stored
            metadata = {_PARTS: json.dumps(self._parts)}
        write_tensors(self.checkpoints / f"{state.round:06d}.safetensors", tensors, metadata)
        for old in _numbered(self.checkpoints, "safetensors")[: -self.keep]:
            old.unlink()
        parts = list(self.checkpoints.glob("*.clients"))
        needed = (
            {p for path in self.checkpoints.glob("*.safetensors") for p in parts_of(path)}
            if parts
            else set()
        )
        for part in parts:
            if part not in needed:
                part.unlink()

    def keep_checkpoint(self, rounds: int) -> None:
        """Keep the state after ``rounds`` rounds for good: no client has had a share in it that
        comes in the next.
        """
        kept = self.checkpoints / f"before-{rounds + 1:06d}.safetensors"
        path = self.checkpoints / f"{rounds:06d}.safetensors"
        if path.exists() and not kept.exists():
            os.link(path, kept)

    def kept_checkpoint(self, rounds: int) -> tuple[int, Path] | None:
        """Return the latest state kept for good that is not later than after ``rounds`` rounds, and
        after how many.
        """
        kept = {
            int(path.stem.removeprefix("before-")) - 1: path
            for path in self.checkpoints.glob("before-*")
        }
        early_enough = [done for done in kept if done <= rounds]
        return (max(early_enough), kept[max(early_enough)]) if early_enough else None

    def save_space(self, round: int, version: Mapping[str, Any]) -> None:
        """Write the class space that is in force from ``round`` (counted from 0) on, unless it is
        there.
        """
        path = self.spaces / f"{round:06d}.json"
        if not path.exists():
            self.spaces.mkdir(exist_ok=True)
            write_json(path, version)

    def space_before(self, rounds: int) -> dict[str, Any] | None:
        """Read the class space in which the last of the first ``rounds`` rounds was trained; None
        if none is kept.
        """
        earlier = [path for path in _numbered(self.spaces, "json") if int(path.stem) < rounds]
        if not earlier:
            return None
        problem = (
            f"{earlier[-1]} is damaged: restore it, or run the experiment again in another --out"
        )
        return read_json(earlier[-1], problem, ("round", "classes"))

    def newest_checkpoint(
        self, device: torch.device, measured_rounds: int | None = None
    ) -> State | None:
        """Read the newest checkpoint that is whole and whose rounds all have their metrics; None if
        there is none.

        ``measured_rounds`` is how many rounds have metrics, where they were read already.
        """
        measured_rounds = len(self.metrics()) if measured_rounds is None else measured_rounds
        for path in reversed(_numbered(self.checkpoints, "safetensors")):
            if (
                int(path.stem) > measured_rounds
            ):  # no kill leaves this: something else damaged the metrics
                continue
            try:
                tensors = load_params(path, device)
                states = {**self._stored(path, device), **of_each_client(tensors)}
            except RunDirectoryError:  # no kill leaves this: the checkpoint before it still serves
                continue
            return State(
                int(path.stem), within("state/", tensors), within("params/", tensors), states
            )
        return None

    def resumable(
        self, device: torch.device, selected: int | None, measured_rounds: int
    ) -> State | None:
        """Return the state to continue from; None without one, or where only training again makes
        the chosen model.
        """
        state = self.newest_checkpoint(device, measured_rounds)
        return (
            None
            if state and (selected or 1) <= state.round and not is_whole(self.model_path)
            else state
        )

    def restored(self, state: State, first: Params) -> State:
        """Return a checkpoint's state with its parameters in the order of the first ones."""
        for name, value in first.items():
            saved = state.params.get(name)
            if saved is None or saved.shape != value.shape:
                shape = "none" if saved is None else f"one of shape {tuple(saved.shape)}"
                raise RunDirectoryError(
                    f"{self.checkpoints}: the parameter {name!r} has the shape "
                    f"{tuple(value.shape)} now, but the checkpoint holds {shape}: restore the "
                    "encoder or the files that the run was started with"
                )
        return replace(state, params={name: state.params[name] for name in first})

    def _stored(self, path: Path, device: torch.device) -> dict[int, StoredTensors]:
        """Read what clients keep from the files beside a checkpoint."""
        store = TensorStore(device)
        records = dict[int, StoredTensors]()
        parts = parts_of(path)
        for part in parts:
            try:
                records |= read_records(part, store)
            except (OSError, SafetensorError, ValueError) as error:
                raise RunDirectoryError(f"{part} cannot be read ({error})") from None
        self._written = records
        self._parts = [part.name for part in parts]
        self._since = len(records)
        return records


def parts_of(path: Path) -> list[Path]:
    """Return the files beside a checkpoint that hold what its clients keep, the latest last."""
    check_ordinary(path)
    try:
        with safe_open(path, "pt") as file:
            return [
                path.parent / Path(name).name
                for name in parse_json((file.metadata() or {}).get(_PARTS, "[]"))
            ]
    except (OSError, SafetensorError, ValueError, TypeError):
        return []


def is_whole(path: Path) -> bool:
    """Say whether a safetensors file is there in its full length."""
    check_ordinary(path)
    try:
        with safe_open(path, "pt"):
            return True
    except (OSError, SafetensorError):
        return False


def is_model(path: Path) -> bool:
    """Say whether a file is one that :meth:`fedunseen.Model.save` wrote, and not tensors alone."""
    check_ordinary(path)
    try:
        with safe_open(path, "pt") as file:
            return before_parameters(file.metadata()) != ""
    except (OSError, SafetensorError):
        return False


@contextmanager
def _opened(path: Path, device: torch.device | None) -> Iterator[Any]:
    """Open a safetensors file for reading."""
    check_ordinary(path)
    try:
        check_tensor_header(path)
        with safe_open(path, "pt", device=str(device or "cpu")) as file:
            yield file
    except (OSError, SafetensorError, TensorHeaderError) as error:
        raise RunDirectoryError(
            f"{path} cannot be read ({error}): resume the run to make it again"
        ) from None


def load_params(
    path: Path, device: torch.device | None = None, under: str = "", classes: int | None = None
) -> Params:
    """Read a safetensors file; of a model's file the parameters. The order of names is not kept.

    With ``classes`` all labels and answers must be ids of so many classes: counting larger ones
    would take any memory.
    """
    with _opened(path, device) as file:
        under = under or before_parameters(file.metadata())
        names = [name for name in file.keys() if name.startswith(under)]  # noqa: SIM118 - it is not a dictionary
        params = {name.removeprefix(under): file.get_tensor(name) for name in names}
    for name, value in params.items() if classes is not None else ():
        if not name.endswith(("labels", "answers")) or not value.numel():
            continue
        if value.dtype not in _IDS or value.min() < 0 or value.max() >= classes:
            raise RunDirectoryError(
                f"{path} is damaged: {name[:40]!a} are not ids of the {classes} classes: "
                "restore it, or run the experiment again in another --out"
            )
    return params


def stored_rounds(folder: Path) -> dict[int, dict[str, Any]]:
    """Return what ``round-N.safetensors`` of a folder hold, by round, in the order of rounds."""
    paths = {int(path.stem.partition("-")[2]): path for path in folder.glob("round-*.safetensors")}
    return {
        n: {name: value.numpy() for name, value in load_params(paths[n]).items()}
        for n in sorted(paths)
    }


def parameter_sizes(path: Path) -> dict[str, int]:
    """Return how many numbers each tensor of a model is, without reading it; nothing if the model
    is not there.
    """
    check_ordinary(path)
    try:
        with safe_open(path, "np") as file:
            before = before_parameters(file.metadata())
            return {
                name.removeprefix(before): math.prod(file.get_slice(name).get_shape())
                for name in file.keys()  # noqa: SIM118 - it is not a dictionary
                if name.startswith(before)
            }
    except (OSError, SafetensorError):
        return {}


def of_clients(
    path: Path, device: torch.device | None = None, clients: Collection[int] | None = None
) -> Iterator[tuple[int, Params]]:
    """Read clients' own models from the file of a run in which each has one, one at a time; else
    nothing.
    """
    with _opened(path, device) as file:
        for client, names in of_each_client({name: name for name in file.keys()}).items():  # noqa: SIM118
            if clients is None or client in clients:
                yield client, {name: file.get_tensor(stored) for name, stored in names.items()}


def _numbered(folder: Path, suffix: str) -> list[Path]:
    """Return the files that rounds have left in a folder, oldest first."""
    return sorted(
        (path for path in folder.glob(f"*.{suffix}") if path.stem.isdecimal()),
        key=lambda path: int(path.stem),
    )


def _is_leftover(name: str) -> bool:
    """Say whether a file is a half-written one that a kill has left, ours or safetensors'."""
    return name.startswith(".tmp") or (name.startswith(".") and name.endswith(".tmp"))


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Say which settings that a result depends on differ: ["method.lr was 0.1, is 0.2"]."""
    changed: list[str] = []
    skipped = {"": ("name",), "engine.": _WAITING, "run.": ("keep",)}.get(prefix, ())
    for key in sorted({*old, *new}.difference(skipped)):
        a = old.get(key)
        b = new.get(key)
        name = f"{prefix}{key}"
        if isinstance(a, dict) and isinstance(b, dict):
            changed += differences(a, b, f"{name}.")
        elif a != b:
            changed.append(f"{name} was {a!r}, is {b!r}")
    return changed


def _intervals(
    answers: Mapping[str, NDArray[Any]], unseen: NDArray[np.int64]
) -> dict[str, tuple[float, float]]:
    """Return 95 % intervals of accuracies; nothing where no answers were recorded."""
    if "labels" not in answers or "gzsl_answers" not in answers:
        return {}
    labels = answers["labels"]
    right = [answers[name] == labels for name in ("zsl_answers", "gzsl_answers")]
    return accuracy_intervals(labels, ~np.isin(labels, unseen), *right)
