"""What a backdoor does to an experiment: the experiment with the attack in it, and what a directory holds of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedunseen.core.errors import ExperimentError, RunDirectoryError
from fedunseen.core.files import parse_json
from fedunseen.core.toml import parse_toml
from fedunseen.experiment.schema import Experiment


def tried(out: Path) -> list[str]:
    """Return the defences of the study that a directory holds; none if it holds no whole one."""
    path = out / "backdoor.json"
    if not path.exists():
        return []
    try:
        return [str(name) for name in parse_json(path.read_bytes())["defences"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunDirectoryError(f"{path} cannot be read ({error}): remove it, and --resume writes it again") from None


def attacked(source: str, overrides: Mapping[str, Any]) -> Experiment:
    """Return an experiment with a backdoor in it, and nothing chosen or drawn that only takes time."""
    last = {"evaluation.selection": "last", "evaluation.choose": {}}
    own = {key: value for key, value in overrides.items() if not key.startswith(("attack.", "evaluation."))}
    plain = Experiment.load(source, {**own, **last, "attack.name": "none"})
    settings: dict[str, object] = {
        **last,
        "attack.name": "backdoor",
        "evaluation.theory": False,
        "evaluation.embedding": False,
        "evaluation.clients": False,
        **overrides,
    }
    settings["attack.rounds"] = overrides.get("attack.rounds", _rounds(source, plain))
    chosen = Experiment.load(source, settings)
    if not hasattr(chosen.attack, "triggers"):
        raise ExperimentError(
            f"attack.name = {chosen.attack.name!r} has no triggers, so that there is no backdoor to measure: set it to "
            "'backdoor', or run the experiment with fedunseen run"
        )
    return chosen


def _rounds(source: str, plain: Experiment) -> str:
    """Return the attacked rounds that the file names, or the paper's round 20, or half way of fewer rounds."""
    path = Path(source)
    named = parse_toml(path.read_text("utf-8-sig"), source).get("attack", {}) if path.is_file() else {}
    usual = 20 if plain.strategy.rounds >= 20 else max(1, plain.strategy.rounds // 2)
    return str(named.get("rounds", usual))


def summary(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of ``backdoor.json`` without the curves."""
    shown = {key: facts[key] for key in ("seeds", "attacked_rounds", "triggers", "holds")}
    defences = {
        name: {key: value for key, value in row.items() if key != "curves"} for name, row in facts["defences"].items()
    }
    return {**shown, "defences": defences}
