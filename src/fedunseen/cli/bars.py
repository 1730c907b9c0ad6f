"""Bars on a terminal: of preparing samples here, and of a run in :mod:`fedunseen.cli.progress`, which
needs PyTorch.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedunseen.cli.logs import is_json
from fedunseen.core.array_cache import shown


@contextmanager
def bars(*texts: str) -> Iterator[Callable[..., None]]:
    """Yield what draws a bar for each stage: ``advance(stage, done, total, state)``."""
    from rich.console import Console  # only a terminal needs it
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        *map(TextColumn, texts),
    )
    drawn = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
    tasks: dict[str, Any] = {}

    def advance(stage: str, done: int, total: int, state: str = "") -> None:
        if stage not in tasks:
            drawn.start()  # now: without anything to show, nothing is written
            tasks[stage] = drawn.add_task(stage, total=total, state="")
        drawn.update(tasks[stage], completed=done, state=state)

    try:
        yield advance
    finally:
        if tasks:
            drawn.stop()


@contextmanager
def preparation_bars() -> Iterator[None]:
    """Show a bar while images are decoded or encoded; elsewhere than on a terminal, a line every
    half minute.
    """
    if is_json() or not sys.stderr.isatty():
        yield
        return
    with bars() as advance, showing(advance):
        yield


@contextmanager
def showing(advance: Callable[..., None]) -> Iterator[None]:
    """Let pictures that are decoded or encoded advance a bar."""
    token = shown.set(advance)
    try:
        yield
    finally:
        shown.reset(token)
