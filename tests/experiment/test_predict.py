"""Predictions from Python: ``load_run(...).predict``."""

import re

import numpy as np
import pytest
import torch

from fedunseen import load_run, run
from fedunseen.core.errors import FedUnseenError


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(3).normal(size=(5, 9))


def scores(ranking):
    return {one.name: one.score for one in ranking}


def test_rankings_are_the_method_s_scores_less_the_calibration_of_seen_classes(finished, rows):
    p = {name: value.double().numpy() for name, value in finished.params.items()}
    mean, deviation = (finished.scaler.statistics[f"0.{what}"].astype(np.float64) for what in ("mean", "deviation"))
    space, factor = finished.space, finished.result["calibration_factor"]
    assert factor != 0
    for row, ranking in zip(rows, finished.predict(rows), strict=True):
        hidden = np.maximum(p["f.0.weight"] @ ((row - mean) / deviation) + p["f.0.bias"], 0)
        expected = space.semantics @ (p["g.weight"] @ hidden + p["g.bias"])
        expected[space.seen] -= factor
        found = scores(ranking)
        assert found == pytest.approx(dict(zip(space.names, expected.tolist(), strict=True)), abs=1e-4)
        assert list(found.values()) == sorted(found.values(), reverse=True)


def test_a_class_added_with_known_attributes_scores_as_the_known_one(finished, rows):
    space, factor = finished.space, finished.result["calibration_factor"]
    added = {"same as seen": space.semantics[1].tolist(), "same as unseen": tuple(space.semantics[9])}
    for ranking in finished.predict(rows, added):
        found = scores(ranking)
        assert len(found) == 14
        assert found["same as seen"] == pytest.approx(found["猫"] + factor, abs=1e-5)
        assert found["same as unseen"] == pytest.approx(found["j"], abs=1e-5)
    before, after = finished.predict(rows), finished.predict(rows, added)
    for one, other in zip(before, after, strict=True):
        assert [name for name in scores(other) if name not in added] == list(scores(one))


def test_a_class_can_be_replaced_by_name(finished, rows):
    space = finished.space
    for one, other in zip(finished.predict(rows), finished.predict(rows, {"k": space.semantics[9]}), strict=True):
        assert len(other) == 12
        before, after = scores(one), scores(other)
        assert after.pop("k") == pytest.approx(before["j"], abs=1e-5)
        assert {**after, "k": before["k"]} == before


def test_rankings_may_run_over_some_classes_only(finished, rows):
    added = {"new": finished.space.semantics[0]}
    assert {p.name for p in finished.predict(rows, among="unseen")[0]} == {"i", "j", "k", "l"}
    assert {p.name for p in finished.predict(rows, added, among="unseen")[0]} == {"i", "j", "k", "l", "new"}
    assert {p.name for p in finished.predict(rows, {**added, "d": [1] * 6}, among="given")[0]} == {"new", "d"}
    whole, three = finished.predict(rows), finished.predict(rows, top=3)
    assert [ranking[:3] for ranking in whole] == three
    assert finished.predict(rows, top=99) == whole


def test_inputs_may_be_many_things(finished, rows, tmp_path):
    expected = finished.predict(rows)
    np.save(tmp_path / "a.npy", rows)
    np.savez(tmp_path / "b.npz", features=rows[:2], other=rows)
    np.savetxt(tmp_path / "c.csv", rows[2:], delimiter=",", fmt="%.18e")
    files = [tmp_path / "a.npy", str(tmp_path / "a.npy"), [tmp_path / "b.npz", str(tmp_path / "c.csv")]]
    before = rows.copy()
    for inputs in (*files, rows, rows.tolist(), torch.from_numpy(rows), rows.astype(np.float32)):
        assert finished.predict(inputs) == expected
    assert (rows == before).all()
    (alone,) = finished.predict(rows[0])
    assert scores(alone) == pytest.approx(scores(expected[0]), abs=1e-5)


SHAPED = "the inputs have the shape {}, but this run's model takes (n, 9): give such inputs"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"inputs": np.zeros((2, 8))}, SHAPED.format((2, 8))),
        ({"inputs": np.zeros((2, 9, 1))}, SHAPED.format((2, 9, 1))),
        ({"inputs": np.full((1, 9), np.nan)}, "the inputs hold values that are not finite: leave those rows out"),
        ({"inputs": np.full((1, 9), 1e300)}, "the inputs hold values that are not finite: leave those rows out"),
        ({"inputs": np.array([["a"] * 9])}, "the inputs are of type <U1: give real numbers"),
        ({"inputs": []}, "there is nothing to predict: give at least one input"),
        ({"inputs": "nowhere.npy"}, "nowhere.npy is missing: correct its name"),
        ({"classes": {"new": [1, 2]}}, "class 'new' has 2 attributes, but this run's classes have 6"),
        ({"classes": {"a": "abcdef"}}, "the attributes of a class must be numbers, as many as the run's classes have"),
        ({"classes": {"new": [1, 2, 3, 4, 5, None]}}, "the class 'new' has NaN or infinite attributes"),
        ({"classes": {"new": [1, 2, 3, 4, 5, np.inf]}}, "the class 'new' has NaN or infinite attributes"),
        ({"classes": {"new": [0] * 6}}, "the class 'new' has only zeros as attributes: describe it, or leave it out"),
        ({"classes": "nowhere.csv"}, "nowhere.csv is missing: correct its name"),
        ({"among": "given", "classes": {}}, "--among given: there is no such class; give some with --classes"),
    ],
)
def test_bad_questions_are_one_sentence(finished, rows, more, message):
    with pytest.raises(FedUnseenError, match=f"^{re.escape(message)}$"):
        finished.predict(**{"inputs": rows, **more})


def test_a_run_predicts_the_same_where_its_data_are_gone_and_it_was_moved(make, make_folder, rows, tmp_path):
    root = make_folder(tmp_path / "data")
    experiment = make({"data.root": str(root), "data.semantics": ["l2"], "strategy.rounds": 2})
    done = run(experiment, tmp_path / "run")
    expected = done.predict(rows)
    root.rename(tmp_path / "away")
    done.path.rename(tmp_path / "moved")
    assert load_run(tmp_path / "moved").predict(rows) == expected
