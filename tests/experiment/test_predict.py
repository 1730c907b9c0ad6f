"""Predictions from Python: ``load_run(...).predict``, and of the model that is exported as ONNX."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedunseen import load_model, load_run, run
from fedunseen.core.errors import ExperimentError, FedUnseenError, RunDirectoryError
from fedunseen.pages.portable import export_model


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(3).normal(size=(5, 9))


def scores(ranking):
    return {one.name: one.score for one in ranking}


def test_rankings_are_the_method_s_scores_less_the_calibration_of_seen_classes(finished, rows):
    p = {name: value.double().numpy() for name, value in finished.params.items()}
    mean, deviation = (
        finished.scaler.statistics[f"0.{what}"].astype(np.float64) for what in ("mean", "deviation")
    )
    space, factor = finished.space, finished.result["calibration_factor"]
    assert factor != 0
    for row, ranking in zip(rows, finished.predict(rows), strict=True):
        hidden = np.maximum(p["f.0.weight"] @ ((row - mean) / deviation) + p["f.0.bias"], 0)
        expected = space.semantics @ (p["g.weight"] @ hidden + p["g.bias"])
        expected[space.seen] -= factor
        found = scores(ranking)
        assert found == pytest.approx(
            dict(zip(space.names, expected.tolist(), strict=True)), abs=1e-4
        )
        assert list(found.values()) == sorted(found.values(), reverse=True)


def test_a_class_added_with_known_attributes_scores_as_the_known_one(finished, rows):
    space, factor = finished.space, finished.result["calibration_factor"]
    added = {
        "same as seen": space.semantics[1].tolist(),
        "same as unseen": tuple(space.semantics[9]),
    }
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
    for one, other in zip(
        finished.predict(rows), finished.predict(rows, {"k": space.semantics[9]}), strict=True
    ):
        assert len(other) == 12
        before, after = scores(one), scores(other)
        assert after.pop("k") == pytest.approx(before["j"], abs=1e-5)
        assert {**after, "k": before["k"]} == before


def test_rankings_may_run_over_some_classes_only(finished, rows):
    added = {"new": finished.space.semantics[0]}
    assert {p.name for p in finished.predict(rows, among="unseen")[0]} == {"i", "j", "k", "l"}
    assert {p.name for p in finished.predict(rows, added, among="unseen")[0]} == {
        "i",
        "j",
        "k",
        "l",
        "new",
    }
    assert {p.name for p in finished.predict(rows, {**added, "d": [1] * 6}, among="given")[0]} == {
        "new",
        "d",
    }
    whole, three = finished.predict(rows), finished.predict(rows, top=3)
    assert [ranking[:3] for ranking in whole] == three
    assert finished.predict(rows, top=99) == whole


def test_inputs_may_be_many_things(finished, rows, tmp_path):
    expected = finished.predict(rows)
    np.save(tmp_path / "a.npy", rows)
    np.savez(tmp_path / "b.npz", features=rows[:2], other=rows)
    np.savetxt(tmp_path / "c.csv", rows[2:], delimiter=",", fmt="%.18e")
    files = [
        tmp_path / "a.npy",
        str(tmp_path / "a.npy"),
        [tmp_path / "b.npz", str(tmp_path / "c.csv")],
    ]
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
        (
            {"inputs": np.full((1, 9), np.nan)},
            "the inputs hold values that are not finite: leave those rows out",
        ),
        (
            {"inputs": np.full((1, 9), 1e300)},
            "the inputs: the number 1e+300 of sample 0 is too large: float32 holds at most 3.4e38: "
            "scale the samples, or leave it out",
        ),
        ({"inputs": np.array([["a"] * 9])}, "the inputs are of type <U1: give real numbers"),
        ({"inputs": []}, "there is nothing to predict: give at least one input"),
        ({"inputs": "nowhere.npy"}, "nowhere.npy is missing: correct its name"),
        (
            {"classes": {"new": [1, 2]}},
            "class 'new' has 2 attributes, but this run's classes have 6",
        ),
        (
            {"classes": {"a": "abcdef"}},
            "the attributes of a class must be numbers, as many as the run's classes have",
        ),
        (
            {"classes": {"new": [1, 2, 3, 4, 5, None]}},
            "the class 'new' has NaN or infinite attributes",
        ),
        (
            {"classes": {"new": [1, 2, 3, 4, 5, np.inf]}},
            "the class 'new' has NaN or infinite attributes",
        ),
        ({"classes": "nowhere.csv"}, "nowhere.csv is missing: correct its name"),
        (
            {"among": "given", "classes": {}},
            "--among given: there is no such class; give some with --classes",
        ),
    ],
)
def test_bad_questions_are_one_sentence(finished, rows, more, message):
    with pytest.raises(FedUnseenError, match=f"^{re.escape(message)}$"):
        finished.predict(**{"inputs": rows, **more})


def test_a_run_predicts_the_same_where_its_data_are_gone_and_it_was_moved(
    make, make_folder, rows, tmp_path
):
    root = make_folder(tmp_path / "data")
    done = run(
        make({"data.root": str(root), "data.semantics": ["l2"], "strategy.rounds": 2}),
        tmp_path / "run",
    )
    expected = done.predict(rows)
    root.rename(tmp_path / "away")
    done.path.rename(tmp_path / "moved")
    assert load_run(tmp_path / "moved").predict(rows) == expected


@pytest.fixture
def asked(rows, tmp_path):
    """Call the script of an exported folder, where this package cannot be imported; compare what it
    answers.
    """
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    np.save(tmp_path / "rows.npy", rows)

    def check(folder, expected, *options, samples="rows.npy"):
        script = (
            "import sys, runpy\nsys.modules['fedunseen'] = sys.modules['torch'] = None\n"
            f"sys.argv = {['predict.py', str(tmp_path / samples), *options]!r}\n"
            f"runpy.run_path({str(folder / 'predict.py')!r}, run_name='__main__')"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        if isinstance(expected, str):
            assert (done.returncode, done.stderr.splitlines()[-1].partition(": error: ")[2]) == (
                2,
                expected,
            )
            return
        assert done.returncode == 0, done.stderr
        for line, ranking in zip(done.stdout.splitlines(), expected, strict=True):
            found = {one["name"]: one["score"] for one in json.loads(line)}
            assert found == pytest.approx(scores(ranking), abs=1e-3)

    return check


NEW = {"new": [0.1, 0.9, 0.2, 0.8, 0.3, 0.7]}
LINE = "new,,0.1,0.9,0.2,0.8,0.3,0.7\n"


@pytest.mark.slow
def test_an_exported_folder_answers_as_the_run_does_and_takes_new_classes(
    make, tmp_path, rows, asked
):
    done = run(
        make({"data.features": ["standard", "l2"], "data.semantics": ["centre", "l2"]}),
        tmp_path / "run",
    )
    assert done.result["calibration_factor"] != 0
    folder = tmp_path / "model"
    assert {path.name for path in export_model(done, folder, "")} == {
        path.name for path in folder.iterdir()
    }
    asked(folder, done.predict(rows), "--top", "99")
    asked(folder, done.predict(rows, among="unseen", top=2), "--top", "2", "--unseen")
    with open(folder / "classes.csv", "a", encoding="utf-8") as file:
        file.write(LINE)
    asked(folder, done.predict(rows, NEW), "--top", "99")
    np.save(tmp_path / "wide.npy", np.ones((9, 10)))
    np.savez(tmp_path / "several.npz", rows=rows)
    remedy = "give a .npy file of samples of the shape [9], one a row"
    for name, why in (
        ("none.npy", f"[Errno 2] No such file or directory: '{tmp_path / 'none.npy'}'"),
        ("wide.npy", "cannot reshape array of size 90 into shape (9,9)"),
        ("several.npz", "could not convert string to float: np.str_('rows')"),
    ):
        asked(folder, f"{tmp_path / name}: {why}: {remedy}", samples=name)
    with pytest.raises(RunDirectoryError, match="is not an empty folder: name another with --out"):
        export_model(load_run(done.path), folder, "")


@pytest.mark.slow
def test_a_kernel_is_in_the_graph(make, tmp_path, rows, asked):
    settings = {
        "method.name": "gaussian",
        "method.shrinkage": 0.3,
        "data.features": ["standard", "kernel"],
        "data.kernel_features": 64,
    }
    closed = {"strategy.rounds": 1, "evaluation.selection": "last"}
    done = run(make({**settings, **closed}), tmp_path / "run")
    export_model(done, tmp_path / "model", "")
    asked(tmp_path / "model", done.predict(rows), "--top", "99")
    moved = load_run(done.path)
    assert moved.predict(rows) == done.predict(rows)
    moved.model.save(tmp_path / "model.safetensors")
    loaded = load_model(tmp_path / "model.safetensors")
    assert np.array_equal(loaded.scores(rows), done.model.scores(rows))


@pytest.mark.slow
def test_prototypes_are_made_in_the_graph(make, tmp_path, rows, asked):
    """Gaussian classes: the model's own with learned examples, in any order, and a new one by
    description.
    """
    settings = {
        "method.name": "gaussian",
        "method.shrinkage": 0.3,
        "data.semantics": ["centre", "l2"],
    }
    solved = run(
        make({**settings, "strategy.rounds": 1, "evaluation.selection": "last"}), tmp_path / "run"
    )
    rng, name = np.random.default_rng(0), solved.space.names[solved.space.unseen[0]]
    shown = {
        word: rng.normal(size=(3, 9)).astype(np.float32)
        for word in (name, "undescribed", "undescribed too")
    }
    done = solved.learn(examples=shown, out=tmp_path / "learnt")
    export_model(done, tmp_path / "model", "")
    expected = done.predict(rows, NEW)
    before, after = (scores(rankings[0])[name] for rankings in (solved.predict(rows), expected))
    assert before != pytest.approx(after, abs=1e-2)  # it has moved
    table = tmp_path / "model" / "classes.csv"
    header, *lines = table.read_text("utf-8").splitlines(keepends=True)
    table.write_text("".join([header, LINE, *reversed(lines)]), "utf-8")
    asked(tmp_path / "model", expected, "--top", "99")


def test_a_model_that_needs_this_package_is_not_exported(make, tmp_path):
    classifier = {"method.name": "classifier", "strategy.rounds": 1, "evaluation.selection": "last"}
    done = run(make(classifier), tmp_path / "run")
    with pytest.raises(
        ExperimentError, match=r"method\.name = 'classifier' does not score a class by its"
    ):
        export_model(done, tmp_path / "model", "")
    assert not (tmp_path / "model").exists()
