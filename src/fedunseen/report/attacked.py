"""What malicious clients did to a run, and what the clients' screening dropped (FedZSL, Figs. 7 and 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedunseen.report import statistics
from fedunseen.report.backdoor_page import COLORS, magnitude_chart
from fedunseen.report.charts import Curve, Scale, line_chart
from fedunseen.report.parts import Facts, Section
from fedunseen.report.svg import Floats

if TYPE_CHECKING:
    from fedunseen.experiment.result.run import Run


def _attacked(facts: Facts) -> dict[str, Any] | None:
    """Return what the page says of an attack and of screening; None for a run without either."""
    from fedunseen.experiment.defence_study import magnitudes

    run = facts.run
    lines, attack = run.metrics, run.result.get("attack")
    screened = [line for line in lines if "screening" in line]
    if attack is None and not screened:
        return None
    x = np.array([line["round"] for line in lines], dtype=np.float64)
    content: dict[str, Any] = {"attack": attack, "name": run.manifest["experiment"].get("attack", {}).get("name")}
    content["chart"] = _accuracies(lines, x, run) if attack else None
    content["backdoor"] = {key: run.result[key] for key in run.result if key.startswith("backdoor")}
    content["magnitudes"] = [
        magnitude_chart(values, f"Features' magnitude after round {round}")
        for round, values in magnitudes(run.path).items()
    ]
    content["screened"] = run.result.get("screened")
    content["dropped"] = _dropped(screened) if screened else None
    content["empty"] = sorted({line["round"] for line in screened if line["screening"].get("empty")})
    return {"attacked": content}


def _accuracies(lines: Sequence[Mapping[str, Any]], x: Floats, run: Run) -> str:
    """Draw main and backdoor accuracies by round; the first attacked round is marked on the ZSL accuracy."""
    triggers = sorted(lines[0].get("backdoor_of", {}))  # as in the charts of magnitudes
    curves = [
        Curve(statistics.curve(lines, "zsl"), "ZSL", "blue"),
        Curve(statistics.curve(lines, "gzsl_seen"), "S", "grey"),
    ]
    for i, name in enumerate(triggers):
        of_trigger = statistics.curve([line["backdoor_of"] for line in lines], name)
        curves.append(Curve(of_trigger, f"backdoor: {name}", COLORS[i % len(COLORS)]))
    rounds = run.result["attack"]["rounds"]
    mark = rounds[0] if rounds else None
    return line_chart(curves, "Main and backdoor accuracy", x, Scale(100.0, "%"), mark=mark, legend=True)


def _dropped(lines: Sequence[Mapping[str, Any]]) -> str:
    """Draw which share of clean and of poisoned samples was dropped, by round."""
    curves = []
    for kind, color in (("clean", "blue"), ("poisoned", "orange")):
        screening = [line["screening"] for line in lines]
        share = [100 * item[f"{kind}_dropped"] / item[kind] if item[kind] else np.nan for item in screening]
        if np.isfinite(share).any():
            curves.append(Curve(np.array(share, dtype=np.float64), kind, color))
    x = np.array([line["round"] for line in lines], dtype=np.float64)
    return line_chart(curves, "Samples that clients dropped", x, Scale(unit="%"), legend=True)


ATTACKED = Section("attacked", _attacked)
