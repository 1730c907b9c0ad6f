"""``fedunseen estimate``: what a run will take, from a few batches of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from fedunseen.cli import options as opt
from fedunseen.cli.console import chosen, show

if TYPE_CHECKING:
    from fedunseen.tools.estimate import Estimate


def estimate(experiment: opt.ExperimentName, overrides: opt.Overrides = None, as_json: opt.Json = False) -> None:
    """Estimate the time, memory and traffic of a run, from a few of its batches."""
    plan = chosen(experiment, overrides)
    from fedunseen.tools.estimate import estimate as estimated

    summary = estimated(plan)
    show(asdict(summary), _written(summary), as_json)


def _written(summary: Estimate) -> str:
    """Write what was found for people."""
    gpu = f", GPU memory {summary.device_bytes / 2**30:.1f} GiB" if summary.device_bytes is not None else ""
    return (
        f"a round     {_time(summary.seconds_round)}, and {_time(summary.seconds_evaluation)} to evaluate it\n"
        f"the run     {_time(summary.seconds_run)}: {summary.stages} training"
        f"{'s' if summary.stages > 1 else ''} of {summary.rounds} rounds, choices and seeds counted\n"
        f"memory      {summary.peak_bytes / 2**30:.1f} GiB{gpu} ({summary.device})\n"
        f"travels     {summary.bytes_round / 2**20:.1f} MiB a client and round, of {summary.parameters:,} parameters\n"
        "From a few batches; loading, encoding and the report come on top."
    )


def _time(seconds: float) -> str:
    """Write a time."""
    for unit, length, least in (("days", 86400, 172800), ("h", 3600, 7200), ("min", 60, 120)):
        if seconds >= least:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
