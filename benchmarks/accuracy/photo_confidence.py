"""How sure a newcomer's model of photos is, under ``prior = "balanced"``.

``python benchmarks/accuracy/photo_confidence.py DATA OUT`` takes twelve classes of 40 and fifteen of
60 photos of animals. ``splits``: three of the classes are drawn as unseen ones, 24 times; a fifth of
the others' photos are tests. Printed are what is stated on average, how often answers are right, the
expected calibration error (ECE, 15 bins), and its 95 % quantile for labels that are drawn from the
stated probabilities. ``things``: runs of ``init`` and ``run`` alone, and how well the distance to
what is known tells things that are no animals from test photos of all classes (AUROC).
"""

from __future__ import annotations

import argparse
import gzip
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.metrics import roc_auc_score

from confidence import Split, calibration_error, made_up
from fedunseen import ZeroShotClassifier, load_run
from fedunseen.experiment.assemble import load_data
from own_data import ANIMALS, MORE_ANIMALS, UNSEEN, cifar, command, run

CASES = {"12 x 40": (ANIMALS, 40), "15 x 60": ((*ANIMALS, *MORE_ANIMALS), 60)}
DRAWS = 24
ALONE = 0.95
THINGS = 100  # pictures of each
SIDE = 32

Floats = NDArray[np.float64]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, nargs="?", help="with cifar100, mnist and photos")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--smallest", action="store_true", help="made-up data, one split")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    if chosen.smallest:
        print(measured(made_up(), 0))
        return
    print(
        "| photos | stated | right | ECE | expected by chance (95 %) | above 90 %: share; right |"
    )
    print("|---|--:|--:|--:|--:|--:|")
    for name in CASES:
        found = np.array(list(splits(first_run(chosen.data, chosen.out, name, 0), chosen.draws)))
        sure = found[:, 4].mean(), (found[:, 4] * found[:, 5]).sum() / found[:, 4].sum()
        cells = [f"{np.mean(column):.1f}" for column in found[:, :4].T]
        below = f"{(found[:, 2] <= found[:, 3]).mean() * 100:.0f} % of splits below"
        print(
            f"| {name} | {' | '.join(cells)} ({below}) | {sure[0]:.1f}; {sure[1]:.1f} |", flush=True
        )
    print("\n| photos | seed | thing | AUROC | called unfamiliar at 1 % |\n|---|--:|---|--:|--:|")
    for name in CASES:
        for seed in range(3):
            folder = first_run(chosen.data, chosen.out, name, seed)
            for thing, area, alarms in things(folder, chosen.data, chosen.out / "things"):
                print(f"| {name} | {seed} | {thing} | {area:.3f} | {alarms:.1f} |", flush=True)


def first_run(data: Path, out: Path, name: str, seed: int) -> Path:
    """Return the folder of a run of ``init`` and ``run`` alone, but for the prior."""
    names, count = CASES[name]
    place = out / f"photos-{len(names)}-{seed}"
    folder = place.with_name(f"{place.name}-run")
    if not folder.exists():
        if not place.exists():
            cifar(data, place, names, count, UNSEEN, seed)
        command("init", place, "--out", place.with_suffix(".toml"))
        run(place.with_suffix(".toml"), folder, ["evaluation.prior=balanced"])
    return folder


def splits(folder: Path, draws: int) -> Iterator[tuple[float, ...]]:
    """Yield percentages of each drawn split: stated, right, ECE, what chance alone gives of it,
    the share of answers above 90 %, and how many of these are right.
    """
    done = load_run(folder)
    benchmark = load_data(done.experiment, done.experiment.run.seed)
    space = benchmark.space
    names = np.array(space.names)
    table = dict(zip(space.names, np.asarray(space.semantics).tolist(), strict=True))
    rows = np.asarray(benchmark.features, dtype=np.float32)
    ids = benchmark.labels
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        unseen = np.isin(ids, rng.choice(len(names), len(UNSEEN), replace=False))
        rest = rng.permutation(np.flatnonzero(~unseen))
        cut = len(rest) // 5
        split = Split(rows, names[ids], table, rest[cut:], rest[:cut], np.flatnonzero(unseen))
        yield tuple(100 * value for value in measured(split, seed))


def measured(split: Split, seed: int) -> tuple[float, ...]:
    """Return the numbers of :func:`splits`, from 0 to 1."""
    lengths = ("centre", "l2")
    model = ZeroShotClassifier(
        prior="balanced", features=lengths, semantics=lengths, random_state=seed
    )
    model.fit(split.features[split.train], split.labels[split.train], classes=split.table)
    tests = np.concatenate([split.test_seen, split.test_unseen])
    probabilities = model.predict_proba(split.features[tests])
    stated = probabilities.max(1)
    right = model.classes_[probabilities.argmax(1)] == split.labels[tests]
    ones = np.ones(len(tests))
    rng = np.random.default_rng(0)
    chance = [calibration_error(stated, rng.random(len(ones)) < stated, ones) for _ in range(400)]
    sure = stated > 0.9
    return (
        float(stated.mean()),
        float(right.mean()),
        calibration_error(stated, right, ones),
        float(np.quantile(chance, ALONE)),
        float(sure.mean()),
        float(right[sure].mean()) if sure.any() else 0.0,
    )


def things(folder: Path, data: Path, place: Path) -> Iterator[tuple[str, float, float]]:
    """Yield things that are no animals, the AUROC of their distance beside test photos, and how
    many are called unfamiliar, in percent.
    """
    done = load_run(folder)
    benchmark = load_data(done.experiment, done.experiment.run.seed)
    tests = np.concatenate([benchmark.test_seen, benchmark.test_unseen])
    known = distance(done.model, np.asarray(benchmark.features)[tests])
    for thing, pictures in odd_pictures(data).items():
        files = written(pictures, place / thing)
        rows = done.read_inputs(files)
        away = distance(done.model, rows)
        areas = roc_auc_score(np.arange(len(known) + len(away)) >= len(known), [*known, *away])
        yield thing, float(areas), 100 * float((done.model.unfamiliar(rows) <= 0.01).mean())


def distance(model: Any, rows: NDArray[Any]) -> Floats:
    """Return how far samples are from what the model knows."""
    apart = model.distance(rows)
    assert apart is not None
    return np.asarray(apart)


def odd_pictures(data: Path) -> Mapping[str, NDArray[np.uint8]]:
    """Return pictures (n, 32, 32, 3) of each thing."""
    rng = np.random.default_rng(0)
    with Image.open(next((data / "cifar100").glob("*_chair.webp"))) as file:
        sheet = np.asarray(file.convert("RGB"))
    chairs = sheet.reshape(-1, SIDE, sheet.shape[1] // SIDE, SIDE, 3).transpose(0, 2, 1, 3, 4)
    with Image.open(data / "photos" / "hot_dog.jpg") as file:
        photo = file.convert("RGB")
    crops = []
    for _ in range(THINGS):
        side = int(min(photo.size) * rng.uniform(0.6, 1.0))
        left, top = (int(rng.integers(0, length - side + 1)) for length in photo.size)
        crop = photo.crop((left, top, left + side, top + side)).resize((SIDE, SIDE))
        crops.append(np.asarray(crop))
    raw = gzip.decompress((data / "mnist" / "t10k-images-idx3-ubyte.gz").read_bytes())[16:]
    digits = np.frombuffer(raw, np.uint8).reshape(-1, 28, 28)[:THINGS]
    digits = np.repeat(np.pad(digits, ((0, 0), (2, 2), (2, 2)))[..., None], 3, axis=3)
    return {
        "chairs": chairs.reshape(-1, SIDE, SIDE, 3)[:THINGS],
        "hot dogs (crops of one photo)": np.stack(crops),
        "digits": digits,
        "noise": rng.integers(0, 256, (THINGS, SIDE, SIDE, 3), dtype=np.uint8),
        "black": np.zeros((1, SIDE, SIDE, 3), np.uint8),
    }


def written(pictures: NDArray[np.uint8], place: Path) -> list[Path]:
    """Write pictures to a folder, once, and return their paths."""
    paths = [place / f"{i:03d}.png" for i in range(len(pictures))]
    place.mkdir(parents=True, exist_ok=True)
    for path, picture in zip(paths, pictures, strict=True):
        if not path.exists():
            Image.fromarray(picture).save(path)
    return paths


if __name__ == "__main__":
    main()
