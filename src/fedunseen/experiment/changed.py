"""A finished run that changes without training: by new classes or unlabelled samples; and what measures it again."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.errors import DataError, FedUnseenError
from fedunseen.core.files import free_folder, whole_folder, write_json, write_tensors
from fedunseen.core.parameters import Params
from fedunseen.data import Benchmark, ClassSpace
from fedunseen.data.benchmark import check_unlabelled
from fedunseen.evaluation.diagnosis import adapted as diagnosed
from fedunseen.experiment.assemble import assemble, load_data
from fedunseen.experiment.deployed import dealt
from fedunseen.experiment.growth import growth_of
from fedunseen.federation import Federation
from fedunseen.federation.run_directory import RunDirectory
from fedunseen.methods.closed_form.unlabelled import Adapted, adapt
from fedunseen.metrics import Answers, accuracies, per_class
from fedunseen.tasks import Evaluator
from fedunseen.tasks.base import Inputs, Learnt

if TYPE_CHECKING:
    from fedunseen.experiment.result.run import Run


def adapt_run(run: Run, inputs: Inputs, out: str | Path | None = None, among: str = "all") -> Run:
    """Return the run adapted to unlabelled samples; see :meth:`fedunseen.Run.adapt`."""
    run = run.seeds[0] if run.seeds else run
    run.check_one_model("to adapt", choosable=True)
    folder = None if out is None else free_folder(out)
    if not isinstance(inputs, (str, Path)) and not len(inputs):
        check_unlabelled(0)
    rows = run.read_inputs(inputs)
    scaled = torch.from_numpy(run.scaler(rows) if rows.ndim == 2 else rows)
    found = adapt(run.method, run.params, [scaled], offset_of(run), among=among)
    return write_adapted(run, found, folder, rows, {})


def offset_of(run: Run) -> float:
    """Return the calibration offset of seen classes beside the model's own."""
    return float(run.result.get("calibration_factor", 0.0))


def write_adapted(
    run: Run, found: Adapted, folder: Path | None, rows: NDArray[Any] | None, traffic: Mapping[str, Any]
) -> Run:
    """Measure an adapted run where its test samples are here, and write it."""
    factor, result, drawn = offset_of(run), dict(run.result), None
    try:
        if run.brought_home:
            raise DataError("they are at the coordinator")
        benchmark = load_data(run.experiment, run.experiment.run.seed)
        federation, task, _ = judged(run, benchmark, int(run.result["rounds"]), found.params)
    except FedUnseenError as error:
        note = adaptation_note(found, run.space.names)
        result |= {"calibration_factor": factor * found.offset_share, "adapted": note}
        warnings.warn(
            f"the adapted run keeps the accuracies of {run.path}: its test samples are not here ({error})", stacklevel=4
        )
    else:
        result |= adapted_numbers(federation, run.space, run.params, found, factor, task.accuracies, rows)
        drawn = task.summary(found.params, result) if len(run.space.names) == len(benchmark.space.names) else None
    result["adapted"] |= traffic
    for sign in diagnosed(result["adapted"]):
        warnings.warn(f"{sign.what} {sign.remedy}", stacklevel=4)
    if folder is None:
        changed = replace(run, result=result)
        vars(changed).update(space=run.space, params=found.params)
        return changed
    write_changed(run, Learnt(run.space, found.params), folder, result, drawn)
    return run.reopened(folder)


_MADE_ANEW = (  # or left out; the rest is copied
    "adapting", "labelled.safetensors", "checkpoints", "selection", "engine", "report.html", "README.md", "result.json",
    "personal.safetensors",
)  # fmt: skip


def write_changed(
    run: Run, learned: Learnt, folder: Path, result: Mapping[str, Any], drawn: Mapping[str, NDArray[Any]] | None = None
) -> None:
    """Write the directory of a run with a changed model beside its final place and move it there whole."""
    manifest = {**run.manifest, "learnt": [*run.manifest.get("learnt", ()), *result.get("learnt", ())]}
    with whole_folder(folder, run.path, _MADE_ANEW) as partial:
        write_json(partial / "manifest.json", manifest if run.client is None else {**manifest, "client": run.client})
        learned.space.save(partial / "classes.csv")
        write_tensors(partial / "model.safetensors", learned.params)
        if not run.brought_home:
            drawn = drawn or _expanded(run.evaluation, len(run.space.names), len(learned.space.names))
            write_tensors(partial / "evaluation.safetensors", drawn)
        RunDirectory(partial).finish({**result, "run": str(folder)})


def _expanded(tensors: Mapping[str, NDArray[Any]], before: int, now: int) -> dict[str, NDArray[Any]]:
    """Add empty places for new classes to what the report draws: no one trained on them and no test had them."""
    found = dict(tensors)
    for name, value in tensors.items():
        if name.startswith("curve_") or name.endswith(("labels", "answers", "images")):
            continue
        wide = [(0, now - before) if length == before else (0, 0) for length in value.shape]
        if any(after for _, after in wide):
            found[name] = np.pad(value, wide, constant_values=np.nan if value.dtype.kind == "f" else 0)
    return found


def judged(run: Run, benchmark: Benchmark, rounds: int, params: Params) -> tuple[Federation, Evaluator, ClassSpace]:
    """Return what solves and measures the sums that are left, and the class space.

    Where the class space has grown, a class without samples is unseen again.
    """
    experiment, kind = run.experiment, run.experiment.task
    benchmark, partition = dealt(experiment, benchmark)
    growth = growth_of(experiment, benchmark, partition, RunDirectory(run.path))
    if growth is None:
        federation = assemble(experiment, kind.client_data(benchmark), partition)
        task = kind.evaluator(federation, benchmark, experiment.evaluation)
        return federation, task, run.space
    federation, task = growth.at(rounds)
    gone = torch.nonzero(params["count"] == 0)[:, 0].numpy()
    gone = np.intersect1d(gone, growth.version.space.seen)
    if len(gone):
        federation, task = growth.without(gone)
    return federation, task, growth.version.space


def adaptation_note(adapted: Adapted, names: Sequence[str], **accuracy: tuple[Answers, float]) -> dict[str, Any]:
    """Return what each class got of the samples."""
    ids, seen = np.arange(len(names)), adapted.params["seen_mask"] > 0
    table: dict[str, list[Any]] = {
        "class": list(names),
        "seen": seen.tolist(),
        "samples": [round(count, 2) for count in adapted.samples.tolist()],
    }
    for key, (answers, offset) in accuracy.items():
        right = per_class(answers.labels, answers.generalised(offset), ids)
        table[key] = [None if np.isnan(value) else round(float(value), 2) for value in right]
    refused = [names[c] for c in torch.nonzero(adapted.refused)[:, 0].tolist()]
    return {"samples": adapted.pool, "refused": refused, "measured": bool(accuracy), "classes": table}


def adapted_numbers(
    federation: Federation,
    space: ClassSpace,
    before: Params,
    adapted: Adapted,
    offset: float,
    names: Sequence[str],
    rows: NDArray[Any] | None,
) -> dict[str, Any]:
    """Return the numbers of an adapted run, among them ``adapted``, its report."""
    after = offset * adapted.offset_share
    old, new = federation.answers(before), federation.answers(adapted.params)
    first, numbers = asdict(accuracies(old, offset)), asdict(accuracies(new, after))
    plain = asdict(accuracies(new, -federation.method.own_offset(adapted.params)))
    note = adaptation_note(adapted, space.names, before=(old, offset), after=(new, after))
    note |= {"before": {name: first[name] for name in names}}
    note |= {} if rows is None else {"test_share": test_share(rows, federation.benchmark)}
    uncalibrated = {f"uncalibrated_{name}": plain[name] for name in names if name != "zsl"}
    return {name: numbers[name] for name in names} | uncalibrated | {"calibration_factor": after, "adapted": note}


def test_share(rows: NDArray[Any], benchmark: Benchmark) -> float:
    """Return which share of samples (n, ...) are test samples of a benchmark, by content."""
    tests = benchmark.features[np.concatenate([benchmark.test_unseen, benchmark.test_seen])]
    known = set(_digests(tests)) if tests.shape[1:] == rows.shape[1:] else set()
    return float(np.mean([digest in known for digest in _digests(rows)]))


def _digests(rows: NDArray[Any]) -> list[bytes]:
    whole = rows if rows.dtype == np.uint8 else rows.astype(np.float32)
    return [hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8).digest() for row in whole]
