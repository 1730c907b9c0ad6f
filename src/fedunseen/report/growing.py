"""Classes that came and went while a run trained: accuracies by stage, and what was forgotten."""

from __future__ import annotations

from typing import Any

from fedunseen.report import statistics
from fedunseen.report.charts import Curve, Scale, line_chart
from fedunseen.report.parts import LINES, Facts, Section, axis, upper_end

GROUPS = {"old": "blue", "new": "green", "unseen": "purple", "left": "grey"}
CHANGES = {
    "added": "{} new",
    "gained": "{} with a first holder",
    "corrected": "{} described again",
    "left": "{} without a holder",
}
SHOWN = 4  # names of classes in a line, and columns between the first and the last


def _growing(facts: Facts) -> dict[str, Any] | None:
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
    events = [
        {
            "round": i + 1,
            "words": _words(lines[i]["space"], i),
            **{k: lines[i]["space"][k] for k in ("known", "unseen")},
        }
        for i in changed
    ]
    content = {"charts": charts, "rounds": [i + 1 for i in columns], "rows": rows, "events": events}
    return {"growing": content}


def _words(space: dict[str, Any], round: int) -> str:
    """Say what changed in a round."""
    parts = []
    for key, words in CHANGES.items():
        names = space.get(key, [])
        if key == "gained":  # of those that were known before
            names = [name for name in names if name not in space.get("added", [])]
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            parts.append(f"{words.format(len(names))} ({', '.join(names[:SHOWN])}{more})")
    return "; ".join(parts) or ("the start" if not round else "no change")


GROWING = Section("growing", _growing)
