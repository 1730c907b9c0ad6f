"""How to make a run again, and what it cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedunseen.core.toml import toml_text
from fedunseen.report import reproduce, statistics
from fedunseen.report.parts import Facts, Section

__all__ = ["AGAIN"]

TEMPLATE = """\
<section>
<h2>Make it again</h2>
<pre><code>{{ technical.command }}</code></pre>
{% if not technical.whole %}<p class="caption">Save the experiment below as that file first.</p>{% endif %}
<details><summary>The whole experiment</summary><pre><code>{{ technical.toml }}</code></pre></details>
<dl class="facts">
<dt>time</dt><dd>{{ "{:,.1f}".format(technical.seconds) }} s in all{% if technical.per_round is not none %}, {{ "%.3g" | format(technical.per_round) }} s a round of the reported run{% endif %}</dd>
<dt>data</dt><dd class="long">{{ technical.fingerprint }}</dd>
<dt>started</dt><dd>{{ technical.created }}</dd>
<dt>versions</dt><dd>{% for name, version in technical.versions.items() %}<span class="pair">{{ name }} {{ version }}</span>{{ ", " if not loop.last }}{% endfor %}</dd>
</dl>
</section>
"""


def _technical(facts: Facts) -> dict[str, Any]:
    """Return what is needed to make the run again, and what it cost."""
    run, tree, lines = facts.whole, facts.experiment, facts.run.metrics
    again, whole = reproduce.command(tree, run.manifest.get("plugins", ()), f"{run.result['run']}-again")
    found = {
        "command": again,
        "whole": whole,
        "toml": toml_text(tree),
        "versions": run.manifest["versions"],
        "fingerprint": run.manifest["data_fingerprint"],
        "created": run.manifest["created"],
        "seconds": run.result["seconds"],
        "per_round": float(np.nanmean(statistics.curve(lines, "seconds"))) if lines else None,
    }

    return {"technical": found}


AGAIN = Section(TEMPLATE, _technical)
