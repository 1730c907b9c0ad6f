"""Weights of a run's encoder: found by their content with the run, in the cache, or where the user says."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from fedunseen import Experiment, load_run, run
from fedunseen.core.errors import DataError, ExperimentError
from fedunseen.encoders.efficientnet import EfficientNetLite, EfficientNetLiteSettings

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def images(tmp_path):
    """Five classes of three noisy pictures each, of which each class's colour is its description."""
    random = np.random.default_rng(0)
    colours = random.integers(30, 220, (5, 3))
    rows = ["name,split,r,g,b"]
    for i, colour in enumerate(colours):
        (tmp_path / "images" / f"c{i}").mkdir(parents=True)
        rows.append(f"c{i},{'unseen' if i > 2 else 'seen'},{','.join(map(str, colour))}")
        for j in range(3):
            noisy = (colour + random.integers(-25, 26, (8, 8, 3))).astype(np.uint8)
            Image.fromarray(noisy).save(tmp_path / "images" / f"c{i}" / f"{j}.png")
    (tmp_path / "images" / "classes.csv").write_text("\n".join(rows), "utf-8")
    return tmp_path / "images"


@pytest.fixture
def weights(tmp_path):
    """Weights of one's own."""
    tensors = torch.load(EfficientNetLite(EfficientNetLiteSettings(), (3, 8, 8), "vectors").path, weights_only=True)
    tensors["_bn1.weight"] = tensors["_bn1.weight"] * 1.1
    torch.save(tensors, tmp_path / "mine.pth")
    return tmp_path / "mine.pth"


def finished(images, path, **encoder):
    return run(
        Experiment.from_dict(
            {
                "data": {"name": "images", "root": str(images), "size": 8, "resize": 8, "features": ["l2"]},
                "encoder": {"name": "efficientnet-lite", **encoder},
                "partition": {"clients": 2},
                "method": {"name": "fedzsl", "lr": 0.05, "kl": 0.0, "consistency": 0.0},
                "strategy": {"name": "fedavg", "rounds": 1},
                "evaluation": {"selection": "last", "theory": False, "embedding": False},
            }
        ),
        path,
    )


@pytest.fixture
def picture(images):
    return images / "c4" / "0.png"


def ranking(path, picture, **places):
    return load_run(path, **places).predict(picture)[0]


def test_small_weights_travel_with_the_run_and_are_used_even_if_the_first_have_changed(
    images, weights, picture, tmp_path, own_cache
):
    done = finished(images, tmp_path / "run", weights=str(weights))
    entry = done.manifest["encoder"]
    size = weights.stat().st_size
    assert (entry["setting"], entry["files"]) == ("encoder.weights", {"mine.pth": size})
    expected = ranking(tmp_path / "run", picture)
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    shutil.rmtree(own_cache)
    for spoil in (lambda: weights.write_bytes(b"other"), weights.unlink):
        spoil()
        assert ranking(tmp_path / "elsewhere", picture) == expected


def test_large_weights_are_found_where_they_were_used_or_asked_for(images, weights, picture, tmp_path, own_cache):
    done = finished(images, tmp_path / "run", weights=str(weights), carry=0)
    assert not (tmp_path / "run" / "encoder").exists()
    expected = ranking(tmp_path / "run", picture)
    size, digest = weights.stat().st_size / 1e6, done.manifest["encoder"]["digest"][:12]
    told = f"mine.pth, {size:.1f} MB, SHA-256 {digest}"

    (tmp_path / "kept").mkdir()
    moved = tmp_path / "kept" / "other name.pth"
    shutil.copy(weights, moved)
    tensors = torch.load(weights, weights_only=True)
    tensors["_bn1.bias"] += 1
    torch.save(tensors, weights)
    with pytest.raises(DataError) as error:
        ranking(tmp_path / "run", picture)
    assert str(error.value) == (
        f"{weights} has changed since this run, which had other weights ({told}): give those with --encoder"
    )
    with pytest.raises(DataError) as error:
        ranking(tmp_path / "run", picture, encoder=weights)
    assert str(error.value) == (
        f"--encoder {weights} holds other weights than those that this run had ({told}): its features would mean "
        "something else"
    )
    weights.unlink()
    with pytest.raises(DataError) as error:
        ranking(tmp_path / "run", picture)
    assert str(error.value) == (
        f"{tmp_path / 'run'}: the weights of its encoder ({told}) are not on this machine: give them with --encoder"
    )
    assert ranking(tmp_path / "run", picture, encoder=moved) == expected
    assert ranking(tmp_path / "run", picture, overrides={"encoder.weights": str(moved)}) == expected

    # Another run with the same weights, from where they are now: this machine knows them again.
    finished(images, tmp_path / "second", weights=str(moved), carry=0)
    moved.rename(tmp_path / "kept" / "mine.pth")
    finished(images, tmp_path / "third", weights=str(tmp_path / "kept" / "mine.pth"), carry=0)
    assert ranking(tmp_path / "run", picture) == expected


def test_what_every_installation_has_is_not_carried(images, picture, tmp_path):
    done = finished(images, tmp_path / "run")
    assert not (tmp_path / "run" / "encoder").exists()
    assert len(ranking(tmp_path / "run", picture)) == 5
    (name,) = done.manifest["encoder"]["files"]
    assert name.startswith("efficientnet-lite0")


def test_only_places_can_be_replaced(images, tmp_path):
    finished(images, tmp_path / "run")
    with pytest.raises(ExperimentError) as error:
        load_run(tmp_path / "run", overrides={"method.lr": 1.0})
    assert str(error.value) == "--set method.lr: a finished run takes settings of data and encoder alone"
