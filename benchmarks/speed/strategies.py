"""What the strategies cost beside FedAvg: processor time of a round, bytes up and down, and what
clients keep.

Each strategy runs the same rounds on digit-pairs; strategies take turns, and ratios to FedAvg are
of the medians within this one run. The first round of each is not counted (MOON has nothing to
contrast in it).

    python benchmarks/speed/strategies.py [--rounds 5] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command sets it, before PyTorch is loaded

from fedunseen import Experiment
from fedunseen.core.files import write_text
from fedunseen.core.parameters import size_in_bytes
from fedunseen.core.registry import find
from fedunseen.experiment.assemble import assemble
from fedunseen.federation.partition import make_partition

STRATEGIES = ("fedavg", "fedprox", "fednova", "scaffold", "moon", "fedgloss")
CASES: dict[str, dict[str, Any]] = {
    "fedzsl, two layers": {"method.hidden": [256]},
    "distzsl, convolutional backbone": {
        "method.name": "distzsl",
        "method.hidden": [],
        "encoder.name": "conv",
    },
    "apn, convolutional backbone": {"method.name": "apn", "encoder.name": "conv"},
}


class Contender:
    """One strategy's federation, going on from round to round."""

    def __init__(self, case: dict[str, Any], strategy: str) -> None:
        experiment = Experiment.load(
            "digit-pairs", {"method.lr": 0.01, "strategy.name": strategy, **case}
        )
        benchmark = find("data", "digit-pairs").load(experiment.data, 0)
        self.federation = assemble(
            experiment, benchmark, make_partition(experiment.partition, benchmark, 0)
        )
        self.state = self.federation.start()
        self.seconds: list[float] = []

    def step(self) -> None:
        """Run one round."""
        start = time.process_time()
        self.state, done = self.federation.round(self.state)
        if self.state.round > 1:
            self.seconds.append(time.process_time() - start)
        self.bytes = (done.bytes_down, done.bytes_up)

    @property
    def kept(self) -> int:
        """Bytes that all clients remember between rounds."""
        return sum(size_in_bytes(own) for own in self.state.clients.values())


def measure(name: str, case: dict[str, Any], rounds: int) -> list[str]:
    """Return a case's lines of the table."""
    contenders = {strategy: Contender(case, strategy) for strategy in STRATEGIES}
    for _ in range(rounds + 1):
        for contender in contenders.values():
            contender.step()
    base = contenders["fedavg"]
    plain = statistics.median(base.seconds)
    lines = []
    for strategy, contender in contenders.items():
        ratio = statistics.median(contender.seconds) / plain
        down, up = (mine / theirs for mine, theirs in zip(contender.bytes, base.bytes, strict=True))
        kept = contender.kept / base.bytes[1]
        lines.append(f"| {name} | {strategy} | {ratio:.2f} | {down:.2f} | {up:.2f} | {kept:.2f} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Measure every case and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument(
        "--smallest", action="store_true", help="one round on few samples: to see that it runs"
    )
    asked = parser.parse_args()
    few = (
        {"data.train_per_class": 2, "data.test_per_class": 2, "partition.clients": 2}
        if asked.smallest
        else {}
    )
    lines = [
        "| case | strategy | time of a round | bytes down | bytes up | kept at the clients |",
        "|---|---|--:|--:|--:|--:|",
    ]
    print("\n".join(lines), flush=True)
    for name, case in list(CASES.items())[-1 if asked.smallest else 0 :]:
        lines += measure(name, case | few, 1 if asked.smallest else asked.rounds)
    if asked.markdown:
        write_text(asked.markdown, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
