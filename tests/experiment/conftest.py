"""What the tests of the experiment room share: a small benchmark, an experiment on it, and finished
runs of it.
"""

import numpy as np
import pytest
from PIL import Image

from fedunseen import ClassSpace, Experiment, run
from small_runs import METHOD, KilledError


@pytest.fixture(autouse=True)
def single_thread(one_thread):
    """Every run here is small."""


@pytest.fixture(scope="session")
def folder(make_folder, tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("small") / "data")


@pytest.fixture(scope="session")
def tree(folder):
    """The sections of a small experiment; a run takes a fraction of a second."""
    return {
        "name": "small",
        "data": {"name": "folder", "root": str(folder), "features": ["standard"]},
        "partition": {"kind": "pccd", "clients": 3},
        "method": METHOD,
        "strategy": {"name": "fedavg", "rounds": 4, "local_epochs": 1},
        "run": {"device": "cpu"},
    }


@pytest.fixture(scope="session")
def make(tree):
    """Make an experiment from the small one with other settings:
    ``make({"strategy.rounds": 2})``.
    """
    return lambda settings=None: Experiment.from_dict(tree, settings or {})


@pytest.fixture
def ran(make, tmp_path):
    """Run the small experiment with other settings, in the folder of that name in the test's
    own.
    """
    return lambda settings=None, name="run", **more: run(make(settings), tmp_path / name, **more)


@pytest.fixture(scope="session")
def finished(make, tmp_path_factory):
    """A finished run of the small experiment, not to be written to."""
    return run(make(), tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Eight classes of small pictures: a color, bright above or below; no one holds green below and
    red above.
    """
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    lines = ["name,split,color: red,color: green,color: blue,where: above,where: below"]
    for colour, rgb in (
        ("red", ".86,.16,.16"),
        ("green", ".16,.78,.24"),
        ("blue", ".2,.27,.86"),
        ("grey", ".5,.5,.5"),
    ):
        for where, half, flags in (("above", slice(10), "1,0"), ("below", slice(10, 20), "0,1")):
            name = f"{colour} {where}"
            lines.append(
                f"{name},{'unseen' if name in ('green below', 'red above') else 'seen'},{rgb},{flags}"
            )
            (root / name).mkdir()
            pictures = rng.normal(30, 12, (14, 20, 20, 3))
            pictures[:, half] += np.array(rgb.split(","), dtype=float) * rng.uniform(
                180, 255, (14, 1, 1, 1)
            )
            for i, picture in enumerate(pictures.clip(0, 255).astype(np.uint8)):
                Image.fromarray(picture).save(root / name / f"{i}.png")
    (root / "classes.csv").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture(scope="session")
def cut_short():
    """Run an experiment into a folder and end it as a kill would, once so many rounds are done and
    written down.
    """

    def cut(experiment, path, after, stage=""):
        def kill(now, round, rounds, line):
            if round == after and now.startswith(stage):
                raise KilledError

        with pytest.raises(KilledError):
            run(experiment, path, progress=kill)

    return cut


@pytest.fixture(scope="session")
def described():
    """Write a folder of classes whose samples are linear in their attributes, with noise; return
    its settings.

    The last ``unseen`` of the classes are unseen, and ``validation`` of those before are for
    validation.
    """

    def write(folder, shape, noise, each, unseen, validation=0, seed=0, scale=1.0):
        rng, (classes, attributes, features) = np.random.default_rng(seed), shape
        semantics, labels = rng.random((classes, attributes)), np.repeat(np.arange(classes), each)
        rows = semantics[labels] @ rng.normal(size=(attributes, features))
        rows = scale * (rows + noise * rng.normal(size=rows.shape)).astype(np.float32)
        seen = classes - unseen
        split = np.where((labels < seen) & (np.arange(len(labels)) % 4 > 0), "train", "test")
        np.savez(folder / "features.npz", features=rows, labels=labels, split=split)
        names, columns = (
            tuple(f"c{c}" for c in range(classes)),
            tuple(f"a{i}" for i in range(attributes)),
        )
        sets = range(seen), range(seen - validation, seen), range(seen, classes)
        ClassSpace(names, semantics, columns, *sets).save(folder / "classes.csv")
        return {"name": "folder", "root": str(folder)}

    return write
