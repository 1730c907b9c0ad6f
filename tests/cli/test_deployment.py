"""A real coordinator and three real parties, processes of their own, over TLS on loopback; some are killed for real."""

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

NAMES = ("north", "south", "west")
ROUNDS = 14
SMALL = [
    "--set=partition.clients=3",
    f"--set=strategy.rounds={ROUNDS}",
    "--set=strategy.name=scaffold",  # whose clients remember something
    "--set=method.hidden=[16]",
    "--set=evaluation.selection=last",
    "--set=evaluation.theory=false",
    "--set=evaluation.embedding=false",
]
ENGINES = [
    pytest.param(name, marks=pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"no {library}"))
    for name, library in (("nvflare", "nvflare"), ("flower", "flwr"))
]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Machine:
    """Starts commands, each with a log of its own, and leaves none behind."""

    def __init__(self, folder: Path):
        self.folder, self.running = folder, []
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}

    def command(self, *words):
        return [sys.executable, "-m", "fedunseen", *map(str, words)]

    def start(self, log, *words):
        with open(self.folder / log, "ab") as file:
            process = subprocess.Popen(
                self.command(*words), cwd=self.folder, env=self.environment, stdout=file, stderr=file
            )
        self.running.append(process)
        return process

    def run(self, *words, code=0, seconds=120):
        done = subprocess.run(
            self.command(*words), cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=seconds
        )
        assert done.returncode == code, done.stderr
        return done

    def said(self, log):
        path = self.folder / log
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, what, seconds=150):
        """Wait until ``what()``; show all logs if that does not come."""
        end = time.monotonic() + seconds
        while not what():
            if time.monotonic() > end:
                pytest.fail("\n".join(f"== {log.name}\n{self.said(log.name)}" for log in self.folder.glob("*.log")))
            time.sleep(0.05)

    def stop(self):
        for process in self.running:
            if process.poll() is None:
                process.terminate()
        for process in self.running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    yield made
    made.stop()


def rounds(run: Path):
    with contextlib.suppress(OSError):
        return (run / "metrics.jsonl").read_text().count("\n")
    return 0


@pytest.mark.parametrize("engine", ENGINES)
def test_a_party_and_the_coordinator_killed_change_nothing(engine, machine, tmp_path):
    machine.run(
        "data", "deal", "digit-pairs", "--set=partition.clients=3", "--parties", ",".join(NAMES), "--out", "data"
    )
    machine.run("certs", "--engine", engine, "--parties", ",".join(NAMES), "--out", "kits")
    at = f"127.0.0.1:{free_port()}"
    host = ["host", "digit-pairs", *SMALL, "--kit", "kits/coordinator", "--address", at, "--out", "run"]

    def join(name):
        return machine.start(f"{name}.log", "join", at, "--data", f"data/{name}", "--kit", f"kits/{name}")

    coordinator = machine.start("host.log", *host)
    parties = {name: join(name) for name in NAMES}
    machine.wait(lambda: rounds(tmp_path / "run") >= 2)
    parties["south"].kill()
    parties["south"].wait()
    machine.wait(
        lambda: "south has not answered" in machine.said("host.log") or "south is gone" in machine.said("host.log")
    )
    stood = rounds(tmp_path / "run")
    assert stood < ROUNDS  # all three are needed: it waits
    parties["south"] = join("south")
    machine.wait(lambda: rounds(tmp_path / "run") >= stood + 2)
    coordinator.send_signal(signal.SIGKILL)
    coordinator.wait()
    killed_after = rounds(tmp_path / "run")
    assert killed_after < ROUNDS
    coordinator = machine.start("host.log", *host, "--resume", "--json")
    machine.wait(lambda: coordinator.poll() is not None)
    assert coordinator.returncode == 0, machine.said("host.log")
    for name, party in parties.items():
        machine.wait(lambda party=party: party.poll() is not None, 60)
        assert party.returncode == 0, machine.said(f"{name}.log")
    machine.run("run", "digit-pairs", *SMALL, "--set=engine.mode=one-at-a-time", "--out", "here")
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("run", "here"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["gzsl_harmonic"] == json.loads((tmp_path / "here" / "result.json").read_text())["gzsl_harmonic"]
