"""``fedunseen export``: numbers as CSV or LaTeX files, the model as a folder that loads without this package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedunseen.cli.console import Client, Json, RunPath, open_run, say
from fedunseen.core.errors import ArgumentError


def export(
    path: RunPath,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="DIR", help="The folder to write the tables to.")] = None,
    latex: Annotated[
        Path | None, typer.Option("--latex", metavar="DIR", help="The folder to write the tables to, as LaTeX.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new folder for the model as ONNX, with its classes.")
    ] = None,
    client: Client = None,
    as_json: Json = False,
) -> None:
    """Write a run's tables as CSV or LaTeX, or its model as ONNX, which loads without this package."""
    if csv is None and latex is None and out is None:
        raise ArgumentError(
            "there is nothing to export: give --csv DIR or --latex DIR for tables, --out DIR for the model, or several"
        )
    if client is not None and out is None:
        raise ArgumentError("--client says whose model --out writes: give --out DIR, or leave out --client")
    run, written = open_run(path, None), []
    if out is not None:
        from fedunseen.experiment.portable import export_model
        from fedunseen.report.card import model_card

        exported = run if client is None else run.of_client(client)
        written += export_model(exported, out, model_card(exported.seeds[0] if exported.seeds else exported))
    if csv is not None:
        from fedunseen.experiment.tables import write_tables

        written += write_tables(run, csv)
    if latex is not None:
        from fedunseen.experiment.tables import write_latex

        written += write_latex(run, latex)
    if as_json:
        print(json.dumps({"files": [str(exported) for exported in written]}), flush=True)
        return
    for file in written:
        say(f"wrote {file}")
