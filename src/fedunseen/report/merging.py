"""What a defence left of the clients' replies, and what private merging has cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedunseen.report.charts import Curve, line_chart
from fedunseen.report.parts import Facts, Section, client_names


def merging_section(lines: Sequence[Mapping[str, Any]], clients: Sequence[str]) -> dict[str, Any] | None:
    """Return what the page says of merging; None for a run without defence, private merging or lost replies."""
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
        rows.append(
            {
                "client": client,
                "replies": len(said),
                "out": sum(not part for part in kept),
                "shortened": sum(0 < part < 1 for part in kept),
                "length": float(np.mean(lengths)) if lengths else None,
                "why": "; ".join(f"{reason} ({_rounds(of)})" for reason, of in why.items()),
            }
        )
    x = np.array([line["round"] for line in lines], dtype=np.float64)
    norms = [[v for v in line["defence"]["norms"] if v is not None] or [np.nan] for line in lines]
    middle, high = (np.array([of(values) for values in norms], dtype=np.float64) for of in (np.median, np.max))
    curves = [Curve(high, "longest", "orange"), Curve(middle, "median", "blue")]
    return {
        "name": lines[0]["defence"]["name"],
        "rows": rows,
        "replies": sum(row["replies"] for row in rows),
        "out": sum(row["out"] for row in rows),
        "shortened": sum(row["shortened"] for row in rows),
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
    x = np.array([line["round"] for line in lines], dtype=np.float64)
    curve = Curve(np.array([defence["epsilon"] for defence in spent], dtype=np.float64), "epsilon", "purple")
    updates = sum(len(line["participants"]) for line in lines)
    return {
        **spent[-1],
        "rounds": len(lines),
        "clipped": 100 * sum(defence["clipped"] for defence in spent) / max(updates, 1)
        if "clipped" in spent[-1]
        else None,
        "chart": line_chart([curve], "epsilon spent", x),
    }


def _merging(facts: Facts) -> dict[str, Any] | None:
    content = merging_section(facts.run.metrics, client_names(facts))
    return {"merging": content} if content else None


MERGING = Section("merging", _merging)
