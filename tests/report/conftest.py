import functools

import pytest

from fedunseen import Experiment, run


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Make a tiny run of the default benchmark, each kind once."""

    @functools.cache
    def make(*overrides):
        small = {
            "data.train_per_class": 10, "data.test_per_class": 6, "method.hidden": [32], "strategy.rounds": 2,
            "evaluation.selection": "last", "evaluation.theory": True,
        }  # fmt: skip
        if "method.name" not in dict(overrides):
            small |= {"method.kl": 0.0, "method.consistency": 0.0}
        return run(Experiment.load("digit-pairs", small | dict(overrides)), tmp_path_factory.mktemp("runs") / "run")

    return make
