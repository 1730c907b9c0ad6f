"""Start a carrier's processes so that none stays behind.

Standard library only. This file is also a program, the supervisor. :class:`Child` starts it by its path and with
Python's ``-I``, so that it imports nothing of the package and the child's environment does not affect it.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class Child:
    """A process of a carrier. It ends, with all that it started, on :meth:`stop` or when this process ends in any way.

    A supervisor stands in between: it adopts what the child leaves behind, and kills all of it once its standard
    input, a pipe from this process, is closed.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path | None = None
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        supervisor = [sys.executable, "-I", str(Path(__file__).resolve()), *command]
        with open(log, "ab") as out:
            self.process = subprocess.Popen(
                supervisor,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
            )

    @property
    def status(self) -> int | None:
        """The exit status, or None while it runs."""
        return self.process.poll()

    def stop(self, grace: float = 2.0) -> None:
        """End it: SIGTERM, and SIGKILL for what is left after ``grace`` seconds."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(OSError):
                self.process.stdin.write(f"{grace}\n".encode())
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(grace + 5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


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


SUBREAPER, DEATH_SIGNAL = 36, 1  # of Linux's prctl


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(AttributeError, OSError):  # elsewhere than on Linux only the child itself is ended
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants(parent: int) -> dict[int, str]:
    """Return the processes below one, process -> state; its direct children come first."""
    parents: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, above = entry.read_text().rpartition(")")[2].split()[:2]
            parents.setdefault(int(above), []).append((int(entry.parent.name), state))
    found, ahead = {}, [parent]
    while ahead:
        for process, state in parents.get(ahead.pop(0), []):
            found[process] = state
            ahead.append(process)
    return found


def _keep(command: Sequence[str]) -> int:
    """Run a command until it ends or standard input does, then end all that is left of it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the end of standard input ends it, no signal does
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prctl(SUBREAPER, 1)
    restored = (signal.SIGTERM, signal.SIGINT)

    def prepare() -> None:
        _prctl(DEATH_SIGNAL, signal.SIGKILL)
        for number in restored:
            signal.signal(number, signal.SIG_DFL)

    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=prepare)
    grace = [0.5]

    def listen() -> None:
        line = sys.stdin.readline()
        if line.strip():
            grace[0] = float(line)
        with contextlib.suppress(OSError):
            child.terminate()

    threading.Thread(target=listen, daemon=True).start()
    listening = threading.Event()
    end: float | None = None
    while child.poll() is None:
        gone = threading.active_count() == 1  # standard input is closed
        end = time.monotonic() + grace[0] if gone and end is None else end
        if end is not None and time.monotonic() > end:
            break
        listening.wait(0.05 if gone else 0.2)
    for _ in range(100):
        left = [process for process, state in descendants(os.getpid()).items() if state != "Z" or process == child.pid]
        if not left and child.poll() is not None:
            break
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        if child.poll() is not None:
            _reap()
        time.sleep(0.02)
    _reap()
    return child.returncode if child.returncode is not None else 1


def _reap() -> None:
    """Take note of the adopted processes that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    sys.exit(_keep(sys.argv[1:]))
