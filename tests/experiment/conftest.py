"""What the tests of the experiment room share: a small benchmark, an experiment on it, and finished runs of it."""

import numpy as np
import pytest

from fedunseen import Experiment, run


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
        "method": {"name": "fedzsl", "hidden": [16], "lr": 0.05, "kl": 0.0, "consistency": 0.0, "batch_size": 8},
        "strategy": {"name": "fedavg", "rounds": 4, "local_epochs": 1},
        "run": {"device": "cpu"},
    }


@pytest.fixture(scope="session")
def make(tree):
    """Make an experiment from the small one with other settings: ``make({"strategy.rounds": 2})``."""
    return lambda settings=None: Experiment.from_dict(tree, settings or {})


@pytest.fixture(scope="session")
def finished(make, tmp_path_factory):
    """A finished run of the small experiment, not to be written to."""
    return run(make(), tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture(scope="session")
def cut_short():
    """Run an experiment into a folder and end it as a kill would, once so many rounds are done and written down."""

    class KilledError(Exception):
        pass

    def cut(experiment, path, after, stage=""):
        def kill(now, round, rounds, line):
            if round == after and now.startswith(stage):
                raise KilledError

        with pytest.raises(KilledError):
            run(experiment, path, progress=kill)

    return cut


@pytest.fixture(scope="session")
def described():
    """Write a folder of classes whose samples are linear in their attributes, with noise; return its settings.

    The last ``unseen`` of the classes are unseen, and ``validation`` of those before are for validation.
    """

    def write(folder, shape, noise, each, unseen, validation=0, seed=0):
        rng, (classes, attributes, features) = np.random.default_rng(seed), shape
        semantics, labels = rng.random((classes, attributes)), np.repeat(np.arange(classes), each)
        rows = semantics[labels] @ rng.normal(size=(attributes, features))
        rows = (rows + noise * rng.normal(size=rows.shape)).astype(np.float32)
        seen = classes - unseen
        split = np.where((labels < seen) & (np.arange(len(labels)) % 4 > 0), "train", "test")
        np.savez(folder / "features.npz", features=rows, labels=labels, split=split)
        lines = ["name,split," + ",".join(f"a{i}" for i in range(attributes))]
        for c, row in enumerate(semantics):
            kind = "unseen" if c >= seen else "validation" if c >= seen - validation else "seen"
            lines.append(f"c{c},{kind},{','.join(map(str, row))}")
        (folder / "classes.csv").write_text("\n".join(lines) + "\n", "utf-8")
        return {"name": "folder", "root": str(folder)}

    return write
