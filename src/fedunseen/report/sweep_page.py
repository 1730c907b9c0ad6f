"""The results of a sweep as tables and curves, in one self-contained HTML page; the tables as Markdown, too."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.files import write_text
from fedunseen.core.latex import escaped, tabular
from fedunseen.evaluation.measures import FEW_SHOT, FEW_SHOT_DETAILS, TITLES, ZERO_SHOT
from fedunseen.evaluation.measures import SHORT as NAMED
from fedunseen.experiment.sweep.schema import MEASURES
from fedunseen.experiment.traits import task_of
from fedunseen.metrics import student
from fedunseen.report import figures, statistics
from fedunseen.report.communication_cost import written_bytes
from fedunseen.report.figures import Curve
from fedunseen.report.parts import render, upper_end

if TYPE_CHECKING:
    from fedunseen.experiment.sweep import Row, Sweep
    from fedunseen.experiment.sweep.schema import Figure, Table

__all__ = ["SweepTable", "sweep_tables", "write_sweep_report"]

Floats = NDArray[np.float64]

SHORT = {
    **NAMED,
    "backdoor": "backdoor",
    "backdoor_attacked": "backdoor when attacked",
    "backdoor_highest": "backdoor at most",
    "parameters_shared": "parameters that travel",
    "bytes_down": "down",
    "bytes_up": "up",
}
MEASURED = {
    **TITLES,
    "backdoor": "Backdoor accuracy",
    "backdoor_attacked": "Backdoor accuracy when attacked",
    "backdoor_highest": "Backdoor accuracy at most",
    "parameters_shared": "Parameters that travel",
    "bytes_down": "Bytes down, per client and round",
    "bytes_up": "Bytes up, per client and round",
}
WORDS = {
    "few_shot": "classes that nobody had, after a few examples of each",
    "few_shot_pixels": "the nearest of those examples, with nothing learnt",
    "few_shot_random": "their nearest mean in the features before training",
    "few_shot_validation": "episodes of validation classes, by which nothing but choices are made",
    "few_shot_base": "episodes of new samples of the classes that were trained on",
    "few_shot_episode_sd": "standard deviation of one test episode's accuracy",
    "few_shot_episode_max": "the best of the test episodes",
    "mi_share": "the mutual information times its weight, as a share of the loss over all rounds",
}
COLOURS = ("blue", "orange", "green", "purple", "sky", "yellow", "wrong", "grey")
SELECTIONS = {
    "validation": "Round and calibration were chosen on validation classes; no test sample took part in the choice.",
    "best-on-test": "Not an honest choice: each run reports the round and the calibration that score best on the test "
    "set itself, as many papers do.",
    "last": "The last round, whatever it is; nothing was chosen.",
}
OF_EPISODES = {
    "validation": "The round was chosen on episodes of validation classes; no test sample took part in the choice.",
    "best-on-test": "Not an honest choice: each run reports the round that scores best on the first test episodes, as "
    "many papers do.",
    "last": SELECTIONS["last"],
}


class Number(NamedTuple):
    """A number of a cell, and the paper's.

    Attributes:
        metric: which: an accuracy in percent, or what travels (parameters, or bytes of a client in a round).
        mean: ours; None if there is none.
        sd: its deviation over the seeds; of a few-shot run of one seed half of the 95 % interval over its episodes.
        paper: the paper's.
        half: half of the 95 % interval of the mean over several seeds (Student's t).
        other: the paper's data, if they differ from ours.
        link: where the run's page is, if there is one.
    """

    metric: str
    mean: float | None
    sd: float | None
    paper: float | None
    half: float | None = None
    other: str = ""
    link: str = ""

    @property
    def interval(self) -> str:
        """Write the 95 % interval over the seeds, within what a percentage can be."""
        if self.mean is None or self.half is None:
            return ""
        return f"{max(self.mean - self.half, 0):.1f} to {min(self.mean + self.half, 100):.1f}"

    @property
    def ours(self) -> str:
        """Write ours for people."""
        return self.value + ("" if self.sd is None else f" ± {self.sd:.1f}")

    @property
    def value(self) -> str:
        """Write ours without its deviation."""
        return "–" if self.mean is None else _written(self.metric, self.mean)

    @property
    def printed(self) -> str:
        """Write the paper's for people."""
        if self.paper is None:
            return ""
        return f"{self.paper:.1f}" + (f" ({self.other})" if self.other else "")


def _written(metric: str, value: float) -> str:
    """Write an accuracy without its unit, a number of parameters, or bytes with their unit."""
    if metric.startswith("bytes_"):
        return written_bytes(value)
    return f"{value:,.0f}" if metric in MEASURES else f"{value:.1f}"


def _few_shot(row: Row) -> bool:
    """Say whether a cell's runs are few-shot runs."""
    if row.mean or row.cell.experiment is None:
        return "few_shot" in row.mean
    return "few_shot" in task_of(row.cell.experiment).accuracies


def _spread(row: Row, metric: str) -> float | None:
    """Return the number after ±: the deviation over the seeds, or half of the interval of a single few-shot run."""
    return row.sd.get(metric, row.mean.get(f"{metric}_ci95") if row.seeds <= 1 else None)


def _half(row: Row, metric: str) -> float | None:
    """Return half of the 95 % interval: over several seeds by Student's t, of one few-shot run over its episodes."""
    if metric in row.sd and row.seeds > 1:
        return float(student(row.seeds - 1) * row.sd[metric] / row.seeds**0.5)
    return row.mean.get(f"{metric}_ci95")


def _asked(sweep: Sweep, shown: Table | Figure) -> list[str]:
    """Return the metrics that a table or a figure shows; if it names none, those of its zero- and few-shot runs."""
    more = [] if "metrics" in shown.model_fields_set or "few_shot" not in sweep.metrics else list(FEW_SHOT)
    if shown is not sweep.file.table:
        more = more[:1]
    return list(dict.fromkeys([*shown.metrics, *more]))


def _there(rows: Sequence[Row], metrics: Sequence[str]) -> list[str]:
    """Return the metrics of which a cell or the paper has a number; before any run, those that such runs have."""
    found = [name for name in metrics if any(name in row.mean or name in row.cell.paper for row in rows)]
    if any(row.mean for row in rows) and found:
        return found
    kinds = {_few_shot(row) for row in rows}
    of_few_shot = (*FEW_SHOT, *FEW_SHOT_DETAILS)
    return [name for name in metrics if name in MEASURES or name in found or (name in of_few_shot) in kinds] or [
        *metrics
    ]


@dataclass(frozen=True)
class SweepTable:
    """One table.

    Attributes:
        title: the values that all its cells share.
        axes: what the first columns hold.
        groups: the names of the groups of columns beside each other; one empty name if there is but one.
        heads: for each metric its short name, and whether the paper's figures stand beside it.
        paper: the head of the paper's columns.
        lines: for each row the values of ``axes``, its numbers (groups x metrics), and its note.
        notes: the sentences to which the notes refer.
        caption: sentences that explain the table.
    """

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
        """Say whether any row has a note."""
        return any(note for _, _, note in self.lines)


def write_sweep_report(sweep: Sweep, rows: Sequence[Row], out: Path) -> Path:
    """Write ``results.html``, ``.md`` and ``.tex`` in the sweep's directory, and return where the page is."""
    from fedunseen.experiment.sweep.results import cell_command

    tables = sweep_tables(sweep, rows, out)
    context = {
        "sweep": sweep,
        "tables": tables,
        "charts": [chart for figure in sweep.file.figures for chart in _charts(sweep, figure, rows, out)],
        "what": _what(tables),
        "zero_shot": bool(_metrics(tables) & set(ZERO_SHOT)),
        "few_shot": [(SHORT[name], WORDS[name]) for name in WORDS if name in _metrics(tables)],
        "interval": _interval(tables, rows),
        "selections": _selections(rows) if _shows_accuracies(tables) else [],
        "counts": _counts(rows),
        "seeds": max((row.seeds for row in rows), default=1),
        "linked": {row.run: (out / row.run / "report.html").exists() for row in rows},
        "commands": [(row.cell.key, cell_command(sweep, row.cell), row.run, row.status) for row in rows],
    }
    write_text(out / "results.html", render("sweep.html", context))
    write_text(out / "results.md", _markdown(sweep, tables, rows))
    write_text(out / "results.tex", _latex(sweep, tables, rows))
    return out / "results.html"


def sweep_tables(sweep: Sweep, rows: Sequence[Row], out: Path | None = None) -> list[SweepTable]:
    """Lay out the cells of a sweep in tables, as its ``[table]`` says.

    Args:
        sweep: the sweep.
        rows: what became of its cells.
        out: its directory, whose runs' pages are linked.
    """
    shown = sweep.file.table
    apart = shown.tables if shown.tables is not None else [axis for axis in sweep.axes if axis == "data"]
    across = shown.columns
    down = [axis for axis in sweep.axes if axis not in (*apart, *across)]
    found: list[SweepTable] = []
    for title, mine in _grouped(rows, apart).items():
        beside = list(_grouped(mine, across))
        metrics = _there(mine, _asked(sweep, shown))
        by_place = {(_at(row, down), _at(row, across)): row for row in mine}
        known = {name for row in mine for name in row.cell.paper}
        notes: list[str] = []
        lines = []
        for labels in _grouped(mine, down):
            numbers: list[Number] = []
            said: list[str] = []
            for group in beside:
                row = by_place.get((labels, group))
                numbers += [_number(sweep, row, name, out) for name in metrics]
                if row is not None and row.status != "done":
                    said.append(_note(row, notes))
            lines.append((labels, tuple(numbers), ", ".join(dict.fromkeys(said))))
        found.append(
            SweepTable(
                " · ".join(map(_named, apart, title)),
                tuple(down),
                tuple(" · ".join(map(_named, across, group)) for group in beside),
                tuple((SHORT[name], name in known) for name in metrics),
                _paper_head(sweep, mine),
                tuple(lines),
                tuple(notes),
                _caption(sweep, mine, metrics),
            )
        )
    return found


def _at(row: Row, axes: Iterable[str]) -> tuple[str, ...]:
    return tuple(row.cell.values[axis] for axis in axes)


def _grouped(rows: Iterable[Row], axes: Sequence[str]) -> dict[tuple[str, ...], list[Row]]:
    """Return the rows by their values of some axes, in the order in which they come."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(_at(row, axes), []).append(row)
    return found


def _named(axis: str, value: str) -> str:
    """Write an axis' value as the head of a column; a bare number gets the axis' name.

    Example:
        >>> [_named("shots", "5"), _named("alpha", "0.1"), _named("partition", "IID")]
        ['shots 5', 'alpha 0.1', 'IID']
    """
    return f"{axis} {value}" if value.replace(".", "", 1).isdigit() else value


def _number(sweep: Sweep, row: Row | None, name: str, out: Path | None) -> Number:
    if row is None:
        return Number(name, None, None, None)
    data = row.cell.values.get("data", "")
    other = sweep.beside.get(data, data)
    page = f"{row.run}/report.html"
    return Number(
        name,
        row.mean.get(name),
        _spread(row, name),
        row.cell.paper.get(name),
        _half(row, name) if row.seeds > 1 else None,
        "" if other == data else other,
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
    """Return the head of the paper's columns, with the name of its data if they differ from ours."""
    others = {sweep.beside[row.cell.values["data"]] for row in rows if "data" in row.cell.values}
    own = {row.cell.values.get("data", "") for row in rows}
    return f"paper, {others.pop()}" if len(others) == 1 and others != own else "paper"


def _caption(sweep: Sweep, rows: Sequence[Row], metrics: Sequence[str]) -> tuple[str, ...]:
    """Return sentences on the data, and on the paper's figures beside ours."""
    said: list[str] = []
    data = list(dict.fromkeys(row.cell.values["data"] for row in rows if "data" in row.cell.values))
    said += [f"{one}: {sweep.notes[one]}." for one in data if one in sweep.notes]
    if any(name.startswith("bytes_") for name in metrics):
        said.append("Down: bytes that the server sends to a client in a round; up: bytes that the client sends back.")
    if sweep.file.paper is not None and any(row.cell.paper for row in rows):
        said.append(f"“paper” is what {sweep.file.paper.source} prints.")
        for one in data:
            other = sweep.beside[one]
            if other != one:
                said.append(
                    f"It is about {other}, not about {one}: read its figures for their order; they cannot be "
                    "compared with ours."
                )
    return tuple(said)


def _metrics(tables: Sequence[SweepTable]) -> set[str]:
    """Return the metrics that tables show."""
    return {number.metric for table in tables for _, numbers, _ in table.lines for number in numbers}


def _shows_accuracies(tables: Sequence[SweepTable]) -> bool:
    return bool(_metrics(tables) - set(MEASURES))


def _what(tables: Sequence[SweepTable]) -> str:
    """Say what the numbers are."""
    shown = _metrics(tables)
    said = ["per-class top-1 accuracies in percent"] if shown & set(ZERO_SHOT) else []
    said += ["few-shot accuracies over test episodes in percent"] if shown & set(FEW_SHOT) else []
    said += ["parameters and bytes that travel"] if shown & set(MEASURES) else []
    words = ", ".join(said)
    return words[:1].upper() + words[1:]


def _interval(tables: Sequence[SweepTable], rows: Sequence[Row]) -> str:
    """Say what the number after ± is where cells have one seed."""
    alone = "few_shot" in _metrics(tables) and any(row.seeds <= 1 and "few_shot_ci95" in row.mean for row in rows)
    return "± half of the 95 % interval over the test episodes of the one run" if alone else ""


def _selections(rows: Iterable[Row]) -> list[str]:
    """Say how the rounds of these runs were chosen."""
    said = [(OF_EPISODES if _few_shot(row) else SELECTIONS)[row.selection] for row in rows if row.selection]
    return list(dict.fromkeys(said))


def _counts(rows: Sequence[Row]) -> list[tuple[int, str]]:
    """Return how many cells are done, failed, refused, not run."""
    statuses = [row.status for row in rows]
    return [(statuses.count(s), s) for s in ("done", "failed", "refused", "not run") if s in statuses]


def _words(tables: Sequence[SweepTable], rows: Sequence[Row]) -> str:
    """Say what the numbers are, their spread, and how rounds were chosen."""
    seeds = max((row.seeds for row in rows), default=1)
    interval = _interval(tables, rows)
    spread = f"; mean ± standard deviation over {seeds} seeds" if seeds > 1 else f"; {interval}" if interval else ""
    return " ".join([f"{_what(tables)}{spread}.", *(_selections(rows) if _shows_accuracies(tables) else [])])


def _grid(table: SweepTable) -> tuple[list[str], list[list[str]]]:
    """Return a table's heads and its lines of cells."""
    heads = list(table.axes)
    for group in table.groups:
        for short, known in table.heads:
            heads += [f"{group} {short}".strip()] + ([table.paper] if known else [])
    heads += [""] if table.noted else []
    lines = []
    for labels, numbers, note in table.lines:
        line = list(labels)
        for number, (_, known) in zip(numbers, itertools.cycle(table.heads), strict=False):
            line += [number.ours] + ([number.printed] if known else [])
        lines.append(line + ([note] if table.noted else []))
    return heads, lines


def _latex(sweep: Sweep, tables: Sequence[SweepTable], rows: Sequence[Row]) -> str:
    """Write the tables as LaTeX, each in a ``table`` of its own."""
    text = [f"% {sweep.file.title}: {sweep.command}\n% needs \\usepackage{{booktabs}}\n"]
    for table in tables:
        heads, lines = _grid(table)
        last = len(heads) - table.noted
        numbers = [len(table.axes) <= i < last for i in range(len(heads))]
        said = [(table.title and f"{sweep.file.title}: {table.title}.") or f"{sweep.file.title}.", _words(tables, rows)]
        said += [*table.caption, *(f"{i}: {note}" for i, note in enumerate(table.notes, 1))]
        caption = escaped(" ".join(said))
        inside = f"\\centering\n\\caption{{{caption}}}\n{tabular(heads, lines, numbers)}"
        text.append(f"\\begin{{table}}\n{inside}\\end{{table}}\n")
    return "\n".join(text)


def _markdown(sweep: Sweep, tables: Sequence[SweepTable], rows: Sequence[Row]) -> str:
    """Write the tables as Markdown."""
    text = [f"# {sweep.file.title}", _words(tables, rows), f"    {sweep.command}"]
    for table in tables:
        if table.title:
            text.append(f"## {table.title}")
        heads, cells = _grid(table)
        ruler = ["---"] * len(table.axes) + ["--:"] * (len(heads) - len(table.axes) - table.noted)
        lines = [[*map(_cell, heads)], [*ruler, *(["---"] if table.noted else [])]]
        lines += [[*map(_cell, line)] for line in cells]
        text.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        text += ["\n".join(f"{i}. {note}" for i, note in enumerate(table.notes, 1))] if table.notes else []
        text.append(" ".join(table.caption))
    return "\n\n".join(part for part in text if part) + "\n"


def _cell(words: str) -> str:
    return words.replace("|", "\\|")


def _charts(sweep: Sweep, figure: Figure, rows: Sequence[Row], out: Path) -> list[dict[str, Any]]:
    """Draw a figure: for each value of the axes that it does not name, a chart for each metric."""
    from fedunseen.experiment.sweep.schema import matches

    drawn = [row for row in rows if matches(row.cell.values, figure.only)]
    fixed = [axis for axis, values in figure.only.items() if isinstance(values, str)]
    others = [axis for axis in sweep.axes if axis not in (*figure.lines, *fixed, figure.x)]
    found = []
    for title, mine in _grouped(drawn, others).items():
        done = [row for row in mine if row.status == "done"]
        if not done:
            continue
        lines = _grouped(done, figure.lines)
        charts = []
        for metric in _asked(sweep, figure):
            if not any(metric in row.mean for row in done):
                continue  # of the other kind of run, or runs of an older version, which do not say what travels
            if figure.x == "round" and metric in (*FEW_SHOT[1:], *FEW_SHOT_DETAILS):
                continue  # measured once, in the end
            if figure.x == "round":
                charts.append(_rounds(lines, figure, metric, out))
            elif metric in MEASURES:
                charts.append(_bars(lines, figure.x, sweep.axes[figure.x], metric))
            else:
                charts.append(_over_axis(lines, figure.x, sweep.axes[figure.x], metric))
        legend = [(" · ".join(line), _colour(i)) for i, line in enumerate(lines)] if figure.lines else []
        found.append(
            {
                "title": " · ".join(part for part in (figure.title, *map(_named, others, title)) if part),
                "charts": charts,
                "axes": " · ".join(figure.lines),
                "legend": legend,
                "caption": _band_words(figure, done) if set(figure.metrics) - set(MEASURES) else "",
            }
        )
    return found


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _band_words(figure: Figure, rows: Sequence[Row]) -> str:
    several, episodes = any(row.seeds > 1 for row in rows), any(_few_shot(row) for row in rows)
    said = ["Mean over the seeds" if several else "One seed"]
    if figure.x != "round":
        bars = (
            "the 95 % interval over the seeds" if several else "the 95 % interval over the episodes" if episodes else ""
        )
        said[0] += f"; bars: {bars}" if bars else ""
        said[0] += "; small dots: the single seeds." if any(row.each for row in rows) else "."
    elif figure.band == "clients" and not all(_few_shot(row) for row in rows):
        said[0] += "."
        said.append(
            "Solid: the model after merging. Dashed, and shaded with one standard deviation: the clients' own models "
            "before merging."
        )
    else:
        said[0] += f"{'; shaded: one standard deviation' if several and figure.band == 'seeds' else ''}."
    if episodes and figure.x == "round":
        said.append(
            "After a round few-shot accuracy is measured on episodes of validation classes where the round is chosen "
            "on them, else on the first test episodes."
        )
    pixels = [row.mean["few_shot_pixels"] for row in rows if "few_shot_pixels" in row.mean]
    if pixels:
        low, high = f"{min(pixels):.1f}", f"{max(pixels):.1f}"
        between = low if low == high else f"{low} to {high}"
        said.append(f"On test episodes the nearest example in raw samples, with nothing learnt, reaches {between} %.")
    return " ".join(said)


def _rounds(lines: Mapping[tuple[str, ...], Sequence[Row]], figure: Figure, metric: str, out: Path) -> str:
    """Draw an accuracy by round."""
    from fedunseen.federation.run_directory import RunDirectory

    curves: list[Curve] = []
    for i, (label, rows) in enumerate(lines.items()):
        name, colour = " · ".join(label), _colour(i)
        runs = [out / row.run for row in rows]
        folders = [seed for run in runs for seed in (sorted(run.glob("seed-*")) or [run])]
        told = [RunDirectory(folder).metrics() for folder in folders]
        each = _stacked([statistics.curve(one, metric) for one in told])
        mean = np.mean(each, axis=0)
        if figure.band == "clients":
            middle, spread = (
                np.mean(_stacked(values), axis=0)
                for values in zip(*(_clients(one, metric) for one in told), strict=True)
            )
            curves.append(Curve(mean, name, colour, np.maximum(middle - spread, 0), np.minimum(middle + spread, 100)))
            if np.isfinite(middle).any() and not np.allclose(middle, mean, equal_nan=True):
                curves.append(Curve(middle, f"{name} clients", colour, dashed=True))
        elif figure.band == "seeds" and len(each) > 1:
            sd = np.std(each, axis=0, ddof=1)
            curves.append(Curve(mean, name, colour, np.maximum(mean - sd, 0), np.minimum(mean + sd, 100)))
        else:
            curves.append(Curve(mean, name, colour))
    x = np.arange(1, max(len(curve.y) for curve in curves) + 1, dtype=np.float64)
    drawn = [_padded(curve, len(x)) for curve in curves]
    known = np.isfinite(np.stack([curve.y for curve in drawn])).any(axis=0)  # rounds that some run has measured
    if known.any():
        x, drawn = x[known], [_only(curve, np.asarray(known)) for curve in drawn]
    return figures.line_chart(drawn, MEASURED[metric], x, upper_end(curves), unit="%")


def _clients(lines: Sequence[Mapping[str, Any]], metric: str) -> tuple[Floats, Floats]:
    """Return (T,) mean and standard deviation over each round's participants of their own models' accuracy."""
    own = [line.get("clients", {}).get(metric) or [np.nan] for line in lines]
    mean, deviation = (np.array([f(values) for values in own]) for f in (np.mean, np.std))
    return statistics.bridged(mean), statistics.bridged(deviation)


def _stacked(curves: Sequence[Floats]) -> Floats:
    """Stack curves that may differ in length; NaN where one has ended."""
    length = max(map(len, curves))
    return np.stack([np.pad(one, (0, length - len(one)), constant_values=np.nan) for one in curves])


def _only(curve: Curve, known: NDArray[np.bool_]) -> Curve:
    """Return a curve at some of its places."""
    low, high = (None if values is None else values[known] for values in (curve.low, curve.high))
    return Curve(curve.y[known], curve.label, curve.colour, low, high, curve.dashed)


def _padded(curve: Curve, length: int) -> Curve:
    def longer(values: Floats | None) -> Floats | None:
        return None if values is None else np.pad(values, (0, length - len(values)), constant_values=np.nan)

    y = np.pad(curve.y, (0, length - len(curve.y)), constant_values=np.nan)
    return Curve(y, curve.label, curve.colour, longer(curve.low), longer(curve.high), curve.dashed)


def _over_axis(lines: Mapping[tuple[str, ...], Sequence[Row]], axis: str, values: Sequence[str], metric: str) -> str:
    """Draw an accuracy over the values of an axis, which stand at equal distances."""
    known = [{row.cell.values[axis]: row for row in rows if metric in row.mean} for rows in lines.values()]
    used = [value for value in values if any(value in rows for rows in known)]
    curves, each = [], []
    for i, (label, rows) in enumerate(zip(lines, known, strict=True)):
        y = np.array([rows[value].mean[metric] if value in rows else np.nan for value in used])
        halves = [_half(rows[value], metric) if value in rows else None for value in used]
        half = np.array([np.nan if one is None else one for one in halves])
        low, high = np.maximum(y - half, 0), np.minimum(y + half, 100)
        curves.append(Curve(y, " · ".join(label), _colour(i), low, high))
        each.append([rows[value].each.get(metric, ()) if value in rows else () for value in used])
    return figures.value_chart(curves, MEASURED[metric], used, axis, each=each, legend=False)


def _bars(lines: Mapping[tuple[str, ...], Sequence[Row]], axis: str, values: Sequence[str], metric: str) -> str:
    """Draw what travels as bars, in groups by the values of an axis (FZSL, Fig. 7), where runs say it."""
    known = [[row for row in rows if metric in row.mean] for rows in lines.values()]
    used = [value for value in values if any(row.cell.values[axis] == value for rows in known for row in rows)]
    top = max((row.mean[metric] for rows in known for row in rows), default=0.0) * 1.12 or 1.0
    units = (1e9, "GB", "billions"), (1e6, "MB", "millions"), (1e3, "kB", "thousands"), (0.0, "", "")
    least, of_bytes, of_numbers = next(one for one in units if top > one[0])
    scale, unit = least or 1.0, of_bytes if metric.startswith("bytes_") else of_numbers
    # A name a bar, from the left: these names are longer than what fits below an upright bar.
    group, height = 16 * len(known) + 12, 14
    left = 16 + 6.6 * max((len(value) for value in used), default=0)
    tall = 34 + group * len(used)
    out = [figures.text(0, 14, MEASURED[metric] + (f", in {unit}" if unit else ""), "title")]
    wide = 420 - left - 52
    for place, value in enumerate(used):
        y = 28 + place * group
        out.append(figures.text(left - 8, y + (group - 12) / 2 + 4, value, "tick end"))
        for i, (label, rows) in enumerate(zip(lines, known, strict=True)):
            for row in rows:
                if row.cell.values[axis] != value:
                    continue
                x, number = wide * row.mean[metric] / top, row.mean[metric]
                said = " ".join([*label, value]) + f": {_written(metric, number)}"
                out.append(
                    f'<rect class="filled" fill="var(--{_colour(i)})" x="{left:g}" y="{y + 16 * i:g}" '
                    f'width="{x:.2f}" height="{height}"><title>{escape(said)}</title></rect>'
                )
                out.append(figures.text(left + x + 6, y + 16 * i + 11, f"{number / scale:.3g}", "tick"))
    return figures.svg(out, 420, tall, f"{MEASURED[metric]} over {axis}")
