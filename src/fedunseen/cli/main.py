"""``fedunseen``: init, run, report, export, predict, compare, sweep, presets, settings, data,
attack, host, join ...
"""

import json
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from fedunseen import __version__
from fedunseen.cli import options as opt
from fedunseen.cli import texts
from fedunseen.cli.console import chosen, finish, say, show, write_pages
from fedunseen.cli.data import data_app
from fedunseen.cli.learn import adapt, forget, learn, statistics, sums
from fedunseen.cli.logs import Format, emit, speak
from fedunseen.cli.predict import predict
from fedunseen.cli.start import estimate, examine, init, new
from fedunseen.cli.watching import Watching, watched, with_options
from fedunseen.core.command_line import typed
from fedunseen.core.errors import ArgumentError, FedUnseenError, unknown
from fedunseen.core.extensions import at, commands
from fedunseen.core.registry import fault
from fedunseen.core.runs import check_is_run

# Help without boxes: rich takes longer to import than everything else that --help needs.
typer.core.HAS_RICH = False
PANELS: dict[str, tuple[str, ...]] = {
    "Start": ("doctor", "presets", "settings", "new", "init", "run", "predict"),
    "Data": ("data", "estimate"),
    "Use a finished run": ("learn", "adapt", "sums", "statistics", "forget"),
    "Deploy": (),
    "Research": ("compare",),
}
"""Panels of the help in their order, each with the core's commands."""


def panels() -> dict[str, list[str]]:
    """Return title -> commands of each panel: the core's, then those of the folders beside it."""
    shown = {title: list(names) for title, names in PANELS.items()}
    for command in commands():
        shown.setdefault(command.panel, []).append(command.name)
    return shown


class Known(typer.core.TyperGroup):
    """Refuses unknown commands in one sentence, as everything else is refused."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names."""
        if not (ctx.resilient_parsing or args[0] in self.commands or args[0].startswith("-")):
            raise ArgumentError(unknown("command", args[0], self.commands), "unknown-command")
        return super().resolve_command(ctx, args)


class Grouped(Known):
    """Lists commands by what they are for, and lets runs record what was typed."""

    def main(self, args: Sequence[str] | None = None, *arguments: Any, **options: Any) -> Any:
        """Run a command."""
        with typed(["fedunseen", *(sys.argv[1:] if args is None else args)]):
            return super().main(args, *arguments, **options)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel."""
        for title, names in panels().items():
            rows = [(name, self.commands[name].get_short_help_str(78)) for name in names]
            if rows:  # a folder that is missing takes its commands with it
                with formatter.section(title):
                    formatter.write_dl(rows)


app = typer.Typer(
    name="fedunseen",
    cls=Grouped,
    help="Federated learning that recognizes classes which no one holds.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(data_app, name="data", cls=Known)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedunseen {__version__}")
        raise typer.Exit


@app.callback()
def begin(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and stop."
        ),
    ] = False,
) -> None:
    """Train, evaluate, attack and deploy federated zero-shot and few-shot models."""
    if context.invoked_subcommand is None:
        print(files("fedunseen.cli").joinpath("begin.txt").read_text("utf-8"), end="")


@app.command()
@with_options("live_page", "tracking")
def run(
    experiment: opt.ExperimentName,
    overrides: opt.Overrides = None,
    plugins: opt.Plugins = None,
    out: opt.Out = None,
    resume: opt.Resume = False,
    as_json: opt.Json = False,
    *,
    watching: Mapping[str, Watching],
) -> None:
    """Run an experiment."""
    plan = chosen(experiment, overrides)
    from fedunseen.cli.bars import preparation_bars

    with preparation_bars("loading PyTorch"):
        from fedunseen.cli.progress import live_progress
        from fedunseen.evaluation.summary import stopped
        from fedunseen.experiment.manifest import free_directory
        from fedunseen.experiment.running import run as run_experiment

    if out is None and not resume:
        out = free_directory(plan)
    if resume and out is not None and not (out / "manifest.json").exists():
        say(f"note: {out} holds no run yet: starting a new one")
    try:
        with (
            live_progress() as progress,
            watched(watching, plan, out or Path(), progress) as (on_round, present),
        ):
            done = run_experiment(plan, out, resume, on_round, present=present)
        pages = write_pages(done)
    except KeyboardInterrupt:  # caught here, because typer ends the process without a word
        _fail(f"interrupted: continue with the same command and --out {out} --resume", 130)
    finish(done, pages, as_json, *filter(None, [stopped(done.result).strip()]))


@app.command()
def compare(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="The run directory that the others are compared with.",
            callback=check_is_run,
        ),
    ],
    others: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Run directories of the same seeds.",
            callback=lambda runs: [check_is_run(run) for run in runs],
        ),
    ],
    as_json: opt.Json = False,
) -> None:
    """Say by how much runs differ from the first, with 95 % intervals: by seed, or by test episode
    or sample.
    """
    from fedunseen.evaluation.measures import SHORT
    from fedunseen.experiment.result.run import load_run
    from fedunseen.experiment.tables import compare as compare_runs

    comparisons = [compare_runs(load_run(other_run), load_run(path)) for other_run in others]
    show(
        [result.to_dict() for result in comparisons],
        texts.compared(comparisons, SHORT),
        as_json,
    )


@app.command()
def presets() -> None:
    """List the experiments that come with the package."""
    from fedunseen.core.presets import preset_names, preset_text

    width = max(map(len, preset_names()))
    for name in preset_names():
        print(f"{name:<{width}}  {opt.title(preset_text(name))}")


for command in (init, predict, new, learn, adapt, sums, statistics, forget, estimate):
    app.command()(command)
for listed in commands():
    if listed.group:
        app.add_typer(at(listed.place), name=listed.name, cls=Known)
    else:
        app.command(listed.name)(at(listed.place))


@app.command()
def settings() -> None:
    """List every key of an experiment file with its default and meaning, as Markdown."""
    from fedunseen.cli.settings import reference

    print(reference(), end="")


@app.command()
def doctor(as_json: opt.Json = False) -> None:
    """Say what is installed, which devices and data are there, what is missing and how to get
    it.
    """
    findings = examine()
    show(findings, texts.examined(findings), as_json)


_WARNED: set[str] = set()


def _warn(message: Warning | str, *place: Any, **options: Any) -> None:
    """Show a warning as one line, and once; where in the code it arose is of no use to the user."""
    if str(message) not in _WARNED:
        _WARNED.add(str(message))
        say(f"warning: {message}")


def _fail(message: str, status: int, code: str = "") -> NoReturn:
    message = (
        message if len(message) < 4000 else f"{message[:2000]} ... {message[-200:]}"
    )  # a name of a file's length
    emit(message, code)
    if code and "--json" in sys.argv:
        print(
            json.dumps({"error": {"code": code, "message": message.removeprefix("error: ")}}),
            flush=True,
        )
    raise SystemExit(status)


def main() -> None:
    """Run the command; what the user can fix is one sentence on standard error and exit code 2."""
    warnings.showwarning = _warn
    speak(Format.text)
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        # Before PyTorch is loaded: between operations its threads shall spin a little, then sleep.
        # On a machine whose cores have other work too, long spinning makes a run of many small
        # operations several times slower.
        os.environ["GOMP_SPINCOUNT"] = "1000"
    try:
        app()
    except FedUnseenError as error:
        _fail(f"error: {error}", 2, error.code)
    except Exception as error:
        sentence = fault(error)
        if sentence and not sys.flags.dev_mode:
            _fail(f"error: {sentence}; PYTHONDEVMODE=1 shows where it was called", 2, "plugin")
        if sentence or not isinstance(error, OSError):
            raise
        place = error.filename or "a file"
        _fail(
            f"error: {place} cannot be read or written ({error.strerror or error}): fix that and "
            "try again",
            2,
            "file",
        )
