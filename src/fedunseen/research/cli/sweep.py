"""``fedunseen sweep``, ``sweeps`` and ``bench``."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedunseen.cli import options as opt
from fedunseen.cli.console import overrides_of, pages_of, print_json, say, write_pages
from fedunseen.core.errors import ArgumentError, ExperimentError, unknown
from fedunseen.core.extensions import added, at
from fedunseen.research.sweeps import sweep_names, sweep_source, sweep_text

if TYPE_CHECKING:
    from fedunseen.research.sweep import Cell, Row, Sweep


LISTED = 8
"""How many of the cells that failed for one reason are named."""


def known_sweeps(incomplete: str) -> list[tuple[str, str]]:
    """Return the shipped sweeps whose names begin so, and what they are."""
    return opt.named(sweep_names(), sweep_text, incomplete)


def sweep(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SWEEP",
            help="A shipped sweep's name or a TOML file.",
            autocompletion=known_sweeps,
        ),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data", metavar="NAME", help="Take this data set of the file; may be repeated."
        ),
    ] = None,
    overrides: opt.Overrides = None,
    plugins: opt.Plugins = None,
    only: opt.Only = None,
    out: Annotated[
        Path | None, typer.Option(help="The sweep's directory (default: runs/NAME, or a new one).")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the sweep in --out, or take part in it beside other processes.",
        ),
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at once (default: one for each core).")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the cells and run nothing.")
    ] = False,
    engine: opt.Engine = "loop",
    address: opt.ClusterAddress = "",
    as_json: opt.Json = False,
) -> None:
    """Run a grid of experiments, and show the results beside the paper's."""
    sweep_source(source)  # an unknown name is refused before PyTorch is loaded, which takes seconds
    from fedunseen.experiment.manifest import unused
    from fedunseen.research.sweep import read_sweep
    from fedunseen.research.sweep.schema import select

    read = read_sweep(source, data or [], overrides_of(overrides))
    cells = select(read, parts_of(only or []))
    if dry_run:
        return _list(read, cells, as_json)
    if resume and out is None:
        raise ExperimentError("--resume needs --out: say which sweep's directory to continue with")
    out = out or unused(
        Path("runs") / "-".join([read.name, *(word.replace("/", "-") for word in data or [])])
    )
    if resume and not (out / "sweep.json").exists():
        say(f"note: {out} holds no sweep yet: starting a new one")
    with executor_of(engine, address) as executor:
        done = _run(read, cells, out, resume, jobs, executor)
    say(f"sweep:  {out}", f"table:  {out / 'results.csv'}", f"report: {out / 'results.html'}")
    chosen = {cell.folder for cell in cells}
    failed = [row for row in done if row.cell.folder in chosen and row.status == "failed"]
    if failed:
        say(
            *_reasons(failed),
            f"{len(failed)} of {len(cells)} cells failed; with --resume they are tried again",
        )
    print_json(as_json, _summary(read, done, out))
    if failed:
        raise SystemExit(1)


def sweeps() -> None:
    """List the sweeps that come with the package, and the data sets that each can take."""
    from fedunseen.research.sweep.schema import read_file

    for name in sweep_names():
        file, sets = read_file(name)
        print(f"{name}: {file.title}" + (f"\n    --data {', '.join(sets)}" if sets else ""))


def parts_of(only: list[str]) -> dict[str, list[str]]:
    """Read ``AXIS=VALUE`` of the command line: several values of an axis are alternatives."""
    parts: dict[str, list[str]] = {}
    for text in only:
        axis, equals, value = text.partition("=")
        if not equals:
            raise ExperimentError(
                f"--only {text}: write it as AXIS=VALUE, for example --only method=distzsl"
            )
        parts.setdefault(axis.strip(), []).append(value.strip())
    return parts


def _list(read: Sweep, cells: list[Cell], as_json: bool) -> None:
    if as_json:
        listed = [
            {"values": dict(c.values), "folder": c.folder, "refused": c.refused} for c in cells
        ]
        return print_json(True, {"sweep": read.name, "cells": listed})
    for cell in cells:
        print(cell.key + (f"  (refused: {cell.refused})" if cell.refused else ""))
    refused = sum(cell.experiment is None for cell in cells)
    seeds = sum(cell.experiment.run.seeds for cell in cells if cell.experiment)
    say(
        f"{len(cells)} cells{f', {refused} of them refused' if refused else ''}; {seeds} runs, "
        "seeds counted"
    )


@contextmanager
def executor_of(engine: str, address: str) -> Iterator[Executor | None]:
    """Yield what runs cells elsewhere; None: processes here."""
    known = dict(added("EXECUTORS"))
    if engine == "loop":
        if address:
            raise ArgumentError("--address is for --engine ray: leave it out")
        yield None
        return
    if engine not in known:
        raise ArgumentError(f"--engine: {unknown('engine', engine, ['loop', *known])}")
    executor: Executor
    with at(known[engine])(address) as executor:
        yield executor


def _run(
    read: Sweep,
    cells: list[Cell],
    out: Path,
    resume: bool,
    jobs: int | None,
    executor: Executor | None,
) -> list[Row]:
    """Run, and write what there is, also after an interrupt."""
    from fedunseen.experiment.result.run import load_run
    from fedunseen.research.sweep import rows, run_sweep

    warn = functools.cache(lambda words: say(f"warning: {words}"))
    try:
        done = run_sweep(read, out, resume, cells, jobs, _tell, warn, executor)
    except KeyboardInterrupt:  # caught here, because typer ends the process without a word
        if (out / "sweep.json").exists():
            _write_page(read, rows(read, out), out)
        say(f"interrupted: continue with the same command and --out {out} --resume")
        raise SystemExit(130) from None
    for row in done:  # a page for each run, to which the sweep's page leads
        if row.status == "done" and not (out / row.run / "report.html").exists():
            write_pages(load_run(out / row.run))
    _write_page(read, done, out)
    return done


def _write_page(read: Sweep, rows: list[Row], out: Path) -> None:
    """Write the page of a sweep, where pages are there."""
    pages_of("SWEEP_PAGES", read, rows, out)


def _tell(row: Row, remaining: int) -> None:
    """Say how a cell ended."""
    if row.status != "done":
        words = f"{row.status}: {row.problem}"
    elif "few_shot" in row.mean:
        words = f"few-shot {row.mean['few_shot']:.1f} ± {row.mean['few_shot_ci95']:.1f}  ({row.seconds:.0f} s)"
    else:
        words = (
            f"ZSL {row.mean['zsl']:.1f}  H {row.mean['gzsl_harmonic']:.1f}  ({row.seconds:.0f} s)"
        )
    say(f"{row.cell.key}: {words}" + (f"  {remaining} left" if remaining else ""))


def _reasons(failed: list[Row]) -> list[str]:
    """Say each reason once, with the cells that failed for it."""
    reasons: dict[str, list[str]] = {}
    for row in failed:
        reasons.setdefault(row.problem or "", []).append(row.cell.key)
    further = {
        reason: f" and {len(keys) - LISTED} more" if len(keys) > LISTED else ""
        for reason, keys in reasons.items()
    }
    return [
        f"failed: {'; '.join(keys[:LISTED])}{further[reason]}: {reason}"
        for reason, keys in reasons.items()
    ]


def _summary(read: Sweep, done: list[Row], out: Path) -> dict[str, object]:
    """Return what ``--json`` prints."""
    statuses = [row.status for row in done]
    return {
        "sweep": read.name,
        "out": str(out),
        "report": str(out / "results.html"),
        **{
            status.replace(" ", "_"): statuses.count(status)
            for status in ("done", "failed", "refused", "not run")
        },
        "cells": [
            {
                "values": dict(row.cell.values),
                "status": row.status,
                "problem": row.problem,
                **row.mean,
                **{f"{name}_sd": value for name, value in row.sd.items()},
                "paper": dict(row.cell.paper),
                "run": row.run,
            }
            for row in done
        ],
    }


SECONDS = {"s": 1, "min": 60, "h": 3600}


def bench(
    source: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A sweep file with a table [bench].")
    ] = None,
    overrides: opt.Overrides = None,
    plugins: opt.Plugins = None,
    only: opt.Only = None,
    out: Annotated[Path, typer.Option(help="The bench's directory; what it holds is kept.")] = Path(
        "runs/bench"
    ),
    budget: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Start no further run after this time, for example 90min or 2h."
        ),
    ] = "",
    against: Annotated[
        str,
        typer.Option(
            metavar="METHOD", help="Compare with this method instead of the file's reference."
        ),
    ] = "",
    engine: opt.Engine = "loop",
    address: opt.ClusterAddress = "",
    as_json: opt.Json = False,
) -> None:
    """Compare methods that are tuned alike, with examples and unlabelled pools, as a
    leaderboard.
    """
    from fedunseen.research.papers.bench import SHIPPED, lines, read_bench, run_bench
    from fedunseen.research.sweep.schema import select

    sweep, settings = read_bench(source or SHIPPED, overrides_of(overrides), against)
    cells = select(sweep, parts_of(only or []))
    try:
        with executor_of(engine, address) as executor:
            code = int(run_bench(sweep, settings, out, cells, seconds_of(budget), say, executor))
    except KeyboardInterrupt:  # caught here, because typer ends the process without a word
        code = 130
        say("interrupted: the same command continues")
    leaderboard = lines(sweep, settings, out)
    pages = [str(page) for page in pages_of("BENCH_PAGES", sweep, settings, leaderboard, out)]
    open_rows = [line for line in leaderboard if line.status != "done"]
    note = "; the others are partial, failed or not run" if open_rows else ""
    say(f"{len(leaderboard) - len(open_rows)} of {len(leaderboard)} rows measured{note}")
    say(*(f"page:  {page}" for page in pages))
    rows = [
        {**line.values, "status": line.status, "problem": line.problem, "seeds": line.seeds}
        for line in leaderboard
    ]
    print_json(as_json, {"out": str(out), "page": "".join(pages), "rows": rows})
    if code:
        raise SystemExit(code)


def seconds_of(budget: str) -> float:
    """Return a time such as ``90min`` or ``2h`` in seconds; infinite where there is none."""
    if not budget:
        return math.inf
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)", budget.strip())
    if parts is None:
        raise ExperimentError(
            f"--budget {budget}: write a number and s, min or h, for example 2h", "bench-time"
        )
    return float(parts[1]) * SECONDS[parts[2]]
