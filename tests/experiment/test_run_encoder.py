"""A run's encoder: trained from pictures, or frozen with weights that are found; a trained run is
one for another.
"""

import json
import re
import shutil

import numpy as np
import pytest
import torch

from fedunseen import Experiment, load_run, run
from fedunseen.core.errors import DataError, ExperimentError, RunDirectoryError
from fedunseen.encoders.efficientnet import EfficientNetLite, EfficientNetLiteSettings
from fedunseen.experiment import encoding
from fedunseen.experiment.assemble import load_data
from fedunseen.federation.run_directory import load_params
from same import same
from small_runs import LAST


def experiment(photos, **settings):
    """An experiment on pictures; a setting's dot is written as two bars."""
    base = {
        "data": {"name": "images", "root": str(photos), "size": 16},
        "encoder": {"name": "conv", "widths": [8, 16]},
        "partition": {"clients": 3},
        "method": {"name": "distzsl", "kl": 1.0, "decorrelation": 0.01, "batch_size": 8},
        "strategy": {"name": "fedavg", "rounds": 2},
    }
    return Experiment.from_dict(
        base, LAST | {key.replace("__", "."): value for key, value in settings.items()}
    )


@pytest.mark.slow
def test_a_trained_backbone_learns_from_pictures_and_predicts_new_ones(photos, tmp_path):
    settings = {"encoder__augment": ["shift"], "method__lr": 0.02, "data__semantics": ["centre"]}
    done = run(experiment(photos, **settings, strategy__rounds=12), tmp_path / "run")
    assert done.result["zsl"] > 75  # of two classes that no one holds
    assert done.result["gzsl_seen"] > 60
    path = photos / "blue above" / "3.png"
    (ranking,) = load_run(tmp_path / "run").predict([path], top=3)
    assert ranking[0].name == "blue above"
    pixels = done.read_inputs(path)
    assert (pixels.shape, pixels.dtype) == ((1, 3, 16, 16), np.uint8)
    assert done.predict(pixels, top=3)[0] == ranking


@pytest.mark.slow
def test_pictures_are_changed_in_training_only(photos, tmp_path):
    plain, again = (run(experiment(photos), tmp_path / name) for name in ("plain", "again"))
    moved = run(experiment(photos, encoder__augment=["flip", "shift"]), tmp_path / "moved")
    assert same(plain, again)
    assert not torch.equal(plain.params["f.conv0.weight"], moved.params["f.conv0.weight"])
    inputs = plain.read_inputs(photos / "red above" / "0.png")
    assert moved.predict(inputs) == moved.predict(inputs)


@pytest.mark.slow
def test_running_statistics_are_the_mean_of_the_clients(photos, tmp_path):
    settings = {"encoder__norm": "batch", "strategy__weights": "uniform"}
    two, one = (
        run(experiment(photos, **settings, strategy__rounds=n), tmp_path / str(n)).params
        for n in (2, 1)
    )
    alone = run(
        experiment(photos, **settings, strategy__name="local", strategy__rounds=1),
        tmp_path / "alone",
    )
    models = load_params(alone.path / "model.safetensors")
    statistics = [name for name in one if name.endswith(("running_mean", "running_var"))]
    assert len(statistics) == 4
    for name in statistics:  # a round of everyone alone, and its mean
        torch.testing.assert_close(
            one[name], sum(models[f"client/{k}/{name}"] for k in range(3)) / 3
        )
        assert not torch.equal(one[name], two[name])
        assert (one[name] > 0).all() or name.endswith("running_mean")


@pytest.fixture
def weights(tmp_path):
    tensors = torch.load(
        EfficientNetLite(EfficientNetLiteSettings(), (3, 8, 8), "vectors").path, weights_only=True
    )
    tensors["_bn1.weight"] = tensors["_bn1.weight"] * 1.1
    torch.save(tensors, tmp_path / "mine.pth")
    return tmp_path / "mine.pth"


def frozen(photos, path, **encoder):
    """Run with an encoder that is not trained, whose weights are one's own or those of the
    installation.
    """
    small = {
        "data__size": 8,
        "data__resize": 8,
        "data__features": ["l2"],
        "encoder__name": "efficientnet-lite",
    }
    return run(experiment(photos, **small, method__lr=0.05, strategy__rounds=1, **encoder), path)


def ranking(path, photos, **places):
    return load_run(path, **places).predict(photos / "red above" / "0.png")[0]


@pytest.mark.slow
def test_small_weights_travel_with_the_run_and_are_used_even_if_the_first_have_changed(
    photos, weights, tmp_path
):
    done = frozen(photos, tmp_path / "run", encoder__weights=str(weights))
    entry, expected = done.manifest["encoder"], ranking(done.path, photos)
    assert (entry["setting"], entry["files"]) == (
        "encoder.weights",
        {"mine.pth": weights.stat().st_size},
    )
    shutil.move(done.path, tmp_path / "elsewhere")
    for spoil in (lambda: weights.write_bytes(b"other"), weights.unlink):
        spoil()
        assert ranking(tmp_path / "elsewhere", photos) == expected


@pytest.mark.slow
def test_large_weights_are_found_where_they_were_used_or_asked_for(
    photos, weights, tmp_path, monkeypatch
):
    monkeypatch.setattr("fedunseen.experiment.encoding.CARRIED_MB", 0)
    path = frozen(photos, tmp_path / "run", encoder__weights=str(weights)).path
    assert not (path / "encoder").exists()
    expected = ranking(path, photos)
    moved = shutil.copy(weights, tmp_path / "other name.pth")
    tensors = torch.load(weights, weights_only=True)
    tensors["_bn1.bias"] += 1
    torch.save(tensors, weights)
    with pytest.raises(DataError, match=r"has changed since this run, which had other weights \("):
        ranking(path, photos)
    with pytest.raises(DataError, match=r"holds other weights than those that this run had \("):
        ranking(path, photos, encoder=weights)
    weights.unlink()
    with pytest.raises(DataError, match=r"\) are not on this machine: give them with --encoder"):
        ranking(path, photos)
    for places in ({"encoder": moved}, {"overrides": {"encoder.weights": str(moved)}}):
        assert ranking(path, photos, **places) == expected


@pytest.mark.slow
def test_weights_of_an_extra_are_not_carried(photos, tmp_path):
    done = frozen(photos, tmp_path / "run")
    assert not (done.path / "encoder").exists()
    assert len(ranking(done.path, photos)) == 8
    (name,) = done.manifest["encoder"]["files"]
    assert name.startswith("efficientnet-lite0")


@pytest.fixture
def words(tmp_path):
    """Word vectors of one's own: the text encoder."""
    known = ["a", "photo", "of", "fire", "truck", "zèbre", "cat", "two", "words", *"defghijkl"]
    rows = np.random.default_rng(0).normal(size=(len(known), 6)).round(3).astype(str)
    (tmp_path / "glove.txt").write_text(
        "".join(f"{a} {' '.join(b)}\n" for a, b in zip(known, rows, strict=True))
    )
    return tmp_path / "glove.txt"


def named(make, make_folder, words, path):
    """A run whose classes a text encoder describes."""

    def names_alone(rows, arrays):
        rows[:] = [[name.replace("猫", "cat"), split] for name, split, *_ in rows]

    root = make_folder(path / "features", names_alone)
    settings = {
        "data.root": str(root),
        "data.text_encoder": f"vectors:{words}",
        "method.name": "gaussian",
    }
    return run(
        make({**LAST, **settings, "method.shrinkage": 0.5, "strategy.rounds": 1}), path / "run"
    )


def scores(rankings):
    return [[one.score for one in ranking] for ranking in rankings]


def scores_of_a_new_name(path, **places):
    samples = np.random.default_rng(2).normal(size=(2, 9)).astype(np.float32)
    return scores(load_run(path, **places).predict(samples, ["a fire truck"]))


@pytest.mark.slow
def test_a_text_encoder_travels_with_a_run_that_is_copied_to_another_machine(
    make, make_folder, words, tmp_path
):
    done = named(make, make_folder, words, tmp_path)
    assert done.manifest["text_encoder"]["files"] == {"glove.txt": words.stat().st_size}
    expected = scores_of_a_new_name(done.path)
    shutil.move(done.path, tmp_path / "copied")
    for spoil in (
        lambda: words.write_text(words.read_text().replace("fire ", "fire 9")),
        words.unlink,
    ):
        spoil()
        assert scores_of_a_new_name(tmp_path / "copied") == expected


@pytest.mark.slow
def test_a_large_text_encoder_is_found_where_it_was_or_named(
    make, make_folder, words, tmp_path, monkeypatch
):
    monkeypatch.setattr(encoding, "CARRIED_MB", 0.0)
    done = named(make, make_folder, words, tmp_path)
    assert not (done.path / "text-encoder").exists()
    expected = scores_of_a_new_name(done.path)
    kept = words.rename(words.with_name("kept.txt"))
    with pytest.raises(DataError, match=r"glove\.txt is missing"):
        scores_of_a_new_name(done.path)
    assert (
        scores_of_a_new_name(done.path, overrides={"data.text_encoder": f"vectors:{kept}"})
        == expected
    )


FEW = {"data.train_per_class": 20, "data.test_per_class": 8, "evaluation.embedding": False}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    settings = {**FEW, **LAST, "strategy.rounds": 8}
    return run(Experiment.load("digit-pairs", settings), tmp_path_factory.mktemp("trained") / "run")


def gaussian(**settings):
    return Experiment.load(
        "digit-pairs-gaussian", {**FEW, **{k.replace("__", "."): v for k, v in settings.items()}}
    )


@pytest.mark.slow
def test_gaussian_classes_on_a_run_s_features(trained, tmp_path):
    experiment = gaussian(encoder__name="run", encoder__model=str(trained.path))
    benchmark, raw = load_data(experiment, 0), load_data(gaussian(), 0)
    expected = trained.method.features(
        trained.params, torch.from_numpy(trained.scaler(raw.features[:5]))
    )
    np.testing.assert_allclose(
        benchmark.features[:5], expected.detach().numpy(), rtol=1e-5, atol=1e-6
    )
    done = run(experiment, tmp_path / "on-top")
    assert done.result["rounds"] == 1
    assert done.result["zsl"] > 90
    picture = raw.features[raw.test_unseen[:3]].reshape(3, 1, 8, 16)
    assert len(done.predict(done.encoded(picture))) == 3


@pytest.mark.slow
def test_a_run_carries_the_run_whose_features_it_has(trained, tmp_path):
    """Moved to a machine that never saw the trained run, it answers as before; another run in its
    place is refused.
    """
    first = shutil.copytree(trained.path, tmp_path / "first")
    settings = {"encoder__name": "run", "encoder__model": str(first), "method__shrinkage": 0.3}
    done = run(gaussian(**settings, evaluation__selection="last"), tmp_path / "top")
    picture = np.random.default_rng(0).integers(256, size=(3, 1, 8, 16)).astype(np.uint8)
    expected = scores(done.predict(done.encoded(picture)))
    done.path.rename(tmp_path / "moved")
    first.rename(tmp_path / "gone")
    there = load_run(tmp_path / "moved")
    np.testing.assert_allclose(scores(there.predict(there.encoded(picture))), expected, rtol=1e-6)
    result = tmp_path / "moved" / "encoder" / "result.json"
    result.write_text(result.read_text() + " ")
    with pytest.raises(DataError, match="are not on this machine: give them with --encoder"):
        load_run(tmp_path / "moved").encoded(picture)
    again = load_run(tmp_path / "moved", tmp_path / "gone")
    np.testing.assert_array_equal(again.encoded(picture), there.encoded(picture))


@pytest.mark.slow
def test_what_is_no_encoder_is_refused(trained, tmp_path):
    closed = run(gaussian(), tmp_path / "closed")
    untrained = f"{closed.path}: method.name = 'gaussian' has learned no features of its own"
    for model, sentence, error in (
        ({}, "encoder.model is missing: name the run directory", ExperimentError),
        ({"encoder__model": str(tmp_path)}, "", RunDirectoryError),
        ({"encoder__model": str(closed.path)}, untrained, ExperimentError),
    ):
        with pytest.raises(error, match=f"^{re.escape(sentence)}"):
            load_data(gaussian(encoder__name="run", **model), 0)


@pytest.mark.slow
def test_a_run_that_encodes_itself_is_refused(trained, tmp_path):
    place = shutil.copytree(trained.path, tmp_path / "own")
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["experiment"]["encoder"] = {"name": "run", "model": str(place)}
    manifest["picture_shape"] = [1, 8, 16]
    (place / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ExperimentError, match="is encoded by itself"):
        load_run(place).encoded(np.zeros((1, 1, 8, 16), np.uint8))
