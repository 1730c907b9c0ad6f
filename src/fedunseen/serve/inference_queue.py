"""The line to a served model, which answers one question after the other."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")


QUICK = 0.003
"""Seconds: waking a thread takes as long as a question that is shorter, so the event loop asks such a one itself."""


class QueueFullError(Exception):
    """Too many questions wait already."""


class InferenceQueue:
    """Answers questions in order, never two at a time; one whose asker has given up is left out.

    A thread asks the model, so that the event loop stays free. While small questions are quick, the loop asks those.
    """

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self.asked = 0  # questions without an answer yet
        self._asking = threading.Lock()
        self._small = QUICK  # seconds that small questions took lately
        self._line: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="model", daemon=True).start()

    def put(self, question: Callable[[], _T]) -> Future[_T]:
        """Put a question in the line, however many wait."""
        answer: Future[_T] = Future()
        self._line.put((answer, question))
        return answer

    async def ask(self, question: Callable[[], _T], seconds: float, small: bool = False) -> _T:
        """Return the answer to a question; ``small``: it should take as long as other small ones."""
        self.asked += 1
        try:
            if small:
                question = self._timed(question)
                if self._small < QUICK and self._line.empty() and self._asking.acquire(blocking=False):
                    try:
                        return question()
                    finally:
                        self._asking.release()
            if self._line.qsize() >= self.waiting:
                raise QueueFullError
            return await asyncio.wait_for(asyncio.wrap_future(self.put(question)), seconds)
        finally:
            self.asked -= 1

    def _timed(self, question: Callable[[], _T]) -> Callable[[], _T]:
        def ask() -> _T:
            began = time.thread_time()
            try:
                return question()
            finally:
                self._small += 0.2 * (time.thread_time() - began - self._small)

        return ask

    def _work(self) -> None:
        while True:
            answer, question = self._line.get()
            if answer.set_running_or_notify_cancel():
                with self._asking:
                    try:
                        answer.set_result(question())
                    except BaseException as error:  # it goes to the request
                        answer.set_exception(error)
            del answer, question  # they would keep a model alive that no one serves any more
