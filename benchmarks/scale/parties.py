"""Many parties on one machine: memory of the coordinator for each party, and seconds of a round.

    python benchmarks/scale/parties.py [--parties 3 10 30] [--rounds 6] [--megabytes 2.4] [--masked]
    python benchmarks/scale/parties.py --width 1280 [--parties 100] [--masked]

The coordinator is a real process (`fedunseen host`) on loopback, with TLS and a model of so many
MB. The parties are threads of one other process, each with its own connection, folder and data,
since thirty processes would need more memory than a small machine has. They have few samples, so
that a round is mostly messages, they share a processor, and above 10 MB one works at a time: the
seconds of a round are an upper bound for parties of their own. The peak is the highest that the
system has recorded of the coordinator's process (VmHWM), report included. Processor seconds of a
round do not depend on what else the machine does: those of the coordinator, and of all parties.

With ``--width`` the run is a closed form of random features of so many numbers (`gaussian`), in one
round. Its seconds count from the last party that joined to the end of the round, masks included;
here too one party works at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

WIDTH = 4054 / 2.4  # hidden units of a model of 1 MB
SETTINGS = {
    "data.train_per_class": 6, "data.test_per_class": 3,
    "evaluation.selection": "last", "evaluation.theory": False, "evaluation.embedding": False,
    "evaluation.clients": False,
}  # fmt: skip


def resident(process: int) -> int:
    """Return the bytes of a process in main memory."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_of(process: int) -> int:
    """Return the most bytes of main memory that a process has had."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def processor(process: int) -> float:
    """Return the processor seconds of a process up to now."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def take_part(folder: Path, names: list[str], port: int, large: bool, masked: bool) -> None:
    """Be all parties, each in a thread, until the run is over."""
    from fedunseen.deploy import websocket
    from fedunseen.deploy.client_data import PartyData
    from fedunseen.deploy.remote.link import Join
    from fedunseen.deploy.remote.party import Party
    from fedunseen.deploy.site import Owner, Site

    working = threading.Lock() if large else nullcontext()

    def work(name: str) -> None:
        state, kit = folder / "state" / name, folder / "kits" / name
        owner = Owner(
            folder / "data" / name, kit, ("moments",), masked
        )  # few samples, many features
        held = PartyData(folder / "data" / name, masked=masked, min_samples=1)
        held.consent = owner.consent
        party = Party(held.prepare, Site(state, owner))

        def answer(message: bytes) -> bytes:
            with working:
                return party.answer(message)

        place = Join(
            state / "engine",
            "127.0.0.1",
            port,
            kit,
            name,
            300.0,
        )
        websocket.join(place, answer, party.done)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def settings_of(count: int, asked: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return the preset and the settings of a run of so many parties."""
    settings: dict[str, Any] = {**SETTINGS, "partition.clients": count}
    if count > 80:  # more than there are seen classes
        settings |= {"partition.kind": "iid"}
    if asked.masked:
        settings |= {"privacy.aggregation": "masked"}
    if asked.width:
        settings |= {"data.train_per_class": 60, "evaluation.confidence": "none"}
        return "digit-pairs-gaussian", settings
    settings |= {"method.kl": 0.0, "strategy.rounds": asked.rounds}
    settings["method.hidden"] = [round(WIDTH * asked.megabytes)]
    if asked.masked:
        settings |= {"strategy.weights": "uniform"}
    return "digit-pairs", settings


def widen(folder: Path, width: int) -> None:
    """Replace the features of all folders by random ones of them, so many."""
    for path in sorted(folder.glob("*/features.npz")):
        arrays = dict(np.load(path))
        pixels = arrays["features"].reshape(len(arrays["features"]), -1)
        directions = np.random.default_rng(0).normal(size=(pixels.shape[1], width))
        arrays["features"] = np.tanh(pixels @ directions).astype(np.float32)
        arrays.pop("image_shape", None)
        np.savez(path, **arrays)


def measure(count: int, asked: argparse.Namespace) -> tuple[int, int, float, list[float]]:
    """Return the coordinator's memory before the parties came, at its peak, the median seconds of a
    round, and the processor seconds of a round: the coordinator's, and all parties'.
    """
    from fedunseen import Experiment
    from fedunseen.deploy.certs import make
    from fedunseen.experiment.deal import deal

    names = [f"party{k}" for k in range(count)]
    preset, settings = settings_of(count, asked)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        deal(Experiment.load(preset, settings), folder / "data", names)
        if asked.width:
            widen(folder / "data", asked.width)
            own = {"name": "folder", "root": str(folder / "data" / "coordinator"), "part": True}
            settings = {k: v for k, v in settings.items() if not k.startswith("data.")}
            settings |= {f"data.{key}": value for key, value in own.items()}
        make(folder / "kits", "127.0.0.1", names, 90)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings |= {"engine.name": "websocket", "engine.timeout": 3600.0}
        words = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
        command = [sys.executable, "-m", "fedunseen", "host", preset, *words]
        command += ["--kit", str(folder / "kits" / "coordinator"), "--parties", ",".join(names)]
        command += ["--address", f"127.0.0.1:{port}"]
        with open(folder / "host.log", "w") as log:
            host = subprocess.Popen(
                [*command, "--out", str(folder / "run")], stdout=log, stderr=log
            )
        while "listening" not in (folder / "host.log").read_text():
            if host.poll() is not None:
                sys.exit((folder / "host.log").read_text())
            time.sleep(0.1)
        large = bool(asked.width) or asked.megabytes > 10
        how = [str(int(large)), str(int(asked.masked))]
        parties = subprocess.Popen(
            [sys.executable, __file__, "--take-part", str(folder), str(port), *how, *names]
        )
        lines, before, peak = folder / "run" / "metrics.jsonl", resident(host.pid), 0
        marks: list[
            tuple[float, float, float]
        ] = []  # at the start of a closed form, of each round's end
        while host.poll() is None and parties.poll() is None:
            peak = max(peak, peak_of(host.pid))
            rounds = lines.read_text().count("\n") if lines.exists() else 0
            if asked.width:  # its masks are agreed on before its round begins
                rounds += (folder / "host.log").read_text().count("has joined") == count
            if rounds > len(marks):
                marks.append((time.monotonic(), processor(host.pid), processor(parties.pid)))
            time.sleep(0.05)
        if parties.wait() or host.wait():
            sys.exit((folder / "host.log").read_text())
        seconds = [json.loads(line)["seconds"] for line in lines.read_text().splitlines()]
        whole, *each = (
            (b - a) / max(len(marks) - 1, 1) for a, b in zip(marks[0], marks[-1], strict=True)
        )
        return (
            before,
            peak,
            whole if asked.width else statistics.median(seconds[1:] or seconds),
            each,
        )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parties", nargs="*", default=[3, 10, 30], type=int)
    parser.add_argument("--rounds", default=6, type=int)
    parser.add_argument("--megabytes", default=2.4, type=float, help="of the model")
    parser.add_argument("--masked", action="store_true", help="the coordinator sees sums alone")
    parser.add_argument(
        "--smallest", action="store_true", help="two parties, one round: to see that it runs"
    )
    parser.add_argument("--width", type=int, help="a closed form of so many features")
    parser.add_argument("--take-part", nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.take_part:
        folder, port, large, masked, *names = asked.take_part
        take_part(Path(folder), names, int(port), large == "1", masked == "1")
        return
    if asked.smallest:
        asked.parties, asked.rounds = [2], 1
    memory = "coordinator before, MB | at its peak, MB"
    print(f"| parties | {memory} | seconds a round | processor seconds, coordinator | parties |")
    print("|--:|--:|--:|--:|--:|--:|", flush=True)
    for count in asked.parties:
        before, peak, seconds, spent = measure(count, asked)
        numbers = f"{before / 1e6:.0f} | {peak / 1e6:.0f} | {seconds:.2f}"
        print(f"| {count} | {numbers} | {spent[0]:.2f} | {spent[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
