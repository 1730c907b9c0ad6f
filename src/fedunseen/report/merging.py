"""What a defence left of the clients' replies, what private merging has cost, and what malicious clients did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedunseen.report import statistics
from fedunseen.report.backdoor_page import COLORS, magnitude_chart
from fedunseen.report.charts import Curve, Scale, line_chart
from fedunseen.report.parts import Content, Facts, axis, client_names
from fedunseen.report.svg import Floats

if TYPE_CHECKING:
    from fedunseen.experiment.result.run import Run


def merging(facts: Facts) -> Content:
    """Return what the page says of merging; None for a run without defence, private merging or lost replies."""
    content = merging_section(facts.run.metrics, client_names(facts))
    return {"merging": content} if content else None


def merging_section(lines: Sequence[Mapping[str, Any]], clients: Sequence[str]) -> dict[str, Any] | None:
    """Return the same of lines of metrics and the clients' names."""
    defended = [line for line in lines if "defence" in line]
    private = [line for line in lines if "privacy" in line]
    lost = [f"{clients[int(client)]} in round {line['round']}" for line in lines for client in line.get("dropped", {})]
    if not (defended or private or lost):
        return None
    return {
        "defence": _defence(defended, clients) if defended else None,
        "privacy": _privacy(private) if private else None,
        "lost": ", ".join(lost[:20]) + (f" and {len(lost) - 20} more" if len(lost) > 20 else ""),
    }


def _defence(lines: Sequence[Mapping[str, Any]], clients: Sequence[str]) -> dict[str, Any]:
    rows = []
    for k, client in enumerate(clients):
        said = [(line["round"], line["defence"], line["defence"]["clients"].index(k)) for line in lines
                if k in line["defence"]["clients"]]  # fmt: skip
        kept = [defence["kept"][i] for _, defence, i in said]
        lengths = [defence["norms"][i] for _, defence, i in said if defence["norms"][i] is not None]
        why: dict[str, list[int]] = {}
        for round, defence, _ in said:
            if reason := defence["dropped"].get(str(k)):
                why.setdefault(reason, []).append(round)
        reasons = "; ".join(f"{reason} ({_rounds(of)})" for reason, of in why.items())
        out, shortened = sum(not part for part in kept), sum(0 < part < 1 for part in kept)
        row = {"client": client, "replies": len(said), "out": out, "shortened": shortened, "why": reasons}
        rows.append({**row, "length": float(np.mean(lengths)) if lengths else None})
    x = axis(lines)
    norms = [[v for v in line["defence"]["norms"] if v is not None] or [np.nan] for line in lines]
    middle, high = (np.array([of(values) for values in norms], dtype=np.float64) for of in (np.median, np.max))
    curves = [Curve(high, "longest", "orange"), Curve(middle, "median", "blue")]
    return {
        "name": lines[0]["defence"]["name"],
        "rows": rows,
        **{count: sum(row[count] for row in rows) for count in ("replies", "out", "shortened")},
        "nothing": [line["round"] for line in lines if not line["defence"]["merged"]],
        "chart": line_chart(curves, "Lengths of the updates as they came", x, legend=True),
    }


def _rounds(rounds: Sequence[int]) -> str:
    """Write rounds, runs of them short."""
    parts: list[list[int]] = []
    for round in rounds:
        if parts and round == parts[-1][1] + 1:
            parts[-1][1] = round
        else:
            parts.append([round, round])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _privacy(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    spent = [line["privacy"] for line in lines]
    x = axis(lines)
    curve = Curve(np.array([defence["epsilon"] for defence in spent], dtype=np.float64), "epsilon", "purple")
    updates = sum(len(line["participants"]) for line in lines)
    known = "clipped" in spent[-1]
    clipped = 100 * sum(line["clipped"] for line in spent) / max(updates, 1) if known else None
    return {**spent[-1], "rounds": len(lines), "clipped": clipped, "chart": line_chart([curve], "epsilon spent", x)}


def attacked(facts: Facts) -> Content:
    """Return what the page says of an attack and of screening; None for a run without either."""
    from fedunseen.tools.backdoor import magnitudes

    run = facts.run
    lines, attack = run.metrics, run.result.get("attack")
    screened = [line for line in lines if "screening" in line]
    if attack is None and not screened:
        return None
    x = axis(lines)
    maps = magnitudes(run.path).items()
    return {
        "attacked": {
            "attack": attack,
            "name": run.manifest["experiment"].get("attack", {}).get("name"),
            "chart": _accuracies(lines, x, run) if attack else None,
            "backdoor": {key: run.result[key] for key in run.result if key.startswith("backdoor")},
            "magnitudes": [
                magnitude_chart(values, f"Features' magnitude after round {round}") for round, values in maps
            ],
            "screened": run.result.get("screened"),
            "dropped": _dropped(screened) if screened else None,
            "empty": sorted({line["round"] for line in screened if line["screening"].get("empty")}),
        }
    }


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
    x = axis(lines)
    return line_chart(curves, "Samples that clients dropped", x, Scale(unit="%"), legend=True)
