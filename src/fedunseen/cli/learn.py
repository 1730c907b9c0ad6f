"""``fedunseen learn`` and ``fedunseen forget``: what changes a finished run without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedunseen.cli.console import Json, RunPath, say
from fedunseen.core.errors import ExperimentError

__all__ = ["forget", "learn"]

New = Annotated[Path, typer.Option("--out", metavar="NEW", help="The new run directory.")]


def learn(
    path: RunPath,
    out: New,
    classes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Descriptions of classes: a CSV file of name, attributes...")
    ] = None,
    named: Annotated[
        list[str] | None,
        typer.Option(
            "--class", metavar="NAME", help="A class by its name, where a text encoder describes; repeatable."
        ),
    ] = None,
    support: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Examples: a folder with a folder for each class.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Add classes to a finished run for good: described, shown by examples, or both. Nothing is trained."""
    from fedunseen.experiment import load_run

    if named and classes is not None:
        raise ExperimentError("--class and --classes both name classes to add: give one of them")
    if classes is None and not named and support is None:
        raise ExperimentError("there is nothing to learn: give --classes FILE, --class NAME or --support FOLDER")
    done = load_run(path).learn(named or classes, support, out)
    added = done.result["learnt"]
    say(f"learnt: {', '.join(added) if added else 'more of classes that were known'}", f"run:    {done.path}")
    if as_json:
        print(json.dumps({"run": str(done.path), "learnt": added, "classes": len(done.space.names)}), flush=True)


def forget(
    path: RunPath,
    out: New,
    party: Annotated[str, typer.Option(metavar="NAME", help="The party's name, or a client's number from 0.")],
    as_json: Json = False,
) -> None:
    """Take a party out of a run of a method in closed form: the model is that of a run without it, bit for bit."""
    from fedunseen.experiment import load_run
    from fedunseen.experiment.forget import forget as forget_party

    done = forget_party(load_run(path), party, out)
    say(f"forgotten: {party}", done.headline(), f"run:    {done.path}")
    if as_json:
        print(json.dumps(done.result), flush=True)
