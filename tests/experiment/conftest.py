"""What the tests of the experiment room share: a small benchmark, an experiment on it, and finished runs of it."""

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
