"""What the commands have in common: options that mean the same everywhere, and where words go."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedunseen.cli.completion import presets, settings
from fedunseen.cli.logs import emit
from fedunseen.core.errors import ExperimentError, FedUnseenError
from fedunseen.core.files import holding
from fedunseen.core.presets import experiment_text
from fedunseen.core.registry import announce

if TYPE_CHECKING:
    from fedunseen.experiment import Experiment, Run


def _known(experiment: str) -> str:
    """Refuse the name of no preset and no file at once: everything else of an experiment needs PyTorch."""
    if experiment:
        experiment_text(experiment)
    return experiment


ExperimentName = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT", help="A preset's name, or a TOML file.", autocompletion=presets, callback=_known
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Replace a setting, for example strategy.rounds=10; repeatable.",
        autocompletion=settings,
    ),
]
Own = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Your own way: run.device=cuda, encoder.model=FILE"),
]
Described = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Classes to add or replace: a CSV file of name, attributes..., or of names alone."
    ),
]
Named = Annotated[
    list[str] | None,
    typer.Option(
        "--class", metavar="NAME", help="A class to add by its name, where a text encoder describes; repeatable."
    ),
]
Support = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="A folder with a folder of examples for each class.")
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="A Python file that registers a method, a strategy ... of your own; repeatable.",
        callback=announce,
    ),
]
Out = Annotated[Path | None, typer.Option(help="The run directory (default: runs/NAME-seedN, or a new one).")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")]
Track = Annotated[list[str] | None, typer.Option("--track", help="Write curves for tensorboard or mlflow too.")]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON as the last line of standard output.")]
EpsilonLimit = Annotated[
    float | None,
    typer.Option(min=0.0, help="Refuse a run that would spend more privacy on these data, over all runs together."),
]
Data = Annotated[Path, typer.Option(help="Your data: classes.csv and features.npz, or folders of images.")]
State = Annotated[
    Path | None, typer.Option(help="Where to keep what must not be lost: the ledger (default: fedunseen-NAME).")
]
Consent = Annotated[
    list[str] | None,
    typer.Option(
        help="Under masks, agree to: again (a second sum of the same data), moved (the data folder), dropouts "
        "(where a coordinator hosts: sums that differ by few parties), removal (by file: of few parties or samples)."
    ),
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
Client = Annotated[
    int | None, typer.Option(min=0, metavar="K", help="Whose model, counted from 0, where every client has its own.")
]


def say(*lines: str) -> None:
    """Print for people: to standard error, so that standard output carries results alone."""
    for line in lines:
        emit(line)


def show(result: object, text: str, as_json: bool) -> None:
    """Print a result: as one line of JSON, or for people."""
    print(json.dumps(result) if as_json else text, flush=True)


def finish(run: Run, report: Path, as_json: bool, *lines: str) -> None:
    """Say what came out of a run, ``lines`` after its headline, and where it is; with ``as_json`` its result too."""
    say(run.headline(), *lines, *warning_lines(run.result), f"run:    {run.path}", f"report: {report}")
    if as_json:
        print(json.dumps(run.result), flush=True)


def open_run(path: Path, client: int | None, **options: Any) -> Run:
    """Return a finished run, or the model of one of its clients."""
    from fedunseen.experiment import load_run

    run = load_run(path, **options)
    return run if client is None else run.of_client(client)


def check_named(named: Sequence[str] | None, classes: Path | None) -> None:
    """Raise an ExperimentError where classes are given by their names and in a table."""
    if named and classes is not None:
        raise ExperimentError("--class and --classes both name classes to add: give one of them")


def check_consent(consent: Sequence[str] | None, known: Collection[str]) -> None:
    """Raise an ExperimentError where a party consents to something unknown."""
    if stray := sorted(set(consent or ()) - set(known)):
        raise ExperimentError(f"--consent {stray[0]}: choose among {', '.join(sorted(known))}")


@contextmanager
def sole_user(state: Path, remedy: str) -> Iterator[None]:
    """Hold a party's folder, which no one else may read, against a second process."""
    state.mkdir(parents=True, exist_ok=True)
    state.chmod(0o700)  # what a party keeps there says something of its data
    with holding(state) as held:
        if not held:
            raise FedUnseenError(f"{state} is in use by another process: {remedy}")
        yield


def overrides_of(texts: list[str] | None) -> dict[str, Any]:
    """Return ``{"section.key": value}`` of what stands after ``--set``."""
    from fedunseen.experiment.parsing import parse_override

    return dict(parse_override(text) for text in texts or [])


def chosen(experiment: str, overrides: list[str] | None) -> Experiment:
    """Read an experiment; what a glance shows to be wrong is refused before PyTorch is loaded, which takes seconds."""
    from fedunseen.experiment.parsing import glance

    replaced = overrides_of(overrides)
    glance(experiment, replaced)
    from fedunseen.experiment import Experiment

    return Experiment.load(experiment, replaced)


def warning_lines(result: Mapping[str, Any]) -> list[str]:
    """Return what the user has to know of a finished run: weak classes and advice, notes, warnings with a remedy."""
    return [
        *result.get("summary", {}).get("text", []),
        *(f"note: {note}" for note in result.get("notes", [])),
        *(f"warning: {note['what']} {note['remedy']}" for note in result.get("warnings", [])),
    ]
