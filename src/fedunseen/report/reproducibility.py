"""How a run was chosen, and how to reproduce it: its experiment as a TOML file, the shortest command, what it cost."""

import json
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedunseen.core.errors import ExperimentError, FedUnseenError
from fedunseen.core.presets import preset_text
from fedunseen.core.toml import toml_text, toml_value
from fedunseen.experiment.result.run import Run
from fedunseen.report import statistics
from fedunseen.report.charts import Curve, Scale, line_chart
from fedunseen.report.parts import Content, Facts, axis, rounds_tried, stopped, upper_end


def command(tree: Mapping[str, Any], plugins: Sequence[str] = (), out: str | None = None) -> tuple[str, bool]:
    """Return the command that runs the experiment ``tree`` again."""
    from fedunseen.core.presets import preset_names
    from fedunseen.experiment.schema import Experiment

    def says(changes: Mapping[str, Any]) -> bool:
        try:
            return Experiment.load(name, changes).to_dict() == tree
        except FedUnseenError:
            return False

    name = str(tree["name"])
    deployed = tree.get("engine", {}).get("mode") == "deployment"
    verb, kit = ("host", ["--kit kits/coordinator"]) if deployed else ("run", [])
    kit += [f"--plugin {shlex.quote(file)}" for file in plugins]
    kit += [f"--out {shlex.quote(out)}"] if out else []
    # Against a preset with its defaults little differs; where that is not the whole story, against its text.
    bases = (_filled(name), tomllib.loads(preset_text(name))) if name in preset_names() else ()
    if (changes := next(filter(says, (_changes(base, tree) for base in bases)), None)) is not None:
        for key in list(changes):  # what a new name brings as its default need not be said
            fewer = {other: value for other, value in changes.items() if other != key}
            changes = fewer if says(fewer) else changes
        sets = [f"--set {shlex.quote(_assignment(*item))}" for item in changes.items()]
        return " \\\n    ".join([f"fedunseen {verb} {name}", *kit, *sets]), True
    return " \\\n    ".join([f"fedunseen {verb} {shlex.quote(name + '.toml')}", *kit]), False


def attack_command(tree: Mapping[str, Any], kind: str, options: Sequence[str]) -> str:
    """Return the command of an attack, ``fedunseen attack KIND``, and the experiment's file where it needs one."""
    tree = json.loads(json.dumps(tree))
    text, whole = command(tree)
    text = " \\\n    ".join([text.replace("fedunseen run", f"fedunseen attack {kind}", 1), " ".join(options)])
    return text if whole else f"{text}\n\n{shlex.quote(tree['name'])}.toml:\n\n{toml_text(tree)}"


def _filled(name: str) -> Mapping[str, Any]:
    """Return a preset with all defaults; its text alone, where it cannot do without something of the user's."""
    from fedunseen.experiment.schema import Experiment

    try:
        return Experiment.load(name).to_dict()
    except ExperimentError:  # a folder with data, say
        return tomllib.loads(preset_text(name))


def _changes(base: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``{"section.key": value}`` that turns ``base`` into ``tree``; names go first, they bring defaults."""
    changes: dict[str, Any] = {}
    for section, content in tree.items():
        if not isinstance(content, Mapping):
            continue
        old = base.get(section, {})
        renamed = content.get("name") != old.get("name")
        ordered = sorted(content.items(), key=lambda item: item[0] != "name")
        changes |= {f"{section}.{k}": v for k, v in ordered if renamed or k not in old or old[k] != v}
        if not renamed:
            changes |= {f"{section}.{k}": None for k in old if k not in content}  # it is unset
    return changes


def _assignment(key: str, value: Any) -> str:
    """Write ``section.key=value``; text that cannot be taken for anything else goes without quotes."""
    from fedunseen.experiment.parsing import parse_override

    bare = f"{key}={value}"
    return bare if isinstance(value, str) and parse_override(bare) == (key, value) else f"{key}={toml_value(value)}"


def reproducibility(facts: Facts) -> dict[str, Any]:
    """Return what is needed to reproduce the run, and what it cost."""
    run, tree, lines = facts.whole, facts.experiment, facts.run.metrics
    again, whole = command(tree, run.manifest.get("plugins", ()), f"{run.result['run']}-again")
    return {
        "command": again,
        "whole": whole,
        "toml": toml_text(tree),
        "manifest": run.manifest,
        "seconds": run.result["seconds"],
        "per_round": float(np.nanmean(statistics.curve(lines, "seconds"))) if lines else None,
    }


def chosen(facts: Facts) -> Content:
    """Return what was chosen on validation classes, if anything was."""
    run = facts.run
    found = run.result.get("chosen_on_validation")
    if not found:
        return None
    keys = list(found.get("settings", {}))
    tried = [
        {"values": [one["settings"][key] for key in keys], "won": one["settings"] == found["settings"], **one}
        for one in found.get("tried", [])
    ]
    last = found["round"] == rounds_tried(run.result) > 1
    chart = _selection_chart(run)
    return {**found, "keys": keys, "tried": tried, "chart": chart, "last": last, "ended": stopped(found)}


def _selection_chart(run: Run) -> str | None:
    """Draw how the chosen candidate did on validation classes, round by round; of one round there is no curve."""
    from fedunseen.federation.run_directory import RunDirectory

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
    return line_chart([curve], title, axis(lines), Scale(upper_end([curve]), "%"), mark=chosen["round"])
