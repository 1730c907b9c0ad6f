"""Does a method still learn when features are a thousand times longer? Every method, strategy and
preset.

    python benchmarks/accuracy/scales.py [--root FOLDER_WITH_XLSA17 --dataset AWA1_LAMPERT]

Without data: pairs of digits as features of norm 0.1, 1, 30 and 1,000. ``--smallest``: two methods,
two norms, to see that it works.

Nothing is set but the method, the strategy and the number of rounds: no learning rate and no
scaling of features. The table has ZSL accuracies; a cell says ``diverged`` where a run ended so,
and has a star where it says of itself that it went wrong. Maps, for the methods that take them, are
the same features with noise around them, 2 x 2 cells.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen import Experiment, run
from fedunseen.core.errors import FedUnseenError
from fedunseen.data import Benchmark
from fedunseen.data.benchmarks.digit_pairs import DigitPairs
from fedunseen.data.benchmarks.xlsa17 import Xlsa17

NORMS = (0.1, 1.0, 30.0, 1000.0)
ROUNDS = 10
CLOSED = ("gaussian", "eszsl", "ridge")
TRAINED = (
    "fedzsl",
    "distzsl",
    "fedzsl, hidden layer",
    "distzsl, hidden layer",
    "clswgan",
    "vaegan",
    "free",
)
MAPS = ("apn", "gem", "msdn", "svip")
STRATEGIES = (
    "fedprox", "fednova", "scaffold", "moon", "fedgloss", "fedavg-decay", "fedavgm", "fedadagrad", "fedyogi", "fedadam",
    "local", "centralised",
)  # fmt: skip
PRESETS = (
    "awa1-gaussian", "cub-fedzsl", "awa2-fedzsl", "sun-fedzsl", "cub-distzsl", "awa2-distzsl", "sun-distzsl",
    "awa1-clswgan", "awa2-vaegan", "awa1-free",
)  # fmt: skip
"""Their methods, strategies and scalings of features, on these data."""


def digits(smallest: bool) -> Benchmark:
    """Return pairs of digits."""
    size = (
        {"train_per_class": 10, "test_per_class": 5}
        if smallest
        else {"train_per_class": 30, "test_per_class": 15}
    )
    return DigitPairs.load(DigitPairs.Settings(**size), 0)


def write(benchmark: Benchmark, folder: Path, norm: float, maps: bool = False) -> None:
    """Write a benchmark's features as a folder of one's own, their mean norm being ``norm``."""
    folder.mkdir(parents=True)
    features = benchmark.features.astype(np.float64)
    features *= norm / np.linalg.norm(features, axis=1).mean()
    if maps:
        noise = np.random.default_rng(0).normal(size=(*features.shape, 2, 2))
        features = features[..., None, None] * np.exp(0.3 * noise)
    parts = [benchmark.train, benchmark.test_seen, benchmark.test_unseen]
    rows = np.concatenate(parts)
    split: NDArray[Any] = np.where(np.arange(len(rows)) < len(parts[0]), "train", "test")
    np.savez(folder / "features.npz", features=features[rows].astype(np.float32), labels=benchmark.labels[rows],
             split=split)  # fmt: skip
    benchmark.space.save(folder / "classes.csv")


def cell(folder: Path, name: str, strategy: str, out: Path, rounds: int, grouped: bool) -> str:
    """Run one method under one strategy on the features in a folder, and return what the table says
    of it.
    """
    method, _, layers = name.partition(", ")
    if name in PRESETS:
        tree = Experiment.load(name, {"data.root": str(folder)}).to_dict()
        kept = {key: tree["data"][key] for key in ("features", "semantics") if key in tree["data"]}
        tree |= {
            "data": {**kept, "name": "folder", "root": str(folder)},
            "partition": {"kind": "pccd", "clients": 5},
        }
        tree["evaluation"] = {
            "embedding": False,
            "theory": False,
            "clients": False,
            "selection": "last",
        }
        tree["strategy"]["rounds"] = min(rounds, tree["strategy"]["rounds"])
        return said(tree, name, out)
    tree = {
        "data": {"name": "folder", "root": str(folder)},
        "partition": {"kind": "pccd", "clients": 5},
        "method": {"name": method},
        "evaluation": {"embedding": False, "theory": False, "clients": False, "selection": "last"},
    }
    if layers:
        tree["method"]["hidden"] = [128]
    if method == "distzsl" and not grouped:
        tree["method"]["decorrelation"] = 0.0
    if method in ("apn", "svip") and not grouped:
        tree["method"]["grouped"] = False
    if method not in CLOSED:
        tree["strategy"] = {"name": strategy, "rounds": rounds}
    return said(tree, "scales", out)


def said(tree: dict[str, Any], name: str, out: Path) -> str:
    """Run an experiment, and return what the table says of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = run(Experiment.from_dict(tree, name=name), out).result
        except FedUnseenError as error:
            return (
                "diverged"
                if "diverged" in str(error) or "not finite" in str(error)
                else f"refused: {error}"
            )
    return f"{result['zsl']:.1f}" + ("*" if result.get("warnings") else "")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, help="the folder that holds the xlsa17 data sets")
    parser.add_argument("--dataset", default="AWA1_LAMPERT")
    parser.add_argument(
        "--only", type=lambda text: text.split(";"), help="methods and strategies, divided by ;"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--smallest", action="store_true")
    given = parser.parse_args()
    benchmark = digits(given.smallest)
    if given.root is not None:
        benchmark = Xlsa17.load(Xlsa17.Settings(root=given.root, dataset=given.dataset), 0)
    rows: Sequence[tuple[str, str]] = [
        *((name, "fedavg") for name in (*CLOSED, *TRAINED, *MAPS)), *(("fedzsl", name) for name in STRATEGIES),
        *((name, "") for name in PRESETS),
    ]  # fmt: skip
    norms: Sequence[float] = NORMS
    if given.smallest:
        rows, norms, given.rounds = [("gaussian", "fedavg"), ("fedzsl", "fedavg")], (0.1, 1000.0), 2
    if given.only:
        rows = [row for row in rows if row[0] in given.only or row[1] in given.only]
    print(f"chance: {100 / len(benchmark.space.unseen):.1f} %\n")
    print("| method | strategy | " + " | ".join(f"norm {norm:g}" for norm in norms) + " |")
    print("|---|---|" + "--:|" * len(norms), flush=True)
    grouped = bool(benchmark.space.attribute_groups)
    with tempfile.TemporaryDirectory() as folder:
        for i, (name, strategy) in enumerate(rows):
            cells = []
            for norm in norms:
                maps = name in MAPS
                place = Path(folder) / f"{'maps' if maps else 'vectors'}-{norm:g}"
                if not place.exists():
                    write(benchmark, place, norm, maps)
                cells.append(
                    cell(
                        place,
                        name,
                        strategy,
                        Path(folder) / f"run-{i}-{norm:g}",
                        given.rounds,
                        grouped,
                    )
                )
            print(
                f"| {name} | {strategy if name not in CLOSED else ''} | {' | '.join(cells)} |",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
