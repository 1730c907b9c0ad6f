"""Each client's own model beside the merged one, where clients trained on after the last round."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedunseen.report.parts import Facts, Section, client_names

__all__ = ["OWN_MODELS"]

TEMPLATE = """\
<section>
<h2>A model for each client</h2>
<div class="scroll"><table>
<thead><tr><th scope="col">client</th><th>own classes, merged</th><th>own classes, own</th><th>ZSL, merged</th><th>ZSL, own</th><th>H, merged</th><th>H, own</th></tr></thead>
<tbody>
{% for row in own.rows %}
<tr><th scope="row">{{ row.name }}</th>{% for value in row["values"] %}<td>{{ "%.1f" | format(value) if value is not none else "–" }}</td>{% endfor %}</tr>
{% endfor %}
</tbody>
<tfoot><tr><th scope="row">mean</th>{% for value in own.means %}<td>{{ "%.1f" | format(value) if value is not none else "–" }}</td>{% endfor %}</tr></tfoot>
</table></div>
<p class="caption">After the last round every client trained the merged model for {{ own.epochs }} epoch{{ "s" if own.epochs != 1 }} more on its own samples and kept what it got; nothing of that was sent. "Own classes": the mean accuracy over the classes that the client holds, among all classes. Training on a few classes helps with those, and often costs accuracy on the others.</p>
</section>
"""

COLUMNS = ("held", "zsl", "gzsl_harmonic")


def _own(facts: Facts) -> dict[str, Any] | None:
    """Return the accuracies of the clients' own models, if there are any."""
    told = facts.run.result.get("personal")
    if not told or not told["clients"]:
        return None
    names = client_names(facts)
    columns = [told[kind][name] for name in COLUMNS for kind in ("merged", "own")]
    rows = [
        {"name": names[client], "values": [column[i] for column in columns]} for i, client in enumerate(told["clients"])
    ]
    known = [[value for value in column if value is not None] for column in columns]
    means = [float(np.mean(values)) if values else None for values in known]
    return {"own": {"rows": rows, "means": means, "epochs": told["epochs"]}}


OWN_MODELS = Section(TEMPLATE, _own)
