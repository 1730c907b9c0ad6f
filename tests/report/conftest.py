import functools

import pytest

from fedunseen import Experiment, load_run


@pytest.fixture(scope="session")
def tiny(run_once):
    """Run an experiment with these settings, each once."""

    @functools.cache
    def make(source, *settings):
        return load_run(run_once(Experiment.load(source, dict(settings))))

    return make


@pytest.fixture(scope="session")
def made(tiny):
    """Make a tiny run of the default benchmark."""
    small = {
        "data.train_per_class": 10, "data.test_per_class": 6, "method.hidden": (32,), "strategy.rounds": 2,
        "evaluation.selection": "last", "evaluation.theory": True,
    }  # fmt: skip

    def make(*overrides):
        plain = (
            {}
            if "method.name" in dict(overrides)
            else {"method.kl": 0.0, "method.consistency": 0.0}
        )
        return tiny("digit-pairs", *(small | plain | dict(overrides)).items())

    return make
