"""Accuracy class by class, and which unseen classes are taken for which."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedunseen import metrics
from fedunseen.report import figures, statistics
from fedunseen.report.parts import LISTED, Facts, Section

__all__ = ["CLASSES"]

TEMPLATE = """\
{% macro ranking(bars) %}
{% set longest = bars | map(attribute="name") | map("length") | max %}
<ol class="ranking" style="--names:{{ [12, [2.6, 0.62 * longest] | max] | min }}em">
{% for one in bars %}
<li><span class="name" title="{{ one.samples }} test samples">{{ one.name }}</span>{{ bar(one.zsl, "zsl") }}{{ bar(one.gzsl, "gzsl") }}</li>
{% endfor %}
</ol>
{% endmacro %}
{% if classes %}
<section>
<h2>Accuracy by class</h2>
<h3>Unseen classes</h3>
<p class="legend"><span><i class="key zsl"></i>ZSL: only unseen classes to choose from</span><span><i class="key gzsl"></i>GZSL: all classes to choose from</span></p>
{% if classes.bars %}{{ ranking(classes.bars) }}{% endif %}
{% if classes.more_bars %}<details><summary>{{ classes.more_bars | length }} more unseen classes</summary>{{ ranking(classes.more_bars) }}</details>{% endif %}
<p class="caption">Best class first, percent of its test samples. Where the lower bar is much shorter, samples are taken for a seen class as soon as seen classes are allowed; over all unseen classes this happens to {{ "%.1f" | format(classes.lost) }}&nbsp;% of the samples.</p>
{% if classes.seen %}
<h3>Seen classes</h3>
<div class="grid">
<figure>{{ classes.histogram | safe }}</figure>
<div>
<table class="small"><thead><tr><th scope="col" class="text">hardest</th><th>%</th><th scope="col" class="text gap">easiest</th><th>%</th></tr></thead><tbody>
{% for i in range([6, classes.seen | length] | min) %}
{% set low, high = classes.seen[i], classes.seen[-1 - i] %}
<tr><td class="text">{{ low.name }}</td><td>{{ "%.1f" | format(low.gzsl) }}</td><td class="text gap">{{ high.name }}</td><td>{{ "%.1f" | format(high.gzsl) }}</td></tr>
{% endfor %}
</tbody></table>
</div>
</div>
<p class="caption">All classes to choose from{{ ", calibrated" if facts.calibrated }}. A heap at 0 would be classes that the model forgot.</p>
<details><summary>All {{ classes.seen | length }} seen classes</summary><ul class="columns">
{% for one in classes.seen | reverse %}<li><span>{{ one.name }}</span> <span class="num">{{ "%.1f" | format(one.gzsl) }}</span></li>{% endfor %}
</ul></details>
{% endif %}
</section>

{% if classes.confusion %}
<section>
<h2>What unseen classes are taken for</h2>
<figure class="scroll">{{ classes.confusion | safe }}</figure>
<p class="caption">Only unseen classes to choose from. Rows are true classes, columns answers; a row says where its test samples went, in percent. A perfect model fills the diagonal and nothing else. Classes with similar semantics stand side by side, so blocks near the diagonal are confusions among relatives.</p>
{% if classes.confused %}
<p class="caption">Most often:
{% for one in classes.confused %}<span class="pair">{{ said(one.true, one.answer) }} ({{ "%.0f" | format(one.share) }}&nbsp;%)</span>{{ ", " if not loop.last else "." }}{% endfor %}</p>
{% endif %}
</section>
{% endif %}
{% else %}
<section>
<h2>Accuracy by class</h2>
<p class="note">Every client kept its own model, so there is no single model whose answers could be shown class by class. The numbers above are means over the clients.</p>
</section>
{% endif %}
"""


def _classes(facts: Facts) -> dict[str, Any]:
    """Rank classes by accuracy, and say which unseen classes are taken for which."""
    if "labels" not in facts.tensors:
        return {"classes": None}
    tensors, count, unseen = facts.tensors, len(facts.names), facts.unseen
    labels, zsl_answers, gzsl_answers = (
        tensors[name].astype(np.int64) for name in ("labels", "zsl_answers", "gzsl_answers")
    )
    zsl = metrics.per_class(labels, zsl_answers, range(count))
    gzsl = metrics.per_class(labels, gzsl_answers, range(count))
    samples = np.bincount(labels, minlength=count)
    ranked = unseen[np.lexsort((gzsl[unseen], np.nan_to_num(zsl[unseen], nan=-1.0)))[::-1]]
    bars = [
        {
            "name": facts.names[c],
            "zsl": None if np.isnan(zsl[c]) else float(zsl[c]),
            "gzsl": None if np.isnan(gzsl[c]) else float(gzsl[c]),
            "samples": int(samples[c]),
        }
        for c in ranked.tolist()
    ]
    of_unseen = np.isin(labels, unseen)
    lost = float(100 * (~np.isin(gzsl_answers[of_unseen], unseen)).mean()) if of_unseen.any() else 0.0
    seen = np.setdiff1d(np.flatnonzero(samples), unseen)
    seen = seen[np.argsort(gzsl[seen], kind="stable")]
    scored = [{"name": facts.names[c], "gzsl": float(gzsl[c])} for c in seen.tolist()]
    tested = unseen[samples[unseen] > 0]
    order = tested[statistics.leaf_order(tensors["similarity"][np.ix_(tested, tested)])]
    table = metrics.confusion(labels, zsl_answers, order)
    wrong = np.where(np.eye(len(table), dtype=bool), 0.0, table)
    worst = [divmod(int(i), len(table)) for i in np.argsort(wrong, axis=None)[::-1][:6]]
    found = {
        "bars": bars[:LISTED],
        "more_bars": bars[LISTED:],
        "lost": lost,
        "seen": scored,
        "histogram": figures.histogram(gzsl[seen], "Seen classes by their accuracy", "accuracy %"),
        "confusion": figures.confusion_map(table, facts.of_classes(order)) if len(order) else None,
        "confused": [
            {"true": facts.names[order[i]], "answer": facts.names[order[j]], "share": float(wrong[i, j])}
            for i, j in worst
            if wrong[i, j] >= 0.5
        ],
    }

    return {"classes": found}


CLASSES = Section(TEMPLATE, _classes)
