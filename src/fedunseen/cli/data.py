"""``fedunseen data``: which benchmarks there are, what a folder holds or lacks, folders for parties."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from fedunseen.cli.console import ExperimentName, Json, Overrides, chosen, overrides_of, show
from fedunseen.core.registry import find

__all__ = ["data_app"]

data_app = typer.Typer(
    help="Which benchmarks there are, what a folder holds or lacks, folders for parties.", no_args_is_help=True
)


@data_app.command("list")
def data_list(
    root: Annotated[
        Path | None, typer.Option(help="Where to look (default: $FEDUNSEEN_DATA, or data in this folder).")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the benchmarks: what they are, who publishes them, which files they need, whether they are here."""
    from fedunseen.tools.data import data_folder, examine

    place = root or data_folder()
    told = examine(place)
    show(told, _listed(told, place), as_json)


@data_app.command("check")
def data_check(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a data set.")],
    images: Annotated[bool, typer.Option("--images", help="Decode every image too, and keep it for the runs.")] = False,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the data: data.splits=FOLDER")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a folder holds or lacks, and an experiment that runs on it; exit code 2 if nothing could use it."""
    from fedunseen.tools.data import check

    told = check(folder, overrides_of(overrides), images)
    show(told, _checked(told), as_json)
    if told["missing"] or told["problems"]:
        raise typer.Exit(2)


@data_app.command("deal")
def data_deal(
    experiment: ExperimentName,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the folders are made: a new or an empty folder.")],
    overrides: Overrides = None,
    parties: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="The clients' names (default: client-0, client-1 ...).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write an experiment's samples in folders: each client's training samples, the coordinator's test samples."""
    plan = chosen(experiment, overrides)
    from fedunseen.tools.deal import deal

    named = [name.strip() for name in parties.split(",")] if parties is not None else None
    told = deal(plan, out, named)
    show(told, _dealt(told), as_json)


@data_app.command("encode")
def data_encode(
    experiment: ExperimentName,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The data set's folder: a new or an empty one.")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Write what an experiment's frozen encoder makes of its images, in the xlsa17 layout (.mat files)."""
    plan = chosen(experiment, overrides)
    from fedunseen.tools.encode import encode

    told = encode(plan, out)
    show(told, _encoded(told), as_json)


def _listed(told: Sequence[Mapping[str, Any]], root: Path) -> str:
    """Write what was found for people."""
    lines = []
    for one in told:
        lines.append(f"{one['name']}: {one['title']}")
        lines.append(f"  published  {one['page']}")
        lines.append(f"  layout     {one['layout']}")
        if one["files"]:
            lines += [f"  found      {place}" for place in one["found"]] or [f"  not found  in {root}"]
    return "\n".join(lines)


def _checked(told: Mapping[str, Any]) -> str:
    """Write what was found for people."""
    lines = [f"{told['root']}: the layout of {told['benchmark']}"]
    lines += [f"  missing: {need}" for need in told["missing"]]
    if told["missing"]:
        lines.append(f"  {find('data', told['benchmark']).describe()}")
        if told["benchmark"] == "images" and told["missing"] == ["classes.csv"]:
            lines.append(f"  fedunseen init {quote(told['root'])} writes it, with every fifth class as an unseen one")
    lines += [f"  problem: {problem}" for problem in told["problems"]]
    if "classes" in told:
        lines.append(f"  classes: {told['classes']} ({told['seen']} seen, of them {told['validation']} for validation; "
                     f"{told['unseen']} unseen)")  # fmt: skip
        if told["attributes"]:
            lines.append(f"  attributes: {told['attributes']}, {told['grouped']} of them in {told['groups']} groups")
        else:
            lines.append("  attributes: none, the classes are learnt from examples (few-shot)")
        lines.append(f"  samples: {told['samples']:,} ({told['train']:,} to train on, {told['test_seen']:,} tests of "
                     f"seen and {told['test_unseen']:,} of unseen classes)")  # fmt: skip
    if "bytes" in told:
        lines.append(f"  decoded once, they take {told['bytes'] / 1e9:.2f} GB in {told['cache']}")
    if told["missing"] or told["problems"]:
        return "\n".join(lines)
    lines += [f"  {doubt}" for doubt in told["doubts"]]
    if "bytes" in told and "unreadable" not in told:
        lines.append("  images not decoded: add --images to find those that cannot be read")
    if told["part"]:
        lines.append(f"a part, too little for a run of its own: {'; '.join(_lacking(told))}")
        lines.append("ready for one party of a federation (fedunseen join --data) or its coordinator (fedunseen host):")
    else:
        lines.append("ready; an experiment to begin with, as a file for `fedunseen run`:")
    return "\n".join([*lines, *told["snippet"].splitlines()])


def _lacking(told: Mapping[str, Any]) -> list[str]:
    """Say what a part of a benchmark does not have."""
    untrained = told["untrained"]
    more = f" and {len(untrained) - 3} more" if len(untrained) > 3 else ""
    classes = [f"no sample to train on of {', '.join(untrained[:3])}{more}"] if untrained else []
    words = {"test_seen": "no test sample of a seen class", "test_unseen": "no sample of an unseen class"}
    return classes + [word for split, word in words.items() if not told[split]]


def _dealt(told: Mapping[str, Any]) -> str:
    """Write what was dealt for people."""
    coordinator, parties = told["coordinator"], told["parties"]
    width = max(len(one["name"]) for one in (*parties, coordinator))
    lines = [f"{told['out']}: {len(parties)} parties and a coordinator, dealt with run.seed = {told['seed']}"]
    for one, what in (*((one, "training") for one in parties), (coordinator, "test")):
        lines.append(f"  {one['name']:<{width}}  {one['samples']:,} {what} samples of {one['classes']} classes")
    join = f"fedunseen join --data {quote(parties[0]['folder'])}"
    lines += [f"a party gives its folder to `{join}`; the coordinator's experiment has", "[data]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in told["data"].items()]
    return "\n".join([*lines, f"root = {json.dumps(coordinator['folder'], ensure_ascii=False)}"])


def _encoded(told: dict[str, Any]) -> str:
    """Write what was encoded for people."""
    data = "  ".join(f'{key} = "{value}"' for key, value in told["data"].items())
    return (
        f"{told['samples']} samples of {told['numbers']} numbers, {told['classes']} classes with {told['attributes']} "
        f"attributes: {told['out']}\n[data]  {data}"
    )
