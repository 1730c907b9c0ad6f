"""What examples add to descriptions, and what each prototype rests on: sections of any-shot runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.report import figures
from fedunseen.report.figures import Curve
from fedunseen.report.parts import LISTED, Facts, Section

__all__ = ["LATER", "PROTOTYPES", "SHOTS"]

SHOTS_TEMPLATE = """\
<section id="shots">
<h2>With a few examples</h2>
<p>An unseen class may be described, shown, or both. Here {{ draws }} draws of examples were taken from the test samples
of the unseen classes, and left out of the test. The accuracy is ZSL: among the unseen classes.</p>
<div class="grid">{{ chart | safe }}</div>
<div class="scroll"><table>
<thead><tr><th scope="col">examples of each class</th>{% for k in shots %}<th scope="col">{{ k }}</th>{% endfor %}</tr></thead>
<tbody>
{% for name, values in rows %}
<tr><th scope="row">{{ name }}</th>{% for value in values %}<td>{{ value }}</td>{% endfor %}</tr>
{% endfor %}
</tbody>
</table></div>
<p class="caption">Percent, mean ± standard deviation over the draws. These numbers choose nothing.</p>
</section>
"""

PROTOTYPES_TEMPLATE = """\
<section id="prototypes">
<h2>What each unseen class rests on</h2>
<p>The model predicts the prototype of an unseen class from the prototypes of classes that somebody holds. A weight says
how much such a class counts; a negative one pushes away. The uncertainty is the standard deviation of a prototype, in
units of how far samples of one class lie apart.</p>
<details{{ " open" if rows | length <= 20 }}><summary>The {{ rows | length }} unseen classes, most uncertain first</summary>
<div class="scroll"><table>
<thead><tr><th scope="col">class</th><th scope="col">uncertainty</th><th scope="col" class="text">rests on</th></tr></thead>
<tbody>
{% for row in rows %}
<tr><th scope="row">{{ row.name }}</th><td>{{ "%.3f" | format(row.deviation) }}</td>
<td class="text wrap">{% for name, weight in row.support %}{{ name }} {{ "%+.2f" | format(weight) }}{{ ", " if not loop.last }}{% endfor %}</td></tr>
{% endfor %}
</tbody>
</table></div>
</details>
</section>
"""

LATER_TEMPLATE = """\
<section id="later">
<h2>Since the run ended</h2>
{% if learnt %}<p>The model has learnt {{ learnt | length }} class{{ "es" if learnt | length != 1 }}: <strong>{{ learnt | join(", ") }}</strong>.
No test sample is of {{ "them" if learnt | length != 1 else "it" }}: all numbers on this page are from before.</p>{% endif %}
{% if forgotten %}<p>The model has forgotten: <strong>{{ forgotten | join(", ") }}</strong>. The accuracies on this page are those of the model without {{ "them" if forgotten | length != 1 else "it" }}.</p>{% endif %}
</section>
"""

KINDS = (
    ("both", "description and examples", "orange"),
    ("examples", "examples alone", "blue"),
    ("nearest", "nearest mean of the examples", "grey"),
)


def _shots(facts: Facts) -> dict[str, Any] | None:
    """Draw the accuracy by examples of each class."""
    tensors = facts.tensors
    shots = tensors.get("curve_shots")
    if shots is None or len(shots) < 2:
        return None
    curves, rows = [], []
    for kind, name, colour in KINDS:
        values = tensors[f"curve_{kind}"]
        mean, spread = values.mean(axis=1), values.std(axis=1, ddof=1)
        curves.append(Curve(mean, name, colour, mean - spread, mean + spread))
        told = [_written(value, own) for value, own in zip(mean, spread, strict=True)]
        rows.append((name, told))
    chart = figures.line_chart(curves, "ZSL accuracy", shots, x_label="examples of each class", unit="%", legend=True)
    draws = tensors["curve_both"].shape[1]
    return {"chart": chart, "rows": rows, "shots": [int(k) for k in shots], "draws": draws}


def _written(mean: float, spread: float) -> str:
    if np.isnan(mean):
        return "–"
    return f"{mean:.1f} ± {spread:.1f}" if spread > 0 else f"{mean:.1f}"


def _prototypes(facts: Facts) -> dict[str, Any] | None:
    """List the unseen classes with their uncertainty and the classes that they rest on."""
    deviation = facts.tensors.get("prototype_deviation")
    if deviation is None:
        return None
    names = facts.run.space.names
    classes: NDArray[np.int64] = facts.tensors["support_classes"].astype(np.int64)
    weights = facts.tensors["support_weights"]
    unseen = [c for c in facts.unseen.tolist() if not np.isnan(deviation[c])]
    order = sorted(unseen, key=lambda c: -float(deviation[c]))[:LISTED]
    rows = [
        {
            "name": names[c],
            "deviation": float(deviation[c]),
            "support": [(names[o], float(w)) for o, w in zip(classes[c], weights[c], strict=True) if abs(w) > 0.005],
        }
        for c in order
    ]
    return {"rows": rows}


def _later(facts: Facts) -> dict[str, Any] | None:
    """Say what the model has learnt and forgotten since."""
    manifest = facts.whole.manifest
    learnt, forgotten = manifest.get("learnt", []), manifest.get("forgotten", [])
    return {"learnt": learnt, "forgotten": forgotten} if learnt or forgotten else None


SHOTS = Section(SHOTS_TEMPLATE, _shots)
PROTOTYPES = Section(PROTOTYPES_TEMPLATE, _prototypes)
LATER = Section(LATER_TEMPLATE, _later)
