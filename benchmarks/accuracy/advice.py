"""Does carrying out a report's advice raise the number that it promises? And what a name promises.

``python benchmarks/accuracy/advice.py DATA OUT`` takes photos of CIFAR-100. ``advice``: ten folders
of drawn classes, 8 to 15, and 20 to 60 photos of each go through ``init`` and ``run``. Each remedy
that the report shows with a number is carried out: five examples of each unseen class, which are in
no folder, another ``evaluation.prior``, another method. Printed are the number before, what is
promised, and the number after. ``names``: the other classes of CIFAR-100 are added to two of these
runs by their names alone. What is expected of each stands beside what 50 other photos of it give.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from fedunseen import load_run
from fedunseen.evaluation.diagnosis import outdone
from fedunseen.evaluation.new_class import expected_of
from fedunseen.evaluation.summary import EXAMPLES, GAIN, examples_gain, moved_rule, within_reach
from fedunseen.experiment.new_names import left_out
from own_data import command, run

FOLDERS = 10
SIDE = 32
ROW = 30  # photos in a row of a sheet
SHEET = 600  # photos of a class
MADE_UP = (
    "apple bear bed bee bottle bridge bus camel castle chair clock cloud cup dolphin elephant fox"
)
KEYS = {"unseen classes": "gzsl_unseen", "seen classes": "gzsl_seen"}
SHORT = {"zsl": "ZSL", "gzsl_unseen": "U", "gzsl_seen": "S"}


class Size(NamedTuple):
    """How large what is drawn is.

    Attributes:
        classes: of a folder, the fewest and the most.
        photos: of a class, likewise.
        tested: photos of a class that is added by its name.
    """

    classes: tuple[int, int] = (8, 15)
    photos: tuple[int, int] = (20, 60)
    tested: int = 50


class Tried(NamedTuple):
    """A remedy that was carried out: which number it promises to raise, and to what."""

    remedy: str
    number: str
    before: float
    promised: float
    after: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, nargs="?", help="with cifar100")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--only", choices=("advice", "names"))
    parser.add_argument("--folders", type=int, default=FOLDERS)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first folder")
    parser.add_argument("--smallest", action="store_true", help="made-up photos, to see it run")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    if chosen.smallest:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            made_up(place / "cifar100")
            size = Size(classes=(8, 8), photos=(8, 8), tested=2)
            advice(place, place, range(1), size)
            names(place, place, range(1), size)
        return
    if chosen.data is None or chosen.out is None:
        parser.error("name DATA and OUT, or --smallest")
    seeds = range(chosen.first, chosen.first + chosen.folders)
    if chosen.only != "names":
        advice(chosen.data, chosen.out, seeds, Size())
    if chosen.only != "advice":
        names(chosen.data, chosen.out, seeds[:2], Size())


def made_up(place: Path) -> None:
    """Write sheets of photos, each of a color of its own with noise."""
    place.mkdir()
    rng = np.random.default_rng(0)
    for i, name in enumerate(MADE_UP.split()):
        color = rng.integers(0, 256, 3)
        noise = rng.integers(-60, 61, (SHEET // ROW * SIDE, ROW * SIDE, 3))
        pixels = np.clip(color + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(place / f"{i:02d}_{name}.webp", lossless=True)


def advice(data: Path, out: Path, seeds: range, size: Size) -> None:
    """Print what each remedy promised and brought, and how many kept their promise."""
    print("| folder | classes x photos | remedy | number | before | promised | after |")
    print("|---|---|---|---|--:|--:|--:|")
    kept = []
    for seed in seeds:
        folder, shape = first_run(data, out, seed, size)
        for tried in remedies(folder):
            kept.append(tried.after > tried.before)
            numbers = " | ".join(f"{value:.1f}" for value in tried[2:])
            print(
                f"| {seed} | {shape} | {tried.remedy} | {SHORT[tried.number]} | {numbers} |",
                flush=True,
            )
    print(f"\n{sum(kept)} of {len(kept)} remedies raised the number that they promise")


def first_run(data: Path, out: Path, seed: int, size: Size) -> tuple[Path, str]:
    """Return the folder of a run of ``init`` and ``run`` alone, and how large its data are."""
    rng = np.random.default_rng(seed)
    sheets = sorted((data / "cifar100").glob("*.webp"))
    fewest, most = size.classes
    drawn = rng.choice(len(sheets), rng.integers(fewest, most + 1), replace=False)
    fewest, most = size.photos
    count = int(rng.integers(fewest, most + 1))
    place = out / f"folder-{seed}"
    for c in sorted(drawn.tolist()) if not place.exists() else ():
        order = rng.permutation(SHEET)
        name = sheets[c].stem.split("_", 1)[1]
        for part, rows in (("", order[:count]), ("-more", order[count : count + EXAMPLES])):
            write(sheets[c], rows, out / f"folder-{seed}{part}" / name)
    folder = out / f"run-{seed}"
    if not folder.exists():
        command("init", place, "--out", place.with_suffix(".toml"), "--force")
        run(place.with_suffix(".toml"), folder)
    return folder, f"{len(drawn)} x {count}"


def write(sheet: Path, rows: np.ndarray, place: Path) -> None:
    """Write some photos of a class."""
    place.mkdir(parents=True)
    for i, tile in enumerate(tiles(sheet)[rows]):
        Image.fromarray(tile).save(place / f"{i:03d}.png")


def tiles(sheet: Path) -> np.ndarray:
    """Return the photos (600, 32, 32, 3) of a class."""
    with Image.open(sheet) as file:
        pixels = np.asarray(file.convert("RGB"))
    cut = pixels.reshape(-1, SIDE, pixels.shape[1] // SIDE, SIDE, 3).transpose(0, 2, 1, 3, 4)
    return cut.reshape(-1, SIDE, SIDE, 3)


def remedies(folder: Path) -> Iterator[Tried]:
    """Carry out each remedy that the report of a run shows with a number."""
    done = load_run(folder)
    result = done.result
    said = " ".join(result["summary"]["text"])
    gain = examples_gain(result, done.evaluation)
    if gain is not None and gain.after - gain.before >= GAIN:
        shown = done.path.with_name(f"{folder.name}-shown")
        if not shown.exists():
            support = only(folder, [done.space.names[c] for c in done.space.unseen])
            command("learn", folder, "--support", support, "--out", shown)
        after = json.loads((shown / "result.json").read_text("utf-8"))
        yield Tried("examples", "zsl", result["zsl"], gain.after, after["zsl"])
        if gain.among_all is not None:
            before, reached = result["gzsl_unseen"], after["gzsl_unseen"]
            yield Tried("examples", "gzsl_unseen", before, gain.among_all[0], reached)
    for kind, key in KEYS.items():
        setting = moved_rule(kind, done.experiment.evaluation.prior, result)
        classes = np.unique(done.evaluation["labels"])
        unseen = int(np.isin(classes, done.space.unseen).sum())
        reached = within_reach(result, kind, setting, (unseen, len(classes) - unseen))
        advised = setting[1:].rstrip(".") in said  # also after "If you have none: set"
        if reached is None or not advised or "prior =" not in setting:
            continue
        value = setting.split('"')[1]
        file = folder.with_name(f"folder-{folder.name.split('-')[1]}.toml")
        after = run(file, folder.with_name(f"{folder.name}-{value}"), [f"evaluation.prior={value}"])
        promised = reached[key == "gzsl_seen"]
        yield Tried(f"prior = {value}", key, result[key], promised, after[key])
    if outdone(result) is not None:
        (name, rival), *_ = result["left_out_rivals"].items()
        file = folder.with_name(f"folder-{folder.name.split('-')[1]}.toml")
        after = run(file, folder.with_name(f"{folder.name}-{name}"), [f"method.name={name}"])
        yield Tried(f"method = {name}", "zsl", result["zsl"], rival["accuracy"], after["zsl"])


def only(folder: Path, names: list[str]) -> Path:
    """Return a folder of examples of some classes alone."""
    more = folder.with_name(f"folder-{folder.name.split('-')[1]}-more")
    place = more.with_name(f"{more.name}-unseen")
    place.mkdir(exist_ok=True)
    for name in names:
        if not (place / name).exists():
            (place / name).symlink_to((more / name).resolve())
    return place


def names(data: Path, out: Path, seeds: range, size: Size) -> None:
    """Print how far off what is expected of a class by its name is."""
    print("\n| folder | classes added | expected | right | off by, mean | rank correlation |")
    print("|---|--:|--:|--:|--:|--:|")
    for seed in seeds:
        folder, _ = first_run(data, out, seed, size)
        done = load_run(folder)
        sheets = {p.stem.split("_", 1)[1]: p for p in sorted((data / "cifar100").glob("*.webp"))}
        new = [name for name in sheets if name not in done.space.names]
        described = done.described(new)
        rows = np.array([described[name] for name in new])
        expected = np.array([one.right for one in expected_of(done.model, rows, left_out(done))])
        right = []
        for name in new:
            pictures = np.moveaxis(tiles(sheets[name])[-size.tested :], -1, 1)
            grown = done.model.learn({name: described[name]})
            answers = grown.scores(done.encoded(np.ascontiguousarray(pictures))).argmax(1)
            right.append(100 * np.mean(answers == len(grown.space.names) - 1))
        ranks = np.corrcoef(*(np.argsort(np.argsort(column)) for column in (expected, right)))
        numbers = expected.mean(), np.mean(right), np.abs(expected - right).mean()
        cells = " | ".join(f"{value:.1f}" for value in numbers)
        print(f"| {seed} | {len(new)} | {cells} | {ranks[0, 1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
