"""Adapt a finished run to unlabelled samples, and measure it again where its test samples are here."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.errors import DataError, FedUnseenError
from fedunseen.data import Benchmark, ClassSpace
from fedunseen.experiment.assemble import load_data
from fedunseen.experiment.learn import free_folder, write_changed
from fedunseen.experiment.measured_again import judged
from fedunseen.methods.closed_form.unlabelled import LEAST, Adapted, adapt, remarks
from fedunseen.metrics import Answers, accuracies, per_class
from fedunseen.tasks.base import Inputs, Learnt

if TYPE_CHECKING:
    from fedunseen.experiment.finished import Run

__all__ = ["adapt_run", "class_rows", "test_share"]


def adapt_run(run: Run, inputs: Inputs, out: str | Path | None = None, among: str = "all") -> Run:
    """Return the run adapted to unlabelled samples; see :meth:`fedunseen.Run.adapt`."""
    run = run.seeds[0] if run.seeds else run
    run.check_one_model("to adapt", choosable=True)
    folder = None if out is None else free_folder(out)
    if not isinstance(inputs, (str, Path)) and not len(inputs):
        raise DataError(f"there are 0 unlabelled samples: give at least {LEAST}")
    rows = run.read_inputs(inputs)
    factor = float(run.result.get("calibration_factor", 0.0))
    scaled = torch.from_numpy(run.scaler(rows) if rows.ndim == 2 else rows)
    found = adapt(run.method, run.params, [scaled], factor, among=among)
    for remark in remarks(found, run.space.names):
        warnings.warn(remark, stacklevel=4)
    result, drawn = _measured(run, rows, found, factor)
    if folder is None:
        changed = replace(run, result=result)
        vars(changed).update(space=run.space, params=found.params)
        return changed
    write_changed(run, Learnt(run.space, found.params), folder, result, drawn)
    return run.reopened(folder)


def _measured(
    run: Run, rows: NDArray[Any], found: Adapted, factor: float
) -> tuple[dict[str, Any], Mapping[str, NDArray[Any]] | None]:
    """Return the numbers of the adapted run, and what its page draws (None: as before)."""
    now = factor * found.deviation
    note: dict[str, Any] = {
        "samples": len(rows),
        "refused": [run.space.names[c] for c in torch.nonzero(found.refused)[:, 0].tolist()],
        "measured": False,
    }
    result = {**run.result, "calibration_factor": now, "adapted": note}
    try:
        if run.brought_home:
            raise DataError("the tests are at the coordinator")
        benchmark = load_data(run.experiment, run.experiment.run.seed)
        federation, task, _ = judged(run, benchmark, int(run.result["rounds"]), found.params)
    except FedUnseenError as error:
        warnings.warn(
            f"the adapted run keeps the accuracies of {run.path}: its test samples are not here ({error})", stacklevel=5
        )
        note["classes"] = class_rows(run.space, found)
        return result, None
    share = test_share(rows, benchmark)
    if share:
        warnings.warn(
            f"{100 * share:.0f} % of the unlabelled samples are test samples: accuracies are transductive", stacklevel=5
        )
    before, after = federation.answers(run.params), federation.answers(found.params)
    numbers = asdict(accuracies(after, now))
    kept = {name: value for name, value in numbers.items() if name in task.accuracies}
    plain = asdict(accuracies(after, 0.0))
    kept |= {f"uncalibrated_{name}": plain[name] for name in numbers if f"uncalibrated_{name}" in run.result}
    note |= {
        "measured": True,
        "test_share": share,
        "before": {name: asdict(accuracies(before, factor))[name] for name in task.accuracies},
        "classes": class_rows(run.space, found, (before, factor), (after, now)),
    }
    result |= kept
    same = len(run.space.names) == len(benchmark.space.names)
    return result, task.summary(found.params, result) if same else None


def class_rows(
    space: ClassSpace,
    found: Adapted,
    before: tuple[Answers, float] | None = None,
    after: tuple[Answers, float] | None = None,
) -> dict[str, list[Any]]:
    """Return a table of classes: the unlabelled samples that each got, and accuracies among all classes in percent."""
    ids = np.arange(len(space.names))
    table: dict[str, list[Any]] = {
        "class": list(space.names),
        "seen": np.isin(ids, space.seen).tolist(),
        "samples": [round(count, 2) for count in found.samples.tolist()],
    }
    for name, measured in (("before", before), ("after", after)):
        if measured is not None:
            right = per_class(measured[0].labels, measured[0].generalised(measured[1]), ids)
            table[name] = [None if np.isnan(value) else round(float(value), 2) for value in right]
    return table


def test_share(rows: NDArray[Any], benchmark: Benchmark) -> float:
    """Return which share of samples (n, ...) are test samples of a benchmark, by content."""
    tests = benchmark.features[np.concatenate([benchmark.test_unseen, benchmark.test_seen])]
    if tests.shape[1:] != rows.shape[1:]:
        return 0.0
    known = set(_digests(tests))
    return float(np.mean([one in known for one in _digests(rows)]))


def _digests(rows: NDArray[Any]) -> list[bytes]:
    whole = rows if rows.dtype == np.uint8 else rows.astype(np.float32)
    return [hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8).digest() for row in whole]
