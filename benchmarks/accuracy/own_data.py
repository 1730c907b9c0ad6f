"""What a newcomer gets from folders of his own: ``init``, ``run`` and ``predict``, typed as
docs/own-data.md says.

``python benchmarks/accuracy/own_data.py DATA OUT`` unpacks the data sets in DATA to folders as a newcomer
has them, calls the command in processes of their own, and prints a table: seconds, ZSL, U, S, H,
and beside them the best of some settings that were tried by hand and chosen on the *test* numbers,
which no first attempt can beat fairly. ``--only NAME,...`` takes some of the cases, ``--no-tuning``
leaves out what is tried by hand.

``--shots`` shows examples of the unseen classes to runs of ``init`` and ``run`` alone: 12 and 15
classes of animals, three of them unseen.

``--misplaced`` moves pictures to other classes' folders, and counts how often that is noticed, and
how often something is noticed where nothing was moved. ``--rate`` says how many pictures a
processor second the encoder takes. ``--depth`` saves gray photos in 8 bits, 12 bits and as floats.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import torch
from numpy.typing import NDArray
from PIL import Image

from fedunseen import Experiment, Model, load_run
from fedunseen.encoders import efficientnet
from fedunseen.encoders.backbone import in_portions
from fedunseen.evaluation.misplaced import misplaced
from fedunseen.experiment.assemble import load_data

ANIMALS = (
    "bear", "camel", "dolphin", "elephant", "fox", "leopard", "lion", "rabbit", "seal", "tiger", "whale", "wolf",
)  # fmt: skip
UNSEEN = ("leopard", "whale", "wolf")
SIXTEEN = (
    "apple", "bear", "bicycle", "bottle", "bus", "butterfly", "camel", "clock", "elephant", "fox", "lion",
    "mushroom", "orange", "rocket", "tiger", "wolf",
)  # fmt: skip
MORE_ANIMALS = ("cattle", "chimpanzee", "squirrel")
NEW = (
    "a cat",
    "a hot dog",
    "a parrot",
    "a sunflower",
    "an owl",
    "a dragonfly",
    "a chickadee",
    "a woman in uniform",
)
PHOTOS = (
    "cat",
    "hot_dog",
    "parrot",
    "sunflower",
    "owl",
    "dragonfly",
    "bird",
    "grace_hopper",
)  # of NEW, in its order

ADDED = (
    "beaver",
    "butterfly",
    "cockroach",
    "kangaroo",
    "mountain",
    "pine_tree",
    "rocket",
    "spider",
)
"""Classes of CIFAR-100 that neither the twelve nor the sixty have."""
SENTENCES = {
    "beaver": "a brown furry rodent with a flat tail, at the water",
    "butterfly": "an insect with large colourful wings, on a flower",
    "cockroach": "a flat brown insect with long feelers and six legs",
    "kangaroo": "a brown animal that stands on long hind legs, with a long tail and large ears",
    "mountain": "a rocky peak with snow under the sky",
    "pine_tree": "a tall green tree with needles",
    "rocket": "a tall white vehicle with flames, that flies into the sky",
    "spider": "a small dark animal with eight long legs, in its web",
}
"""What somebody would say who has never seen the results: written down before they were
measured.
"""

BY_HAND: dict[str, tuple[str, ...]] = {
    "fedzsl, lr 0.05": (
        "method.name=fedzsl",
        "strategy.name=fedavg",
        "strategy.rounds=20",
        "method.lr=0.05",
    ),
    "fedzsl, lr 0.2": (
        "method.name=fedzsl",
        "strategy.name=fedavg",
        "strategy.rounds=20",
        "method.lr=0.2",
    ),
    "eszsl, 1 and 1": ("method.name=eszsl", "method.log_gamma=1", "method.log_lambda=1"),
    "eszsl, 0 and 0": ("method.name=eszsl", "method.log_gamma=0", "method.log_lambda=0"),
    "gaussian, shrinkage 0.1": ("method.shrinkage=0.1",),
    "gaussian, shrinkage 0.5": ("method.shrinkage=0.5",),
    "gaussian, raw features": ("data.features=[]", "data.semantics=[]"),
}
"""Settings that somebody who knows the field would try."""


def main() -> None:
    """Ask for the folders, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="with cifar100, omniglot, xlsa17 and photos")
    parser.add_argument("out", type=Path, help="where folders and runs go")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=list(CASES),
        help="cases, by their names",
    )
    parser.add_argument("--no-tuning", action="store_true", help="leave out what is tried by hand")
    parser.add_argument(
        "--misplaced", action="store_true", help="only: are pictures in a wrong folder noticed?"
    )
    parser.add_argument("--rate", action="store_true", help="only: how fast are pictures encoded?")
    parser.add_argument(
        "--adapt", action="store_true", help="only: what do photos without a label bring?"
    )
    if sys.argv[1:] == ["--smallest"]:  # to see that it runs
        with tempfile.TemporaryDirectory() as folder:
            smallest(Path(folder))
            measure("smallest", Path(folder) / "smallest", {}, folder=Path(folder))
        return
    parser.add_argument(
        "--shots", action="store_true", help="only: what do examples of unseen classes bring?"
    )
    parser.add_argument(
        "--depth", action="store_true", help="only: what do pictures of more than 8 bits lose?"
    )
    args = parser.parse_args()
    if args.depth:
        depth(args.data, args.out)
        return
    if args.shots:
        shots(args.data, args.out)
        return
    if args.misplaced:
        print(move_some(args.data, args.out))
        return
    if args.rate:
        print(rate(args.data))
        return
    if args.adapt:
        adapt(args.data, args.out)
        return
    print("| data | classes | seconds | ZSL | U | S | H | best by hand, in hindsight: ZSL | H |")
    print("|---|--:|--:|--:|--:|--:|--:|---|---|", flush=True)
    for name in args.only:
        place = args.out / name
        if not place.exists():
            CASES[name](args.data, place)
        measure(name, place, {} if args.no_tuning else BY_HAND, args.out)
    for name in ("photos12", "omniglot", "photos60"):
        if name in args.only:
            print(f"\n{name}: {names_and_looks(args.out / f'{name}.toml')}", flush=True)
    for name in ("photos12", "photos60"):
        if name in args.only:
            run = args.out / f"run-{name}"
            print(f"\n{name}: {name_photos(run, args.data / 'photos')}")
            if not (args.out / "added").exists():
                cifar(args.data, args.out / "added", ADDED, 20)
            print(f"\nEight classes of 20 photos, added to {name}; percent:\n")
            print(name_classes(run, args.out / "added"), flush=True)


def measure(name: str, place: Path, by_hand: dict[str, tuple[str, ...]], folder: Path) -> None:
    """Let the command find an experiment, run it, and print a line."""
    file, begin = folder / f"{name}.toml", time.perf_counter()
    command("init", place, "--out", file, "--force")
    result = run(file, folder / f"run-{name}")
    seconds = time.perf_counter() - begin
    tried = {
        what: run(file, folder / f"run-{name}-{i}", settings)
        for i, (what, settings) in enumerate(by_hand.items())
    }
    best = []
    for number in ("zsl", "gzsl_harmonic"):
        what = max(tried, key=lambda one: tried[one][number]) if tried else ""
        best.append(f"{tried[what][number]:.1f} ({what})" if tried else "-")
    classes = sum(1 for _ in (folder / f"run-{name}" / "classes.csv").open(encoding="utf-8")) - 1
    own = " | ".join(
        f"{result[key]:.1f}" for key in ("zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic")
    )
    print(f"| {name} | {classes} | {seconds:.0f} | {own} | {' | '.join(best)} |", flush=True)


def run(file: Path, out: Path, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Run an experiment, or take the result of an earlier call, and return its numbers."""
    if not (out / "result.json").exists():
        overrides = [part for setting in settings for part in ("--set", setting)]
        command("run", file, "--out", out, *overrides)
    done: dict[str, Any] = json.loads((out / "result.json").read_text("utf-8"))
    return done


def depth(data: Path, out: Path) -> None:
    """Draw gray photos of 16 classes, save them in several depths, and print what runs reach."""
    depths: dict[str, Callable[[NDArray[np.uint8]], NDArray[Any]]] = {
        "8 bits": lambda grey: grey,
        "12 of 16 bits": lambda grey: grey.astype(np.uint16) << 4,
        "floats, -1000 to 3000": lambda grey: grey.astype(np.float32) * (4000 / 255) - 1000,
        "12 of 16 bits, divided by 65,535": lambda grey: grey.astype(np.uint16) << 4,
    }
    print("| seed | pictures | window | ZSL | U | S | H |\n|--:|---|---|--:|--:|--:|--:|")
    for what, deepened in depths.items():
        for seed in range(3):
            drawn = out / f"depth-{seed}"
            if not drawn.exists():
                cifar(data, drawn, SIXTEEN, 40, seed=seed)
            place = out / f"{what.replace(',', '').replace(' ', '-')}-{seed}"
            suffix = "tif" if what.startswith("floats") else "png"
            for path in sorted(drawn.glob("*/*.png")) if not place.exists() else ():
                with Image.open(path) as file:
                    grey = np.asarray(file.convert("L"))
                new = place / path.parent.name / f"{path.stem}.{suffix}"
                new.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(deepened(grey)).save(new)
            experiment = out / f"{place.name}.toml"
            command("init", place, "--out", experiment, "--force")
            settings = [f"run.seed={seed}"]
            window = Experiment.load(experiment).to_dict()["data"].get("window")
            if "divided" in what:
                window = [0, 65535]
                settings.append("data.window=[0,65535]")
            done = run(experiment, out / f"run-{place.name}", settings)
            keys = ("zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic")
            cells = " | ".join(f"{done[key]:.1f}" for key in keys)
            print(f"| {seed} | {what} | {window or 'as stated'} | {cells} |", flush=True)


def adapt(data: Path, out: Path) -> None:
    """Draw photos, run on some of them, adapt to the others, and print accuracies on test photos
    before and after.

    Of twelve animals, 40 photos each are the folder, and 40 others each the pool. Of sixty classes,
    100 each are drawn: 10 of each seen class and 50 of each unseen one, half of what would be test
    photos, are the pool.
    """
    print(
        "| photos | seed | ZSL | U | S | H | ZSL after | U | S | H "
        "|\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    more = sixty(data)
    cases = (
        ("12 x 40", ANIMALS, UNSEEN, 80, (40, 40), 3),
        ("60 x 100", more, more[4::5], 100, (90, 50), 2),
    )
    for what, names, unseen, count, kept, seeds in cases:
        for seed in range(seeds):
            place = out / f"adapt-{len(names)}-{seed}"
            pool, file, before, after = (
                place.with_name(place.name + end) for end in ("-pool", ".toml", "-run", "-new")
            )
            cifar(data, place, names, count, unseen, seed)
            pool.mkdir()
            for name in names:
                for photo in sorted((place / name).iterdir())[kept[name in unseen] :]:
                    photo.rename(pool / f"{name}-{photo.name}")
            command("init", place, "--out", file)
            results = [run(file, before)]
            command("adapt", before, pool, "--out", after)
            results.append(json.loads((after / "result.json").read_text("utf-8")))
            keys = ("zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic")
            cells = [f"{result[key]:.1f}" for result in results for key in keys]
            print(f"| {what} | {seed} | {' | '.join(cells)} |", flush=True)


def shots(data: Path, out: Path) -> None:
    """Draw photos, run with ``auto`` and ``balanced``, show examples of the unseen classes, and
    print accuracies on the other test photos: the mean of five draws of examples. The last column
    is H without what raises the scores of shown classes.
    """
    print("| photos | seed | prior | examples | U | S | H | all classes | H, not raised |")
    print("|---|--:|---|--:|--:|--:|--:|--:|--:|")
    cases = (("12 x 40", ANIMALS, 40), ("15 x 60", (*ANIMALS, *MORE_ANIMALS), 60))
    for what, names, count in cases:
        for seed in range(3):
            place = out / f"shots-{len(names)}-{seed}"
            if not place.exists():
                cifar(data, place, names, count, UNSEEN, seed)
                command("init", place, "--out", place.with_suffix(".toml"))
            for prior in ("auto", "balanced"):
                done = place.with_name(f"{place.name}-{prior}")
                run(place.with_suffix(".toml"), done, [f"evaluation.prior={prior}"])
                for k, cells in shown(done):
                    row = " | ".join(f"{cell:.1f}" for cell in cells)
                    print(f"| {what} | {seed} | {prior} | {k} | {row} |", flush=True)


def shown(folder: Path, draws: int = 5) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield U, S, H and the accuracy over all classes, in percent, after 0, 1, 5 and 20 examples."""
    done = load_run(folder)
    model = done.model
    benchmark = load_data(done.experiment, done.experiment.run.seed)
    tests = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    labels = benchmark.labels[tests]
    rows = benchmark.features[tests]
    for k in (0, 1, 5, 20):
        cells = []
        for draw in range(draws if k else 1):
            rng = np.random.default_rng(draw)
            chosen = {
                c: rng.choice(np.flatnonzero(labels == c), k, replace=False)
                for c in model.space.unseen
            }
            examples = {model.space.names[c]: rows[some] for c, some in chosen.items()}
            changed = model.learn(examples=examples) if k else model
            kept = np.setdiff1d(np.arange(len(tests)), np.concatenate(list(chosen.values())))
            scores = changed.scores(rows[kept])
            raised = changed.params.get("raised", torch.zeros(scores.shape[1])).numpy()
            numbers = of_kinds(scores, labels[kept], model)
            cells.append([*numbers, of_kinds(scores - raised, labels[kept], model)[2]])
        yield k, np.mean(cells, axis=0)


def of_kinds(
    scores: NDArray[Any], labels: NDArray[np.int64], model: Model
) -> tuple[float, float, float, float]:
    """Return U, S, H and the accuracy over all classes, in percent."""
    right = scores.argmax(1) == labels
    of_class = {c: 100 * float(right[labels == c].mean()) for c in np.unique(labels)}
    u = float(np.mean([value for c, value in of_class.items() if c in model.space.unseen]))
    s = float(np.mean([value for c, value in of_class.items() if c in model.space.seen]))
    return u, s, 2 * u * s / max(u + s, 1e-9), float(np.mean(list(of_class.values())))


def name_photos(run: Path, photos: Path) -> str:
    """Ask a run for classes that it never heard of: among themselves, and among all classes."""
    paths = [photos / f"{name}.jpg" for name in PHOTOS]
    given = [part for name in NEW for part in ("--class", name)]
    said = []
    for among in ("given", "all"):
        result = json.loads(
            command("predict", run, *paths, *given, "--among", among, "--top", 3, "--json")
        )
        names = [[found["name"] for found in one["classes"]] for one in result]
        first = sum(best[0] == wanted for best, wanted in zip(names, NEW, strict=True))
        three = sum(wanted in best for best, wanted in zip(names, NEW, strict=True))
        added = sum(best[0] in NEW for best in names)
        said.append(
            f"among {among}, {first} of {len(NEW)} right, {three} in the first three, {added} a "
            "new class"
        )
    return "; ".join(said)


def name_classes(run: Path, place: Path) -> str:
    """Add eight classes to a run, and say how often pictures of them are recognised, by names and
    by descriptions.
    """
    done = load_run(run)
    batches = list(done.batches([place / name for name in ADDED]))
    labels = np.array([Path(name).parent.name for batch in batches for name in batch.names])
    samples = np.concatenate([batch.rows for batch in batches])
    said = {name: name.replace("_", " ") for name in ADDED}
    ways = {
        "name": said,
        "name and a sentence": {name: f"{said[name]}: {SENTENCES[name]}" for name in ADDED},
    }
    lines = [
        "| described by | among the eight | among all: right | in the first three | one of the "
        "eight |"
    ]
    lines += ["|---|--:|--:|--:|--:|"]
    for way, texts in ways.items():
        back = {text: name for name, text in texts.items()}
        given, all_ = (
            [
                [back.get(one.name, "") for one in each]
                for each in done.predict(samples, list(back), 3, among)
            ]
            for among in ("given", "all")
        )
        cells = [
            np.mean([best[0] == label for best, label in zip(given, labels, strict=True)]),
            np.mean([best[0] == label for best, label in zip(all_, labels, strict=True)]),
            np.mean([label in best for best, label in zip(all_, labels, strict=True)]),
            np.mean([best[0] != "" for best in all_]),
        ]
        lines.append(f"| {way} | " + " | ".join(f"{100 * cell:.1f}" for cell in cells) + " |")
    return "\n".join(lines)


def names_and_looks(file: Path) -> str:
    """Say whether features tell unseen classes apart, from five examples each, and whether names
    look like pictures.
    """
    benchmark = load_data(Experiment.load(file), 0)
    rows = benchmark.features - benchmark.features[benchmark.train].mean(0)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    space, random, right = benchmark.space, np.random.default_rng(0), []
    for _ in range(200):
        drawn = {c: random.permutation(np.flatnonzero(benchmark.labels == c)) for c in space.unseen}
        means = np.stack([rows[some[:5]].mean(0) for some in drawn.values()])
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        right.append(
            np.mean(
                [
                    ((rows[some[5:]] @ means.T).argmax(1) == i).mean()
                    for i, some in enumerate(drawn.values())
                ]
            )
        )
    names = space.semantics - space.semantics.mean(0)
    looks = np.stack([rows[benchmark.labels == c].mean(0) for c in range(len(names))])
    pairs = np.triu_indices(len(names), 1)
    names, looks = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (names, looks))
    same = np.corrcoef((names @ names.T)[pairs], (looks @ looks.T)[pairs])[0, 1]
    return (
        f"five examples of each unseen class, nearest mean: {100 * np.mean(right):.1f} %; "
        "correlation of how alike two classes' names are with how alike their pictures are: "
        f"{same:.2f}"
    )


def move_some(data: Path, out: Path, draws: int = 100) -> str:
    """Return a table: how often moved pictures are noticed, and how often something is where none
    was moved.

    Of the sixty classes, every second one is drawn from: those on which
    :mod:`fedunseen.evaluation.misplaced` has not chosen its limit. Both classes of a pair are drawn
    anew each time, by the seed.
    """
    lines = [
        "| classes | moved | false alarms | noticed | pictures named | of them moved |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name in ("photos60", "photos12"):
        if not (out / name).exists():
            CASES[name](data, out / name)
        if not (out / f"{name}.toml").exists():
            command("init", out / name, "--out", out / f"{name}.toml")
        benchmark = load_data(Experiment.load(out / f"{name}.toml"), 0)
        pool = np.arange(1, 60, 2) if name == "photos60" else np.arange(12)
        for moved in (5, 10):
            alarms, noticed, named, right = 0, 0, 0, 0
            for seed in range(draws):
                rng = np.random.default_rng(1000 + seed)
                chosen = rng.choice(pool, 12, replace=False)
                own = [np.flatnonzero(benchmark.labels == c) for c in chosen]
                rows = np.concatenate([rng.choice(some, 40, replace=False) for some in own])
                features, labels = benchmark.features[rows], np.repeat(np.arange(12), 40)
                alarms += bool(misplaced(features, labels))
                place, like = rng.choice(12, 2, replace=False)
                ids = rng.choice(np.flatnonzero(labels == like), moved, replace=False)
                labels[ids] = place
                found = [
                    one.rows
                    for one in misplaced(features, labels)
                    if (one.place, one.like) == (place, like)
                ]
                noticed += bool(found)
                named += sum(map(len, found))
                right += sum(int(np.isin(one, ids).sum()) for one in found)
            what = "12 of 30 classes, drawn" if name == "photos60" else "12 animals"
            lines.append(
                f"| {what} | {moved} of 40 | {100 * alarms / draws:.0f} % | "
                f"{100 * noticed / draws:.0f} % | {named} | {right} |"
            )
    return "\n".join(lines)


def rate(data: Path, pictures: int = 400) -> str:
    """Return how many pictures are encoded a processor second: by one thread, and by two in both
    ways to share work.
    """
    with tempfile.TemporaryDirectory() as folder:
        cifar(data, Path(folder) / "photos", ANIMALS[:4], pictures // 4)
        files = sorted((Path(folder) / "photos").rglob("*.png"))
        images = np.stack([np.asarray(Image.open(file)).transpose(2, 0, 1) for file in files])
    lines = [
        "| threads | each has pictures of its own | pictures a processor second | a second |",
        "|--:|---|--:|--:|",
    ]
    before, own = torch.get_num_threads(), efficientnet.in_portions
    for threads, apart in ((1, True), (2, True), (2, False)):
        torch.set_num_threads(threads)
        efficientnet.in_portions = functools.partial(_portions, own=apart)
        encoder = efficientnet.EfficientNetLite(
            efficientnet.EfficientNetLiteSettings(), (3, 32, 32), "vectors"
        )
        encoder.compute(images[:8])  # without the cache; reads the weights
        wall, busy = time.perf_counter(), time.process_time()
        encoder.compute(images)
        wall, busy = time.perf_counter() - wall, time.process_time() - busy
        lines.append(
            f"| {threads} | {'yes' if apart else 'no'} | {pictures / busy:.0f} | "
            f"{pictures / wall:.0f} |"
        )
    torch.set_num_threads(before)
    efficientnet.in_portions = own
    return "\n".join(lines)


def _portions(images: Any, at_once: int, encode: Any, apart: bool, own: bool) -> Any:
    """Encode as the package does, with threads that have pictures of their own or share the layers
    of one network.
    """
    return in_portions(images, at_once, encode, own)


def command(*arguments: Any) -> str:
    """Call the command in a process of its own, and return its standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "fedunseen", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"fedunseen {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


def cifar(
    data: Path,
    place: Path,
    names: Sequence[str],
    count: int,
    unseen: Sequence[str] = (),
    seed: int | None = None,
) -> None:
    """Unpack the first photos of CIFAR-100, or some drawn by a seed; without ``unseen``, no class
    table is written.
    """
    rng = None if seed is None else np.random.default_rng(seed)
    sheets = {path.stem.split("_", 1)[1]: path for path in (data / "cifar100").glob("*.webp")}
    for name in names:
        with Image.open(sheets[name]) as file:
            sheet = np.asarray(file.convert("RGB"))
        tiles = (
            sheet.reshape(sheet.shape[0] // 32, 32, -1, 32, 3)
            .transpose(0, 2, 1, 3, 4)
            .reshape(-1, 32, 32, 3)
        )
        (place / name).mkdir(parents=True)
        for i, tile in enumerate(tiles[:count] if rng is None else rng.permutation(tiles)[:count]):
            Image.fromarray(tile).save(place / name / f"{i:03d}.png")
    if unseen:
        rows = [f"{name},{'unseen' if name in unseen else 'seen'}" for name in names]
        (place / "classes.csv").write_text("\n".join(["name,split", *rows]) + "\n", "utf-8")


def photos12(data: Path, place: Path) -> None:
    """Unpack twelve animals of 40 photos, three of them unseen."""
    cifar(data, place, ANIMALS, 40, UNSEEN)


def sixty(data: Path) -> list[str]:
    """Return sixty classes of CIFAR-100."""
    names = sorted(path.stem.split("_", 1)[1] for path in (data / "cifar100").glob("*.webp"))
    return [name for i, name in enumerate(names) if i % 5 < 3]


def photos60(data: Path, place: Path) -> None:
    """Unpack sixty classes of 100 photos, and no class table: every fifth class is kept apart."""
    cifar(data, place, sixty(data), 100)


def omniglot(data: Path, place: Path) -> None:
    """Unpack the alphabets of Omniglot, 40 characters of each by one hand; their names say nothing
    of how they look.
    """
    with zipfile.ZipFile(data / "omniglot" / "images_background.zip") as archive:
        inside: dict[str, list[str]] = {}
        for name in sorted(archive.namelist()):
            if name.endswith("_01.png"):
                inside.setdefault(name.split("/")[1], []).append(name)
        for alphabet, names in inside.items():
            target = place / alphabet.replace("(", "").replace(")", "")
            target.mkdir(parents=True)
            for i, name in enumerate(names[:40]):
                (target / f"{i:02d}.png").write_bytes(archive.read(name))


def awa1(data: Path, place: Path) -> None:
    """Write the features of AWA1 and its attributes as a folder."""
    from fedunseen.data import ClassSpace

    root = data / "xlsa17" / "AWA1_LAMPERT"
    features, split = (scipy.io.loadmat(root / f"{name}.mat") for name in ("res101", "att_splits"))
    labels = features["labels"].ravel() - 1
    names = [str(name[0]) for name in split["allclasses_names"].ravel()]
    train = split["trainval_loc"].ravel() - 1
    seen = np.unique(labels[train])
    unseen = np.setdiff1d(np.unique(labels), seen)
    columns = tuple(f"attribute {i}" for i in range(len(split["att"])))
    none = np.array([], dtype=np.int64)
    ClassSpace(tuple(names), split["att"].T, columns, seen, none, unseen).save(
        place / "classes.csv"
    )
    marks = np.full(len(labels), "test", dtype="U5")
    marks[train] = "train"
    np.savez(
        place / "features.npz",
        features=features["features"].T.astype(np.float32),
        labels=labels,
        split=marks,
    )


def smallest(folder: Path) -> None:
    """Write four colours of three pictures each, with descriptions."""
    random = np.random.default_rng(0)
    rows = ["name,split,r,g,b"]
    for name, colour in {
        "red": (200, 30, 30),
        "green": (30, 200, 30),
        "lime": (120, 220, 60),
        "pink": (230, 90, 150),
    }.items():
        (folder / "smallest" / name).mkdir(parents=True)
        rows.append(f"{name},{'unseen' if name == 'pink' else 'seen'},{','.join(map(str, colour))}")
        for i in range(3):
            noisy = np.clip(np.array(colour) + random.integers(-20, 21, (8, 8, 3)), 0, 255).astype(
                np.uint8
            )
            Image.fromarray(noisy).save(folder / "smallest" / name / f"{i}.png")
    (folder / "smallest" / "classes.csv").write_text("\n".join(rows) + "\n", "utf-8")


CASES: dict[str, Callable[[Path, Path], None]] = {
    "photos12": photos12,
    "awa1": awa1,
    "omniglot": omniglot,
    "photos60": photos60,
}

if __name__ == "__main__":
    main()
