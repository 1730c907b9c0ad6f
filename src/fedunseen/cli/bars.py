"""Bars on a terminal: of preparing samples here, and of a run in :mod:`fedunseen.cli.progress`, which
needs PyTorch.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedunseen.cli.console import say
from fedunseen.cli.logs import is_json
from fedunseen.core.array_cache import shown

if TYPE_CHECKING:
    from rich.progress import Progress


QUIET = 2.0  # seconds without a bar, after which one says at least what is being done


@contextmanager
def bars(*texts: str, doing: str = "") -> Iterator[Callable[..., None]]:
    """Yield what draws a bar for each stage: ``advance(stage, done, total, state)``.

    Args:
        texts: formats of further columns.
        doing: what is being done, which a bar without an end says where no stage has begun after
            two seconds; by default nothing does.
    """
    from rich.console import Console  # only a terminal needs it
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}"),
        *map(TextColumn, texts),
    )
    # what is said above a bar has no other line ends than without one
    console = Console(stderr=True, soft_wrap=True)
    drawn = Progress(*columns, TimeRemainingColumn(), console=console)
    tasks: dict[str, Any] = {}
    lock = threading.Lock()
    waiting = [doing] if doing else []

    def advance(stage: str, done: int, total: int | None, state: str = "") -> None:
        with lock:
            if waiting and stage != doing:
                _remove(drawn, tasks, waiting.pop())
            if stage not in tasks:
                drawn.start()  # now: without anything to show, nothing is written
                tasks[stage] = drawn.add_task(stage, total=total, state="", count="")
            count = "" if total is None else f"{done}/{total}"
            drawn.update(tasks[stage], completed=done, state=state, count=count)

    def wait() -> None:
        if waiting:
            advance(doing, 0, None)
            drawn.refresh()

    timer = threading.Timer(QUIET, wait)
    timer.daemon = True
    if doing:
        timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        if doing:
            timer.join()
            _remove(drawn, tasks, doing)
        if drawn.live.is_started:
            drawn.stop()


def _remove(drawn: Progress, tasks: dict[str, Any], stage: str) -> None:
    """Take a bar off the screen, if it is there."""
    if stage in tasks:
        drawn.remove_task(tasks.pop(stage))


@contextmanager
def preparation_bars(doing: str = "preparing", line: bool = False) -> Iterator[None]:
    """Show a bar while images are decoded or encoded, and, after two seconds without one, what is
    being done; elsewhere than on a terminal, a line every half minute.

    ``line``: elsewhere than on a terminal, say after two seconds what is being done.
    """
    if is_json() or not sys.stderr.isatty():
        timer = threading.Timer(QUIET, lambda: say(f"{doing} ..."))
        timer.daemon = True
        if line and not is_json():
            timer.start()
        try:
            yield
        finally:
            timer.cancel()
        return
    with bars(doing=doing) as advance, showing(advance):
        yield


@contextmanager
def showing(advance: Callable[..., None]) -> Iterator[None]:
    """Let pictures that are decoded or encoded advance a bar."""
    token = shown.set(advance)
    try:
        yield
    finally:
        shown.reset(token)
