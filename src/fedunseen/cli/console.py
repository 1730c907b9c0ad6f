"""What the commands have in common: options that mean the same everywhere, and where words go."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedunseen.cli.logs import emit
from fedunseen.core.errors import ExperimentError, MissingDependencyError
from fedunseen.core.extensions import added, at
from fedunseen.core.text import shown

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


LEGEND = (
    "  ZSL: of 100 test samples of unseen classes, which no one trained on, so many get the right "
    "name if only unseen classes can be the answer.\n  GZSL: the same if every class can be the "
    "answer, as in daily use: of unseen classes, of seen ones (which were trained on), and of all."
    "\n  The harmonic mean (H) sums up unseen and seen: it is low where one of them is. In each "
    "number every class counts the same."
)
"""What the headline of a run with unseen classes means."""


def show(result: object, text: str, as_json: bool) -> None:
    """Print a result: as one line of JSON, or for people."""
    print(json.dumps(result) if as_json else shown(text), flush=True)


def write_pages(run: Run) -> list[str]:
    """Write the pages about a finished run; return the lines that say where the run and its report
    are.
    """
    lines = [f"run:    {run.path}"]
    if not added("AFTER_RUN"):
        return [*lines, "note: there is no report: fedunseen.pages is missing"]
    return [*lines, *(f"report: {place}" for place in pages_of("AFTER_RUN", run))]


def pages_of(hook: str, *facts: object) -> list[Any]:
    """Return what each writer of pages returns; print a note where a library for them is
    missing.
    """
    try:
        return [at(place)(*facts) for place in added(hook)]
    except MissingDependencyError as error:
        say(f"note: there is no report: {error}")
        return []


def finish(
    run: Run, pages: Sequence[str], as_json: bool, *lines: str, said: Collection[str] = ()
) -> None:
    """Print what came out of a run; with JSON its result too.

    Args:
        run: the finished run.
        pages: the lines that :func:`write_pages` returned.
        as_json: print the result as JSON, too.
        lines: printed after the headline.
        said: notes that were printed before.
    """
    from fedunseen.evaluation.diagnosis import usual_strays
    from fedunseen.evaluation.summary import interval_words

    result = run.result
    chance = [words] if (words := interval_words(result)) else []
    weak = result.get("summary", {}).get("text", [])  # classes, and advice
    notes = [f"note: {note}" for note in result.get("notes", []) if note not in said]
    if "strays" in result and (usual := usual_strays(result)):
        notes.append(f"note: {usual.what} {usual.why} {usual.remedy}")
    warnings = [f"warning: {each['what']} {each['remedy']}" for each in result.get("warnings", [])]
    legend = LEGEND.splitlines() if "zsl" in result else []
    say(run.headline(), *legend, *lines, *chance, *weak, *notes, *warnings, *pages)
    print_json(as_json, result)


def open_run(path: Path, client: int | None, **options: Any) -> Run:
    """Return a finished run, or the model of one of its clients."""
    from fedunseen.experiment.result.run import load_run

    run = load_run(path, **options)
    return run if client is None else run.of_client(client)


def check_named(class_names: Sequence[str] | None, classes: Path | None) -> None:
    """Raise an ExperimentError where classes are given by their names and in a table."""
    if class_names and classes is not None:
        raise ExperimentError("--class and --classes both name classes to add: give one of them")


def check_consent(consent: Sequence[str] | None, choices: Collection[str]) -> None:
    """Raise an ExperimentError where a party consents to something unknown."""
    if stray := sorted(set(consent or ()) - set(choices)):
        raise ExperimentError(f"--consent {stray[0]}: choose among {', '.join(sorted(choices))}")


def overrides_of(texts: list[str] | None) -> dict[str, Any]:
    """Return ``{"section.key": value}`` of what stands after ``--set``."""
    from fedunseen.experiment.parsing import parse_override

    return dict(parse_override(text) for text in texts or [])


def chosen(experiment: str, overrides: list[str] | None) -> Experiment:
    """Read an experiment; what a glance shows to be wrong is refused before PyTorch is loaded,
    which takes seconds.
    """
    from fedunseen.experiment.parsing import glance

    replaced = overrides_of(overrides)
    glance(experiment, replaced)
    from fedunseen.experiment.schema import Experiment

    return Experiment.load(experiment, replaced)
