"""``fedunseen export``: a run's numbers as CSV files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedunseen.cli.console import Json, RunPath, say

__all__ = ["export"]


def export(
    path: RunPath,
    csv: Annotated[Path, typer.Option("--csv", metavar="DIR", help="The folder to write the tables to.")],
    as_json: Json = False,
) -> None:
    """Write a run's tables as CSV files: rounds, accuracies of classes, confusions, who holds what."""
    from fedunseen.experiment import load_run
    from fedunseen.experiment.tables import write_tables

    written = write_tables(load_run(path), csv)
    if as_json:
        print(json.dumps({"files": [str(one) for one in written]}), flush=True)
        return
    for one in written:
        say(f"wrote {one}")
