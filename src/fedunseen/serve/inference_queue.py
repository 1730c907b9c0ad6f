"""The one thread that asks a served model, a question after the other."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")


class QueueFullError(Exception):
    """Too many questions wait already."""


class InferenceQueue:
    """Answers questions in order, never two at a time; one whose asker has given up is left out."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self._line: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="model", daemon=True).start()

    def put(self, question: Callable[[], _T]) -> Future[_T]:
        """Put a question in the line, however many wait."""
        answer: Future[_T] = Future()
        self._line.put((answer, question))
        return answer

    async def ask(self, question: Callable[[], _T], seconds: float) -> _T:
        """Return the answer to a question."""
        if self._line.qsize() >= self.waiting:
            raise QueueFullError
        return await asyncio.wait_for(asyncio.wrap_future(self.put(question)), seconds)

    def _work(self) -> None:
        while True:
            answer, question = self._line.get()
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(question())
                except BaseException as error:  # it goes to the request
                    answer.set_exception(error)
            del answer, question  # they would keep a model alive that no one serves any more
