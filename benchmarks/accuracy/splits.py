"""Rows of a bench on drawn class splits: ``python benchmarks/accuracy/splits.py fedavg fedzsl``.

Ten unseen classes differ so much that a difference of a few points stays within its interval. Here
rows of a bench are trained again on the published split and on ten drawn ones, with the settings,
rounds and offset that were chosen on validation classes of the published split, and a split is the
unit of the interval. The first row is subtracted from each other one. What is registered stands in
docs/research/tuning.md. Runs are kept in ``--out``; a second call only prints.
"""

from __future__ import annotations

import argparse
import ast
import csv
import itertools
from pathlib import Path
from typing import Any

import numpy as np

from closed_form import other_split
from fedunseen import Run, run
from fedunseen.core.registry import find
from fedunseen.data.benchmark import Benchmark
from fedunseen.data.benchmarks.digit_pairs import (
    UNSEEN_SHIFTS,
    VALIDATION_SHIFTS,
    DigitPairs,
    class_space,
)
from fedunseen.experiment.assemble import resolve_defaults
from fedunseen.experiment.schema import Experiment
from fedunseen.metrics import paired_difference
from fedunseen.research.papers.bench import SHIPPED, read_bench
from fedunseen.research.papers.tuning import Found
from fedunseen.research.sweep import Cell

KEYS = ("zsl", "gzsl_harmonic")
LEADERBOARD = Path(__file__).parents[2] / "docs" / "research" / "bench.csv"


def main() -> None:
    """Train what is missing, and print a line for each split and the differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="+", help="methods of the bench: the first is subtracted")
    parser.add_argument("--data", default="AWA1_LAMPERT")
    parser.add_argument("--file", type=Path, default=SHIPPED, help="the bench's file")
    parser.add_argument("--out", type=Path, default=Path("runs/splits"))
    parser.add_argument("--splits", type=int, default=10, help="drawn splits beside the published")
    asked = parser.parse_args()
    found: dict[str, list[tuple[float, ...]]] = {row: [] for row in asked.rows}
    print(f"| split | {' | '.join(f'{row}: ZSL; H' for row in asked.rows)} |")
    print(f"|---|{'--:|' * len(asked.rows)}", flush=True)
    for k in range(asked.splits + 1):
        for row in asked.rows:
            found[row].append(measured(asked, row, k))
        cells = ["; ".join(f"{value:.1f}" for value in found[row][-1]) for row in asked.rows]
        print(f"| {k or 'published'} | {' | '.join(cells)} |", flush=True)
    reference = np.array(found[asked.rows[0]])
    for row in asked.rows[1:]:
        for i, name in enumerate(("ZSL", "H")):
            mean, half = paired_difference(np.array(found[row])[:, i], reference[:, i])
            print(f"{row} less {asked.rows[0]}, {name}: {mean:+.1f} ± {half:.1f}")
    for row in asked.rows:
        print(f"{row}: {settings_of(asked, row)[1]}")


def settings_of(asked: argparse.Namespace, row: str) -> tuple[Cell, dict[str, Any]]:
    """Return a row's cell, and what was chosen for it on the published split."""
    sweep, _ = read_bench(asked.file)
    cell = next(
        one
        for one in sweep.cells
        if one.values["method"] == row and one.values["data"] == asked.data
    )
    assert cell.experiment is not None
    if asked.file == SHIPPED:  # its searches take hours: what they chose is committed
        return cell, chosen(row, asked.data)
    return cell, choose(cell.experiment, asked.out / f"{cell.folder}--choosing")


def measured(asked: argparse.Namespace, row: str, k: int) -> tuple[float, ...]:
    """Return ZSL and H of a row on split k, 0 being the published one."""
    cell, settings = settings_of(asked, row)
    assert cell.experiment is not None
    benchmark = find("data", cell.experiment.data.name).load(cell.experiment.data, 0)
    last = {
        "data.name": "arrays",
        # Arrays do not say that they have one unit, on which the default scaling depends.
        "data.features": list(resolve_defaults(cell.experiment, benchmark).data.features or ()),
        "evaluation.selection": "last",
        "evaluation.choose": {},
        "evaluation.every": settings["strategy.rounds"],
        "run.seed": k,
    }
    experiment = cell.experiment.with_overrides({**settings, **last})
    split = drawn(cell.experiment, benchmark, k) if k else benchmark
    result = finished(experiment, asked.out / f"{cell.folder}--{k}", split).result
    return tuple(result[key] for key in KEYS)


def finished(experiment: Experiment, path: Path, benchmark: Benchmark | None = None) -> Run:
    """Run, or continue, or read an experiment."""
    return run(experiment, path, resume=(path / "manifest.json").exists(), benchmark=benchmark)


def chosen(row: str, data: str, leaderboard: Path = LEADERBOARD) -> dict[str, Any]:
    """Return what the shipped bench chose for a row."""
    with leaderboard.open(newline="", encoding="utf-8") as file:
        lines = [one for one in csv.DictReader(file) if (one["data"], one["method"]) == (data, row)]
    settings = {}
    for key, _, value in (word.partition("=") for word in lines[0]["settings"].split()):
        settings[key] = value if value.isidentifier() else ast.literal_eval(value)
    settings["strategy.rounds"] = int(settings["strategy.rounds"])
    return settings


def choose(experiment: Experiment, path: Path) -> dict[str, Any]:
    """Return what a row chooses from its grid with seed 0, as in its bench."""
    tuned = finished(experiment.with_overrides({"run.seeds": 1}), path)
    found = Found.of(tuned.result["chosen_on_validation"])
    return {
        **found.settings,
        "strategy.rounds": found.round,
        "evaluation.factor": found.factor,
    }


def drawn(experiment: Experiment, benchmark: Benchmark, k: int) -> Benchmark:
    """Return the data with the k-th drawn split."""
    if isinstance(experiment.data, DigitPairs.Settings):
        return DigitPairs.of(class_space(unseen_shifts(k), ()), experiment.data)
    return other_split(benchmark, k)


def unseen_shifts(k: int) -> tuple[int, int]:
    """Return two shifts that make a class of `digit-pairs` unseen.

    The random split of :func:`other_split` would let source digits of tests train, and favor some
    digits. Validation shifts are left out, so that no choice was made on an unseen class.
    """
    shifts = [shift for shift in range(10) if shift not in VALIDATION_SHIFTS]
    pairs = [pair for pair in itertools.combinations(shifts, 2) if pair != UNSEEN_SHIFTS]
    first, second = pairs[np.random.default_rng(1000).permutation(len(pairs))[k - 1]]
    return first, second


if __name__ == "__main__":
    main()
