"""Measure what needs a GPU, in one command: accuracies, seconds and memory of networks, and sums on
both devices.

``python benchmarks/accuracy/gpu.py --data FOLDER --out runs/gpu`` runs each case below, continues where it
was stopped, and writes ``table.md``: a row a run with its command. ``FOLDER`` holds ``cifar100``
(FC100 and CIFAR-100), ``mobilenet_v2`` (maps) and, for the cases that need it, ``miniimagenet``; a
case without its data is left out with a word. ``--smallest`` takes next to nothing on whatever
device is there: it shows that the script runs, and measures nothing.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedunseen import Experiment, run
from fedunseen.core.errors import FedUnseenError
from fedunseen.core.parameters import Params, to_device
from fedunseen.data import ClassSpace, Quantization
from fedunseen.experiment.assemble import assemble, load_data, partition_of
from fedunseen.methods.closed_form.statistics import statistics, sums_sha256

Cases = dict[str, tuple[str, dict[str, Any]]]
FEW = {"strategy.weights": "uniform", "method.ways": 5, "method.episodes": 50}
INNER = {
    "method.hidden": [400],
    "method.inner_lr": 0.01,
    "method.inner_steps": 5,
    "method.test_steps": 10,
}
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
AS_PRINTED = {
    "method.kl": 3.0,
    "method.sce_classes": "all",
    "method.kl_classes": "all",
}  # FedZSL's mu and its Eqs. 3, 5
STRATEGIES = ("fedavg-decay", "fedprox", "fednova", "scaffold", "moon", "fedgloss")
MAPS = {
    "data.name": "cifar100", "data.train_per_class": 40, "data.test_per_class": 20, "encoder.name": "tflite",
    "encoder.resize": "bicubic", "partition.clients": 10, "strategy.rounds": 30, "strategy.local_epochs": 2,
    "evaluation.clients": False, "evaluation.theory": False, "method.batch_size": 64,
}  # fmt: skip
NETWORKS = {  # method -> settings, and learning rates of which validation classes choose one
    "apn": ({"method.grouped": False}, [1e-3, 3e-3, 1e-2, 3e-2]),
    "gem": ({}, [30.0, 100.0, 300.0, 1000.0]),
    "msdn": ({}, [1e-3, 3e-3, 1e-2, 3e-2]),
    "distzsl": (
        {"method.decorrelation": 0.0, "data.features": ["centre", "l2"]},
        [0.1, 0.3, 1.0, 3.0],
    ),
}


def few_shot() -> Cases:
    """Return ResNet-12 on FC100 and miniImageNet, 5-way 1-shot and 5-shot."""
    found: Cases = {}
    for (data, folder), shots in itertools.product(
        (("fc100", "cifar100"), ("miniimagenet", "miniimagenet")), (1, 5)
    ):
        for (row, method), kind in itertools.product(ROWS.items(), ("iid", "dirichlet")):
            settings = {
                "data.name": data,
                **RESNET12,
                **method,
                "method.shots": shots,
                "strategy.rounds": 100,
            }
            settings |= {"partition.kind": kind, "partition.clients": 10}
            found[f"{data}, ResNet-12, {row}, {kind}, {shots} shots"] = folder, settings
    return found


def end_to_end() -> Cases:
    """Return ResNet-18 on CIFAR-100's photos: methods, FedZSL as printed, and its
    strategies.
    """
    own: dict[str, dict[str, Any]] = {
        "classifier": {"method.name": "classifier"},
        "fedzsl": {"method.name": "fedzsl"},
        "fedzsl as printed": {"method.name": "fedzsl", **AS_PRINTED},
        "distzsl": {"method.name": "distzsl", "method.decorrelation": 0.0},
    }
    own |= {
        f"fedzsl, {name}": {"method.name": "fedzsl", "strategy.name": name} for name in STRATEGIES
    }
    return {
        f"CIFAR-100, ResNet-18 end to end, {name}": ("cifar100", {**RESNET18, **one})
        for name, one in own.items()
    }


def maps(data: Path) -> Cases:
    """Return DistZSL's zero-shot networks on frozen maps, three seeds, a learning rate each by
    validation classes.
    """
    model = str(data / "mobilenet_v2" / "tf2_mobilenet_v2_1.0_224_ptq.tflite")
    found: Cases = {}
    for (method, (own, rates)), kind, seed in itertools.product(
        NETWORKS.items(), ("iid", "dirichlet", "pccd"), range(3)
    ):
        settings = {
            "method.name": method,
            **MAPS,
            "encoder.model": model,
            **own,
            "partition.kind": kind,
        }
        settings |= {"evaluation.choose": {"method.lr": rates}, "run.seed": seed}
        found[f"CIFAR-100 maps, {method}, {kind}, seed {seed}"] = "cifar100", settings
    return found


def smallest() -> Cases:
    """Return cases of the same kinds on embedded digits."""
    few = {
        "data.name": "digits",
        **FEW,
        "method.episodes": 4,
        "method.queries": 5,
        "partition.kind": "iid",
    }
    few |= {
        "encoder.name": "resnet12",
        "encoder.widths": [4, 4, 4, 4],
        "encoder.norm": "batch-statistics",
    }
    end = {"evaluation.selection": "last", "strategy.rounds": 2, "partition.clients": 2}
    few |= {
        "evaluation.episodes": 4,
        "evaluation.validation_episodes": 4,
        "method.name": "protonet",
        **end,
    }
    zero = {
        "data.name": "digit-pairs",
        "data.train_per_class": 4,
        "data.test_per_class": 2,
        "encoder.name": "conv",
    }
    return {
        "digits, ResNet-12, ProtoNet, iid": ("", few),
        "digit-pairs, end to end, fedzsl": ("", {**zero, "method.name": "fedzsl", **end}),
    }


def devices() -> list[str]:
    """Return what can compute here."""
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def timed(act: Callable[[], Any], device: str, repeats: int = 1) -> tuple[Any, float, float]:
    """Return what an action returns, its median seconds, and the most GiB of the GPU that it
    took.
    """
    on_gpu, taken, found = device == "cuda", [], None
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(repeats):
        began = time.perf_counter()
        found = act()
        if on_gpu:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return (
        found,
        sorted(taken)[repeats // 2],
        torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0,
    )


def sums(samples: int, width: int, classes: int = 1000) -> Iterator[str]:
    """Yield a row for each device: the statistics of the closed form, whose bits must not depend on
    it.
    """
    names, described = (
        tuple(f"class {c}" for c in range(classes)),
        np.random.default_rng(0).normal(size=(classes, 8)),
    )
    seen = list(range(classes // 2))
    space = ClassSpace(
        names, described, tuple(map(str, range(8))), seen, [], list(range(len(seen), classes))
    )
    quantization = Quantization.of_unit_length(8, 12.0, width)
    draws = torch.Generator().manual_seed(0)
    codes = torch.randint(-127, 128, (samples, width), dtype=torch.int8, generator=draws)
    labels = torch.randint(0, classes // 2, (samples,), generator=draws)
    digests = set()
    for device in devices():
        there = codes.to(device), labels.to(device)
        found, seconds, memory = timed(
            lambda at=there: statistics(*at, space, None, quantization), device
        )
        digests.add(digest := sums_sha256(found, quantization))
        same = "yes" if len(digests) == 1 else "**no**"
        what = f"sums of {samples:,} x {width:,}"
        yield f"| {what} | {device} | {seconds:.3f} | {memory:.1f} | `{digest[:16]}` | {same} |"


def whole_runs(out: Path) -> Iterator[str]:
    """Yield a row for each device: a run of the closed form, and its ``sums_sha256``."""
    digests = set()
    for device in devices():
        experiment = Experiment.load(
            "digit-pairs-gaussian", {"run.device": device, "evaluation.embedding": False}
        )
        place = out / f"sums-{device}"
        found, seconds, memory = timed(
            lambda at=place, what=experiment: run(what, at, resume=at.exists()), device
        )
        digests.add(digest := found.result["sums_sha256"])
        same = "yes" if len(digests) == 1 else "**no**"
        yield f"| `digit-pairs-gaussian` | {device} | {seconds:.3f} | {memory:.1f} | `{digest[:16]}` | {same} |"


def steps(name: str, settings: Mapping[str, Any], repeats: int) -> Iterator[str]:
    """Yield rows for each device: a gradient of 64 samples in float32, in bfloat16 and compiled."""
    for device in devices():
        experiment = Experiment.load("digit-pairs", {**settings, "run.device": device})
        benchmark = load_data(experiment, 0)
        federation = assemble(experiment, benchmark, partition_of(experiment, benchmark, 0))
        method, rows = federation.method, federation.partition.clients[0][:64]
        labels = torch.from_numpy(benchmark.labels[rows]).to(device)
        batch = {"inputs": federation.inputs[torch.from_numpy(rows).to(device)], "labels": labels}
        batch["weights"] = torch.ones(len(rows), device=device)
        held = np.unique(benchmark.labels[federation.partition.clients[0]])
        context = to_device({**method.context(), **method.client_context(held)}, federation.device)
        (phase,) = method.phases()

        def gradient(
            params: Params, loss: Any = phase.loss, given: Any = (batch, context)
        ) -> Params:
            return torch.func.grad(lambda own: loss(own, *given)[0])(params)

        compiled = torch.compile(gradient, backend="inductor" if device == "cuda" else "eager")
        for how, act in {"float32": gradient, "bf16": gradient, "compiled": compiled}.items():
            with torch.autocast(device, torch.bfloat16, enabled=how == "bf16"):
                act(federation.first)  # compiles
                _, seconds, memory = timed(
                    lambda one=act, own=federation.first: one(own), device, repeats
                )
            yield f"| {name}, a gradient, {how} | {device} | {seconds:.4f} | {memory:.1f} | | |"


def based(settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the preset under a case, of which little is left, and the settings with the names
    before the others.
    """
    base = "digit-pairs-few-shot" if "method.ways" in settings else "digit-pairs"
    return base, dict(sorted(settings.items(), key=lambda item: not item[0].endswith(".name")))


def measure(name: str, settings: Mapping[str, Any], out: Path) -> str:
    """Run one case, or read what it has left, and return its row."""
    base, names_first = based(settings)
    experiment, place = (
        Experiment.load(base, names_first),
        out / name.replace(", ", "-").replace(" ", "-"),
    )
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    done = run(experiment, place, resume=place.exists())
    took = time.perf_counter() - began
    result = done.result
    numbers = (
        f"{result['few_shot']:.1f} ± {result['few_shot_ci95']:.1f} (raw pixels "
        f"{result['few_shot_pixels']:.1f})"
        if "few_shot" in result
        else f"ZSL {result['zsl']:.1f}, H {result['gzsl_harmonic']:.1f}"
    )
    memory = f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if on_gpu else "no GPU"
    per_round = result["seconds"] / experiment.strategy.rounds
    command = " ".join(f"--set '{key}={value}'" for key, value in names_first.items())
    return f"| {name} | {numbers} | {per_round:.1f} | {took:.0f} | {memory} | `fedunseen run {base} {command}` |"


def computing(given: argparse.Namespace) -> Iterator[str]:
    """Yield the rows about devices."""
    small = {**smallest()["digit-pairs, end to end, fedzsl"][1]}
    yield from sums(*((2_000, 64, 20) if given.smallest else (1_000_000, 2_048)))
    yield from whole_runs(given.out)
    if given.smallest:
        yield from steps("digit-pairs, conv", small, 1)
    elif (given.data / "cifar100").is_dir():
        photos = {**RESNET18, "method.name": "fedzsl", "data.root": str(given.data / "cifar100")}
        yield from steps("CIFAR-100, ResNet-18", photos, 20)


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder of the data")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/gpu"), help="where the runs and the table go"
    )
    parser.add_argument(
        "--only", default="", help="the cases whose names contain this; devices: those alone"
    )
    parser.add_argument("--rounds", type=int, help="fewer rounds, to see what they take")
    parser.add_argument(
        "--smallest", action="store_true", help="embedded data, two rounds: to see that it runs"
    )
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    lines = [f"{device}, torch {torch.__version__}", ""]

    def add(line: str) -> None:
        lines.append(line)
        (given.out / "table.md").write_text(
            "\n".join(lines) + "\n", "utf-8"
        )  # what there is, after each row
        print(line, flush=True)

    if given.only in ("", "devices"):
        add(
            "| what | device | s | GPU memory, GiB | sums_sha256 | the same on all "
            "|\n|---|---|--:|--:|---|---|"
        )
        for line in computing(given):
            add(line)
        add("")
    add(
        "| | accuracy | s a round | s in this call | GPU memory | command "
        "|\n|---|---|--:|--:|--:|---|"
    )
    chosen = smallest() if given.smallest else {**few_shot(), **end_to_end(), **maps(given.data)}
    for name, (folder, settings) in chosen.items():
        if given.only not in name:
            continue
        if folder and not (given.data / folder).is_dir():
            print(f"{name}: left out, {given.data / folder} is not there", file=sys.stderr)
            continue
        placed = {**settings, **({"data.root": str(given.data / folder)} if folder else {})}
        if given.rounds:
            placed["strategy.rounds"] = given.rounds
        try:
            add(measure(name, placed, given.out))
        except FedUnseenError as error:
            add(f"| {name} | failed: {error} | | | | |")
    if any("failed: " in line or "**no**" in line for line in lines):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
