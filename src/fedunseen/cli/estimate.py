"""``fedunseen estimate``: what a run will take, from a few batches of it."""

from __future__ import annotations

from dataclasses import asdict

from fedunseen.cli import options as opt
from fedunseen.cli.console import chosen, filled, show


def estimate(experiment: opt.ExperimentName, overrides: opt.Overrides = None, as_json: opt.Json = False) -> None:
    """Estimate the time, memory and traffic of a run, from a few of its batches."""
    plan = chosen(experiment, overrides)
    from fedunseen.tools.estimate import estimate as estimated

    summary = estimated(plan)
    show(asdict(summary), filled("estimate", {**asdict(summary), "time": _time}), as_json)


def _time(seconds: float) -> str:
    for unit, length, least in (("days", 86400, 172800), ("h", 3600, 7200), ("min", 60, 120)):
        if seconds >= least:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
