"""Whole runs from images: a trained backbone, running statistics, augmentation, prediction, and what is refused."""

import numpy as np
import pytest
import torch

from fedunseen import Experiment, load_run, run
from fedunseen.federation.run_directory import load_params
from same import same

SMALL = {"strategy.rounds": 2, "evaluation.selection": "last", "evaluation.embedding": False}


def experiment(photos, **settings):
    base = {
        "data": {"name": "images", "root": str(photos), "size": 16},
        "encoder": {"name": "conv", "widths": [8, 16]},
        "partition": {"clients": 3},
        "method": {"name": "distzsl", "kl": 1.0, "decorrelation": 0.01, "batch_size": 8},
        "strategy": {"name": "fedavg"},
    }
    return Experiment.from_dict(base, SMALL | {key.replace("__", "."): value for key, value in settings.items()})


@pytest.mark.slow
def test_a_trained_backbone_learns_from_pictures_and_predicts_new_ones(photos, tmp_path):
    settings = {"encoder__augment": ["shift"], "method__lr": 0.02, "data__semantics": ["centre"]}
    done = run(experiment(photos, **settings, strategy__rounds=12), tmp_path / "run")
    assert done.result["zsl"] > 75  # of two classes that no one holds
    assert done.result["gzsl_seen"] > 60
    path = photos / "blue above" / "3.png"
    (ranking,) = load_run(tmp_path / "run").predict([path], top=3)
    assert ranking[0].name == "blue above"
    pixels = done.read(path)
    assert (pixels.shape, pixels.dtype) == ((1, 3, 16, 16), np.uint8)
    assert done.predict(pixels, top=3)[0] == ranking


def test_pictures_are_changed_in_training_only(photos, tmp_path):
    plain, again = (run(experiment(photos), tmp_path / name) for name in ("plain", "again"))
    moved = run(experiment(photos, encoder__augment=["flip", "shift"]), tmp_path / "moved")
    assert same(plain, again)
    assert not torch.equal(plain.params["f.conv0.weight"], moved.params["f.conv0.weight"])
    inputs = plain.read(photos / "red above" / "0.png")
    assert moved.predict(inputs) == moved.predict(inputs)


@pytest.mark.slow
def test_running_statistics_are_the_mean_of_the_clients(photos, tmp_path):
    settings = {"encoder__norm": "batch", "strategy__weights": "uniform"}
    two, one = (run(experiment(photos, **settings, strategy__rounds=n), tmp_path / str(n)).params for n in (2, 1))
    alone = run(experiment(photos, **settings, strategy__name="local", strategy__rounds=1), tmp_path / "alone")
    models = load_params(alone.path / "model.safetensors")
    statistics = [name for name in one if name.endswith(("running_mean", "running_var"))]
    assert len(statistics) == 4
    for name in statistics:  # a round of everyone alone, and its mean
        torch.testing.assert_close(one[name], sum(models[f"client/{k}/{name}"] for k in range(3)) / 3)
        assert not torch.equal(one[name], two[name])
        assert (one[name] > 0).all() or name.endswith("running_mean")
