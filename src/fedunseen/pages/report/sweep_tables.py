"""The cells of a sweep as tables: one pivot, which the HTML page, Markdown and LaTeX show."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedunseen.evaluation.measures import FEW_SHOT, FEW_SHOT_DETAILS, SHORT, TITLES
from fedunseen.metrics import t_critical
from fedunseen.pages.report.communication_cost import written_bytes
from fedunseen.pages.report.parts import paragraphs
from fedunseen.research.sweep import Row, Sweep
from fedunseen.research.sweep.schema import MEASURES, Figure, Table

_ONLY_IN_SWEEPS = {  # metric -> head of its column, title of its chart
    "backdoor": ("backdoor", "Backdoor accuracy"),
    "backdoor_attacked": ("backdoor when attacked", "Backdoor accuracy when attacked"),
    "backdoor_highest": ("backdoor at most", "Backdoor accuracy at most"),
    "parameters_shared": ("parameters that travel", "Parameters that travel"),
    "bytes_down": ("down", "Bytes down, per client and round"),
    "bytes_up": ("up", "Bytes up, per client and round"),
}
HEADS = {**SHORT, **{name: head for name, (head, _) in _ONLY_IN_SWEEPS.items()}}
CHART_TITLES = {**TITLES, **{name: title for name, (_, title) in _ONLY_IN_SWEEPS.items()}}


class Number(NamedTuple):
    """A number of a cell, and the paper's."""

    metric: str
    mean: float | None = None
    sd: float | None = None
    paper: float | None = None
    half: float | None = None
    paper_data: str = ""
    link: str = ""

    @property
    def interval(self) -> str:
        """The 95 % interval over the seeds, within what a percentage can be."""
        if self.mean is None or self.half is None:
            return ""
        return f"{max(self.mean - self.half, 0):.1f} to {min(self.mean + self.half, 100):.1f}"

    @property
    def value(self) -> str:
        """Ours without its deviation."""
        return "–" if self.mean is None else formatted(self.metric, self.mean)

    @property
    def ours(self) -> str:
        """Ours with its deviation."""
        return self.value + ("" if self.sd is None else f" ± {self.sd:.1f}")

    @property
    def printed(self) -> str:
        """The paper's, with its data."""
        return (
            ""
            if self.paper is None
            else f"{self.paper:.1f}" + (f" ({self.paper_data})" if self.paper_data else "")
        )


@dataclass(frozen=True)
class SweepTable:
    """One table."""

    title: str
    axes: tuple[str, ...]
    groups: tuple[str, ...]
    heads: tuple[tuple[str, bool], ...]
    paper: str
    lines: tuple[tuple[tuple[str, ...], tuple[Number, ...], str], ...]
    notes: tuple[str, ...]
    caption: tuple[str, ...]

    @property
    def noted(self) -> bool:
        """Whether any row has a note."""
        return any(note for _, _, note in self.lines)

    @property
    def metrics(self) -> set[str]:
        """The metrics that it shows."""
        return {number.metric for _, numbers, _ in self.lines for number in numbers}

    @property
    def cells(self) -> list[list[str]]:
        """Its cells as text, the heads first."""
        heads = list(self.axes)
        for group in self.groups:
            for short, printed in self.heads:
                heads += [f"{group} {short}".strip()] + ([self.paper] if printed else [])
        lines = [heads + ([""] if self.noted else [])]
        for labels, numbers, note in self.lines:
            line = list(labels)
            for number, (_, printed) in zip(numbers, itertools.cycle(self.heads), strict=False):
                line += [number.ours] + ([number.printed] if printed else [])
            lines.append(line + ([note] if self.noted else []))
        return lines

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers."""
        columns = len(self.cells[0])
        return [len(self.axes) <= i < columns - self.noted for i in range(columns)]


def sweep_tables(sweep: Sweep, rows: Sequence[Row], out: Path | None = None) -> list[SweepTable]:
    """Lay out the cells of a sweep in tables, as its ``[table]`` says."""
    table = sweep.file.table
    apart = (
        table.tables
        if table.tables is not None
        else [axis for axis in sweep.axes if axis == "data"]
    )
    down = [axis for axis in sweep.axes if axis not in (*apart, *table.columns)]
    return [
        _table(sweep, " · ".join(map(labelled_value, apart, values)), members, down, out)
        for values, members in grouped(rows, apart).items()
    ]


def _table(
    sweep: Sweep, title: str, rows: Sequence[Row], down: Sequence[str], out: Path | None
) -> SweepTable:
    """Pivot rows: axes ``down`` become lines, the table's ``columns`` groups of columns."""
    across = sweep.file.table.columns
    groups = list(grouped(rows, across))
    metrics = _present(rows, columns_of(sweep, sweep.file.table))
    by_place = {(_values(row, down), _values(row, across)): row for row in rows}
    in_paper = {name for row in rows for name in row.cell.paper}
    notes: list[str] = []
    lines = []
    for labels in grouped(rows, down):
        members = [by_place.get((labels, group)) for group in groups]
        numbers = tuple(_number(sweep, row, name, out) for row in members for name in metrics)
        line_notes = [
            _note(row, notes) for row in members if row is not None and row.status != "done"
        ]
        lines.append((labels, numbers, ", ".join(dict.fromkeys(line_notes))))
    heads = tuple((HEADS[name], name in in_paper) for name in metrics)
    columns = tuple(" · ".join(map(labelled_value, across, group)) for group in groups)
    caption = tuple(_caption(sweep, rows, metrics))
    return SweepTable(
        title,
        tuple(down),
        columns,
        heads,
        _paper_head(sweep, rows),
        tuple(lines),
        tuple(notes),
        caption,
    )


def grouped(rows: Iterable[Row], axes: Sequence[str]) -> dict[tuple[str, ...], list[Row]]:
    """Return the rows by their values of some axes, in the order in which they come."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(_values(row, axes), []).append(row)
    return groups


def _values(row: Row, axes: Iterable[str]) -> tuple[str, ...]:
    return tuple(row.cell.values[axis] for axis in axes)


def labelled_value(axis: str, value: str) -> str:
    """Return an axis' value as the head of a column; a bare number gets the axis' name."""
    return f"{axis} {value}" if value.replace(".", "", 1).isdigit() else value


def columns_of(sweep: Sweep, shown: Table | Figure) -> list[str]:
    """Return the metrics that a table or a figure shows; if it names none, those of its zero- and
    few-shot runs.
    """
    if "metrics" in shown.model_fields_set:
        return list(dict.fromkeys(shown.metrics))
    few_shot = FEW_SHOT if shown is sweep.file.table else FEW_SHOT[:1]
    return [name for name in (*shown.metrics, *few_shot) if name in sweep.metrics]


def _present(rows: Sequence[Row], metrics: Sequence[str]) -> list[str]:
    """Return the metrics with a number in a cell or the paper; before any run, those that such runs
    have.
    """
    present = [
        name for name in metrics if any(name in row.mean or name in row.cell.paper for row in rows)
    ]
    if any(row.mean for row in rows) and present:
        return present
    kinds = {is_few_shot(row) for row in rows}
    of_few_shot = {*FEW_SHOT, *FEW_SHOT_DETAILS}
    expected = [
        name for name in metrics if name in {*MEASURES, *present} or (name in of_few_shot) in kinds
    ]
    return expected or list(metrics)


def is_few_shot(row: Row) -> bool:
    """Return whether a cell's runs are few-shot runs."""
    if row.mean or row.cell.experiment is None:
        return "few_shot" in row.mean
    return "few_shot" in row.cell.experiment.task.evaluator.accuracies


def half_interval(row: Row, metric: str) -> float | None:
    """Return half of the 95 % interval: over several seeds by Student's t, of one few-shot run over
    its episodes.
    """
    if metric in row.sd and row.seeds > 1:
        return float(t_critical(row.seeds - 1) * row.sd[metric] / row.seeds**0.5)
    return row.mean.get(f"{metric}_ci95")


def formatted(metric: str, value: float) -> str:
    """Return an accuracy without its unit, a number of parameters, or bytes with their unit."""
    if metric.startswith("bytes_"):
        return written_bytes(value)
    return f"{value:,.0f}" if metric in MEASURES else f"{value:.1f}"


def _number(sweep: Sweep, row: Row | None, metric: str, out: Path | None) -> Number:
    if row is None:
        return Number(metric)
    data = row.cell.values.get("data", "")
    paper_data = sweep.beside.get(data, data)
    page = f"{row.run}/report.html"
    return Number(
        metric,
        row.mean.get(metric),
        row.sd.get(metric, row.mean.get(f"{metric}_ci95") if row.seeds <= 1 else None),
        row.cell.paper.get(metric),
        half_interval(row, metric) if row.seeds > 1 else None,
        "" if paper_data == data else paper_data,
        page if out is not None and (out / page).exists() else "",
    )


def _note(row: Row, notes: list[str]) -> str:
    """Return the note of a cell that has no numbers; its sentence goes below the table, once."""
    if row.problem is None:
        return row.status
    if row.problem not in notes:
        notes.append(row.problem)
    return f"{row.status} [{notes.index(row.problem) + 1}]"


def _paper_head(sweep: Sweep, rows: Sequence[Row]) -> str:
    """Return the head of the paper's columns, with the name of its data if they differ from
    ours.
    """
    ours = {row.cell.values.get("data", "") for row in rows}
    paper_data = {sweep.beside[data] for data in ours if data}
    return f"paper, {paper_data.pop()}" if len(paper_data) == 1 and paper_data != ours else "paper"


def _caption(sweep: Sweep, rows: Sequence[Row], metrics: Sequence[str]) -> list[str]:
    """Return sentences on the data, and on the paper's figures beside ours."""
    paper = sweep.file.paper if any(row.cell.paper for row in rows) else None
    context = {
        "data": list(
            dict.fromkeys(row.cell.values["data"] for row in rows if "data" in row.cell.values)
        ),
        "notes": sweep.notes,
        "beside": sweep.beside,
        "bytes": any(name.startswith("bytes_") for name in metrics),
        "source": None if paper is None else paper.source,
    }
    return paragraphs("sweep_table", context)
