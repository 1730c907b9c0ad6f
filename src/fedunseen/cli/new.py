"""``fedunseen new``: the folder of a project of one's own: an experiment, example data, a method, a test."""

from __future__ import annotations

from typing import Annotated

import typer

from fedunseen.cli.console import say


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Of the project and its package: small letters, digits, - and _.")
    ],
) -> None:
    """Begin a project: an experiment, example data, a method of your own, a test; all of it runs as it is."""
    from fedunseen.tools.project import new_project

    say(*(f"wrote {path}" for path in new_project(name)))
    say(f"next:  cd {name} && pip install -e . && python data/make_example.py && fedunseen run experiment.toml")
