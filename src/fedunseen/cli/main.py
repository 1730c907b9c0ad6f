"""``fedunseen``: init, run, report, export, predict, compare, sweep, presets, settings, data, attack, host, join ..."""

import atexit
import gc
import json
import os
import sys
import warnings
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from fedunseen import __version__
from fedunseen.cli import options as opt
from fedunseen.cli.attack import attack_app
from fedunseen.cli.console import chosen, filled, finish, print_json, say, show
from fedunseen.cli.dashboard import BindAddress, both, live_page, watched
from fedunseen.cli.data import data_app
from fedunseen.cli.deployment import certs, host, join
from fedunseen.cli.health import health, ledger
from fedunseen.cli.learn import adapt, forget, learn, sums
from fedunseen.cli.logs import Format, emit, speak
from fedunseen.cli.offline import offline_app
from fedunseen.cli.predict import export, predict
from fedunseen.cli.serve import serve
from fedunseen.cli.start import estimate, examine, init, new
from fedunseen.cli.sweep import bench, sweep, sweeps
from fedunseen.core.errors import ArgumentError, FedUnseenError, unknown
from fedunseen.core.registry import fault

# Help without boxes: rich takes longer to import than everything else that --help needs.
typer.core.HAS_RICH = False
PANELS = {
    "Start": ("doctor", "presets", "settings", "new", "init", "run", "report", "predict"),
    "Data": ("data", "estimate"),
    "Use a finished run": ("learn", "adapt", "sums", "forget", "export", "serve"),
    "Deploy": ("certs", "host", "join", "offline", "health", "ledger"),
    "Research": ("compare", "sweep", "sweeps", "bench", "attack"),
}


class Known(typer.core.TyperGroup):
    """Refuses unknown commands in one sentence, as everything else is refused."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names."""
        if not (ctx.resilient_parsing or args[0] in self.commands or args[0].startswith("-")):
            raise ArgumentError(unknown("command", args[0], self.commands), "unknown-command")
        return super().resolve_command(ctx, args)


class Grouped(Known):
    """Lists commands by what they are for."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel."""
        for title, names in PANELS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(78)) for name in names])


app = typer.Typer(
    name="fedunseen",
    cls=Grouped,
    help="Federated learning that recognizes classes which no one holds.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(data_app, name="data", cls=Known)
app.add_typer(attack_app, name="attack", cls=Known)
app.add_typer(offline_app, name="offline", cls=Known)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedunseen {__version__}")
        raise typer.Exit


@app.callback()
def begin(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Train, evaluate, attack and deploy federated zero-shot and few-shot models."""
    if context.invoked_subcommand is None:
        print(files("fedunseen.cli").joinpath("texts/begin.txt").read_text("utf-8"), end="")


@app.command()
@live_page
def run(
    experiment: opt.ExperimentName,
    overrides: opt.Overrides = None,
    plugins: opt.Plugins = None,
    out: opt.Out = None,
    resume: opt.Resume = False,
    track: opt.Track = None,
    as_json: opt.Json = False,
    *,
    listen_at: BindAddress | None,
) -> None:
    """Run an experiment."""
    plan = chosen(experiment, overrides)
    from fedunseen.cli.progress import live_progress
    from fedunseen.experiment.manifest import free_directory
    from fedunseen.experiment.running import run as run_experiment
    from fedunseen.experiment.tracking import tracked

    if out is None and not resume:
        out = free_directory(plan)
    if resume and out is not None and not (out / "manifest.json").exists():
        say(f"note: {out} holds no run yet: starting a new one")
    try:
        with watched(listen_at, plan, out or Path()) as monitor:
            with live_progress() as progress, tracked(progress, track or [], out or Path(), plan) as on_round:
                done = run_experiment(
                    plan, out, resume, both(monitor, on_round), present=monitor.meet if monitor else None
                )
            # Figures take a second to import: not before they are needed.
            from fedunseen.report import write_card, write_report
            from fedunseen.report.parts import stopped

            report = write_report(done)
            write_card(done)
    except KeyboardInterrupt:  # caught here, because typer ends the process without a word
        _fail(f"interrupted: continue with the same command and --out {out} --resume", 130)
    finish(done, report, as_json, *filter(None, [stopped(done.result).strip()]))


@app.command()
def report(path: opt.RunPath, as_json: opt.Json = False) -> None:
    """Write a run's report.html again."""
    from fedunseen.experiment.result.run import load_run
    from fedunseen.report import write_report

    written = write_report(load_run(path))
    say(f"report: {written}")
    print_json(as_json, {"run": str(path), "report": str(written)})


@app.command()
def compare(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory that the others are compared with.")],
    others: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories of the same seeds.")],
    as_json: opt.Json = False,
) -> None:
    """Say by how much runs differ from the first, with 95 % intervals: by seed, or by test episode or sample."""
    from fedunseen.evaluation.measures import SHORT
    from fedunseen.experiment.result.run import load_run
    from fedunseen.experiment.tables import compare as compare_runs

    found = [compare_runs(load_run(other), load_run(path)) for other in others]
    show([result.to_dict() for result in found], filled("compare", {"found": found, "short": SHORT}), as_json)


@app.command()
def presets() -> None:
    """List the experiments that come with the package."""
    from fedunseen.core.presets import preset_names, preset_text

    width = max(map(len, preset_names()))
    for name in preset_names():
        print(f"{name:<{width}}  {opt.title(preset_text(name))}")


for command in (
    init, predict, new, learn, adapt, sums, forget, export, serve, sweep, sweeps, bench, certs, host, join, health,
    ledger, estimate,
):  # fmt: skip
    app.command()(command)


@app.command()
def settings() -> None:
    """List every key of an experiment file with its default and meaning, as Markdown."""
    from fedunseen.cli.settings import reference

    print(reference(), end="")


@app.command()
def doctor(as_json: opt.Json = False) -> None:
    """Say what is installed, which devices and data are there, what is missing and how to get it."""
    findings = examine()
    show(findings, filled("doctor", findings), as_json)


_WARNED: set[str] = set()


def _warn(message: Warning | str, *place: Any, **more: Any) -> None:
    """Show a warning as one line, and once; where in the code it arose is of no use to the user."""
    if str(message) not in _WARNED:
        _WARNED.add(str(message))
        say(f"warning: {message}")


def _fail(message: str, status: int, code: str = "") -> NoReturn:
    message = message if len(message) < 4000 else f"{message[:2000]} ... {message[-200:]}"  # a name of a file's length
    emit(message, code)
    if code and "--json" in sys.argv:
        print(json.dumps({"error": {"code": code, "message": message.removeprefix("error: ")}}), flush=True)
    raise SystemExit(status)


def main() -> None:
    """Run the command; what the user can fix is one sentence on standard error and exit code 2."""
    warnings.showwarning = _warn
    speak(Format.text)
    atexit.register(gc.freeze)  # else Python's last search, through all libraries, takes a quarter of a second
    if sys.argv[1:2] in (["run"], ["report"], ["predict"]):
        gc.disable()  # libraries leave no garbage, and a search takes a sixth of loading them; rounds enable it
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        # Before PyTorch is loaded: between operations its threads shall spin a little, then sleep. On a machine whose
        # cores have other work too, long spinning makes a run of many small operations several times slower.
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
            f"error: {place} cannot be read or written ({error.strerror or error}): fix that and try again", 2, "file"
        )
