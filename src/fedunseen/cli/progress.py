"""The progress bar of a run: round, losses, current accuracy; silent when nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from fedunseen.experiment import Progress

__all__ = ["live_progress", "state"]


@contextmanager
def live_progress() -> Iterator[Progress | None]:
    """Yield what hears of every round and draws it on standard error, or None if that is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    shown = TextColumn("{task.fields[state]}")
    bar, counter = BarColumn(bar_width=24), MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), bar, counter, shown, TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def hear(stage: str, round: int, rounds: int, line: Mapping[str, Any] | None) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=rounds, state="")
            bars.update(tasks[stage], completed=round, state=state(line))

        yield hear


def state(line: Mapping[str, Any] | None) -> str:
    """Say a round's numbers in few words."""
    if line is None:
        return ""
    loss = line["losses"].get("loss")
    losses = "" if loss is None else f"loss {loss:.3f}  "
    spent = f"  epsilon {line['privacy']['epsilon']:.2f}" if "privacy" in line else ""
    out = len({*line.get("dropped", {}), *line.get("defence", {}).get("dropped", {})})
    left_out = f"  {out} left out" if out else ""
    taken = f"  backdoor {line['backdoor']:.1f}" if "backdoor" in line else ""
    if "few_shot" in line:
        return f"{losses}few-shot {line['few_shot']:.1f}{spent}{left_out}"
    return f"{losses}ZSL {line['zsl']:.1f}  H {line['gzsl_harmonic']:.1f}{taken}{spent}{left_out}"
