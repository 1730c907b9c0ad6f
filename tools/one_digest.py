"""Run AWA1_LAMPERT in all ways that must give the same integer sums, and print their digests.

    python tools/one_digest.py --root FOLDER_WITH_XLSA17

Partitions are crossed with numbers of parties and masks, threads with the processor's instructions;
files are plain and under masks; last comes a deployment of three processes. Two parties are not
masked: a masked sum has three at least. Without the data the script says so and ends. The exit code
is 1 where digests differ.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from fedunseen import Experiment, run

QUICK = {"evaluation.selection": "last", "evaluation.embedding": False, "method.shrinkage": 0.3}
SMALLEST = {"data.train_per_class": 6, "data.test_per_class": 2}
NAMES = ("north", "south", "west", "east", "mid")


@dataclass(frozen=True)
class Way:
    """One way to run."""

    clients: int = 5
    partition: str = "pccd"
    engine: str = "in-process"
    masked: bool = False
    threads: int = 1
    instructions: str = "native"

    @property
    def row(self) -> str:
        """Return the beginning of its row in the table."""
        masks = "masked" if self.masked else "plain"
        return f"| {self.engine} | {masks} | {self.clients} | {self.partition} | {self.threads} | {self.instructions} |"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of its processes."""
        asked = {"OMP_NUM_THREADS": str(self.threads), "MKL_NUM_THREADS": str(self.threads)}
        return {
            **os.environ,
            **asked,
            **({"ATEN_CPU_CAPABILITY": "default"} if self.instructions == "default" else {}),
        }


def ways() -> Iterator[Way]:
    """Yield all ways."""
    for clients, partition, masked in itertools.product(
        (2, 5, 10), ("iid", "dirichlet", "pccd"), (False, True)
    ):
        if clients > 2 or not masked:
            yield Way(clients, partition, masked=masked)
    for threads, instructions in ((2, "native"), (1, "default"), (2, "default")):
        yield Way(threads=threads, instructions=instructions)
    yield Way(engine="file")
    yield Way(engine="file", masked=True)
    yield Way(3, engine="deployment", masked=True)


def sums_of(way: Way, root: Path | None, folder: Path) -> str:
    """Return the digest of a run on AWA1_LAMPERT, or without a root on a few pairs of digits."""
    preset = "digit-pairs-gaussian" if root is None else "awa1-gaussian"
    data = SMALLEST if root is None else {"data.dataset": "AWA1_LAMPERT", "data.root": str(root)}
    facts = {**QUICK, **data, "partition.kind": way.partition, "partition.clients": way.clients}
    masks = {"privacy.aggregation": "masked"} if way.masked else {}

    def call(*words: str, **settings: object) -> str:
        options = [
            word
            for key, value in settings.items()
            for word in ("--set", f"{key}={json.dumps(value)}")
        ]
        command = [sys.executable, "-m", "fedunseen", *words, *options]
        done = subprocess.run(
            command, env=way.environment, cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
        return done.stdout

    if (way.engine, way.threads, way.instructions) == ("in-process", 1, "native"):
        return str(
            run(Experiment.load(preset, {**facts, **masks}), folder / "run").result["sums_sha256"]
        )
    if way.engine == "in-process":
        return str(
            json.loads(call("run", preset, "--out", "run", "--json", **facts, **masks))[
                "sums_sha256"
            ]
        )
    names = NAMES[: way.clients]
    call("data", "deal", preset, "--parties", ",".join(names), "--out", "data", **facts)
    call("certs", "--parties", ",".join(names), "--out", "kits")
    about = {
        key: value
        for key, value in facts.items()
        if not key.startswith("partition") and "selection" not in key
    }
    if way.engine == "deployment":
        _deployment(
            way,
            folder,
            preset,
            {**about, **masks, "partition.clients": len(names), "engine.timeout": 600},
        )
        return _written(folder)
    plain = () if way.masked else ("--plain",)
    words = ("--credentials", "kits/coordinator", "--parties", ",".join(names), *plain)
    call("offline", "plan", preset, *words, "--out", "plan.fedunseen", **about)
    for name in names:
        where = (
            "--data",
            f"data/{name}",
            "--credentials",
            f"kits/{name}",
            "--out",
            f"{name}.fedunseen",
        )
        call("offline", "answer", "plan.fedunseen", *where, *plain)
    call(
        "offline",
        "merge",
        "plan.fedunseen",
        *(f"{name}.fedunseen" for name in names),
        "--out",
        "run",
    )
    return _written(folder)


def _written(folder: Path) -> str:
    return str(json.loads((folder / "run" / "result.json").read_text())["sums_sha256"])


def _deployment(way: Way, folder: Path, preset: str, settings: dict[str, object]) -> None:
    """Run a coordinator and its parties as processes over TLS."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{probe.getsockname()[1]}"
    options = [
        word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")
    ]
    host = ["host", preset, *options, "--kit", "kits/coordinator", "--address", at, "--out", "run"]
    join = [
        ["join", at, "--data", f"data/{n}", "--kit", f"kits/{n}", "--masked"]
        for n in NAMES[: way.clients]
    ]
    with ExitStack() as stack:
        log = stack.enter_context(open(folder / "log", "w+b"))
        started = []
        for words in (host, *join):
            command = [sys.executable, "-m", "fedunseen", *words]
            process = subprocess.Popen(
                command, env=way.environment, cwd=folder, stdout=log, stderr=log
            )
            stack.callback(process.kill)
            started.append(process)
        if any(process.wait(1800) for process in started):
            raise RuntimeError(
                f"a process of the deployment failed: {(folder / 'log').read_text()[-2000:]}"
            )


def main() -> None:
    """Print a table of all ways."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, help="the folder that holds the xlsa17 data sets")
    parser.add_argument(
        "--smallest", action="store_true", help="ways of a small federation, on pairs of digits"
    )
    parser.add_argument("--only", default="", help="engines, separated by commas; by default all")
    parser.add_argument("--parties", type=int, help="ways of so many parties; by default all")
    given = parser.parse_args()
    if given.root is None and not given.smallest:
        parser.error("--root: say where the xlsa17 data sets are")
    if given.root is not None and not (given.root / "AWA1_LAMPERT").is_dir():
        print(f"skipped: {given.root / 'AWA1_LAMPERT'} is missing")
        return
    torch.set_num_threads(1)
    print(
        "| engine | sums | parties | partition | threads | instructions | sums_sha256 | seconds |"
    )
    print("|---|---|--:|---|--:|---|---|--:|", flush=True)
    found = set()
    few = [Way(2, "iid"), Way(), Way(3, "dirichlet", masked=True)]
    for way in few if given.smallest and not given.only else ways():
        if (given.only and way.engine not in given.only.split(",")) or given.parties not in (
            None,
            way.clients,
        ):
            continue
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            digest = sums_of(way, given.root and given.root.resolve(), Path(folder))
        found.add(digest)
        print(f"{way.row} `{digest[:16]}` | {time.perf_counter() - begun:.1f} |", flush=True)
    print(f"\n{len(found)} digest{'s' * (len(found) > 1)}: {', '.join(sorted(found))}")
    sys.exit(len(found) > 1)


if __name__ == "__main__":
    main()
