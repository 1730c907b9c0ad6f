"""What unlabelled samples changed: accuracies before and after, and how many samples each class got."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedunseen.report.parts import Facts, Section

LABELS = {"zsl": "ZSL", "gzsl_unseen": "unseen classes", "gzsl_seen": "seen classes", "gzsl_harmonic": "harmonic mean"}


def _adapted(facts: Facts) -> dict[str, Any] | None:
    """Return the table of classes, if the run was adapted."""
    note = facts.run.result.get("adapted")
    if note is None:
        return None
    table = note["classes"]
    rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    unseen = sorted((row for row in rows if not row["seen"]), key=lambda row: -row["samples"])
    seen = [row for row in rows if row["seen"] and row.get("before") is not None]
    before = note.get("before", {})
    return {
        "note": note,
        "accuracies": [(LABELS[name], before[name], facts.run.result[name]) for name in LABELS if name in before],
        "unseen": unseen,
        "most": max((row["samples"] for row in unseen), default=0) or 1,
        "total": sum(row["samples"] for row in unseen),
        "seen": sorted(seen, key=lambda row: row["after"] - row["before"]),
        "means": [float(np.mean([row[key] for row in seen])) for key in ("before", "after")] if seen else [],
    }


ADAPTED = Section("adapted", _adapted)
