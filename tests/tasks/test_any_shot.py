"""Any-shot: classes described, shown, or both, after training; what is learned lasts; a party is forgotten exactly."""

import numpy as np
import pytest
import torch

from fedunseen import Experiment, load_run, run
from fedunseen.core.errors import DataError, RunDirectoryError
from fedunseen.core.registry import find
from fedunseen.experiment.forget import forget
from fedunseen.federation.run_directory import load_params
from fedunseen.report import write_report
from fedunseen.tasks.any_shot import curve
from pages import without_pictures

FEW = {"data.train_per_class": 10, "data.test_per_class": 12, "evaluation.embedding": False}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Give a run of Gaussian classes on digit-pairs."""
    return run(Experiment.load("digit-pairs-gaussian", FEW), tmp_path_factory.mktemp("any-shot") / "run")


@pytest.fixture(scope="module")
def benchmark(done):
    return find("data", "digit-pairs").load(done.experiment.data, 0)


def unlike(done):
    """Return a description that no class has: a digit made of both halves of two others."""
    semantics = done.space.semantics
    return (semantics[3] + semantics[97]).tolist()


def samples(benchmark, c):
    return benchmark.features[benchmark.labels == c]


@pytest.mark.slow
def test_a_class_is_described_shown_or_both(done, benchmark):
    c = int(done.space.unseen[0])
    name, own = done.space.names[c], samples(benchmark, c)
    described = {"new": done.space.semantics[c].tolist()}
    # Described as an old class is, and never shown, it is that class: both have the same score.
    alone = {one.name: one.score for one in done.predict(own[:1], described)[0]}
    assert alone["new"] == pytest.approx(alone[name], rel=1e-9)
    # Examples of it bring the sample nearer, and what they say differs with and without a description.
    both = {one.name: one.score for one in done.predict(own[:1], described, support={"new": own[1:6]})[0]}
    shown = {one.name: one.score for one in done.predict(own[:1], support={"new": own[1:6]})[0]}
    assert both["new"] > alone["new"]
    assert shown["new"] != pytest.approx(both["new"], rel=1e-3)
    assert [len(done.predict(own[:3], described, among=among, support={"other": own[:2]})[0]) for among in
            ("given", "unseen", "all")] == [2, 22, 102]  # fmt: skip


def test_many_examples_make_a_prototype_their_mean_and_descriptions_matter_no_more(done, benchmark):
    c = int(done.space.unseen[0])
    own = np.repeat(samples(benchmark, c), 400, axis=0)
    one, other = (done.learn({"new": words}, {"new": own}) for words in (done.space.semantics[c], unlike(done)))
    for learnt in (one, other):
        params = learnt.params
        place = learnt.space.names.index("new")
        prototype = params["weight"][place] @ torch.linalg.inv(params["precision"]) + params["centre"]
        scaled = done.scaler(own)
        torch.testing.assert_close(prototype, torch.from_numpy(scaled.astype(np.float64).mean(0)), rtol=0, atol=5e-3)
    assert one.params["variance"][-1] < 1e-3


def test_what_is_learnt_lasts_and_the_run_that_taught_it_stays(done, benchmark, tmp_path):
    c = int(done.space.unseen[3])
    own, before = samples(benchmark, c), (done.path / "model.safetensors").read_bytes()
    memory = done.learn({"told": unlike(done)}, {"shown": own[:5]})
    kept = done.learn({"told": unlike(done)}, {"shown": own[:5]}, tmp_path / "new")
    again = load_run(tmp_path / "new")
    assert (done.path / "model.safetensors").read_bytes() == before
    assert again.result["learnt"] == ["told", "shown"]
    assert again.space.names == (*done.space.names, "told", "shown")
    for one in (memory, kept, again):
        assert one.predict(own[5:9], among="unseen") == memory.predict(own[5:9], among="unseen")
    names = {one.name for one in again.predict(own[5:6], among="unseen")[0]}
    assert names == {*(done.space.names[u] for u in done.space.unseen), "told", "shown"}
    assert "shown" in {one.name for one in again.predict(own[5:6], top=2)[0]}
    assert "shown" in without_pictures(write_report(again).read_text("utf-8"))
    with pytest.raises(RunDirectoryError, match=r"is not an empty folder: name another with --out$"):
        done.learn({"told": unlike(done)}, out=tmp_path / "new")


@pytest.mark.parametrize(
    ("classes", "examples", "sentence"),
    [
        (None, None, "there is nothing to learn: give classes, examples, or both"),
        (None, {}, "there are no examples: give some of at least one class"),
        ({"new": [1.0]}, None, "class 'new' has 1 attributes, but this run's classes have "),
        (None, {"new": np.full((1, 128), np.nan)}, "the inputs hold values that are not finite"),
        (None, {"new": np.zeros((1, 7))}, "the inputs have the shape (1, 7), but this run's model takes (n, 128)"),
        ({"Zebra": np.ones(14)}, {"zebra": np.zeros((1, 128))}, "the examples are of 'zebra', and there is a class"),
    ],
)
def test_what_cannot_be_learnt_is_one_sentence(done, tmp_path, classes, examples, sentence):
    if classes and "Zebra" in classes:
        classes = {"Zebra": done.space.semantics[0] * 2}
    with pytest.raises(DataError) as error:
        done.learn(classes, examples, tmp_path / "new")
    assert str(error.value).startswith(sentence)
    assert not list(tmp_path.iterdir())


def test_a_party_is_forgotten_from_any_folder(make_folder, tmp_path, monkeypatch):
    """The run's relative data folder is found from the run, not from where the command is typed."""
    make_folder(tmp_path / "data")
    (tmp_path / "elsewhere").mkdir()
    tree = {"data": {"name": "folder", "root": "data"}, "method": {"name": "gaussian"}, "partition": {"clients": 2}}
    monkeypatch.chdir(tmp_path)
    run(Experiment.from_dict({**tree, "evaluation": {"selection": "last", "embedding": False}}), "runs/one")
    here = forget(load_run("runs/one"), "0", "runs/here")
    monkeypatch.chdir(tmp_path / "elsewhere")
    there = forget(load_run("../runs/one"), "0", "there")
    assert there.result["zsl"] == here.result["zsl"]
    assert load_run("there").experiment.data.root == tmp_path / "data"


def test_the_curve_by_examples(done, benchmark):
    stored = load_params(done.path / "evaluation.safetensors")
    shots, both = stored["curve_shots"].tolist(), stored["curve_both"].mean(1)
    assert shots == [0.0, 1.0, 2.0, 5.0, 10.0]  # 12 test samples: 20 examples would leave none
    assert both[0] == pytest.approx(done.result["zsl"], abs=1e-9)
    assert (both[1:] >= both[0] - 2).all()
    alone = stored["curve_examples"][1:].mean(1)
    assert (both[1:] >= alone - 1).all()
    # A curve on made-up data: classes far apart are told by one example each, whatever they are called.
    rng = np.random.default_rng(0)
    method, params = done.method, done.params
    labels = np.repeat(done.space.unseen[:3], 8)
    centres = 50 * rng.normal(size=(3, 128))
    rows = torch.from_numpy(np.repeat(centres, 8, axis=0) + rng.normal(size=(24, 128)))
    found = curve(method, params, rows, labels, (0, 1, 5, 8), rng)
    assert found["curve_shots"].tolist() == [0, 1, 5]
    assert found["curve_nearest"][1:].tolist() == [[100.0] * 5] * 2
    assert np.isnan(found["curve_examples"][0]).all()
