"""Start the processes of a simulation so that none stays behind.

They end by themselves when our process ends in any way, since their relay does then. :meth:`Child.stop` does not rely
on that.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_MARK = "FEDUNSEEN_CHILD"  # in the environment: which child a process is of


class Child:
    """A process of a simulation, and all that it starts, which inherits its environment."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path | None = None
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.mark = f"{_MARK}={secrets.token_hex(16)}".encode()
        own = dict([self.mark.decode().split("=")])
        with open(log, "ab") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**environment, **own},
                cwd=folder,
                start_new_session=True,
            )

    @property
    def status(self) -> int | None:
        """The exit status, or None while it runs."""
        return self.process.poll()

    def stop(self, grace: float = 2.0) -> None:
        """End it: SIGTERM, and SIGKILL for it and all that it has started after ``grace`` seconds, or once it ends."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        self.process.kill()
        self.process.wait()
        end = time.monotonic() + 10  # what the kernel holds longer is left to it
        while (left := self._left()) and time.monotonic() < end:
            for process in left:
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.02)

    def _left(self) -> list[int]:
        """Return the processes that it has started, and that run; of Linux alone."""
        found = []
        for place in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if self.mark in place.read_bytes():
                    found.append(int(place.parent.name))
        return found


class Kept:
    """A child that is started again whenever it ends."""

    def __init__(self, start: Callable[[], Child]) -> None:
        self.start = start
        self.failures = 0
        self.ended = threading.Event()
        self.child = start()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        while not self.ended.wait(0.1):
            if self.child.status is not None:
                self.failures += 1
                self.child.stop()
                if not self.ended.wait(min(5.0, 0.5 * self.failures)):
                    self.child = self.start()

    def ready(self, true: Callable[[], bool], patience: float) -> bool:
        """Wait until something is true; return False after ``patience`` seconds, or if the child ends too often."""
        end = time.monotonic() + patience
        while not true():
            if self.failures > 2 or time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def stop(self) -> None:
        """End it for good."""
        self.ended.set()
        self.thread.join(20)
        self.child.stop(0.5)
