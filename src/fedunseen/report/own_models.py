"""Each client's own model: beside the merged one, where clients trained on, or where each client has nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedunseen.report.parts import Facts, Section, client_names

COLUMNS = {"held": "own classes", "zsl": "ZSL", "gzsl_harmonic": "H"}


def _own(facts: Facts) -> dict[str, Any] | None:
    """Return the accuracies of the clients' own models, if there are any."""
    personal = facts.run.result.get("personal")
    if not personal or not personal["clients"]:
        return None
    names = client_names(facts)
    kinds = [kind for kind in ("merged", "own") if kind in personal]
    heads = [f"{word}, {kind}" if len(kinds) > 1 else word for word in COLUMNS.values() for kind in kinds]
    columns = [personal[kind][name] for name in COLUMNS for kind in kinds]
    rows = [
        {"name": names[client], "values": [column[i] for column in columns]}
        for i, client in enumerate(personal["clients"])
    ]
    known = [[value for value in column if value is not None] for column in columns]
    means = [float(np.mean(values)) if values else None for values in known]
    return {"own": {"columns": heads, "rows": rows, "means": means, "epochs": personal.get("epochs")}}


OWN_MODELS = Section("own_models", _own)
