"""Many classes: processor seconds and memory of the classifier, beside linear discriminant analysis.

    python benchmarks/scale/many_classes.py [--classes 100 1000 10000] [--alone 1000 5000]
                                            [--candidates 100000]

Features of 64 numbers, five samples of each class, one thread, each row in a process of its own.
``--classes``: described by 32 attributes, and a tenth as many unseen ones. ``--alone``: without a
table, beside scikit-learn's LDA (``lsqr``, shrinkage chosen). ``--candidates``: 200 samples are
scored for so many classes that are described afterwards, by a model of 1,000. Samples are of the
benchmark's own making, and easy: the accuracy says that the answers are right, and no more.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
import warnings

import numpy as np
from numpy.typing import NDArray

WIDTH = 64
ATTRIBUTES = 32
SAMPLES = 5  # of a class
ASKED = 200


def main() -> None:
    """Print a row for each number of classes, or, in a process of its own, one row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", type=int, nargs="*", default=[100, 1000, 10_000])
    parser.add_argument("--alone", type=int, nargs="*", default=[1000, 5000])
    parser.add_argument("--candidates", type=int, nargs="*", default=[100_000])
    parser.add_argument("--smallest", action="store_true", help="20 classes")
    parser.add_argument("--row", nargs=2, metavar=("KIND", "CLASSES"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.row:
        warnings.simplefilter("ignore")
        print(row(chosen.row[0], int(chosen.row[1])), flush=True)
        return
    wanted = {"table": chosen.classes, "alone": chosen.alone, "candidates": chosen.candidates}
    if chosen.smallest:
        wanted = {kind: [20] for kind in wanted}
    print("| classes | | samples | CPU-seconds of fit | LDA | of scoring 200 | peak MiB | right |")
    print("|--:|---|--:|--:|--:|--:|--:|--:|", flush=True)
    for kind, numbers in wanted.items():
        for classes in numbers:
            words = [sys.executable, __file__, "--row", kind, str(classes)]
            subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)


def row(kind: str, classes: int) -> str:
    """Fit and score, and return the row of a table."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    from fedunseen import ZeroShotClassifier

    described = classes + classes // 10 if kind == "table" else classes
    fitted = min(classes, 1000) if kind == "candidates" else classes
    rng = np.random.default_rng(0)
    table = rng.normal(size=(described, ATTRIBUTES))
    mixing = rng.normal(size=(ATTRIBUTES, WIDTH))
    names = np.array([f"class {c:06}" for c in range(described)])

    def samples(of: NDArray[np.int64]) -> NDArray[np.float32]:
        noise = 3 * rng.normal(size=(len(of), WIDTH))
        return (table[of] @ mixing + noise).astype(np.float32)

    labels = np.arange(SAMPLES * fitted) % fitted
    x = samples(labels)
    test = rng.integers(0, described if kind == "candidates" else classes, ASKED)
    asked = samples(test)
    known = dict(zip(names[: described if kind == "table" else fitted], table, strict=False))
    ZeroShotClassifier().fit(x[:20, :4], labels[:20] % 4)  # what is imported or built once
    before = time.process_time()
    model = ZeroShotClassifier().fit(x, names[labels], classes=None if kind == "alone" else known)
    fit = time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    later = dict(zip(names, table, strict=True)) if kind == "candidates" else None
    before = time.process_time()
    answers = model.predict(asked, classes=later)
    scoring = time.process_time() - before
    if later is not None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lda = ""
    if kind == "alone":
        before = time.process_time()
        LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(x, labels)
        lda = f"{time.process_time() - before:.2f}"
    right = (answers == names[test]).mean()
    what = {"table": "described", "alone": "without a table", "candidates": "scored"}[kind]
    return (
        f"| {classes:,} | {what} | {len(x):,} | {fit:.2f} | {lda} | {scoring:.2f} | {peak:.0f} | "
        f"{right:.2f} |"
    )


if __name__ == "__main__":
    main()
