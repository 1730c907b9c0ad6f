"""An attack in the report of its run, and against each defence as one page: curves by round
(FedZSL, Fig. 8), triggers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.files import write_text
from fedunseen.pages.report import parts, statistics
from fedunseen.pages.report.charts import Curve, Scale, line_chart
from fedunseen.pages.report.reproducibility import shown_command
from fedunseen.pages.report.svg import image_source, to_rows
from fedunseen.pages.report.trigger_files import magnitudes, pictures

Facts = Mapping[str, Any]

COLORS = ("orange", "purple", "green", "sky")
BINS = 40


def write_backdoor_report(facts: Facts, path: Path, runs: Path) -> list[str]:
    """Write the page of an attack to ``path``; return its conclusions."""
    from markupsafe import Markup

    shown = pictures(runs / "none-attacked")
    tried = {name: row for name, row in facts["defences"].items() if "refused" not in row}
    context = {
        "facts": facts,
        "conclusions": (said := conclusions(facts)),
        "rows": tried.items(),
        "refused": [
            (name, row["refused"]) for name, row in facts["defences"].items() if "refused" in row
        ],
        "charts": [
            Markup(_chart("no defence" if name == "none" else name, row["curves"]))
            for name, row in tried.items()
        ],
        "strips": [
            (trigger, [image_source(to_rows(image)) for image in images])
            for trigger, images in zip(facts["triggers"], shown, strict=False)
        ],
        "magnitudes": [
            Markup(magnitude_chart(*item)) for item in magnitudes(runs / "none-attacked").items()
        ],
        "command": shown_command(facts),
    }
    write_text(path, parts.render("backdoor.html", context))
    return said


def conclusions(facts: Facts) -> list[str]:
    """Return what the numbers of ``backdoor.json`` mean in plain words."""
    return parts.paragraphs("backdoor_findings", {"facts": facts})


def magnitude_chart(round: int, values: Mapping[str, NDArray[Any]]) -> str:
    """Draw how the sums of features are distributed among clean samples and those of each trigger
    (FedZSL, Fig. 7).
    """
    pooled = np.concatenate([sums.astype(np.float64) for sums in values.values()])
    pooled = pooled[np.isfinite(pooled)]
    low, high = (float(pooled.min()), float(pooled.max())) if len(pooled) else (0.0, 1.0)
    if high - low > 5:
        low = float(np.floor(low))
        high = float(np.ceil(high))
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    curves = []
    for i, name in enumerate(["clean", *sorted(set(values) - {"clean"})]):
        sums = values[name].astype(np.float64)
        share = 100 * np.histogram(sums[np.isfinite(sums)], edges)[0] / max(len(sums), 1)
        curves.append(
            Curve(share, name, "blue" if name == "clean" else COLORS[(i - 1) % len(COLORS)])
        )
    title = f"Features' magnitude after round {round}"
    return line_chart(
        curves, title, edges[:-1], Scale(unit="%"), "sum of a sample's features", legend=True
    )


def _chart(title: str, curves: Mapping[str, Any], mark: float | None = None) -> str:
    """Draw main and backdoor accuracy by round; ``mark`` is a round."""
    x = np.arange(1, len(curves["zsl"]) + 1, dtype=np.float64)
    triggers = sorted(key for key in curves if key.startswith("backdoor: "))
    looks = {
        "zsl": ("ZSL", "blue"),
        "gzsl_seen": ("seen", "grey"),
        "honest zsl": ("ZSL, honest", "blue"),
    }
    for i, key in enumerate(triggers):
        looks[key] = (key if len(triggers) > 1 else "backdoor", COLORS[i % len(COLORS)])
    drawn = [
        Curve(np.array(curves[key]), *look, dashed=key == "honest zsl")
        for key, look in looks.items()
        if key in curves
    ]
    return line_chart(drawn, title, x, Scale(100.0, "%"), mark=mark, legend=True)


def attacked(facts: parts.Facts) -> parts.Content:
    """Return what the report of a run says of an attack and of screening; None for a run without
    either.
    """
    run = facts.run
    lines = run.metrics
    attack = run.result.get("attack")
    if attack is None and "screened" not in run.result:
        return None
    charts = []
    if attack:
        curves = {name: statistics.curve(lines, name) for name in ("zsl", "gzsl_seen")}
        for name in lines[0].get("backdoor_of", {}):
            curves[f"backdoor: {name}"] = statistics.curve(
                [line["backdoor_of"] for line in lines], name
            )
        charts = [_chart("Main and backdoor accuracy", curves, next(iter(attack["rounds"]), None))]
    return {
        "attack": attack,
        "name": run.manifest["experiment"].get("attack", {}).get("name"),
        "backdoor": {key: run.result[key] for key in run.result if key.startswith("backdoor")},
        "charts": charts + [magnitude_chart(*item) for item in magnitudes(run.path).items()],
        "screened": run.result.get("screened"),
        "empty": [line["round"] for line in lines if line.get("screening", {}).get("empty")],
    }
