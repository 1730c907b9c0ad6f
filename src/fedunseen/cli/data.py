"""``fedunseen data``: which benchmarks there are, what a folder holds or lacks, folders for parties."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from fedunseen.cli import options as opt
from fedunseen.cli.console import chosen, overrides_of, show
from fedunseen.core.registry import find

data_app = typer.Typer(
    help="Which benchmarks there are, what a folder holds or lacks, folders for parties.", no_args_is_help=True
)


@data_app.command("list")
def data_list(
    root: Annotated[
        Path | None, typer.Option(help="Where to look (default: $FEDUNSEEN_DATA, or data in this folder).")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """List the benchmarks: what they are, who publishes them, which files they need, whether they are here."""
    from fedunseen.tools.data import data_folder, examine

    place = root or data_folder()
    info = examine(place)
    show(info, _listed(info, place), as_json)


@data_app.command("check")
def data_check(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a data set.")],
    images: Annotated[bool, typer.Option("--images", help="Decode every image too, and keep it for the runs.")] = False,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the data: data.splits=FOLDER")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Say what a folder holds or lacks, and an experiment that runs on it; exit code 2 if nothing could use it."""
    from fedunseen.tools.data import check

    info = check(folder, overrides_of(overrides), images)
    show(info, _checked(info), as_json)
    if info["missing"] or info["problems"]:
        raise typer.Exit(2)


@data_app.command("deal")
def data_deal(
    experiment: opt.ExperimentName,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the folders are made: a new or an empty folder.")],
    overrides: opt.Overrides = None,
    parties: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="The clients' names (default: client-0, client-1 ...).")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Write an experiment's samples in folders: each client's training samples, the coordinator's test samples."""
    plan = chosen(experiment, overrides)
    from fedunseen.tools.deal import deal

    named = [name.strip() for name in parties.split(",")] if parties is not None else None
    info = deal(plan, out, named)
    show(info, _dealt(info), as_json)


@data_app.command("encode")
def data_encode(
    experiment: opt.ExperimentName,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="The data set's folder: a new or an empty one.")],
    overrides: opt.Overrides = None,
    as_json: opt.Json = False,
) -> None:
    """Write what an experiment's frozen encoder makes of its images, in the xlsa17 layout (.mat files)."""
    plan = chosen(experiment, overrides)
    from fedunseen.tools.encode import encode

    info = encode(plan, out)
    show(info, _encoded(info), as_json)


def _listed(info: Sequence[Mapping[str, Any]], root: Path) -> str:
    """Write what was found for people."""
    lines = []
    for benchmark in info:
        lines.append(f"{benchmark['name']}: {benchmark['title']}")
        lines.append(f"  published  {benchmark['page']}")
        lines.append(f"  layout     {benchmark['layout']}")
        if benchmark["files"]:
            lines += [f"  found      {place}" for place in benchmark["found"]] or [f"  not found  in {root}"]
    return "\n".join(lines)


def _checked(info: Mapping[str, Any]) -> str:
    """Write what was found for people."""
    lines = [f"{info['root']}: the layout of {info['benchmark']}"]
    lines += [f"  missing: {need}" for need in info["missing"]]
    if info["missing"]:
        lines.append(f"  {find('data', info['benchmark']).describe()}")
        if info["benchmark"] == "images" and info["missing"] == ["classes.csv"]:
            lines.append(f"  fedunseen init {quote(info['root'])} writes it, with about a fifth of the classes unseen")
    lines += [f"  problem: {problem}" for problem in info["problems"]]
    if "classes" in info:
        lines.append(f"  classes: {info['classes']} ({info['seen']} seen, of them {info['validation']} for validation; "
                     f"{info['unseen']} unseen)")  # fmt: skip
        if info["attributes"]:
            lines.append(f"  attributes: {info['attributes']}, {info['grouped']} of them in {info['groups']} groups")
        else:
            lines.append("  attributes: none, the classes are learned from examples (few-shot)")
        lines.append(f"  samples: {info['samples']:,} ({info['train']:,} to train on, {info['test_seen']:,} tests of "
                     f"seen and {info['test_unseen']:,} of unseen classes)")  # fmt: skip
    if "bytes" in info:
        lines.append(f"  decoded once, they take {info['bytes'] / 1e9:.2f} GB in {info['cache']}")
    if info["missing"] or info["problems"]:
        return "\n".join(lines)
    lines += [f"  {doubt}" for doubt in info["doubts"]]
    if "bytes" in info and "unreadable" not in info:
        lines.append("  images not decoded: add --images to find those that cannot be read")
    if info["part"]:
        lines.append(f"a part, too little for a run of its own: {'; '.join(_lacking(info))}")
        lines.append("ready for one party of a federation (fedunseen join --data) or its coordinator (fedunseen host):")
    else:
        lines.append("ready; an experiment to begin with, as a file for `fedunseen run`:")
    return "\n".join([*lines, *info["snippet"].splitlines()])


def _lacking(info: Mapping[str, Any]) -> list[str]:
    """Say what a part of a benchmark does not have."""
    untrained = info["untrained"]
    more = f" and {len(untrained) - 3} more" if len(untrained) > 3 else ""
    classes = [f"no sample to train on of {', '.join(untrained[:3])}{more}"] if untrained else []
    words = {"test_seen": "no test sample of a seen class", "test_unseen": "no sample of an unseen class"}
    return classes + [word for split, word in words.items() if not info[split]]


def _dealt(info: Mapping[str, Any]) -> str:
    """Write what was dealt for people."""
    coordinator, parties = info["coordinator"], info["parties"]
    width = max(len(benchmark["name"]) for benchmark in (*parties, coordinator))
    lines = [f"{info['out']}: {len(parties)} parties and a coordinator, dealt with run.seed = {info['seed']}"]
    for benchmark, what in (*((benchmark, "training") for benchmark in parties), (coordinator, "test")):
        lines.append(
            f"  {benchmark['name']:<{width}}  {benchmark['samples']:,} {what} samples of {benchmark['classes']} classes"
        )
    join = f"fedunseen join --data {quote(parties[0]['folder'])}"
    lines += [f"a party gives its folder to `{join}`; the coordinator's experiment has", "[data]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in info["data"].items()]
    return "\n".join([*lines, f"root = {json.dumps(coordinator['folder'], ensure_ascii=False)}"])


def _encoded(info: dict[str, Any]) -> str:
    """Write what was encoded for people."""
    data = "  ".join(f'{key} = "{value}"' for key, value in info["data"].items())
    return (
        f"{info['samples']} samples of {info['numbers']} numbers, {info['classes']} classes with {info['attributes']} "
        f"attributes: {info['out']}\n[data]  {data}"
    )
