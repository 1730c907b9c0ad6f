"""What was chosen on validation classes: the round, the calibration, and settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedunseen.evaluation.measures import ZERO_SHOT_MEASURES
from fedunseen.report import statistics
from fedunseen.report.charts import Curve, Scale, line_chart, value_chart
from fedunseen.report.parts import LINES, Facts, Section, axis, rounds_tried, stopped, upper_end

if TYPE_CHECKING:
    from fedunseen.experiment.result.run import Run

COLORS = {one.name: one.color for one in ZERO_SHOT_MEASURES}


def _chosen(facts: Facts) -> dict[str, Any] | None:
    """Return what was chosen on validation classes, if anything was."""
    run = facts.run
    chosen = run.result.get("chosen_on_validation")
    if not chosen:
        return None
    keys = list(chosen.get("settings", {}))
    tried = [
        {
            "values": [candidate["settings"][key] for key in keys],
            "won": candidate["settings"] == chosen["settings"],
            **candidate,
        }
        for candidate in chosen.get("tried", [])
    ]
    last = chosen["round"] == rounds_tried(run.result) > 1
    charts = [chart for chart in (_selection_chart(run, keys), *_sensitivity(run, keys)) if chart]
    return {
        "chosen": {**chosen, "keys": keys, "tried": tried, "charts": charts, "last": last, "ended": stopped(chosen)}
    }


def _sensitivity(run: Run, keys: Sequence[str]) -> list[str]:
    """Draw, for each setting tried at several numbers, the accuracies over them, with the others as chosen."""
    chosen = run.result["chosen_on_validation"]
    charts = []
    for key in keys:
        tried = [
            candidate
            for candidate in chosen.get("tried", [])
            if all(candidate["settings"][other] == chosen["settings"][other] for other in keys if other != key)
        ]
        values = [candidate["settings"][key] for candidate in tried]
        if len(values) < 2 or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            continue
        tried = [tried[i] for i in np.argsort(values, kind="stable")]
        ordered = [candidate["settings"][key] for candidate in tried]
        curves = [
            Curve(
                np.array([candidate[name] for candidate in tried], dtype=np.float64), label, COLORS[name], dashed=dashed
            )
            for name, label, dashed in (
                ("gzsl_harmonic", "H", False),
                ("zsl", "ZSL", False),
                ("gzsl_unseen", "U", True),
                ("gzsl_seen", "S", True),
            )
        ]
        written = [f"{value:g}" for value in ordered]
        marked = ordered.index(chosen["settings"][key])
        charts.append(value_chart(curves, f"Validation classes by {key}", written, key, marked))
    return charts


def _selection_chart(run: Run, keys: Sequence[str]) -> str | None:
    """Draw how each candidate did on validation classes, round by round; of one round each there is no curve."""
    from fedunseen.federation.run_directory import RunDirectory

    chosen = run.result["chosen_on_validation"]
    criterion = run.manifest["experiment"]["evaluation"]["criterion"]
    name = "zsl" if criterion == "zsl" else "gzsl_harmonic"
    tried = chosen.get("tried", [])
    folders = [str(i) for i in range(len(tried))] if tried else [""]
    lines = {
        i: statistics.measured(RunDirectory(run.path / "selection" / folder).metrics(), name)
        for i, folder in enumerate(folders)
    }
    settings = [candidate["settings"] for candidate in tried] or [{}]
    best = settings.index(chosen["settings"]) if tried else 0
    # The chosen one is in front and carries the mark; of many others, those that came nearest to it.
    others = sorted((i for i in lines if i != best), key=lambda i: -tried[i][name])[: len(LINES) - 1]
    shown = [i for i in (best, *others) if lines[i]]
    if best not in shown or max(len(lines[i]) for i in shown) == 1:
        return None
    curves = []
    for color, i in zip(LINES, shown, strict=False):
        label = ", ".join(f"{key.partition('.')[2]} {settings[i][key]}" for key in keys) or "chosen"
        curves.append(Curve(statistics.curve(lines[i], name), label, color))
    title = f"{'ZSL' if name == 'zsl' else 'H'} on validation classes"
    return line_chart(
        curves, title, axis(lines[best]), Scale(upper_end(curves), "%"), mark=chosen["round"], legend=len(curves) > 1
    )


CHOSEN = Section("chosen", _chosen)
