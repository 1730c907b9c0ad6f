"""``fedunseen bench``."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated

import typer

from fedunseen.cli import options as opt
from fedunseen.cli.console import overrides_of, print_json, say
from fedunseen.cli.sweep import parts_of
from fedunseen.core.errors import ExperimentError

SECONDS = {"s": 1, "min": 60, "h": 3600}


def bench(
    source: Annotated[Path | None, typer.Argument(metavar="FILE", help="A sweep file with a table [bench].")] = None,
    overrides: opt.Overrides = None,
    plugins: opt.Plugins = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="AXIS=VALUE", help="Run a part of the grid; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The bench's directory; what it holds is kept.")] = Path("runs/bench"),
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="Start no further run after this time, for example 90min or 2h.")
    ] = "",
    against: Annotated[
        str, typer.Option(metavar="METHOD", help="Compare with this method instead of the file's reference.")
    ] = "",
    as_json: opt.Json = False,
) -> None:
    """Compare methods that are tuned alike, with examples and unlabelled pools, as a leaderboard."""
    from fedunseen.experiment.sweep.schema import select
    from fedunseen.papers.bench import SHIPPED, lines, read_bench, run_bench
    from fedunseen.report.bench_page import write_bench_report

    sweep, settings = read_bench(source or SHIPPED, overrides_of(overrides), against)
    cells = select(sweep, parts_of(only or []))
    failed = run_bench(sweep, settings, out, cells, seconds_of(budget), say)
    found = lines(sweep, settings, out)
    page = write_bench_report(sweep, settings, found, out)
    open_rows = [line for line in found if line.status != "done"]
    say(f"{len(found) - len(open_rows)} of {len(found)} rows measured; the others are listed as not run or failed")
    say(f"page:  {page}")
    rows = [{**line.values, "status": line.status, "problem": line.problem, "seeds": line.seeds} for line in found]
    print_json(as_json, {"out": str(out), "page": str(page), "rows": rows})
    if failed:
        raise SystemExit(1)


def seconds_of(budget: str) -> float:
    """Return a time such as ``90min`` or ``2h`` in seconds; infinite where there is none."""
    if not budget:
        return math.inf
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)", budget.strip())
    if parts is None:
        raise ExperimentError(f"--budget {budget}: write a number and s, min or h, for example 2h", "bench-time")
    return float(parts[1]) * SECONDS[parts[2]]
