"""The queue of a served model, which answers one question after the other."""

import asyncio
import atexit
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedunseen.core.deadline import LateError, due

_T = TypeVar("_T")

_LAST_ANSWER = 30.0
"""Seconds that the end of the process waits for the question that is being answered."""

_TOGETHER = 0.002
"""Seconds after which the event loop gets the answers that there are."""


class QueueFullError(Exception):
    """Too many questions wait already."""


@dataclass(eq=False)
class _Question:
    """A question, its answer, and the event loop that waits for it until ``end``, with what wakes
    it.
    """

    ask: Callable[[], Any]
    end: float = math.inf
    loop: asyncio.AbstractEventLoop | None = None
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    answer: Future[Any] = field(default_factory=Future)

    def run(self) -> None:
        """Ask, unless the asker has given up."""
        if self.answer.set_running_or_notify_cancel():
            try:
                with due(self.end):
                    self.answer.set_result(self.ask())
            except BaseException as error:  # it goes to the request
                self.answer.set_exception(error)


class InferenceQueue:
    """Answers questions in order, never two at a time; one whose asker has given up is left out, or
    ends between its parts (:func:`~fedunseen.core.deadline.check_deadline`).

    A thread asks the model, so that the event loop stays free. It takes all questions that wait,
    and wakes the event loop once with all answers: the two threads rarely wait for each other.
    """

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self.open_questions = 0  # questions without an answer yet
        self._line: queue.SimpleQueue[_Question] = queue.SimpleQueue()
        self._answering = threading.Lock()
        threading.Thread(target=self._work, name="model", daemon=True).start()
        # A process that ends while PyTorch computes in a thread is aborted.
        atexit.register(self._answering.acquire, timeout=_LAST_ANSWER)

    def put(self, question: Callable[[], _T]) -> Future[_T]:
        """Put a question into the queue, however many wait."""
        item = _Question(question)
        self._line.put(item)
        return item.answer

    async def ask(self, question: Callable[[], _T], seconds: float) -> _T:
        """Return the answer to a question, or raise a TimeoutError after so many seconds."""
        if self.open_questions > self.waiting:  # one of them is being answered
            raise QueueFullError
        self.open_questions += 1
        try:
            end = time.monotonic() + seconds
            item = _Question(question, end, asyncio.get_running_loop())
            self._line.put(item)
            async with asyncio.timeout(seconds):
                await item.answered.wait()
            answer: _T = item.answer.result()
            return answer
        except LateError:
            raise TimeoutError from None
        finally:
            item.answer.cancel()
            self.open_questions -= 1

    def _work(self) -> None:
        while True:
            answered = self._answer_some(self._line.get())
            for loop in {item.loop for item in answered if item.loop is not None}:
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(_wake, [i for i in answered if i.loop is loop])
            del answered  # it would keep a model alive that no one serves any more

    def _answer_some(self, item: _Question) -> list[_Question]:
        """Answer a question, and those that wait behind it for as long as they are quick."""
        end = time.monotonic() + _TOGETHER
        answered = [item]
        with self._answering:
            item.run()
            while time.monotonic() < end and not self._line.empty():
                answered.append(self._line.get())
                answered[-1].run()
        return answered


def _wake(answered: list[_Question]) -> None:
    for item in answered:
        item.answered.set()
