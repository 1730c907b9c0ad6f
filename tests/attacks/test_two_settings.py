"""A run directory whose experiment says how samples are scaled and shortened, and whose model's
file says something else: the first is checked, by the second samples are summed.
"""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import small_federation
from fedunseen import Experiment, load_run, run
from fedunseen.core.errors import RunDirectoryError
from fedunseen.experiment.changed import write_class_sums
from fedunseen.experiment.forget import write_removal
from fedunseen.experiment.result import stored as stored_run
from fedunseen.model import Model
from small_federation import write_all, write_party

NOTE = "fedunseen model"
WAYS = {
    "open": lambda stored, party, out: stored.model.save(out),
    "sums": lambda stored, party, out: write_class_sums(stored, party, out, 5),
    "removal": lambda stored, party, out: write_removal(stored, party, out, (), False, 5),
}


def as_it_is(content):
    """Change nothing."""


def scaled(content):
    """Let samples have unit length."""
    content["scaling"]["features"] = ["standard", "l2"]


def shortened(content):
    """Let long samples be shortened."""
    content["method"]["clip_norm"] = 0.5


def renamed(content):
    """Let other names stand for the classes."""
    content["classes"]["names"].reverse()


def recoded(content):
    """Let features become whole numbers of 16 bits."""
    content["bits"] = 16


def of_lengths(content):
    """Let descriptions of classes have unit length."""
    content["scaling"]["semantics"] = ["l2"]


def described(content):
    """Let the first class have another description."""
    content["described"] = True


def run_of(folder, **data):
    """Run an experiment; return its model's file, and what is in that."""
    tree = {
        "data": {"name": "folder", "root": str(folder / "coordinator"), **data},
        "method": {"name": "gaussian"},
        "partition": {"clients": 2},
        "evaluation": {"selection": "last", "confidence": "none"},
    }
    run(Experiment.from_dict(tree), folder / "run")
    path = folder / "run" / "model.safetensors"
    with safe_open(path, "pt") as file:
        return path, json.loads(file.metadata()[NOTE]), load_file(path)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "change",
    [as_it_is, scaled, shortened, renamed, recoded, of_lengths, described],
)
def test_a_models_file_with_other_settings_than_the_experiment_sums_nothing(change, way, tmp_path):
    write_all(tmp_path)
    party = write_party(tmp_path / "large", np.repeat(range(3), 24), 5)
    path, content, tensors = run_of(tmp_path, features=["standard"])
    change(content)
    if content.pop("bits", None):
        tensors["scaling/quantize.bits"] = torch.full((1,), 16.0)
    if content.pop("described", None):
        tensors["semantics"][0] += 1
    save_file(tensors, path, {NOTE: json.dumps(content)})
    out = tmp_path / "sums"
    other_classes = change in (renamed, described)  # which a model that is opened answers with
    if change is as_it_is or (way == "open" and other_classes):
        WAYS[way](load_run(tmp_path / "run"), party, out)
        assert out.exists()
        return
    with pytest.raises(RunDirectoryError, match=r"the model's file (has another|describes)"):
        WAYS[way](load_run(tmp_path / "run"), party, out)
    assert not out.exists()


@pytest.mark.slow
def test_a_network_of_a_models_file_sees_no_sample(tmp_path, monkeypatch):
    """Its filters can fire for one sample alone, and no rule looks at what they say."""
    monkeypatch.setattr(small_federation, "FEATURES", 256)
    write_all(tmp_path)
    party = write_party(tmp_path / "large", np.repeat(range(3), 24), 5)
    rng = np.random.default_rng(1)
    for folder in tmp_path.iterdir():
        arrays = dict(np.load(folder / "features.npz"))
        shape = arrays["features"].shape
        arrays["features"] = (rng.integers(0, 256, shape) / 255).astype(np.float32)
        arrays["image_shape"] = np.array([1, 16, 16])
        np.savez(folder / "features.npz", **arrays)
    path, content, tensors = run_of(tmp_path)
    write_class_sums(load_run(tmp_path / "run"), party, tmp_path / "honest", 5)
    content["backbone"]["encoder"] = {
        "settings": {"name": "conv4", "widths": [4]},
        "image_shape": [1, 16, 16],
        "files": None,
    }
    network = Model.template(content, tensors, None).method.backbone
    for name, value in network.init(np.random.default_rng(0)).items():
        tensors[f"params/{name}"] = torch.as_tensor(value).contiguous()
    save_file(tensors, path, {NOTE: json.dumps(content)})
    with pytest.raises(RunDirectoryError, match="brings a network"):
        write_class_sums(load_run(tmp_path / "run"), party, tmp_path / "sums", 5)
    assert not (tmp_path / "sums").exists()
    # and where nobody compares them, sums are of the whole numbers that the rules have looked at
    monkeypatch.setattr(stored_run, "check_agreement", lambda *_: None)
    assert load_run(tmp_path / "run").method.backbone.trained  # it fits
    write_class_sums(load_run(tmp_path / "run"), party, tmp_path / "sums", 5)
    written, honest = (load_file(tmp_path / name) for name in ("sums", "honest"))
    for name, value in honest.items():
        torch.testing.assert_close(written[name], value, rtol=0, atol=0)
