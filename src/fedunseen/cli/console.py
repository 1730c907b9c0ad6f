"""What the commands have in common: options that mean the same everywhere, and where words go."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from fedunseen.cli.logs import emit
from fedunseen.core.errors import ArgumentError, ExperimentError, FedUnseenError, counted
from fedunseen.core.files import holding

if TYPE_CHECKING:
    from fedunseen.experiment.result.run import Run
    from fedunseen.experiment.schema import Experiment


def say(*lines: str) -> None:
    """Print for people: to standard error, so that standard output carries results alone."""
    for line in lines:
        emit(line)


def print_json(as_json: bool, result: object) -> None:
    """Print a result as one line of JSON, if that is asked for."""
    if as_json:
        print(json.dumps(result), flush=True)


def show(result: object, text: str, as_json: bool) -> None:
    """Print a result: as one line of JSON, or for people."""
    print(json.dumps(result) if as_json else text, flush=True)


def filled(template: str, context: Mapping[str, Any]) -> str:
    """Return a text for people: a template of ``texts/``, filled in."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("fedunseen.cli", "texts")
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {"quote": quote, "json": json.dumps, "counted": counted}
    return environment.get_template(f"{template}.txt").render(context).rstrip("\n")


def finish(run: Run, report: Path, as_json: bool, *lines: str, said: Collection[str] = ()) -> None:
    """Say what came out of a run (``lines`` after its headline, no notes ``said`` before); with JSON its result too."""
    result = run.result
    weak = result.get("summary", {}).get("text", [])  # classes, and advice
    notes = [f"note: {note}" for note in result.get("notes", []) if note not in said]
    warnings = [f"warning: {each['what']} {each['remedy']}" for each in result.get("warnings", [])]
    say(run.headline(), *lines, *weak, *notes, *warnings, f"run:    {run.path}", f"report: {report}")
    print_json(as_json, result)


def open_run(path: Path, client: int | None, **options: Any) -> Run:
    """Return a finished run, or the model of one of its clients."""
    from fedunseen.experiment.result.run import load_run

    run = load_run(path, **options)
    return run if client is None else run.of_client(client)


def check_named(named: Sequence[str] | None, classes: Path | None) -> None:
    """Raise an ExperimentError where classes are given by their names and in a table."""
    if named and classes is not None:
        raise ExperimentError("--class and --classes both name classes to add: give one of them")


def check_consent(consent: Sequence[str] | None, known: Collection[str]) -> None:
    """Raise an ExperimentError where a party consents to something unknown."""
    if stray := sorted(set(consent or ()) - set(known)):
        raise ExperimentError(f"--consent {stray[0]}: choose among {', '.join(sorted(known))}")


def check_delta_limit(epsilon_limit: float | None, delta_limit: float, samples: int) -> None:
    """Raise an ArgumentError where limits of privacy let a run give one of the party's samples away."""
    if epsilon_limit is not None and delta_limit * samples >= 1:
        raise ArgumentError(
            f"--delta-limit {delta_limit:g} is not below one over {samples}, the number of your samples, so that a run "
            "may give one of them away: give a smaller one"
        )


@contextmanager
def sole_user(state: Path, remedy: str) -> Iterator[None]:
    """Hold a party's folder, which no one else may read, against a second process."""
    state.mkdir(parents=True, exist_ok=True)
    state.chmod(0o700)  # what a party keeps there says something of its data
    with holding(state) as held:
        if not held:
            raise FedUnseenError(f"{state} is in use by another process: {remedy}")
        yield


def overrides_of(texts: list[str] | None) -> dict[str, Any]:
    """Return ``{"section.key": value}`` of what stands after ``--set``."""
    from fedunseen.experiment.parsing import parse_override

    return dict(parse_override(text) for text in texts or [])


def chosen(experiment: str, overrides: list[str] | None) -> Experiment:
    """Read an experiment; what a glance shows to be wrong is refused before PyTorch is loaded, which takes seconds."""
    from fedunseen.experiment.parsing import glance

    replaced = overrides_of(overrides)
    glance(experiment, replaced)
    from fedunseen.experiment.schema import Experiment

    return Experiment.load(experiment, replaced)
