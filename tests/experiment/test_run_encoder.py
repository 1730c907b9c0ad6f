"""A trained run's features as a frozen encoder, and the closed form on top of them."""

import shutil

import numpy as np
import pytest
import torch

from fedunseen import Experiment, load_run, run
from fedunseen.core.errors import DataError, ExperimentError, RunDirectoryError
from fedunseen.experiment.assemble import load_data

FEW = {"data.train_per_class": 20, "data.test_per_class": 8, "evaluation.embedding": False}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    settings = {**FEW, "strategy.rounds": 8, "evaluation.selection": "last"}
    return run(Experiment.load("digit-pairs", settings), tmp_path_factory.mktemp("trained") / "run")


@pytest.mark.slow
def test_gaussian_classes_on_a_run_s_features(trained, tmp_path):
    on_top = {**FEW, "encoder.name": "run", "encoder.model": str(trained.path)}
    experiment = Experiment.load("digit-pairs-gaussian", on_top)
    benchmark = load_data(experiment, 0)
    raw = load_data(Experiment.load("digit-pairs-gaussian", FEW), 0)
    expected = trained.method.features(trained.params, torch.from_numpy(trained.scaler(raw.features[:5])))
    np.testing.assert_allclose(benchmark.features[:5], expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    done = run(experiment, tmp_path / "on-top")
    assert done.result["rounds"] == 1
    assert done.result["zsl"] > 90
    picture = raw.features[raw.test_unseen[:3]].reshape(3, 1, 8, 16)
    names = [ranking[0].name for ranking in done.predict(done.encoded(picture))]
    assert len(names) == 3


def test_a_run_carries_the_run_whose_features_it_has(trained, tmp_path):
    """Moved to a machine that never saw the trained run, it answers as before; another run in its place is refused."""
    first = tmp_path / "first"
    shutil.copytree(trained.path, first)
    settings = {**FEW, "encoder.name": "run", "encoder.model": str(first), "method.shrinkage": 0.3}
    done = run(Experiment.load("digit-pairs-gaussian", {**settings, "evaluation.selection": "last"}), tmp_path / "top")
    picture = np.random.default_rng(0).integers(256, size=(3, 1, 8, 16)).astype(np.uint8)
    expected = [[p.score for p in ranking] for ranking in done.predict(done.encoded(picture))]
    done.path.rename(tmp_path / "moved")
    first.rename(tmp_path / "gone")
    there = load_run(tmp_path / "moved")
    found = [[p.score for p in ranking] for ranking in there.predict(there.encoded(picture))]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    result = tmp_path / "moved" / "encoder" / "result.json"
    result.write_text(result.read_text() + " ")
    with pytest.raises(DataError, match="are not on this machine: give them with --encoder"):
        load_run(tmp_path / "moved").encoded(picture)
    again = load_run(tmp_path / "moved", tmp_path / "gone")
    np.testing.assert_array_equal(again.encoded(picture), there.encoded(picture))


@pytest.mark.slow
def test_what_is_no_encoder_is_refused(trained, tmp_path):
    closed = run(Experiment.load("digit-pairs-gaussian", FEW), tmp_path / "closed")
    for settings, sentence, error in (
        ({"encoder.name": "run"}, "encoder.model is missing: name the run directory", ExperimentError),
        ({"encoder.name": "run", "encoder.model": str(tmp_path)}, "", RunDirectoryError),
        ({"encoder.name": "run", "encoder.model": str(closed.path)}, f"{closed.path}: method.name = 'gaussian' has "
         "learned no features of its own", ExperimentError),
    ):  # fmt: skip
        with pytest.raises(error) as raised:
            load_data(Experiment.load("digit-pairs-gaussian", {**FEW, **settings}), 0)
        assert str(raised.value).startswith(sentence)
