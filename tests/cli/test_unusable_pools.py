"""Unlabelled samples that cannot be used: one sentence wherever they are given, and nothing is
written or changed.
"""

import shutil
import time
from functools import cache, partial

import numpy as np
import pytest

from fedunseen import Experiment, FedUnseenError, ZeroShotClassifier, load_run, run
from fedunseen.deploy.secagg.enrolment import enrol
from fedunseen.experiment.assemble import load_data
from processes import command as done
from processes import sets
from refusals import message_of
from small_runs import ADAPTING

NAMES = ("north", "south", "west")
SPOIL = {
    "length": lambda rows: rows[:, :7],
    "none": lambda rows: rows[:0],
    "one": lambda rows: rows[:1],
    "few": lambda rows: rows[:9],
    "not finite": lambda rows: np.where(rows == rows[15, 3], np.nan, rows),
    "infinite": lambda rows: np.where(rows == rows[15, 3], np.inf, rows),
    "text": lambda rows: rows.astype(str),
}
FILES = {
    "empty file": b"",
    "broken": b"PK\x03\x04 cut",
    "missing": None,
    "damaged picture": b"\x89PNG cut",
}
TABLE = "name,split,fur,size\ncat,seen,1,0.1\ndog,seen,1,0.3\nhorse,seen,0.8,0.9\nship,unseen,0,1\n"
DAMAGED = "is damaged or not a NumPy file: save it again"
OF_RUNS = {
    "empty file": DAMAGED,
    "broken": DAMAGED,
    "missing": "is missing: correct its name",
    "method": "'gaussian'",
}
ESTIMATOR = {
    "length": "X has 7 features, but ZeroShotClassifier is expecting 128 features as input): give "
    "(m, 128) finite",
    "none": "there are 0 unlabelled samples: give at least 10",
    "one": "there is 1 unlabelled sample: give at least 10",
    "few": "there are 9 unlabelled samples: give at least 10",
    "not finite": "the unlabelled samples cannot be used (Input X contains NaN): give (m, 128) "
    "finite numbers",
    "text": "give (m, 128) finite numbers",
    "method": "method.name = 'ridge' keeps no class means",
}
CASES = {
    "command": {
        "length": "pool.npz: its vectors have 7 numbers, but the model takes 128: give so many",
        "none": "pool.npz: the features have the shape (0, 128), not (vectors, numbers): give at "
        "least one",
        "few": "there are 9 unlabelled samples in {place}/pool.npz: give at least 10",
        "not finite": "vectors hold NaN or infinity: leave those out",
        "text": "pool.npz: the features are of type <U32, not real numbers: save numbers",
        "not finite of pictures": "pool.npz holds numbers that are not finite: leave those "
        "pictures out",
        "none of pictures": "pool.npz has the shape (0, 8, 16), so no sample: give at least one",
        "few of pictures": "there are 9 unlabelled samples in {place}/pool.npz: give at least 10",
        "text of pictures": "give pictures (n, height, width[, 3])",
        "damaged picture": "0.png is not a readable image: give another file",
        "empty folder": "pool is empty: name a folder that holds pictures",
        **OF_RUNS,
    },
    "Run.adapt": {
        "length": "the inputs have the shape (20, 7), but this run's model takes (n, 128): give "
        "such inputs",
        "none": "there are 0 unlabelled samples: give at least 10",
        "few": "there are 9 unlabelled samples: give at least 10",
        "not finite": "the inputs hold values that are not finite: leave those rows out",
        "text": "the inputs are of type <U32: give real numbers",
        **OF_RUNS,
    },
    "estimator.adapt": ESTIMATOR,
    "estimator.fit": ESTIMATOR,
    "run": {
        "length": "features.npz holds Python objects, which are never loaded: save plain numbers "
        "or text",
        "none": "there are 0 unlabelled samples in {place}/data/features.npz: give at least 10",
        "few": "there are 9 unlabelled samples in {place}/data/features.npz: give at least 10",
        "infinite": "samples hold NaN or infinity: leave those out",
        "text": "not real numbers: save numbers",
        "none of pictures": "there are 0 unlabelled samples in {place}/data/unlabelled: give at "
        "least 10",
        "few of pictures": "there are 9 unlabelled samples in {place}/data/unlabelled: give at "
        "least 10",
        "damaged picture": "unlabelled/0.png is not a readable image (1 of 60 are not): fix or "
        "replace it",
        **OF_RUNS,
        "method": "set method.name = 'gaussian', or data.unlabelled = false",
    },
    "answer": {
        "length": "features.npz holds Python objects, which are never loaded: save plain numbers "
        "or text",
        "length of all": "a sample has the shape (7,), but the coordinator's model takes (9,): "
        "give features of the",
        "infinite": "samples hold NaN or infinity: leave those out",
        "text": "not real numbers: save numbers",
        "empty file": DAMAGED,
        "broken": DAMAGED,
    },
}


@pytest.fixture(scope="module")
def place(adapting, digits, tmp_path_factory):
    """Runs with and without class means, samples, three parties, and the coordinator's plan to
    adapt a run.
    """
    place = tmp_path_factory.mktemp("pools")
    settings = {"data.train_per_class": 10, "data.test_per_class": 4, "evaluation.embedding": False}
    run(Experiment.load("digit-pairs-gaussian", settings), place / "run")
    (place / "method").symlink_to(digits)
    enrol(place / "kits", NAMES)
    settings = {**ADAPTING, "data.unlabelled": False, "data.root": str(adapting / "whole")}
    run(Experiment.from_dict({}, settings), place / "vectors")
    words = (
        "--credentials",
        place / "kits/coordinator",
        "--parties",
        ",".join(NAMES),
        "--out",
        place / "plan",
    )
    done("offline", "plan", "--adapt", place / "vectors", *words)
    return place


@pytest.fixture(scope="module")
def labelled(place):
    """Features, names of their classes, and the table of classes."""
    data = load_data(load_run(place / "run").experiment, 0)
    names = np.array(data.space.names)
    table = dict(zip(names, data.space.semantics, strict=True))
    return data.features[data.train], names[data.labels[data.train]], table


@pytest.fixture(scope="module")
def fitted(labelled):
    """Return a classifier of a method, fitted once."""
    x, y, table = labelled
    return cache(lambda method: ZeroShotClassifier(method).fit(x, y, classes=table))


def spoilt(kind, rows):
    """Return an unlabelled pool, rows or files, of a kind."""
    return SPOIL.get(kind.partition(" of ")[0], lambda same: same)(rows)


def write(path, content):
    """Write a file, or have none there."""
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)


@pytest.fixture
def pool(labelled, tmp_path):
    """Write a pool of a kind, and return what is given: a file, a folder or, ``in_memory``, an
    array.
    """

    def make(kind, in_memory=False):
        file, folder = tmp_path / "pool.npz", tmp_path / "pool"
        if kind in ("damaged picture", "empty folder"):
            folder.mkdir()
            write(folder / "0.png", FILES.get(kind))
            return folder
        rows = labelled[0][:20]
        array = spoilt(kind, rows.reshape(-1, 8, 16) if "of pictures" in kind else rows)
        np.savez(file, features=array)
        if kind in FILES:
            write(file, FILES[kind])
        return array if in_memory and kind not in FILES else file

    return make


def copied(source, folder, kind):
    """Copy a folder of features, whose last samples have no label, and spoil these."""
    file = shutil.copytree(source, folder) / "features.npz"
    arrays = dict(np.load(file))
    known = (arrays["labels"] != "") & (kind != "length of all")
    rows = [*arrays["features"][known], *spoilt(kind, arrays["features"][~known])]
    arrays = {name: value[: len(rows)] for name, value in arrays.items()}
    np.savez(file, **{**arrays, "features": np.array(rows, object if kind == "length" else None)})
    if kind in FILES:
        write(file, FILES[kind])
    return folder


def answer(place, name, folder):
    """Return the words with which a party answers the plan, except for where."""
    kit = ("--credentials", place / "kits" / name)
    return (
        "offline",
        "answer",
        place / "plan",
        "--data",
        folder,
        *kit,
        "--state",
        folder.with_name(f"state-{name}"),
    )


def pictures(folder, kind):
    """Add a folder of pictures without a label to those of four classes."""
    (folder / "unlabelled").mkdir()
    for path in spoilt(kind, sorted((folder / "cat").iterdir())):
        shutil.copy(path, folder / "unlabelled")
    if kind == "damaged picture":
        write(folder / "unlabelled" / "0.png", FILES[kind])
    return folder


error = partial(message_of, error=FedUnseenError)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "kind"), [(way, kind) for way, kinds in CASES.items() for kind in kinds]
)
def test_an_unusable_pool_is_one_sentence(
    way, kind, place, pool, photos, labelled, fitted, adapting, refused, tmp_path
):
    name, new = "method" if kind == "method" else "run", tmp_path / "new"
    if way == "command":
        call = partial(refused, "adapt", place / name, pool(kind), "--out", new)
    elif way == "Run.adapt":
        call = partial(error, load_run(place / name).adapt, pool(kind, in_memory=True), new)
    elif way.startswith("estimator"):
        x, y, table = labelled
        method = "ridge" if kind == "method" else "gaussian"
        rows = pool(kind, in_memory=True)
        if way == "estimator.fit":
            model = ZeroShotClassifier(method)
            call = partial(error, model.fit, x, y, classes=table, unlabelled=rows)
        else:
            call = partial(error, fitted(method).adapt, rows)
    elif way == "run":
        more = {"method.name": "eszsl"} if kind == "method" else {}
        if "picture" in kind:
            folder = pictures(photos(tmp_path / "data", TABLE, 12, (16, 16)), kind)
            more = {"data.name": "images", "data.size": 16, "encoder.name": "efficientnet-lite"}
        else:
            folder = copied(adapting / "mine", tmp_path / "data", kind)
        settings = {
            "partition.clients": 2,
            "data.root": str(folder),
            "data.unlabelled": True,
            **more,
        }
        call = partial(refused, "run", adapting / "mine.toml", *sets(settings), "--out", new)
    else:
        folder = copied(adapting / "data" / "north", tmp_path / "data", kind)
        call = partial(refused, *answer(place, "north", folder), "--out", new)
    before, begin = set(tmp_path.rglob("*")), time.process_time()
    said = call()
    assert time.process_time() - begin < 2
    assert CASES[way][kind].format(place=tmp_path) in said
    assert (": " in said, "\n" in said) == (True, False)
    assert {
        path
        for path in tmp_path.rglob("*")
        if "state-north" not in path.relative_to(tmp_path).parts
    } == before
