"""The report's part about DistZSL's theory: what ``theory.json`` holds, in words, a table and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedunseen.core.errors import RunDirectoryError
from fedunseen.core.files import parse_json
from fedunseen.report import figures
from fedunseen.report.parts import Facts, Section

__all__ = ["THEORY", "theory_section"]

Row = dict[str, str]

TEMPLATE = """\
{% macro reasons(table, rows) %}
<div class="scroll"><table class="reasons">
<thead><tr><th scope="col">class</th><th>right</th><th class="text">why</th><th>attributes off&nbsp;by</th><th>Eq.&nbsp;61 allows</th><th>over half-way</th><th>certain (Eq.&nbsp;59)</th>{% if table.margins %}<th>Eq.&nbsp;20 left&nbsp;/&nbsp;right</th>{% endif %}</tr></thead>
<tbody>
{% for one in rows %}
<tr><th scope="row">{{ one.name }}</th><td>{{ "%.0f" | format(one.accuracy) }} %</td><td class="text wrap">{{ one.reason }}</td><td>{{ "%.3g" | format(one.off) }}</td><td>{{ "%.3g" | format(one.room) }}</td><td>{{ "%.2f" | format(one.half_way) }}</td><td>{{ "%.0f" | format(one.certain) }} %</td>{% if table.margins %}<td>{{ "never" if one.ratio is none else "%.3g" | format(one.ratio) }}{{ " ✓" if one.margin }}</td>{% endif %}</tr>
{% endfor %}
</tbody></table></div>
{% endmacro %}
<section>
<h2>The theory, measured</h2>
<details><summary>For those who know DistZSL's analysis: what it promises, beside what happened</summary>
<p class="lead small">Why classes succeed or fail, by the quantities of DistZSL's analysis (Chen et al. 2025, section III-F), on the merged model of round {{ theory.round }}, the clients' own models of that round before merging, and {{ "{:,}".format(theory.tested) }} test samples.</p>
<div class="grid">
{% for chart in theory.charts %}<figure>{{ chart | safe }}</figure>{% endfor %}
</div>
<p class="caption">
{% if theory.alignment and theory.alignment.pairs %}Lemma 1: every point is a pair of clients; above the dotted line, the bound holds. {% endif %}
{% if theory.unseen %}Accuracy: every point is an unseen class, at the mean of its samples; a sample left of 1 is recognised for certain, one right of it the less likely the further. Conditions are sufficient, not necessary.{% endif %}
</p>
<div class="scroll below"><table class="wide">
<thead><tr><th scope="col">where</th><th class="text">quantity</th><th class="text">measured</th><th class="text">beside</th><th class="text">does it hold</th></tr></thead>
<tbody>
{% for row in theory.rows %}
<tr><th scope="row">{{ row.where }}</th><td class="text wrap">{{ row.what }}</td><td class="text">{{ row.value }}</td><td class="text wrap">{{ row.beside }}</td><td class="text wrap">{{ row.verdict }}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="caption">
{% if theory.alignment %}Distributions run over all {{ theory.alignment.classes }} classes at temperature {{ "%g" | format(theory.alignment.temperature) }}{% if not theory.alignment.estimated %}; this run estimates no Γ, the correlation of the semantics stands in for it{% endif %}. Lemma 1 says "almost all samples", but its proof bounds the mean (Jensen's inequality): single samples may exceed it. It compares clients on the samples on which their errors are measured.{% if theory.alignment.of is defined %} Of {{ "{:,}".format(theory.alignment.of) }} clients, {{ theory.clients | length }} are measured, evenly spaced, and stand for all.{% endif %}{% endif %}
{% if theory.decoder %} δ, c_h and L_h are the extremes over the samples measured, so that Lemmas 3 and 4 must hold for all of them.{% else %} This method has no h, so that Lemmas 3 and 4 and Eq. 20 cannot be asked.{% endif %}
{% if not theory.prototypes.as_given %} The theorem needs class attributes of one length, which these are not: for it alone they were brought to their root mean square length, {{ "%.3g" | format(theory.prototypes.length) }}.{% elif (theory.prototypes.length - 1) | abs > 0.001 %} All class attributes have the length {{ "%.3g" | format(theory.prototypes.length) }} instead of 1 (A4); the proof needs only that it is the same for all.{% endif %}
{{ " " }}Predicted attributes are {{ "%.3g" | format(theory.prototypes.predicted_length) }} long on average: Eqs. 20 and 61 measure plain distances, to which that matters, though to no answer; half-way is measured at the best length, in the directions in which classes differ.</p>
{% if theory.clients %}
<details><summary>Each client's alignment error</summary>
<div class="scroll"><table>
<thead><tr><th scope="col">client</th><th>samples</th><th>ε own</th><th>ε common</th><th>distance to Γ</th><th>bound (Eq. 13)</th><th>samples over it</th></tr></thead>
<tbody>
{% for one in theory.clients %}
<tr><th scope="row">{{ one.client }}</th><td>{{ one.samples }}</td><td>{{ "%.3g" | format(one.epsilon_own) }}</td><td>{{ "%.3g" | format(one.epsilon_common) }}</td><td>{{ "%.3g" | format(one.observed) }}</td><td>{{ "%.3g" | format(one.bound) }}</td><td>{{ "%.1f" | format(100 * one.over) }} %</td></tr>
{% endfor %}
</tbody></table></div></details>
{% endif %}
{% for table in theory.tables %}
<h3>{{ table.title }}</h3>
<p class="caption">Worst first; {{ table.failing }} of {{ table["rows"] | length }} have less than half of their samples right{{ " (not calibrated)" if table.uncalibrated }}.{% if table.same %} The theorem is about the product of predicted and class attributes; the model's own scores give the same answer for {{ table.same }} of the samples.{% endif %}</p>
{% if loop.first %}{{ reasons(table, table["rows"][:20]) }}{% if table["rows"] | length > 20 %}<details><summary>{{ table["rows"] | length - 20 }} more classes</summary>{{ reasons(table, table["rows"][20:]) }}</details>{% endif %}
{% else %}<details><summary>All {{ table["rows"] | length }} classes</summary>{{ reasons(table, table["rows"]) }}</details>{% endif %}
{% endfor %}
</details>
</section>
"""


def theory_section(stored: Mapping[str, Any], calibrated: bool) -> dict[str, Any]:
    """Return what the template needs.

    Args:
        stored: the content of ``theory.json``.
        calibrated: whether the run's generalised accuracies are calibrated; those here never are.
    """
    alignment, visual = stored["alignment"], stored["decoder"]
    rows: list[Row] = []
    charts: list[str] = []
    if alignment is not None:
        rows += _client_rows(alignment)
        if alignment["pairs"]:
            charts.append(_pairs_chart(alignment["pairs"]))
    if visual is not None:
        rows += _decoder_rows(visual)
    tables = []
    for name, title in (("unseen", "Unseen classes, among unseen ones"), ("all", "All classes, among all")):
        if name in stored:
            rows += _class_rows(stored[name], "unseen classes (ZSL)" if name == "unseen" else "all classes (GZSL)")
            tables.append(_table(stored[name], title, name == "all" and calibrated))
    if "unseen" in stored:
        charts.append(_classes_chart(stored["unseen"]["classes"]))
    return {
        "round": stored["round"],
        "tested": stored["tested"],
        "alignment": alignment,
        "decoder": visual,
        "prototypes": stored["prototypes"],
        "unseen": "unseen" in stored,
        "rows": rows,
        "charts": charts,
        "tables": tables,
        "clients": alignment["clients"] if alignment is not None else [],
    }


def _row(where: str, what: str, value: str, beside: str, verdict: str) -> Row:
    return {"where": where, "what": what, "value": value, "beside": beside, "verdict": verdict}


def _number(value: float | None) -> str:
    """Write a number with three significant digits.

    Example:
        >>> _number(0.012345), _number(1234.5), _number(None)
        ('0.0123', '1,234', 'none')
    """
    if value is None:
        return "none"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _share(value: float) -> str:
    """Write a share as a percentage; 100 and 0 stand only for exactly that.

    Example:
        >>> _share(1.0), _share(0.9996), _share(0.0001), _share(0.25)
        ('100 %', 'over 99.9 %', 'under 0.1 %', '25 %')
    """
    if 0.999 < value < 1:
        return "over 99.9 %"
    if 0 < value < 0.001:
        return "under 0.1 %"
    return f"{round(100 * value, 1):g} %"


def _client_rows(alignment: Mapping[str, Any]) -> list[Row]:
    clients, pairs, server = alignment["clients"], alignment["pairs"], alignment["server"]
    own, common = ([one[name] for one in clients] for name in ("epsilon_own", "epsilon_common"))
    rows = [
        _row("Eq. 12", "alignment error ε of a client, on its own training samples", _span(own), "", ""),
        _row(
            "Eq. 12",
            "the same on test samples, common to all clients",
            _span(common),
            f"{np.mean(common) / max(float(np.mean(own)), 1e-12):.3g} times as large on average",
            "",
        ),
    ]
    if pairs:
        observed, bound, by_own = ([pair[name] for pair in pairs] for name in ("observed", "bound", "bound_own"))
        broken = sum(pair["observed"] > pair["bound_own"] for pair in pairs)
        over = float(np.mean([pair["over"] for pair in pairs]))
        rows.append(
            _row(
                "Lemma 1",
                "distance (L1) between two clients' predictions, mean over test samples",
                _span(observed),
                f"bound {_span(bound)}",
                f"holds for all {len(pairs)} pairs in the mean; {_share(over)} of single samples exceed it",
            )
        )
        verdict = f"broken by {broken} of {len(pairs)} pairs" if broken else f"holds for all {len(pairs)} pairs too"
        rows.append(
            _row(
                "Lemma 1",
                "the same against each client's ε on its own samples, of which the lemma says nothing",
                _span(observed),
                f"bound {_span(by_own)}",
                verdict,
            )
        )
    rows += [
        _row(
            "Eq. 15",
            "divergence of the clients' mixture from Γ's distribution",
            _number(server["mixture"]),
            f"≤ clients' mean {_number(server['clients'])}",
            f"holds for {_share(server['holds_15'])} of samples",
        ),
        _row(
            "Eq. 16",
            "divergence of the merged model from Γ's distribution",
            _number(server["merged"]),
            f"≤ {_number(server['clients'])} + C ξ = {_number(server['bound'])}",
            f"holds for {_share(server['holds_16'])}; without C ξ for {_share(server['below_clients'])}",
        ),
        _row(
            "Eq. 38",
            "C as printed, which is no bound in general",
            _number(server["constant_printed"]),
            f"C that is one: {_number(server['constant'])}",
            f"with the printed one, Eq. 16 holds for {_share(server['holds_16_printed'])}",
        ),
        _row(
            "Theorem 2",
            "ξ, distance (L1) of the merged model from the mixture",
            _number(server["xi"]),
            f"at most {_number(server['xi_most'])}",
            "",
        ),
    ]
    return rows


def _decoder_rows(visual: Mapping[str, Any]) -> list[Row]:
    singular = visual["singular"]
    beside = (
        f"singular values of h: {_number(singular[0])} to {_number(singular[1])}" if singular else "h is not linear"
    )
    return [
        _row(
            "A2",
            "reconstruction error ‖h(g(f(x))) - f(x)‖: δ is the largest",
            _number(visual["delta"]),
            f"mean {_number(visual['delta_mean'])}, 95 % below {_number(visual['delta_95'])}; "
            f"‖f(x)‖ is {_number(visual['visual_length'])} on average",
            "",
        ),
        _row(
            "A1",
            "how much h stretches: c_h to L_h, near the predicted attributes",
            f"{_number(visual['c_h'])} to {_number(visual['L_h'])}",
            beside,
            "",
        ),
        _row(
            "Lemma 3",
            "distances of features that attributes must keep",
            "",
            f"says something about {_share(visual['lemma_3_says_something'])} of pairs",
            f"holds for {_share(visual['lemma_3_holds'])}",
        ),
        _row(
            "Lemma 4",
            "distance of predicted attributes from the class's own",
            _number(visual["attribute_error"]),
            f"bound {_number(visual['lemma_4_bound'])} on average",
            f"holds for {_share(visual['lemma_4_holds'])}",
        ),
    ]


def _class_rows(found: Mapping[str, Any], whose: str) -> list[Row]:
    classes = found["classes"]
    good = [one for one in classes if one["accuracy"] >= 50]
    rows = []
    if "eq_20" in classes[0]:
        whole = sum(one["eq_20"] == 1 for one in classes)
        ratios = [one["ratio"] for one in classes if one["ratio"] is not None]
        rows.append(
            _row(
                "Theorem 5",
                f"Eq. 20 for every sample of a class, {whose}",
                f"{whole} of {len(classes)}",
                f"left side {_span(ratios)} times the right one" if ratios else "",
                f"{len(good)} of {len(classes)} have half of their samples right",
            )
        )
    for name, where, what in (
        ("eq_61", "Eq. 61", "predicted attributes near enough"),
        ("eq_59", "Eq. 59", "nearer than half-way to the next class, at their best length"),
    ):
        mean = float(np.mean([one[name] for one in classes]))
        right = float(np.mean([one["accuracy"] for one in classes])) / 100
        rows.append(
            _row(where, f"{what}, {whose}", _share(mean), "of samples, mean of classes", f"right: {_share(right)}")
        )
    return rows


def _span(values: Sequence[float]) -> str:
    """Write the smallest and the largest of some numbers; a single one if they are written alike.

    Example:
        >>> _span([0.5, 0.25, 1.0]), _span([2.0])
        ('0.25 to 1', '2')
    """
    low, high = _number(min(values)), _number(max(values))
    return low if low == high else f"{low} to {high}"


def _pairs_chart(pairs: Sequence[Mapping[str, Any]]) -> str:
    names = ["clients {} and {}".format(*pair["clients"]) for pair in pairs]
    observed, bound = (np.array([pair[name] for pair in pairs]) for name in ("observed", "bound"))
    top = max(float(observed.max()), float(bound.max()), 1e-9) * 1.08
    return figures.scatter(
        observed,
        bound,
        names,
        "Lemma 1: bound on the distance of two clients",
        "distance observed (L1, mean over test samples)",
        ((0.0, top), (0.0, top)),
        equal="bound = observed",
    )


def _classes_chart(classes: Sequence[Mapping[str, Any]]) -> str:
    away = np.array([one["half_way"] for one in classes])
    return figures.scatter(
        away,
        np.array([one["accuracy"] for one in classes]),
        [one["name"] for one in classes],
        "Unseen classes: ZSL accuracy",
        "distance from the own class, over half the way to the next",
        ((0.0, max(1.2, float(np.quantile(away, 0.95)) * 1.3)), (0.0, 104.0)),
        colour="orange",
        unit="%",
        border=("left of 1: promised", 1.0),
    )


def _table(found: Mapping[str, Any], title: str, uncalibrated: bool) -> dict[str, Any]:
    classes = found["classes"]
    rows = [
        {
            "name": one["name"],
            "accuracy": one["accuracy"],
            "nearest": one["nearest"],
            "delta": one["delta_y"],
            "off": one["off"],
            "room": one["room"],
            "half_way": one["half_way"],
            "certain": 100 * one["eq_59"],
            "ratio": one.get("ratio"),
            "margin": one.get("eq_20", 0.0) == 1,
            "reason": one["reason"],
        }
        for one in classes
    ]
    return {
        "title": title,
        "uncalibrated": uncalibrated,
        "same": _share(found["same_answers"]) if found["same_answers"] < 1 else None,
        "margins": "eq_20" in classes[0],
        "rows": rows,
        "failing": sum(one["accuracy"] < 50 for one in classes),
    }


def _theory(facts: Facts) -> dict[str, Any] | None:
    """Return the section on DistZSL's theory; None for a run that measured nothing of it."""
    path = facts.run.path / "theory.json"
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if not facts.one_model:
        return None
    try:
        return {"theory": theory_section(parse_json(content), facts.calibrated)}
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
        raise RunDirectoryError(f"{path} is damaged: delete it to write the report without this section") from None


THEORY = Section(TEMPLATE, _theory)
