"""The page of a task that has none of its own: its accuracies by round, who took part, what travelled."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedunseen.report import figures, statistics
from fedunseen.report.again import AGAIN
from fedunseen.report.figures import Curve
from fedunseen.report.holdings import PARTIES
from fedunseen.report.parts import LINES, Facts, Section, axis, upper_end
from fedunseen.report.sharing import TRAVEL
from fedunseen.report.short import WARNINGS

__all__ = ["SECTIONS"]

TEMPLATE = """\
<header>
<p class="kicker">FedUnseen report · {{ experiment.name }}</p>
<h1>{{ experiment.method.name }} on {{ facts.run.manifest.benchmark }}</h1>
<p class="lead">A run of the task <strong>{{ facts.task }}</strong>,
{{ facts.whole.result.rounds }} round{{ "s" if facts.whole.result.rounds != 1 }}:
{% for name, value in numbers %}
{{ name }} <strong>{{ "%.1f" | format(value) }}&nbsp;%</strong>{{ ", " if not loop.last else "." }}
{% endfor %}
</p>
</header>
{% if chart %}<section><h2>By round</h2>{{ chart | safe }}</section>{% endif %}
"""


def _numbers(facts: Facts) -> dict[str, Any]:
    """Return the accuracies that the task reports, and their curves."""
    accuracies = facts.run.manifest.get("traits", {}).get("accuracies", [])
    lines = statistics.measured(facts.run.metrics, accuracies[0]) if accuracies else []
    curves = [
        Curve(np.array([line[name] for line in lines]), name.replace("_", " "), colour)
        for name, colour in zip(accuracies, LINES, strict=False)
        if all(name in line for line in lines)
    ]
    chart = figures.line_chart(curves, "accuracy", axis(lines), upper_end(curves), unit="%") if curves else None
    numbers = [(name.replace("_", " "), facts.whole.result[name]) for name in accuracies]
    return {"numbers": numbers, "chart": chart}


SECTIONS = (Section(TEMPLATE, _numbers), WARNINGS, PARTIES, TRAVEL, AGAIN)
