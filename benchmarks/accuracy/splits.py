"""Rows of a bench on drawn class splits: ``python benchmarks/accuracy/splits.py fedzsl fedavg``.

Ten unseen classes differ so much that a difference of a few points stays within its interval. Here
two rows of a finished bench are trained again on the published split and on ten drawn ones, with
the settings, rounds and offset that the bench has chosen, and a split is the unit of the interval.
What is registered stands in docs/research/tuning.md. Runs are kept in ``--out``; a second call only
prints.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np

from closed_form import load, other_split
from fedunseen import run
from fedunseen.core.runs import read_json
from fedunseen.metrics import paired_difference
from fedunseen.research.papers.bench import read_bench

KEYS = ("zsl", "gzsl_harmonic")


def main() -> None:
    """Train what is missing, and print a line for each split and the differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs=2, help="two methods of the bench: the second is subtracted")
    parser.add_argument("--data", default="AWA1_LAMPERT")
    parser.add_argument("--bench", type=Path, default=Path("runs/bench"))
    parser.add_argument("--out", type=Path, default=Path("runs/splits"))
    parser.add_argument("--splits", type=int, default=10, help="drawn splits beside the published")
    parser.add_argument(
        "--root", default=Path(os.environ.get("FEDUNSEEN_DATA", ".")) / "xlsa17", type=Path
    )
    asked = parser.parse_args()
    found: dict[str, list[tuple[float, ...]]] = {row: [] for row in asked.rows}
    print(f"| split | {' | '.join(f'{row}: ZSL; H' for row in asked.rows)} |\n|---|--:|--:|")
    for k in range(asked.splits + 1):
        for row in asked.rows:
            found[row].append(measured(asked, row, k))
        cells = ["; ".join(f"{value:.1f}" for value in found[row][-1]) for row in asked.rows]
        print(f"| {k or 'published'} | {' | '.join(cells)} |", flush=True)
    first, second = (np.array(found[row]) for row in asked.rows)
    for i, name in enumerate(("ZSL", "H")):
        mean, half = paired_difference(first[:, i], second[:, i])
        print(f"{asked.rows[0]} less {asked.rows[1]}, {name}: {mean:+.1f} ± {half:.1f}")


def measured(asked: argparse.Namespace, row: str, k: int) -> tuple[float, ...]:
    """Return ZSL and H of a row on split k, 0 being the published one."""
    sweep, _ = read_bench()
    cell = next(
        one
        for one in sweep.cells
        if one.values["method"] == row and one.values["data"] == asked.data
    )
    assert cell.experiment is not None
    file = asked.bench / "measured" / f"{cell.folder}--0.json"
    settings: dict[str, Any] = read_json(file, f"{file}: run the bench first", ["settings"])[
        "settings"
    ]
    manifest = asked.bench / "cells" / f"{cell.folder}--0" / "manifest.json"
    data = read_json(manifest, f"{manifest}: run the bench first", ["experiment"])["experiment"]
    benchmark = load(asked.root, asked.data)
    last = {
        "data.name": "arrays",
        "data.features": data["data"]["features"],  # arrays do not say that they have one unit
        "evaluation.selection": "last",
        "evaluation.choose": {},
        "evaluation.every": settings["strategy.rounds"],
        "run.seed": k,
    }
    experiment = cell.experiment.with_overrides({**settings, **last})
    path = asked.out / f"{cell.folder}--{k}"
    benchmark = other_split(benchmark, k) if k else benchmark
    result = run(
        experiment, path, resume=(path / "manifest.json").exists(), benchmark=benchmark
    ).result
    return tuple(result[key] for key in KEYS)


if __name__ == "__main__":
    main()
