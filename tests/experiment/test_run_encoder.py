"""A trained run's features as a frozen encoder, and the closed form on top of them."""

import numpy as np
import pytest
import torch

from fedunseen import Experiment, run
from fedunseen.core.errors import ExperimentError, RunDirectoryError
from fedunseen.experiment.assemble import load_data

FEW = {"data.train_per_class": 20, "data.test_per_class": 8, "evaluation.embedding": False}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    settings = {**FEW, "strategy.rounds": 8, "evaluation.selection": "last"}
    return run(Experiment.load("digit-pairs", settings), tmp_path_factory.mktemp("trained") / "run")


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


def test_what_is_no_encoder_is_refused(trained, tmp_path):
    closed = run(Experiment.load("digit-pairs-gaussian", FEW), tmp_path / "closed")
    for settings, sentence, error in (
        ({"encoder.name": "run"}, "encoder.model is missing: name the run directory", ExperimentError),
        ({"encoder.name": "run", "encoder.model": str(tmp_path)}, "", RunDirectoryError),
        ({"encoder.name": "run", "encoder.model": str(closed.path)}, f"{closed.path}: method.name = 'gaussian' has "
         "learnt no features of its own", ExperimentError),
    ):  # fmt: skip
        with pytest.raises(error) as raised:
            load_data(Experiment.load("digit-pairs-gaussian", {**FEW, **settings}), 0)
        assert str(raised.value).startswith(sentence)
