"""A model's file, a run directory and a class table's texts name a repository of a hub.

Whoever reads them asks the hub for nothing: a name would say who reads it, and what comes back is
the author's choice.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from fedunseen import load_model, load_run, run
from fedunseen.core.errors import DataError
from fedunseen.data import ClassSpace
from fedunseen.encoders.text import embed_texts
from fedunseen.experiment.class_descriptions import semantics_of_names
from small_runs import experiment

pytest.importorskip("transformers")
NAME = "somebody/network"
KEY = "fedunseen model"


@pytest.fixture
def asked(monkeypatch):
    """Return the names that the hub is asked for; copies on this machine are not counted."""
    names = []

    def snapshot_download(name, allow_patterns, local_files_only):
        if not local_files_only:
            names.append(name)
        raise FileNotFoundError(name)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return names


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a finished run."""
    return run(experiment("digit-pairs-gaussian"), tmp_path_factory.mktemp("run") / "made")


def refusal(read):
    with pytest.raises(DataError, match="not downloaded") as refused:
        read()
    return str(refused.value)


@pytest.mark.parametrize("encoder", ["resnet", "vit", "vision"])
def test_a_models_file_downloads_nothing(encoder, made, asked, tmp_path):
    path = tmp_path / "model.safetensors"
    made.model.save(path)
    with safe_open(path, "pt") as file:
        content = json.loads(file.metadata()[KEY])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    settings = {"name": encoder, "weights": NAME}
    content["backbone"]["encoder"] = {
        "settings": settings, "image_shape": [3, 32, 32], "files": "0" * 64,
    }  # fmt: skip
    save_file(tensors, path, {KEY: json.dumps(content)})
    assert NAME in refusal(lambda: load_model(path))
    assert not asked


def test_a_run_directory_downloads_nothing(made, asked):
    path = made.path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["experiment"]["encoder"] = {"name": "resnet", "weights": NAME}
    manifest["picture_shape"] = [3, 32, 32]
    path.write_text(json.dumps(manifest))
    opened = load_run(made.path)
    assert NAME in refusal(lambda: opened.encoded(np.zeros((1, 3, 32, 32), np.uint8)))
    assert not asked


def test_a_text_encoder_of_a_run_is_not_downloaded(asked):
    names = tuple(f"text {i}" for i in range(3))
    space = ClassSpace(("cat", "dog"), np.eye(2, 3), names, range(2), [], [])
    settings = SimpleNamespace(text_encoder=NAME, prompt="a {class}")
    assert NAME in refusal(lambda: semantics_of_names(["owl"], space, settings))
    assert not asked
    with pytest.raises(DataError, match="the hub does not give it"):  # a user's own wish
        embed_texts(["owl"], NAME)
    assert asked == [NAME]
