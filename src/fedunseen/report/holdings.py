"""Who holds which classes: the clients of a simulation, or the parties of a deployment."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedunseen.report import figures, statistics
from fedunseen.report.parts import Facts, Section, client_names

__all__ = ["DRAWN_CLIENTS", "MAP", "PARTIES", "holdings"]

NAMED_HOLDINGS = 150  # classes of one client that are named
DRAWN_CLIENTS = 200  # rows of a map; of more clients, evenly spaced ones are drawn

MAP = """\
<figure class="scroll">{{ holdings.map | safe }}</figure>
<p class="caption">Rows are {{ "where the data lie" if facts.pools else "clients" }}, columns are classes, ordered by who holds most of each; the darker, the more training samples (square root).
{{ ("Every row holds %d class%s." | format(holdings.range[0], "" if holdings.range[0] == 1 else "es")) if holdings.range | length == 1 else "A row holds %d to %d classes." | format(*holdings.range) }}
Shaded orange: nobody holds them.{% if holdings.listed | length < holdings.of %} Of {{ "{:,}".format(holdings.of) }} clients, {{ holdings.listed | length }} are drawn and listed, evenly spaced.{% endif %}</p>
<details><summary>By name</summary>
<dl class="holdings">
{% for one in holdings.listed %}
<dt>{{ one.client }} <small>{{ one.classes }} class{{ "es" if one.classes != 1 }}, {{ "{:,}".format(one.samples) }} sample{{ "s" if one.samples != 1 }}</small></dt>
<dd>{{ one.names | join(", ") }}{% if one.more %} and {{ one.more }} more{% endif %}</dd>
{% endfor %}
{% if holdings.idle %}<dt>{{ holdings.nobody_else }} <small>{{ holdings.idle | length }} classes</small></dt><dd>{{ holdings.idle | join(", ") }}</dd>{% endif %}
<dt>nobody <small>{{ holdings.nobody | length }} unseen classes</small></dt><dd>{{ holdings.nobody | join(", ") }}</dd>
</dl></details>
"""
"""The map and the list of holdings, to stand in a section; ``holdings`` is what :func:`holdings` returns."""

PARTIES_TEMPLATE = """\
<section>
<h2>The parties</h2>
<table class="small"><thead><tr><th scope="col" class="text">party</th><th scope="col">classes</th><th scope="col">samples</th><th scope="col">rounds merged</th><th scope="col">rounds missed</th><th scope="col">seconds a round</th></tr></thead><tbody>
{% for party in facts.parties %}
<tr><td class="text">{{ party.name }}</td><td>{{ party.classes }}</td><td>{{ "{:,}".format(party.samples) }}</td><td>{{ party.merged }}</td><td>{{ party.missed }}</td><td>{{ "%.2f" | format(party.seconds) if party.seconds is not none else "" }}</td></tr>
{% endfor %}
</tbody></table>
<p class="caption">Counts are what each party says it holds; which classes they are stays with it, and so do its samples. Seconds: the median of its local updates, as it says.</p>
</section>
"""


def holdings(
    facts: Facts, idle: str = "not trained on", counted: bool = False, idle_listed: str = "nobody, though not unseen"
) -> dict[str, Any]:
    """Draw and list who holds which classes.

    Args:
        facts: of the run.
        idle: what classes are that nobody holds although they are not unseen.
        idle_listed: the same in the list of names.
        counted: say how many samples of each class a client holds.
    """
    counts = facts.tensors["client_counts"]
    order, held, idling = statistics.holding_order(counts, facts.unseen)
    per_client = (counts > 0).sum(axis=1)
    drawn = statistics.spaced(len(counts), DRAWN_CLIENTS)
    clients, of, counts = client_names(facts)[drawn], len(counts), counts[drawn]
    listed = []
    for client, row in zip(clients, counts, strict=True):
        own = [f"{facts.names[c]} ({row[c]:,})" if counted else facts.names[c] for c in np.flatnonzero(row).tolist()]
        listed.append(
            {
                "client": client,
                "classes": len(own),
                "samples": int(row.sum()),
                "names": own[:NAMED_HOLDINGS],
                "more": max(len(own) - NAMED_HOLDINGS, 0),
            }
        )
    spread = int(per_client.min()), int(per_client.max())
    return {
        "map": figures.holdings_map(
            counts[:, order], facts.of_classes(order), held, idling, clients, idle_words=idle, counted=counted
        ),
        "listed": listed,
        "of": of,
        "range": spread[:1] if spread[0] == spread[1] else spread,
        "held": held,
        "nobody_else": idle_listed,
        "idle": facts.of_classes(order[held : held + idling]),
        "nobody": facts.of_classes(facts.unseen),
    }


PARTIES = Section(PARTIES_TEMPLATE, lambda facts: {} if facts.parties else None)
