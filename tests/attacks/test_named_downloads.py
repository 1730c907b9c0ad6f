"""A model's file, a run directory and a class table's texts name a repository of a hub.

Whoever reads them asks the hub for nothing: a name would say who reads it, and what comes back is
the author's choice.
"""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from fedunseen import load_model, load_run, run
from fedunseen.core.errors import DataError
from fedunseen.data import Benchmark, ClassSpace
from fedunseen.encoders.hub import local_files_only
from fedunseen.encoders.text import embed_texts
from fedunseen.experiment.class_descriptions import semantics_of_names
from fedunseen.methods import CLSWGAN
from fedunseen.pages.serve import Recognizer
from fedunseen.pages.serve.uploads import read_texts
from small_runs import experiment
from topics import notes_run, texts_run

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


def test_a_run_directory_downloads_nothing(made, asked, tmp_path):
    path = shutil.copytree(made.path, tmp_path / "run") / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["experiment"]["encoder"] = {"name": "resnet", "weights": NAME}
    manifest["picture_shape"] = [3, 32, 32]
    path.write_text(json.dumps(manifest))
    opened = load_run(path.parent)
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


def small_benchmark():
    animals = {"horse": [1, 0], "tiger": [0, 1], "zebra": [1, 1]}
    return Benchmark.from_arrays([[0.0, 1], [1, 0]], ["horse", "tiger"], animals)


def crafted(path, **entries):
    """Return a run directory whose manifest has other settings of data, and no weights."""
    file = path / "manifest.json"
    manifest = json.loads(file.read_text("utf-8"))
    manifest.pop("text_encoder")
    manifest["experiment"]["data"] |= entries
    file.write_text(json.dumps(manifest), "utf-8")
    return path


SAID = "a soup of onions"
ROWS = [{"note": SAID}]
LABELED = [{"note": SAID, "topic": "tea"}]
TEXTS = {  # what reads a text -> how
    "a sentence": lambda run, folder: run.predict(SAID),
    "a file": lambda run, folder: run.predict(folder / "a.txt"),
    "an explanation": lambda run, folder: run.explain([folder / "a.txt"]),
    "examples": lambda run, folder: run.learn(examples={"tea": [folder / "a.txt"]}),
    "samples to adapt to": lambda run, folder: run.adapt([folder / "a.txt"] * 10),
    "a question of a client": lambda run, folder: read_texts(Recognizer(run), [SAID]),
}
TABLES = {
    "rows": lambda run, folder: run.predict(ROWS),
    "a table": lambda run, folder: run.predict(folder / "a.csv"),
    "parts": lambda run, folder: list(run.batches([folder / "a.csv"])),
    "examples": lambda run, folder: run.learn(examples=LABELED),
    "samples to adapt to": lambda run, folder: run.adapt(ROWS * 10),
    "a question of a client": lambda run, folder: Recognizer(run).samples(ROWS),
}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "ways"), [(texts_run, TEXTS), (notes_run, TABLES)])
def test_samples_of_texts_are_read_without_a_download(make, ways, asked, tmp_path):
    (tmp_path / "a.txt").write_text(SAID, "utf-8")
    (tmp_path / "a.csv").write_text(f"note\n{SAID}\n", "utf-8")
    opened = load_run(crafted(make(tmp_path / "made"), text_encoder=NAME))
    for read in ways.values():
        assert NAME in refusal(lambda read=read: read(opened, tmp_path))
    assert not asked
    loader, settings = opened.reader.loader, opened.reader.settings
    with pytest.raises(DataError, match="the hub does not give it"):  # a user's own wish
        loader.load(settings, 0)
    assert asked == [NAME]


def test_names_of_a_method_are_not_downloaded(made, asked, tmp_path):
    made.model.save(tmp_path / "model.safetensors")
    for method in (load_run(made.path).method, load_model(tmp_path / "model.safetensors").method):
        assert not method.fetches
    with local_files_only():
        stored = CLSWGAN.on(small_benchmark(), text=NAME)
    assert NAME in refusal(lambda: stored.text)
    assert not asked
    with pytest.raises(DataError, match="the hub does not give it"):
        assert CLSWGAN.on(small_benchmark(), text=NAME).text
    assert asked == [NAME]
