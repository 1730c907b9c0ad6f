"""Other people's learners beside ours: the tables of docs/research/peers.md.

    python benchmarks/accuracy/peers.py [PART] [--root FOLDER_WITH_XLSA17] [--data NAME] [--smallest]

    seen     one-round federated learners, all classes with samples, ten parties without a shared class
    unseen   zero-shot learners with all data in one place, on the published splits
    pool     updates by unlabelled samples

Settings are chosen on a fifth of the training samples (seen), or on validation classes (unseen and
pool), by the same number of tries where there is something to choose.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from closed_form import SETS, load, made
from fedunseen.core.parameters import Params, size_in_bytes
from fedunseen.data import Benchmark, ClassSpace, Scaler, fit_semantics
from fedunseen.data.scaling import Quantization
from fedunseen.encoders.backbone import Backbone
from fedunseen.methods.closed_form.eszsl import ESZSL
from fedunseen.methods.closed_form.gaussian import Gaussian
from fedunseen.methods.closed_form.sae import SAE
from fedunseen.methods.closed_form.statistics import add, dequantized
from fedunseen.methods.closed_form.unlabelled import adapt
from fedunseen.metrics import accuracies, answers_of, best_offset
from fedunseen.partitions import dirichlet, pccd
from fedunseen.research.papers.conditions import halves
from fedunseen.research.peers import one_round, transductive, zero_shot

Rows = NDArray[Any]
PARTIES = 10
SHRINKAGES = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7)
RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0)


def mean_accuracy(labels: Rows, named: Rows) -> float:
    """Return the mean over classes of the share of right answers, in percent."""
    return 100 * float(np.mean([(named[labels == c] == c).mean() for c in np.unique(labels)]))


# All classes have samples


def of_all_classes(root: Path, name: str, smallest: bool) -> tuple[Rows, Rows]:
    """Return features (n, d), divided by their mean length, and labels (n,)."""
    if name == "digits":
        x, y = load_digits(return_X_y=True)
    else:
        benchmark = load(root, name)
        x = benchmark.features
        y = benchmark.labels
    if smallest:
        x = x[::20]
        y = y[::20]
    x = np.asarray(x, dtype=np.float64)
    return x / np.sqrt((x**2).sum(1).mean()), y


def split(labels: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    """Return the positions of a share of each class's samples, and of the others."""
    rng = np.random.default_rng(seed)
    held: list[int] = []
    for c in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == c))
        held += rows[: max(1, int(share * len(rows)))].tolist()
    return np.array(sorted(held)), np.setdiff1d(np.arange(len(labels)), held)


def peers(width: int, smallest: bool) -> dict[str, list[one_round.Peer]]:
    """Return the candidates of each row, between which held-out training samples choose."""
    few = slice(0, 2 if smallest else None)
    heads = one_round.GaussianHeads
    random = min(512, 8 * width) if smallest else 2048
    project = 256 if width > 600 else 0
    return {
        "AFL": [one_round.AFL()],
        "FedCGS": [one_round.FedCGS()],
        "Fed3R": [one_round.Fed3R(ridge) for ridge in RIDGES[few]],
        f"Fed3R, {random} random features": [
            one_round.Fed3R(ridge, random, scale)
            for ridge in (1e-2, 1e-1, 1.0)[few]
            for scale in (0.35, 0.7)
        ],
        "GH-OFL, naive Bayes": [heads("naive", s) for s in SHRINKAGES[few]],
        "GH-OFL, linear": [heads("linear", s) for s in SHRINKAGES[few]],
        f"GH-OFL, quadratic{f', {project} of {width} directions' if project else ''}": [
            heads("quadratic", s, project) for s in SHRINKAGES[few]
        ],
    }


def fitted(
    peer: one_round.Peer, x: Rows, y: Rows, parties: Sequence[Rows], classes: int
) -> tuple[one_round.Scores, int, list[float]]:
    """Return the scores, the bytes that a party sends on average, and seconds of parties and
    server.
    """
    begun = time.process_time()
    messages = [peer.message(x[rows], y[rows], classes) for rows in parties]
    sent = time.process_time()
    scores = peer.merge(messages)
    seconds = [(sent - begun) / len(parties), time.process_time() - sent]
    return scores, int(np.mean([one_round.size(one) for one in messages])), seconds


def print_seen(root: Path, names: Sequence[str], seeds: int, smallest: bool) -> None:
    """Print the table of one-round learners."""
    heads = ["data", "learner", "accuracy, %", "bytes of a party", "seconds: party, server"]
    heads += ["another partition: scores differ by", "answers that differ"]
    print(f"| {' | '.join(heads)} |\n|---|---|--:|--:|--:|--:|--:|")
    for name in names:
        x, y = of_all_classes(root, name, smallest)
        classes = int(y.max()) + 1
        ours = {"gaussian": ("l2",), "gaussian, 1024 features of a kernel": ("kernel",)}
        rows: dict[str, list[Any]] = {label: [] for label in (*ours, *peers(x.shape[1], smallest))}
        for seed in range(seeds):
            test, train = split(y, 0.2, seed)
            parts = [one(y[train], PARTIES, seed) for one in (pccd, dirichlet)]
            for label, steps in ours.items():
                rows[label].append(_ours(x, y, train, test, parts, steps))
            held, rest = split(y[train], 0.2, seed)
            for label, candidates in peers(x.shape[1], smallest).items():
                best = candidates[0]
                if len(candidates) > 1:
                    scored = [
                        mean_accuracy(
                            y[train][held],
                            one.merge([one.message(x[train][rest], y[train][rest], classes)])(
                                x[train][held]
                            ).argmax(1),
                        )
                        for one in candidates
                    ]
                    best = candidates[int(np.argmax(scored))]
                found = [fitted(best, x[train], y[train], part, classes) for part in parts]
                scores = [one[0](x[test]) for one in found]
                rows[label].append((scores, y[test], found[0][1], found[0][2], ""))
        for label, measured in rows.items():
            print(_seen_line(name, label, measured), flush=True)


def _seen_line(name: str, label: str, measured: Sequence[Any]) -> str:
    right = [mean_accuracy(labels, scores[0].argmax(1)) for scores, labels, *_ in measured]
    apart = [
        float(np.abs(scores[0] - scores[1]).max() / np.abs(scores[0]).max())
        for scores, *_ in measured
    ]
    other = [int((s[0].argmax(1) != s[1].argmax(1)).sum()) for s, *_ in measured]
    seconds = np.mean([one[3] for one in measured], axis=0)
    spread = f" ± {np.std(right, ddof=1):.1f}" if len(right) > 1 else ""
    digest = measured[0][4]
    differs = digest or f"{max(apart):.0e}"
    cells = [
        name, label, f"{np.mean(right):.1f}{spread}", str(measured[0][2]),
        f"{seconds[0]:.2f}, {seconds[1]:.2f}", differs, str(max(other)),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _ours(
    x: Rows,
    y: Rows,
    train: Rows,
    test: Rows,
    parts: Sequence[Sequence[Rows]],
    steps: tuple[Any, ...],
) -> Any:
    """Fit ``gaussian`` as a run does, from sums of 8-bit features, each class described by itself."""
    classes = int(y.max()) + 1
    scaler = Scaler.fit(x[train], steps)
    unit = Quantization.of_unit_length(8, 5.0, x.shape[1])
    scaler = scaler.quantized(Quantization.of_kernel(8, 1024) if steps == ("kernel",) else unit)
    z = torch.from_numpy(scaler(x).astype(np.float32))
    names = tuple(str(c) for c in range(classes))
    everything = np.arange(classes)
    none = np.array([], dtype=np.int64)
    space = ClassSpace(names, np.eye(classes), names, everything, none, none)
    labels = torch.from_numpy(y)
    digests = []
    models = []
    for part in parts:
        method = Gaussian(Gaussian.Settings(), space, torch.eye(classes), Backbone((z.shape[1],)))
        method.quantization = scaler.quantization
        begun = time.process_time()
        sums = [method.statistics(z[train[rows]], labels[train[rows]]) for rows in part]
        sent = time.process_time()
        merged: Params = add(sums, space, scaler.quantization)
        digests.append(hashlib.sha256(b"".join(v.numpy().tobytes() for v in merged.values())))
        models.append(method.solve({**merged, **dequantized(merged, scaler.quantization)}))
        if len(models) == 1:
            seconds = [(sent - begun) / len(part), time.process_time() - sent]
    scores = [method.scores(model, z[test], method.semantics).numpy() for model in models]
    same = digests[0].digest() == digests[1].digest()
    said = "nothing, the same digest" if same else "another digest"
    return scores, y[test], size_in_bytes(sums[0]), seconds, said


# Unseen classes


Fit = Callable[[Benchmark, Mapping[str, Any]], Rows]


def _by_function(function: Callable[..., Any], unit: bool = True) -> Fit:
    """Return how a function of ``zero_shot`` scores all samples of a benchmark's tests."""

    def fit(benchmark: Benchmark, settings: Mapping[str, Any]) -> Rows:
        train = benchmark.train
        scaler = Scaler.fit(benchmark.features[train], ("centre", "l2") if unit else ())
        x = scaler(benchmark.features).astype(np.float64)
        semantics = fit_semantics(benchmark.space, ("centre", "l2"))(benchmark.space.semantics)
        scores = function(
            x[train], benchmark.labels[train], np.asarray(semantics, np.float64), **settings
        )
        return scores(x[tests(benchmark)])

    return fit


def _by_method(kind: Any) -> Fit:
    """Return how a closed form of this package does."""

    def fit(benchmark: Benchmark, settings: Mapping[str, Any]) -> Rows:
        steps = ("centre", "l2") if kind is not Gaussian else ("l2",)
        scaler = Scaler.fit(benchmark.features[benchmark.train], steps)
        own = replace(benchmark, features=scaler(benchmark.features))
        method, inputs = made(kind, kind.Settings(**settings), own)
        if kind is not Gaussian:
            scaled = fit_semantics(own.space, ("centre", "l2"))(own.space.semantics)
            method.semantics = torch.from_numpy(scaled).float()
        train = torch.from_numpy(own.train)
        model = method.solve(method.statistics(inputs[train], torch.from_numpy(own.labels)[train]))
        parts = np.array_split(tests(benchmark), 8)
        return np.concatenate(
            [method.scores(model, inputs[part], method.semantics).numpy() for part in parts]
        )

    return fit


def tests(benchmark: Benchmark) -> Rows:
    """Return the test samples."""
    return np.concatenate([benchmark.test_unseen, benchmark.test_seen])


def grid(**lists: Sequence[Any]) -> list[dict[str, Any]]:
    """Return all combinations."""
    found: list[dict[str, Any]] = [{}]
    for key, values in lists.items():
        found = [{**one, key: value} for one in found for value in values]
    return found


LEARNERS: dict[str, tuple[Fit, list[dict[str, Any]]]] = {
    "gaussian": (_by_method(Gaussian), grid(shrinkage=(0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9))),
    "ESZSL": (_by_method(ESZSL), grid(log_gamma=(0.0, 1.0, 2.0, 3.0, 4.0), log_lambda=(-3.0, -2.0, -1.0, 0.0, 1.0))),
    "SAE": (_by_method(SAE), grid(log_lambda=(-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0))),
    "ConSE": (_by_function(zero_shot.conse), grid(top=(5, 10, 20, 40), cost=(1.0, 10.0, 100.0))),
    "DeViSE-like": (_by_function(zero_shot.devise), grid(margin=(0.03, 0.1, 0.3), rate=(0.01, 0.03, 0.1, 1.0))),
    "GFZSL": (_by_function(zero_shot.gfzsl), grid(ridge=(0.01, 0.1, 1.0), width=(0.1, 0.3, 1.0))),
}  # fmt: skip


def print_unseen(root: Path, names: Sequence[str], smallest: bool) -> None:
    """Print the table of zero-shot learners."""
    print("| data | learner | ZSL | U | S | H | chosen on validation classes |")
    print("|---|---|--:|--:|--:|--:|---|")
    for name in names:
        benchmark = load(root, name)
        apart = benchmark.for_selection(0)
        for label, (fit, candidates) in LEARNERS.items():
            best: tuple[float, dict[str, Any], float] | None = None
            for settings in candidates[: 1 if smallest else None]:
                answers = answers_of(
                    fit(apart, settings), apart.labels[tests(apart)], apart.space.seen,
                    apart.space.unseen,
                )  # fmt: skip
                offset = best_offset([answers])
                h = accuracies(answers, offset).gzsl_harmonic
                if best is None or h > best[0]:
                    best = h, settings, offset
            assert best is not None
            answers = answers_of(
                fit(benchmark, best[1]), benchmark.labels[tests(benchmark)], benchmark.space.seen,
                benchmark.space.unseen,
            )  # fmt: skip
            found = accuracies(answers, best[2])
            numbers = (found.zsl, found.gzsl_unseen, found.gzsl_seen, found.gzsl_harmonic)
            cells = " | ".join(f"{number:.1f}" for number in numbers)
            edges = [
                f"{key} {value}{'†' if _at_edge(key, value, candidates) else ''}"
                for key, value in best[1].items()
            ]
            print(f"| {name} | {label} | {cells} | {', '.join(edges)} |", flush=True)


def _at_edge(key: str, value: Any, candidates: Sequence[Mapping[str, Any]]) -> bool:
    values = {one[key] for one in candidates}
    return value in (min(values), max(values))


# Pools


def print_pool(root: Path, names: Sequence[str], seeds: int, smallest: bool) -> None:
    """Print the table of updates by unlabelled samples."""
    updates: dict[str, list[dict[str, Any]]] = {
        "none": [{}],
        "adapt": [{}],
        "StatA-like": grid(anchor=(1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0)),
        "ADAPT-like": grid(anchor=(3.0, 10.0, 30.0, 100.0, 300.0), bank=(16, 64, 256, 1024)),
    }
    print("| data | update | ZSL | H | chosen on validation classes |")
    print("|---|---|--:|--:|---|")
    for name in names:
        benchmark = load(root, name)
        apart = benchmark.for_selection(0)
        offset = _pooled(apart, 0, "none", {}, None)[2]
        for label, candidates in updates.items():
            tried = candidates[: 1 if smallest else None]
            chosen = max(tried, key=lambda one: _pooled(apart, 0, label, one, offset)[1])
            found = [_pooled(benchmark, seed, label, chosen, offset) for seed in range(seeds)]
            zsl, h = (float(np.mean([one[i] for one in found])) for i in (0, 1))
            edges = [
                f"{key} {value:g}{'†' if _at_edge(key, value, candidates) else ''}"
                for key, value in chosen.items()
            ]
            print(f"| {name} | {label} | {zsl:.1f} | {h:.1f} | {', '.join(edges)} |", flush=True)


def _pooled(
    benchmark: Benchmark, seed: int, update: str, settings: Mapping[str, Any], offset: float | None
) -> tuple[float, float, float]:
    """Return ZSL and H on one half of the tests after an update by the other, and the offset.

    Without an ``offset`` the best for the measured half is taken. Updates shrink it as ``adapt``.
    """
    scaler = Scaler.fit(benchmark.features[benchmark.train], ("l2",))
    own = replace(benchmark, features=scaler(benchmark.features))
    method, inputs = made(Gaussian, Gaussian.Settings(shrinkage=0.3), own)
    train = torch.from_numpy(own.train)
    model = method.solve(method.statistics(inputs[train], torch.from_numpy(own.labels)[train]))
    shown, asked = halves(benchmark, seed, 0)
    space = benchmark.space
    used = 0.0 if offset is None else offset
    share = 1.0
    weight = model["weight"].double().numpy()
    bias = model["bias"].double().numpy()
    x = inputs[asked].double().numpy() - model["centre"].double().numpy()
    if update == "adapt":
        adapted = adapt(method, model, [inputs[shown]], used)
        share = adapted.offset_share
        weight = adapted.params["weight"].double().numpy()
        bias = adapted.params["bias"].double().numpy()
        x = inputs[asked].double().numpy() - adapted.params["centre"].double().numpy()
    elif update != "none":
        precision = model["precision"].double().numpy()
        means = np.linalg.solve(precision, weight.T).T
        pool = inputs[shown].double().numpy() - model["centre"].double().numpy()
        part = np.union1d(space.seen, space.unseen)
        lowered = -used * np.isin(part, space.seen).astype(float)
        function = transductive.stata if update.startswith("StatA") else transductive.adapt_bank
        moved = means.copy()
        moved[part] = function(pool, means[part], precision, lowered, **settings)
        moved[space.seen] = means[space.seen]  # they have their own samples
        weight = moved @ precision
        bias = -(weight * moved).sum(1) / 2
    answers = answers_of(x @ weight.T + bias, benchmark.labels[asked], space.seen, space.unseen)
    if offset is None:
        used = best_offset([answers])
    found = accuracies(answers, used * share)
    return found.zsl, found.gzsl_harmonic, used


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("seen", "unseen", "pool"), nargs="?", default="seen")
    parser.add_argument(
        "--root", default=Path(os.environ.get("FEDUNSEEN_DATA", ".")) / "xlsa17", type=Path
    )
    parser.add_argument("--data", action="append", help="one of the data sets; all by default")
    parser.add_argument("--seeds", default=3, type=int)
    parser.add_argument("--smallest", action="store_true", help="few samples, tries and seeds")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    seeds = 1 if asked.smallest else asked.seeds
    if asked.part == "seen":
        names = ("digits",) if asked.smallest else ("digits", *SETS)
        print_seen(asked.root, asked.data or names, seeds, asked.smallest)
    elif asked.part == "unseen":
        print_unseen(asked.root, asked.data or SETS, asked.smallest)
    else:
        print_pool(asked.root, asked.data or SETS, seeds, asked.smallest)


if __name__ == "__main__":
    main()
