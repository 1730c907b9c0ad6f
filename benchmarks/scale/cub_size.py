"""Time and memory of a run of CUB's size: ``fedunseen run cub-fedzsl`` in a process of its own.

The features are made up (CUB's may not be passed on) but have CUB's shape: 7,057 training, 1,764
and 2,967 test samples of 2,048 numbers, 200 classes of which 50 unseen, 312 attributes. They are a
random linear image of the class's attributes with noise on top, so that there is something to
learn. The attributes are CUB's own where ``$FEDUNSEEN_DATA/xlsa17_splits_only/CUB`` has them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.io
from numpy.typing import NDArray


@dataclass(frozen=True)
class Shape:
    """The size of a data set."""

    train: int
    test_seen: int
    test_unseen: int
    classes: int
    unseen: int
    validation: int
    attributes: int
    width: int


CUB = Shape(7057, 1764, 2967, 200, 50, 50, 312, 2048)
SMALLEST = Shape(100, 40, 20, 30, 6, 4, 20, 5)
ALLOWED = 2 * 2**30
"""Bytes that a run may take beside its data."""


def attributes(shape: Shape, rng: np.random.Generator) -> tuple[NDArray[np.float64], str]:
    """Return (attributes, classes), a column a class, and where they are from."""
    data = Path(os.environ.get("FEDUNSEEN_DATA", "../shared/data"))
    genuine = data / "xlsa17_splits_only" / "CUB" / "att_splits.mat"
    if shape == CUB and genuine.is_file():
        return scipy.io.loadmat(genuine)["att"], "CUB's attributes"
    size = (shape.attributes, shape.classes)
    values = rng.random(size) * (rng.random(size) < 0.3)
    return values / np.linalg.norm(values, axis=0), "random attributes"


def write_data(root: Path, shape: Shape = CUB) -> tuple[int, str]:
    """Write the folder ``CUB`` in the xlsa17 layout; return the bytes of its features and what they
    are made of.
    """
    rng = np.random.default_rng(0)
    att, source = attributes(shape, rng)
    classes = rng.permutation(shape.classes)
    unseen, seen = classes[: shape.unseen], classes[shape.unseen :]
    # Every class has samples in each split that it belongs to; the rest fall at random.
    labels = np.concatenate(
        [np.concatenate([own, rng.choice(own, count - len(own))])
         for own, count in ((seen, shape.train), (seen, shape.test_seen), (unseen, shape.test_unseen))]
    )  # fmt: skip
    centred = att - att.mean(1, keepdims=True)
    signal = (rng.standard_normal((shape.width, shape.attributes)) @ centred).astype(np.float32)
    noise = rng.standard_normal((shape.width, len(labels)), dtype=np.float32)
    features = np.maximum(signal[:, labels] / signal.std() + 2 * noise, 0)
    ids = np.arange(1, len(labels) + 1)
    train, test_seen, test_unseen = np.split(ids, [shape.train, shape.train + shape.test_seen])
    validation = np.isin(labels[: shape.train], seen[: shape.validation])
    names = np.empty((shape.classes, 1), dtype=object)
    names[:, 0] = [f"{i + 1:03d}.class" for i in range(shape.classes)]
    folder = root / "CUB"
    folder.mkdir(parents=True)
    scipy.io.savemat(folder / "res101.mat", {"features": features, "labels": labels[:, None] + 1})
    splits = {"trainval_loc": train, "test_seen_loc": test_seen, "test_unseen_loc": test_unseen}
    splits |= {"train_loc": train[~validation], "val_loc": train[validation]}
    columns = {name: value[:, None] for name, value in splits.items()}
    scipy.io.savemat(
        folder / "att_splits.mat",
        {"att": att, "original_att": att, "allclasses_names": names, **columns},
    )
    return features.nbytes, source


def run(root: Path, out: Path, selection: str, rounds: int) -> tuple[dict[str, float], int]:
    """Run the preset; return its numbers and the greatest peak of memory of any process so far, in
    bytes.
    """
    command = [sys.executable, "-m", "fedunseen", "run", "cub-fedzsl", "--json", "--out", str(out)]
    for setting in (
        f"data.root={root}",
        f"evaluation.selection={selection}",
        f"strategy.rounds={rounds}",
    ):
        command += ["--set", setting]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return json.loads(done.stdout.splitlines()[-1]), peak * (
        1 if sys.platform == "darwin" else 1024
    )


def main() -> int:
    """Run, print and say whether memory stays within its bound."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=50, help="communication rounds [50]")
    parser.add_argument(
        "--selection",
        nargs="+",
        default=["last", "validation"],
        help="evaluation.selection of each run",
    )
    parser.add_argument(
        "--smallest", action="store_true", help="one round on little data: to see that it runs"
    )
    args = parser.parse_args()
    if args.smallest:
        args.rounds, args.selection = 1, ["last"]
    exceeded = False
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        data, source = write_data(root, SMALLEST if args.smallest else CUB)
        print(f"made features, {source}: {data / 2**20:.0f} MiB of data, {os.cpu_count()} cores")
        print(
            "| selection | seconds | seconds a round | peak memory (so far) | data + 2 GiB | ZSL | "
            "H |\n" + "|---" * 7 + "|"
        )
        for selection in args.selection:
            result, peak = run(root, root / f"run-{selection}", selection, args.rounds)
            print(
                f"| {selection} | {result['seconds']:.1f} | {result['seconds'] / args.rounds:.2f} "
                f"| {peak / 2**20:.0f} MiB | {(data + ALLOWED) / 2**20:.0f} MiB "
                f"| {result['zsl']:.1f} | {result['gzsl_harmonic']:.1f} |",
                flush=True,
            )
            exceeded |= peak > data + ALLOWED
    if exceeded:
        print("EXCEEDED: peak memory is more than the data and 2 GiB", file=sys.stderr)
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
