"""What masks of many parties take: processor seconds of a party and of the coordinator.

    python benchmarks/scale/masks.py [--parties 3 10 30 100] [--width 1280] [--classes 100]

All parties are in one process and speak the whole protocol, with elements as many as the statistics
of ``gaussian`` have for features of so many numbers. Beside it stands what adding the same numbers
in clear takes. In a deployment every party has a machine of its own: the columns are per machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedunseen.deploy.secagg.driver import InOneProcess, agree_on
from fedunseen.deploy.secagg.enrolment import in_memory
from fedunseen.deploy.secagg.ledger import Ledger
from fedunseen.deploy.secagg.party import SecAggClient
from fedunseen.deploy.secagg.plan import Plan
from fedunseen.deploy.secagg.primitives import Elements


class Timed(InOneProcess):
    """Adds up the processor seconds that parties take to answer."""

    seconds = 0.0

    def exchange(self, stage: Any, requests: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
        """Send each party its request, and yield its answer."""
        answers = iter(super().exchange(stage, requests))
        while True:
            began = time.process_time()
            answer = next(answers, None)
            self.seconds += time.process_time() - began
            if answer is None:
                return
            yield answer


def measure(parties: int, elements: int) -> tuple[float, float, float]:
    """Return the processor seconds of one party, of the coordinator, and of adding in clear."""
    credentials = in_memory([str(k) for k in range(parties)])
    clients = {name: SecAggClient(own, Ledger(), ["dropouts"]) for name, own in credentials.items()}
    federation = next(iter(credentials.values())).enrolment.digest
    nothing = "00" * 32
    plan = Plan(
        federation, nothing, nothing, "none", nothing, {}, nothing, 10**9, False, False, ()
    )  # fmt: skip
    agree_on(plan, clients)
    own = np.arange(elements, dtype=np.uint64)

    def encode(name: str, rho: bytes, extra: Any) -> Elements:
        return own

    carrier = Timed(clients, encode)
    began = time.process_time()
    opened = carrier.sum(plan, 0, nothing)
    whole = time.process_time() - began
    assert np.array_equal(opened.elements, own * np.uint64(parties))
    began = time.process_time()
    total = np.zeros_like(own)
    for _ in range(parties):
        total += own
    return carrier.seconds / parties, whole - carrier.seconds, time.process_time() - began


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parties", nargs="*", default=[3, 10, 30, 100], type=int)
    parser.add_argument("--width", default=1280, type=int)
    parser.add_argument("--classes", default=100, type=int)
    parser.add_argument("--smallest", action="store_true", help="three parties and few numbers")
    asked = parser.parse_args()
    if asked.smallest:
        asked.parties, asked.width, asked.classes = [3], 8, 2
    elements = asked.width * (asked.width + 1) // 2 + asked.classes * (asked.width + 1) + 1
    print("| parties | a party, s | the coordinator, s | in clear, s |")
    print("|--:|--:|--:|--:|", flush=True)
    for count in asked.parties:
        party, server, clear = measure(count, elements)
        print(f"| {count} | {party:.2f} | {server:.2f} | {clear:.2f} |", flush=True)


if __name__ == "__main__":
    main()
