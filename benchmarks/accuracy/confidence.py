"""How far stated probabilities, prediction sets and alarms hold on classes that no one holds.

``python benchmarks/accuracy/confidence.py DATA`` fits a classifier with its defaults, but for
``prior="balanced"``, to data sets in the xlsa17 layout, and prints for each seed: the expected
calibration error (ECE, 15 bins) of all test samples, with each class and each kind alike, of seen
and of unseen ones; the area under the risk-coverage curve; the coverage and the mean size of 90 %
sets; the share of test samples that are called unfamiliar at 1 %; and the time of ``fit`` beside
that without confidence. ``--splits N`` draws N class splits instead of the published one. ``--lda``
compares sets of seen classes with those of linear discriminant analysis. ``--shots`` shows examples
of each unseen class to the fitted model: accuracies and ECE on the other test samples. ``--adapt``
adapts it to half of the test samples, and measures on the other half.
``--parties N`` adds what follows from counts of as many parties, and from draws.

Nothing of a test sample, and no label of an unseen class, takes part in a fit.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from fedunseen import ZeroShotClassifier
from fedunseen.confidence import closed_form_folds, fit
from fedunseen.confidence.counted import fit_counts, no_counts
from fedunseen.confidence.drawn import drawn_folds
from fedunseen.confidence.own_folds import own_counts, question, scales_of
from fedunseen.core.small_cells import MIN_SAMPLES
from fedunseen.experiment import held_out

DATA_SETS = ("AWA1_LAMPERT", "CIFAR100_MBV2")
BINS = 15
COVERAGE = 0.9
ALARM = 0.01
SHOTS = (0, 1, 5, 20)
MOST = 8000  # test samples of drawn unseen classes

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


class Split(NamedTuple):
    """Samples, names of their classes, and which are for training and for tests."""

    features: NDArray[np.float32]
    labels: NDArray[np.str_]
    table: dict[str, list[float]]
    train: Ids
    test_seen: Ids
    test_unseen: Ids


def splits(folder: Path, drawn: int) -> Iterator[tuple[str, Split]]:
    """Yield the published split, or drawn ones: as many unseen classes, a fifth of the rest."""
    features = loadmat(folder / "res101.mat")
    about = loadmat(folder / "att_splits.mat")
    rows = features["features"].T.astype(np.float32)
    ids = features["labels"].ravel().astype(np.int64) - 1
    names = np.array([str(np.ravel(cell[0])[0]) for cell in about["allclasses_names"]])
    table = dict(zip(names.tolist(), about["att"].T.astype(float).tolist(), strict=True))
    places = [
        about[f"{name}_loc"].ravel().astype(np.int64) - 1
        for name in ("trainval", "test_seen", "test_unseen")
    ]
    if not drawn:
        yield "published", Split(rows, names[ids], table, *places)
    for seed in range(drawn):
        rng = np.random.default_rng(100 + seed)
        unseen = rng.choice(len(names), len(np.unique(ids[places[2]])), replace=False)
        tests = np.flatnonzero(np.isin(ids, unseen))
        rest = rng.permutation(np.flatnonzero(~np.isin(ids, unseen)))
        tests = rng.permutation(tests)[:MOST]
        cut = len(rest) // 5
        yield f"drawn {seed}", Split(rows, names[ids], table, rest[cut:], rest[:cut], tests)


def calibration_error(confidence: Floats, right: NDArray[np.bool_], weights: Floats) -> float:
    """Return the expected calibration error of answers with weights."""
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, weights * (confidence - right), BINS)
    return float(np.abs(gaps).sum() / weights.sum())


def risk_coverage(confidence: Floats, right: NDArray[np.bool_]) -> float:
    """Return the area under the risk-coverage curve."""
    wrong = ~right[np.argsort(-confidence, kind="stable")]
    return float((wrong.cumsum() / np.arange(1, len(wrong) + 1)).mean())


def alike(labels: NDArray[np.str_], unseen: NDArray[np.bool_]) -> Floats:
    """Return weights by which each class of a kind, and each kind, weighs the same."""
    weights = np.zeros(len(labels))
    for kind in (True, False):
        mine = unseen == kind
        _, places, counts = np.unique(labels[mine], return_inverse=True, return_counts=True)
        weights[mine] = 0.5 / (len(counts) * counts[places])
    return weights


def measured(split: Split, seed: int) -> dict[str, float]:
    """Return the numbers of one split."""
    started = time.process_time()
    model = ZeroShotClassifier(prior="balanced", random_state=seed)
    model.fit(split.features[split.train], split.labels[split.train], classes=split.table)
    seconds = time.process_time() - started
    return {**numbers(model, split), "fit, CPU s": seconds}


def between(parties: int, split: Split, seed: int) -> dict[str, float]:
    """Return the numbers of one split, and those of counts that parties with classes of their own
    make, and of draws.
    """
    asked: dict[str, Any] = {}

    def noted(*given: Any, **named: Any) -> Any:
        names = ("method", "model", "sums", "inputs", "labels", "train")
        asked.update(zip(names, given, strict=True), **named)
        return closed_form_folds(*given, **named)

    held_out.closed_form_folds = noted
    model = ZeroShotClassifier(prior="balanced", random_state=seed)
    model.fit(split.features[split.train], split.labels[split.train], classes=split.table)
    found = numbers(model, split)
    method = asked["method"]
    sums = asked["sums"]
    offset = model.calibration_ + method.own_offset(asked["model"])
    drawn = fit(drawn_folds(method, asked["model"], sums, asked["seed"]), offset)
    scales = scales_of(method, asked["model"], sums)
    method.settings = method.settings.model_copy(update={"min_samples": MIN_SAMPLES})
    classes = asked["labels"].numpy()[asked["train"]]
    total = no_counts(len(method.space.names))
    dealt = np.random.default_rng(0).permutation(np.unique(classes))
    for own in np.array_split(dealt, parties):
        mine = asked["train"][np.isin(classes, own)]
        told = question(sums, scales, offset)
        more = own_counts(method, told, asked["inputs"], asked["labels"], mine, asked["seed"])
        total = {name: value + more[name] for name, value in total.items()}
    counted = fit_counts(total, scales, 0.5, method.width)
    for way, sure in (("counts", counted), ("draws", drawn)):
        model._model = replace(model._model, confidence=sure)
        found |= {f"{way}: {name}": value for name, value in numbers(model, split).items()}
    return found


def numbers(model: ZeroShotClassifier, split: Split) -> dict[str, float]:
    """Return what a model's stated probabilities, sets and alarms are worth."""
    tests = np.concatenate([split.test_seen, split.test_unseen])
    rows = split.features[tests]
    labels = split.labels[tests]
    unseen = np.arange(len(tests)) >= len(split.test_seen)
    probabilities = model.predict_proba(rows)
    confidence = probabilities.max(1)
    right = model.classes_[probabilities.argmax(1)] == labels
    sets = model.predict_set(rows, coverage=COVERAGE)
    held = sets[np.arange(len(tests)), np.searchsorted(model.classes_, labels)]
    finds = model._model.finds_unfamiliar
    alarms = model.unfamiliar(rows) <= ALARM if finds else np.zeros(len(tests), dtype=bool)
    weights = alike(labels, unseen)
    ones = np.ones(len(tests))
    return {
        "ECE": calibration_error(confidence, right, ones),
        "alike": calibration_error(confidence, right, weights),
        "ECE seen": calibration_error(confidence[~unseen], right[~unseen], ones[~unseen]),
        "ECE unseen": calibration_error(confidence[unseen], right[unseen], ones[unseen]),
        "AURC": risk_coverage(confidence, right),
        "right": float(right.mean()),
        "stated": float(confidence.mean()),
        "in set, seen": 2 * float(weights[~unseen] @ held[~unseen]),
        "in set, unseen": 2 * float(weights[unseen] @ held[unseen]),
        "labels": float(sets.sum(1).mean()),
        "alarms, seen": float(alarms[~unseen].mean()),
        "alarms, unseen": float(alarms[unseen].mean()),
    }


def beside_lda(split: Split, seed: int) -> dict[str, float]:
    """Return coverage and mean size of sets among seen classes, ours and LDA's, both with a fifth
    of the training samples held out.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(split.train)
    held, fitted = np.split(order, [len(order) // 5])
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    lda.fit(split.features[fitted], split.labels[fitted])
    column = np.searchsorted(lda.classes_, split.labels[held])
    levels = np.sort(lda.predict_proba(split.features[held])[np.arange(len(held)), column])
    lowest = levels[int((1 - COVERAGE * (len(held) + 1) / len(held)) * len(held))]
    rows = split.features[split.test_seen]
    labels = split.labels[split.test_seen]
    theirs = lda.predict_proba(rows) >= lowest
    model = ZeroShotClassifier(prior="balanced", random_state=seed)
    seen = {name: split.table[name] for name in lda.classes_.tolist()}
    model.fit(split.features[split.train], split.labels[split.train], classes=seen)
    ours = model.predict_set(rows, coverage=COVERAGE)
    place = np.searchsorted(lda.classes_, labels)
    every = np.arange(len(labels))
    return {
        "LDA: in set": float(theirs[every, place].mean()),
        "LDA: labels": float(theirs.sum(1).mean()),
        "ours: in set": float(ours[every, place].mean()),
        "ours: labels": float(ours.sum(1).mean()),
    }


def shown(split: Split, seed: int) -> dict[str, float]:
    """Return accuracies and ECE after examples of each unseen class, for two priors, and the
    harmonic mean without what raises the scores of shown classes.
    """
    numbers = {}
    for prior in ("balanced", "auto"):
        model = ZeroShotClassifier(prior=prior, random_state=seed)
        model.fit(split.features[split.train], split.labels[split.train], classes=split.table)
        for count in SHOTS:
            rng = np.random.default_rng(seed)
            places = {
                name: rng.choice(
                    split.test_unseen[split.labels[split.test_unseen] == name], count, False
                )
                for name in np.unique(split.labels[split.test_unseen])
            }
            examples = {str(name): split.features[some] for name, some in places.items()}
            learned = model.learn(examples=examples) if count else model
            used = np.concatenate(list(places.values()))
            tests = np.setdiff1d(np.concatenate([split.test_seen, split.test_unseen]), used)
            numbers |= {
                f"{prior}, {count}: {name}": value
                for name, value in answered(learned, split, tests).items()
            }
    return numbers


def adapted(split: Split, seed: int) -> dict[str, float]:
    """Return accuracies and ECE before and after adapting to half of the test samples, on the
    other half; and after it with the confidence of before.
    """
    model = ZeroShotClassifier(prior="balanced", random_state=seed)
    model.fit(split.features[split.train], split.labels[split.train], classes=split.table)
    order = np.random.default_rng(seed).permutation(
        np.concatenate([split.test_seen, split.test_unseen])
    )
    pool, tests = np.array_split(order, 2)
    changed = model.adapt(split.features[pool])
    surer = copy(changed)
    surer._model = replace(changed._model, confidence=model._model.confidence)
    cases = {"before": model, "after": changed, "with the confidence of before": surer}
    return {
        f"{what}: {name}": value
        for what, one in cases.items()
        for name, value in answered(one, split, tests).items()
    }


def answered(model: ZeroShotClassifier, split: Split, tests: Ids) -> dict[str, float]:
    """Return U, S, H, the accuracy over all classes, what is stated on average, and ECE."""
    labels = split.labels[tests]
    rows = split.features[tests]
    stated = model.predict_proba(rows)
    right = model.classes_[stated.argmax(1)] == labels
    unseen = np.isin(tests, split.test_unseen)
    u, s = of_kinds(right, labels, unseen)
    _, columns, counts = np.unique(labels, return_inverse=True, return_counts=True)
    raised = model._model.params.get("raised")
    plain = model.scores(rows) - (0.0 if raised is None else raised.numpy())
    before = of_kinds(model.classes_[plain.argmax(1)] == labels, labels, unseen)
    return {
        "U": u,
        "S": s,
        "H": 2 * u * s / max(u + s, 1e-9),
        "H, not raised": 2 * before[0] * before[1] / max(sum(before), 1e-9),
        "all": float((right / counts[columns]).sum() / len(counts)),
        "stated": float(stated.max(1).mean()),
        "right": float(right.mean()),
        "ECE": calibration_error(stated.max(1), right, np.ones(len(tests))),
    }


def of_kinds(
    right: NDArray[np.bool_], labels: NDArray[np.str_], unseen: NDArray[np.bool_]
) -> tuple[float, float]:
    """Return U and S: the share of right answers, each class weighing the same."""
    weights = alike(labels, unseen)
    return 2 * float(weights[unseen] @ right[unseen]), 2 * float(weights[~unseen] @ right[~unseen])


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print the median of each number, and its range."""
    print(f"\n{title}, {len(rows)} runs: median (lowest to highest)")
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"  {name:36} {np.median(values):8.3f}  ({min(values):.3f} to {max(values):.3f})")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "data", type=Path, nargs="?", help="a folder of data sets, as xlsa17 has it"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--splits", type=int, default=0, help="draw class splits, one a seed")
    parser.add_argument("--lda", action="store_true")
    parser.add_argument("--parties", type=int, default=0, help="that count answers")
    parser.add_argument("--shots", action="store_true")
    parser.add_argument("--adapt", action="store_true")
    parser.add_argument("--only", default=",".join(DATA_SETS))
    parser.add_argument("--smallest", action="store_true", help="made-up data, one seed")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    ways = {"lda": beside_lda, "shots": shown, "adapt": adapted}
    measure = next((way for name, way in ways.items() if getattr(chosen, name)), measured)
    measure = partial(between, chosen.parties) if chosen.parties else measure
    if chosen.smallest:
        show("made up", [measure(made_up(), 0)])
        return
    for name in chosen.only.split(","):
        found = splits(chosen.data / name, chosen.splits)
        if chosen.splits:
            show(name, [measure(split, seed) for seed, (_, split) in enumerate(found)])
        else:
            split = next(found)[1]
            show(name, [measure(split, seed) for seed in range(chosen.seeds)])


def made_up() -> Split:
    """Return classes around prototypes that their descriptions tell of."""
    rng = np.random.default_rng(0)
    described = rng.standard_normal((16, 5))
    names = np.array([f"class {c:02}" for c in range(16)])
    ids = np.repeat(np.arange(16), 30)
    rows = described @ rng.standard_normal((5, 12)) + 0.0
    features = (rows[ids] + rng.standard_normal((480, 12))).astype(np.float32)
    seen = np.flatnonzero(ids < 12)
    table = dict(zip(names.tolist(), described.tolist(), strict=True))
    return Split(
        features,
        names[ids],
        table,
        seen[seen % 3 > 0],
        seen[seen % 3 == 0],
        np.flatnonzero(ids >= 12),
    )


if __name__ == "__main__":
    main()
