"""Who holds which classes: the clients of a simulation, or the parties of a deployment."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedunseen.report import statistics
from fedunseen.report.maps import holdings_map
from fedunseen.report.parts import Facts, Section, client_names

NAMED_HOLDINGS = 150  # classes of one client that are named
DRAWN_CLIENTS = 200  # rows of a map; of more clients, evenly spaced ones are drawn


def holdings(
    facts: Facts, idle: str = "not trained on", counted: bool = False, idle_listed: str = "no one, though not unseen"
) -> dict[str, Any]:
    """Draw and list who holds which classes."""
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
        "map": holdings_map(
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


PARTIES = Section("parties", lambda facts: {} if facts.parties else None)
