"""``fedunseen init`` and ``new``: before a first run."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from fedunseen.cli import options as opt
from fedunseen.cli.console import print_json, say
from fedunseen.core.errors import ExperimentError


def init(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="A folder of pictures for each class, or with features.npz, or a table of samples."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The experiment file (default: FOLDER.toml beside the folder).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write the experiment file again if it is there.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Look at your data and write an experiment that suits them; `fedunseen run` takes it as it is."""
    from fedunseen.core.files import write_text
    from fedunseen.experiment.init_template import suggest

    place = data.resolve()
    file = out or data.parent / f"{place.stem if place.is_file() else place.name}.toml"
    if out is None and not data.name:  # such as "."
        file = place.with_name(f"{place.name}.toml")
    if file.suffix != ".toml":
        raise ExperimentError(f"--out {file}: an experiment file ends in .toml")
    if file.exists() and not force:
        raise ExperimentError(f"{file} is there already: give --force to write it again, or --out for another file")
    suggestion = suggest(data, file)
    write_text(file, suggestion.text)
    say(*(f"- {choice.what}: {choice.why}" for choice in suggestion.choices))
    say(*(f"wrote {path}" for path in suggestion.written), f"wrote {file}", f"next:  fedunseen run {quote(str(file))}")
    choices = [choice._asdict() for choice in suggestion.choices]
    written = [str(path) for path in suggestion.written]
    print_json(as_json, {"experiment": str(file), "written": written, "choices": choices})


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Of the project and its package: small letters, digits, - and _.")
    ],
) -> None:
    """Begin a project: an experiment, example data, a method of your own, a test; all of it runs as it is."""
    from fedunseen.tools.project import new_project

    say(*(f"wrote {path}" for path in new_project(name)))
    say(f"next:  cd {name} && pip install -e . && python data/make_example.py && fedunseen run experiment.toml")
