"""Time to the same accuracy: buffered asynchronous merging (FedBuff) against synchronous rounds, in
simulated time.

    python benchmarks/accuracy/buffered.py [DATA ...] --root FOLDER_WITH_XLSA17

Ten clients with disjoint classes, whose speeds are drawn from a log-normal distribution. A
synchronous round lasts as long as its slowest client; the unit of time is the mean client's local
update. The goal of a seed is nine tenths of the best ZSL accuracy that its synchronous rounds
reach. Test samples say when it is reached: this compares two engines, and chooses nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compression import TRAINED, data_of
from fedunseen import Experiment, FedUnseenError, run
from fedunseen.experiment.assemble import load_data, partition_of
from fedunseen.federation.buffered import BufferedSettings, durations

ROUNDS = {"digit-pairs": 4, "AWA1_LAMPERT": 4, "CIFAR100_MBV2": 2}


def curve(
    tree: dict[str, Any], settings: dict[str, Any], slowest: float | None
) -> tuple[list[float], list[float]]:
    """Return the simulated time and the ZSL accuracy of every merge; ``slowest``: a synchronous
    round lasts so long.
    """
    with tempfile.TemporaryDirectory() as folder:
        lines = run(Experiment.from_dict(tree, settings), Path(folder) / "run").metrics
    times = [
        line["clock"]["time"] if slowest is None else slowest * (i + 1)
        for i, line in enumerate(lines)
    ]
    return times, [line["zsl"] for line in lines]


def reached(times: Sequence[float], accuracies: Sequence[float], goal: float) -> float:
    """Return when an accuracy was reached; infinity if it never was."""
    return next(
        (time for time, accuracy in zip(times, accuracies, strict=True) if accuracy >= goal),
        float("inf"),
    )


def table(
    name: str, root: Path, seeds: int, rounds: int, buffers: Sequence[int], spread: float
) -> None:
    """Print the table of one data set."""
    print(f"\n| {name}, spread {spread:g} | time to the goal | ZSL at the end | at the time |")
    print("|---|--:|--:|--:|", flush=True)
    base = {
        **TRAINED,
        "data": data_of(name, root),
        "strategy": {**TRAINED["strategy"], "rounds": rounds},
    }
    speeds = {"name": "buffered", "spread": spread}
    found: dict[str, list[tuple[float, float, float]]] = {}
    for seed in range(seeds):
        experiment = Experiment.from_dict(base, {"run.seed": seed})
        held = partition_of(experiment, load_data(experiment, seed), seed).clients
        result = BufferedSettings.model_validate({"spread": spread})
        takes = durations(result, [len(rows) for rows in held], seed)
        slowest = float(takes.max())
        times, accuracies = curve(base, {"run.seed": seed}, slowest)
        goal = 0.9 * max(accuracies)
        found.setdefault("synchronous", []).append(
            (reached(times, accuracies, goal), accuracies[-1], times[-1])
        )
        for buffer in buffers:
            for staleness in (0.5, 0.0):
                merges = int(np.ceil((rounds * slowest / takes).sum() / buffer))  # in as much time
                more = {"run.seed": seed, "strategy.rounds": merges}
                tree = {**base, "engine": {**speeds, "buffer": buffer, "staleness": staleness}}
                times, accuracies = curve(tree, more, None)
                row = f"buffer of {buffer}, a = {staleness:g}"
                found.setdefault(row, []).append(
                    (reached(times, accuracies, goal), accuracies[-1], times[-1])
                )
    for row, numbers in found.items():
        goals, ends, last = (np.array(column) for column in zip(*numbers, strict=True))
        missed = f" ({int(np.isinf(goals).sum())} never)" if np.isinf(goals).any() else ""
        mean = f"{goals[np.isfinite(goals)].mean():.1f}" if np.isfinite(goals).any() else "-"
        print(f"| {row} | {mean}{missed} | {ends.mean():.1f} | {last.mean():.1f} |", flush=True)


def main() -> None:
    """Print a table for each data set."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="*", default=["digit-pairs"], help="[digit-pairs]")
    parser.add_argument(
        "--root", default=Path(os.environ.get("FEDUNSEEN_DATA", ".")) / "xlsa17", type=Path
    )
    parser.add_argument("--seeds", default=3, type=int)
    parser.add_argument(
        "--rounds", type=int, help="synchronous rounds; by default 4, and 2 on CIFAR100_MBV2"
    )
    parser.add_argument("--buffers", nargs="*", default=[5], type=int)
    parser.add_argument("--spread", default=1.0, type=float)
    parser.add_argument(
        "--smallest", action="store_true", help="two rounds, one seed: to see that it runs"
    )
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.smallest:
        asked.datasets, asked.seeds, asked.rounds, asked.buffers = ["digit-pairs"], 1, 1, [5]
    for name in asked.datasets:
        table(
            name,
            asked.root,
            asked.seeds,
            asked.rounds or ROUNDS.get(name, 4),
            asked.buffers,
            asked.spread,
        )


if __name__ == "__main__":
    try:
        main()
    except FedUnseenError as error:
        sys.exit(f"error: {error}")
