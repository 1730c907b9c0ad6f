import numpy as np
import pytest

import fedunseen
from fedunseen import Benchmark, Experiment
from fedunseen.core.errors import DataError

ANIMALS = {"horse": [0, 1.0], "tiger": [1, 1.0], "seal": [0, 0.1], "eel": [1, 0.2], "cow": [0.2, 1], "zebra": [1, 0.9]}
TREE = {
    "name": "mine",
    "data": {"name": "arrays"},
    "partition": {"kind": "user", "clients": 2},
    "method": {"name": "gaussian", "shrinkage": 0.5},
    "evaluation": {"selection": "last"},
}


@pytest.fixture
def benchmark():
    rng = np.random.default_rng(0)
    rows = {name: np.tile(row, (12, 2)) + 0.1 * rng.normal(size=(12, 4)) for name, row in ANIMALS.items()}
    seen = list(ANIMALS)[:5]
    return Benchmark.from_arrays(
        np.concatenate([rows[name][:8] for name in seen]), np.repeat(seen, 8), ANIMALS,
        test=(np.concatenate([rows[name][8:] for name in ANIMALS]), np.repeat(list(ANIMALS), 4)),
        groups=np.repeat([0, 1], [16, 24]),
    )  # fmt: skip


def test_arrays_have_a_run_directory_that_predicts(benchmark, tmp_path):
    done = fedunseen.run(Experiment.from_dict(TREE), tmp_path / "run", benchmark=benchmark)
    assert done.manifest["experiment"]["data"]["name"] == "arrays"
    assert done.result["zsl"] == 100.0  # there is one unseen class
    ranking = fedunseen.load_run(tmp_path / "run").predict(benchmark.features[benchmark.test_unseen][:1])
    assert {one.name for one in ranking[0]} == set(ANIMALS)


def test_several_seeds_take_the_same_arrays(benchmark, tmp_path):
    done = fedunseen.run(Experiment.from_dict(TREE, {"run.seeds": 2}), tmp_path / "run", benchmark=benchmark)
    assert (done.result["seeds"], done.result["zsl_sd"]) == ([0, 1], 0.0)


def test_a_file_holds_no_arrays(tmp_path):
    with pytest.raises(DataError, match="stands for arrays in memory, which are in no file: give them from Python"):
        fedunseen.run(Experiment.from_dict(TREE), tmp_path / "run")
    assert not (tmp_path / "run").exists()
