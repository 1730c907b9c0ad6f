"""What the commands have in common: options that mean the same everywhere, and where words go."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedunseen.cli.completion import presets, settings
from fedunseen.cli.logs import emit
from fedunseen.core.presets import experiment_text
from fedunseen.core.registry import announce

if TYPE_CHECKING:
    from fedunseen.experiment import Experiment

__all__ = [
    "Client",
    "Described",
    "ExperimentName",
    "Json",
    "Named",
    "Out",
    "Overrides",
    "Own",
    "Plugins",
    "Resume",
    "RunPath",
    "Support",
    "Track",
    "chosen",
    "overrides_of",
    "say",
    "show",
    "warning_lines",
]


def _there(experiment: str) -> str:
    """Refuse the name of no preset and no file at once: everything else of an experiment needs PyTorch."""
    experiment_text(experiment)
    return experiment


ExperimentName = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT", help="A preset's name, or a TOML file.", autocompletion=presets, callback=_there
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
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]
Track = Annotated[list[str] | None, typer.Option("--track", help="Write curves for tensorboard or mlflow too.")]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON as the last line of standard output.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
Client = Annotated[
    int | None,
    typer.Option(min=0, metavar="K", help="Whose model, counted from 0, where every client has its own."),
]


def say(*lines: str) -> None:
    """Print for people: to standard error, so that standard output carries results alone."""
    for line in lines:
        emit(line)


def show(told: object, text: str, as_json: bool) -> None:
    """Print a result: as one line of JSON, or for people."""
    print(json.dumps(told) if as_json else text, flush=True)


def overrides_of(texts: list[str] | None) -> dict[str, Any]:
    """Return ``{"section.key": value}`` of what stands after ``--set``.

    Raises:
        ExperimentError: one is not written as section.key=value.
    """
    from fedunseen.experiment.reading import parse_override

    return dict(parse_override(text) for text in texts or [])


def chosen(experiment: str, overrides: list[str] | None) -> Experiment:
    """Read an experiment; what a glance shows to be wrong is refused before PyTorch is loaded, which takes seconds.

    Raises:
        FedUnseenError: as :meth:`Experiment.load`, or the data's folder or class table is wrong.
    """
    from fedunseen.experiment.reading import glance

    replaced = overrides_of(overrides)
    glance(experiment, replaced)
    from fedunseen.experiment import Experiment

    return Experiment.load(experiment, replaced)


def warning_lines(result: Mapping[str, Any]) -> list[str]:
    """Return what the user has to know of a finished run: weak classes and advice, notes, warnings with a remedy."""
    return [
        *result.get("summary", {}).get("text", []),
        *(f"note: {one}" for one in result.get("notes", [])),
        *(f"warning: {one['what']} {one['remedy']}" for one in result.get("warnings", [])),
    ]
