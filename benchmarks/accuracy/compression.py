"""Bytes against accuracy: clients send short forms of their updates, beside plain FedAvg and the
closed form.

    python benchmarks/accuracy/compression.py [DATA ...] --root FOLDER_WITH_XLSA17

Ten clients with disjoint classes, Eq. 3 of FedZSL alone, the last round, three seeds; ZSL accuracy
in percent, what a client sends in a round (KB), and what all clients have sent when the run is over
(MB).
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

from fedunseen import Experiment, FedUnseenError, run

QUIET = {"selection": "last", "clients": False, "theory": False, "embedding": False}
TRAINED: dict[str, Any] = {
    "partition": {"kind": "pccd", "clients": 10},
    "method": {"name": "fedzsl", "kl": 0.0, "consistency": 0.0, "lr": 0.5},
    "strategy": {"name": "fedavg", "local_epochs": 2},
    "evaluation": QUIET,
}
CLOSED: dict[str, Any] = {
    **TRAINED,
    "method": {"name": "gaussian"},
    "strategy": {"name": "fedavg", "rounds": 1},
}
ROUNDS = {"digit-pairs": 8, "AWA1_LAMPERT": 8, "CIFAR100_MBV2": 3}
FORMS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "none"},
    "8-bit": {"name": "8-bit"},
    "top-k, 10 %": {"name": "top-k", "keep": 0.1},
    "top-k, 1 %": {"name": "top-k", "keep": 0.01},
    "1-bit": {"name": "1-bit"},
    "low-rank, 4": {"name": "low-rank", "rank": 4},
    "low-rank, 1": {"name": "low-rank", "rank": 1},
}


def data_of(name: str, root: Path) -> dict[str, Any]:
    """Return the section [data]."""
    if name == "digit-pairs":
        return {"name": name, "features": ["standard"]}
    scaled = {"features": ["centre", "l2"], "semantics": ["centre", "l2"]}
    return {"name": "xlsa17", "root": str(root), "dataset": name, **scaled}


def measured(tree: dict[str, Any], seeds: int) -> tuple[list[float], float, float]:
    """Return the ZSL accuracy of each seed, the bytes of a client in a round, and those of the
    whole run.
    """
    accuracies, bytes_up, whole = [], 0.0, 0.0
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            done = run(Experiment.from_dict(tree, {"run.seed": seed}), Path(folder) / "run")
            accuracies.append(done.result["zsl"])
            bytes_up, whole = (
                done.result["bytes_up"],
                float(sum(line["bytes_up"] for line in done.metrics)),
            )
    return accuracies, bytes_up, whole


def table(name: str, root: Path, seeds: int, rounds: int, forms: Sequence[str]) -> None:
    """Print the table of one data set."""
    print(f"\n| {name}, {rounds} rounds | ZSL | KB a client and round | times less | MB in all |")
    print("|---|--:|--:|--:|--:|", flush=True)
    base = {
        **TRAINED,
        "data": data_of(name, root),
        "strategy": {**TRAINED["strategy"], "rounds": rounds},
    }
    trees = {form: {**base, "compression": FORMS[form]} for form in forms}
    trees["closed form (`gaussian`), 1 round"] = {**CLOSED, "data": data_of(name, root)}
    plain = 0.0
    for row, tree in trees.items():
        accuracies, each, whole = measured(tree, seeds)
        plain = plain or each
        spread = f" ± {np.std(accuracies, ddof=1):.1f}" if seeds > 1 else ""
        sizes = f"{each / 1e3:.1f} | {plain / each:.1f} | {whole / 1e6:.2f}"
        print(f"| {row} | {np.mean(accuracies):.1f}{spread} | {sizes} |", flush=True)


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
    parser.add_argument("--rounds", type=int, help="by default 8, and 3 on CIFAR100_MBV2")
    parser.add_argument(
        "--smallest", action="store_true", help="two rounds of two forms: to see that it runs"
    )
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    forms = list(FORMS)
    if asked.smallest:
        asked.datasets, asked.seeds, asked.rounds, forms = (
            ["digit-pairs"],
            1,
            2,
            ["FedAvg", "8-bit"],
        )
    for name in asked.datasets:
        table(name, asked.root, asked.seeds, asked.rounds or ROUNDS.get(name, 8), forms)


if __name__ == "__main__":
    try:
        main()
    except FedUnseenError as error:
        sys.exit(f"error: {error}")
