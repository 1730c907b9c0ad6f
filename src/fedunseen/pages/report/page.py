"""Make a page of a run directory: the same sections for each task, from what the task's view
computes.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fedunseen.core.files import write_text
from fedunseen.evaluation.diagnosis import usual_strays
from fedunseen.experiment.result.run import Run
from fedunseen.pages.report import backdoor_page, few_shot, statistics, unusual, zero_shot
from fedunseen.pages.report.charts import Curve, Scale, line_chart
from fedunseen.pages.report.communication_cost import travel
from fedunseen.pages.report.parts import (
    LINES,
    Content,
    Facts,
    Sections,
    axis,
    further_sections,
    render_sections,
    upper_end,
)
from fedunseen.pages.report.reproducibility import chosen, reproducibility
from fedunseen.pages.report.sureness import confidence, mistakes

VIEWS = {"zero-shot": zero_shot, "any-shot": zero_shot, "few-shot": few_shot}


def _warnings(facts: Facts) -> Content:
    return (
        {"warnings": facts.whole.result["warnings"]} if facts.whole.result.get("warnings") else None
    )


def _strays(facts: Facts) -> Content:
    usual = usual_strays(facts.run.result)
    return None if usual is None else {"strays": usual}


def _parties(facts: Facts) -> Content:
    return {} if facts.parties else None


def _other(facts: Facts) -> dict[str, Any]:
    """Return the accuracies that a task without a view of its own reports, and their curves."""
    accuracies = facts.run.manifest["traits"]["accuracies"]
    lines = statistics.measured(facts.run.metrics, accuracies[0]) if accuracies else []
    curves = [
        Curve(np.array([line[name] for line in lines]), name.replace("_", " "), color)
        for name, color in zip(accuracies, LINES, strict=False)
        if all(name in line for line in lines)
    ]
    chart = (
        line_chart(curves, "accuracy", axis(lines), Scale(upper_end(curves), "%"))
        if curves
        else None
    )
    numbers = [(name.replace("_", " "), facts.whole.result[name]) for name in accuracies]
    return {"numbers": numbers, "chart": chart}


def _sections(view: ModuleType) -> tuple[Sections, Sections]:
    """Return what a page shows from top to bottom, and what it folds away below."""
    shown = (
        ("header", view.header), ("warnings", _warnings), ("later", unusual.later), ("summary", view.summary),
        ("numbers", view.numbers), ("seeds", view.seeds), ("confidence", confidence),
        ("mistakes", mistakes),
        ("strays", lambda facts: _strays(facts) if "strays" in facts.run.result else None),
        ("classes", view.classes), view.SAMPLES,
        ("parties", _parties), ("data_distribution", view.data_distribution), ("chosen", chosen),
        ("reproducibility", reproducibility),
    )  # fmt: skip
    folded = (
        ("learning", view.curves), ("adapted", unusual.adapted), ("growing", unusual.growing),
        ("own_models", unusual.own_models), ("shots", unusual.shots), ("prototypes", unusual.prototypes),
        ("learnt", unusual.learnt), ("embedding", unusual.embedding), ("generated", unusual.generated),
        ("plane", few_shot.plane), ("attacked", backdoor_page.attacked), ("merging", unusual.merging),
        ("influence", unusual.influence), ("communication_cost", travel),
    )  # fmt: skip
    return shown, folded


def write_report(run: Run, path: Path | None = None) -> Path:
    """Write the report of a complete run: one HTML file that needs nothing else.

    Args:
        run: the run, of one seed or of several.
        path: where to; by default ``report.html`` in the run directory.

    Returns:
        Where it is.

    Raises:
        RunDirectoryError: what the run left behind is damaged.
    """
    facts = Facts(run)
    plain: Sections = (("other", _other), ("warnings", _warnings), ("parties", _parties),
                       ("reproducibility", reproducibility))  # fmt: skip
    shown, folded = (
        _sections(VIEWS[facts.task])
        if facts.task in VIEWS
        else (plain, (("communication_cost", travel),))
    )
    for name, module in further_sections().items():
        if getattr(module, "FOLDED", True):
            folded = (*folded, (name, module.content))
        else:
            shown = (*shown, (name, module.content))
    target = path if path is not None else run.path / "report.html"
    write_text(target, render_sections(facts, shown, folded), follow=path is not None)
    return target
