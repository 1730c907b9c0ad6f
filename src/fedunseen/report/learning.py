"""Accuracies and losses round by round, and what several seeds say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedunseen.evaluation.measures import TITLES, ZERO_SHOT_MEASURES
from fedunseen.report import figures, statistics
from fedunseen.report.figures import Curve
from fedunseen.report.parts import LINES, Facts, Section, axis, upper_end

if TYPE_CHECKING:
    from fedunseen.experiment.finished import Run

__all__ = ["LEARNING", "SEEDS", "losses"]

COLOURS = {one.name: one.colour for one in ZERO_SHOT_MEASURES}

SEEDS_TEMPLATE = """\
<section>
<h2>{{ seeds.count }} seeds</h2>
<div class="scroll"><table>
<thead><tr><th scope="col">seed</th><th>ZSL</th><th>U</th><th>S</th><th>H</th><th>U uncal.</th><th>S uncal.</th><th>H uncal.</th><th>calibration</th><th>round</th></tr></thead>
<tbody>
{% for row in seeds.rows %}
<tr><th scope="row">{{ row.seed }}</th>
{% for name in ["zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic", "uncalibrated_gzsl_unseen", "uncalibrated_gzsl_seen", "uncalibrated_gzsl_harmonic"] %}
<td>{{ "%.1f" | format(row[name]) }}</td>
{% endfor %}
<td>{{ "%.3g" | format(row.calibration_factor) }}</td><td>{{ row.selected_round }}</td></tr>
{% endfor %}
</tbody>
<tfoot><tr><th scope="row">mean ± sd</th>
{% for name in ["zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic", "uncalibrated_gzsl_unseen", "uncalibrated_gzsl_seen", "uncalibrated_gzsl_harmonic"] %}
<td>{{ "%.1f" | format(seeds.means[name]) }} ± {{ "%.1f" | format(seeds.means[name ~ "_sd"]) }}</td>
{% endfor %}
<td></td><td></td></tr></tfoot>
</table></div>
<div class="grid below">
{% for chart in seeds.charts %}<figure>{{ chart | safe }}</figure>{% endfor %}
</div>
<p class="caption">Line: mean over the seeds after each round. Shaded: lowest to highest seed. A narrow band means that the choice of seed matters little.</p>
<p class="divider"><b>From here on: seed {{ seeds.rows[0].seed }} alone.</b></p>
</section>
"""

TEMPLATE = """\
<section>
<h2>Learning, round by round</h2>
<p class="legend">
<span><i class="key line"></i>{{ "the trained model" if facts.pools else "the merged model" if facts.one_model else "mean of the clients' models" }}</span>
{% if curves.spread %}
<span><i class="key band"></i>{{ "clients before merging" if facts.one_model else "clients' own models" }}, lowest to highest</span>
{% if facts.one_model %}<span><i class="key dash"></i>their mean</span>{% endif %}
{% endif %}
<span><i class="key dot"></i>the round that is reported</span>
</p>
<div class="grid">
{% for chart in curves.charts %}<figure>{{ chart | safe }}</figure>{% endfor %}
{% if losses %}<figure>{{ losses | safe }}</figure>{% endif %}
</div>
<p class="caption">
{% if curves.spread and facts.one_model %}The distance between the line and the shaded area is what merging gives: each client's own model is measured on all test samples before merging, under the same calibration.
{% elif curves.spread %}Each client's model is measured on all test samples{{ "" if facts.merges else "; nothing is ever merged" }}.
{% elif not facts.pools %}The clients' own models were not measured in this run.
{% endif %}
Point at a chart to read its values.</p>
</section>
"""


def losses(
    run: Run, terms: Mapping[str, str] | None = None, title: str = "Losses by term, mean of clients"
) -> str | None:
    """Draw the losses by term; the total is left out where it is the only term's double.

    Args:
        run: of one seed.
        terms: term -> what it is called; by default all there are, by their names.
        title: above the chart.
    """
    lines = run.metrics
    if terms is None:
        terms = {name: name for name in lines[-1].get("losses", {})} if lines else {}
    told = {name: statistics.curve([line.get("losses", {}) for line in lines], name) for name in terms}
    if len(told) == 2 and "loss" in told:
        other = next(term for term in told if term != "loss")
        if np.allclose(told[other], told["loss"], equal_nan=True):
            del told["loss"]
    if not told:
        return None
    curves = [
        Curve(y, terms[name], LINES[i % len(LINES)], dashed=i >= len(LINES)) for i, (name, y) in enumerate(told.items())
    ]
    return figures.line_chart(curves, title, axis(lines), legend=True)


def _curves(facts: Facts) -> dict[str, Any] | None:
    """Draw each accuracy of one run by round, with the spread of the clients' own models.

    One round of a merged model alone is no curve: its numbers stand at the top of the page.
    """
    run = facts.run
    lines = statistics.measured(run.metrics, "zsl")
    spread = any(len(line.get("clients", {}).get("zsl", [])) > 1 for line in lines)
    if not lines or (len(lines) == 1 and not spread):
        return None
    x = axis(lines)
    drawn: dict[str, list[Curve]] = {}
    for name, *_ in ZERO_SHOT_MEASURES:
        low, mean, high = statistics.clients_band(lines, name)
        main = statistics.curve(lines, name)
        if not facts.one_model:  # the main curve is the clients' mean
            drawn[name] = [Curve(main, "mean of clients", COLOURS[name], low, high)]
            continue
        drawn[name] = [Curve(main, "merged", COLOURS[name])]
        if spread:
            drawn[name].append(Curve(mean, "clients", "grey", low, high, dashed=True))
    top = upper_end([curve for curves in drawn.values() for curve in curves])
    charts = [
        figures.line_chart(
            curves,
            TITLES[name],
            x,
            top,
            unit="%",
            level=(f"guessing {facts.chance:.3g}%", facts.chance) if name == "zsl" else None,
            mark=run.result["selected_round"],
        )
        for name, curves in drawn.items()
    ]
    return {"curves": {"charts": charts, "spread": spread}, "losses": losses(run)}


def _seeds(facts: Facts) -> dict[str, Any] | None:
    """Summarise a run of several seeds: a table, and mean curves with the spread over seeds."""
    run = facts.whole
    if not run.seeds:
        return None
    rows = [{"seed": one.result["seed"], **one.result} for one in run.seeds]
    all_lines = statistics.measured_by_all([one.metrics for one in run.seeds], "zsl")
    x = axis(all_lines[0])
    drawn = {}
    for name, *_ in ZERO_SHOT_MEASURES:
        each = np.array([statistics.curve(lines, name) for lines in all_lines])
        low, mean, high = statistics.band(each.T.tolist())
        drawn[name] = Curve(mean, "mean of seeds", COLOURS[name], low, high)
    top = upper_end(list(drawn.values()))
    charts = [
        figures.line_chart(
            [curve],
            TITLES[name],
            x,
            top,
            unit="%",
            level=(f"guessing {facts.chance:.3g}%", facts.chance) if name == "zsl" else None,
        )
        for name, curve in drawn.items()
    ]
    return {"seeds": {"rows": rows, "charts": charts, "count": len(rows), "means": run.result}}


SEEDS = Section(SEEDS_TEMPLATE, _seeds)
LEARNING = Section(TEMPLATE, _curves)
