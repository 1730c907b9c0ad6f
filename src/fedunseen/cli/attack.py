"""``fedunseen attack``: what the gradients of an experiment give away, and what a backdoor does to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedunseen.cli.console import ExperimentName, Json, Overrides, overrides_of, say
from fedunseen.cli.console import chosen as read_experiment
from fedunseen.core.errors import ExperimentError
from fedunseen.core.files import free_folder

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["attack_app"]

attack_app = typer.Typer(help="What the curious can find out, and what the malicious can do.", no_args_is_help=True)


@attack_app.command()
def leakage(
    experiment: ExperimentName,
    overrides: Overrides = None,
    images: Annotated[int, typer.Option(help="How many training samples are attacked.")] = 4,
    method: Annotated[str, typer.Option(help="Which search: dlg, cosine or both.")] = "both",
    steps: Annotated[
        int | None, typer.Option(help="Steps of each search: calls of L-BFGS (default 300) or of Adam (4800).")
    ] = None,
    sums: Annotated[
        str | None,
        typer.Option(
            help="Of how many parties the sums are that are attacked beside single updates: none, or numbers with "
            "commas (default: 1,2,3,10, as far as there are so many parties)."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The directory of the results (default: runs/leakage-NAME-seedN, or a new one).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Recover samples from their gradients: from a classifier that sees images, and from the experiment's method."""
    if images < 1:
        raise ExperimentError(f"--images {images}: attack at least one sample")
    added = _sums(sums)
    chosen = read_experiment(experiment, overrides)
    from fedunseen.experiment.record import free_directory
    from fedunseen.report.leakage_page import conclusions
    from fedunseen.tools.leakage import UNMASKED, examine, notes, searches

    attacks = searches(method, steps)
    out = out if out is not None else free_directory(chosen, "leakage-")
    free_folder(out)
    found = notes(chosen)
    say(*(f"note: {note}" for note in found))
    facts, tensors = examine(chosen, images, attacks, say, added)
    if UNMASKED in found:
        facts["note"] = UNMASKED
    _write(out, facts, tensors)
    say(*conclusions(facts), f"numbers: {out / 'leakage.json'}", f"report:  {out / 'leakage.html'}")
    if as_json:
        print(json.dumps(_summary(facts, out)), flush=True)


@attack_app.command()
def backdoor(
    experiment: ExperimentName,
    overrides: Overrides = None,
    defences: Annotated[
        str, typer.Option(help="Which defences, with commas: magnitude,norm-clip (default: all there are).")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(help="The directory of the results (default: runs/backdoor-NAME-seedN, or a new one)."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the runs that --out holds; its defences stay in the table.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run an experiment honestly and attacked, without and with each defence."""
    from fedunseen.experiment.reading import glance

    replaced = overrides_of(overrides)
    glance(experiment, replaced)
    from fedunseen.cli.progress import live_progress
    from fedunseen.core.files import write_json
    from fedunseen.experiment.record import free_directory
    from fedunseen.experiment.study import guards, study
    from fedunseen.report.backdoor_page import conclusions, write_backdoor_report
    from fedunseen.tools.backdoor import attacked, tried

    chosen = attacked(experiment, replaced)
    wanted = [name.strip() for name in defences.split(",") if name.strip()]
    guards(wanted)  # what is wrong is said before the directory is looked at
    out = out if out is not None else free_directory(chosen, "backdoor-")
    if not resume:
        free_folder(out, "add --resume, or name another with --out")
    against = guards([*wanted, *tried(out)] if wanted else [])
    with live_progress() as progress:
        facts = study(chosen, against, out / "runs", say, progress)
    write_json(out / "backdoor.json", facts)
    write_backdoor_report(facts, out / "backdoor.html", out / "runs")
    say(*conclusions(facts), f"numbers: {out / 'backdoor.json'}", f"report:  {out / 'backdoor.html'}")
    if as_json:
        told = {key: facts[key] for key in ("seeds", "attacked_rounds", "triggers", "holds")}
        told["defences"] = {
            name: {key: value for key, value in one.items() if key != "curves"}
            for name, one in facts["defences"].items()
        }
        print(json.dumps({"out": str(out), "report": str(out / "backdoor.html"), **told}), flush=True)


def _sums(text: str | None) -> list[int] | None:
    """Return the numbers of parties of the command line, in ascending order; None if it leaves them open.

    Raises:
        ExperimentError: they are no such numbers.
    """
    if text is None or text.strip() == "none":
        return None if text is None else []
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ExperimentError(f"--sums {text}: give numbers of parties with commas, for example 1,2,3,10, or none")
    return sorted({int(word) for word in words})


def _write(out: Path, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    from fedunseen.core.files import write_json, write_tensors
    from fedunseen.report.leakage_page import write_leakage_report

    write_tensors(out / "leakage.safetensors", tensors)
    write_json(out / "leakage.json", facts)
    write_leakage_report(facts, tensors, out / "leakage.html")


def _summary(facts: dict[str, Any], out: Path) -> dict[str, Any]:
    """Return what ``--json`` prints: the means, without the single samples."""

    def means(attack: dict[str, Any]) -> dict[str, Any]:
        return {
            key: {k: v for k, v in value.items() if k != "samples"} if isinstance(value, dict) else value
            for key, value in attack.items()
            if key not in ("settings", "iterations", "images", "searches", "search")
        }

    classifier = facts["classifier"]
    return {
        "out": str(out),
        "report": str(out / "leakage.html"),
        "seed": facts["seed"],
        "samples": facts["samples"],
        **({"note": facts["note"]} if "note" in facts else {}),
        "classifier": classifier
        if "left_out" in classifier
        else {name: means(attack) for name, attack in classifier["attacks"].items()},
        "phases": {
            name: {"depends": phase.get("depends"), **{key: means(value) for key, value in phase["attacks"].items()}}
            for name, phase in facts["method"]["phases"].items()
        },
        **({"sums": _sums_summary(facts["sums"], means)} if "sums" in facts else {}),
    }


def _sums_summary(sums: dict[str, Any], means: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Return what ``--json`` prints of attacks on sums."""

    def rows(told: dict[str, Any]) -> dict[str, Any]:
        return {name: [means(row) for row in found] for name, found in told.items()}

    classifier = {"classifier": rows(sums["classifier"])} if "classifier" in sums else {}
    phases = {name: rows(told) for name, told in sums["phases"].items()}
    return {"samples": sums["samples"], **classifier, "phases": phases}
