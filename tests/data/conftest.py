"""What the tests of the data room share: a small class space, a small benchmark, and the real data."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedunseen.data import Benchmark, ClassSpace

REAL = Path(os.environ.get("FEDUNSEEN_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))


@pytest.fixture
def real_data():
    """The folder of real data; without it the test is skipped."""
    if not REAL.is_dir():
        pytest.skip(f"no real data in {REAL}: set FEDUNSEEN_DATA")
    return REAL


def _space(classes=6, unseen=(4, 5), validation=(3,), attributes=3, **changes):
    semantics = np.random.default_rng(0).uniform(0.1, 1, (classes, attributes))
    given = {
        "names": tuple(f"class {i}" for i in range(classes)),
        "semantics": semantics,
        "attribute_names": tuple(f"attribute {i}" for i in range(attributes)),
        "seen": np.setdiff1d(np.arange(classes), unseen),
        "validation": np.array(validation, dtype=np.int64),
        "unseen": np.array(unseen, dtype=np.int64),
    }
    return ClassSpace(**(given | changes))


def _benchmark(space=None, per_class=10, tests=3, **changes):
    """Make ``per_class`` training samples of each seen class and ``tests`` test samples of every class."""
    space = space or _space()
    labels, train, test = [], [], []
    for c in range(len(space.names)):
        for role, count in ((train, per_class if c in space.seen else 0), (test, tests)):
            role += range(len(labels), len(labels) + count)
            labels += [c] * count
    labels, test = np.array(labels), np.array(test)
    given = {
        "name": "small",
        "space": space,
        "features": np.random.default_rng(1).normal(size=(len(labels), 5)).astype(np.float32),
        "labels": labels,
        "train": np.array(train),
        "test_seen": test[np.isin(labels[test], space.seen)],
        "test_unseen": test[np.isin(labels[test], space.unseen)],
    }
    return Benchmark(**(given | changes))


@pytest.fixture(scope="session")
def make_space():
    """Make a class space of 6 classes: 0 to 2 to train on, 3 for validation, 4 and 5 unseen."""
    return _space


@pytest.fixture(scope="session")
def make_benchmark():
    """Make a benchmark on such a class space."""
    return _benchmark
