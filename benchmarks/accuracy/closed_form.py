"""Methods in closed form: what they reach on real data, with any number of examples, and what they
cost at size.

    python benchmarks/accuracy/closed_form.py PART [--root FOLDER_WITH_XLSA17] [--smallest]

    reach     three seeds, other class splits
    examples  0 to 20 examples of each unseen class
    start     FedAvg that begins with the closed form
    same      time to the same accuracy, as a ratio
    private   differential privacy: epsilon 1 to 8
    floor     the same on validation classes, by its floor
    attacked  one of ten parties makes samples up
    turns     calibration with few validation classes
    few       5 to 20 seen classes, 20 or 40 samples each
    lengths   seen classes play unseen ones: prototypes of one length
    bits      features of 4 to 16 bits
    speed     beside scikit-learn's shrinkage LDA
    sizes     seconds and memory at size
    mapped    on disk; --shape 100000 2048 1000 are samples, features, classes

No setting is chosen here: the method's defaults are measured. Features are taken as the files have
them.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedunseen import Experiment, run
from fedunseen.core.errors import DataError
from fedunseen.core.parameters import Params, size_in_bytes
from fedunseen.data import Benchmark, ClassSpace, Quantization, Scaler, fit_semantics
from fedunseen.data.benchmarks.digit_pairs import DigitPairs
from fedunseen.data.benchmarks.xlsa17 import Xlsa17
from fedunseen.deploy.secagg.enrolment import colluders, threshold
from fedunseen.encoders.backbone import Backbone
from fedunseen.evaluation.answers import answer
from fedunseen.experiment.calibration_folds import calibration_folds as class_turns
from fedunseen.methods.closed_form.base import ClosedForm
from fedunseen.methods.closed_form.eszsl import ESZSL
from fedunseen.methods.closed_form.gaussian import Gaussian
from fedunseen.methods.closed_form.left_out import estimates
from fedunseen.methods.closed_form.ridge import Ridge
from fedunseen.methods.closed_form.statistics import add, dequantized, statistics
from fedunseen.metrics import Answers, accuracies, best_offset
from fedunseen.safety.privacy import private_sums
from fedunseen.safety.privacy.client_level import needed_noise
from fedunseen.safety.privacy.private_sums import Release

SETS = ("AWA1_LAMPERT", "CIFAR100_MBV2")
# FC100's novel classes (Oreshkin et al. 2018): four superclasses of CIFAR-100
FC100 = (
    "beaver", "dolphin", "otter", "seal", "whale", "bee", "beetle", "butterfly", "caterpillar", "cockroach",
    "fox", "porcupine", "possum", "raccoon", "skunk", "baby", "boy", "girl", "man", "woman",
)  # fmt: skip
FEW_CLASSES = ((5, 2), (7, 3), (10, 4), (20, 8))  # seen and unseen
LENGTHS = (0.0, 0.5, 0.75, 1.0)
EXAMPLES = (0, 1, 2, 5, 10, 20)


def load(root: Path, dataset: str) -> Benchmark:
    """Read a data set."""
    return Xlsa17.load(Xlsa17.Settings(name="xlsa17", root=root, dataset=dataset), 0)


def other_split(
    benchmark: Benchmark, seed: int, unseen: NDArray[np.int64] | None = None
) -> Benchmark:
    """Return the same samples with other unseen classes, drawn or given; a fifth of each seen class
    is for tests.
    """
    rng, space = np.random.default_rng(1000 + seed), benchmark.space
    classes = np.arange(len(space.names))
    if unseen is None:
        unseen = np.sort(rng.choice(classes, len(space.unseen), replace=False))
    seen = np.setdiff1d(classes, unseen)
    train, test = [], []
    for c in seen:
        rows = rng.permutation(np.flatnonzero(benchmark.labels == c))
        test.append(rows[: len(rows) // 5])
        train.append(rows[len(rows) // 5 :])
    return replace(
        benchmark,
        space=replace(space, seen=seen, validation=np.array([], dtype=np.int64), unseen=unseen),
        train=np.concatenate(train),
        test_seen=np.concatenate(test),
        test_unseen=np.flatnonzero(np.isin(benchmark.labels, unseen)),
    )


def made(kind: type[ClosedForm], settings: Any, benchmark: Benchmark) -> tuple[ClosedForm, Tensor]:
    """Make a method for a benchmark, and its features as the file has them."""
    inputs = torch.from_numpy(benchmark.features.astype(np.float32))
    semantics = torch.from_numpy(benchmark.space.semantics).float()
    return kind(settings, benchmark.space, semantics, Backbone((inputs.shape[1],))), inputs


def judged(
    method: ClosedForm, model: Params, inputs: Tensor, benchmark: Benchmark
) -> tuple[float, float]:
    """Return ZSL accuracy and the harmonic mean, without a factor but the model's own."""
    rows = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    scores = (
        method.scores(model, inputs[part], method.semantics) for part in np.array_split(rows, 8)
    )
    found = accuracies(answer(scores, benchmark.labels[rows], benchmark.space))
    return found.zsl, found.gzsl_harmonic


def bits(root: Path) -> None:
    """Print ZSL accuracy and the best harmonic mean for quantized features, beside float64."""
    print(
        "| data | method | bits | range | ZSL | best H | clipped, % "
        "|\n|---|---|--:|--:|--:|--:|--:|",
        flush=True,
    )
    digit_pairs = DigitPairs.load(DigitPairs.Settings(), 0)
    for benchmark in (*(load(root, name) for name in SETS), digit_pairs):
        grey = benchmark.image_shape is not None
        logs = (1.0, 0.0) if "AWA1" in benchmark.name else (2.0, -1.0)
        kinds = [(Gaussian, Gaussian.Settings(), ()), (Ridge, Ridge.Settings(), ("centre",))]
        kinds += [(ESZSL, ESZSL.Settings(log_gamma=logs[0], log_lambda=logs[1]), ("centre",))]
        for kind, settings, steps in kinds:
            tried = [
                (0, 0.0),
                (8, 5.0),
                (8, 12.0),
                *([(4, 4.0), (6, 5.0), (16, 8.0)] if kind is Gaussian else []),
            ]
            for width, reach in (
                tried if not grey else [(0, 0.0), *((w, 1.0) for w in (4, 6, 8, 16))]
            ):
                _bits(benchmark, kind, settings, () if grey else (*steps, "l2"), width, reach)


def _bits(
    benchmark: Benchmark,
    kind: type[ClosedForm],
    settings: Any,
    steps: tuple[Any, ...],
    width: int,
    reach: float,
) -> None:
    """Print one line of the table of :func:`bits`."""
    scaler = Scaler.fit(benchmark.features[benchmark.train], steps)
    if width:
        grey = Quantization.of_grey_values(width)
        unit = Quantization.of_unit_length(width, reach, benchmark.features.shape[1])
        scaler = scaler.quantized(grey if not steps else unit)
    own = replace(benchmark, features=scaler(benchmark.features))
    method, inputs = made(kind, settings, own)
    if kind is not Gaussian:
        method.semantics = torch.from_numpy(
            fit_semantics(own.space, ("centre", "l2"))(own.space.semantics)
        )
    method.quantization = scaler.quantization
    train = torch.from_numpy(own.train)
    sums = method.statistics(inputs[train], torch.from_numpy(own.labels)[train])
    model = method.solve({**sums, **dequantized(sums, scaler.quantization)})
    rows = np.concatenate([own.test_unseen, own.test_seen])
    scores = (
        method.scores(model, inputs[part], method.semantics) for part in np.array_split(rows, 8)
    )
    answers = answer(scores, own.labels[rows], own.space)
    found, best = accuracies(answers), accuracies(answers, best_offset([answers]))
    clipped = (
        100 * scaler.codes(benchmark.features[own.train])[1] / inputs[train].numel()
        if width
        else 0.0
    )
    name = f"{benchmark.name} | {settings.name} | {width or 'float64'} | {reach or ''}"
    print(f"| {name} | {found.zsl:.1f} | {best.gzsl_harmonic:.1f} | {clipped:.2f} |", flush=True)


def speed() -> None:
    """Print seconds of ``ZeroShotClassifier.fit`` and of scikit-learn's shrinkage LDA, in processor
    time.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from threadpoolctl import threadpool_limits

    from fedunseen import ZeroShotClassifier

    torch.set_num_threads(1)
    print(
        "| samples | features | classes | fit, s | LDA, s | ratio |\n|--:|--:|--:|--:|--:|--:|",
        flush=True,
    )
    for samples, width, classes in ((50_000, 1280, 200), (30_000, 2048, 1000)):
        rng = np.random.default_rng(0)
        semantics = rng.standard_normal((classes + 20, 85))
        means = (semantics @ rng.standard_normal((85, width)) / np.sqrt(85)).astype(np.float32)
        labels = rng.integers(0, classes, samples)
        features = means[labels] + 1.5 * rng.standard_normal((samples, width), dtype=np.float32)
        table = dict(enumerate(semantics.tolist()))
        ZeroShotClassifier().fit(features[:500], labels[:500], classes=table)  # imports
        with threadpool_limits(1):
            begun = time.process_time()
            ZeroShotClassifier().fit(features, labels, classes=table)
            ours, begun = time.process_time() - begun, time.process_time()
            LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3).fit(features, labels)
        theirs = time.process_time() - begun
        print(
            f"| {samples} | {width} | {classes} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} "
            "|",
            flush=True,
        )


def reach(root: Path) -> None:
    """Print what the defaults reach."""
    print("Runs with [method] name alone, validation classes, seeds 0 to 2, ten clients (pccd):\n")
    print(
        "| data | method | ZSL | U | S | H | H uncalibrated | seconds a run | MB a client sends |"
    )
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    named = [
        *(
            ("xlsa17", dataset, method)
            for dataset in SETS
            for method in ("gaussian", "eszsl", "ridge")
        ),
        ("digit-pairs", "digit-pairs", "gaussian"),
    ]
    for data, dataset, method in named:
        tree: dict[str, Any] = {
            "data": {"name": data},
            "partition": {"kind": "pccd", "clients": 10},
        }
        if data == "xlsa17":
            tree["data"] |= {"root": str(root), "dataset": dataset}
            if method != "gaussian":
                tree["data"] |= {"features": ["centre", "l2"], "semantics": ["centre", "l2"]}
        tree |= {
            "method": {"name": method},
            "evaluation": {"embedding": False, "theory": False},
            "run": {"seeds": 3},
        }
        if method == "eszsl":  # what its validation classes have chosen in docs/research/results.md
            log = (1.0, 0.0) if dataset == "AWA1_LAMPERT" else (2.0, -1.0)
            tree["method"] |= {"log_gamma": log[0], "log_lambda": log[1]}
        with tempfile.TemporaryDirectory() as folder:
            result = run(Experiment.from_dict(tree, name="reach"), Path(folder) / "run").result
        parts = [
            f"{result[name]:.1f} ± {result[name + '_sd']:.1f}"
            for name in ("zsl", "gzsl_unseen", "gzsl_seen")
        ]
        parts += [f"{result['gzsl_harmonic']:.1f} ± {result['gzsl_harmonic_sd']:.1f}"]
        parts += [f"{result['uncalibrated_gzsl_harmonic']:.1f}", f"{result['seconds'] / 3:.1f}"]
        print(
            f"| {dataset} | {method} | {' | '.join(parts)} | {result['bytes_up'] / 1e6:.1f} |",
            flush=True,
        )
    print(
        "\nOther class splits of the same data; the factor from left-out classes (`calibration = "
        "true`):\n"
    )
    print("| data | unseen classes | Gaussian ZSL | H | shrinkage | ESZSL ZSL | ridge ZSL |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for dataset in SETS:
        whole = load(root, dataset)
        for seed in (-1, *range(5)):
            benchmark = whole if seed < 0 else other_split(whole, seed)
            labels = torch.from_numpy(benchmark.labels)
            method, inputs = made(Gaussian, Gaussian.Settings(calibration=True), benchmark)
            rows = torch.from_numpy(benchmark.train)
            sums = method.statistics(inputs[rows], labels[rows])
            model = method.solve(sums)
            zsl, harmonic = judged(method, model, inputs, benchmark)
            scaled = replace(benchmark, features=unit(benchmark.features, benchmark.train))
            others = []
            for kind, settings in (
                (ESZSL, ESZSL.Settings(log_gamma=1.0, log_lambda=0.0)),
                (Ridge, Ridge.Settings()),
            ):
                other, centred = made(kind, settings, scaled)
                found = other.solve(other.statistics(centred[rows], labels[rows]))
                others.append(judged(other, found, centred, benchmark)[0])
            split = "the data's own" if seed < 0 else f"drawn, seed {seed}"
            tried = f"{float(model['kernel'][3]):.2f}"
            print(
                f"| {dataset} | {split} | {zsl:.1f} | {harmonic:.1f} | {tried} | {others[0]:.1f} | "
                f"{others[1]:.1f} |",
                flush=True,
            )


def unit(features: NDArray[Any], train: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return features less their mean over training samples, of unit length."""
    apart = features.astype(np.float32) - features[train].astype(np.float32).mean(0)
    return apart / np.maximum(np.linalg.norm(apart, axis=1, keepdims=True), 1e-12)


ROUNDS = {"AWA1_LAMPERT": 40, "CIFAR100_MBV2": 8, "digit-pairs": 40}


def trained(root: Path, dataset: str, rounds: int, **method: Any) -> Experiment:
    """Return FedAvg (Eq. 3 alone) on a data set, ten clients (pccd), with other settings of the
    method.
    """
    tree: dict[str, Any] = {
        "data": {"name": "xlsa17", "root": str(root), "dataset": dataset},
        "partition": {"kind": "pccd", "clients": 10},
        "method": {"name": "fedzsl", "kl": 0.0, "consistency": 0.0, **method},
        "strategy": {"name": "fedavg", "rounds": rounds},
        "evaluation": {"embedding": False, "theory": False, "clients": False},
    }
    tree["data"] |= {"features": ["centre", "l2"], "semantics": ["centre", "l2"]}
    return Experiment.from_dict(tree, name=f"{dataset} trained")


def start(root: Path, sets: Sequence[str], rounds: int, seeds: int) -> None:
    """Print what FedAvg makes of the closed form that it begins with, round and factor from
    validation classes.
    """
    print(
        "| data | lr | the closed form: ZSL | after FedAvg: ZSL | H | rounds, chosen of "
        + f"{rounds} |"
    )
    print("|---|---|--:|--:|--:|---|", flush=True)
    for dataset, lr in itertools.product(sets, ("auto", 0.01)):
        results = []
        for seed in range(seeds):
            experiment = trained(root, dataset, rounds, start="closed-form", lr=lr)
            with tempfile.TemporaryDirectory() as folder:
                results.append(
                    run(experiment.with_overrides({"run.seed": seed}), Path(folder) / "run").result
                )
        cells = [[one["start"]["zsl"] for one in results]]
        cells += [[one[name] for one in results] for name in ("zsl", "gzsl_harmonic")]
        parts = [
            f"{np.mean(some):.1f} ± {np.std(some, ddof=min(1, seeds - 1)):.1f}" for some in cells
        ]
        chosen = ", ".join(str(one["selected_round"]) for one in results)
        print(f"| {dataset} | {lr} | {' | '.join(parts)} | {chosen} |", flush=True)


def same(root: Path, sets: Sequence[str], seeds: int, smallest: bool = False) -> None:
    """Print how long FedAvg takes to the ZSL accuracy of each closed form, in one run, and what a
    client sends.

    Seconds are this process's processor time of rounds, from samples to measured accuracies, so
    that it does not matter what else the machine does.
    """
    torch.set_num_threads(1)
    if not smallest:  # what is loaded once is loaded
        timed(solved_instead(beside(root, "digit-pairs", 1), "gaussian", "digit-pairs"))
    print(
        "| data | method | ZSL | seconds | MB sent | FedAvg: best ZSL | the same ZSL in round | as "
        "long | as many MB |"
    )
    print("|---|---|--:|--:|--:|--:|---|--:|--:|", flush=True)
    for dataset in sets:
        found: dict[str, list[dict[str, Any]]] = {"gaussian": [], "ridge": [], "eszsl": []}
        for seed in range(seeds):
            base = beside(root, dataset, 1 if smallest else ROUNDS[dataset])
            base = base.with_overrides({"run.seed": seed})
            lines = timed(base)
            for name, some in found.items():
                (line,) = timed(solved_instead(base, name, dataset))
                there = next(
                    (i for i, one in enumerate(lines, 1) if one["zsl"] >= line["zsl"]), None
                )
                taken = lines[:there]
                some.append(
                    {
                        "zsl": line["zsl"],
                        "seconds": line["seconds"],
                        "sent": line["bytes_up"] / len(line["participants"]) / 1e6,
                        "best": max(one["zsl"] for one in lines),
                        "round": there,
                        "longer": sum(one["seconds"] for one in taken) / line["seconds"],
                        "more": sum(one["bytes_up"] for one in taken) / line["bytes_up"],
                    }
                )
        for name, some in found.items():
            when = ", ".join(str(one["round"] or f"none of {len(lines)}") for one in some)
            bound = "> " if any(one["round"] is None for one in some) else ""
            mean = {
                key: float(np.mean([one[key] for one in some])) for key in some[0] if key != "round"
            }
            print(
                f"| {dataset} | {name} | {mean['zsl']:.1f} | {mean['seconds']:.2f} | "
                f"{mean['sent']:.1f} | {mean['best']:.1f} | {when} | {bound}{mean['longer']:.1f} | "
                f"{bound}{mean['more']:.1f} |",
                flush=True,
            )


def timed(experiment: Experiment) -> list[dict[str, Any]]:
    """Return the lines of a run's rounds, with processor seconds in the place of the clock's."""
    at: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        done = run(
            experiment, Path(folder) / "run", progress=lambda *_: at.append(time.process_time())
        )
        return [
            {**line, "seconds": float(took)}
            for line, took in zip(done.metrics, np.diff(at), strict=True)
        ]


def beside(root: Path, dataset: str, rounds: int) -> Experiment:
    """Return FedAvg on a data set, the preset's on digit-pairs."""
    quick: dict[str, Any] = {
        "evaluation.embedding": False,
        "evaluation.theory": False,
        "evaluation.clients": False,
    }
    quick |= {"evaluation.selection": "last", "strategy.rounds": rounds}
    base = (
        Experiment.load("digit-pairs-fedavg")
        if dataset == "digit-pairs"
        else trained(root, dataset, rounds)
    )
    return base.with_overrides(quick)


def solved_instead(base: Experiment, name: str, dataset: str) -> Experiment:
    """Return an experiment with a closed form in the place of what is trained."""
    changes: dict[str, Any] = {
        "method.name": name,
        "strategy.rounds": 1,
        "strategy.local_epochs": 1,
    }
    if name == "gaussian":  # on features and descriptions as the files have them
        changes |= {"data.features": [], "data.semantics": []}
    if (
        name == "eszsl"
    ):  # what its validation classes have chosen (docs/research/results.md); digit-pairs: defaults
        log = {"AWA1_LAMPERT": (1.0, 0.0), "CIFAR100_MBV2": (2.0, -1.0)}
        changes |= dict(
            zip(("method.log_gamma", "method.log_lambda"), log.get(dataset, ()), strict=False)
        )
    return base.with_overrides(changes)


EPSILONS = (1.0, 2.0, 4.0, 8.0)
PARTIES = 10
VARIANCES = (
    PARTIES / threshold(PARTIES, colluders(PARTIES)),
    PARTIES,
)  # of the noise on ten parties' sum, with masks and without
DELTA = 1e-5
FLOORS = (1e-6, 0.03, 0.1, 0.3, 1.0, 3.0)


def private(sets: Sequence[tuple[str, Benchmark]], seeds: int) -> None:
    """Print what is left of the model of sums that were released once with noise, samples being the
    unit.
    """
    print(
        f"Samples of unit length, clip 1, delta {DELTA:g}; the factor from left-out classes; "
        f"{seeds} draws of noise\n"
    )
    print("| data | bits | epsilon | noise multiplier | masks: ZSL | H | no masks: ZSL | H |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for (name, benchmark), bits in itertools.product(sets, (8, 0)):
        released = Released.of(benchmark, bits)
        zsl, harmonic = released.exactly()
        print(
            f"| {name} | {bits} | none | 0 | {zsl:.1f} | {harmonic:.1f} | {zsl:.1f} | "
            f"{harmonic:.1f} |",
            flush=True,
        )
        for budget in EPSILONS:
            noise, cells = needed_noise(budget, 1.0, 1, DELTA, "rdp" if bits else "pld"), []
            for variances in VARIANCES:
                found = [released.noisily(noise * variances**0.5, seed) for seed in range(seeds)]
                cells += [
                    f"{np.mean(one):.1f} ± {np.std(one, ddof=min(1, seeds - 1)):.1f}"
                    for one in zip(*found, strict=True)
                ]
            print(
                f"| {name} | {bits} | {budget:g} | {noise:.2f} | {' | '.join(cells)} |", flush=True
            )


@dataclass(frozen=True, eq=False)
class Released:
    """Sums of a benchmark's samples of unit length, to be released with noise.

    Under masks six of ten parties add the whole noise, so that ten add 10 / 6 of its variance;
    without masks each adds all of it. The sum of their noise is drawn at once here, which is the
    same.
    """

    benchmark: Benchmark
    method: ClosedForm
    inputs: Tensor
    exact: Params
    quantization: Quantization | None

    @classmethod
    def of(cls, benchmark: Benchmark, bits: int = 0) -> Released:
        """Add the training samples of a benchmark up, as whole numbers of some bits or as float64
        (0).
        """
        raw = benchmark.features.astype(np.float32)
        unit_length = raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-12)
        benchmark = replace(benchmark, features=unit_length)
        method, inputs = made(Gaussian, Gaussian.Settings(calibration=True), benchmark)
        rows = torch.from_numpy(benchmark.train)
        quantization = Quantization.of_unit_length(bits, 12.0, inputs.shape[1]) if bits else None
        exact = statistics(
            inputs[rows],
            torch.from_numpy(benchmark.labels)[rows],
            benchmark.space,
            1.0,
            quantization,
        )
        return cls(benchmark, method, inputs, exact, quantization)

    def exactly(self) -> tuple[float, float]:
        """Return ZSL and H without noise."""
        self.method.release, sums = (
            None,
            {**self.exact, **dequantized(self.exact, self.quantization)},
        )
        return judged(self.method, self.method.solve(sums), self.inputs, self.benchmark)

    def noisily(self, noise: float, seed: int) -> tuple[float, float]:
        """Return ZSL and H with noise of this multiplier; chance and 0 where it leaves no class."""
        self.method.release = release = Release(1.0, noise, self.quantization)
        noisy = release.noisy(release.nothing(self.exact), 1, np.random.default_rng(seed))
        try:
            model = self.method.solve(release.cleaned(noisy, self.benchmark.space.seen))
        except DataError:
            return 100 / len(self.benchmark.space.unseen), 0.0
        return judged(self.method, model, self.inputs, self.benchmark)


def without_test(benchmark: Benchmark) -> Benchmark:
    """Return a benchmark whose validation classes are its unseen ones: no test class or test sample
    is part of it.
    """
    space, rng = benchmark.space, np.random.default_rng(0)
    held = np.isin(benchmark.labels[benchmark.train], space.validation)
    train, test = [], []
    for c in np.setdiff1d(space.seen, space.validation):
        rows = rng.permutation(benchmark.train[benchmark.labels[benchmark.train] == c])
        test.append(rows[: len(rows) // 5])
        train.append(rows[len(rows) // 5 :])
    seen, none = np.setdiff1d(space.seen, space.validation), np.array([], dtype=np.int64)
    return replace(
        benchmark,
        space=replace(space, seen=seen, validation=none, unseen=np.asarray(space.validation)),
        train=np.concatenate(train),
        test_seen=np.concatenate(test),
        test_unseen=benchmark.train[held],
    )


def floors(sets: Sequence[tuple[str, Benchmark]], seeds: int) -> None:
    """Print what is left on validation classes, by the floor under eigenvalues."""
    print(f"Means of {seeds} draws of noise; ZSL / H on validation classes\n")
    columns = [f"epsilon {budget:g}{masks}" for masks in (", masks", "") for budget in EPSILONS]
    print("| data | floor | " + " | ".join(columns) + " | mean |")
    print("|---|--:|" + "--:|" * (len(columns) + 1), flush=True)
    for name, benchmark in sets:
        released = Released.of(without_test(benchmark))
        for floor in FLOORS:
            private_sums.FLOOR = floor
            means = []
            for variances in VARIANCES:
                for budget in EPSILONS:
                    noise = needed_noise(budget, 1.0, 1, DELTA) * variances**0.5
                    means.append(
                        np.mean([released.noisily(noise, seed) for seed in range(seeds)], axis=0)
                    )
            cells = [
                f"{zsl:.1f} / {harmonic:.1f}" for zsl, harmonic in [*means, np.mean(means, axis=0)]
            ]
            print(f"| {name} | {floor:g} | {' | '.join(cells)} |", flush=True)


def made_up(classes: int, attributes: int, width: int) -> Benchmark:
    """Make a small benchmark up: Gaussian classes whose means follow their attributes."""
    space, rng = space_of(classes, attributes, classes // 5), np.random.default_rng(1)
    space = replace(space, validation=space.seen[: classes // 5])
    means = space.semantics @ rng.normal(size=(attributes, width)) / np.sqrt(attributes)
    labels = np.repeat(np.arange(classes), 60)
    features = (means[labels] + 0.5 * rng.normal(size=(len(labels), width))).astype(np.float32)
    seen = np.isin(labels, space.seen)
    test = seen & (np.arange(len(labels)) % 6 == 0)
    return Benchmark(
        name="made up",
        space=space,
        features=features,
        labels=labels,
        train=np.flatnonzero(seen & ~test),
        test_seen=np.flatnonzero(test),
        test_unseen=np.flatnonzero(~seen),
    )


def attacked(sets: Sequence[tuple[str, Benchmark]], seeds: int) -> None:
    """Print what is left where one of ten parties sends the sums of samples that it has made up of
    its own.
    """
    print(
        "One of ten parties (a tenth of the seen classes each) is malicious; the factor from "
        "left-out classes\n"
    )
    print(
        "| data | what it sends | times as long | ZSL | H | with samples of unit length: ZSL | H |"
    )
    print("|---|---|--:|--:|--:|--:|--:|", flush=True)
    for name, benchmark in sets:
        centred = unit(benchmark.features, benchmark.train)
        benchmark = replace(benchmark, features=centred)
        method, inputs = made(
            Gaussian, Gaussian.Settings(shrinkage=0.3, calibration=True), benchmark
        )
        labels, rows = torch.from_numpy(benchmark.labels), torch.from_numpy(benchmark.train)
        own = benchmark.space.seen[::PARTIES]  # of the malicious party
        bad = torch.isin(labels[rows], torch.from_numpy(own))
        honest = method.statistics(inputs[rows[~bad]], labels[rows[~bad]])
        labeled, samples = labels[rows[bad]], inputs[rows[bad]]
        others = torch.from_numpy(
            np.random.default_rng(0).choice(np.setdiff1d(benchmark.space.seen, own), len(labeled))
        )
        lies = {
            "its samples": (samples, labeled, 1, (1.0,)),
            "nothing": (samples[:0], labeled[:0], 1, (1.0,)),
            "its samples, negated": (-samples, labeled, 1, (1.0, 10.0, 100.0)),
            "its samples, negated, ten times as many": (-samples, labeled, 10, (1.0,)),
            "its samples under labels of other parties": (samples, others, 1, (1.0, 10.0, 100.0)),
            "its samples under labels of other parties, ten times as many": (
                samples,
                others,
                10,
                (1.0,),
            ),
        }
        for what, (sent, said, times, lengths) in lies.items():
            for length in lengths:
                cells = []
                for clip_norm in (None, 1.0):
                    false = statistics(length * sent, said, benchmark.space, clip_norm)
                    false |= {key: times * false[key] for key in ("count", "total", "square")}
                    model = method.solve(add([honest, false], benchmark.space))
                    cells += [f"{value:.1f}" for value in judged(method, model, inputs, benchmark)]
                print(f"| {name} | {what} | {length:g} | {' | '.join(cells)} |", flush=True)


def few(
    whole: Benchmark, seen: int, unseen: int, draw: int, own: int = 32, tests: int = 8
) -> Benchmark:
    """Return samples of some classes, ``own`` of a seen one to train on; a fifth of seen classes
    are to validate.
    """
    rng = np.random.default_rng(draw)
    chosen = rng.permutation(np.concatenate([whole.space.seen, whole.space.unseen]))[
        : seen + unseen
    ]
    rows = [rng.permutation(np.flatnonzero(whole.labels == c))[: own + tests] for c in chosen]
    return replace(
        whole,
        space=replace(
            whole.space,
            seen=np.sort(chosen[:seen]),
            validation=np.sort(chosen[: max(1, round(seen / 5))]),
            unseen=np.sort(chosen[seen:]),
        ),
        train=np.sort(np.concatenate([some[:own] for some in rows[:seen]])),
        test_seen=np.sort(np.concatenate([some[own:] for some in rows[:seen]])),
        test_unseen=np.sort(np.concatenate(rows[seen:])),
    )


def answered(
    kind: type[ClosedForm], settings: Any, benchmark: Benchmark, classes: NDArray[np.float32]
) -> tuple[Answers, Any, float]:
    """Return the answers to test samples of a method that one place solves, its settings in its
    units, its offset.
    """
    inputs = torch.from_numpy(benchmark.features)
    method = kind(
        settings, benchmark.space, torch.from_numpy(classes), Backbone((inputs.shape[1],))
    )
    rows = torch.from_numpy(benchmark.train)
    model = method.solve(method.statistics(inputs[rows], torch.from_numpy(benchmark.labels)[rows]))
    test = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    found = answer(
        [method.scores(model, inputs[test], method.semantics)],
        benchmark.labels[test],
        benchmark.space,
    )
    return found, settings.model_copy(update=method.units(model)), method.own_offset(model)


def by_turns(root: Path, draws: int, chosen: bool) -> None:
    """Print what the calibration offset of few validation classes gives, and that of all seen
    classes in turn.
    """
    print(
        f"{draws} draws of seen and unseen classes of AWA1_LAMPERT, 40 samples each; H in percent\n"
    )
    kinds = ("one", "own", "turns") if chosen else ("one", "turns")
    named = {"one": "few classes", "own": "turns, units of their own", "turns": "turns"}
    heads = " | ".join(f"{named[kind]} | lowest tenth" for kind in kinds)
    print(f"| seen, unseen classes | method | {heads} | none | in hindsight |")
    print("|---|---|" + "--:|" * (2 * len(kinds) + 2), flush=True)
    whole = load(root, "AWA1_LAMPERT")
    classes = whole.space.semantics - whole.space.semantics.mean(0)
    classes = (classes / np.linalg.norm(classes, axis=1, keepdims=True)).astype(np.float32)
    shapes: list[tuple[int, int, type[ClosedForm], Any]] = [
        (9, 3, Gaussian, Gaussian.Settings(shrinkage=0.3)),
        (6, 2, Gaussian, Gaussian.Settings(shrinkage=0.3)),
        (9, 3, Ridge, Ridge.Settings()),
        (9, 3, Gaussian, Gaussian.Settings()),
    ]
    shapes = [shape for shape in shapes if (getattr(shape[3], "shrinkage", 0.0) is None) == chosen]
    for seen, unseen, kind, settings in shapes:
        found: dict[str, list[float]] = {
            name: [] for name in ("one", "own", "turns", "none", "best")
        }
        for draw in range(draws):
            benchmark = few(whole, seen, unseen, draw)
            benchmark = replace(benchmark, features=unit(benchmark.features, benchmark.train))
            test, units, _ = answered(kind, settings, benchmark, classes)
            each = [turn.for_selection(draw) for turn in class_turns(benchmark, draw)]
            own = [answered(kind, settings, turn, classes)[0] for turn in each]
            some = (
                [answered(kind, units, turn, classes)[0] for turn in each]
                if units != settings
                else own
            )
            factors = {
                "one": best_offset(own[:1]),
                "own": best_offset(own),
                "turns": best_offset(some),
                "none": 0.0,
                "best": best_offset([test]),
            }
            for name, factor in factors.items():
                found[name].append(accuracies(test, factor).gzsl_harmonic)
        mean = {name: f"{np.mean(values):.1f}" for name, values in found.items()}
        low = {name: f"{np.quantile(values, 0.1):.1f}" for name, values in found.items()}
        cells = [part[name] for name in kinds for part in (mean, low)] + [
            mean["none"],
            mean["best"],
        ]
        print(f"| {seen}, {unseen} | {kind.__name__} | {' | '.join(cells)} |", flush=True)


def few_classes(sets: Sequence[tuple[str, Benchmark]], seeds: int) -> None:
    """Print accuracies with few seen classes: without an offset, and with the one from left-out
    classes.
    """
    heads = ("ZSL predicted", "ZSL", "H, no offset", "U", "S", "H", "H in hindsight")
    print(f"| data | seen, unseen classes | samples of each | {' | '.join(heads)} |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    shapes = [
        (name, whole, *shape)
        for (name, whole), *shape in itertools.product(sets, FEW_CLASSES, (20, 40))
    ]
    for name, whole, (seen, unseen), samples in shapes:
        rows = []
        for seed in range(seeds):
            benchmark = few(whole, seen, unseen, seed, samples, 60)
            benchmark = replace(benchmark, features=unit(benchmark.features, benchmark.train))
            classes = unit(benchmark.space.semantics, benchmark.space.seen)
            answers, _, offset = answered(
                Gaussian, Gaussian.Settings(calibration=True), benchmark, classes
            )
            none, found = accuracies(answers, -offset), accuracies(answers)
            best = accuracies(answers, best_offset([answers])).gzsl_harmonic
            inputs, train = torch.from_numpy(benchmark.features), torch.from_numpy(benchmark.train)
            about = benchmark.space, torch.from_numpy(classes), Backbone((inputs.shape[1],))
            method = Gaussian(Gaussian.Settings(calibration=True), *about)
            sums = method.statistics(inputs[train], torch.from_numpy(benchmark.labels)[train])
            predicted = estimates(method, sums, method.solve(sums))["left_out_accuracy"]["0"]
            u, s = found.gzsl_unseen, found.gzsl_seen
            rows.append((predicted, found.zsl, none.gzsl_harmonic, u, s, found.gzsl_harmonic, best))
        cells = " | ".join(f"{value:.1f}" for value in np.mean(rows, 0))
        print(f"| {name} | {seen}, {unseen} | {samples} | {cells} |", flush=True)


def of_seen(whole: Benchmark, seen: int, unseen: int, draw: int, own: int | None) -> Benchmark:
    """Return training samples alone, of some seen classes, ``unseen`` of which play unseen ones.

    ``own`` samples of a class train, by default four fifths; at most 60 others are tests.
    """
    rng = np.random.default_rng(7000 + draw)
    chosen = rng.permutation(whole.space.seen)[: seen + unseen]
    train: list[NDArray[np.int64]] = []
    tests: list[NDArray[np.int64]] = []
    for place, c in enumerate(chosen):
        rows = rng.permutation(whole.train[whole.labels[whole.train] == c])
        count = 0 if place >= seen else own or 4 * len(rows) // 5
        train.append(rows[:count])
        tests.append(rows[count : count + 60])
    space = replace(
        whole.space,
        seen=np.sort(chosen[:seen]),
        validation=np.array([], dtype=np.int64),
        unseen=np.sort(chosen[seen:]),
    )
    return replace(
        whole,
        space=space,
        train=np.concatenate(train),
        test_seen=np.concatenate(tests[:seen]),
        test_unseen=np.concatenate(tests[seen:]),
    )


def lengths(sets: Sequence[tuple[str, Benchmark]], seeds: int) -> None:
    """Print what bringing prototypes to one length adds, on seen classes that play unseen ones;
    test classes have no part in it.
    """
    cells = [f"{value:g}: ZSL | H" for value in LENGTHS]
    cells += ["standard error of the gain in H"]
    print(f"| data | seen, unseen classes | samples of each | {' | '.join(cells)} |")
    print(f"|---|---|--:{'|--:|--:' * len(LENGTHS)}|---|", flush=True)
    for name, whole in sets:
        many = len(whole.space.seen)
        played = len(whole.space.unseen)
        shapes = [(8, 2, 32), (16, 4, 32), (24, 6, 150), (many - played, played, None)]
        for seen, unseen, own in shapes[:1] if many < 40 else shapes:
            found = []
            for seed in range(seeds):
                drawn = of_seen(whole, seen, unseen, seed, own)
                scaler = Scaler.fit(drawn.features[drawn.train], ("l2",))
                drawn = replace(drawn, features=scaler(drawn.features))
                found.append([_with_length(drawn, value) for value in LENGTHS])
            numbers = " | ".join(f"{value:.1f}" for value in np.mean(found, 0).ravel())
            spread = np.std(np.array(found)[:, :, 1] - np.array(found)[:, :1, 1], axis=0)
            errors = ", ".join(f"{value / seeds**0.5:.1f}" for value in spread[1:])
            print(
                f"| {name} | {seen}, {unseen} | {own or 'all'} | {numbers} | {errors} |", flush=True
            )


def _with_length(benchmark: Benchmark, value: float) -> tuple[float, float]:
    """Return ZSL and the best harmonic mean with ``method.equalize``."""
    method, inputs = made(Gaussian, Gaussian.Settings(shrinkage=0.3, equalize=value), benchmark)
    train = torch.from_numpy(benchmark.train)
    model = method.solve(
        method.statistics(inputs[train], torch.from_numpy(benchmark.labels)[train])
    )
    rows = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    scores = method.known_scores(model, inputs[torch.from_numpy(rows)])
    answers = answer([scores], benchmark.labels[rows], benchmark.space)
    found = accuracies(answers, best_offset([answers]))
    return found.zsl, found.gzsl_harmonic


def per_class(answers: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """Return per-class accuracy in percent."""
    return 100 * float(np.mean([(answers[labels == c] == c).mean() for c in np.unique(labels)]))


def examples(root: Path, draws: int) -> None:
    """Print accuracies by the number of examples."""
    print(
        f"ZSL accuracy among the unseen classes, mean of {draws} draws of the examples, which are "
        "not tested\n"
    )
    print("| data | examples a class | description + examples | examples alone | nearest mean |")
    print("|---|--:|--:|--:|--:|")
    cifar = load(root, "CIFAR100_MBV2")
    sets = [
        ("AWA1_LAMPERT", load(root, "AWA1_LAMPERT")),
        ("CIFAR100_MBV2", cifar),
        (
            "FC100's novel classes",
            other_split(cifar, 0, np.array([cifar.space.names.index(name) for name in FC100])),
        ),
    ]
    for name, benchmark in sets:
        method, inputs = made(Gaussian, Gaussian.Settings(), benchmark)
        assert isinstance(method, Gaussian)
        labels, unseen = benchmark.labels, benchmark.space.unseen
        rows = torch.from_numpy(benchmark.train)
        model = method.solve(method.statistics(inputs[rows], torch.from_numpy(labels)[rows]))
        scaled = torch.from_numpy(unit(benchmark.features, benchmark.train))
        for shots in EXAMPLES:
            found: list[tuple[float, float, float]] = []
            for draw in range(draws if shots else 1):
                rng = np.random.default_rng(draw)
                rows_of = {
                    c: benchmark.test_unseen[labels[benchmark.test_unseen] == c] for c in unseen
                }
                chosen = {c: rng.permutation(rows)[:shots] for c, rows in rows_of.items()}
                taken = np.concatenate(list(chosen.values())).astype(np.int64)
                tested = np.setdiff1d(benchmark.test_unseen, taken)
                count = torch.zeros(len(labels), dtype=torch.float64)[: len(benchmark.space.names)]
                total = torch.zeros(len(count), inputs.shape[1], dtype=torch.float64)
                for c, own in chosen.items():
                    count[c], total[c] = len(own), inputs[own].double().sum(0)
                both = predicted(
                    method.extend(model, method.semantics, count, total), inputs[tested], unseen
                )
                alone = nearest = np.full(len(tested), -1)
                if shots:
                    without = np.ones(len(count), dtype=bool)
                    without[unseen] = False
                    undescribed = model | {"described": torch.from_numpy(without).double()}
                    alone = predicted(
                        method.extend(undescribed, method.semantics, count, total, without),
                        inputs[tested],
                        unseen,
                    )
                    means = torch.stack([scaled[chosen[c]].mean(0) for c in unseen])
                    nearest = unseen[torch.cdist(scaled[tested], means).argmin(1).numpy()]
                found.append(
                    tuple(per_class(one, labels[tested]) for one in (both, alone, nearest))
                )  # type: ignore[arg-type]
            mean = np.mean(found, 0)
            rest = " | ".join(f"{value:.1f}" for value in mean[1:]) if shots else "- | -"
            print(f"| {name} | {shots} | {mean[0]:.1f} | {rest} |", flush=True)


def predicted(model: Params, inputs: Tensor, among: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the best of some classes for each sample."""
    at = torch.from_numpy(among)
    scores = (inputs.double() - model["centre"]) @ model["weight"][at].T + model["bias"][at]
    return np.asarray(among[scores.argmax(1).numpy()])


def space_of(classes: int, attributes: int, unseen: int = 0) -> ClassSpace:
    """Make up a class space."""
    semantics = np.random.default_rng(0).normal(size=(classes, attributes))
    names = tuple(f"class {c}" for c in range(classes))
    words = tuple(f"attribute {a}" for a in range(attributes))
    return ClassSpace(
        names, semantics, words, range(classes - unseen), [], range(classes - unseen, classes)
    )


def peak() -> float:
    """Return this process's peak memory in MiB."""
    status = Path(
        "/proc/self/status"
    ).read_text()  # Linux; getrusage would count the parent's memory too
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def write_rows(folder: Path, samples: int, width: int, classes: int) -> None:
    """Write made-up samples of classes, described by ten attributes, and their labels."""
    rng = np.random.default_rng(0)
    on_disk = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (samples, width))
    means = (space_of(classes, 10).semantics @ rng.normal(size=(10, width))).astype(np.float32)
    labels = rng.integers(classes - classes // 10, size=samples)
    noise = 3 * rng.standard_normal((10_000, width), dtype=np.float32)
    for start in range(0, samples, len(noise)):
        own = labels[start : start + len(noise)]
        on_disk[start : start + len(own)] = (
            means[own] + np.roll(noise, start // len(noise), axis=1)[: len(own)]
        )
    np.save(folder / "y.npy", labels)


def mapped(samples: int, width: int, classes: int) -> None:
    """Fit a classifier to samples on disk, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        write_rows(Path(folder), samples, width, classes)
        shape = map(str, (samples, width, classes))
        subprocess.run(
            [sys.executable, __file__, "fitted", "--root", folder, "--shape", *shape], check=True
        )


def fitted(folder: Path, samples: int, width: int, classes: int) -> None:
    """Print what ``fit`` takes for samples on disk, and the matrix products of its statistics
    alone.
    """
    from fedunseen import ZeroShotClassifier
    from fedunseen.methods.closed_form.statistics import BLOCK, add_products

    codes = torch.randint(-127, 128, (8 * BLOCK, width), dtype=torch.int8)
    times, square = [], torch.zeros(width, width, dtype=torch.int64)
    for _ in range(4):
        started = time.process_time()
        add_products(square, codes)
        times.append(time.process_time() - started)
    product = float(np.median(times[1:])) * samples / len(codes)
    labels, table = np.load(folder / "y.npy"), dict(enumerate(space_of(classes, 10).semantics))
    inputs, before, spent = np.load(folder / "x.npy", mmap_mode="r"), anonymous(), [0.0]
    sums = ClosedForm.statistics

    def timed(method: ClosedForm, *given: Any) -> Params:
        started = time.process_time()
        found = sums(method, *given)
        spent[0] += time.process_time() - started
        return found

    ClosedForm.statistics = timed  # type: ignore[method-assign]
    kept, done = [before], threading.Event()
    watch = threading.Thread(
        target=lambda: [kept.append(anonymous()) for _ in iter(lambda: done.wait(0.05), True)]
    )
    watch.start()
    started = time.process_time()
    ZeroShotClassifier(calibration=0.0).fit(inputs, labels, classes=table)
    seconds = time.process_time() - started
    done.set()
    watch.join()
    what, most = (
        f"{samples:,} x {width} samples on disk ({samples * width * 4 / 2**20:,.0f} MiB)",
        max(kept),
    )
    memory = f"{most:,.0f} ({before:,.0f} of them before); of the file at most {peak() - most:,.0f}"
    print(f"| matrix products of {what} alone | {product:.1f} | |")
    print(
        f"| their statistics, at {product / spent[0]:.0%} of the products' speed | {spent[0]:.1f} "
        "| |"
    )
    print(
        f"| `ZeroShotClassifier.fit` with them, at {product / seconds:.0%} | {seconds:.1f} | "
        f"{memory} |",
        flush=True,
    )


def anonymous() -> float:
    """Return this process's memory in MiB that belongs to no file."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


def solved(width: int, classes: int) -> None:
    """Solve sums of made-up classes, twice as many samples as features."""
    space = space_of(classes, 64, classes // 10)
    rng = np.random.default_rng(1)
    samples = max(2 * width, 4 * classes)
    labels = torch.from_numpy(rng.integers(len(space.seen), size=samples))
    semantics = torch.from_numpy(space.semantics).float()
    lift = torch.from_numpy(rng.normal(size=(64, width))).float() / 8
    inputs = (semantics @ lift)[labels] + torch.randn(samples, width)
    method = Gaussian(Gaussian.Settings(), space, semantics, Backbone((width,)))
    started = time.process_time()
    sums = method.statistics(inputs, labels)
    first = time.process_time() - started
    model = method.solve(sums)
    second = time.process_time() - started - first
    print(
        f"| sums of {samples:,} samples, {width} features, {classes:,} classes "
        f"({size_in_bytes(sums) / 2**20:,.0f} MiB) | {first:.1f} | |\n| their model, all settings "
        f"at their defaults | {second:.1f} | {peak():,.0f} |",
        flush=True,
    )
    assert bool(torch.isfinite(model["weight"]).all())


def described(width: int, classes: int) -> None:
    """Add a class by its description to a model of many."""
    space = space_of(classes, 85)
    semantics = torch.from_numpy(space.semantics).float()
    method = Gaussian(Gaussian.Settings(), space, semantics, Backbone((width,)))
    model = {
        "kernel": torch.tensor([0.05, 0.01, 20.0, 0.3], dtype=torch.float64),
        "count": torch.ones(classes, dtype=torch.float64),
        "described": torch.ones(classes, dtype=torch.float64),
        "dual_coefficients": torch.randn(classes, width, dtype=torch.float64),
        "precision": torch.eye(width, dtype=torch.float64),
    }
    new, times = torch.randn(1, 85), []
    for _ in range(20):
        started = time.process_time()
        method.describe(model, new)
        times.append(time.process_time() - started)
    print(
        f"| one more class by its description, beside {classes:,} classes of {width} features | "
        f"{np.median(times):.4f} | |",
        flush=True,
    )


def sizes(smallest: bool) -> None:
    """Print seconds and memory."""
    print("| what | processor seconds, one thread | peak memory, MiB |\n|---|--:|--:|")
    torch.set_num_threads(1)
    mapped(*((20_000, 64, 100) if smallest else (1_000_000, 2048, 1000)))
    described(64 if smallest else 512, 1000 if smallest else 10_000)
    for width, classes in [(64, 50)] if smallest else [(2048, 1000), (8192, 200)]:
        solved(width, classes)


ON_SETS = {
    "private": private,
    "floor": floors,
    "attacked": attacked,
    "few": few_classes,
    "lengths": lengths,
}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what",
        nargs="?",
        default="sizes",
        choices=(
            "reach",
            "examples",
            "start",
            "same",
            "private",
            "floor",
            "attacked",
            "turns",
            "few",
            "lengths",
            "bits",
            "speed",
            "sizes",
            "mapped",
            "fitted",
        ),
    )
    parser.add_argument("--root", type=Path, help="the folder that holds the xlsa17 data sets")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument(
        "--sets", type=lambda text: text.split(","), default=SETS, help="start, same: data sets"
    )
    parser.add_argument(
        "--chosen", action="store_true", help="turns: each model finds its own shrinkage"
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--smallest", action="store_true")
    parser.add_argument("--shape", type=int, nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.what == "sizes":
        sizes(given.smallest)
    elif given.what == "speed":
        speed()
    elif given.what == "mapped":
        mapped(*(given.shape or (1_000_000, 2048, 1000)))
    elif given.what == "fitted":
        torch.set_num_threads(1)
        fitted(given.root, *given.shape)
    elif given.what == "same" and given.smallest:
        same(Path(), ["digit-pairs"], 1, smallest=True)
    elif given.what in ON_SETS and given.smallest:
        global FLOORS, EPSILONS, FEW_CLASSES
        FLOORS, EPSILONS, FEW_CLASSES = (1.0,), (8.0,), ((5, 2),)
        ON_SETS[given.what]([("made up", made_up(20, 6, 12))], 1)
    elif given.root is None:
        parser.error("--root: say where the xlsa17 data sets are")
    elif given.what == "start":
        start(given.root, given.sets, given.rounds, given.seeds)
    elif given.what == "same":
        same(given.root, given.sets, given.seeds)
    elif given.what in ON_SETS:
        ON_SETS[given.what]([(name, load(given.root, name)) for name in given.sets], given.seeds)
    elif given.what == "bits":
        bits(given.root)
    elif given.what == "turns":
        by_turns(given.root, given.draws, given.chosen)
    else:
        reach(given.root) if given.what == "reach" else examples(given.root, given.draws)


if __name__ == "__main__":
    main()
