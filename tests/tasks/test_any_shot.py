"""Any-shot: classes described, shown, or both, after training; what is learned lasts; a party is
forgotten exactly.
"""

import numpy as np
import pytest
import torch

from fedunseen import Experiment, load_run, run
from fedunseen.core.errors import RunDirectoryError
from fedunseen.core.random import stream
from fedunseen.core.registry import find
from fedunseen.experiment.forget import forget
from fedunseen.federation.run_directory import load_params
from fedunseen.tasks.any_shot import curve
from refusals import message_of

FEW = {"data.train_per_class": 10, "data.test_per_class": 12, "evaluation.embedding": False}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Give a run of Gaussian classes on digit-pairs."""
    return run(
        Experiment.load("digit-pairs-gaussian", FEW), tmp_path_factory.mktemp("any-shot") / "run"
    )


@pytest.fixture(scope="module")
def samples(done):
    """The samples of each unseen class."""
    benchmark = find("data", "digit-pairs").load(done.experiment.data, 0)
    return [benchmark.features[benchmark.labels == c] for c in done.space.unseen]


@pytest.fixture
def unlike(done):
    """A description that no class has: a digit made of both halves of two others."""
    return (done.space.semantics[3] + done.space.semantics[97]).tolist()


@pytest.mark.slow
def test_a_class_is_described_shown_or_both(done, samples):
    c, own = done.space.unseen[0], samples[0]
    described, support = {"new": done.space.semantics[c].tolist()}, {"new": own[1:6]}

    def scores(classes, examples):
        return {one.name: one.score for one in done.predict(own[:1], classes, support=examples)[0]}

    alone, both, shown = scores(described, None), scores(described, support), scores(None, support)
    # Described as an old class is, and never shown, it is that class: both have the same score.
    assert alone["new"] == pytest.approx(alone[done.space.names[c]], rel=1e-9)
    # Examples of it bring the sample nearer, but for what makes it comparable with seen classes.
    # What they say differs with and without a description.
    raised = float(done.learn(described, support).params["raised"][-1])
    assert both["new"] - raised > alone["new"]
    assert shown["new"] != pytest.approx(both["new"], rel=1e-3)
    assert [len(done.predict(own[:3], described, among=among, support={"other": own[:2]})[0]) for among in
            ("given", "unseen", "all")] == [2, 22, 102]  # fmt: skip


def test_many_examples_make_a_prototype_their_mean_and_descriptions_matter_no_more(
    done, samples, unlike
):
    own = np.repeat(samples[0], 400, axis=0)
    mean = torch.from_numpy(done.scaler(own).astype(np.float64).mean(0))
    for words in (done.space.semantics[done.space.unseen[0]], unlike):
        learnt = done.learn({"new": words}, {"new": own})
        params, place = learnt.params, learnt.space.names.index("new")
        prototype = (
            params["weight"][place] @ torch.linalg.inv(params["precision"]) + params["centre"]
        )
        torch.testing.assert_close(prototype, mean, rtol=0, atol=5e-3)
        assert params["variance"][-1] < 1e-3


@pytest.mark.slow
def test_what_is_learnt_lasts_and_the_run_that_taught_it_stays(done, samples, unlike, tmp_path):
    own, before = samples[3], (done.path / "model.safetensors").read_bytes()
    memory, kept = (
        done.learn({"told": unlike}, {"shown": own[:5]}, out) for out in (None, tmp_path / "new")
    )
    again = load_run(tmp_path / "new")
    assert (done.path / "model.safetensors").read_bytes() == before
    assert again.result["learnt"] == ["told", "shown"]
    assert again.space.names == (*done.space.names, "told", "shown")
    for one in (memory, kept, again):
        assert one.predict(own[5:9], among="unseen") == memory.predict(own[5:9], among="unseen")
    names = {one.name for one in again.predict(own[5:6], among="unseen")[0]}
    assert names == {*(done.space.names[u] for u in done.space.unseen), "told", "shown"}
    assert "shown" in {one.name for one in again.predict(own[5:6], top=2)[0]}
    with pytest.raises(
        RunDirectoryError, match=r"is not an empty folder: name another with --out$"
    ):
        done.learn({"told": unlike}, out=tmp_path / "new")


@pytest.mark.parametrize(
    ("classes", "examples", "sentence"),
    [
        (None, None, "there is nothing to learn: give classes, examples, or both"),
        (None, {}, "there are no examples: give some of at least one class"),
        ({"new": [1.0]}, None, "class 'new' has 1 attributes, but this run's classes have "),
        (None, {"new": np.full((1, 128), np.nan)}, "the inputs hold values that are not finite"),
        (
            None,
            {"new": np.zeros((1, 7))},
            "the inputs have the shape (1, 7), but this run's model takes (n, 128)",
        ),
        (
            {"Zebra": np.ones(20)},
            {"zebra": np.zeros((1, 128))},
            "the examples are of 'zebra', and there is a class",
        ),
    ],
)
def test_what_cannot_be_learnt_is_one_sentence(done, tmp_path, classes, examples, sentence):
    assert message_of(done.learn, classes, examples, tmp_path / "new").startswith(sentence)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_party_is_forgotten_from_any_folder(make_folder, tmp_path, monkeypatch):
    """The run's relative data folder is found from the run, not from where the command is typed."""
    make_folder(tmp_path / "data")
    (tmp_path / "elsewhere").mkdir()
    tree = {
        "data": {"name": "folder", "root": "data"},
        "method": {"name": "gaussian"},
        "partition": {"clients": 2},
    }
    monkeypatch.chdir(tmp_path)
    run(
        Experiment.from_dict({**tree, "evaluation": {"selection": "last", "embedding": False}}),
        "runs/one",
    )
    here = forget(load_run("runs/one"), "0", "runs/here")
    monkeypatch.chdir(tmp_path / "elsewhere")
    there = forget(load_run("../runs/one"), "0", "there")
    assert there.result["zsl"] == here.result["zsl"]
    assert load_run("there").experiment.data.root == tmp_path / "data"


def test_the_curve_by_examples(done):
    stored = load_params(done.path / "evaluation.safetensors")
    shots, both = stored["curve_shots"].tolist(), stored["curve_both"].mean(1)
    assert shots == [0.0, 1.0, 2.0, 5.0, 10.0]  # 12 test samples: 20 examples would leave none
    assert both[0] == pytest.approx(done.result["zsl"], abs=1e-9)
    assert (both[1:] >= both[0] - 2).all()
    assert (both[1:] >= stored["curve_examples"][1:].mean(1) - 1).all()
    # A curve on made-up data: classes far apart are told by one example each, whatever they are
    # called.
    rng, labels = np.random.default_rng(0), np.repeat(done.space.unseen[:3], 8)
    rows = torch.from_numpy(
        np.repeat(50 * rng.normal(size=(3, 128)), 8, axis=0) + rng.normal(size=(24, 128))
    )
    found = curve(done.method, done.params, rows, labels, (0, 1, 5, 8), rng)
    assert found["curve_shots"].tolist() == [0, 1, 5]
    assert found["curve_nearest"][1:].tolist() == [[100.0] * 5] * 2
    assert np.isnan(found["curve_examples"][0]).all()


@pytest.mark.slow
def test_what_examples_bring_beside_seen_classes_is_what_a_model_that_learns_them_has(tmp_path):
    """On the test samples that were not shown, under an offset by which seen classes take answers."""
    settings = {**FEW, "evaluation.factor": -20.0}
    done = run(Experiment.load("digit-pairs-gaussian", settings), tmp_path / "run")
    stored = load_params(done.path / "evaluation.safetensors")
    assert stored["examples_unseen"].shape == stored["examples_seen"].shape == (5,)
    assert stored["examples_each"].mean() == pytest.approx(stored["examples_unseen"].mean())
    benchmark = find("data", "digit-pairs").load(done.experiment.data, 0)
    labels = benchmark.labels[benchmark.test_unseen]
    stream_of = stream(0, "examples beside seen classes")
    orders = [stream_of.permutation(np.flatnonzero(labels == c))[:5] for c in done.space.unseen]
    shown = {
        done.space.names[c]: benchmark.features[benchmark.test_unseen[order]]
        for c, order in zip(done.space.unseen, orders, strict=True)
    }
    assert len(stored["examples_each"]) == len(shown)
    learned = done.model.learn(examples=shown)
    others = np.setdiff1d(np.arange(len(labels)), np.concatenate(orders))
    for name, rows in (
        ("examples_unseen", benchmark.test_unseen[others]),
        ("examples_seen", benchmark.test_seen),
    ):
        answers = learned.scores(benchmark.features[rows]).argmax(1)
        truth = benchmark.labels[rows]
        each = [100 * np.mean(answers[truth == c] == c) for c in np.unique(truth)]
        assert stored[name][0] == pytest.approx(np.mean(each), abs=1e-9)
