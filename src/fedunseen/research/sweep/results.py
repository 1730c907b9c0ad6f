"""The results of a sweep: a row for each cell, read from its run directory alone."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedunseen.core.errors import RunDirectoryError
from fedunseen.core.runs import read_json
from fedunseen.data.io import csv_io
from fedunseen.evaluation.measures import FEW_SHOT, FEW_SHOT_DETAILS, ZERO_SHOT
from fedunseen.federation.run_directory import RunDirectory
from fedunseen.research.sweep.schema import BACKDOOR, MEASURES, Cell, Sweep


@dataclass(frozen=True)
class Row:
    """What became of a cell.

    Attributes:
        status: ``done``, ``failed``, ``refused`` (its combination makes no sense) or ``not run``;
            ``problem`` says why.
        mean: metric -> its mean over the seeds: accuracies in percent, what travels, half of a 95 %
            interval.
        sd: accuracy -> its standard deviation over the seeds (n - 1); empty for one seed.
        run: the run directory, relative to the sweep's.
        each: metric -> its value with each seed; empty for one seed.
    """

    cell: Cell
    status: str
    problem: str | None
    mean: Mapping[str, float]
    sd: Mapping[str, float]
    seeds: int
    selection: str
    run: str
    seconds: float | None
    each: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


def rows(sweep: Sweep, out: str | Path) -> list[Row]:
    """Read what became of each cell, in order."""
    return [row(sweep, cell, Path(out)) for cell in sweep.cells]


def row(sweep: Sweep, cell: Cell, out: Path) -> Row:
    """Read what became of one cell."""
    place = f"cells/{cell.folder}"
    if cell.experiment is None:
        return Row(cell, "refused", cell.refused, {}, {}, 0, "", place, None)
    chosen = cell.experiment.run.seeds, cell.experiment.evaluation.selection, place
    directory = RunDirectory(out / place)
    record = out / "failed" / f"{cell.folder}.json"
    status = "not run"
    problem = None
    result = None
    try:
        result = directory.result() if directory.complete() else None
    except RunDirectoryError as error:
        status = "failed"
        problem = str(error)
    if result is not None:
        measures = (*ZERO_SHOT, *BACKDOOR, *FEW_SHOT, *FEW_SHOT_DETAILS, "few_shot_ci95")
        measured = [name for name in measures if name in result]
        mean = {name: float(result[name]) for name in (*measured, *MEASURES)}
        sd = {name: float(result[f"{name}_sd"]) for name in measured if f"{name}_sd" in result}
        seeds = [
            RunDirectory(directory.path / f"seed-{seed}").result() or {}
            for seed in result.get("seeds", ())
        ]
        shared = [
            name for name in measured if seeds and all(name in seed_result for seed_result in seeds)
        ]
        each = {name: tuple(float(seed_result[name]) for seed_result in seeds) for name in shared}
        return Row(cell, "done", None, mean, sd, *chosen, float(result["seconds"]), each)
    if record.exists():
        failure = read_json(
            record, f"{record} is damaged: delete it, and resume the sweep", ("refused", "problem")
        )
        status = "refused" if failure["refused"] else "failed"
        problem = str(failure["problem"])
    return Row(cell, status, problem, {}, {}, *chosen, None)


def cell_command(sweep: Sweep, cell: Cell) -> str:
    """Return the command that runs one cell alone."""
    words = [f"--only {shlex.quote(f'{axis}={value}')}" for axis, value in cell.values.items()]
    return " ".join([sweep.command, *words])


def write_csv(sweep: Sweep, rows: Iterable[Row], path: Path) -> None:
    """Write one line a cell: its values, its numbers, the paper's, and where the run is."""
    names = [column for name in sweep.metrics for column in (name, f"{name}_sd", f"{name}_paper")]
    last = ["paper_data", "seeds", "selection", "run", "problem", "command", "seconds"]
    attacked = any(
        cell.experiment and cell.experiment.attack.name != "none" for cell in sweep.cells
    )
    triggers = [column for name in BACKDOOR for column in (name, f"{name}_sd")] if attacked else []
    interval = ["few_shot_ci95"] if "few_shot" in sweep.metrics else []
    header = [*sweep.axes, "status", *names, *interval, *triggers, *MEASURES, *last]
    table: list[list[Any]] = [header]
    for cell_row in rows:
        numbers = [
            values.get(name, "")
            for name in sweep.metrics
            for values in (cell_row.mean, cell_row.sd, cell_row.cell.paper)
        ]
        numbers += [cell_row.mean.get(name, "") for name in interval]
        if attacked:
            numbers += [
                values.get(name, "") for name in BACKDOOR for values in (cell_row.mean, cell_row.sd)
            ]
        numbers += [cell_row.mean.get(name, "") for name in MEASURES]
        beside = (
            sweep.beside.get(cell_row.cell.values.get("data", ""), "")
            if cell_row.cell.paper
            else ""
        )
        about = [
            beside,
            cell_row.seeds or "",
            cell_row.selection,
            cell_row.run if cell_row.status == "done" else "",
            cell_row.problem or "",
        ]
        end = [
            cell_command(sweep, cell_row.cell),
            "" if cell_row.seconds is None else cell_row.seconds,
        ]
        table.append([*cell_row.cell.values.values(), cell_row.status, *numbers, *about, *end])
    csv_io.write_table(path, table)
