"""The results of a sweep: one self-contained HTML page with tables and figures; the tables as
Markdown and LaTeX, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.files import write_text
from fedunseen.core.latex import escaped, tabular
from fedunseen.evaluation.measures import FEW_SHOT, FEW_SHOT_DETAILS, ZERO_SHOT
from fedunseen.federation.run_directory import RunDirectory
from fedunseen.pages.report import statistics, sweep_tables
from fedunseen.pages.report.charts import Bar, Curve, Scale, bar_chart, line_chart, value_chart
from fedunseen.pages.report.parts import paragraphs, passages, render, upper_end
from fedunseen.research.sweep import Row, Sweep
from fedunseen.research.sweep.results import cell_command
from fedunseen.research.sweep.schema import MEASURES, Figure, matches

Floats = NDArray[np.float64]
Lines = Mapping[tuple[str, ...], Sequence["Row"]]
"""The rows of each line of a chart, by the line's label."""

COLORS = ("blue", "orange", "green", "purple", "sky", "yellow", "wrong", "grey")
_ONCE = (*FEW_SHOT[1:], *FEW_SHOT_DETAILS)  # measured at the end of a run


def write_sweep_report(sweep: Sweep, rows: Sequence[Row], out: Path) -> Path:
    """Write ``results.html``, ``.md`` and ``.tex`` in the sweep's directory, and return where the
    page is.
    """
    tables = sweep_tables.sweep_tables(sweep, rows, out)
    metrics: set[str] = set().union(*(table.metrics for table in tables))
    statuses = [row.status for row in rows]
    seeds = max((row.seeds for row in rows), default=1)
    of_one_run = "few_shot" in metrics and any(
        row.seeds <= 1 and "few_shot_ci95" in row.mean for row in rows
    )
    kinds = {"zero_shot": ZERO_SHOT, "few_shot": FEW_SHOT, "travels": MEASURES}
    words = passages("sweep", {kind: bool(metrics & set(names)) for kind, names in kinds.items()})
    choices = [
        ("few-shot" if sweep_tables.is_few_shot(row) else "zero-shot", row.selection)
        for row in rows
        if row.selection
    ]
    selections = [words[f"{kind} {selection}"] for kind, selection in choices]
    context = {
        "sweep": sweep,
        "tables": tables,
        "charts": [
            chart for figure in sweep.file.figures for chart in _figure(sweep, figure, rows, out)
        ],
        "what": words["what"],
        "zero_shot": bool(metrics & set(ZERO_SHOT)),
        "few_shot": [
            (sweep_tables.HEADS[name], about) for name, about in words.items() if name in metrics
        ],
        "interval": "± half of the 95 % interval over the test episodes of the one run"
        if of_one_run
        else "",
        "selections": list(dict.fromkeys(selections)) if metrics - set(MEASURES) else [],
        "counts": [
            (statuses.count(s), s)
            for s in ("done", "failed", "refused", "not run")
            if s in statuses
        ],
        "seeds": seeds,
        "linked": {row.run: (out / row.run / "report.html").exists() for row in rows},
        "commands": [
            (row.cell.key, cell_command(sweep, row.cell), row.run, row.status) for row in rows
        ],
        "escaped": escaped,
        "tabular": tabular,
    }
    write_text(out / "results.html", render("sweep.html", context))
    write_text(out / "results.md", render("texts/sweep.md", context))
    write_text(out / "results.tex", render("texts/sweep.tex", context))
    return out / "results.html"


def _figure(sweep: Sweep, figure: Figure, rows: Sequence[Row], out: Path) -> list[dict[str, Any]]:
    """Draw a figure: for each value of the axes that it does not name, a chart for each metric."""
    fixed = [axis for axis, values in figure.only.items() if isinstance(values, str)]
    split_axes = [axis for axis in sweep.axes if axis not in (*figure.lines, *fixed, figure.x)]
    done = [row for row in rows if row.status == "done" and matches(row.cell.values, figure.only)]
    drawn = []
    for values, members in sweep_tables.grouped(done, split_axes).items():
        lines = sweep_tables.grouped(members, figure.lines)
        metrics = [  # one of the other kind of run is missing
            name
            for name in sweep_tables.columns_of(sweep, figure)
            if any(name in row.mean for row in members)
            and (figure.x != "round" or name not in _ONCE)
        ]
        titles = (figure.title, *map(sweep_tables.labelled_value, split_axes, values))
        chart = {
            "title": " · ".join(filter(None, titles)),
            "charts": [_chart(sweep, figure, lines, name, out) for name in metrics],
            "axes": " · ".join(figure.lines),
            "legend": [(" · ".join(line), _color(i)) for i, line in enumerate(lines)]
            if figure.lines
            else [],
            "caption": _caption(figure, members) if set(figure.metrics) - set(MEASURES) else "",
        }
        drawn.append(chart)
    return drawn


def _chart(sweep: Sweep, figure: Figure, lines: Lines, metric: str, out: Path) -> str:
    if figure.x == "round":
        return _by_round(lines, figure.band, metric, out)
    draw = _bars if metric in MEASURES else _over_axis
    return draw(lines, figure.x, sweep.axes[figure.x], metric)


def _color(i: int) -> str:
    return COLORS[i % len(COLORS)]


def _caption(figure: Figure, rows: Sequence[Row]) -> str:
    """Return what lines, bands, bars and dots are."""
    few_shot = [sweep_tables.is_few_shot(row) for row in rows]
    context = {
        "several": any(row.seeds > 1 for row in rows),
        "episodes": any(few_shot),
        "all_episodes": all(few_shot),
        "dots": any(row.each for row in rows),
        "pixels": [row.mean["few_shot_pixels"] for row in rows if "few_shot_pixels" in row.mean],
    }
    return " ".join(paragraphs("sweep_chart", {"x": figure.x, "band": figure.band, **context}))


def _by_round(lines: Lines, band: str, metric: str, out: Path) -> str:
    """Draw an accuracy by round."""
    curves: list[Curve] = []
    runs = {
        label: [lines for row in rows for lines in _metrics(out / row.run)]
        for label, rows in lines.items()
    }
    rounds = max(len(item) for each in runs.values() for item in each)
    for i, (label, each) in enumerate(runs.items()):
        name = " · ".join(label)
        color = _color(i)
        values = _stacked([statistics.curve(item, metric) for item in each], rounds)
        curve = Curve(np.mean(values, axis=0), name, color)
        if band == "clients":
            middle, spread = (
                np.mean(_stacked(part, rounds), axis=0)
                for part in zip(*(_clients(item, metric) for item in each), strict=True)
            )
            curves.append(
                replace(
                    curve, low=np.maximum(middle - spread, 0), high=np.minimum(middle + spread, 100)
                )
            )
            if np.isfinite(middle).any() and not np.allclose(middle, curve.y, equal_nan=True):
                curves.append(Curve(middle, f"{name} clients", color, dashed=True))
        elif band == "seeds" and len(values) > 1:
            sd = np.std(values, axis=0, ddof=1)
            curves.append(
                replace(curve, low=np.maximum(curve.y - sd, 0), high=np.minimum(curve.y + sd, 100))
            )
        else:
            curves.append(curve)
    x = np.arange(1, rounds + 1, dtype=np.float64)
    measured = np.isfinite(np.stack([curve.y for curve in curves])).any(axis=0)  # in some run
    if measured.any():
        x = x[measured]
        curves = [curve.at(np.asarray(measured)) for curve in curves]
    return line_chart(curves, sweep_tables.CHART_TITLES[metric], x, Scale(upper_end(curves), "%"))


def _metrics(run: Path) -> list[list[dict[str, Any]]]:
    """Return the metrics of each seed of a run, round by round."""
    return [RunDirectory(folder).metrics() for folder in sorted(run.glob("seed-*")) or [run]]


def _clients(lines: Sequence[Mapping[str, Any]], metric: str) -> tuple[Floats, Floats]:
    """Return (T,) mean and standard deviation over each round's participants of their own models'
    accuracy.
    """
    accuracies = [line.get("clients", {}).get(metric) or [np.nan] for line in lines]
    mean, deviation = (np.array([f(values) for values in accuracies]) for f in (np.mean, np.std))
    return statistics.bridged(mean), statistics.bridged(deviation)


def _stacked(curves: Sequence[Floats], length: int) -> Floats:
    """Stack curves that may differ in length; NaN where one has ended."""
    return np.stack(
        [np.pad(curve, (0, length - len(curve)), constant_values=np.nan) for curve in curves]
    )


def _over_axis(lines: Lines, axis: str, values: Sequence[str], metric: str) -> str:
    """Draw an accuracy over the values of an axis, which stand at equal distances."""
    by_value = [
        {row.cell.values[axis]: row for row in rows if metric in row.mean}
        for rows in lines.values()
    ]
    used = [value for value in values if any(value in rows for rows in by_value)]
    curves = []
    each = []
    for i, (label, row_of) in enumerate(zip(lines, by_value, strict=True)):
        rows = [row_of.get(value) for value in used]
        y = np.array([np.nan if row is None else row.mean[metric] for row in rows])
        halves = [None if row is None else sweep_tables.half_interval(row, metric) for row in rows]
        half = np.array([np.nan if value is None else value for value in halves])
        curves.append(
            Curve(
                y, " · ".join(label), _color(i), np.maximum(y - half, 0), np.minimum(y + half, 100)
            )
        )
        each.append([() if row is None else row.each.get(metric, ()) for row in rows])
    return value_chart(curves, sweep_tables.CHART_TITLES[metric], used, axis, each)


def _bars(lines: Lines, axis: str, values: Sequence[str], metric: str) -> str:
    """Draw what travels as bars, in groups by the values of an axis (FZSL, Fig. 7), where runs say
    it.
    """
    by_value = [
        {row.cell.values[axis]: row.mean[metric] for row in rows if metric in row.mean}
        for rows in lines.values()
    ]
    top = (
        max((number for number_of in by_value for number in number_of.values()), default=0.0) * 1.12
        or 1.0
    )
    units = (
        (1e9, "GB", "billions"),
        (1e6, "MB", "millions"),
        (1e3, "kB", "thousands"),
        (0.0, "", ""),
    )
    least, of_bytes, of_numbers = next(unit for unit in units if top > unit[0])
    unit = of_bytes if metric.startswith("bytes_") else of_numbers
    groups = {
        value: [
            Bar(number_of[value] / top, f"{number_of[value] / (least or 1.0):.3g}",
                f"{' '.join([*label, value])}: {sweep_tables.formatted(metric, number_of[value])}", _color(i))
            if value in number_of else None
            for i, (label, number_of) in enumerate(zip(lines, by_value, strict=True))
        ]
        for value in values if any(value in number_of for number_of in by_value)
    }  # fmt: skip
    title = sweep_tables.CHART_TITLES[metric]
    return bar_chart(groups, title + (f", in {unit}" if unit else ""), f"{title} over {axis}")
