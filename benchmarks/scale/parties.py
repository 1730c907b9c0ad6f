"""Many parties on one machine: memory of the coordinator for each party, and seconds of a round.

    python benchmarks/scale/parties.py [--parties 3 10 30] [--rounds 6]

The coordinator is a real process (`fedunseen host`) on loopback, with TLS and a model of 2.4 MB.
The parties are threads of one other process, each with its own connection, folder and data, since
thirty processes would need more memory than a small machine has. They have few samples, so that a
round is mostly messages, and they share a processor: the seconds of a round are an upper bound for
parties of their own.
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
from pathlib import Path

SETTINGS = {
    "method.kl": 0.0, "method.hidden": [4054], "data.train_per_class": 6, "data.test_per_class": 3,
    "evaluation.selection": "last", "evaluation.theory": False, "evaluation.embedding": False,
    "evaluation.clients": False,
}  # fmt: skip


def resident(process: int) -> int:
    """Return the bytes of a process in main memory."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def take_part(folder: Path, names: list[str], port: int) -> None:
    """Be all parties, each in a thread, until the run is over."""
    from fedunseen.deploy import websocket
    from fedunseen.deploy.client_data import PartyData
    from fedunseen.deploy.remote.link import Join
    from fedunseen.deploy.remote.party import Party
    from fedunseen.deploy.site import Site

    def work(name: str) -> None:
        party = Party(PartyData(folder / "data" / name).prepare, Site(folder / "state" / name))
        place = Join(
            folder / "state" / name / "engine",
            "127.0.0.1",
            port,
            folder / "kits" / name,
            name,
            300.0,
        )
        websocket.join(place, party.answer, party.done)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(count: int, rounds: int) -> tuple[int, int, float]:
    """Return the coordinator's memory before the parties came, at its peak, and the median seconds
    of a round.
    """
    from fedunseen import Experiment
    from fedunseen.deploy.certs import make
    from fedunseen.experiment.deal import deal

    names = [f"party{k}" for k in range(count)]
    settings = {**SETTINGS, "partition.clients": count, "strategy.rounds": rounds}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        deal(Experiment.load("digit-pairs", settings), folder / "data", names)
        make(folder / "kits", "127.0.0.1", names, 1)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        words = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
        command = [sys.executable, "-m", "fedunseen", "host", "digit-pairs", *words]
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
        parties = subprocess.Popen(
            [sys.executable, __file__, "--take-part", str(folder), str(port), *names]
        )
        lines, before, peak = folder / "run" / "metrics.jsonl", resident(host.pid), 0
        while host.poll() is None and not (
            lines.exists() and lines.read_text().count("\n") >= rounds
        ):
            peak = max(
                peak, resident(host.pid)
            )  # up to the last round: the report needs as much with any number
            time.sleep(0.02)
        if parties.wait() or host.wait():
            sys.exit((folder / "host.log").read_text())
        seconds = [json.loads(line)["seconds"] for line in lines.read_text().splitlines()]
        return before, peak, statistics.median(seconds[1:] or seconds)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parties", nargs="*", default=[3, 10, 30], type=int)
    parser.add_argument("--rounds", default=6, type=int)
    parser.add_argument(
        "--smallest", action="store_true", help="two parties, one round: to see that it runs"
    )
    parser.add_argument("--take-part", nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.take_part:
        folder, port, *names = asked.take_part
        take_part(Path(folder), names, int(port))
        return
    if asked.smallest:
        asked.parties, asked.rounds = [2], 1
    print("| parties | coordinator before, MB | at its peak, MB | seconds a round |")
    print("|--:|--:|--:|--:|", flush=True)
    for count in asked.parties:
        before, peak, seconds = measure(count, asked.rounds)
        print(f"| {count} | {before / 1e6:.0f} | {peak / 1e6:.0f} | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
