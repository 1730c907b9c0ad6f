"""What a defence's merge costs beside FedAvg's: processor time, and memory beside the updates.

A model of five million numbers in three layers, and one made-up update of each client. Each rule is
measured in processes of its own:

- **time**: the rule's merge and FedAvg's take turns on updates in memory; the ratio is of the
  medians.
- **memory**: by how much the peak of the process rises in one merge, in models, (1) with all
  updates in memory before, (2) with all of them on disk, each tensor read when it is asked for and
  forgotten after: what a server needs whose memory does not hold a round.

    python benchmarks/speed/merging.py [--clients 100] [--numbers 5000000] [--repeats 3] [--rules
    norm-clip median]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedunseen.core.files import write_text

if TYPE_CHECKING:
    import torch

    from fedunseen.strategies import Reply, Strategy

INPUTS, CLASSES = 1280, 100
RULES = (
    "fedavg", "norm-clip", "clip-noise", "robust-learning-rate", "privacy", "class-probes", "krum", "multi-krum",
    "flame", "median", "trimmed-mean", "bulyan",
)  # fmt: skip
READS = {
    "fedavg": "one update at a time, once",
    "norm-clip": "one update at a time, twice (lengths, sum)",
    "clip-noise": "one update at a time, twice",
    "robust-learning-rate": "one update at a time, twice",
    "privacy": "one update at a time, twice",
    "class-probes": "one update at a time, four times",
    "krum": "one tensor of all updates at a time",
    "multi-krum": "one tensor of all updates at a time",
    "flame": "one tensor of all updates at a time",
    "median": "one tensor of all updates at a time",
    "trimmed-mean": "one tensor of all updates at a time",
    "bulyan": "one tensor of all updates at a time",
}


def shapes(numbers: int) -> dict[str, tuple[int, ...]]:
    """Return layers whose sizes add up to about ``numbers``."""
    second = (
        int((numbers - 1300 * INPUTS) / (1300 + CLASSES))
        if numbers > 4 * 10**6
        else numbers // (2 * INPUTS)
    )
    first = 1300 if numbers > 4 * 10**6 else INPUTS // 2
    return {"0.weight": (first, INPUTS), "1.weight": (second, first), "2.weight": (CLASSES, second)}


class OnDisk(Mapping[str, "torch.Tensor"]):
    """An update in a file of float32, read tensor by tensor."""

    def __init__(self, path: Path, layers: Mapping[str, tuple[int, ...]]) -> None:
        self.path, self.layers = path, layers

    def __getitem__(self, name: str) -> torch.Tensor:
        import numpy as np
        import torch

        start = 0
        for other, shape in self.layers.items():
            count = int(np.prod(shape))
            if other == name:
                values = np.fromfile(self.path, np.float32, count, offset=4 * start)
                return torch.from_numpy(values).reshape(shape)
            start += count
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


def strategy_of(rule: str, clients: int) -> Strategy:
    """Return FedAvg with a rule around it."""
    import numpy as np
    import torch

    from fedunseen.core.registry import find
    from fedunseen.safety.defences.base import Robust, Scores
    from fedunseen.safety.privacy.client_level import PrivacySettings, Private
    from fedunseen.strategies import Pipeline
    from fedunseen.strategies.fedavg import FedAvg

    inner = FedAvg()
    if rule == "fedavg":
        return inner
    if rule == "privacy":
        settings = PrivacySettings(name="client-level", clip=1.0, noise=1.0)
        return Pipeline(inner, [Private(settings, 1.0, 1, dict.fromkeys(range(clients), 1.0), 0)])

    def scores(params: Mapping[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(torch.relu(inputs @ params["0.weight"].T) @ params["1.weight"].T)
        return hidden @ params["2.weight"].T

    def random(rng: np.random.Generator, count: int) -> torch.Tensor:
        return torch.from_numpy(rng.standard_normal((count, INPUTS), dtype=np.float32))

    held = {k: torch.tensor([k % CLASSES]) for k in range(clients)}
    kind = find("defence", rule)
    scored = Scores(scores, random, torch.arange(CLASSES), held)
    return Pipeline(inner, [Robust(kind(kind.Settings(name=rule), 0, scored))])


def make(
    clients: int, numbers: int, folder: Path | None
) -> tuple[dict[str, torch.Tensor], list[Reply]]:
    """Return a model and the replies of all clients; in ``folder``, if there is one."""
    import numpy as np
    import torch

    from fedunseen.strategies import Reply

    layers = shapes(numbers)

    total = sum(int(np.prod(shape)) for shape in layers.values())
    noise = np.random.default_rng(0).standard_normal(total, dtype=np.float32)

    def draw(client: int, size: float) -> dict[str, torch.Tensor]:
        values, start, found = torch.from_numpy(np.roll(noise, 99_991 * client)), 0, {}
        for name, shape in layers.items():
            count = int(np.prod(shape))
            found[name] = values[start : start + count].reshape(shape) * (size * shape[1] ** -0.5)
            start += count
        return found

    params = draw(0, 1.0)
    replies = []
    for k in range(clients):
        update: Mapping[str, torch.Tensor] = draw(k + 1, 0.01)
        if folder is not None:
            path = folder / str(k)
            with open(path, "wb") as file:
                for value in update.values():
                    value.numpy().tofile(file)
            update = OnDisk(path, layers)
        replies.append(Reply(k, update, 1, 1))
    return params, replies


def status(what: str) -> int:
    """Return a line of ``/proc/self/status`` in bytes."""
    text = Path("/proc/self/status").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith(f"{what}:")]
    return int(line.split()[1]) * 1024


def one(rule: str, clients: int, numbers: int, repeats: int, disk: bool) -> dict[str, Any]:
    """Measure a rule in this process."""
    with tempfile.TemporaryDirectory() as name:
        params, replies = make(clients, numbers, Path(name) if disk else None)
        strategy, plain = strategy_of(rule, clients), strategy_of("fedavg", clients)
        model = sum(value.numel() * value.element_size() for value in params.values())
        state = strategy.init(params, clients)
        ctypes.CDLL(None).malloc_trim(0)  # what making the updates has left behind
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = status("VmRSS")
        strategy.merge(state, params, replies, 0)
        added = (status("VmHWM") - before) / model
        seconds: dict[str, list[float]] = {"rule": [], "fedavg": []}
        for _ in range(0 if disk else repeats):
            for key, chosen, own in (("fedavg", plain, {}), ("rule", strategy, state)):
                start = time.process_time()
                chosen.merge(own, params, replies, 0)
                seconds[key].append(time.process_time() - start)
    return {"added": added, "numbers": model // 4, **seconds}


def main() -> None:
    """Measure every rule and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", default=100, type=int)
    parser.add_argument("--numbers", default=5_000_000, type=int)
    parser.add_argument("--repeats", default=3, type=int)
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=RULES)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--disk", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--smallest",
        action="store_true",
        help="a tiny model, all in this process: to see that it runs",
    )
    asked = parser.parse_args()
    if asked.smallest:
        asked.clients, asked.numbers, asked.repeats = 12, 5000, 1
        asked.rules = [
            rule for rule in RULES if rule != "class-probes"
        ]  # seconds, however small the model is
    if asked.one:
        print(json.dumps(one(asked.one, asked.clients, asked.numbers, asked.repeats, asked.disk)))
        return
    lines = [
        "| rule | time of a merge | times FedAvg's | memory, models | memory, updates on disk, "
        "models | reads |",
        "|---|--:|--:|--:|--:|---|",
    ]
    print("\n".join(lines), flush=True)
    for rule in asked.rules:
        found: list[dict[str, Any]] = []
        for disk in (False, True):
            if asked.smallest:
                found.append(one(rule, asked.clients, asked.numbers, asked.repeats, disk))
                continue
            command: Sequence[str] = [
                sys.executable, __file__, "--one", rule, "--clients", str(asked.clients),
                "--numbers", str(asked.numbers), "--repeats", str(asked.repeats), *(["--disk"] if disk else []),
            ]  # fmt: skip
            found.append(
                json.loads(
                    subprocess.run(command, capture_output=True, text=True, check=True).stdout
                )
            )
        mine, plain = statistics.median(found[0]["rule"]), statistics.median(found[0]["fedavg"])
        memory = " | ".join(f"{each['added']:.1f}" for each in found)
        lines.append(f"| {rule} | {mine:.2f} s | {mine / plain:.1f} | {memory} | {READS[rule]} |")
        print(lines[-1], flush=True)
    if asked.markdown:
        write_text(asked.markdown, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
