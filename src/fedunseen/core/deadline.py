"""When an answer has to be there: work that takes long looks between its parts, and ends when no
one waits for it any more.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_end: ContextVar[float] = ContextVar("end", default=math.inf)


class LateError(Exception):
    """The time for an answer is over.

    It is no :class:`~fedunseen.core.errors.FedUnseenError`: a reader of many files would leave one
    out and go on.
    """


@contextmanager
def due(end: float) -> Iterator[None]:
    """Give the work of this context until ``end``, in seconds of ``time.monotonic``."""
    before = _end.set(min(end, _end.get()))
    try:
        yield
    finally:
        _end.reset(before)


def deadline() -> float:
    """Return when this context's work has to end: infinity where it may last."""
    return _end.get()


def check_deadline(end: float | None = None) -> None:
    """Raise LateError where the time is over: this context's, or ``end`` in a thread of its own."""
    if time.monotonic() >= (_end.get() if end is None else end):
        raise LateError
