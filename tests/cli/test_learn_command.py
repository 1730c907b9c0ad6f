"""``fedunseen learn``: a class that is shown, described, or both, survives all that a user types afterwards."""

import numpy as np
import pytest
from fastapi.testclient import TestClient

from fedunseen import load_run
from fedunseen.serve import Recognizer
from fedunseen.serve.app import create_app
from processes import command

NEW = ("okapi", "quagga")
HOW = {"shown": "--support", "described": "--classes"}


@pytest.fixture(scope="module")
def samples():
    """Six samples of each new class, far from those of all others."""
    centres = np.random.default_rng(7).normal(scale=9, size=(2, 9))
    noise = np.random.default_rng(8).normal(scale=0.3, size=(2, 6, 9))
    return dict(zip(NEW, (centres[:, None] + noise).astype(np.float32), strict=True))


@pytest.fixture(scope="module")
def trained(make_folder, samples, tmp_path_factory):
    """A run of what ``init`` writes, and beside it the new classes, shown and described."""
    place = tmp_path_factory.mktemp("trained")
    header = (make_folder(place / "mine") / "classes.csv").read_text("utf-8").splitlines()[0].replace("split,", "")
    for name, rows in samples.items():
        (place / "shown" / name).mkdir(parents=True)
        np.save(place / "shown" / name / "some.npy", rows[:5])
    lines = ["okapi,0.9,0.1,0.8,0.1,0.9,0.2", "quagga,0.1,0.9,0.1,0.7,0.2,0.8"]
    (place / "described").write_text("\n".join([header, *lines]) + "\n", "utf-8")
    command("init", place / "mine")
    command("run", place / "mine.toml", "--out", place / "run", "--set", "evaluation.embedding=false")
    return place / "run"


@pytest.mark.parametrize("steps", [("shown",), ("shown", "described"), ("described", "shown"), ("shown", "shown")])
def test_a_class_survives_write_load_predict_export_and_a_second_learn(works, trained, samples, tmp_path, steps):
    run = trained
    for i, how in enumerate(steps):
        words = "learn", run, HOW[how], trained.with_name(how), "--out", tmp_path / f"learned {i}", "--json"
        assert works(*words).answer["learnt"] == ([] if i else list(NEW))
        run = tmp_path / f"learned {i}"
    lines = (run / "classes.csv").read_text("utf-8").splitlines()[-2:]
    assert [line.endswith(",,,,,,") for line in lines] == ["described" not in steps] * 2
    for name, rows in samples.items():
        np.save(tmp_path / "new.npy", rows[5])
        assert works("predict", run, tmp_path / "new.npy", "--json").answer[0]["classes"][0]["name"] == name
    works("report", run)
    works("export", run, "--csv", tmp_path / "tables")
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    works("export", run, "--out", tmp_path / "model")


def test_a_learned_run_is_served_and_takes_more_classes(trained, samples, tmp_path):
    learnt = load_run(trained).learn(examples={"okapi": samples["okapi"][:5]}, out=tmp_path / "learnt")
    asked = TestClient(create_app(Recognizer(load_run(learnt.path))), base_url="http://127.0.0.1")
    listed = asked.get("/classes?attributes=true").json()["classes"]
    assert (listed[-1]["name"], listed[-1]["kind"], "attributes" in listed[-1]) == ("okapi", "unseen", False)
    added = asked.post("/classes", json={"name": "quagga", "features": samples["quagga"][:5].tolist()})
    assert (added.status_code, added.json()["examples"]) == (201, 5)
    for _ in range(2):
        result = asked.post("/predict?explain=true", json={"features": samples["quagga"][5:].tolist()})
        assert result.status_code == 200, result.text
        assert result.json()["answers"][0]["classes"][0]["name"] == "quagga"
        assert "okapi" not in result.json()["answers"][0]["why"]


def test_what_no_later_prediction_could_use_is_not_written(refused, trained, tmp_path):
    """A description that is the mean of the seen ones is nothing once it is centered."""
    space = load_run(trained).space
    header = ",".join(["name", *space.attribute_names])
    mean = ",".join(map(repr, space.semantics[space.seen].mean(0).tolist()))
    (tmp_path / "mean.csv").write_text(f"{header}\nmean,{mean}\n", "utf-8")
    said = refused("learn", trained, "--classes", tmp_path / "mean.csv", "--out", tmp_path / "new")
    assert said.startswith("the scalings centre, l2 leave the class 'mean' only zeros as attributes")
    assert not (tmp_path / "new").exists()
