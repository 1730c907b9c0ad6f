"""Many clients in one process: seconds of a client's round, and the peak of memory, from ten
clients to ten thousand.

    python benchmarks/scale/clients.py [--counts 10 100 1000 10000] [--strategies fedavg scaffold]
    [--deals iid class]

Every client holds ten samples (of 64 numbers, 100 classes), drawn from all classes (iid) or of a
single one (class), so that 10,000 clients hold 100,000. A row is a run of some rounds in a process
of its own, checkpoints and measuring included; the time is the processor's, of the rounds alone.
"Later" is a client's training and merging alone, in the second to fourth round of a federation in
the same process: without what a first round does once, and what is measured. ``--samples`` gives
clients more.

``--turns 9`` compares the numbers of clients with each other: federations of all of them take turns
in one process, so that all suffer alike where the machine's speed varies. It tells the least and
the median of nine turns, and the median as a multiple of a hundred clients'.

``--objects`` tells instead what a client takes in Python's own memory: its rows in the partition,
and what a finished round keeps of it beyond the tensors on disk.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from round import EACH_ROUND, measured

CLASSES, UNSEEN, WIDTH, ATTRIBUTES, TESTS = 100, 20, 64, 32, 2000


def write_data(root: Path, clients: int, samples: int) -> None:
    """Write the features of a folder, its classes, and who holds which class where each client
    holds one.
    """
    rng = np.random.default_rng(0)
    described = rng.random((CLASSES + UNSEEN, ATTRIBUTES)).astype(np.float32)
    train = np.arange(clients * samples) % CLASSES
    labels = np.concatenate([train, np.arange(TESTS) % (CLASSES + UNSEEN)])
    features = described[labels] @ rng.standard_normal((ATTRIBUTES, WIDTH), dtype=np.float32)
    features += rng.standard_normal(features.shape, dtype=np.float32)
    split = np.repeat(["train", "test"], [len(train), TESTS])
    root.mkdir()
    np.savez(root / "features.npz", features=features, labels=labels, split=split)
    head = ",".join(["name", "split", *(f"a{i}" for i in range(ATTRIBUTES))])
    rows = [
        ",".join([f"c{c:03d}", "seen" if c < CLASSES else "unseen", *map(str, described[c])])
        for c in range(CLASSES + UNSEEN)
    ]
    (root / "classes.csv").write_text("\n".join([head, *rows]) + "\n")
    holders = {f"c{i % CLASSES:03d},{i % clients}" for i in range(max(CLASSES, clients))}
    (root / "holders.csv").write_text("\n".join(["class,client", *sorted(holders)]) + "\n")


def tree_of(root: Path, strategy: str, deal: str, clients: int, rounds: int) -> dict[str, Any]:
    """Return an experiment on the data below ``root``."""
    dealt = (
        {"kind": "iid"}
        if deal == "iid"
        else {"kind": "file", "file": str(root / "data" / "holders.csv")}
    )
    return {
        "data": {"name": "folder", "root": str(root / "data")},
        "partition": {**dealt, "clients": clients},
        "method": {"name": "fedzsl", "hidden": [64], "lr": 0.05},
        "strategy": {"name": strategy, "rounds": rounds},
        "evaluation": {"selection": "last", "embedding": False},
    }


def one(strategy: str, deal: str, clients: int, samples: int, rounds: int) -> dict[str, float]:
    """Measure a run in this process."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        with ProcessPoolExecutor(1, get_context("spawn")) as another:  # whose memory does not count
            another.submit(write_data, root / "data", clients, samples).result()
        tree = tree_of(root, strategy, deal, clients, rounds)
        spent = measured(tree, root / "run", {})
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {**spent, "peak": peak, "later": later_rounds(tree) / clients}


def assembled(tree: Mapping[str, Any]) -> Any:
    """Return the federation of an experiment."""
    from fedunseen import Experiment
    from fedunseen.experiment.assemble import assemble, load_data, partition_of

    experiment = Experiment.from_dict(dict(tree))
    benchmark = load_data(experiment, 0)
    return assemble(experiment, benchmark, partition_of(experiment, benchmark, 0))


def later_rounds(tree: Mapping[str, Any]) -> float:
    """Return the processor seconds of training and merging in a round, the mean of the second to
    fourth.
    """
    from fedunseen.core.memory import libraries_set_aside

    federation = assembled(tree)
    with libraries_set_aside():  # as runs do
        state, _ = federation.round(federation.start())
        start = time.process_time()
        for _ in range(3):
            state, _ = federation.round(state)
        return (time.process_time() - start) / 3


def in_turn(
    strategy: str, deal: str, counts: Sequence[int], samples: int, turns: int
) -> list[list[float]]:
    """Return for each number of clients the processor milliseconds of a client in each turn, after
    two rounds.
    """
    from fedunseen.core.memory import libraries_set_aside

    with tempfile.TemporaryDirectory() as name, libraries_set_aside():
        made = []
        for count in counts:
            root = Path(name) / str(count)
            root.mkdir()
            write_data(root / "data", count, samples)
            federation = assembled(tree_of(root, strategy, deal, count, 1))
            state, _ = federation.round(federation.start())
            state, _ = federation.round(state)
            made.append((federation, state))
        found: list[list[float]] = [[] for _ in counts]
        for _ in range(turns):
            for place, count in enumerate(counts):
                federation, state = made[place]
                rounds = max(1, 100 // count)
                start = time.process_time()
                for _ in range(rounds):
                    state, _ = federation.round(state)
                found[place].append(1000 * (time.process_time() - start) / rounds / count)
                made[place] = federation, state
    return found


def objects(strategy: str, clients: int, samples: int) -> str:
    """Return the KiB a client that Python keeps after assembling a federation, and more after its
    first round.
    """
    from fedunseen import Experiment
    from fedunseen.experiment.assemble import assemble, load_data, partition_of

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_data(root / "data", clients, samples)
        experiment = Experiment.from_dict(tree_of(root, strategy, "iid", clients, 1))
        benchmark = load_data(experiment, 0)
        tracemalloc.start()
        federation = assemble(experiment, benchmark, partition_of(experiment, benchmark, 0))
        dealt, _ = tracemalloc.get_traced_memory()
        done = federation.round(federation.start())
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    count = len(done[1].replies)
    partition, round = (amount / 1024 / count for amount in (dealt, kept - dealt))
    return f"{strategy}, {count:,} clients: {partition:.2f} KiB a client for the partition, {round:.2f} for the round"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--counts", nargs="+", default=[10, 100, 1000, 10_000], type=int)
    parser.add_argument("--strategies", nargs="+", default=["fedavg", "scaffold"])
    parser.add_argument("--deals", nargs="+", default=["iid", "class"], choices=["iid", "class"])
    parser.add_argument("--samples", default=10, type=int, help="of a client [10]")
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument(
        "--turns", default=0, type=int, help="compare the counts in one process, so many times"
    )
    parser.add_argument(
        "--objects", action="store_true", help="what a client takes in Python's memory"
    )
    parser.add_argument(
        "--smallest", action="store_true", help="ten clients, one round: to see that it runs"
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(
            json.dumps(
                one(
                    asked.strategies[0],
                    asked.deals[0],
                    asked.counts[0],
                    asked.samples,
                    asked.rounds,
                )
            )
        )
        return
    if asked.objects:
        for strategy in asked.strategies:
            print(objects(strategy, asked.counts[-1], asked.samples), flush=True)
        return
    if asked.turns:
        print(
            "| ms a client and round, median (least) | "
            + " | ".join(f"{count:,}" for count in asked.counts)
            + " |"
        )
        print("|---" + "|--:" * len(asked.counts) + "|", flush=True)
        middle, base = statistics.median, asked.counts.index(100) if 100 in asked.counts else 0
        for strategy in asked.strategies:
            for deal in asked.deals:
                each = in_turn(strategy, deal, asked.counts, asked.samples, asked.turns)
                cells = [
                    f"{middle(own):.2f} ({min(own):.2f}), {middle(own) / middle(each[base]):.2f}x"
                    for own in each
                ]
                print(f"| {strategy}, {deal} | {' | '.join(cells)} |", flush=True)
        return
    parts = [*EACH_ROUND, "start", "summary", "report"]
    print(f"| | clients | ms a client and round | later | peak, MiB | {' | '.join(parts)} |")
    print("|---" + "|--:" * (3 + len(parts)) + "|", flush=True)
    if asked.smallest:
        asked.counts, asked.strategies, asked.deals, asked.rounds = [10], ["fedavg"], ["class"], 1
    for strategy in asked.strategies:
        for deal in asked.deals:
            for clients in asked.counts:
                words: Sequence[str] = (
                    "--one", "--strategies", strategy, "--deals", deal, "--counts", str(clients),
                    "--samples", str(asked.samples), "--rounds", str(asked.rounds),
                )  # fmt: skip
                if asked.smallest:
                    spent = one(strategy, deal, clients, asked.samples, asked.rounds)
                else:
                    done = subprocess.run(
                        [sys.executable, __file__, *words],
                        capture_output=True,
                        text=True,
                        check=True,
                    )
                    spent = json.loads(done.stdout.splitlines()[-1])
                each = sum(spent.get(part, 0.0) for part in EACH_ROUND) / asked.rounds / clients
                numbers = f"{1000 * each:.2f} | {1000 * spent['later']:.2f} | {spent['peak']:.0f}"
                cells = " | ".join(f"{spent.get(part, 0.0):.2f}" for part in parts)
                print(f"| {strategy}, {deal} | {clients:,} | {numbers} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
