"""CLIP and its kind: zero-shot, and with examples at parties that hold classes of their own
(docs/research/own-data.md).

    python benchmarks/accuracy/clip.py WEIGHTS SET ... [--shots 8] [--seeds 3]

WEIGHTS is a folder or a hub name of CLIP or SigLIP. A SET is ``NAME=FOLDER``: ``cub``, ``awa2``,
``sun`` and ``cifar100`` in their published layouts, or any other name for a folder of pictures for
each class. ``--smallest`` draws random weights, and measures nothing.

Base to new is FedTPG's protocol (Qiu et al. 2024): of the sorted classes the first half is base and
the other half new, a party holds 20 base classes alone, with 8 shots of each. Local: among a
party's own classes, the mean over parties. Base, new: among all of these. H is the harmonic mean of
the three. The published splits have ZSL, U, S and H, means over classes in percent.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen import ZeroShotClassifier
from fedunseen.core.registry import find
from fedunseen.data.benchmarks.image_folder import child_folders
from fedunseen.data.class_table import describe
from fedunseen.data.io.images import decode, list_images
from fedunseen.encoders.text import clean_class_name
from fedunseen.encoders.vision import Vision, VisionSettings
from own_data import smallest

PUBLISHED = ("cub", "awa2", "sun", "cifar100")
BASE_CLASSES = 20  # of a party, as in FedTPG
TEST_SHARE = 0.5
METHODS: dict[str, dict[str, Any] | None] = {
    "zero-shot": None,
    "gaussian, prior mean": {"prior": "mean"},
    "gaussian, prior semantics": {"prior": "semantics"},
}
Rows = NDArray[Any]


@dataclass(frozen=True)
class Set:
    """Unit vectors of images and of the texts of classes in one space."""

    images: Rows
    labels: Rows
    texts: Rows
    unseen: Rows  # of the published split; none of a folder
    train: Rows

    def fit(
        self, settings: dict[str, Any], rows: Rows, groups: Rows, calibration: Any = 0.0
    ) -> ZeroShotClassifier:
        """Train on some samples, each of a party."""
        table = {f"{c:04}": text for c, text in enumerate(self.texts)}
        names = np.array(list(table))
        model = ZeroShotClassifier(
            method_params=settings, features=["l2"], semantics=["l2"], calibration=calibration
        )
        fitted: ZeroShotClassifier = model.fit(
            self.images[rows], names[self.labels[rows]], classes=table, groups=groups[rows]
        )
        return fitted

    def accuracy(self, scores: Rows, rows: Rows, among: Rows) -> float:
        """Return the mean over classes of the share of right answers among some classes, in
        percent.
        """
        answers = among[scores[:, among].argmax(1)]
        right = [
            np.mean(answers[self.labels[rows] == c] == c)
            for c in among
            if (self.labels[rows] == c).any()
        ]
        return 100 * float(np.mean(right)) if right else float("nan")


def main() -> None:
    """Read the arguments, and print a table of each protocol."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", nargs="?")
    parser.add_argument("sets", nargs="*", metavar="NAME=FOLDER")
    parser.add_argument("--shots", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--per-class", type=int, help="images of a class of a published set")
    parser.add_argument("--smallest", action="store_true", help="random weights, twelve pictures")
    args = parser.parse_args()
    if (args.weights is None) != args.smallest:
        parser.error("name the weights and the data, or --smallest")
    with tempfile.TemporaryDirectory() as folder:
        if args.smallest:
            place = Path(folder)
            smallest(place)
            random_clip(place / "clip", [path.name for path in child_folders(place / "smallest")])
            args.weights = str(place / "clip")
            args.seeds = args.shots = 1
            args.sets = [f"colors={place / 'smallest'}"]
        base_to_new = Table("base to new", ("local", "base", "new", "H"))
        proposed = Table("published split", ("ZSL", "U", "S", "H"))
        for name, _, root in (each.partition("=") for each in args.sets):
            data = load(name, Path(root), args.weights, args.per_class)
            for method, settings in METHODS.items():
                seeds = range(args.seeds if settings else 1)
                rows = [base_new(data, settings, args.shots, seed) for seed in seeds]
                base_to_new.add(name, method, np.mean(rows, axis=0))
                if len(data.unseen):
                    proposed.add(name, method, published(data, settings))
        base_to_new.show()
        proposed.show()


class Table:
    """A table that is printed at the end."""

    def __init__(self, title: str, columns: Sequence[str]) -> None:
        self.lines = [f"{title}\n", f"| data | method | {' | '.join(columns)} |"]
        self.lines.append("|---|---|" + "--:|" * len(columns))

    def add(self, data: str, method: str, numbers: Rows) -> None:
        """Add a row."""
        self.lines.append(f"| {data} | {method} | {' | '.join(f'{x:.1f}' for x in numbers)} |")

    def show(self) -> None:
        """Print it, if it has a row."""
        if len(self.lines) > 3:
            print("\n".join(self.lines), end="\n\n", flush=True)


def load(name: str, root: Path, weights: str, most: int | None = None) -> Set:
    """Return the images of a set and the names of its classes as the weights see them."""
    if name in PUBLISHED:
        limits = {"train_per_class": most, "test_per_class": most} if most else {}
        settings = find("data", name).Settings.model_validate({"root": root, **limits})
        data = find("data", name).load(settings, 0)
        names, images, labels = data.space.names, data.images(), data.labels
        unseen, train = data.space.unseen, data.train
    else:
        folders = child_folders(root)
        names = [folder.name for folder in folders]
        files = [
            (c, folder / file) for c, folder in enumerate(folders) for file in list_images(folder)
        ]
        images = decode(
            root, [str(path.relative_to(root)) for _, path in files], 224, 224, False
        ).images
        labels = np.array([c for c, _ in files])
        unseen = train = np.array([], dtype=np.int64)
    assert images is not None
    shape = (int(images.shape[1]), int(images.shape[2]), int(images.shape[3]))
    vectors = Vision(VisionSettings(weights=weights), shape, "vectors").encode(images)
    texts, _ = describe([clean_class_name(each) for each in names], weights, "a photo of a {}.")
    return Set(np.asarray(vectors), labels, texts, unseen, train)


def base_new(data: Set, settings: dict[str, Any] | None, shots: int, seed: int) -> Rows:
    """Return local, base and new accuracy and their harmonic mean."""
    rng = np.random.default_rng(seed)
    classes = np.unique(data.labels)
    base, new = np.split(classes, [-(-len(classes) // 2)])
    parties = np.array_split(rng.permutation(base), -(-len(base) // BASE_CLASSES))
    party_of = np.full(len(data.texts), -1)
    for number, mine in enumerate(parties):
        party_of[mine] = number
    train, test = [], []
    for c in classes:
        rows = rng.permutation(np.flatnonzero(data.labels == c))
        held = max(1, int(TEST_SHARE * len(rows)))
        test.append(rows[:held])
        train += [rows[held:][:shots]] if c in base else []
    tested = np.concatenate(test)
    if settings is None:
        scores = data.images[tested] @ data.texts.T
    else:
        groups = np.array([f"party {p}" for p in party_of[data.labels]])
        model = data.fit(settings, np.sort(np.concatenate(train)), groups)
        scores = model.scores(data.images[tested])
    local = []
    for mine in parties:
        own = np.isin(data.labels[tested], mine)
        local.append(data.accuracy(scores[own], tested[own], np.sort(mine)))
    three = [float(np.mean(local))]
    for half in (base, new):
        own = np.isin(data.labels[tested], half)
        three.append(data.accuracy(scores[own], tested[own], half))
    return np.array([*three, 3 / np.sum(1 / np.maximum(three, 1e-9))])


def published(data: Set, settings: dict[str, Any] | None) -> Rows:
    """Return ZSL, U, S and H on the split of the data set, all samples of a class at one party."""
    tested = np.setdiff1d(np.arange(len(data.labels)), data.train)
    if settings is None:
        scores = data.images[tested] @ data.texts.T
    else:
        model = data.fit(
            settings, data.train, np.array([f"party {c}" for c in data.labels]), "validation"
        )
        scores = model.scores(data.images[tested])
    everything = np.arange(len(data.texts))
    seen = np.setdiff1d(everything, data.unseen)
    unseen_rows = np.isin(data.labels[tested], data.unseen)

    def among(rows: Rows, candidates: Rows, counted: Rows) -> float:
        answers = candidates[scores[rows][:, candidates].argmax(1)]
        labels = data.labels[tested][rows]
        return 100 * float(
            np.mean([np.mean(answers[labels == c] == c) for c in counted if (labels == c).any()])
        )

    zsl = among(unseen_rows, data.unseen, data.unseen)
    u = among(unseen_rows, everything, data.unseen)
    s = among(~unseen_rows, everything, seen)
    return np.array([zsl, u, s, 2 * u * s / max(u + s, 1e-9)])


def random_clip(folder: Path, names: Sequence[str]) -> None:
    """Save a tiny CLIP of random weights, with a tokenizer that knows these words."""
    import tokenizers
    import transformers

    torch.manual_seed(0)
    words = {word: i for i, word in enumerate(["[UNK]", "[PAD]", "a", "photo", "of", ".", *names])}
    small = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    special = {"vocab_size": len(words), "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 1}
    config = transformers.CLIPConfig(
        vision_config={**small, "image_size": 32, "patch_size": 16},
        text_config={**small, **special},
        projection_dim=8,
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    known = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    known.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    known.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A [PAD]", special_tokens=[("[PAD]", 1)]
    )  # CLIP's vector is that of the last token
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=known, unk_token="[UNK]", pad_token="[PAD]", model_max_length=16
    ).save_pretrained(folder)


if __name__ == "__main__":
    sys.exit(main())
