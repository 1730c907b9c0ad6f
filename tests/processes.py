"""Real processes in tests: start them, wait for what they do however busy the machine is, and leave none behind."""

import contextlib
import os
import socket
import subprocess
import sys
import time

import pytest

GUARD = 300.0
"""Seconds in which nothing new is written before a test takes a process for hung: no measure of how long work takes."""

KILLED = """
import os, signal, sys
from fedunseen.cli.main import main
from fedunseen.engines.remote import coordinator, party

last, command = int(sys.argv[1]), sys.argv[2]
owner, name = {"join": (party, "local_update"), "host": (coordinator.Distributed, "_check_merged")}[command]
done = getattr(owner, name)

def work(*given):
    result = done(*given)
    if given[-1] == last:  # the round
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(owner, name, work)
sys.argv = ["fedunseen", *sys.argv[2:]]
main()
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def written(folder):
    """How much there is to read in a folder; it grows for as long as something goes on."""
    total = 0
    for place, _, names in os.walk(folder):  # which takes folders that go away in its midst
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
    return total


def until(true, folder=None, needed=()):
    """Wait until ``true()``, for as long as all ``needed`` processes run and something new is written in ``folder``."""
    last, end = None, time.monotonic() + GUARD
    while not true():
        ended = [process for process in needed if process.poll() is not None]
        assert not ended or true(), f"ended too early: {[process.args for process in ended]}"
        if folder is not None and (now := written(folder)) != last:
            last, end = now, time.monotonic() + GUARD
        assert time.monotonic() < end, "nothing happens any more"
        time.sleep(0.05)


def environment():
    """What lets a process import what this one does, on one thread."""
    paths = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": paths}


KILLED_UNDER_MASKS = """
import os, signal, sys
from fedunseen.cli.main import main
from fedunseen.engines.remote.masking import Masking

last, stage = sys.argv[1].split(":")
answer = Masking.answer

def work(self, header):
    if (self.round, header["kind"]) == (int(last), stage):
        os.kill(os.getpid(), signal.SIGKILL)
    return answer(self, header)

Masking.answer = work
sys.argv = ["fedunseen", *sys.argv[2:]]
main()
"""


class Machine:
    """Starts commands of the package in one folder, each with a log of its own, and leaves none behind."""

    def __init__(self, folder):
        self.folder, self.running = folder, []

    def start(self, log, *words, killed_in=None):
        """Start a command; it kills itself at the end of round ``killed_in`` (from 0), if that is given.

        ``"1:masked"``: a party, when it is asked for its masked words in that round.
        """
        code = KILLED_UNDER_MASKS if isinstance(killed_in, str) else KILLED
        program = ["-m", "fedunseen"] if killed_in is None else ["-c", code, killed_in]
        command = [sys.executable, *map(str, (*program, *words))]
        with open(self.folder / log, "ab") as file:
            process = subprocess.Popen(command, cwd=self.folder, env=environment(), stdout=file, stderr=file)
        self.running.append(process)
        return process

    def said(self, log):
        path = self.folder / log
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, true, *needed):
        """Wait until ``true()``; show all logs if that does not come."""
        try:
            until(true, self.folder, needed)
        except AssertionError as error:
            logs = "\n".join(f"== {log.name}\n{self.said(log.name)}" for log in self.folder.glob("*.log"))
            pytest.fail(f"{error}\n{logs}")

    def ended(self, process, *needed):
        """Wait until a process ends and return its exit status."""
        self.until(lambda: process.poll() is not None, *needed)
        return process.returncode

    def stop(self):
        for process in self.running:
            if process.poll() is None:
                process.terminate()
        for process in self.running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
