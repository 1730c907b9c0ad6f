"""Compare ``partial_fit`` on ten batches with ``fit`` on all samples.

    python benchmarks/accuracy/batches.py --root FOLDER_WITH_XLSA17

Rows are data sets and scalings; two orders of samples for each. ``--smallest`` takes pairs of
digits.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np

from fedunseen import Benchmark, Experiment, ZeroShotClassifier
from fedunseen.experiment.assemble import load_data
from fedunseen.metrics import harmonic_mean

SETS = ("AWA1_LAMPERT", "CIFAR100_MBV2")
BATCHES = 10


def row(data: Benchmark, what: str, classifier: ZeroShotClassifier) -> str:
    """Return a row of the table: accuracies in percent, averaged over classes."""
    tests = np.r_[data.test_unseen, data.test_seen]
    labels = data.labels[tests]
    scores = classifier.scores(data.features[tests])
    scores = scores[:, classifier.ids(list(data.space.names))]
    seen = np.isin(np.arange(len(data.space.names)), data.space.seen)
    answers = scores.argmax(1)
    among = np.where(seen, -np.inf, scores).argmax(1)

    def mean(right: np.ndarray, classes: np.ndarray) -> float:
        return 100 * float(np.mean([right[labels == c].mean() for c in classes]))

    unseen = np.unique(data.labels[data.test_unseen])
    held = np.unique(data.labels[data.test_seen])
    zsl = mean(among == labels, unseen)
    u, s = mean(answers == labels, unseen), mean(answers == labels, held)
    return f"| {what} | {zsl:.1f} | {u:.1f} | {s:.1f} | {harmonic_mean(u, s):.1f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, help="the folder that holds the xlsa17 data sets")
    parser.add_argument("--smallest", action="store_true", help="pairs of digits alone")
    given = parser.parse_args()
    if not given.smallest and (given.root is None or not given.root.is_dir()):
        print("skipped: --root names no folder")
        return
    warnings.simplefilter("ignore")
    print("| data, scaling, training | ZSL | U | S | H |\n|---|--:|--:|--:|--:|", flush=True)
    for name in ("digits",) if given.smallest else SETS:
        place = {"data.dataset": name, "data.root": str(given.root)}
        experiment = (
            Experiment.load("digit-pairs-gaussian", {"data.train_per_class": 10})
            if given.smallest
            else Experiment.load("awa1-gaussian", place)
        )
        data = load_data(experiment, 0)
        names = np.array(data.space.names)
        table = dict(zip(data.space.names, data.space.semantics.tolist(), strict=True))
        for steps in (("l2",), None):
            how = f"{name}, {'as it is' if steps is None else 'unit length'}"
            settings = {"features": steps, "prior": "balanced"}
            fitted = ZeroShotClassifier(**settings)
            train = data.train
            fitted.fit(data.features[train], names[data.labels[train]], classes=table)
            print(row(data, f"{how}, `fit`", fitted), flush=True)
            for seed in range(2):
                order = np.random.default_rng(seed).permutation(train)
                model = ZeroShotClassifier(**settings)
                for some in np.array_split(order, BATCHES):
                    model.partial_fit(data.features[some], names[data.labels[some]], classes=table)
                print(row(data, f"{how}, `partial_fit`, order {seed}", model), flush=True)


if __name__ == "__main__":
    main()
