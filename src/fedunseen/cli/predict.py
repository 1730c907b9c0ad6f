"""``fedunseen predict`` and ``export``: ranked classes for new inputs; numbers and models as files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedunseen.cli import options as opt
from fedunseen.cli.console import check_named, open_run, overrides_of, print_json, say
from fedunseen.core.errors import ArgumentError, DataError, ExperimentError, counted
from fedunseen.core.runs import check_question, check_where

if TYPE_CHECKING:
    from fedunseen.tasks.base import Prediction


def predict(
    path: opt.RunPath,
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT...", help="Images, folders of them, or arrays: features or images (.npy .npz .csv)."
        ),
    ],
    classes: opt.Described = None,
    named: opt.Named = None,
    among: Annotated[
        str, typer.Option(help="Rank all classes, only unseen ones, or only those given by --classes or --class.")
    ] = "all",
    support: opt.Support = None,
    top: Annotated[int, typer.Option(help="How many classes to show.")] = 5,
    proba: Annotated[
        bool,
        typer.Option("--proba", help="Show shares of 100 % beside scores: the softmax over all classes that compete."),
    ] = False,
    table: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="Write input, place, class and score as a table, a line for each."),
    ] = None,
    encoder: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the encoder's weights are, if they are not found by their content."),
    ] = None,
    client: opt.Client = None,
    overrides: opt.Overrides = None,
    plugins: opt.Plugins = None,
    as_json: opt.Json = False,
) -> None:
    """Rank classes for new inputs, also classes that the model was never trained on."""
    _check(path, classes, named, table, among, top)
    from fedunseen.tasks.base import shares

    settings = overrides_of(overrides)
    check_where(list(settings))
    done = open_run(path, client, encoder=encoder, overrides=settings)
    answers: list[dict[str, Any]] = []
    for name, ranking in _ranked(done, inputs, named or classes, among, support):
        odds = shares(ranking) if proba else [None] * len(ranking)
        best: list[dict[str, Any]] = [
            {"name": prediction.name, "score": prediction.score, **({} if share is None else {"probability": share})}
            for prediction, share in list(zip(ranking, odds, strict=True))[:top]
        ]
        answers.append({"input": name, "classes": best})
    if table is not None:
        _write(answers, table, proba)
        lines = sum(len(prediction["classes"]) for prediction in answers)
        say(f"{table}: {counted(len(answers), 'input')}, {counted(lines, 'line')}")
    print_json(as_json, answers)
    if table is None and not as_json:
        for prediction in answers:
            print(prediction["input"])
            for place, answer in enumerate(prediction["classes"], 1):
                share = f"  {100 * answer['probability']:.1f} %" if proba else ""
                print(f"  {place}. {answer['name']}  {answer['score']:z.3f}{share}")


def _check(run: Path, classes: Path | None, named: list[str] | None, table: Path | None, among: str, top: int) -> None:
    """Refuse what cannot be answered or written while that takes no time: PyTorch is not loaded yet."""
    check_named(named, classes)
    check_question(among, top)
    if (named or classes is not None) and (run / "classes.csv").is_file():
        _check_classes(named, classes, run, among)
    if table is not None and (table.is_dir() or not table.absolute().parent.is_dir()):
        raise DataError(f"--csv {table}: name a file in a folder that is there")


def _check_classes(named: list[str] | None, classes: Path | None, run: Path, among: str) -> None:
    """Refuse classes that do not fit the run: a name that it knows, where that changes nothing, or other attributes."""
    from fedunseen.data.class_space import ClassSpace, read_classes
    from fedunseen.data.names import plain
    from fedunseen.experiment.class_descriptions import names_in

    space = ClassSpace.load(run / "classes.csv", of_run=True)
    names = named if classes is None else names_in(classes)
    if names is None and classes is not None:
        read_classes(classes, space)
    known = {plain(name) for name in space.names}
    if among != "given" and (again := [name for name in names or () if plain(name) in known]):
        raise ExperimentError(
            f"--class {again[0]}: this run has the class already: leave it out, or rank it alone with --among given",
            "known-class",
        )


def _ranked(
    run: Any, inputs: list[Path], classes: Any, among: str, support: Path | None
) -> Iterator[tuple[str, list[Prediction]]]:
    """Yield the name and the whole ranking of every input, asked in batches."""
    from fedunseen.tasks.few_shot import examples_of

    reader = run.first
    given = reader.described(classes)  # once: a text encoder takes seconds
    shown = None if support is None else {n: reader.read_inputs(files) for n, files in examples_of(support).items()}
    for names, rows in reader.batches(inputs):
        yield from zip(names, reader.predict(rows, given, None, among, shown), strict=True)


def _write(answers: list[dict[str, Any]], table: Path, proba: bool) -> None:
    from fedunseen.data.io.csv_io import write_csv

    last = ["probability"] if proba else []
    rows: list[list[str]] = [["input", "place", "class", "score", *last]]
    for prediction in answers:
        for place, answer in enumerate(prediction["classes"], 1):
            rows.append(
                [prediction["input"], str(place), answer["name"], *(repr(answer[key]) for key in ("score", *last))]
            )
    write_csv(table, rows)


def export(
    path: opt.RunPath,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="DIR", help="The folder to write the tables to.")] = None,
    latex: Annotated[
        Path | None, typer.Option("--latex", metavar="DIR", help="The folder to write the tables to, as LaTeX.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new folder for the model as ONNX, with its classes.")
    ] = None,
    client: opt.Client = None,
    plugins: opt.Plugins = None,
    as_json: opt.Json = False,
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
        written += export_model(exported, out, model_card(exported.first))
    for folder, tex in ((csv, False), (latex, True)):
        if folder is not None:
            from fedunseen.experiment.tables import write_tables

            written += write_tables(run, folder, tex)
    print_json(as_json, {"files": [str(exported) for exported in written]})
    say(*(f"wrote {file}" for file in ([] if as_json else written)))
