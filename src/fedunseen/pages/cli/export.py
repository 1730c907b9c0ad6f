"""``fedunseen export``: numbers and models as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedunseen.cli import options as opt
from fedunseen.cli.console import open_run, print_json, say
from fedunseen.core.errors import ArgumentError


def export(
    path: opt.RunPath,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="DIR", help="The folder to write the tables to.")
    ] = None,
    latex: Annotated[
        Path | None,
        typer.Option("--latex", metavar="DIR", help="The folder to write the tables to, as LaTeX."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="A new folder for the model as ONNX, with its classes."
        ),
    ] = None,
    photos: Annotated[
        bool,
        typer.Option(
            "--photos",
            help="Write a folder that names what is in a picture, encoder included, with numpy, "
            "onnxruntime and pillow alone; to --out, or beside the run.",
        ),
    ] = False,
    client: opt.Client = None,
    plugins: opt.Plugins = None,
    as_json: opt.Json = False,
) -> None:
    """Write a run's tables as CSV or LaTeX, or its model as ONNX, which loads without this
    package.
    """
    if csv is None and latex is None and out is None and not photos:
        raise ArgumentError(
            "there is nothing to export: give --csv DIR or --latex DIR for tables, --out DIR for "
            "the model, --photos for one that takes pictures, or several"
        )
    if client is not None and out is None and not photos:
        raise ArgumentError(
            "--client says whose model --out writes: give --out DIR, or leave out --client"
        )
    from fedunseen.cli.bars import preparation_bars

    with preparation_bars("exporting"):
        run = open_run(path, None)
        written = []
        exported = run if client is None else run.of_client(client)
        if photos:
            from fedunseen.pages.photo_export import export_photos

            place = out or path.resolve().with_name(f"{path.resolve().name}-photos")
            written += export_photos(exported, place)
        elif out is not None:
            from fedunseen.pages.portable import export_model
            from fedunseen.pages.report.card import model_card

            written += export_model(exported, out, model_card(exported.first))
        for folder, tex in ((csv, False), (latex, True)):
            if folder is not None:
                from fedunseen.experiment.tables import write_tables

                written += write_tables(run, folder, tex)
    print_json(as_json, {"files": [str(exported) for exported in written]})
    say(*(f"wrote {file}" for file in ([] if as_json else written)))
