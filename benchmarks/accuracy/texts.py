"""Topics of package descriptions, and tweets, by a sentence encoder (docs/research/own-data.md).

    python benchmarks/accuracy/texts.py topics [FOLDER]     # zero-shot by a topic's name
    python benchmarks/accuracy/texts.py tweets DATA         # few-shot by examples
    python benchmarks/accuracy/texts.py --smallest

``topics`` writes a folder of ``.txt`` files, a topic a folder: the summary and up to five paragraphs of
the packages that are installed here, each package under its rarest trove topic of at least six.
Topics whose names say nothing of a text, such as Libraries, are left out.
It keeps the folder where one is named. Four draws of which topics are
unseen. ``tweets`` takes Sentiment140 from ``DATA/sentiment140``: K tweets of each answer from the
training users, and 2,000 tweets of other users.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import defaultdict
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedunseen import ZeroShotClassifier, run
from fedunseen.data.benchmarks import sent140
from fedunseen.data.io.csv_io import write_csv
from fedunseen.encoders.text import embed_texts
from fedunseen.experiment.schema import Experiment

FEWEST = 6  # packages of a topic
PARAGRAPHS = 5  # of a package
LONG = 150  # characters of a paragraph that says something
VAGUE = {
    "Libraries",
    "Python Modules",
    "Utilities",
    "Software Development",
    "Application Frameworks",
}
UNSEEN = 2
DRAWS = 4
SHOTS = (1, 5, 20, 100)
ANSWERS = ("a negative, sad or angry tweet", "a positive, happy tweet")
Rows = NDArray[Any]


def main() -> None:
    """Read the arguments, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["topics", "tweets"])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--smallest", action="store_true", help="made-up texts")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if args.smallest:
            topics(made_up(Path(temporary) / "texts"), draws=1)
        elif args.what == "topics":
            folder = args.folder or Path(temporary) / "topics"
            topics(folder if folder.exists() else write_topics(folder), DRAWS)
        elif args.what == "tweets" and args.folder:
            tweets(args.folder)
        else:
            parser.error("say topics, tweets DATA or --smallest")


def write_topics(folder: Path) -> Path:
    """Write a file for each installed package that has a topic and a description."""
    texts: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for package in distributions():
        about = package.metadata
        found = [
            line[9:] for line in about.get_all("Classifier") or [] if line.startswith("Topic ::")
        ]
        for topic in {line.split(" :: ")[-1] for line in found} - VAGUE:
            texts[topic][about["Name"]] = paragraphs(about)
    kept = {topic: named for topic, named in texts.items() if len(named) >= FEWEST}
    taken: set[str] = set()
    for topic, named in sorted(kept.items(), key=lambda item: len(item[1])):  # rare topics first
        own = {name: text for name, text in sorted(named.items()) if name not in taken}
        if len(own) < FEWEST:
            continue
        place = folder / topic.replace("/", " or ")
        place.mkdir(parents=True)
        for name, each in own.items():
            taken.add(name)
            for i, text in enumerate(each):
                (place / f"{name}-{i}.txt").write_text(text, "utf-8")
    return folder


def paragraphs(about: Any) -> list[str]:
    """Return the summary and the first paragraphs of what a package says of itself, without
    markup.
    """
    body = str(about.get_payload() or about.get("Description") or "")
    body = re.sub(r"```.*?```|<[^>]+>|https?://\S+", " ", body, flags=re.DOTALL)
    body = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", body)
    plain = [
        " ".join(re.sub(r"[#*`=_|>~:-]{2,}", " ", part).split()) for part in body.split("\n\n")
    ]
    return [
        str(about["Summary"]),
        *[part[:800] for part in plain if len(part) >= LONG][:PARAGRAPHS],
    ]


def made_up(folder: Path) -> Path:
    """Write four topics of eight sentences each."""
    words = {
        "cooking": "soup bread oven",
        "sailing": "boat wind sea",
        "banking": "loan money credit",
        "gardening": "plant soil flower",
    }
    for topic, each in words.items():
        (folder / topic).mkdir(parents=True)
        for i in range(8):
            (folder / topic / f"{i}.txt").write_text(f"Number {i} about {each}.", "utf-8")
    return folder


def topics(folder: Path, draws: int) -> None:
    """Print ZSL, U, S and H of drawn splits, with both priors."""
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    counts = {name: len(list((folder / name).glob("*.txt"))) for name in names}
    print(f"{sum(counts.values())} texts of {len(names)} topics: {counts}\n")
    print("| prior | draw | unseen | ZSL | U | S | H |\n|---|--:|---|--:|--:|--:|--:|")
    for prior in ("mean", "semantics"):
        found = []
        for draw in range(draws):
            rng = np.random.default_rng(draw)
            unseen = sorted(rng.choice(names, min(UNSEEN, len(names) // 3), replace=False).tolist())
            with tempfile.TemporaryDirectory() as place:
                table = Path(place) / "classes.csv"
                rows = [[name, "unseen" if name in unseen else "seen"] for name in names]
                write_csv(table, [["name", "split"], *rows])
                result = run(settings(folder, table, prior, draw), Path(place) / "run").result
            numbers = [result[key] for key in ("zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic")]
            found.append(numbers)
            print(
                f"| {prior} | {draw} | {', '.join(unseen)} | {' | '.join(f'{x:.1f}' for x in numbers)} |",
                flush=True,
            )
        print(f"| {prior} | mean | | {' | '.join(f'{x:.1f}' for x in np.mean(found, axis=0))} |")


def settings(folder: Path, table: Path, prior: str, seed: int) -> Experiment:
    """Return the experiment that ``init`` writes, with one of the priors."""
    scaled = ["centre", "l2"] if prior == "mean" else ["l2"]
    return Experiment.from_dict(
        {
            "data": {
                "name": "texts",
                "root": str(folder),
                "classes": str(table),
                "features": scaled,
                "semantics": scaled,
            },
            "partition": {"kind": "pccd", "clients": 3},
            "method": {"name": "gaussian", "prior": prior, "calibration": True},
            "evaluation": {"selection": "last", "embedding": False, "theory": False},
            "run": {"seed": seed},
        }
    )


def tweets(data: Path) -> None:
    """Print the accuracy of a description, and of K examples of each answer, over five draws."""
    root = sent140._files(data / "sentiment140")
    texts, positive, authors = sent140._read(root)
    rng = np.random.default_rng(0)
    users = rng.permutation(int(authors.max()) + 1)
    new = np.isin(authors, users[: len(users) // 5])
    tested = rng.permutation(np.flatnonzero(new))[:2000]
    pool = rng.permutation(np.flatnonzero(~new))[:2000]
    labels = positive.astype(int)
    x = {
        place: embed_texts([texts[i] for i in rows.tolist()], "minilm")
        for place, rows in (("test", tested), ("train", pool))
    }
    described = embed_texts(list(ANSWERS), "minilm")
    right = (x["test"] @ described.T).argmax(1) == labels[tested]
    print("| examples of each answer | accuracy % |\n|--:|--:|")
    print(f"| none: the descriptions | {100 * right.mean():.1f} |")
    table = dict(zip(("negative", "positive"), described, strict=True))
    for shots in SHOTS:
        accuracies = []
        for draw in range(5):
            order = np.random.default_rng(draw).permutation(len(pool))
            rows = np.concatenate([order[labels[pool[order]] == c][:shots] for c in (0, 1)])
            names = np.array(list(table))[labels[pool[rows]]]
            model = ZeroShotClassifier(calibration=0.0).fit(x["train"][rows], names, classes=table)
            answers = model.predict(x["test"])
            accuracies.append(100 * np.mean(answers == np.array(list(table))[labels[tested]]))
        print(
            f"| {shots} | {np.mean(accuracies):.1f} ± {np.std(accuracies, ddof=1):.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
