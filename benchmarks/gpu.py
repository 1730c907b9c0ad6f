"""All that a GPU can measure, in one command: accuracies, times and memory of networks that a CPU is too slow for.

``python benchmarks/gpu.py --data FOLDER --out runs/gpu`` runs each case below, goes on where it was stopped, and writes
``table.md``: a row a run with its command. ``FOLDER`` holds ``cifar100`` (FC100 and CIFAR-100) and, for the case that
needs it, ``miniimagenet``; a case without its data is left out with a word. ``--smallest`` is two rounds on embedded
digits on whatever device is there: it shows that the script runs, and measures nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedunseen import Experiment, run
from fedunseen.core.errors import FedUnseenError

FEW = {"strategy.weights": "uniform", "method.ways": 5, "method.episodes": 50}
INNER = {"method.hidden": [400], "method.inner_lr": 0.01, "method.inner_steps": 5, "method.test_steps": 10}
RESNET12 = {"encoder.name": "resnet12", "encoder.norm": "batch-statistics", **FEW}
ROWS = {
    "naive": {"method.name": "maml", **INNER},
    "MI": {"method.name": "maml-mi", **INNER},
    "MI-Adv": {"method.name": "maml-mi-adv", **INNER},
    "ProtoNet": {"method.name": "protonet"},
}
RESNET18 = {
    "data.name": "cifar100", "encoder.name": "resnet", "encoder.weights": "microsoft/resnet-18",
    "encoder.trained": True, "encoder.pretrained": False, "encoder.size": 64,
    "partition.kind": "pccd", "partition.clients": 10,
    "strategy.rounds": 50, "strategy.local_epochs": 2, "evaluation.clients": False, "evaluation.theory": False,
    "engine.memory": 8192,
}  # fmt: skip


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return name -> the folder that the data need, and the settings."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for data, folder in (("fc100", "cifar100"), ("miniimagenet", "miniimagenet")):
        for row, method in ROWS.items():
            for kind in ("iid", "dirichlet"):
                settings = {"data.name": data, **RESNET12, **method, "partition.kind": kind, "partition.clients": 10}
                found[f"{data}, ResNet-12, {row}, {kind}"] = folder, {**settings, "strategy.rounds": 100}
    for method in ("classifier", "fedzsl", "distzsl"):
        own = {"method.name": method} | ({"method.decorrelation": 0.0} if method == "distzsl" else {})
        found[f"CIFAR-100, ResNet-18 end to end, {method}"] = "cifar100", {**RESNET18, **own}
    return found


def smallest() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return cases of the same kinds on embedded digits."""
    few = {"data.name": "digits", **FEW, "method.episodes": 4, "method.queries": 5, "partition.kind": "iid"}
    few |= {"encoder.name": "resnet12", "encoder.widths": [4, 4, 4, 4], "encoder.norm": "batch-statistics"}
    end = {"evaluation.selection": "last", "strategy.rounds": 2, "partition.clients": 2}
    few |= {"evaluation.episodes": 4, "evaluation.validation_episodes": 4, "method.name": "protonet", **end}
    zero = {"data.name": "digit-pairs", "data.train_per_class": 4, "data.test_per_class": 2, "encoder.name": "conv"}
    return {
        "digits, ResNet-12, ProtoNet, iid": ("", few),
        "digit-pairs, end to end, fedzsl": ("", {**zero, "method.name": "fedzsl", **end}),
    }


def measure(name: str, settings: Mapping[str, Any], out: Path) -> str:
    """Run one case, or read what it has left, and return its row."""
    names_first = dict(sorted(settings.items(), key=lambda item: not item[0].endswith(".name")))
    base = "digit-pairs-few-shot" if "method.ways" in settings else "digit-pairs"  # of which little is left
    experiment, place = Experiment.load(base, names_first), out / name.replace(", ", "-").replace(" ", "-")
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    done = run(experiment, place, resume=place.exists())
    took = time.perf_counter() - began
    result = done.result
    numbers = (
        f"{result['few_shot']:.1f} ± {result['few_shot_ci95']:.1f} (raw pixels {result['few_shot_pixels']:.1f})"
        if "few_shot" in result
        else f"ZSL {result['zsl']:.1f}, H {result['gzsl_harmonic']:.1f}"
    )
    memory = f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if on_gpu else "no GPU"
    per_round = result["seconds"] / experiment.strategy.rounds
    command = " ".join(f"--set '{key}={value}'" for key, value in names_first.items())
    return f"| {name} | {numbers} | {per_round:.1f} | {took:.0f} | {memory} | `fedunseen run {base} {command}` |"


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder of the data")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="where the runs and the table go")
    parser.add_argument("--only", default="", help="the cases whose names contain this")
    parser.add_argument("--rounds", type=int, help="fewer rounds, to see what they take")
    parser.add_argument("--smallest", action="store_true", help="embedded data, two rounds: to see that it runs")
    given = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    head = [f"{device}, torch {torch.__version__}", ""]
    head += ["| | accuracy | s a round | s in this call | GPU memory | command |", "|---|---|--:|--:|--:|---|"]
    rows: list[str] = []
    for name, (folder, settings) in (smallest() if given.smallest else cases()).items():
        if given.only not in name:
            continue
        if folder and not (given.data / folder).is_dir():
            print(f"{name}: left out, {given.data / folder} is not there", file=sys.stderr)
            continue
        placed = {**settings, **({"data.root": str(given.data / folder)} if folder else {})}
        if given.rounds:
            placed["strategy.rounds"] = given.rounds
        try:
            rows.append(measure(name, placed, given.out))
        except FedUnseenError as error:
            rows.append(f"| {name} | failed: {error} | | | | |")
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "table.md").write_text("\n".join([*head, *rows]) + "\n", "utf-8")  # what there is, after each run
        print(rows[-1], flush=True)
    if any("failed: " in row for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
