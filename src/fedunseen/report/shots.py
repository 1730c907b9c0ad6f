"""What examples add to descriptions, and what each prototype rests on: sections of any-shot runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.report.charts import Curve, Scale, line_chart
from fedunseen.report.parts import LISTED, Facts, Section

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
    for kind, name, color in KINDS:
        values = tensors[f"curve_{kind}"]
        mean, spread = values.mean(axis=1), values.std(axis=1, ddof=1)
        curves.append(Curve(mean, name, color, mean - spread, mean + spread))
        cells = [_written(value, own) for value, own in zip(mean, spread, strict=True)]
        rows.append((name, cells))
    chart = line_chart(curves, "ZSL accuracy", shots, Scale(unit="%"), "examples of each class", legend=True)
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
    """Say what the model has learned and forgotten since."""
    manifest = facts.whole.manifest
    learnt, forgotten = manifest.get("learnt", []), manifest.get("forgotten", [])
    return {"learnt": learnt, "forgotten": forgotten} if learnt or forgotten else None


SHOTS = Section("shots", _shots)
PROTOTYPES = Section("prototypes", _prototypes)
LATER = Section("later", _later)
