"""The tables of docs/research/results.md: federated zero-shot learning on real features, three
seeds, chosen honestly.

Each row first chooses its settings on the validation classes of seed 0 (some take over what a row
above chose), then runs all seeds with them, each choosing its round and calibration on validation
classes again.

    python benchmarks/accuracy/real_data.py AWA1_LAMPERT --root FOLDER_WITH_XLSA17 --markdown table.md

Runs are kept in ``--out`` and resumed, so that a second call only prints.
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path
from typing import Any

from fedunseen import Experiment, FedUnseenError, Run, run
from fedunseen.core.files import write_text

BASE: dict[str, Any] = {
    "data": {"name": "xlsa17", "features": ["centre", "l2"], "semantics": ["centre", "l2"]},
    "partition": {"kind": "pccd", "clients": 10},
    "method": {"name": "fedzsl", "kl": 0.0, "consistency": 0.0},
    "strategy": {"name": "fedavg", "rounds": 40, "local_epochs": 2},
    "evaluation": {"selection": "validation", "criterion": "zsl", "clients": False},
}
LR = {"method.lr": [0.2, 0.5, 1.0]}
KL = {"method.kl": [0.1, 1.0, 3.0]}
CLASSES = {"method.sce_classes": ["seen", "all"]}
PRINTED = {
    "method.kl": 3.0,
    "method.consistency": 1.0,
    "method.sce_classes": "all",
    "method.kl_classes": "all",
}

FEDAVG, DISTILLED = "FedAvg (Eq. 3 alone)", "FedZSL without consistency"
ROWS: dict[str, tuple[dict[str, Any], dict[str, list[Any]], str | None]] = {
    # name: what it fixes, what it chooses, the row above whose choice it takes over
    "ESZSL, centralised": (
        {"method.name": "eszsl", "strategy.name": "centralised", "strategy.rounds": 1},
        {
            "method.log_gamma": [-1.0, 0.0, 1.0, 2.0, 3.0],
            "method.log_lambda": [-1.0, 0.0, 1.0, 2.0],
        },
        None,
    ),
    "Eq. 3 alone, centralised": ({"strategy.name": "centralised"}, LR, None),
    "Eq. 3 alone, each client alone (phi = 0.1)": ({"strategy.name": "local"}, LR, None),
    FEDAVG: ({}, LR, None),
    "FedAvg, all classes in Eq. 3": ({"method.sce_classes": "all"}, {}, FEDAVG),
    "FedAvg-decay": ({"strategy.name": "fedavg-decay"}, {}, FEDAVG),
    "FedProx": ({"strategy.name": "fedprox"}, {"strategy.mu": [0.001, 0.01, 0.1]}, FEDAVG),
    "FedZSL without kl": ({"method.consistency": 1.0}, {}, FEDAVG),
    DISTILLED: ({}, KL | CLASSES, FEDAVG),
    "FedZSL": ({"method.consistency": 1.0}, {}, DISTILLED),
    "FedZSL as printed (mu = 3, tau = 10, all classes)": (PRINTED, {}, FEDAVG),
}
COLUMNS = {"zsl": "ZSL", "gzsl_unseen": "U", "gzsl_seen": "S", "gzsl_harmonic": "H"}


def finished(experiment: Experiment, out: Path) -> Run:
    """Run, or go on with, or read an experiment in ``out``."""
    return run(experiment, out, resume=(out / "manifest.json").exists())


def row(
    name: str, data: dict[str, Any], out: Path, seeds: int, taken: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Choose a row's settings beside those ``taken`` over, run its seeds; return its line and all
    that is chosen.
    """
    fixed, grid, _ = ROWS[name]
    base = Experiment.from_dict(
        BASE | {"data": BASE["data"] | data}, fixed, name=name
    ).with_overrides(taken)
    folder = out / name.replace(" ", "-").replace(",", "").replace("=", "").replace("/", "")
    chosen = dict(taken)
    if grid:
        tuned = finished(base.with_overrides({"evaluation.choose": grid}), folder / "choosing")
        chosen |= tuned.result["chosen_on_validation"]["settings"]
    result = finished(base.with_overrides(chosen | {"run.seeds": seeds}), folder / "seeds").result
    spread = {key: f" ± {result[f'{key}_sd']:.1f}" if seeds > 1 else "" for key in COLUMNS}
    numbers = " | ".join(f"{result[key]:.1f}{spread[key]}" for key in COLUMNS)
    settings = ", ".join(f"{key.split('.')[1]} {value}" for key, value in chosen.items())
    return f"| {name} | {numbers} | {settings} |", chosen


def main() -> None:
    """Print, and with --markdown write, the table of one data set."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "dataset", nargs="?", default="AWA1_LAMPERT", help="a folder of xlsa17 [AWA1_LAMPERT]"
    )
    parser.add_argument(
        "--root", default=Path(os.environ.get("FEDUNSEEN_DATA", ".")) / "xlsa17", type=Path
    )
    parser.add_argument("--out", default=Path("runs/real-data"), type=Path)
    parser.add_argument("--rounds", default=40, type=int)
    parser.add_argument("--seeds", default=3, type=int)
    parser.add_argument(
        "--without",
        nargs="*",
        default=[],
        choices=list(ROWS),
        metavar="ROW",
        help="rows to leave out",
    )
    parser.add_argument("--markdown", type=Path)
    parser.add_argument(
        "--smallest",
        action="store_true",
        help="one round and one seed of a few rows: to see that it runs",
    )
    asked = parser.parse_args()
    if asked.smallest:
        asked.rounds, asked.seeds = 1, 1
        asked.without = [
            name for name in ROWS if not name.startswith((FEDAVG, "FedZSL as printed"))
        ]
    warnings.simplefilter("once")
    BASE["strategy"]["rounds"] = asked.rounds
    lines = [
        f"| {asked.dataset} | {' | '.join(COLUMNS.values())} | chosen on validation classes |",
        "|---|--:|--:|--:|--:|---|",
    ]
    print("\n".join(lines), flush=True)
    data = {"root": str(asked.root), "dataset": asked.dataset}
    chosen: dict[str | None, dict[str, Any]] = {None: {}}
    for name, (_, _, above) in ROWS.items():
        if name in asked.without:
            continue
        line, chosen[name] = row(name, data, asked.out / asked.dataset, asked.seeds, chosen[above])
        lines.append(line)
        print(line, flush=True)
    if asked.markdown:
        write_text(asked.markdown, "\n".join(lines) + "\n")


if __name__ == "__main__":
    try:
        main()
    except FedUnseenError as error:
        raise SystemExit(f"error: {error}") from None
