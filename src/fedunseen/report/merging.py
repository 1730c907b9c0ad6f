"""What a defence left of the clients' replies, and what private merging has cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedunseen.report import figures
from fedunseen.report.figures import Curve
from fedunseen.report.parts import Facts, Section, client_names

__all__ = ["MERGING", "merging_section"]

TEMPLATE = """\
<section>
<h2>What was merged</h2>
{% if merging.defence %}
<p>Defence of the server: <code>{{ merging.defence.name }}</code>. {% if merging.defence.out %}Of {{ merging.defence.replies }} replies {{ merging.defence.out }} were left out{% else %}None of {{ merging.defence.replies }} replies was left out{% endif %}{% if merging.defence.shortened %}, {{ merging.defence.shortened }} were shortened{% endif %}.{% if merging.defence.nothing %} <b>In {{ merging.defence.nothing | length }} round{{ "s" if merging.defence.nothing | length > 1 }} nothing was merged and the old model stayed: {{ merging.defence.nothing | join(", ") }}.</b>{% endif %}</p>
<table>
<thead><tr><th scope="col">client</th><th>replies</th><th>left out</th><th>shortened</th><th>mean length</th><th class="text">why left out (rounds)</th></tr></thead>
<tbody>
{% for row in merging.defence.rows %}
<tr><th scope="row">{{ row.client }}</th><td>{{ row.replies }}</td><td>{{ row.out }}</td><td>{{ row.shortened }}</td><td>{{ "%.3g" | format(row.length) if row.length is not none else "" }}</td><td class="text">{{ row.why }}</td></tr>
{% endfor %}
</tbody>
</table>
{{ merging.defence.chart | safe }}
{% endif %}
{% if merging.privacy and merging.privacy.get("unit") == "sample" %}
<p>The sums of all parties were released once, with noise: all that is made of them is <b>epsilon = {{ "%.3g" | format(merging.privacy.epsilon) }}</b>, delta = {{ "%.0e" | format(merging.privacy.delta) }} private for a sample; noise multiplier {{ "%.3g" | format(merging.privacy.noise) }}. The accuracies in this report are measured on test samples, which it does not protect.</p>
{% elif merging.privacy %}
<p>Private merging: the models of all {{ merging.privacy.rounds }} rounds together are <b>epsilon = {{ "%.3g" | format(merging.privacy.epsilon) }}</b>, delta = {{ "%.0e" | format(merging.privacy.delta) }} private for a client; noise multiplier {{ "%.3g" | format(merging.privacy.noise) }}{% if merging.privacy.clipped is not none %}, {{ "%.3g" | format(merging.privacy.clipped) }} % of the updates were clipped{% else %}; clients clipped their updates and added the noise under masks{% endif %}.</p>
{{ merging.privacy.chart | safe }}
<p class="caption">The guarantee is for the models. This page itself, written for who runs the experiment, is not private: it shows losses, participants and who holds what.</p>
{% endif %}
{% if merging.lost %}
<p class="note below">Replies that were not finite were left out: {{ merging.lost }}.</p>
{% endif %}
</section>
"""


def merging_section(lines: Sequence[Mapping[str, Any]], clients: Sequence[str]) -> dict[str, Any] | None:
    """Return what the page says of merging; None for a run without defence, private merging or lost replies.

    Args:
        lines: of ``metrics.jsonl``.
        clients: what they are called.
    """
    defended = [line for line in lines if "defence" in line]
    private = [line for line in lines if "privacy" in line]
    lost = [f"{clients[int(client)]} in round {line['round']}" for line in lines for client in line.get("dropped", {})]
    if not (defended or private or lost):
        return None
    return {
        "defence": _defence(defended, clients) if defended else None,
        "privacy": _privacy(private) if private else None,
        "lost": ", ".join(lost[:20]) + (f" and {len(lost) - 20} more" if len(lost) > 20 else ""),
    }


def _defence(lines: Sequence[Mapping[str, Any]], clients: Sequence[str]) -> dict[str, Any]:
    rows = []
    for k, client in enumerate(clients):
        said = [(line["round"], line["defence"], line["defence"]["clients"].index(k)) for line in lines
                if k in line["defence"]["clients"]]  # fmt: skip
        kept = [one["kept"][i] for _, one, i in said]
        lengths = [one["norms"][i] for _, one, i in said if one["norms"][i] is not None]
        why: dict[str, list[int]] = {}
        for round, one, _ in said:
            if reason := one["dropped"].get(str(k)):
                why.setdefault(reason, []).append(round)
        rows.append(
            {
                "client": client,
                "replies": len(said),
                "out": sum(not part for part in kept),
                "shortened": sum(0 < part < 1 for part in kept),
                "length": float(np.mean(lengths)) if lengths else None,
                "why": "; ".join(f"{reason} ({_rounds(of)})" for reason, of in why.items()),
            }
        )
    x = np.array([line["round"] for line in lines], dtype=np.float64)
    norms = [[v for v in line["defence"]["norms"] if v is not None] or [np.nan] for line in lines]
    middle, high = (np.array([of(values) for values in norms], dtype=np.float64) for of in (np.median, np.max))
    curves = [Curve(high, "longest", "orange"), Curve(middle, "median", "blue")]
    return {
        "name": lines[0]["defence"]["name"],
        "rows": rows,
        "replies": sum(row["replies"] for row in rows),
        "out": sum(row["out"] for row in rows),
        "shortened": sum(row["shortened"] for row in rows),
        "nothing": [line["round"] for line in lines if not line["defence"]["merged"]],
        "chart": figures.line_chart(curves, "Lengths of the updates as they came", x, legend=True),
    }


def _rounds(rounds: Sequence[int]) -> str:
    """Write rounds, runs of them short.

    Example:
        >>> _rounds([1, 2, 3, 7, 9, 10])
        '1-3, 7, 9-10'
    """
    parts: list[list[int]] = []
    for round in rounds:
        if parts and round == parts[-1][1] + 1:
            parts[-1][1] = round
        else:
            parts.append([round, round])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _privacy(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    spent = [line["privacy"] for line in lines]
    x = np.array([line["round"] for line in lines], dtype=np.float64)
    curve = Curve(np.array([one["epsilon"] for one in spent], dtype=np.float64), "epsilon", "purple")
    updates = sum(len(line["participants"]) for line in lines)
    return {
        **spent[-1],
        "rounds": len(lines),
        "clipped": 100 * sum(one["clipped"] for one in spent) / max(updates, 1) if "clipped" in spent[-1] else None,
        "chart": figures.line_chart([curve], "epsilon spent", x),
    }


def _merging(facts: Facts) -> dict[str, Any] | None:
    found = merging_section(facts.run.metrics, client_names(facts))
    return {"merging": found} if found else None


MERGING = Section(TEMPLATE, _merging)
