"""The page of a task that has none of its own: its accuracies by round, who took part, what travelled."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedunseen.report import statistics
from fedunseen.report.charts import Curve, Scale, line_chart
from fedunseen.report.parts import LINES, Facts, Section, axis, upper_end


def _numbers(facts: Facts) -> dict[str, Any]:
    """Return the accuracies that the task reports, and their curves."""
    accuracies = facts.run.manifest.get("traits", {}).get("accuracies", [])
    lines = statistics.measured(facts.run.metrics, accuracies[0]) if accuracies else []
    curves = [
        Curve(np.array([line[name] for line in lines]), name.replace("_", " "), color)
        for name, color in zip(accuracies, LINES, strict=False)
        if all(name in line for line in lines)
    ]
    chart = line_chart(curves, "accuracy", axis(lines), Scale(upper_end(curves), "%")) if curves else None
    numbers = [(name.replace("_", " "), facts.whole.result[name]) for name in accuracies]
    return {"numbers": numbers, "chart": chart}


HEADER = Section("other", _numbers)
