"""Compare frozen encoders on photos: new classes by their names, and by one example each
(docs/research/own-data.md).

``python benchmarks/accuracy/encoders.py DATA`` takes 1,200 photos of CIFAR-100 from ``DATA/cifar100``, and
MobileNetV2 from ``DATA/mobilenet_v2``. ESZSL answers among the unseen classes; its two exponents
are chosen on validation classes. Few-shot: 600 episodes of five unseen classes, one example each,
the nearest by cosine. The processor's seconds are those of encoding all photos; with
``OMP_NUM_THREADS=1`` on one thread.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen import Experiment, run
from fedunseen.data.episodes import Size, draw_episodes
from fedunseen.experiment.assemble import load_data
from fedunseen.metrics import confidence
from own_data import smallest

SCALING = {"features": ["centre", "l2"], "semantics": ["centre", "l2"]}
EXPONENTS = [-2, -1, 0, 1, 2]
LITE = {"name": "efficientnet-lite"}


def main() -> None:
    """Ask for the data, and print a row for each encoder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, nargs="?", help="with cifar100 and mobilenet_v2")
    parser.add_argument(
        "--smallest", action="store_true", help="twelve pictures, to see that it runs"
    )
    args = parser.parse_args()
    if (args.data is None) != args.smallest:
        parser.error("name the folder with the data, or --smallest")
    print("| encoder | ESZSL, ZSL % | 5-way 1-shot % | processor seconds |\n|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDUNSEEN_CACHE"] = (
            folder  # or what an earlier call has encoded would cost nothing
        )
        if args.smallest:
            smallest(Path(folder))
            data: dict[str, Any] = {"name": "images", "root": str(Path(folder) / "smallest")}
            print(row("EfficientNet-Lite0", data, LITE, Path(folder), [0], ways=2), flush=True)
            return
        photos = {"root": str(args.data / "cifar100"), "train_per_class": 10, "test_per_class": 2}
        mobile = args.data / "mobilenet_v2" / "tf2_mobilenet_v2_1.0_224_ptq.tflite"
        for name, encoder in {
            "MobileNetV2 (`tflite`, quantised)": {
                "name": "tflite",
                "model": str(mobile),
                "resize": "bicubic",
            },
            "**EfficientNet-Lite0**": LITE,
            "the same, bilinear resize": {**LITE, "resize": "bilinear"},
            "EfficientNet-Lite2": {**LITE, "variant": "lite2"},
        }.items():
            print(
                row(name, {"name": "cifar100", **photos}, encoder, Path(folder), EXPONENTS),
                flush=True,
            )


def row(
    name: str,
    data: Mapping[str, Any],
    encoder: Mapping[str, Any],
    folder: Path,
    exponents: list[int],
    ways: int = 5,
) -> str:
    """Encode the photos, and return the encoder's row of the table."""
    tree: dict[str, Any] = {
        "name": "encoders",
        "data": {**data, **SCALING},
        "encoder": dict(encoder),
        "partition": {"kind": "iid", "clients": 1},
        "method": {"name": "eszsl"},
        "strategy": {"name": "fedavg", "rounds": 1},
        "evaluation": {"clients": False, "theory": False, "embedding": False},
    }
    if len(exponents) > 1:
        tree["evaluation"]["choose"] = {
            "method.log_gamma": exponents,
            "method.log_lambda": exponents,
        }
    experiment = Experiment.from_dict(tree)
    begin = time.process_time()
    benchmark = load_data(experiment, seed=0)
    seconds = time.process_time() - begin
    result = run(experiment, Path(tempfile.mkdtemp(dir=folder)) / "run").result
    mine = (
        benchmark.test_unseen if ways == 5 else np.arange(len(benchmark.labels))
    )  # of the smallest, one is unseen
    accuracy, half = one_shot(benchmark.features[mine], benchmark.labels[mine], ways)
    return f"| {name} | {result['zsl']:.1f} | {accuracy:.1f} ± {half:.1f} | {seconds:.0f} |"


def one_shot(maps: NDArray[Any], labels: NDArray[np.int64], ways: int) -> tuple[float, float]:
    """Return accuracy in percent and half of its 95 % interval over 600 episodes, with up to 15
    queries a class.
    """
    features = maps.reshape(len(maps), -1).astype(np.float64)
    features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-300)
    queries = min(15, int(np.bincount(labels).max()) - 1)
    index = draw_episodes(labels, 600, Size(ways, 1, queries), np.random.default_rng(0)).index
    near = np.einsum("end,ewqd->ewqn", features[index[:, :, 0]], features[index[:, :, 1:]])
    right = near.argmax(-1) == np.arange(ways)[:, None]
    return confidence(100 * right.mean(axis=(1, 2)))


if __name__ == "__main__":
    sys.exit(main())
