"""An attack against each defence, as one HTML page: a table, curves by round (FedZSL, Fig. 8), triggers, magnitudes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.files import write_text
from fedunseen.report.charts import Curve, Scale, line_chart
from fedunseen.report.parts import paragraphs, render
from fedunseen.report.reproducibility import attack_command
from fedunseen.report.svg import image_source, to_rows

Facts = Mapping[str, Any]

COLORS = ("orange", "purple", "green", "sky")
BINS = 40


def write_backdoor_report(facts: Facts, path: Path, runs: Path) -> Path:
    """Write the page of an attack."""
    from markupsafe import Markup

    from fedunseen.tools.backdoor import magnitudes, pictures

    shown = pictures(runs / "none-attacked")
    tried = {name: row for name, row in facts["defences"].items() if "refused" not in row}
    context = {
        "facts": facts,
        "conclusions": conclusions(facts),
        "rows": tried.items(),
        "refused": [(name, row["refused"]) for name, row in facts["defences"].items() if "refused" in row],
        "charts": [Markup(_chart(name, row["curves"])) for name, row in tried.items()],
        "strips": [
            (trigger, [image_source(to_rows(image)) for image in images])
            for trigger, images in zip(facts["triggers"], shown, strict=False)
        ],
        "magnitudes": [
            Markup(magnitude_chart(values, f"Features' magnitude after round {round}"))
            for round, values in magnitudes(runs / "none-attacked").items()
        ],
        "command": _command(facts),
    }
    write_text(path, render("backdoor.html", context))
    return path


def conclusions(facts: Facts) -> list[str]:
    """Return what the numbers of ``backdoor.json`` mean in plain words."""
    return paragraphs("backdoor_findings", {"facts": facts})


def magnitude_chart(values: Mapping[str, NDArray[Any]], title: str) -> str:
    """Draw how the sums of features are distributed among clean samples and those of each trigger (FedZSL, Fig. 7)."""
    pooled = np.concatenate([sums.astype(np.float64) for sums in values.values()])
    pooled = pooled[np.isfinite(pooled)]
    low, high = (float(pooled.min()), float(pooled.max())) if len(pooled) else (0.0, 1.0)
    if high - low > 5:
        low, high = float(np.floor(low)), float(np.ceil(high))
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    curves = []
    for i, name in enumerate(["clean", *sorted(set(values) - {"clean"})]):
        sums = values[name].astype(np.float64)
        share = 100 * np.histogram(sums[np.isfinite(sums)], edges)[0] / max(len(sums), 1)
        curves.append(Curve(share, name, "blue" if name == "clean" else COLORS[(i - 1) % len(COLORS)]))
    return line_chart(curves, title, edges[:-1], Scale(unit="%"), "sum of a sample's features", legend=True)


def _chart(name: str, curves: Facts) -> str:
    """Draw main and backdoor accuracy by round under a defence."""
    x = np.arange(1, len(curves["zsl"]) + 1, dtype=np.float64)
    triggers = sorted(key for key in curves if key.startswith("backdoor: "))
    drawn = [
        Curve(np.array(curves[key]), key if len(triggers) > 1 else "backdoor", COLORS[i % len(COLORS)])
        for i, key in enumerate(triggers)
    ]
    drawn += [
        Curve(np.array(curves["zsl"]), "ZSL", "blue"),
        Curve(np.array(curves["gzsl_seen"]), "seen", "grey"),
        Curve(np.array(curves["honest zsl"]), "ZSL, honest", "blue", dashed=True),
    ]
    return line_chart(drawn, name if name != "none" else "no defence", x, Scale(100.0, "%"), legend=True)


def _command(facts: Facts) -> str:
    """Return the command that reproduces the numbers."""
    defences = ",".join(name for name in facts["defences"] if name != "none")
    return attack_command(facts["experiment"], "backdoor", [f"--defences {shlex.quote(defences)}"])
