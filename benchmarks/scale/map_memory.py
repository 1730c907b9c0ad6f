"""Peak memory of a round of a method on maps, by the number of clients: it must not grow beyond one
chunk.

Each measurement is a process of its own: APN on made-up maps (256 x 7 x 7, half precision, a memory
map on disk; 20 samples a client), the clients of the round batched in chunks of at most 256 MiB.

    python benchmarks/scale/map_memory.py [--clients 5 20 80]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

SAMPLES, SHAPE, ATTRIBUTES, CLASSES, BUDGET = 20, (256, 7, 7), 40, 100, 256


def measure(clients: int) -> dict[str, float]:
    """Run one round; return the peak memory before it and of the whole process, and the maps', in
    MiB.
    """
    import numpy as np
    import torch

    from fedunseen.data import ClassSpace
    from fedunseen.encoders.backbone import Backbone
    from fedunseen.federation.in_process import InProcess
    from fedunseen.federation.worker import Execution, Worker
    from fedunseen.methods.apn import APN
    from fedunseen.strategies.fedavg import FedAvg

    rng = np.random.default_rng(0)
    names = tuple(f"class {i}" for i in range(CLASSES))
    attributes = tuple(f"attribute {i}" for i in range(ATTRIBUTES))
    space = ClassSpace(
        names, rng.random((CLASSES, ATTRIBUTES)), attributes, range(80), [0], range(80, 100)
    )
    with tempfile.TemporaryDirectory() as folder:
        maps = np.lib.format.open_memmap(
            Path(folder) / "maps.npy", "w+", np.float16, (clients * SAMPLES, *SHAPE)
        )
        for start in range(0, len(maps), 100):
            maps[start : start + 100] = rng.random(
                (min(100, len(maps) - start), *SHAPE), dtype=np.float32
            )
        maps.flush()
        inputs = torch.from_numpy(np.load(Path(folder) / "maps.npy", mmap_mode="c"))
        labels = torch.from_numpy(rng.integers(0, 80, len(maps)))
        semantics = torch.from_numpy(space.semantics).float()
        method = APN(APN.Settings(grouped=False), space, semantics, Backbone(SHAPE))
        strategy = FedAvg(local_epochs=1)
        held = [np.arange(k * SAMPLES, (k + 1) * SAMPLES) for k in range(clients)]
        worker = Worker(
            method, strategy, inputs, labels, held, 0, Execution("batched", BUDGET * 2**20)
        )
        params = method.init(rng)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        del maps
        InProcess(strategy, worker).round(0, {}, params, {}, range(clients))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "before": before / 1024,
        "peak": peak / 1024,
        "maps": clients * SAMPLES * 12544 * 2 / 2**20,
    }


def main() -> None:
    """Measure every number of clients."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", nargs="+", default=[5, 20, 80], type=int)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--smallest", action="store_true", help="two clients, in this process: to see that it runs"
    )
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.one)))
        return
    print(
        "| clients | maps on disk, MiB | peak before the round, MiB | added by the round, MiB "
        "|\n|--:|--:|--:|--:|"
    )
    for clients in [2] if asked.smallest else asked.clients:
        if asked.smallest:
            found = measure(clients)
        else:
            command = [sys.executable, __file__, "--one", str(clients)]
            found = json.loads(
                subprocess.run(command, capture_output=True, text=True, check=True).stdout
            )
        added = found["peak"] - found["before"]
        print(
            f"| {clients} | {found['maps']:.0f} | {found['before']:.0f} | {added:.0f} |", flush=True
        )


if __name__ == "__main__":
    main()
