"""The results of a sweep as tables and curves in one self-contained HTML page; the tables as Markdown and LaTeX, too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedunseen.core.files import write_text
from fedunseen.core.latex import escaped, tabular
from fedunseen.evaluation.measures import FEW_SHOT, ZERO_SHOT
from fedunseen.experiment.sweep.schema import MEASURES
from fedunseen.report.parts import passages, render
from fedunseen.report.sweep_charts import sweep_charts
from fedunseen.report.sweep_tables import HEADS, is_few_shot, sweep_tables

if TYPE_CHECKING:
    from fedunseen.experiment.sweep import Row, Sweep


def write_sweep_report(sweep: Sweep, rows: Sequence[Row], out: Path) -> Path:
    """Write ``results.html``, ``.md`` and ``.tex`` in the sweep's directory, and return where the page is."""
    from fedunseen.experiment.sweep.results import cell_command

    tables = sweep_tables(sweep, rows, out)
    metrics: set[str] = set().union(*(table.metrics for table in tables))
    statuses, seeds = [row.status for row in rows], max((row.seeds for row in rows), default=1)
    of_one_run = "few_shot" in metrics and any(row.seeds <= 1 and "few_shot_ci95" in row.mean for row in rows)
    kinds = {"zero_shot": ZERO_SHOT, "few_shot": FEW_SHOT, "travels": MEASURES}
    words = passages("sweep", {kind: bool(metrics & set(names)) for kind, names in kinds.items()})
    choices = [("few-shot" if is_few_shot(row) else "zero-shot", row.selection) for row in rows if row.selection]
    selections = [words[f"{kind} {selection}"] for kind, selection in choices]
    context = {
        "sweep": sweep,
        "tables": tables,
        "charts": [chart for figure in sweep.file.figures for chart in sweep_charts(sweep, figure, rows, out)],
        "what": words["what"],
        "zero_shot": bool(metrics & set(ZERO_SHOT)),
        "few_shot": [(HEADS[name], about) for name, about in words.items() if name in metrics],
        "interval": "± half of the 95 % interval over the test episodes of the one run" if of_one_run else "",
        "selections": list(dict.fromkeys(selections)) if metrics - set(MEASURES) else [],
        "counts": [(statuses.count(s), s) for s in ("done", "failed", "refused", "not run") if s in statuses],
        "seeds": seeds,
        "linked": {row.run: (out / row.run / "report.html").exists() for row in rows},
        "commands": [(row.cell.key, cell_command(sweep, row.cell), row.run, row.status) for row in rows],
        "escaped": escaped,
        "tabular": tabular,
    }
    write_text(out / "results.html", render("sweep.html", context))
    write_text(out / "results.md", render("texts/sweep.md", context))
    write_text(out / "results.tex", render("texts/sweep.tex", context))
    return out / "results.html"
