"""``fedunseen data``: which benchmarks there are, what a folder holds or lacks, folders for
parties.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedunseen.cli import options as opt
from fedunseen.cli import texts
from fedunseen.cli.console import chosen, overrides_of, show
from fedunseen.core.registry import find

data_app = typer.Typer(
    help="Which benchmarks there are, what a folder holds or lacks, folders for parties.",
    no_args_is_help=True,
)


@data_app.command("list")
def data_list(
    root: Annotated[
        Path | None,
        typer.Option(help="Where to look (default: $FEDUNSEEN_DATA, or data in this folder)."),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """List the benchmarks: what they are, who publishes them, which files they need, whether they
    are here.
    """
    from fedunseen.core.presets import data_folder
    from fedunseen.experiment.data_check import examine

    place = root or data_folder()
    info = examine(place)
    show(info, texts.data_listed(info, place), as_json)


@data_app.command("check")
def data_check(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a data set.")],
    images: Annotated[
        bool, typer.Option("--images", help="Decode every image too, and keep it for the runs.")
    ] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of the data: data.splits=FOLDER"
        ),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Say what a folder holds or lacks, and an experiment that runs on it; exit code 2 if nothing
    could use it.
    """
    from fedunseen.cli.bars import preparation_bars
    from fedunseen.experiment.data_check import check

    with preparation_bars("looking at the folder"):
        info = check(folder, overrides_of(overrides), images)
    kind = find("data", info["benchmark"])
    nameable = "text_encoder" in kind.Settings.model_fields
    lacking = _lacking(info) if info["part"] and "untrained" in info else []
    show(info, texts.data_checked(info, kind.describe(), nameable, lacking), as_json)
    if info["missing"] or info["problems"]:
        raise typer.Exit(2)


@data_app.command("deal")
def data_deal(
    experiment: opt.ExperimentName,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="Where the folders are made: a new or an empty folder."
        ),
    ],
    overrides: opt.Overrides = None,
    parties: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...", help="The clients' names (default: client-0, client-1 ...)."
        ),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Write an experiment's samples in folders: each client's training samples, the coordinator's
    test samples.
    """
    plan = chosen(experiment, overrides)
    from fedunseen.experiment.deal import deal

    names = [name.strip() for name in parties.split(",")] if parties is not None else None
    info = deal(plan, out, names)
    show(info, texts.data_dealt(info), as_json)


@data_app.command("encode")
def data_encode(
    experiment: opt.ExperimentName,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The data set's folder: a new or an empty one.")
    ],
    overrides: opt.Overrides = None,
    as_json: opt.Json = False,
) -> None:
    """Write what an experiment's frozen encoder makes of its images, in the xlsa17 layout (.mat
    files).
    """
    plan = chosen(experiment, overrides)
    from fedunseen.experiment.encode_features import encode

    info = encode(plan, out)
    show(info, texts.data_encoded(info), as_json)


def _lacking(info: Mapping[str, Any]) -> list[str]:
    """Say what a part of a benchmark does not have."""
    untrained = info["untrained"]
    further = f" and {len(untrained) - 3} more" if len(untrained) > 3 else ""
    classes = [f"no sample to train on of {', '.join(untrained[:3])}{further}"] if untrained else []
    words = {
        "test_seen": "no test sample of a seen class",
        "test_unseen": "no sample of an unseen class",
    }
    return classes + [word for split, word in words.items() if not info[split]]
