"""Unlabelled samples: what adapting a closed form to them reaches, and where it could do harm.

    python benchmarks/accuracy/unlabelled.py PART [--root FOLDER_WITH_XLSA17] [--smallest]

    reach     inductive and transductive, three class splits
    choose    how the defaults were chosen
    guard     pools that could do harm, ten draws each
    draws     10 to 20 classes of photos, ten draws each
    beside    self-training, EM, propagation, TransCLIP
    parties   one party's pool alone against all pools
    episodes  few-shot: FC100 and Omniglot, soft k-means
    ridge     ridge solved again with soft sums

Inductive: the pool is a random half of all test samples, seen and unseen classes mixed; the other
half is measured. Transductive: the pool is all test samples of unseen classes, which are then
measured among unseen classes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.semi_supervised import LabelSpreading

from fedunseen import Experiment, ZeroShotClassifier
from fedunseen.data.benchmarks.xlsa17 import Xlsa17
from fedunseen.experiment.assemble import load_data
from fedunseen.methods.closed_form.unlabelled import Adaptation

# FC100's novel classes (Oreshkin et al. 2018): four superclasses of CIFAR-100
FC100 = (
    "beaver", "dolphin", "otter", "seal", "whale", "bee", "beetle", "butterfly", "caterpillar", "cockroach",
    "fox", "porcupine", "possum", "raccoon", "skunk", "baby", "boy", "girl", "man", "woman",
)  # fmt: skip
SETS = ("AWA1_LAMPERT", "CIFAR100_MBV2")
DIGITS = "digit-pairs"
Rows = NDArray[Any]


@dataclass(frozen=True)
class Split:
    """Samples, which of them train, and test samples of seen and of unseen classes."""

    x: Rows
    y: Rows
    table: dict[str, Rows]
    train: Rows
    seen: Rows
    unseen: Rows

    def fit(
        self, rows: Rows | None = None, classes: Sequence[str] | None = None
    ) -> ZeroShotClassifier:
        """Train on the training samples."""
        rows = self.train if rows is None else rows
        table = self.table if classes is None else {name: self.table[name] for name in classes}
        return ZeroShotClassifier().fit(self.x[rows], self.y[rows], classes=table)

    def halves(self, seed: int) -> tuple[Rows, Rows]:
        """Return a pool and the test samples that are measured."""
        rows = np.random.default_rng(seed).permutation(np.concatenate([self.seen, self.unseen]))
        return rows[: len(rows) // 2], rows[len(rows) // 2 :]


def load(root: Path | None, dataset: str, split: int) -> Split:
    """Read a data set with its own class split (0) or a drawn one; without a folder, make one
    up.
    """
    if root is None:
        rng = np.random.default_rng(0)
        table = rng.standard_normal((12, 4))
        y = np.repeat(np.arange(12), 90)
        x = (3 * table @ rng.standard_normal((4, 8)))[y] + rng.standard_normal((len(y), 8))
        unseen, given = np.arange(9, 12), None
        names = np.array([f"class {c:02}" for c in range(12)])
    else:
        data = (
            load_data(Experiment.load("digit-pairs-gaussian"), 0)
            if dataset == DIGITS
            else Xlsa17.load(Xlsa17.Settings(name="xlsa17", root=root, dataset=dataset), 0)
        )
        x, y, table = np.asarray(data.features, np.float32), data.labels, data.space.semantics
        names, unseen, given = np.array(data.space.names), data.space.unseen, data
    rng = np.random.default_rng(1000 + split)
    if given is not None and split == 0:
        train, seen_rows, unseen_rows = given.train, given.test_seen, given.test_unseen
    else:
        if split:
            unseen = np.sort(rng.choice(len(names), len(unseen), replace=False))
        rows = rng.permutation(len(y))
        unseen_rows, others = rows[np.isin(y[rows], unseen)], rows[~np.isin(y[rows], unseen)]
        train, seen_rows = np.split(others, [int(0.8 * len(others))])
    return Split(
        x, names[y], dict(zip(names.tolist(), table, strict=True)), train, seen_rows, unseen_rows
    )


def measure(
    model: ZeroShotClassifier, split: Split, rows: Rows, scores: Rows | None = None
) -> Rows:
    """Return ZSL, U, S and H in percent of samples."""
    scores = model.scores(split.x[rows]) if scores is None else scores
    labels, unseen = model.ids(split.y[rows]), np.flatnonzero(~model.seen_)

    def mean(answers: Rows, classes: Rows) -> float:
        right = [(answers[labels == c] == c).mean() for c in classes if (labels == c).any()]
        return 100 * float(np.mean(right)) if right else 0.0

    answers = scores.argmax(1)
    u, s = mean(answers, unseen), mean(answers, np.flatnonzero(model.seen_))
    return np.array(
        [mean(unseen[scores[:, unseen].argmax(1)], unseen), u, s, 2 * u * s / max(u + s, 1e-9)]
    )


def adapted(
    model: ZeroShotClassifier, pool: Rows, among: str = "all", **settings: Any
) -> ZeroShotClassifier:
    """Adapt with settings of :class:`Adaptation` in place of the defaults."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.adapt(pool, among=among, settings=Adaptation(**settings))  # type: ignore[arg-type]


def reach(root: Path | None, seeds: int) -> None:
    """Print the accuracies before and after."""
    print("| data | classes | ZSL | U | S | H | ZSL after | U | S | H | transductive ZSL | after |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for dataset in (*SETS, DIGITS):
        for number in range(1 if dataset == DIGITS else 3):
            split = load(root, dataset, number)
            model, found = split.fit(), []
            for seed in range(seeds):
                pool, rows = split.halves(seed)
                found.append(
                    [
                        measure(model, split, rows),
                        measure(adapted(model, split.x[pool]), split, rows),
                    ]
                )
            before, after = np.mean(found, 0)
            transductive = adapted(model, split.x[split.unseen], "unseen")
            pair = [measure(one, split, split.unseen)[0] for one in (model, transductive)]
            numbers = " | ".join(f"{value:.1f}" for value in (*before, *after, *pair))
            print(
                f"| {dataset} | {'published' if number == 0 else f'drawn {number}'} | {numbers} |",
                flush=True,
            )


def choose(root: Path | None, seeds: int) -> None:
    """Print H with settings chosen on seen classes in turn, by evidence and fixed."""
    grid = [
        {"weight": w, "floor": f, "iterations": 4} for w in (0.1, 0.2, 0.3, 1.0) for f in (0.0, 0.1)
    ]
    grid += [{"weight": 0.2, "floor": 0.1, "iterations": t} for t in (1, 3, 5, 6)]
    print(
        "| data | classes | before | default | weight 0.3 | 0.1 | in turn | chosen | evidence | "
        "best in hindsight |"
    )
    print("|---|---|--:|--:|--:|--:|--:|---|--:|--:|")
    for dataset in SETS:
        for number in range(3):
            split = load(root, dataset, number)
            turns = np.mean([in_turn(split, grid, fold) for fold in range(seeds)], 0)
            model, found = split.fit(), []
            for seed in range(seeds):
                pool, rows = split.halves(seed)
                each = [
                    measure(adapted(model, split.x[pool], **one), split, rows)[3] for one in grid
                ]
                found.append([measure(model, split, rows)[3], *each])
            before, *each = np.mean(found, 0)
            place = {tuple(one.values()): value for one, value in zip(grid, each, strict=True)}
            best = grid[int(np.argmax(turns))]
            by_round = {
                one["iterations"]: h
                for one, h in zip(grid, turns, strict=True)
                if one["weight"] == 0.2 and one["floor"]
            }
            print(
                "in turn, by iterations: "
                f"{', '.join(f'{t}: {by_round[t]:.1f}' for t in sorted(by_round))}",
                file=sys.stderr,
            )
            numbers = [
                before,
                place[0.2, 0.1, 4],
                place[0.3, 0.1, 4],
                place[0.1, 0.1, 4],
                place[tuple(best.values())],
            ]
            said = ", ".join(f"{value:g}" for value in best.values())
            # soft means lie closer to the prior than 1 / n allows, so that their evidence grows up
            # to weight 1, floor 0
            print(
                f"| {dataset} | {number} | {' | '.join(f'{value:.1f}' for value in numbers)} | "
                f"{said} | {place[1.0, 0.0, 4]:.1f} | {max(each):.1f} |",
                flush=True,
            )


def in_turn(split: Split, grid: Sequence[dict[str, Any]], fold: int) -> list[float]:
    """Return H of each setting where some seen classes play the unseen ones; no sample of an unseen
    class is read.
    """
    rng = np.random.default_rng(fold)
    names = np.unique(split.y[split.train])
    playing = rng.choice(names, max(1, len(split.table) - len(names)), replace=False)
    rows = rng.permutation(split.train)
    out = np.isin(split.y[rows], playing)
    unseen, train, kept = rows[out], *np.split(rows[~out], [int(0.8 * (~out).sum())])
    inner = Split(
        split.x, split.y, {name: split.table[name] for name in names.tolist()}, train, kept, unseen
    )
    model, (pool, tests) = inner.fit(), inner.halves(fold)
    return [float(measure(adapted(model, split.x[pool], **one), inner, tests)[3]) for one in grid]


def pools(split: Split, seed: int, other: dict[str, Rows]) -> tuple[dict[str, Rows], Rows]:
    """Return pools that could do harm, and the test samples."""
    pool, rows = split.halves(seed)
    rng = np.random.default_rng(100 + seed)
    is_unseen = np.isin(pool, split.unseen)
    order = rng.permutation(np.unique(split.y[split.unseen]))
    shares = dict(zip(order, 50.0 ** -np.linspace(0, 1, len(order)), strict=True))
    skewed = [
        i
        for i, out in zip(pool, is_unseen, strict=True)
        if not out or rng.random() < shares[split.y[i]]
    ]
    some = ~is_unseen | np.isin(split.y[pool], order[: max(1, round(0.3 * len(order)))])
    noise = (
        np.abs(rng.standard_normal((500, split.x.shape[1]))) * np.abs(split.x[split.train]).mean()
    )
    found = {
        "half of the test samples": split.x[pool],
        "no unseen class": split.x[pool[~is_unseen]],
        "unseen classes skewed 50 : 1": split.x[skewed],
        "30 % of the unseen classes": split.x[pool[some]],
        "50 samples": split.x[rng.permutation(pool)[:50]],
        "noise": noise,
        **{name: rng.permutation(one)[: len(one) // 2] for name, one in other.items()},
    }
    for name, one in other.items():
        found[f"{name} and as many samples"] = np.concatenate(
            [one, split.x[rng.permutation(pool)[: len(one)]]]
        )
    return found, rows


def guard(root: Path | None, draws: int, other: dict[str, Rows]) -> None:
    """Print the change of H, with and without the guard."""
    print("| data | pool | H before | change | the worst draw | without the guard |")
    print("|---|---|--:|--:|--:|--:|")
    for dataset in SETS:
        for number in range(2):
            split = load(root, dataset, number)
            model = split.fit()
            found: dict[str, list[list[float]]] = {}
            for seed in range(draws):
                each, rows = pools(split, seed, other if dataset.startswith("CIFAR") else {})
                before = measure(model, split, rows)[3]
                for name, pool in each.items():
                    after = [
                        measure(adapted(model, pool, guard=on), split, rows)[3] - before
                        for on in (True, False)
                    ]
                    found.setdefault(name, []).append([before, *after])
            for name, values in found.items():
                before, change, bare = np.mean(values, 0)
                worst = min(value[1] for value in values)
                print(
                    f"| {dataset} {number} | {name} | {before:.1f} | {change:+.1f} | {worst:+.1f} "
                    f"| {bare:+.1f} |",
                    flush=True,
                )


def drawn(split: Split, classes: int, draw: int) -> tuple[Split, dict[str, Rows], Rows]:
    """Return a draw of classes as a split, its pools of photos, and the rows that are measured."""
    rng = np.random.default_rng(draw)
    names = rng.choice(sorted(split.table), min(classes, len(split.table)), replace=False)
    unseen = names[: max(2, round(classes / 5))]
    rows = {name: rng.permutation(np.flatnonzero(split.y == name)) for name in names}
    train, pool, tests = (
        np.concatenate([own[part] for own in rows.values()])
        for part in (slice(32), slice(32, 72), slice(72, None))
    )
    small = Split(
        split.x, split.y, {name: split.table[name] for name in names.tolist()}, train[~np.isin(split.y[train], unseen)],
        tests[~np.isin(split.y[tests], unseen)], tests[np.isin(split.y[tests], unseen)],
    )  # fmt: skip
    new = np.isin(split.y[pool], unseen)
    some = ~new | np.isin(split.y[pool], unseen[: max(1, round(0.3 * len(unseen)))])
    found = {
        "all classes": pool,
        "no unseen class": pool[~new],
        "30 % of the unseen classes": pool[some],
        "50 samples": rng.permutation(pool)[:50],
    }
    return small, found, tests


def draws(root: Path | None, count: int) -> None:
    """Print the change of H where few classes of photos are drawn."""
    print(
        "| classes | pool | H before | change | the worst draw | refused draws "
        "|\n|--:|---|--:|--:|--:|--:|"
    )
    whole = load(root, SETS[1], 0)
    for classes in (10, 12, 20):
        found: dict[str, list[tuple[float, float, bool]]] = {}
        for draw in range(count):
            split, pools, tests = drawn(whole, classes, draw)
            model = split.fit()
            before = measure(model, split, tests)[3]
            for name, pool in pools.items():
                after = adapted(model, split.x[pool])
                unchanged = np.array_equal(
                    after._model.params["weight"], model._model.params["weight"]
                )
                found.setdefault(name, []).append(
                    (before, measure(after, split, tests)[3] - before, unchanged)
                )
        for name, values in found.items():
            before, change, refused = np.mean(values, 0)
            worst, numbers = min(value[1] for value in values), f"{before:.1f} | {change:+.1f}"
            print(
                f"| {classes} | {name} | {numbers} | {worst:+.1f} | {refused * count:.0f} of "
                f"{count} |",
                flush=True,
            )


def beside(root: Path | None, seeds: int) -> None:
    """Print other ways to use the same pool, with the same features and calibration offset."""
    ways: dict[str, Callable[[ZeroShotClassifier, Rows, Rows], Rows]] = {
        "before": lambda model, _, tests: model.scores(tests),
        "adapt": lambda model, pool, tests: adapted(model, pool).scores(tests),
        "expectation maximization": lambda model, pool, tests: adapted(
            model, pool, weight=1.0, floor=0.0, iterations=20, guard=False
        ).scores(tests),
        "self-training": self_training,
        "label spreading": spreading,
        "TransCLIP": transclip,
    }
    print("| data | way | ZSL | U | S | H |\n|---|---|--:|--:|--:|--:|")
    for dataset in SETS:
        split = load(root, dataset, 0)
        model = split.fit()
        for name, way in ways.items():
            found = []
            for seed in range(seeds):
                pool, rows = split.halves(seed)
                found.append(measure(model, split, rows, way(model, split.x[pool], split.x[rows])))
            print(
                f"| {dataset} | {name} | "
                f"{' | '.join(f'{value:.1f}' for value in np.mean(found, 0))} |",
                flush=True,
            )


def whitened(model: ZeroShotClassifier, rows: Rows) -> Rows:
    """Return samples in coordinates in which the model's covariance is the identity."""
    params = model._model.params
    root = torch.linalg.cholesky(params["precision"])
    inputs = torch.from_numpy(model._model.scaler(rows)).double()
    return np.asarray((inputs - params["centre"]) @ root)


def prototypes(model: ZeroShotClassifier) -> Rows:
    """Return the prototypes (C, d) in the same coordinates."""
    params = model._model.params
    root = torch.linalg.cholesky(params["precision"])
    return np.asarray(torch.linalg.solve_triangular(root, params["weight"].T, upper=False).T)


def softmax(scores: Rows) -> Rows:
    """Return (n, C) shares."""
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def self_training(model: ZeroShotClassifier, pool: Rows, tests: Rows) -> Rows:
    """Train again with the pool's confident answers (share above 0.9) as labels, three times."""
    z, centres = whitened(model, pool), prototypes(model)
    penalty = model.calibration_ * model.seen_
    now = centres.copy()
    for _ in range(3):
        share = softmax(z @ now.T - (now**2).sum(1) / 2 - penalty)
        answer = np.where(share.max(1) > 0.9, share.argmax(1), -1)
        for c in np.flatnonzero(~model.seen_):
            if (answer == c).any():
                now[c] = z[answer == c].mean(0)
    return np.asarray(whitened(model, tests) @ now.T - (now**2).sum(1) / 2 - penalty)


def spreading(model: ZeroShotClassifier, pool: Rows, tests: Rows) -> Rows:
    """Spread the model's confident answers over the graph of 10 neighbors of pool and tests
    (scikit-learn).
    """
    z = np.concatenate([whitened(model, pool), whitened(model, tests)])
    share = softmax(model.scores(np.concatenate([pool, tests])))
    known = np.zeros(len(z), dtype=bool)
    for c in range(share.shape[1]):  # the ten surest of each class
        known[np.argsort(-share[:, c])[:10]] = True
    labels = np.where(known, share.argmax(1), -1)
    graph = LabelSpreading(kernel="knn", n_neighbors=10, alpha=0.5, max_iter=50).fit(z, labels)
    scores = np.full(share.shape, -1.0)
    scores[:, graph.classes_] = graph.label_distributions_
    return scores[len(pool) :] + 1e-6 * share[len(pool) :]


def transclip(model: ZeroShotClassifier, pool: Rows, tests: Rows) -> Rows:
    """TransCLIP (Zanella et al., NeurIPS 2024, zero-shot): assignments, means and a diagonal
    covariance in turn.

    The likelihood is divided by 50, without which it is worse here: features are not those of CLIP.
    """
    z, t = whitened(model, pool), whitened(model, tests)
    z, t = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (z, t))
    prior, theirs = softmax(model.scores(pool)), softmax(model.scores(tests))
    near = np.argsort(-(z @ z.T), axis=1)[:, 1:4]
    weight = np.take_along_axis(z @ z.T, near, 1).clip(min=0)
    share = prior.copy()
    means = np.stack([z[np.argsort(-prior[:, c])[:8]].mean(0) for c in range(prior.shape[1])])
    variance = np.full(z.shape[1], 1 / z.shape[1])

    def likelihood(rows: Rows) -> Rows:
        scaled = means / variance
        return np.asarray(rows @ scaled.T - (means * scaled).sum(1) / 2)

    for _ in range(10):
        for _ in range(5):
            pull = (weight[:, :, None] * share[near]).sum(1)
            share = softmax(np.log(prior + 1e-12) + likelihood(z) / 50 + pull)
        means = share.T @ z / share.sum(0).clip(min=1e-6)[:, None]
        variance = ((z**2).sum(0) - (share.T @ z * means).sum(0)).clip(min=1e-12) / len(z)
    return np.asarray(np.log(theirs + 1e-12) + likelihood(t) / 50)


def parties(root: Path | None, seeds: int) -> None:
    """Print what the pools of ten parties with other classes give: one alone, and all."""
    print(
        "| data | H before | one party's pool | all ten pools | bytes up a round | down "
        "|\n|---|--:|--:|--:|--:|--:|"
    )
    for dataset in SETS:
        split = load(root, dataset, 0)
        model, found = split.fit(), []
        names = sorted(split.table)
        for seed in range(seeds):
            pool, rows = split.halves(seed)
            owner = dict(
                zip(
                    np.random.default_rng(seed).permutation(names),
                    np.arange(len(names)) % 10,
                    strict=True,
                )
            )
            who = np.array([owner[name] for name in split.y[pool]])
            alone = [
                measure(adapted(model, split.x[pool[who == k]]), split, rows)[3]
                for k in range(10)
                if (who == k).sum() > 9
            ]
            whole = measure(adapted(model, split.x[pool]), split, rows)[3]
            found.append([measure(model, split, rows)[3], float(np.mean(alone)), whole])
        numbers = " | ".join(f"{value:.1f}" for value in np.mean(found, 0))
        classes, width = model._model.params["weight"].shape
        up, down = 4 * (1 + classes * (width + 1)), 4 * classes * width + 8 * classes
        print(f"| {dataset} | {numbers} | {up / 1e3:.0f} kB | {down / 1e3:.0f} kB |", flush=True)


def episodes(root: Path | None, seeds: int) -> None:
    """Print 5-way accuracies on novel classes, from examples alone: all other classes are seen."""
    split = load(root, SETS[1], 0)
    novel = np.array(
        [name for name in sorted(split.table) if name in FC100] or sorted(split.table)[-5:]
    )
    sources = {"FC100": (split, novel, 30, 15)}
    if root is not None and (root.parent / "omniglot").is_dir():
        sources["Omniglot"] = *omniglot(root.parent / "omniglot"), 10, 5
    print(
        "| data | shots | ProtoNet on the features | soft k-means | gaussian | gaussian, adapted |"
    )
    print("|---|--:|--:|--:|--:|--:|")
    for name, (split, novel, pool, queries) in sources.items():
        seen = np.setdiff1d(sorted(split.table), novel)
        rows = np.flatnonzero(np.isin(split.y, seen))
        model = ZeroShotClassifier().fit(
            split.x[rows], split.y[rows], classes={one: split.table[one] for one in seen}
        )
        for shot in (1, 5):
            sizes = np.cumsum([shot, pool, queries])
            found = [
                episode(split, model, novel, sizes, draw)
                for draw in range(20 * seeds if root else 2)
            ]
            mean, spread = np.mean(found, 0), 1.96 * np.std(found, 0) / np.sqrt(len(found))
            numbers = " | ".join(
                f"{value:.1f} ± {more:.1f}" for value, more in zip(mean, spread, strict=True)
            )
            print(f"| {name} | {shot} | {numbers} |", flush=True)


def omniglot(folder: Path) -> tuple[Split, Rows]:
    """Return features of a ProtoNet that five clients train for five rounds, and the characters of
    novel alphabets.
    """
    from fedunseen import Experiment, run
    from fedunseen.experiment.assemble import load_data
    from fedunseen.experiment.run_encoder import RunEncoder, RunEncoderSettings

    settings = {
        "data.root": str(folder), "method.name": "protonet", "encoder.norm": "group", "strategy.rounds": 5,
        "method.rotations": False, "evaluation.embedding": False, "evaluation.selection": "last",
    }  # fmt: skip
    experiment = Experiment.load("omniglot-maml", settings)
    data = load_data(experiment, 0)
    with tempfile.TemporaryDirectory() as place:
        done = run(experiment, Path(place) / "run")
        encoder = RunEncoder(
            RunEncoderSettings(model=done.path), data.features.shape[1:], "vectors"
        )
        features = encoder.encode(data.features)
    names, nothing = np.array(data.space.names), np.zeros(0, dtype=np.int64)
    described = np.random.default_rng(0).standard_normal(
        (len(names), 16)
    )  # descriptions that say nothing
    split = Split(
        features,
        names[data.labels],
        dict(zip(names, described, strict=True)),
        data.train,
        nothing,
        nothing,
    )
    return split, names[data.space.unseen]


def episode(
    split: Split, model: ZeroShotClassifier, novel: Rows, sizes: Rows, draw: int
) -> list[float]:
    """Return four accuracies of an episode of 5 classes, each with examples, unlabelled samples and
    queries.
    """
    rng = np.random.default_rng(draw)
    classes = rng.choice(novel, min(5, len(novel)), replace=False)
    drawn = np.stack([rng.permutation(np.flatnonzero(split.y == c))[: sizes[2]] for c in classes])
    support, pool, query = np.split(drawn, sizes[:2], axis=1)
    shot, pool = support.shape[1], pool.ravel()
    answer, query = np.repeat(np.arange(len(classes)), query.shape[1]), query.ravel()
    rows = split.x[np.concatenate([query, support.ravel(), pool])] - split.x[split.train].mean(0)
    rows = 8 * rows / np.linalg.norm(rows, axis=1, keepdims=True)
    z, labelled, free = np.split(rows, np.cumsum([len(query), support.size]))

    def right(scores: Rows) -> float:
        return 100 * float((scores.argmax(1) == answer).mean())

    means = labelled.reshape(*support.shape, -1).mean(1)
    refined = means
    for _ in range(3):  # Ren et al., 2018: soft k-means, the examples count in full
        share = softmax(free @ refined.T - (refined**2).sum(1) / 2)
        refined = (shot * means + share.T @ free) / (shot + share.sum(0))[:, None]
    learned = model.learn(
        examples={f"new {c}": split.x[own] for c, own in zip(classes, support, strict=True)}
    )
    ours = [
        one.scores(split.x[query])[:, -len(classes) :]
        for one in (learned, adapted(learned, split.x[pool], "unseen"))
    ]
    return [right(z @ one.T - (one**2).sum(1) / 2) for one in (means, refined)] + [
        right(one) for one in ours
    ]


def ridge(root: Path | None, seeds: int) -> None:
    """Print what ``ridge`` gains if it is solved again with soft sums, second moments included,
    three times.
    """
    print("| data | weight | ZSL | U | S | H |\n|---|--:|--:|--:|--:|--:|")
    for dataset in SETS:
        split = load(root, dataset, 0)
        model = ZeroShotClassifier("ridge").fit(
            split.x[split.train], split.y[split.train], classes=split.table
        )
        for weight in (0.0, 0.1, 0.3, 1.0):
            found = np.mean([soft_ridge(split, model, weight, seed) for seed in range(seeds)], 0)
            print(
                f"| {dataset} | {weight} | {' | '.join(f'{value:.1f}' for value in found)} |",
                flush=True,
            )


def soft_ridge(split: Split, model: ZeroShotClassifier, weight: float, seed: int) -> Rows:
    """Return ZSL, U, S and H after three iterations; a sample of the pool counts ``weight``."""
    method = model._model.method
    seen, (pool, rows) = torch.from_numpy(model.seen_), split.halves(seed)
    x, labels = (
        torch.from_numpy(model._model.scaler(split.x)).double(),
        torch.from_numpy(model.ids(split.y)),
    )

    def solved(parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
        sums = [
            (r.sum(0), r.T @ part, (part * r.sum(1, keepdim=True)).T @ part) for r, part in parts
        ]
        each = zip(("count", "total", "square"), zip(*sums, strict=True), strict=True)
        return method.solve({name: sum(values) for name, values in each})

    def scores(params: dict[str, torch.Tensor], some: Rows) -> torch.Tensor:
        return (
            method.scores(params, x[some].float(), method.semantics.float())
            - model.calibration_ * seen
        )

    labelled = torch.nn.functional.one_hot(labels[split.train], len(seen)).double(), x[split.train]
    params = solved([labelled])
    for _ in range(3):
        soft = weight * torch.softmax(30 * scores(params, pool), 1).double() * ~seen
        params = solved([labelled, (soft, x[pool])])
    return measure(model, split, rows, scores(params, rows).numpy())


def pictures(root: Path | None) -> dict[str, Rows]:
    """Return MobileNetV2 features of Omniglot pictures, from the folders beside xlsa17; nothing
    without them.
    """
    model = root and root.parent / "mobilenet_v2" / "tf2_mobilenet_v2_1.0_224_ptq.tflite"
    if root is None or model is None or not model.exists():
        return {}
    import zipfile

    from PIL import Image

    from fedunseen.encoders.tflite import TFLite, TFLiteSettings

    with zipfile.ZipFile(root.parent / "omniglot" / "images_background.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith(".png")]
        drawn = np.random.default_rng(0).choice(names, 600, replace=False)
        images = np.stack(
            [
                np.asarray(Image.open(archive.open(str(name))).convert("RGB").resize((32, 32)))
                for name in drawn
            ]
        )
    encoder = TFLite(TFLiteSettings(model=model), (3, 32, 32), "vectors")
    features = encoder.encode(images.transpose(0, 3, 1, 2).astype(np.float32) / 255)
    return {"Omniglot": np.rint(features / 0.01908).astype(np.float32)}  # the unit of CIFAR100_MBV2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the measurements."""
    ways = {one.__name__: one for one in (reach, choose, draws, beside, parties, episodes, ridge)}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", default="reach", choices=(*ways, "guard"))
    parser.add_argument("--root", type=Path)
    parser.add_argument("--smallest", action="store_true")
    given = parser.parse_args(arguments)
    if given.root is None and not given.smallest:
        parser.error("--root FOLDER_WITH_XLSA17 is missing")
    root = None if given.smallest else given.root
    if given.what == "guard":
        guard(root, 1 if given.smallest else 10, pictures(root))
    else:
        ways[given.what](root, 1 if given.smallest else 10 if given.what == "draws" else 3)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
