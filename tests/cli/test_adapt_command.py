"""``fedunseen adapt``: a finished run moves to unlabelled samples, and serves all that a user types afterwards."""

from dataclasses import replace

import numpy as np
import pytest

from fedunseen import Experiment, load_run, run
from fedunseen.experiment.assemble import load_data
from fedunseen.serve import Recognizer


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run in closed form of few samples, an array of unlabelled samples that no test has, and one of test samples."""
    settings = {"data.train_per_class": 10, "data.test_per_class": 4, "evaluation.embedding": False}
    folder = tmp_path_factory.mktemp("adapt")
    done = run(Experiment.load("digit-pairs-gaussian", settings), folder / "run")
    data = load_data(done.experiment, 0)
    rows = data.features[np.concatenate([data.test_unseen, data.test_seen])]
    np.savez(folder / "tests.npz", features=rows)
    np.savez(folder / "pool.npz", features=rows + 0.02 * np.random.default_rng(0).standard_normal(rows.shape))
    return folder


def test_an_adapted_run_predicts_learns_reports_and_exports(trained, works, tmp_path):
    words = "adapt", trained / "run", trained / "pool.npz", "--out", tmp_path / "new", "--json"
    note = works(*words).answer["adapted"]
    samples, seen = (np.array(note["classes"][key]) for key in ("samples", "seen"))
    assert (note["measured"], note["test_share"]) == (True, 0)
    assert samples.sum() > 0 == samples[seen.astype(bool)].sum()
    adapted, before = load_run(tmp_path / "new"), load_run(trained / "run")
    assert all(adapted.result[key] >= before.result[key] - 2 for key in ("zsl", "gzsl_harmonic"))
    assert not np.array_equal(adapted.params["weight"], before.params["weight"])
    rows = np.load(trained / "pool.npz")["features"][:20]
    memory = before.adapt(np.load(trained / "pool.npz")["features"])
    assert memory.predict(rows, top=3) == adapted.predict(rows, top=3)
    assert "The model was adapted to" in (tmp_path / "new" / "report.html").read_text("utf-8")
    works("export", tmp_path / "new", "--csv", tmp_path / "tables")
    again = adapted.learn(examples={"okapi": rows}, out=tmp_path / "learned").adapt(trained / "pool.npz")
    assert [again.space.names[-1], again.result["adapted"]["classes"]["class"][-1]] == ["okapi", "okapi"]


def test_a_pool_of_test_samples_is_named(trained):
    with pytest.warns(UserWarning, match="100 % of the unlabelled samples are test samples"):
        load_run(trained / "run").adapt(trained / "tests.npz")


def test_without_its_data_a_run_is_adapted_but_not_measured(trained, tmp_path):
    before = load_run(trained / "run")
    gone = {**before.manifest["experiment"], "data": {"name": "folder", "root": str(tmp_path / "gone")}}
    before = replace(before, manifest={**before.manifest, "experiment": gone})
    with pytest.warns(UserWarning, match="keeps the accuracies"):
        adapted = before.adapt(trained / "pool.npz", among="unseen")
    assert adapted.result["zsl"] == before.result["zsl"]
    assert not adapted.result["adapted"]["measured"]


def test_a_folder_that_holds_something_is_refused(refused, trained):
    assert "is not an empty folder" in refused("adapt", trained / "run", trained / "pool.npz", "--out", trained)


def test_a_service_adapts_only_where_it_is_asked_to(trained):
    done, rows = load_run(trained / "run"), np.load(trained / "pool.npz")["features"].astype(np.float32)
    plain, adapting = Recognizer(done), Recognizer(done, adapts=True)
    first = plain.rank(rows)
    assert adapting.rank(rows) == plain.rank(rows) == first
    assert adapting.rank(rows) != first
    assert load_run(trained / "run").predict(rows[:2]) == done.predict(rows[:2])
