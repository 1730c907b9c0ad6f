"""Sections that only some runs have: unlabelled samples, classes that came and went, clients' own models, examples."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedunseen.report import statistics
from fedunseen.report.charts import Curve, Scale, line_chart
from fedunseen.report.parts import LINES, LISTED, Content, Facts, axis, client_names, upper_end

ACCURACIES = {
    "zsl": "ZSL", "gzsl_unseen": "unseen classes", "gzsl_seen": "seen classes", "gzsl_harmonic": "harmonic mean",
}  # fmt: skip
OWN = {"held": "own classes", "zsl": "ZSL", "gzsl_harmonic": "H"}
EXAMPLES = (
    ("both", "description and examples", "orange"),
    ("examples", "examples alone", "blue"),
    ("nearest", "nearest mean of the examples", "grey"),
)
GROUPS = {"old": "blue", "new": "green", "unseen": "purple", "left": "grey"}
CHANGES = {"added": "{} new", "gained": "{} with a first holder", "left": "{} without a holder"}
SHOWN = 4  # names of classes in a line, and columns between the first and the last


def adapted(facts: Facts) -> Content:
    """Return what unlabelled samples changed: accuracies before and after, and how many samples each class got."""
    note = facts.run.result.get("adapted")
    if note is None:
        return None
    table, before = note["classes"], note.get("before", {})
    rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    unseen = sorted((row for row in rows if not row["seen"]), key=lambda row: -row["samples"])
    seen = [row for row in rows if row["seen"] and row.get("before") is not None]
    return {
        "note": note,
        "accuracies": [(words, before[key], facts.run.result[key]) for key, words in ACCURACIES.items() if key in before],
        "unseen": unseen,
        "most": max((row["samples"] for row in unseen), default=0) or 1,
        "total": sum(row["samples"] for row in unseen),
        "seen": sorted(seen, key=lambda row: row["after"] - row["before"]),
        "means": [float(np.mean([row[key] for row in seen])) for key in ("before", "after")] if seen else [],
    }  # fmt: skip


def own_models(facts: Facts) -> Content:
    """Return the accuracies of clients' own models: beside the merged one, or where each has nothing else."""
    personal = facts.run.result.get("personal")
    if not personal or not personal["clients"]:
        return None
    names = client_names(facts)
    kinds = [kind for kind in ("merged", "own") if kind in personal]
    heads = [f"{word}, {kind}" if len(kinds) > 1 else word for word in OWN.values() for kind in kinds]
    columns = [personal[kind][name] for name in OWN for kind in kinds]
    rows = [
        {"name": names[client], "values": [column[i] for column in columns]}
        for i, client in enumerate(personal["clients"])
    ]
    known = [[value for value in column if value is not None] for column in columns]
    means = [float(np.mean(values)) if values else None for values in known]
    return {"own": {"columns": heads, "rows": rows, "means": means, "epochs": personal.get("epochs")}}


def shots(facts: Facts) -> Content:
    """Draw the accuracy by examples of each class."""
    tensors = facts.tensors
    counts = tensors.get("curve_shots")
    if counts is None or len(counts) < 2:
        return None
    curves, rows = [], []
    for kind, name, color in EXAMPLES:
        values = tensors[f"curve_{kind}"]
        mean, spread = values.mean(axis=1), values.std(axis=1, ddof=1)
        curves.append(Curve(mean, name, color, mean - spread, mean + spread))
        written = [f"{m:.1f}" + (f" ± {sd:.1f}" if sd > 0 else "") for m, sd in zip(mean, spread, strict=True)]
        rows.append((name, ["–" if np.isnan(m) else words for m, words in zip(mean, written, strict=True)]))
    chart = line_chart(curves, "ZSL accuracy", counts, Scale(unit="%"), "examples of each class", legend=True)
    draws = tensors["curve_both"].shape[1]
    return {"chart": chart, "rows": rows, "shots": [int(k) for k in counts], "draws": draws}


def prototypes(facts: Facts) -> Content:
    """List the unseen classes with their uncertainty and the classes that they rest on."""
    deviation = facts.tensors.get("prototype_deviation")
    if deviation is None:
        return None
    names, weights = facts.run.space.names, facts.tensors["support_weights"]
    classes = facts.tensors["support_classes"].astype(np.int64)
    unseen = [c for c in facts.unseen.tolist() if not np.isnan(deviation[c])]
    rows = [
        {
            "name": names[c],
            "deviation": float(deviation[c]),
            "support": [(names[o], float(w)) for o, w in zip(classes[c], weights[c], strict=True) if abs(w) > 0.005],
        }
        for c in sorted(unseen, key=lambda c: -float(deviation[c]))[:LISTED]
    ]
    return {"rows": rows}


def later(facts: Facts) -> Content:
    """Return what the model has learned and forgotten since."""
    learnt, forgotten = (facts.whole.manifest.get(key, []) for key in ("learnt", "forgotten"))
    return {"learnt": learnt, "forgotten": forgotten} if learnt or forgotten else None


def growing(facts: Facts) -> Content:
    """Draw the accuracies of the groups of classes, if the class space grew."""
    lines = facts.run.metrics
    if not lines or "stages" not in lines[-1]:
        return None
    stages = [line.get("stages", {}) for line in lines]
    names = list(dict.fromkeys(name for stage in stages for name in stage))
    cohorts = sorted((name for name in names if name not in GROUPS), key=lambda name: int(name.rpartition(" ")[2]))
    charts = []
    if len(lines) > 1:
        groups = [Curve(statistics.curve(stages, name), name, GROUPS[name]) for name in GROUPS if name in names]
        since = [
            Curve(statistics.curve(stages, name), name, LINES[i % len(LINES)], dashed=i >= len(LINES))
            for i, name in enumerate(cohorts)
        ]
        top = upper_end([*groups, *since])
        charts = [
            line_chart(curves, title, axis(lines), Scale(top, "%"), legend=True)
            for curves, title in ((groups, "Old, new and unseen classes"), (since, "Classes by when they came"))
            if curves
        ]
    changed = [i for i, line in enumerate(lines) if i == 0 or line["space"]["since"] == i + 1]
    columns = sorted({*changed[-SHOWN:], len(lines) - 1})
    forgotten = facts.run.result.get("forgetting", {})
    rows = [
        {"name": name, "values": [stages[i].get(name) for i in columns], "forgotten": forgotten.get(name)}
        for name in [*(name for name in GROUPS if name in names), *cohorts]
    ]
    spaces = [(i, lines[i]["space"]) for i in changed]
    events = [{"round": i + 1, "words": _changes(space, i), **{k: space[k] for k in ("known", "unseen")}}
              for i, space in spaces]  # fmt: skip
    return {"growing": {"charts": charts, "rounds": [i + 1 for i in columns], "rows": rows, "events": events}}


def _changes(space: dict[str, Any], round: int) -> str:
    """Return what changed in a round, in words."""
    parts = []
    for key, words in CHANGES.items():
        names = space.get(key, [])
        if key == "gained":  # of those that were known before
            names = [name for name in names if name not in space.get("added", [])]
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            parts.append(f"{words.format(len(names))} ({', '.join(names[:SHOWN])}{more})")
    return "; ".join(parts) or ("the start" if not round else "no change")
