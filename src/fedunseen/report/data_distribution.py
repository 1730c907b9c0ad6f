"""Who holds which classes and covers which attributes: the clients of a simulation, or the parties of a deployment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.data import ClassSpace
from fedunseen.report import statistics
from fedunseen.report.maps import coverage_map, holdings_map
from fedunseen.report.parts import Facts, client_names

NAMED_HOLDINGS = 150  # classes of one client that are named
DRAWN_CLIENTS = 200  # rows of a map; of more clients, evenly spaced ones are drawn


def holders(
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
        listed.append({"client": client, "classes": len(own), "samples": int(row.sum()), "names": own[:NAMED_HOLDINGS],
                       "more": max(len(own) - NAMED_HOLDINGS, 0)})  # fmt: skip
    spread = int(per_client.min()), int(per_client.max())
    return {
        "map": holdings_map(counts[:, order], facts.of_classes(order), held, idling, clients, idle, counted),
        "listed": listed,
        "of": of,
        "range": spread[:1] if spread[0] == spread[1] else spread,
        "held": held,
        "nobody_else": idle_listed,
        "idle": facts.of_classes(order[held : held + idling]),
        "nobody": facts.of_classes(facts.unseen),
    }


def coverage(counts: NDArray[np.int64], space: ClassSpace, clients: Sequence[str]) -> dict[str, Any]:
    """Return what the page says of who covers which attributes (FZSL, Fig. 3)."""
    held = counts > 0
    cover = held.astype(np.float64) @ space.semantics  # (K, a) sums over a client's classes (FZSL, Fig. 3 b)
    order, groups = statistics.attribute_order(space.attribute_groups, space.attributes)
    names = [space.attribute_names[a] for a in order.tolist()]
    if all(re.fullmatch(r"attribute \d+", name) for name in names):
        names = []  # what a source without names is given says nothing
    drawn = statistics.spaced(len(counts), DRAWN_CLIENTS)
    classes, attributes = statistics.mean_jaccard(held), statistics.mean_cosine(cover)
    return {
        "map": coverage_map(cover[drawn][:, order], names, groups, clients[drawn]),
        "most": float(np.abs(cover).max(initial=0.0)),
        "signed": bool((cover < 0).any()),
        "grouped": bool(groups),
        "classes": None if np.isnan(classes) else classes,
        "attributes": None if np.isnan(attributes) else attributes,
    }
