"""Published few-shot benchmarks that are small enough to be written for a test."""

import numpy as np
import pytest

from fedunseen.data.benchmarks import cifar100, omniglot


@pytest.fixture
def small_copies(monkeypatch):
    """Let CIFAR-100 have three images a class, and Omniglot ten characters and three, of two
    drawings each.
    """
    changes = {
        "TRAINING": ("Greek", "Latin"),
        "VALIDATION": ("N_Ko",),
        "NOVEL": ("Hebrew", "Korean"),
    }
    counts = {"images_background": 10, "images_evaluation": 3}
    for name, value in {**changes, "CHARACTERS": counts, "SANTORO": (6, 2), "DRAWINGS": 2}.items():
        monkeypatch.setattr(omniglot, name, value)
    monkeypatch.setattr(cifar100, "TRAIN", 2)
    monkeypatch.setattr(cifar100, "TEST", 1)


@pytest.fixture
def no_text_encoder(monkeypatch):
    """Stand in for the text encoder: a one-hot vector a class."""
    monkeypatch.setattr(
        cifar100,
        "describe",
        lambda names, *_: (np.eye(len(names)), tuple(f"text {i}" for i in range(len(names)))),
    )
