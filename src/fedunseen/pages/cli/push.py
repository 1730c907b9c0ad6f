"""``fedunseen push``: a run's model in a hub."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fedunseen.cli import options as opt
from fedunseen.cli.console import open_run, print_json, say
from fedunseen.core.errors import ArgumentError

PANEL = "Use a finished run"


def push(
    path: opt.RunPath,
    repository: Annotated[
        str, typer.Argument(metavar="OWNER/NAME", help="A repository; made if it is not there.")
    ],
    public: Annotated[
        bool, typer.Option("--public", help="Make a new repository public; otherwise private.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be uploaded.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    plugins: opt.Plugins = None,
    as_json: opt.Json = False,
) -> None:
    """Upload a run's model and its card to a repository of the Hugging Face hub."""
    from fedunseen.pages.push import contents, hub_files
    from fedunseen.pages.push import push as upload

    asks = not (yes or dry_run)
    if asks and not sys.stdin.isatty():
        raise ArgumentError(
            f"nothing is uploaded to {repository} without a yes: look at what --dry-run lists, and "
            "add --yes",
            "push-unconfirmed",
        )
    run = open_run(path, None)
    with hub_files(run, repository) as files:
        content = {"files": {name: file.stat().st_size for name, file in files.items()}}
        if not as_json:
            say(*contents(run, files))
        if dry_run:
            print_json(as_json, content)
            return
        if asks and not typer.confirm(f"Upload to {repository}?"):
            raise typer.Exit(1)
        address = upload(files, repository, public)
    print_json(as_json, {**content, "address": address})
    if not as_json:
        say(f'load_model("{address}") reads it')
