"""A model exported as ONNX: it answers as the run does, without this package, also with new classes."""

import json
import subprocess
import sys

import numpy as np
import pytest

from fedunseen import Experiment, load_run, run
from fedunseen.core.errors import ExperimentError, RunDirectoryError
from fedunseen.experiment.portable import export_model

pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


def ask(folder, samples, *options):
    """Call the folder's own script, where this package cannot be imported."""
    np.save(folder / "samples.npy", samples)
    script = (
        "import sys, runpy\nsys.modules['fedunseen'] = sys.modules['torch'] = None\n"
        f"sys.argv = {['predict.py', str(folder / 'samples.npy'), *options]!r}\n"
        f"runpy.run_path({str(folder / 'predict.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def same(found, expected):
    for one, ranking in zip(found, expected, strict=True):
        assert {c["name"]: c["score"] for c in one} == pytest.approx({p.name: p.score for p in ranking}, abs=1e-3)


@pytest.mark.slow
def test_the_folder_answers_as_the_run_does_and_takes_new_classes(make, tmp_path):
    scaled = {"data.features": ["standard", "l2"], "data.semantics": ["centre", "l2"]}
    done = run(make(scaled), tmp_path / "run")
    assert done.result["calibration_factor"] != 0
    folder = tmp_path / "model"
    assert {path.name for path in export_model(done, folder, "")} == {path.name for path in folder.iterdir()}
    samples = np.random.default_rng(0).normal(size=(4, 9)).astype(np.float32)
    same(ask(folder, samples, "--top", "99"), done.predict(samples))
    same(ask(folder, samples, "--top", "2", "--unseen"), done.predict(samples, among="unseen", top=2))
    with open(folder / "classes.csv", "a", encoding="utf-8") as file:
        file.write("new,,0.1,0.9,0.2,0.8,0.3,0.7\n")
    same(ask(folder, samples, "--top", "99"), done.predict(samples, {"new": [0.1, 0.9, 0.2, 0.8, 0.3, 0.7]}))
    with pytest.raises(RunDirectoryError, match="is not an empty folder: name another with --out"):
        export_model(load_run(done.path), folder, "")


@pytest.mark.slow
def test_prototypes_are_made_in_the_graph(make, tmp_path):
    """Gaussian classes: the model's own with learned examples, in any order, and a new one by description."""
    settings = {"method.name": "gaussian", "method.shrinkage": 0.3, "data.semantics": ["centre", "l2"]}
    solved = run(make({**settings, "strategy.rounds": 1, "evaluation.selection": "last"}), tmp_path / "run")
    rng = np.random.default_rng(0)
    name = solved.space.names[solved.space.unseen[0]]
    shown = {word: rng.normal(size=(3, 9)).astype(np.float32) for word in (name, "undescribed", "undescribed too")}
    done = solved.learn(examples=shown, out=tmp_path / "learnt")
    folder = tmp_path / "model"
    export_model(done, folder, "")
    samples = rng.normal(size=(4, 9)).astype(np.float32)
    expected = done.predict(samples, {"new": [0.1, 0.9, 0.2, 0.8, 0.3, 0.7]})
    before = {p.name: p.score for p in solved.predict(samples)[0]}
    assert before[name] != pytest.approx({p.name: p.score for p in expected[0]}[name], abs=1e-2)  # it has moved
    header, *lines = (folder / "classes.csv").read_text("utf-8").splitlines()
    new = "new,,0.1,0.9,0.2,0.8,0.3,0.7"
    (folder / "classes.csv").write_text("\n".join([header, new, *reversed(lines)]) + "\n", "utf-8")
    same(ask(folder, samples, "--top", "99"), expected)


def test_a_model_that_needs_this_package_is_refused(tmp_path):
    quick = {"strategy.rounds": 1, "data.train_per_class": 2, "data.test_per_class": 2, "evaluation.selection": "last"}
    done = run(Experiment.load("digit-pairs", {**quick, "method.name": "classifier"}), tmp_path / "run")
    with pytest.raises(ExperimentError, match=r"method\.name = 'classifier' does not score a class by its"):
        export_model(done, tmp_path / "model", "")
    assert not (tmp_path / "model").exists()
