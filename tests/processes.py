"""Real processes in tests: start them, wait for what they do however busy the machine is, and leave
none behind.
"""

import contextlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedunseen.cli.main import app

GUARD = 300.0
"""Seconds in which nothing new is written before a test takes a process for hung: no measure of how
long work takes.
"""


def is_running(process):
    """Say whether a process is there; one that has ended may wait for the system to collect it."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def descendants(parent):
    """Return the processes below one; its direct children come first."""
    children = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            above = int(entry.read_text().rpartition(")")[2].split()[1])
            children.setdefault(above, []).append(int(entry.parent.name))
    found = [parent]
    for process in found:
        found += children.get(process, [])
    return found[1:]


def fedunseen(*words):
    """Be the command."""
    from fedunseen.cli.main import main

    sys.argv = ["fedunseen", *map(str, words)]
    main()


def killed_at(kind, time):
    """Kill this process when it sends a party a message of a kind, or gets one, for the nth time;
    ``"result.json"``: when it writes that.
    """
    from fedunseen.deploy.remote import link, party, wire
    from fedunseen.federation import run_directory

    came = []

    def watched(owner, name, kind_of):
        done = getattr(owner, name)

        def work(*given, **more):
            if kind_of(*given) == kind:
                came.append(kind)
                if len(came) == time:
                    os.kill(os.getpid(), signal.SIGKILL)
            return done(*given, **more)

        setattr(owner, name, work)

    def head(message):
        return wire.split(bytes(getattr(message, "head", message)))[0]["kind"]

    watched(link.Counted, "ask", lambda self, name, message: head(message))
    watched(party.Party, "answer", lambda self, message: head(message))
    watched(run_directory, "write_json", lambda path, content: path.name)


def killed_or_held(*words, killed_in=None, held_by=None, at=None):
    """Be the command, which kills itself at the end of round ``killed_in`` (from 0), if that is
    given, or ``at`` a message (:func:`killed_at`).

    ``"1:masked"``: a party, when it is asked for its masked elements in that round. ``held_by``: a
    file with the last round (from 0) that a party may be done with; until it says so, the party is
    not.
    """
    from fedunseen.deploy.remote import coordinator, party
    from fedunseen.deploy.remote.masking import PartySession

    if at is not None:
        killed_at(*at)
    owner, name = (
        (party, "local_update")
        if words[0] == "join"
        else (coordinator.Distributed, "_check_merged")
    )
    if masked := isinstance(killed_in, str):
        owner, name = PartySession, "answer"
    done = getattr(owner, name)

    def last():
        try:
            return int(held_by.read_text())
        except (OSError, ValueError):  # not there, or being written
            return -1

    def kill(now):
        if now == killed_in:
            os.kill(os.getpid(), signal.SIGKILL)

    def work(*given):
        while held_by is not None and last() < given[-1]:  # the round
            time.sleep(0.05)
        if masked:
            kill(f"{given[0]._round}:{given[1]['kind']}")
        result = done(*given)
        kill(given[-1])
        return result

    setattr(owner, name, work)
    fedunseen(*words)


def command(*words):
    """Call the command in this process, where it must do what it is told. Fixtures of a whole
    module need this one.
    """
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output


def sets(settings):
    """Return the words that give a command these settings."""
    return [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def written(folder):
    """How much there is to read in a folder; it grows for as long as something continues."""
    total = 0
    for place, _, names in os.walk(folder):  # which takes folders that go away in its midst
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
    return total


def until(true, folder=None, needed=()):
    """Wait until ``true()``, for as long as all ``needed`` processes run and something new is
    written in ``folder``.
    """
    last, end = None, time.monotonic() + GUARD
    while not true():
        ended = [process for process in needed if process.poll() is not None]
        assert not ended or true(), f"ended too early: {[process.args for process in ended]}"
        if folder is not None and (now := written(folder)) != last:
            last, end = now, time.monotonic() + GUARD
        assert time.monotonic() < end, "nothing happens any more"
        time.sleep(0.05)


def environment():
    """What lets a process import and call what this one can, on one thread; no shell has activated
    the environment.
    """
    paths = os.pathsep.join(filter(None, sys.path))
    commands = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": paths, "PATH": commands}
    return {**os.environ, **own}


SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "pytest", "torch", "sklearn.covariance", "sklearn.datasets", "cryptography.x509", "fedunseen.cli.main",
        "fedunseen.data.benchmarks.digit_pairs", "fedunseen.data.benchmarks.folder",
        "fedunseen.deploy.websocket.server", "fedunseen.deploy.secagg.masks",
        "fedunseen.deploy.remote.party", "fedunseen.experiment.running", "fedunseen.methods.fedzsl",
        "fedunseen.methods.closed_form.gaussian", "fedunseen.pages.report", "fedunseen.strategies.scaffold",
    ]
)  # fmt: skip


def be(work, words, folder, log, errors, variables):
    """Be a process of its own, which calls ``work`` with words."""
    for number, name in ((1, log), (2, errors)):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), number)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(number, "w", closefd=False), write_through=True)
        for number in (1, 2)
    )
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    work(*words)


class Forked(SERVER.Process):
    """A process that a server forks which has imported everything: seconds less of each; used as
    ``Popen`` is.
    """

    def __init__(self, words, work, folder, log, errors=None):
        super().__init__(
            target=be, args=(work or fedunseen, words, folder, log, errors or log, environment())
        )
        self.args = words
        self.start()

    def poll(self):
        return self.exitcode

    def wait(self, timeout=None):
        self.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.poll()

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)


def run_forked(folder, command, check=False, **how):
    """Do what ``subprocess.run(command, check=check, text=True)`` does for
    ``python -m fedunseen WORDS``, sooner.

    ``folder`` is for what the process writes, all of which is returned; ``how`` says where it goes
    to, and no more.
    """
    assert set(how) <= {"stdout", "stderr", "text", "capture_output"}, how
    out, errors = (Path(tempfile.mkstemp(dir=folder)[1]) for _ in range(2))
    status = Forked(command[3:], None, Path.cwd(), out, errors).wait()
    done = subprocess.CompletedProcess(
        command, status, out.read_text("utf-8"), errors.read_text("utf-8")
    )
    if check:
        done.check_returncode()
    return done


class Machine:
    """Starts commands of the package in one folder, each with a log of its own, and leaves none
    behind.
    """

    def __init__(self, folder):
        self.folder, self.running = folder, []

    def start(self, log, *words, **how):
        """Start a command, which is :func:`killed_or_held` if ``how`` says so."""
        work = (
            partial(killed_or_held, **how) if any(one is not None for one in how.values()) else None
        )
        self.running.append(Forked(words, work, self.folder, log))
        return self.running[-1]

    def said(self, log):
        path = self.folder / log
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, true, *needed):
        """Wait until ``true()``; show all logs if that does not come."""
        try:
            until(true, self.folder, needed)
        except AssertionError as error:
            logs = "\n".join(
                f"== {log.name}\n{self.said(log.name)}" for log in self.folder.glob("*.log")
            )
            pytest.fail(f"{error}\n{logs}")

    def ended(self, process, *needed):
        """Wait until a process ends and return its exit status."""
        self.until(lambda: process.poll() is not None, *needed)
        return process.poll()

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


class Deployment:
    """A coordinator and its parties in one folder, each a process; with credentials or,
    ``insecure``, in plain text.
    """

    def __init__(self, machine, names, data, *host, join=(), insecure=False):
        pytest.importorskip("websockets", reason="pip install 'fedunseen[masked]'")
        self.machine, self.names, self.data, self.more = machine, names, data, join
        self.port, self.insecure = free_port(), ["--insecure"] if insecure else []
        who = ["--insecure", "--parties", ",".join(names)]
        if not insecure:
            words = ["--out", machine.folder / "kits", "--authority", machine.folder / "authority"]
            command("certs", "--parties", ",".join(names), *words)
            who = ["--kit", "kits/coordinator"]
        self.words = ["host", *host, *who, "--address", f"127.0.0.1:{self.port}", "--out", "run"]

    def host(self, *more, **how):
        return self.machine.start("host.log", *self.words, *more, **how)

    def join(self, name, killed_in=None, port=None, **how):
        who = [*self.insecure, "--name", name] if self.insecure else ["--kit", f"kits/{name}"]
        words = [
            "join",
            f"127.0.0.1:{port or self.port}",
            "--data",
            self.data / name,
            *who,
            *self.more,
        ]
        return self.machine.start(f"{name}.log", *words, killed_in=killed_in, **how)

    def change(self, *words):
        """Let the authority change the credentials, and copy what it writes to where it belongs."""
        new = Path(tempfile.mkdtemp(dir=self.machine.folder)) / "new"
        authority = self.machine.folder / "authority"
        command("certs", *words, "--authority", authority, "--out", new)
        kits = self.machine.folder / "kits"
        shutil.copytree(new, kits, dirs_exist_ok=True)
        for name in ("federation.json", "revoked.pem"):  # which everyone needs
            if (new / "coordinator" / name).exists():
                for kit in kits.iterdir():
                    shutil.copy(new / "coordinator" / name, kit)

    def end(self, coordinator, parties):
        """Wait until all of them have ended well; ``parties``: name -> process."""
        for name, process in {"host": coordinator, **parties}.items():
            assert self.machine.ended(process) == 0, self.machine.said(f"{name}.log")
