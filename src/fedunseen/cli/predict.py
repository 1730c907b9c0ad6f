"""``fedunseen predict``: ranked classes for new inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from fedunseen.cli import options as opt
from fedunseen.cli.console import check_named, open_run, overrides_of, print_json, say
from fedunseen.core.errors import ArgumentError, DataError, ExperimentError, counted
from fedunseen.core.runs import check_question, check_where
from fedunseen.core.text import percent, shown

if TYPE_CHECKING:
    from fedunseen.model import Prediction

ALARM = 0.01
"""The p-value up to which a sample is called unfamiliar."""
_DETAILS = ("unfamiliar", "set", "why", "why_attributes", "why_places")


def predict(
    path: opt.RunPath,
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT...",
            help="Images, texts, folders of them, arrays of features or images (.npy .npz .csv), "
            "or tables as the run's.",
        ),
    ],
    classes: opt.Described = None,
    class_names: opt.Named = None,
    among: Annotated[
        str,
        typer.Option(
            help="Rank all classes, only unseen ones, or only those given by --classes or --class."
        ),
    ] = "all",
    support: opt.Support = None,
    top: Annotated[int, typer.Option(help="How many classes to show.")] = 5,
    proba: Annotated[
        bool,
        typer.Option(
            "--proba",
            hidden=True,
            help="For scripts of before: probabilities are always shown.",
        ),
    ] = False,
    scores: Annotated[
        bool, typer.Option("--scores", help="Show the method's own scores, too.")
    ] = False,
    sets: Annotated[
        float | None,
        typer.Option(
            metavar="COVERAGE",
            help="Show the classes that cannot be ruled out: with 0.9 the right one is among them "
            "nine times in ten.",
        ),
    ] = None,
    why: Annotated[
        bool,
        typer.Option(
            "--why",
            help="Show which seen classes, attributes and places of a picture speak for each "
            "answer.",
        ),
    ] = False,
    heat: Annotated[
        Path | None,
        typer.Option(
            "--why-pictures",
            metavar="FOLDER",
            help="With --why: write each picture with what speaks for its answer (orange) and "
            "against it (blue).",
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            "--csv",
            metavar="FILE",
            help="Write input, place, class, score and probability as a table, a line for each.",
        ),
    ] = None,
    encoder: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where the encoder's weights are, if they are not found by their content.",
        ),
    ] = None,
    client: opt.Client = None,
    overrides: opt.Overrides = None,
    plugins: opt.Plugins = None,
    as_json: opt.Json = False,
) -> None:
    """Rank classes for new inputs, also classes that the model was never trained on."""
    _check(path, classes, class_names, table, among, top)
    _check_details(
        sets, bool(class_names or classes or support) or among != "all", why and support is not None
    )
    if heat is not None and not why:
        raise ArgumentError("--why-pictures shows reasons: give --why, too")
    settings = overrides_of(overrides)
    check_where(list(settings))
    answers: list[dict[str, Any]] = []
    from fedunseen.cli.bars import preparation_bars

    with preparation_bars("reading the run"):
        done = open_run(path, client, encoder=encoder, overrides=settings)
        if sets is not None:
            done.first.model.checked_confidence()
        examples = done.first.read_examples(support)
        added = expectations(done.first, class_names, classes, among, examples or {})
        ranked = list(
            _ranked(done, inputs, class_names or classes, among, examples, Details(sets, why, heat))
        )
    for name, ranking, details in ranked:
        best = [
            {
                "name": prediction.name,
                "score": prediction.score,
                "probability": prediction.probability,
            }
            for prediction in ranking[:top]
        ]
        new = {"new_classes": added} if added else {}
        answers.append({"input": name, "classes": best, **new, **details})
    if table is not None:
        _write(answers, table)
        lines = sum(len(prediction["classes"]) for prediction in answers)
        say(f"{table}: {counted(len(answers), 'input')}, {counted(lines, 'line')}")
    print_json(as_json, answers)
    if done.first.model.confidence is None:
        say(
            "Percentages are shares of 100 %, not how often an answer is right: this run's answers "
            "were not compared with held-out samples."
        )
    if table is None and not as_json:
        for answer, (_, ranking, _) in zip(answers, ranked, strict=True):
            _show(answer, scores, len(ranking) == 1)


def expectations(
    run: Any,
    class_names: list[str] | None,
    classes: Path | None,
    among: str,
    examples: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Say what to expect of classes that are added, by their names alone or by examples, and return
    it of the former.
    """
    from fedunseen.experiment.class_descriptions import names_in

    names = (class_names if classes is None else names_in(classes)) or []
    names = [name for name in names if name not in examples]
    if not names and not examples:
        return []
    from fedunseen.experiment.new_names import announced, near_names, shown_by_examples

    say(*near_names(run, [*examples, *names]))
    if examples and among == "all":
        say(*shown_by_examples(run, {name: len(rows) for name, rows in examples.items()}))
    if not names:
        return []
    outlooks, sentences = announced(run, names, beside_all=among == "all")
    say(*sentences)
    return [outlook.content() for outlook in outlooks]


def _show(answer: dict[str, Any], scores: bool, only: bool) -> None:
    """Print the ranking of one input, and what is said of it; ``only``: one class competed."""
    print(shown(answer["input"]))
    unfamiliar = float(answer.get("unfamiliar", 1.0))
    odd = unfamiliar <= ALARM
    for place, ranked in enumerate(answer["classes"], 1):
        score = f"  {ranked['score']:z.3f}" if scores else ""
        # percentages are of samples like the known ones alone
        stated = "not stated" if odd else percent(ranked["probability"])
        stated = "the only choice" if only else stated
        print(f"  {place}. {shown(ranked['name'])}  {stated}{score}")
    if odd:
        print(
            f"  Unlike all known samples: {100 * unfamiliar:.1f} % of these are as far away. No "
            "percentages are stated."
        )
    if "set" in answer and not odd:
        print(f"  Not ruled out: {', '.join(map(shown, answer['set']))}")
    if "why" in answer:
        print(f"  Why {shown(answer['why'])}")
    for key, word in (("why_attributes", "Attributes"), ("why_places", "Where")):
        if answer.get(key):
            print(f"  {word}: {shown(answer[key])}")


def _check(
    run: Path,
    classes: Path | None,
    class_names: list[str] | None,
    table: Path | None,
    among: str,
    top: int,
) -> None:
    """Refuse what cannot be answered or written while that takes no time: PyTorch is not loaded
    yet.
    """
    check_named(class_names, classes)
    check_question(among, top)
    if (class_names or classes is not None) and (run / "classes.csv").is_file():
        _check_classes(class_names, classes, run, among)
    if table is not None and (table.is_dir() or not table.absolute().parent.is_dir()):
        raise DataError(f"--csv {table}: name a file in a folder that is there")


def _check_classes(
    class_names: list[str] | None, classes: Path | None, run: Path, among: str
) -> None:
    """Refuse classes that do not fit the run: a name that it knows, where that changes nothing, or
    other attributes.
    """
    from fedunseen.data.class_space import ClassSpace, read_classes
    from fedunseen.data.names import plain
    from fedunseen.experiment.class_descriptions import names_in

    space = ClassSpace.load(run / "classes.csv", of_run=True)
    names = class_names if classes is None else names_in(classes)
    if names is None and classes is not None:
        read_classes(classes, space)
    known_names = {plain(name) for name in space.names}
    if among != "given" and (again := [name for name in names or () if plain(name) in known_names]):
        raise ExperimentError(
            f"--class {again[0]}: this run has the class already: leave it out, or rank it alone "
            "with --among given",
            "known-class",
        )


def _check_details(sets: float | None, changes_classes: bool, explains_shown: bool) -> None:
    """Refuse a coverage that is none, sets of classes that the run does not have, and reasons of
    classes that are shown.
    """
    if sets is not None and not 0 < sets < 1:
        raise ArgumentError(
            f"--sets {sets:g} is not between 0 and 1: give for example 0.9, for sets that hold the "
            "right class nine times in ten"
        )
    if changes_classes and sets is not None:
        raise ArgumentError(
            "--sets is about the run's own classes: leave out --class, --classes, --support and "
            "--among, or add the classes with `fedunseen learn` first"
        )
    if explains_shown:
        raise ArgumentError(
            "--why does not go with --support: add the classes with `fedunseen learn` first"
        )


class Details(NamedTuple):
    """What is said of each input beside its ranking: the coverage of a set, reasons, and where
    pictures of them go.
    """

    sets: float | None
    why: bool
    heat: Path | None


def _ranked(
    run: Any,
    inputs: list[Path],
    classes: Any,
    among: str,
    shown: Mapping[str, Any] | None,
    wanted: Details,
) -> Iterator[tuple[str, list[Prediction], dict[str, Any]]]:
    """Yield the name, the whole ranking and details of every input, asked in batches."""
    reader = run.first
    model = reader.model
    described = reader.described(classes)  # once: a text encoder takes seconds
    grown = model.learn(described) if wanted.why and described else model
    if described or shown:
        model = model.with_lengths_of(described, shown)
    for batch in reader.batches(inputs):
        names, rows, _ = batch
        details: list[dict[str, Any]] = [{} for _ in names]
        if model.finds_unfamiliar:
            for detail, value in zip(details, model.unfamiliar(rows).tolist(), strict=True):
                detail["unfamiliar"] = value
        if wanted.sets is not None:
            for detail, inside in zip(details, model.predict_set(rows, wanted.sets), strict=True):
                detail["set"] = [model.space.names[c] for c in inside.nonzero()[0]]
        rankings = reader.predict(rows, described, None, among, shown)
        if wanted.why:
            answers = [ranking[0].name for ranking in rankings]
            _explain(reader, grown, batch, answers, details, wanted.heat)
        yield from zip(names, rankings, details, strict=True)


def _explain(
    run: Any,
    model: Any,
    batch: Any,
    answers: list[str],
    details: list[dict[str, Any]],
    heat: Path | None,
) -> None:
    """Add the reasons for answers to details, and write pictures of them."""
    maps = run.maps_of(batch.pictures)
    explanations = model.explain(batch.rows, maps=maps, classes=answers)
    for detail, explanation in zip(details, explanations, strict=True):
        detail["why"] = explanation.sentence()
        detail["why_attributes"] = explanation.attribute_sentence() if explanation.parts else ""
        detail["why_places"] = "" if explanation.places is None else explanation.places.sentence()
    if heat is not None:
        _write_heat(heat, batch, explanations)


def _write_heat(folder: Path, batch: Any, explanations: list[Any]) -> None:
    """Write the pictures of a batch under their heat, by the names of the files."""
    from fedunseen.core.files import replacing

    if batch.pictures is None or any(explanation.places is None for explanation in explanations):
        raise DataError(
            "--why-pictures needs pictures whose features are means over places: use an encoder "
            "that averages them (efficientnet-lite, resnet, tflite), or leave it out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, pixels, explanation in zip(batch.names, batch.pictures, explanations, strict=True):
        with replacing(_free(folder, name)) as temporary:
            explanation.places.over(pixels).save(temporary, "png")


def _free(folder: Path, name: str) -> Path:
    """Return a file of a folder that is not there, named as an input or a place in it."""
    file, _, place = Path(name).name.partition("[")
    stem = Path(file).stem + (f"-{place.rstrip(']')}" if place else "")
    path = folder / f"{stem}.png"
    again = count(2)
    while path.exists():
        path = folder / f"{stem} ({next(again)}).png"
    return path


def _write(answers: list[dict[str, Any]], table: Path) -> None:
    from fedunseen.data.io.csv_io import write_table

    detail_keys = [key for key in _DETAILS if key in (answers or [{}])[0]]
    rows: list[list[object]] = [["input", "place", "class", "score", "probability", *detail_keys]]
    for prediction in answers:
        details = [
            "; ".join(prediction[key]) if key == "set" else prediction[key] for key in detail_keys
        ]
        for place, answer in enumerate(prediction["classes"], 1):
            rows.append(
                [
                    prediction["input"],
                    place,
                    answer["name"],
                    answer["score"],
                    answer["probability"],
                    *details,
                ]
            )
    write_table(table, rows, follow=True)
