"""Each client's own model: beside the merged one, where clients trained on, or where each client has nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedunseen.report.parts import Facts, Section, client_names

__all__ = ["OWN_MODELS"]

TEMPLATE = """\
<section>
<h2>A model for each client</h2>
<div class="scroll"><table>
<thead><tr><th scope="col">client</th>{% for column in own.columns %}<th>{{ column }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in own.rows %}
<tr><th scope="row">{{ row.name }}</th>{% for value in row["values"] %}<td>{{ "%.1f" | format(value) if value is not none else "–" }}</td>{% endfor %}</tr>
{% endfor %}
</tbody>
<tfoot><tr><th scope="row">mean</th>{% for value in own.means %}<td>{{ "%.1f" | format(value) if value is not none else "–" }}</td>{% endfor %}</tr></tfoot>
</table></div>
<p class="caption">{% if own.epochs %}After the last round every client trained the merged model for {{ own.epochs }} epoch{{ "s" if own.epochs != 1 }} more on its own samples and kept what it got; nothing of that was sent. {% elif facts.merges %}Every client has the merged parameters and its own for the rest, which it never sent. {% else %}Every client trained alone. {% endif %}"Own classes": the mean accuracy over the classes that the client holds, among all classes. Training on a few classes helps with those, and often costs accuracy on the others.</p>
</section>
"""

COLUMNS = {"held": "own classes", "zsl": "ZSL", "gzsl_harmonic": "H"}


def _own(facts: Facts) -> dict[str, Any] | None:
    """Return the accuracies of the clients' own models, if there are any."""
    told = facts.run.result.get("personal")
    if not told or not told["clients"]:
        return None
    names = client_names(facts)
    kinds = [kind for kind in ("merged", "own") if kind in told]
    heads = [f"{word}, {kind}" if len(kinds) > 1 else word for word in COLUMNS.values() for kind in kinds]
    columns = [told[kind][name] for name in COLUMNS for kind in kinds]
    rows = [
        {"name": names[client], "values": [column[i] for column in columns]} for i, client in enumerate(told["clients"])
    ]
    known = [[value for value in column if value is not None] for column in columns]
    means = [float(np.mean(values)) if values else None for values in known]
    return {"own": {"columns": heads, "rows": rows, "means": means, "epochs": told.get("epochs")}}


OWN_MODELS = Section(TEMPLATE, _own)
