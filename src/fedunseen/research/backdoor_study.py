"""A backdoor against each defence: the same experiment run honestly and attacked, without and with
each of them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np

from fedunseen.core.errors import ExperimentError, RunDirectoryError, unknown
from fedunseen.core.files import parse_json
from fedunseen.core.registry import names
from fedunseen.core.toml import parse_toml
from fedunseen.evaluation.measures import ZERO_SHOT
from fedunseen.experiment.result.run import Run
from fedunseen.experiment.running import run
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.callbacks import Progress

LEFT_OUT = "magnitude-ignored"
"""The feature magnitude defence at all clients but the malicious ones."""

# percent, percentage points: see :func:`verdict`
LOW = 10.0
COST = 3.0


def guards(chosen: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return the chosen defences, or all, by name, with the settings that switch them on; ``none``
    comes first.
    """
    settings_of: dict[str, dict[str, Any]] = {
        "none": {},
        "magnitude": {"screening.name": "magnitude", "attack.ignore_defence": False},
        LEFT_OUT: {"screening.name": "magnitude", "attack.ignore_defence": True},
        **{name: {"defence.name": name} for name in names("defence") if name != "none"},
    }
    for name in chosen:
        if name not in settings_of:
            raise ExperimentError("--defences: " + unknown("defence", name, settings_of))
    return {
        name: settings_of[name]
        for name in settings_of
        if not chosen or name == "none" or name in chosen
    }


def study(
    experiment: Experiment,
    against: Mapping[str, Mapping[str, Any]],
    out: Path,
    log: Callable[[str], None],
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run an experiment attacked and with no one attacking, without a defence and under each
    one.
    """
    by_defence: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for name, settings in against.items():
        try:
            attacked = defended(experiment, settings)
            honest = attacked.with_overrides(
                {"attack.rounds": "never", "attack.ignore_defence": False}
            )
            shared_name = "magnitude" if name == LEFT_OUT and "magnitude" in against else name
            paths = out / f"{name}-attacked", out / f"{shared_name}-honest"
            done, quiet = (
                run(which, path, resume=path.exists(), progress=progress)
                for which, path in zip((attacked, honest), paths, strict=True)
            )
        except ExperimentError as error:
            if name == "none":
                raise
            by_defence[name] = {"refused": str(error)}
            log(f"{name}: refused: {error}")
            continue
        by_defence[name] = {
            "honest": _numbers(quiet),
            "attacked": _numbers(done),
            "curves": _curves(done, quiet),
        }
        numbers = by_defence[name]["attacked"]
        each = [run.result["attack"] for run in done.seeds or [done]]
        shared = shared or {
            **each[0],
            "rounds": next((said["rounds"] for said in each if said["rounds"]), []),
        }
        when = (
            f"{numbers['backdoor_attacked']:.1f} % when attacked, "
            if "backdoor_attacked" in numbers
            else ""
        )
        log(
            f"{name}: backdoor {when}{numbers['backdoor']:.1f} % at the end; "
            f"ZSL {by_defence[name]['honest']['zsl']:.1f} % if honest, "
            f"{numbers['zsl']:.1f} % attacked"
        )
    facts = {
        "experiment": experiment.to_dict(),
        "seeds": [experiment.run.seed + i for i in range(experiment.run.seeds)],
        "attacked_rounds": shared["rounds"],
        "triggers": shared["triggers"],
        "defences": by_defence,
    }
    return facts | {"holds": verdict(facts)}


def defended(experiment: Experiment, settings: Mapping[str, Any]) -> Experiment:
    """Return an experiment with one defence of :func:`guards` alone, in place of those that it
    names itself.
    """
    chosen = {
        f"{section}.name": getattr(experiment, section).name for section in ("defence", "screening")
    }
    bare = experiment.with_overrides(
        {key: "none" for key, name in chosen.items() if settings.get(key) != name}
    )
    return bare.with_overrides(settings)


def verdict(facts: Mapping[str, Any]) -> list[str]:
    """Return the defences that hold; an empty list if no one attacked.

    A defence holds if the backdoor accuracy stays below 10 % from the first attacked round on, and
    if ZSL accuracy in the last round is less than 3 points below that of the honest run without a
    defence.
    """
    whole = facts["defences"]["none"]["honest"]["zsl"]
    return [
        name
        for name, result in facts["defences"].items()
        if "refused" not in result
        and result["attacked"].get("backdoor_highest", LOW) < LOW
        and whole - result["attacked"]["zsl"] < COST
        and name != "magnitude"  # which an attacker can leave out
    ]


def _numbers(done: Run) -> dict[str, Any]:
    """Return a run's accuracies (means over the seeds), and how many samples were screened in
    all.
    """
    numbers = {
        key: value for key, value in done.result.items() if key.startswith(("backdoor", *ZERO_SHOT))
    }
    each = [run.result for run in done.seeds] or [done.result]
    if all("attacked" in r["attack"]["main"] for r in each):
        for name in ZERO_SHOT:
            numbers[f"{name}_attacked"] = float(
                np.mean([r["attack"]["main"]["attacked"][name] for r in each])
            )
    if "screened" in each[0]:
        numbers["screened"] = {
            key: sum(r["screened"][key] for r in each) for key in each[0]["screened"]
        }
    numbers["seconds"] = round(sum(r["seconds"] for r in each), 1)
    return numbers


def _curves(attacked: Run, honest: Run) -> dict[str, list[float]]:
    """Return main and backdoor accuracies of every round, as means over the seeds."""

    def mean(done: Run, *keys: str) -> list[float]:
        each: list[list[Any]] = [
            [reduce(getitem, keys, line) for line in seed.metrics]
            for seed in (done.seeds or [done])
        ]
        return [round(value, 3) for value in np.mean(each, axis=0).tolist()]

    curves = {key: mean(attacked, key) for key in ("backdoor", "zsl", "gzsl_unseen", "gzsl_seen")}
    for name in (attacked.seeds or [attacked])[0].metrics[0]["backdoor_of"]:
        curves[f"backdoor: {name}"] = mean(attacked, "backdoor_of", name)
    return curves | {"honest zsl": mean(honest, "zsl")}


def tried(out: Path) -> list[str]:
    """Return the defences of the study that a directory holds; none if it holds no whole one."""
    path = out / "backdoor.json"
    if not path.exists():
        return []
    try:
        return [str(name) for name in parse_json(path.read_bytes())["defences"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunDirectoryError(
            f"{path} cannot be read ({error}): remove it, and --resume writes it again"
        ) from None


def attacked(source: str, overrides: Mapping[str, Any]) -> Experiment:
    """Return an experiment with a backdoor in it, and nothing chosen or drawn that only takes
    time.
    """
    last = {"evaluation.selection": "last", "evaluation.choose": {}}
    kept = {
        key: value
        for key, value in overrides.items()
        if not key.startswith(("attack.", "evaluation."))
    }
    plain = Experiment.load(source, {**kept, **last, "attack.name": "none"})
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
            f"attack.name = {chosen.attack.name!r} has no triggers, so that there is no backdoor "
            "to measure: set it to 'backdoor', or run the experiment with fedunseen run"
        )
    return chosen


def _rounds(source: str, plain: Experiment) -> str:
    """Return the attacked rounds that the file names, or the paper's round 20, or half way of fewer
    rounds.
    """
    path = Path(source)
    settings = (
        parse_toml(path.read_text("utf-8-sig"), source).get("attack", {}) if path.is_file() else {}
    )
    usual = 20 if plain.strategy.rounds >= 20 else max(1, plain.strategy.rounds // 2)
    return str(settings.get("rounds", usual))


def summary(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of ``backdoor.json`` without the curves."""
    shown = {key: facts[key] for key in ("seeds", "attacked_rounds", "triggers", "holds")}
    defences = {
        name: {key: value for key, value in row.items() if key != "curves"}
        for name, row in facts["defences"].items()
    }
    return {**shown, "defences": defences}
