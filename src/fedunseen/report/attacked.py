"""What malicious clients did to a run, and what the clients' screening dropped (FedZSL, Figs. 7 and 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedunseen.report import figures, statistics
from fedunseen.report.backdoor_page import COLOURS, magnitude_chart
from fedunseen.report.figures import Curve
from fedunseen.report.parts import Facts, Section

if TYPE_CHECKING:
    from fedunseen.experiment.finished import Run

__all__ = ["ATTACKED"]

TEMPLATE = """\
<section id="attack">
<h2>Malicious clients</h2>
{% if attacked.attack %}
<p>{% if attacked.attack.clients | length > 1 %}Clients {{ attacked.attack.clients | join(", ") }} are malicious{% else %}Client {{ attacked.attack.clients[0] }} is malicious{% endif %}: attack <code>{{ attacked.name }}</code> {% if attacked.attack.rounds %}in round{{ "s" if attacked.attack.rounds | length > 1 }} {{ attacked.attack.rounds[0] }}{% if attacked.attack.rounds | length > 1 %} to {{ attacked.attack.rounds[-1] }} ({{ attacked.attack.rounds | length }} rounds){% endif %}{% else %}in no round{% endif %}.{% if attacked.backdoor.backdoor_attacked is defined %} The merged model takes <b>{{ percent(attacked.backdoor.backdoor_attacked) }}&nbsp;%</b> of the trigger samples for the attackers' class after the first attacked round, and {{ percent(attacked.backdoor.backdoor) }}&nbsp;% in the reported one{% if attacked.backdoor.backdoor_before is defined %}; before the attack it was {{ percent(attacked.backdoor.backdoor_before) }}&nbsp;%{% endif %}.{% endif %}</p>
{% for trigger in attacked.attack.triggers %}
<p class="caption">{{ trigger.name }}: {{ trigger.source }}; client {{ trigger.client }} trains on {{ trigger.trained }} of them as “{{ trigger.target }}”, and {{ trigger.tested }} others measure success.</p>
{% endfor %}
{% endif %}
{% if attacked.screened %}
<p>Of what they were given, clients dropped {{ "{:,}".format(attacked.screened.clean_dropped) }} of {{ "{:,}".format(attacked.screened.clean) }} clean samples{% if attacked.screened.poisoned %} and {{ "{:,}".format(attacked.screened.poisoned_dropped) }} of {{ "{:,}".format(attacked.screened.poisoned) }} poisoned ones{% endif %} for the low magnitude of their features, every epoch counted.{% if attacked.empty %} <b>In round{{ "s" if attacked.empty | length > 1 }} {{ attacked.empty[:20] | join(", ") }} some client had no sample left and sent no change.</b>{% endif %}</p>
{% endif %}
<div class="grid below">
{% for chart in [attacked.chart, attacked.dropped] if chart %}
<div>{{ chart | safe }}</div>
{% endfor %}
{% for chart in attacked.magnitudes %}
<div>{{ chart | safe }}</div>
{% endfor %}
</div>
</section>
"""


def _attacked(facts: Facts) -> dict[str, Any] | None:
    """Return what the page says of an attack and of screening; None for a run without either."""
    from fedunseen.experiment.study import magnitudes

    run = facts.run
    lines, told = run.metrics, run.result.get("attack")
    screened = [line for line in lines if "screening" in line]
    if told is None and not screened:
        return None
    x = np.array([line["round"] for line in lines], dtype=np.float64)
    found: dict[str, Any] = {"attack": told, "name": run.manifest["experiment"].get("attack", {}).get("name")}
    found["chart"] = _accuracies(lines, x, run) if told else None
    found["backdoor"] = {key: run.result[key] for key in run.result if key.startswith("backdoor")}
    found["magnitudes"] = [
        magnitude_chart(values, f"Features' magnitude after round {round}")
        for round, values in magnitudes(run.path).items()
    ]
    found["screened"] = run.result.get("screened")
    found["dropped"] = _dropped(screened) if screened else None
    found["empty"] = sorted({line["round"] for line in screened if line["screening"].get("empty")})
    return {"attacked": found}


def _accuracies(lines: Sequence[Mapping[str, Any]], x: figures.Floats, run: Run) -> str:
    """Draw main and backdoor accuracies by round; the first attacked round is marked on the ZSL accuracy."""
    triggers = sorted(lines[0].get("backdoor_of", {}))  # as in the charts of magnitudes
    curves = [
        Curve(statistics.curve(lines, "zsl"), "ZSL", "blue"),
        Curve(statistics.curve(lines, "gzsl_seen"), "S", "grey"),
    ]
    for i, name in enumerate(triggers):
        of_trigger = statistics.curve([line["backdoor_of"] for line in lines], name)
        curves.append(Curve(of_trigger, f"backdoor: {name}", COLOURS[i % len(COLOURS)]))
    rounds = run.result["attack"]["rounds"]
    mark = rounds[0] if rounds else None
    return figures.line_chart(curves, "Main and backdoor accuracy", x, 100.0, unit="%", mark=mark, legend=True)


def _dropped(lines: Sequence[Mapping[str, Any]]) -> str:
    """Draw which share of clean and of poisoned samples was dropped, by round."""
    curves = []
    for kind, colour in (("clean", "blue"), ("poisoned", "orange")):
        told = [line["screening"] for line in lines]
        share = [100 * one[f"{kind}_dropped"] / one[kind] if one[kind] else np.nan for one in told]
        if np.isfinite(share).any():
            curves.append(Curve(np.array(share, dtype=np.float64), kind, colour))
    x = np.array([line["round"] for line in lines], dtype=np.float64)
    return figures.line_chart(curves, "Samples that clients dropped", x, unit="%", legend=True)


ATTACKED = Section(TEMPLATE, _attacked)
