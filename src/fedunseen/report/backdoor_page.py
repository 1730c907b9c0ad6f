"""An attack against each defence, as one HTML page: a table, curves by round (FedZSL, Fig. 8), triggers, magnitudes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen.core.files import write_text
from fedunseen.core.toml import toml_text
from fedunseen.report import figures, reproduce
from fedunseen.report.figures import Curve
from fedunseen.report.parts import render

__all__ = ["conclusions", "magnitude_chart", "write_backdoor_report"]

Facts = Mapping[str, Any]

COLOURS = ("orange", "purple", "green", "sky")
BINS = 40


def write_backdoor_report(facts: Facts, path: Path, runs: Path) -> Path:
    """Write the page of an attack.

    Args:
        facts: what ``backdoor.json`` holds.
        path: where to.
        runs: the folder of the runs, for pictures of the triggers and features' magnitudes.
    """
    from markupsafe import Markup

    from fedunseen.experiment.study import magnitudes, pictures

    shown = pictures(runs / "none-attacked")
    context = {
        "facts": facts,
        "conclusions": conclusions(facts),
        "rows": [(name, one) for name, one in facts["defences"].items() if "refused" not in one],
        "refused": [(name, one["refused"]) for name, one in facts["defences"].items() if "refused" in one],
        "charts": [Markup(_chart(facts, name, one)) for name, one in facts["defences"].items() if "refused" not in one],
        "strips": [
            (trigger, [figures.image_source(_pixels(image)) for image in images])
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
    """Say in plain words what the numbers of ``backdoor.json`` mean."""
    rows, attack = facts["defences"], facts["experiment"]["attack"]
    none, clients = rows["none"]["attacked"], attack["clients"]
    who = f"client {clients[0]}" if len(clients) == 1 else f"clients {', '.join(map(str, clients))}"
    rounds = facts["attacked_rounds"]
    if not rounds:
        return ["Nobody attacked."]
    if "backdoor_attacked" not in none:
        return [
            "With some of the seeds nobody attacked, so that there are no means of attacked rounds: raise "
            "strategy.fraction, or let the attack last longer (attack.rounds)."
        ]
    when = f"round {rounds[0]}" if len(rounds) == 1 else f"{len(rounds)} rounds from round {rounds[0]} on"
    said = [
        f"Undefended, {who} (beta = {attack['scale']:g}, {when}) takes the backdoor accuracy from "
        f"{none.get('backdoor_before', 0):.1f} % to {none['backdoor_attacked']:.1f} % in round {rounds[0]}; the "
        f"highest is {none['backdoor_highest']:.1f} %, the last {none['backdoor']:.1f} %.",
        f"ZSL is {none['zsl_attacked']:.1f} % in round {rounds[0]} and {none['zsl']:.1f} % in the last, "
        f"{rows['none']['honest']['zsl']:.1f} % if nobody attacks.",
    ]
    for name, words in (("magnitude", "kept by everybody"), ("magnitude-ignored", "left out by the malicious")):
        if name in rows and "refused" not in rows[name]:
            one = rows[name]["attacked"]
            told = f"The feature magnitude defence, {words}: backdoor accuracy {one['backdoor_attacked']:.1f} % when "
            told += f"attacked, {one['backdoor']:.1f} % at the end."
            if (counts := one.get("screened")) and counts["poisoned"]:
                told += f" It dropped {_share(counts, 'poisoned')} of the poisoned samples and "
                told += f"{_share(counts, 'clean')} of the clean ones."
            said.append(told)
    if facts["holds"]:
        held = ", ".join(facts["holds"])
        said.append(
            f"The backdoor stays under 10 % and ZSL within 3 points of the honest run without a defence under: {held}."
        )
    else:
        said.append("No defence keeps the backdoor under 10 % and ZSL within 3 points of the honest run without one.")
    return said


def magnitude_chart(values: Mapping[str, NDArray[Any]], title: str) -> str:
    """Draw how the sums of features are distributed among clean samples and those of each trigger (FedZSL, Fig. 7)."""
    together = np.concatenate([one.astype(np.float64) for one in values.values()])
    together = together[np.isfinite(together)]
    low, high = (float(together.min()), float(together.max())) if len(together) else (0.0, 1.0)
    if high - low > 5:
        low, high = float(np.floor(low)), float(np.ceil(high))
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    curves = []
    for i, name in enumerate(["clean", *sorted(set(values) - {"clean"})]):
        own = values[name].astype(np.float64)
        share = 100 * np.histogram(own[np.isfinite(own)], edges)[0] / max(len(own), 1)
        curves.append(Curve(share, name, "blue" if name == "clean" else COLOURS[(i - 1) % len(COLOURS)]))
    return figures.line_chart(curves, title, edges[:-1], x_label="sum of a sample's features", unit="%", legend=True)


def _chart(facts: Facts, name: str, one: Facts) -> str:
    """Draw main and backdoor accuracy by round under one defence."""
    curves = one["curves"]
    x = np.arange(1, len(curves["zsl"]) + 1, dtype=np.float64)
    triggers = sorted(key for key in curves if key.startswith("backdoor: "))
    drawn = [
        Curve(np.array(curves[key]), key if len(triggers) > 1 else "backdoor", COLOURS[i % len(COLOURS)])
        for i, key in enumerate(triggers)
    ]
    drawn += [
        Curve(np.array(curves["zsl"]), "ZSL", "blue"),
        Curve(np.array(curves["gzsl_seen"]), "seen", "grey"),
        Curve(np.array(curves["honest zsl"]), "ZSL, honest", "blue", dashed=True),
    ]
    return figures.line_chart(drawn, name if name != "none" else "no defence", x, 100.0, unit="%", legend=True)


def _share(counts: Facts, kind: str) -> str:
    return f"{100 * counts[f'{kind}_dropped'] / max(counts[kind], 1):.1f} %"


def _pixels(image: NDArray[np.float32]) -> NDArray[np.float32]:
    image = np.clip(image, 0, 1)
    return image[0] if len(image) == 1 else np.moveaxis(image, 0, -1)


def _command(facts: Facts) -> str:
    """Return the command that makes the numbers again."""
    told, whole = reproduce.command(json.loads(json.dumps(facts["experiment"])))
    words = told.replace("fedunseen run", "fedunseen attack backdoor", 1)
    chosen: Sequence[str] = [name for name in facts["defences"] if name != "none"]
    words += " \\\n    --defences " + shlex.quote(",".join(chosen))
    if whole:
        return words
    name = shlex.quote(facts["experiment"]["name"])
    return f"{words}\n\n{name}.toml:\n\n" + toml_text(facts["experiment"])
