"""The leaderboard of a bench: a page that sorts and filters, and the same rows as CSV, Markdown and
LaTeX.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedunseen.core.files import write_text
from fedunseen.core.latex import tabular
from fedunseen.data.io.csv_io import write_table
from fedunseen.pages.report.parts import render
from fedunseen.pages.report.svg import Frame, circle, path, svg, text
from fedunseen.pages.report.sweep_page import COLORS
from fedunseen.research.papers.bench import Interval, Line
from fedunseen.research.sweep import Sweep
from fedunseen.research.sweep.schema import Bench

ACCURACIES = {"zsl": "ZSL", "gzsl_harmonic": "H"}
COSTS = ("seconds", "bytes", "rounds")
EDGE = "†"
"""Marks a chosen value at the edge of what was tried: a better one may lie beyond."""


def write_bench_report(sweep: Sweep, bench: Bench, lines: Sequence[Line], out: Path) -> Path:
    """Write ``leaderboard.html``, ``.csv``, ``.md`` and ``.tex`` in a bench's directory; return
    where the page is.
    """
    heads = [*lines[0].values, *ACCURACIES.values()]
    heads += [f"{short} − {bench.reference}" for short in ACCURACIES.values()] + [*COSTS]
    heads += ["seeds", "chosen on validation classes", "chosen with test classes in view"]
    cells = [_cells(line) for line in lines]
    numeric = [len(lines[0].values) <= i < len(heads) - 2 for i in range(len(heads))]
    methods = dict.fromkeys(line.values["method"] for line in lines)
    colors = dict(zip(methods, itertools.cycle(COLORS), strict=False))
    context = {
        "sweep": sweep,
        "bench": bench,
        "heads": heads,
        "numeric": numeric,
        "rows": list(zip(lines, cells, strict=True)),
        "cells": cells,
        "charts": _charts(lines, colors),
        "colors": colors,
        "open": sum(line.status != "done" for line in lines),
    }
    write_text(out / "leaderboard.html", render("bench.html", context))
    write_text(out / "leaderboard.md", render("texts/bench.md", context))
    write_text(
        out / "leaderboard.tex",
        tabular(heads[:-2], [row[:-2] for row in cells], numeric[:-2]),
    )
    _write_csv(lines, out / "leaderboard.csv")
    return out / "leaderboard.html"


def _cells(line: Line) -> list[str]:
    """Return a row as texts; one without numbers has its status in place of the first, and why in
    place of settings.
    """
    cells = list(line.values.values())
    if line.numbers is None:
        return [
            *cells,
            line.status,
            *[""] * (2 * len(ACCURACIES) + len(COSTS)),
            line.problem,
            line.seen_test,
        ]
    cells += [_written(line.numbers[key]) for key in ACCURACIES]
    cells += [_written(line.against[key], "+") if line.against else "" for key in ACCURACIES]
    cost = line.cost or {}
    cells += [
        format(cost[key], ".3g" if key == "seconds" else ".0f") if key in cost else ""
        for key in COSTS
    ]
    settings = ", ".join(
        f"{key.rpartition('.')[2]} {_short(value)}{EDGE if key in line.edges else ''}"
        for key, value in (line.settings or {}).items()
    )
    return [*cells, str(line.seeds), settings, line.seen_test]


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _written(number: Interval, sign: str = "") -> str:
    return f"{number.value:{sign}.1f}".replace("-", "\N{MINUS SIGN}") + (
        "" if number.half is None else f" ± {number.half:.1f}"
    )


def _write_csv(lines: Sequence[Line], out: Path) -> None:
    """Write every number with all its digits."""
    rows = []
    for line in lines:
        row: dict[str, object] = {**line.values, "status": line.status, "seeds": line.seeds or ""}
        for numbers, name in ((line.numbers, "{}"), (line.against, "{}_difference")):
            for key in ACCURACIES:
                number = (numbers or {}).get(key)
                row[name.format(key)] = None if number is None else number.value
                row[f"{name.format(key)}_half"] = None if number is None else number.half
        row |= {key: (line.cost or {}).get(key) for key in COSTS}
        row["settings"] = " ".join(f"{key}={value}" for key, value in (line.settings or {}).items())
        row["at_an_edge"] = " ".join(line.edges)
        rows.append(row | {"chosen_with_test_in_view": line.seen_test, "problem": line.problem})
    write_table(out, [list(rows[0]), *(row.values() for row in rows)])


def _charts(lines: Sequence[Line], colors: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Draw H without examples against bytes and against seconds, for each data set and
    partition.
    """
    groups: dict[str, list[Line]] = {}
    for line in lines:
        if line.numbers is not None and line.values["condition"] == "0":
            rest = [
                value for axis, value in line.values.items() if axis not in ("method", "condition")
            ]
            groups.setdefault(" · ".join(rest), []).append(line)
    costs = ("bytes", "bytes a client"), ("seconds", "seconds")
    return [
        (title, [_scatter(members, colors, *cost) for cost in costs])
        for title, members in groups.items()
    ]


def _scatter(lines: Sequence[Line], colors: Mapping[str, str], key: str, label: str) -> str:
    """Draw H over a cost, on a logarithmic axis."""
    points = []
    for line in lines:
        if line.numbers is not None and line.cost is not None and line.cost.get(key, 0) > 0:
            points.append(
                (math.log10(line.cost[key]), line.numbers["gzsl_harmonic"], line.values["method"])
            )
    low = math.floor(min((x for x, _, _ in points), default=0))
    high = max(math.ceil(max((x for x, _, _ in points), default=1)), low + 1)
    top = max((h.value + (h.half or 0) for _, h, _ in points), default=1.0) * 1.05
    frame = Frame((float(low), float(high)), (0.0, top))
    marks = frame.axes(f"H against {label}", f"{label}, training", (), " %")
    marks += [
        text(frame.px(x), frame.base + 16, f"1e{x}", "tick mid") for x in range(low, high + 1)
    ]
    for x, h, method in points:
        color = colors[method]
        words = f"{method}: H {_written(h)} %, {10**x:.3g} {label}"
        if h.half is not None:
            ends = frame.py(max(h.value - h.half, 0)), frame.py(min(h.value + h.half, top))
            marks.append(
                path(f"M{frame.px(x):g} {ends[0]:g}V{ends[1]:g}", "line", stroke=f"var(--{color})")
            )
        marks.append(circle(frame.px(x), frame.py(h.value), 5, color, words))
    return svg(
        marks, frame.width, frame.height, f"H against {label}: {', '.join(m for _, _, m in points)}"
    )
