"""``fedunseen attack``: what the gradients of an experiment give away, and what a backdoor does to
it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedunseen.cli import options as opt
from fedunseen.cli.console import chosen as read_experiment
from fedunseen.cli.console import overrides_of, pages_of, print_json, say
from fedunseen.core.command_line import command_line
from fedunseen.core.errors import ExperimentError
from fedunseen.core.files import free_folder

attack_app = typer.Typer(
    help="What the curious can find out, and what the malicious can do.", no_args_is_help=True
)


@attack_app.command()
def leakage(
    experiment: opt.ExperimentName,
    overrides: opt.Overrides = None,
    images: Annotated[int, typer.Option(help="How many training samples are attacked.")] = 4,
    method: Annotated[str, typer.Option(help="Which search: dlg, cosine or both.")] = "both",
    steps: Annotated[
        int | None,
        typer.Option(help="Steps of each search: calls of L-BFGS (default 300) or of Adam (4800)."),
    ] = None,
    sums: Annotated[
        str | None,
        typer.Option(
            help="Of how many parties the sums are that are attacked beside single updates: none, "
            "or numbers with commas (default: 1,2,3,10, as far as there are so many parties)."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The directory of the results (default: runs/leakage-NAME-seedN, or a new one)."
        ),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Recover samples from their gradients: from a classifier that sees images, and from the
    experiment's method.
    """
    if images < 1:
        raise ExperimentError(f"--images {images}: attack at least one sample")
    parties = _sums(sums)
    chosen = read_experiment(experiment, overrides)
    from fedunseen.core.files import write_json, write_tensors
    from fedunseen.experiment.manifest import free_directory
    from fedunseen.research.leakage_study import UNMASKED, examine, notes, searches, summary

    attacks = searches(method, steps)
    out = out if out is not None else free_directory(chosen, "leakage-")
    free_folder(out)
    remarks = notes(chosen)
    say(*(f"note: {note}" for note in remarks))
    facts, tensors = examine(chosen, images, attacks, say, parties)
    if UNMASKED in remarks:
        facts["note"] = UNMASKED
    write_tensors(out / "leakage.safetensors", tensors)
    facts["command"] = command_line()
    write_json(out / "leakage.json", facts)
    page = out / "leakage.html"
    said = [line for lines in pages_of("LEAKAGE_PAGES", facts, tensors, page) for line in lines]
    _say_where(said, out / "leakage.json", page)
    print_json(as_json, {"out": str(out), "report": str(page), **summary(facts)})


@attack_app.command()
def backdoor(
    experiment: opt.ExperimentName,
    overrides: opt.Overrides = None,
    defences: Annotated[
        str,
        typer.Option(
            help="Which defences, with commas: magnitude,norm-clip (default: all there are)."
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="The directory of the results (default: runs/backdoor-NAME-seedN, or a new one)."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue the runs that --out holds; its defences stay in the table."
        ),
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Run an experiment honestly and attacked, without and with each defence."""
    from fedunseen.experiment.parsing import glance

    replaced = overrides_of(overrides)
    glance(experiment, replaced)
    from fedunseen.cli.progress import live_progress
    from fedunseen.core.files import write_json
    from fedunseen.experiment.manifest import free_directory
    from fedunseen.research.backdoor_study import attacked, guards, study, summary, tried

    chosen = attacked(experiment, replaced)
    wanted = [name.strip() for name in defences.split(",") if name.strip()]
    guards(wanted)  # what is wrong is said before the directory is looked at
    out = out if out is not None else free_directory(chosen, "backdoor-")
    if not resume:
        free_folder(out, "add --resume, or name another with --out")
    against = guards([*wanted, *tried(out)] if wanted else [])
    with live_progress() as progress:
        facts = study(chosen, against, out / "runs", say, progress)
    facts["command"] = command_line()
    write_json(out / "backdoor.json", facts)
    page = out / "backdoor.html"
    pages = pages_of("BACKDOOR_PAGES", facts, page, out / "runs")
    _say_where([line for lines in pages for line in lines], out / "backdoor.json", page)
    print_json(as_json, {"out": str(out), "report": str(page), **summary(facts)})


def _say_where(said: Sequence[str], numbers: Path, page: Path) -> None:
    """Print what a page shows, and where it and its numbers are."""
    report = [f"report:  {page}"] if page.exists() else []
    say(*said, f"numbers: {numbers}", *report)


def _sums(text: str | None) -> list[int] | None:
    """Return the numbers of parties of the command line, in ascending order; None if it leaves them
    open.
    """
    if text is None or text.strip() == "none":
        return None if text is None else []
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ExperimentError(
            f"--sums {text}: give numbers of parties with commas, for example 1,2,3,10, or none"
        )
    return sorted({int(word) for word in words})
