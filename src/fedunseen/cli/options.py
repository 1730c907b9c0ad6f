"""Arguments and options that mean the same in every command, and what a shell completes: no library
of models.
"""

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Annotated

import typer

from fedunseen.core.presets import (
    experiment_text,
    preset_names,
    preset_text,
)
from fedunseen.core.registry import announce
from fedunseen.core.runs import check_is_run
from fedunseen.core.text import decoded

# characters that explain a name: a longer line is broken in two, and shells take the rest for a name
_WORDS = 60


def title(text: str) -> str:
    """Return the first line of an experiment file, which says what it is."""
    return text.splitlines()[0].lstrip("# ")


def named(
    names: Sequence[str], text: Callable[[str], str], incomplete: str
) -> list[tuple[str, str]]:
    """Return the names that begin so, each with the first line of its text."""
    fitting = [name for name in names if name.startswith(incomplete)]
    return [(name, shorten(title(text(name)), _WORDS, placeholder=" ...")) for name in fitting]


def presets(incomplete: str) -> list[tuple[str, str]]:
    """Return the presets whose names begin so, and what they are; where there are none, shells
    complete files.
    """
    return named(preset_names(), preset_text, incomplete)


def settings(incomplete: str) -> list[str]:
    """Return the keys that presets set and that begin so; ``fedunseen settings`` lists all."""
    sections = [
        item for name in preset_names() for item in tomllib.loads(preset_text(name)).items()
    ]
    keys = {
        f"{section}.{key}="
        for section, content in sections
        if isinstance(content, dict)
        for key in content
    }
    return sorted(key for key in keys if key.startswith(incomplete))


def _known(experiment: str) -> str:
    """Refuse the name of no preset and no file at once: everything else of an experiment needs
    PyTorch.
    """
    if experiment:
        experiment_text(experiment)
    return experiment


ExperimentName = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT",
        help="A preset's name, or a TOML file.",
        autocompletion=presets,
        callback=_known,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Replace a setting, for example strategy.rounds=10; repeatable.",
        autocompletion=settings,
    ),
]
Own = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Your own way: run.device=cuda, encoder.model=FILE"
    ),
]
Stated = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Agree to the run's columns, window or frames: data.*"
    ),
]
Described = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Classes to add or replace: a CSV file of name, attributes..., or of names alone.",
    ),
]
Named = Annotated[
    list[str] | None,
    typer.Option(
        "--class",
        metavar="NAME",
        help="A class to add by its name, where a text encoder describes; repeatable.",
        callback=lambda names: names and [decoded(name) for name in names],
    ),
]
Support = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="A folder with a folder of examples for each class; or a table with classes.",
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="A Python file that registers a method, a strategy ... of your own; repeatable.",
        callback=announce,
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="The run directory (default: runs/NAME-seedN, or a new one).")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print one line of JSON as the last line of standard output.")
]
EpsilonLimit = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="Refuse a run that would spend more privacy on these data, over all runs together.",
    ),
]
DeltaLimit = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=1.0,
        help="With --epsilon-limit: the same of delta. Below one over your samples.",
    ),
]
Data = Annotated[
    Path,
    typer.Option(
        help="Your data: classes.csv, and features.npz, a table or folders of images or texts."
    ),
]
State = Annotated[
    Path | None,
    typer.Option(help="Where to keep what must not be lost: the ledger (default: fedunseen-NAME)."),
]
Consent = Annotated[
    list[str] | None,
    typer.Option(
        help="Under masks, agree to: again (a second experiment over the same data), moved (the "
        "data folder), dropouts (sums that differ by few parties), federations (sums that differ "
        "by parties of two federations), moments (samples that second moments show, also in "
        "clear), removal (of few parties or samples)."
    ),
]
Engine = Annotated[
    str, typer.Option(help="Where the work is done: loop (this process), or ray (a cluster).")
]
ClusterAddress = Annotated[
    str, typer.Option(help="--engine ray: the cluster's address; without it, one is started here.")
]
Workers = Annotated[
    int, typer.Option(min=0, help="--engine ray: processes at once (default: all).")
]
Counted = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Send the sums that fedunseen offline count has written, if they fit."
    ),
]
Removed = Annotated[
    list[int] | None, typer.Option(help="Remove only this sample, from 0; repeatable.")
]
MinSamples = Annotated[
    int,
    typer.Option(
        min=1,
        help="Leave a class of which you have fewer samples out of all sums of a closed form: sums "
        "of few samples nearly show them. 1 sends every class.",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="AXIS=VALUE", help="Run a part of the grid; may be repeated."),
]
RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run directory.", callback=check_is_run)
]
Client = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="K", help="Whose model, counted from 0, where every client has its own."
    ),
]
