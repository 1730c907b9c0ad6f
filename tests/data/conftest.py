"""Small copies of the published few-shot benchmarks, and the constants that go with them."""

import numpy as np
import pytest

from fedunseen.data.benchmarks import cifar100, cifar_files, omniglot
from fedunseen.data.benchmarks.cifar_files import published_split
from published_layouts import write_cifar_archive, write_omniglot

ALPHABETS = {"Greek": 3, "Latin": 2, "N_Ko": 2, "Korean": 1, "Hebrew": 2}
ARCHIVED = ("apple", "baby", "oak_tree", "otter", "tank", "whale", "worm")


def _cifar_binary(root):
    """Write CIFAR-100's binary version with the images in mixed order. Returns labels and images of both files."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "fine_label_names.txt").write_text("\n".join(published_split("zero_shot")) + "\n")
    made = []
    for file, count in (("train.bin", cifar_files.TRAIN), ("test.bin", cifar_files.TEST)):
        random = np.random.default_rng(count)
        fine = random.permutation(np.repeat(np.arange(100), count)).astype(np.uint8)
        pixels = random.integers(0, 256, (len(fine), 3, 32, 32), dtype=np.uint8)
        np.concatenate([fine[:, None], fine[:, None], pixels.reshape(len(fine), -1)], axis=1).tofile(root / file)
        made.append((fine, pixels))
    return made


def _cifar_archive(root):
    """Write the archive of CIFAR-FS with seven classes, and lists of six of them. Returns images by class."""
    made = write_cifar_archive(root, ARCHIVED, cifar_files.TRAIN + cifar_files.TEST)
    lists = root / "splits" / "bertinetto"
    lists.mkdir(parents=True)
    for part, names in (("train", "apple\ntank\noak_tree\n"), ("val", "otter\n"), ("test", "whale\nbaby")):
        (lists / f"{part}.txt").write_text(names)
    return made


def _omniglot(root, alphabets=ALPHABETS, **options):
    return write_omniglot(root, alphabets, **{"drawings": 2, **options})


@pytest.fixture
def small_copies(monkeypatch):
    """Let CIFAR-100 have three images a class, and Omniglot ten characters and three, of two drawings each."""
    monkeypatch.setattr(cifar_files, "TRAIN", 2)
    monkeypatch.setattr(cifar_files, "TEST", 1)
    names = {"TRAINING": ("Greek", "Latin"), "VALIDATION": ("N_Ko",), "NOVEL": ("Hebrew", "Korean")}
    counts = {"images_background": 10, "images_evaluation": 3}
    for name, value in {**names, "CHARACTERS": counts, "SANTORO": (6, 2), "DRAWINGS": 2}.items():
        monkeypatch.setattr(omniglot, name, value)
    return {"binary": _cifar_binary, "archive": _cifar_archive, "omniglot": _omniglot}


@pytest.fixture
def no_text_encoder(monkeypatch):
    """Stand in for the text encoder: a one-hot vector a class."""
    monkeypatch.setattr(
        cifar100, "describe", lambda names, *_: (np.eye(len(names)), tuple(f"text {i}" for i in range(len(names))))
    )
