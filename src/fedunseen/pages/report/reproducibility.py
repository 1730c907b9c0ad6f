"""How a run was chosen, and how to reproduce it: its experiment as a TOML file, the command that
was typed, what it cost.
"""

import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedunseen.core.toml import toml_text
from fedunseen.evaluation.summary import stopped
from fedunseen.experiment.result.run import Run
from fedunseen.federation.run_directory import RunDirectory
from fedunseen.pages.report import statistics
from fedunseen.pages.report.charts import Curve, Scale, line_chart
from fedunseen.pages.report.parts import Content, Facts, axis, rounds_tried, upper_end


def shown_command(record: Mapping[str, Any]) -> str:
    """Return the command that a manifest or an attack's numbers record, as a shell reads it.

    It is "" where Python was the caller, and for records of earlier versions. A word stays on one
    line, because what follows a newline would look like a command of its own.
    """
    lines: list[str] = []
    for recorded in record.get("command") or ():
        word = " ".join(recorded.splitlines())
        if lines and not word.startswith("--"):
            lines[-1] += f" {shlex.quote(word)}"
        else:
            lines.append(shlex.quote(word))
    return " \\\n    ".join(lines)


def from_python(record: Mapping[str, Any]) -> bool:
    """Return whether a manifest says that no command was typed."""
    return "command" in record and record["command"] is None


def reproducibility(facts: Facts) -> dict[str, Any]:
    """Return what is needed to reproduce the run, and what it cost."""
    run = facts.whole
    tree = facts.experiment
    lines = facts.run.metrics
    return {
        "command": shown_command(run.manifest),
        "from_python": from_python(run.manifest),
        "toml": toml_text(tree),
        "manifest": run.manifest,
        "seconds": run.result["seconds"],
        "per_round": float(np.nanmean(statistics.curve(lines, "seconds"))) if lines else None,
    }


def chosen(facts: Facts) -> Content:
    """Return what was chosen on validation classes, if anything was."""
    run = facts.run
    choice = run.result.get("chosen_on_validation")
    if not choice:
        return None
    keys = list(choice.get("settings", {}))
    tried = [
        {
            "values": [candidate["settings"][key] for key in keys],
            "won": candidate["settings"] == choice["settings"],
            **candidate,
        }
        for candidate in choice.get("tried", [])
    ]
    last = choice["round"] == rounds_tried(run.result) > 1
    chart = _selection_chart(run)
    return {
        **choice,
        "keys": keys,
        "tried": tried,
        "chart": chart,
        "last": last,
        "ended": stopped(choice),
    }


def _selection_chart(run: Run) -> str | None:
    """Draw how the chosen candidate did on validation classes, round by round; of one round there
    is no curve.
    """
    chosen = run.result["chosen_on_validation"]
    criterion = run.manifest["experiment"]["evaluation"]["criterion"]
    name = "zsl" if criterion == "zsl" else "gzsl_harmonic"
    settings = [candidate["settings"] for candidate in chosen.get("tried", [])]
    folder = str(settings.index(chosen["settings"])) if settings else ""
    lines = statistics.measured(RunDirectory(run.path / "selection" / folder).metrics(), name)
    if len(lines) < 2:
        return None
    curve = Curve(statistics.curve(lines, name), "chosen")
    title = f"{'ZSL' if name == 'zsl' else 'H'} on validation classes"
    return line_chart(
        [curve], title, axis(lines), Scale(upper_end([curve]), "%"), mark=chosen["round"]
    )
