"""Measure the memory that the classifiers on synthetic features take at SUN's size: 717 classes, 400 features of each.

``python benchmarks/synthesis_memory.py --hidden 1024``

Prints the size of all synthetic features, and by how much the peak of resident memory that is not a file's rises.
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path

import numpy as np
import torch

from fedunseen.data import ClassSpace
from fedunseen.encoders.backbone import Backbone
from fedunseen.methods import Candidates
from fedunseen.methods.clswgan import CLSWGAN


def own_memory() -> int:
    """Return the bytes of memory that no file stands behind (RssAnon, Linux)."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("RssAnon"):
            return 1024 * int(line.split()[1])
    raise SystemExit("/proc/self/status has no RssAnon: this needs Linux")


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=717)
    parser.add_argument("--unseen", type=int, default=72)
    parser.add_argument("--count", type=int, default=400, help="features of a class")
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--smallest", action="store_true", help="made as small as can be: to see that it runs")
    args = parser.parse_args()
    if args.smallest:
        args.classes, args.unseen, args.count, args.hidden = 6, 2, 3, 8
    rng = np.random.default_rng(0)
    semantics = rng.uniform(size=(args.classes, 102))
    names = tuple(f"class {i}" for i in range(args.classes))
    seen = args.classes - args.unseen
    columns = tuple(f"attribute {i}" for i in range(102))
    space = ClassSpace(names, semantics, columns, range(seen), [], range(seen, args.classes))
    settings = CLSWGAN.Settings(hidden=args.hidden, synthetic=args.count, head_epochs=1)
    method = CLSWGAN(settings, space, torch.from_numpy(semantics).float(), Backbone((2048,)))
    params = method.init(rng)
    peak, before, done = [0], own_memory(), threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    method.fit_heads(params, Candidates(names, method.semantics, space.seen, space.unseen), 0)
    done.set()
    watcher.join()
    everything = 4 * 2048 * args.classes * args.count
    print(
        f"{args.classes} classes x {args.count} features: {everything / 2**20:.0f} MiB of features, "
        f"own memory +{(peak[0] - before) / 2**20:.0f} MiB, {time.perf_counter() - started:.0f} s"
    )


if __name__ == "__main__":
    main()
