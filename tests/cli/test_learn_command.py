"""``fedunseen learn`` and ``adapt``: a changed run serves all that a user types afterwards."""

from dataclasses import replace

import numpy as np
import pytest
from fastapi.testclient import TestClient

from fedunseen import Experiment, load_run, run
from fedunseen.cli import texts
from fedunseen.experiment.assemble import load_data
from fedunseen.experiment.changed import _expanded
from fedunseen.pages.serve import Recognizer
from fedunseen.pages.serve.app import create_app
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
    header = (
        (make_folder(place / "mine") / "classes.csv")
        .read_text("utf-8")
        .splitlines()[0]
        .replace("split,", "")
    )
    for name, rows in samples.items():
        (place / "shown" / name).mkdir(parents=True)
        np.save(place / "shown" / name / "some.npy", rows[:5])
    lines = ["okapi,0.9,0.1,0.8,0.1,0.9,0.2", "quagga,0.1,0.9,0.1,0.7,0.2,0.8"]
    (place / "described").write_text("\n".join([header, *lines]) + "\n", "utf-8")
    command("init", place / "mine")
    command(
        "run", place / "mine.toml", "--out", place / "run", "--set", "evaluation.embedding=false"
    )
    return place / "run"


def test_new_classes_have_places_where_classes_stand_alone():
    """A drawing of as many samples as there are classes keeps its rows."""
    drawn = {
        name: np.ones((12, 12))
        for name in ("embedding_inputs", "client_counts", "similarity", "support_weights")
    }
    wider = {name: value.shape for name, value in _expanded(drawn, 1).items()}
    expected = {"client_counts": (12, 13), "similarity": (13, 13), "support_weights": (13, 12)}
    assert wider == {"embedding_inputs": (12, 12), **expected}


SLOWER = (("shown",), ("described", "shown"), ("shown", "shown"))


@pytest.mark.parametrize(
    "steps", [("shown", "described"), *(pytest.param(s, marks=pytest.mark.slow) for s in SLOWER)]
)
def test_a_class_survives_write_load_predict_export_and_a_second_learn(
    works, trained, samples, tmp_path, steps
):
    path = trained
    for i, how in enumerate(steps):
        words = (
            "learn",
            path,
            HOW[how],
            trained.with_name(how),
            "--out",
            tmp_path / f"learned {i}",
            "--json",
        )
        done = works(*words)
        assert done.answer["learnt"] == ([] if i else list(NEW))
        assert set(done.answer["effect"]["taught"]) == set(NEW)
        assert done.answer["effect"]["text"].startswith("accuracy on 48 test samples (none is of")
        path = tmp_path / f"learned {i}"
        assert "The model has learned 2 classes: " in (path / "report.html").read_text("utf-8")
    lines = (path / "classes.csv").read_text("utf-8").splitlines()[-2:]
    assert [line.endswith(",,,,,,") for line in lines] == ["described" not in steps] * 2
    for name, rows in samples.items():
        np.save(tmp_path / "new.npy", rows[5])
        assert (
            works("predict", path, tmp_path / "new.npy", "--json").answer[0]["classes"][0]["name"]
            == name
        )
    works("export", path, "--csv", tmp_path / "tables")
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    works("export", path, "--out", tmp_path / "model")


def test_a_learned_run_is_served_and_takes_more_classes(trained, samples, tmp_path):
    learnt = load_run(trained).learn(
        examples={"okapi": samples["okapi"][:5]}, out=tmp_path / "learnt"
    )
    asked = TestClient(create_app(Recognizer(load_run(learnt.path))), base_url="http://127.0.0.1")
    listed = asked.get("/classes?attributes=true").json()["classes"]
    assert (listed[-1]["name"], listed[-1]["kind"], "attributes" in listed[-1]) == (
        "okapi",
        "unseen",
        False,
    )
    added = asked.post(
        "/classes", json={"name": "quagga", "features": samples["quagga"][:5].tolist()}
    )
    assert (added.status_code, added.json()["examples"]) == (201, 5)
    for _ in range(2):
        result = asked.post(
            "/predict?explain=true", json={"features": samples["quagga"][5:].tolist()}
        )
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
    assert said.startswith(
        "the scalings centre, l2 leave the class 'mean' only zeros as attributes"
    )
    assert not (tmp_path / "new").exists()


@pytest.fixture(scope="module")
def unadapted(tmp_path_factory):
    """A run in closed form of few samples, an array of unlabelled samples that no test has, and one
    of test samples.
    """
    settings = {"data.train_per_class": 10, "data.test_per_class": 4, "evaluation.embedding": False}
    folder = tmp_path_factory.mktemp("adapt")
    done = run(Experiment.load("digit-pairs-gaussian", settings), folder / "run")
    data = load_data(done.experiment, 0)
    rows = data.features[np.concatenate([data.test_unseen, data.test_seen])]
    np.savez(folder / "tests.npz", features=rows)
    np.savez(
        folder / "pool.npz",
        features=rows + 0.02 * np.random.default_rng(0).standard_normal(rows.shape),
    )
    return folder


@pytest.mark.slow
def test_an_adapted_run_predicts_learns_reports_and_exports(unadapted, works, refused, tmp_path):
    words = "adapt", unadapted / "run", unadapted / "pool.npz", "--out", tmp_path / "new", "--json"
    note = works(*words).answer["adapted"]
    assert "is not an empty folder" in refused(*words)
    samples, seen = (np.array(note["classes"][key]) for key in ("samples", "seen"))
    assert (note["measured"], note["test_share"], note["among"]) == (True, 0, "all")
    assert samples.sum() > 0 == samples[seen.astype(bool)].sum()
    rows = np.load(unadapted / "pool.npz")["features"]
    assert sum(note["classes"]["answers_before"]) == len(rows)
    assert sum(note["classes"]["answers_after"]) == len(rows)
    assert note["lost"] == []
    adapted, before = load_run(tmp_path / "new"), load_run(unadapted / "run")
    assert all(adapted.result[key] >= before.result[key] - 2 for key in ("zsl", "gzsl_harmonic"))
    assert not np.array_equal(adapted.params["weight"], before.params["weight"])
    rows = np.load(unadapted / "pool.npz")["features"][:20]
    memory = before.adapt(np.load(unadapted / "pool.npz")["features"])
    assert memory.predict(rows, top=3) == adapted.predict(rows, top=3)
    assert "The model was adapted to" in (tmp_path / "new" / "report.html").read_text("utf-8")
    works("export", tmp_path / "new", "--csv", tmp_path / "tables")
    again = adapted.learn(examples={"okapi": rows}, out=tmp_path / "learned").adapt(
        unadapted / "pool.npz"
    )
    assert [again.space.names[-1], again.result["adapted"]["classes"]["class"][-1]] == [
        "okapi",
        "okapi",
    ]


def test_a_pool_of_test_samples_is_named(unadapted):
    with pytest.warns(UserWarning, match="100 % of the unlabelled samples are test samples"):
        load_run(unadapted / "run").adapt(unadapted / "tests.npz")


def test_without_its_data_a_run_is_adapted_but_not_measured(unadapted, tmp_path):
    before = load_run(unadapted / "run")
    data = before.manifest["experiment"]["data"]
    kept = {key: data[key] for key in ("features", "quantization", "semantics")}
    gone = {
        **before.manifest["experiment"],
        "data": {**kept, "name": "folder", "root": str(tmp_path / "gone")},
    }
    before = replace(before, manifest={**before.manifest, "experiment": gone})
    with pytest.warns(UserWarning, match="keeps the accuracies"):
        adapted = before.adapt(unadapted / "pool.npz", among="unseen")
    assert adapted.result["zsl"] == before.result["zsl"]
    assert not adapted.result["adapted"]["measured"]


@pytest.mark.slow
def test_a_service_adapts_only_where_it_is_asked_to(unadapted):
    done, rows = (
        load_run(unadapted / "run"),
        np.load(unadapted / "pool.npz")["features"].astype(np.float32),
    )
    plain, adapting = Recognizer(done), Recognizer(done, adapts=True)
    first = plain.rank(rows)
    assert adapting.rank(rows) == plain.rank(rows) == first
    assert adapting.rank(rows) != first
    assert load_run(unadapted / "run").predict(rows[:2]) == done.predict(rows[:2])


@pytest.mark.parametrize(
    ("samples", "refused", "said"),
    [
        (0.0, [], "120 unlabelled samples moved no unseen class"),
        (7.5, ["a"], "120 unlabelled samples moved no unseen class"),
        (7.5, [], "adapted to 120 unlabelled samples"),
    ],
)
def test_the_first_line_says_whether_a_pool_moved_an_unseen_class(samples, refused, said):
    row = {"class": "a", "seen": False, "samples": samples, "before": None, "after": None}
    rows = [row, {**row, "seen": True, "samples": 90.0}]
    first, _, of_class = texts.adapted(
        {"samples": 120, "measured": False, "refused": refused}, rows, {}
    )
    assert first == said
    assert ("about 8" in of_class) == (samples == 7.5)  # shares of samples, which are no whole ones


def test_what_a_run_has_learned_is_said_with_what_it_changed():
    before = {"shown": {"crab": 3}}
    after = {
        "shown": {"crab": 8, "lynx": 5},
        "learn_effect": {"text": "accuracy on 9 test samples"},
    }
    assert texts.learned([], before, after) == [
        "examples added: crab (5), lynx (5)",
        "accuracy on 9 test samples",
    ]
    assert texts.learned(["lynx"], before, before) == ["new classes: lynx"]
    assert texts.learned([], before, before) == ["no new class: known ones are described anew"]
