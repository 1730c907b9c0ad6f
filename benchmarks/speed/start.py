"""How long a user waits for a short run, in units of ``import torch``: medians of turns.

    python benchmarks/speed/start.py [--turns 7] [--source OLD/src]

A turn runs each command once, in a process of its own, and divides its wall and processor time by
those of ``python -c "import torch"`` of the same turn. A first turn does not count: it writes
Python's bytecode, as an installation has it. ``--source`` measures another version of the package.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

COMMANDS = {
    "import torch": ["-c", "import torch"],
    "digit-pairs-gaussian": ["-m", "fedunseen", "run", "digit-pairs-gaussian"],
    "digit-pairs, one round": ["-m", "fedunseen", "run", "digit-pairs", "--set", "strategy.rounds=1",
                               "--set", "evaluation.selection=last"],
}  # fmt: skip


def measured(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> tuple[float, float]:
    """Run Python with these arguments and return wall and processor seconds, those of its children
    included.
    """
    if command[1] == "fedunseen":
        command = [*command, "--out", tempfile.mkdtemp(dir=folder)]
    command = [sys.executable, "-X", f"pycache_prefix={folder}/bytecode", *command]
    before, begin = os.times(), time.perf_counter()
    subprocess.run(command, check=True, cwd=folder, env=environment, capture_output=True)
    wall, after = time.perf_counter() - begin, os.times()
    return (
        wall,
        after.children_user + after.children_system - before.children_user - before.children_system,
    )


def main() -> None:
    """Print a row for each command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--source", type=Path, help="the folder src of another version")
    parser.add_argument("--smallest", action="store_true", help="one turn")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"
        }
        if options.source is not None:
            environment["PYTHONPATH"] = str(options.source.resolve())
        turns = [
            {
                name: measured(command, Path(folder), environment)
                for name, command in COMMANDS.items()
            }
            for _ in range(1 if options.smallest else options.turns + 1)
        ]
    print("| | wall, s | times import torch | CPU, s | times import torch |\n|---|--:|--:|--:|--:|")
    for name in COMMANDS:
        cells = []
        for clock in range(2):
            seconds = [turn[name][clock] for turn in turns[1:] or turns]
            ratios = [
                turn[name][clock] / turn["import torch"][clock] for turn in turns[1:] or turns
            ]
            cells += [f"{statistics.median(seconds):.2f}", f"{statistics.median(ratios):.2f}"]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
