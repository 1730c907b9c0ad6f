"""What all tests share: a cache folder of their own, so that no test sees another run's cached
results; a browser.
"""

import hashlib
import itertools
import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from hypothesis import HealthCheck, settings

from fedunseen import run
from fedunseen.data import Benchmark, ClassSpace
from photo_runs import photo_run

# Doctests would import every conftest.py under one module name, which fails for all but the last
# that was loaded.
collect_ignore_glob = ["*conftest.py"]

MADE = Path(os.environ["FEDUNSEEN_CACHE"]) / "made"  # of the session
REAL = Path(os.environ.get("FEDUNSEEN_DATA", Path(__file__).parents[1] / ".." / "shared" / "data"))
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip

# On a busy machine an example may take any time: that says nothing of the code.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def pytest_collection_modifyitems(items):
    """Put files that are slow as a whole first, so that none of several test processes is alone
    with one at the end.

    Such a file starts real processes, notebooks or benchmarks, and has
    ``pytestmark = pytest.mark.slow``: `make test` leaves it to `make test-all`. Its tests stay
    together, since they share what it makes once.
    """

    def quick(item):
        module = item.getparent(pytest.Module)
        return module is None or all(mark.name != "slow" for mark in module.own_markers)

    items.sort(key=quick)


@pytest.fixture(scope="session")
def new_cache(tmp_path_factory):
    """Make an empty cache folder, at each call another one."""
    above, numbers = tmp_path_factory.mktemp("caches"), itertools.count()

    def make():
        folder = above / str(next(numbers))
        folder.mkdir()
        return folder

    return make


@pytest.fixture(autouse=True)
def own_cache(new_cache, monkeypatch):
    """Keep results that take long in a folder that only this test has.

    All share one thing: the similarities of classes, which lie there under a digest of what they
    were computed from. A second of processor time for digit-pairs, they would be most of what a
    short run takes.
    """
    folder = new_cache()
    shared = Path(os.environ["FEDUNSEEN_CACHE"]) / "class-similarity"  # of the session
    shared.mkdir(parents=True, exist_ok=True)
    (folder / shared.name).symlink_to(shared, target_is_directory=True)
    monkeypatch.setenv("FEDUNSEEN_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def made_once():
    """Return a folder that ``make(folder)`` fills once for all test processes, which only read
    it.
    """

    def folder_of(name, make):
        folder = MADE / name
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not (folder / "whole").exists():
                make(folder)
                (folder / "whole").touch()
        return folder

    return folder_of


@pytest.fixture(scope="session")
def run_once(made_once):
    """Run an experiment once for all test processes; return its run directory, not to be written
    to.
    """

    def path_of(experiment):
        name = hashlib.sha256(json.dumps(experiment.to_dict()).encode()).hexdigest()
        return made_once(name, lambda folder: run(experiment, folder / "run")) / "run"

    return path_of


@pytest.fixture
def quick_coordinator(monkeypatch):
    """Let a coordinator look for parties more often, and a test wait less."""
    monkeypatch.setattr("fedunseen.deploy.remote.clients.Clients.pause", 0.01)


def on_threads(count):
    """Return a fixture: compute on so many threads, then on as many as before."""

    @pytest.fixture
    def threads():
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        yield
        torch.set_num_threads(before)

    return threads


one_thread = on_threads(
    1
)  # on a busy machine, threads that wait for each other cost more than small sums
two_threads = on_threads(2)  # however many cores there are


@pytest.fixture
def machine(tmp_path):
    """Real processes, each with a log, in the test's folder."""
    from processes import Machine

    made = Machine(tmp_path)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def make_folder():
    """Write a small benchmark ``folder``: 8 seen classes, the last two for validation, and 4 unseen
    ones.
    """

    def make(path, edit=None):
        """Write it; ``edit(rows, arrays)`` may spoil the lines of classes.csv and the arrays of
        features.npz.
        """
        random = np.random.default_rng(0)
        names = ["zèbre", "猫", "two words", "d", "e", "f", "g", "h", "i", "j", "k", "l"]
        splits = ["seen"] * 6 + ["validation"] * 2 + ["unseen"] * 4
        semantics = random.uniform(0.1, 1, (12, 6)).round(3)
        labels, split = np.repeat(np.arange(12), 14), np.tile(["train"] * 10 + ["test"] * 4, 12)
        kept = (labels < 8) | (split == "test")
        labels, split = labels[kept], split[kept]
        features = (semantics - semantics.mean(0))[labels] @ random.normal(size=(6, 9))
        features = (features + random.normal(scale=0.6, size=features.shape)).astype(np.float32)
        rows = [
            [name, word, *map(str, row)]
            for name, word, row in zip(names, splits, semantics, strict=True)
        ]
        rows = [["name", "split", *(f"attribute {i}" for i in range(6))], *rows]
        arrays = {"features": features, "labels": labels, "split": split}
        if edit is not None:
            edit(rows, arrays)
        path.mkdir(parents=True, exist_ok=True)
        (path / "classes.csv").write_text("".join(",".join(row) + "\n" for row in rows), "utf-8")
        np.savez(path / "features.npz", **arrays)
        return path

    return make


@pytest.fixture
def real_data():
    """The folder of real data; without it the test is skipped."""
    if not REAL.is_dir():
        pytest.skip(f"no real data in {REAL}: set FEDUNSEEN_DATA")
    return REAL


@pytest.fixture(scope="session")
def photos(own_photos):
    """Return the run of a small folder of real photos."""
    return own_photos


@pytest.fixture(scope="session")
def own_photos(made_once):
    """Return the run of a small folder of real photos; without data or encoders, skip."""
    if not REAL.is_dir():
        pytest.skip(f"no real data in {REAL}: set FEDUNSEEN_DATA")
    return made_once("photos", lambda folder: photo_run(REAL, folder)) / "run"


@pytest.fixture(scope="session")
def make_space():
    """Make a class space of 6 classes: 0 to 2 to train on, 3 for validation, 4 and 5 unseen."""

    def make(classes=6, unseen=(4, 5), validation=(3,), attributes=3, **changes):
        given = {
            "names": tuple(f"class {i}" for i in range(classes)),
            "semantics": np.random.default_rng(0).uniform(0.1, 1, (classes, attributes)),
            "attribute_names": tuple(f"attribute {i}" for i in range(attributes)),
            "seen": np.setdiff1d(np.arange(classes), unseen),
            "validation": np.array(validation, dtype=np.int64),
            "unseen": np.array(unseen, dtype=np.int64),
        }
        return ClassSpace(**(given | changes))

    return make


@pytest.fixture(scope="session")
def make_benchmark(make_space):
    """Make ``per_class`` training samples of each seen class of such a space, and ``tests`` test
    samples of every.
    """

    def make(space=None, per_class=10, tests=3, **changes):
        space = space or make_space()
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

    return make


@pytest.fixture(scope="session")
def with_pool():
    """An edit for ``make_folder``: 12 unlabelled samples of each class with a little noise, whose
    label is empty.
    """

    def edit(rows, arrays):
        names = np.array([row[0] for row in rows[1:]])
        labels, features = arrays["labels"], arrays["features"]
        pool = np.concatenate([features[labels == c][:12] for c in range(12)])
        pool = pool + np.random.default_rng(5).normal(scale=0.1, size=pool.shape)
        arrays["labels"] = np.concatenate([names[labels], np.full(len(pool), "")])
        arrays["features"] = np.concatenate([features, pool.astype(np.float32)])
        arrays["split"] = np.concatenate([arrays["split"], np.full(len(pool), "train")])

    return edit


@pytest.fixture(scope="module")
def browser():
    """Open Chromium for the tests of a file: while it is open, they cannot start a loop of their own.

    A machine without it skips them, unless FEDUNSEEN_BROWSER is ``required``.
    """
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    missing = "there is no Chromium on this machine" if path is None else ""
    if find_spec("playwright") is None:
        missing = "Playwright is not installed"
    if missing:
        (pytest.fail if os.environ.get("FEDUNSEEN_BROWSER") == "required" else pytest.skip)(missing)
    import playwright.sync_api as api

    api.expect.set_options(timeout=120_000)  # of a busy machine
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield opened
        opened.close()
