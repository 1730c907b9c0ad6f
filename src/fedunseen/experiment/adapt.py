"""Adapt a finished run to unlabelled samples, and measure it again where its test samples are here."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray

from fedunseen.core.errors import DataError, FedUnseenError
from fedunseen.core.files import free_folder
from fedunseen.data.benchmark import check_unlabelled
from fedunseen.evaluation.diagnosis import adapted as diagnosed
from fedunseen.experiment.assemble import load_data
from fedunseen.experiment.learn import write_changed
from fedunseen.experiment.result.remeasure import judged
from fedunseen.experiment.unlabelled import adaptation_note, adapted_numbers
from fedunseen.methods.closed_form.unlabelled import Adapted, adapt
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
