"""A run that has learned since is measured by its new model, and compared by it."""

import json

import numpy as np
import pytest

from fedunseen import Experiment, load_run, run
from fedunseen.experiment.assemble import load_data
from fedunseen.experiment.tables import compare
from fedunseen.pages.report import write_report

SMALL = {
    "data.train_per_class": 20,
    "data.test_per_class": 8,
    "evaluation.selection": "last",
    "evaluation.embedding": False,
}


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A small run in closed form."""
    folder = tmp_path_factory.mktemp("before") / "run"
    return run(Experiment.load("digit-pairs-gaussian", SMALL), folder)


@pytest.fixture(scope="module")
def shown(before):
    """Return two examples of each unseen class, other than the test samples."""
    other = before.experiment.with_overrides({"data.test_per_class": 12})
    benchmark = load_data(other, 0)
    found = {}
    for c in benchmark.space.unseen.tolist():
        mine = benchmark.test_unseen[benchmark.labels[benchmark.test_unseen] == c]
        found[benchmark.space.names[c]] = benchmark.features[mine[-2:]]
    return found


@pytest.mark.slow
def test_what_a_run_learned_is_measured_and_compared(before, shown, tmp_path):
    after = before.learn(examples=shown, out=tmp_path / "after")
    benchmark = load_data(before.experiment, 0)
    rows = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    answers = after.model.scores(benchmark.features[rows]).argmax(1)
    assert np.array_equal(after.evaluation["gzsl_answers"], answers)
    right = answers == benchmark.labels[rows]
    unseen = np.isin(benchmark.labels[rows], benchmark.space.unseen)
    assert after.result["gzsl_unseen"] == pytest.approx(100 * right[unseen].mean())
    assert after.result["gzsl_seen"] == pytest.approx(100 * right[~unseen].mean())
    found = compare(after, before)
    for name in ("zsl", "gzsl_unseen", "gzsl_seen"):
        change = after.result[name] - before.result[name]
        assert found.differences[name][0] == pytest.approx(change, abs=1e-6)
    assert found.differences["zsl"][0] != 0
    stated = after.model.probabilities(benchmark.features[rows]).max(1)
    np.testing.assert_allclose(after.evaluation["stated"], stated, rtol=1e-5)
    numbers = after.result["confidence"]
    assert numbers["stated"] == pytest.approx(100 * stated.mean())
    assert numbers["right"] == pytest.approx(100 * right.mean())
    assert numbers["from"] == before.result["confidence"]["from"]
    tested = {kind: sum(row[0] for row in rows) for kind, rows in numbers["reliability"].items()}
    assert tested == {"seen": (~unseen).sum(), "unseen": unseen.sum()}  # as U and S count them
    offset = after.model.calibration.offset
    assert min(abs(point[0] - offset) for point in numbers["trade"]) < 1e-9
    again = after.learn({"more": before.space.semantics[0] + 0.5}, out=tmp_path / "again")
    assert again.result["confidence"]["stated"] != numbers["stated"]  # one more competes


@pytest.mark.slow
def test_an_adapted_run_records_its_own_answers(before, tmp_path):
    other = load_data(before.experiment.with_overrides({"data.test_per_class": 12}), 0)
    rows = np.concatenate([other.test_unseen, other.test_seen])
    after = before.adapt(other.features[rows], out=tmp_path / "adapted")
    benchmark = load_data(before.experiment, 0)
    rows = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    stated = after.model.probabilities(benchmark.features[rows]).max(1)
    np.testing.assert_allclose(after.evaluation["stated"], stated, rtol=1e-5)
    assert after.result["confidence"]["stated"] == pytest.approx(100 * stated.mean())
    assert not np.array_equal(after.evaluation["stated"], before.evaluation["stated"])


def test_a_class_that_was_added_competes_and_can_be_compared(before, shown, tmp_path):
    copy = {"47 again": shown["47"]}  # half of the 47 are answered with it
    after = before.learn(examples=copy, out=tmp_path / "after")
    found = compare(load_run(after.path), before)
    assert found.differences["gzsl_unseen"][0] < 0
    assert "47 again" in [after.space.names[c] for c in after.evaluation["gzsl_answers"]]


@pytest.mark.slow
def test_a_class_that_was_added_competes_still_in_an_adapted_run(before, shown, tmp_path):
    """It was measured as if the class had gone: both before and after were too high."""
    learned = before.learn(examples={"47 again": shown["47"]}, out=tmp_path / "learned")
    other = load_data(before.experiment.with_overrides({"data.test_per_class": 12}), 0)
    pool = other.features[np.concatenate([other.test_unseen, other.test_seen])]
    after = learned.adapt(pool, out=tmp_path / "adapted")
    benchmark = load_data(before.experiment, 0)
    rows = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    answers = after.model.scores(benchmark.features[rows]).argmax(1)
    assert np.array_equal(after.evaluation["gzsl_answers"], answers)
    assert "47 again" in [after.space.names[c] for c in answers]
    assert after.manifest["learnt"] == ["47 again"]  # once
    right = answers == benchmark.labels[rows]
    unseen = np.isin(benchmark.labels[rows], benchmark.space.unseen)
    assert after.result["gzsl_unseen"] == pytest.approx(100 * right[unseen].mean())
    of_class = right[benchmark.labels[rows] == benchmark.space.names.index("47")].mean()
    table = after.result["adapted"]["classes"]
    assert table["after"][table["class"].index("47")] == pytest.approx(100 * of_class, abs=0.01)
    for name, value in after.result["adapted"]["before"].items():
        assert value == pytest.approx(learned.result[name], abs=1e-6)
    found = compare(load_run(after.path), learned)
    assert found.differences["gzsl_unseen"][0] == pytest.approx(
        after.result["gzsl_unseen"] - learned.result["gzsl_unseen"], abs=1e-6
    )


@pytest.mark.slow
def test_the_report_of_classes_with_examples_keeps_both_kinds_apart(before, shown, tmp_path):
    benchmark = load_data(before.experiment, 0)
    many = {name: np.repeat(rows, 40, axis=0) for name, rows in shown.items()}
    rng = np.random.default_rng(0)
    many = {
        name: (rows + 0.01 * rng.random(rows.shape)).astype("f4") for name, rows in many.items()
    }
    after = before.learn(examples=many, out=tmp_path / "after")
    assert after.model.shown_mask[benchmark.space.unseen].all()  # taken for seen ones from now on
    numbers = after.result["confidence"]
    for part in (numbers["reliability"], numbers["risk_coverage"], numbers["unfamiliar"]):
        assert set(part) == {"seen", "unseen"}
    for kind in ("seen", "unseen"):
        assert numbers["risk_coverage"][kind][-1] == pytest.approx(
            after.result[f"gzsl_{kind}"], abs=1e-6
        )
    page = write_report(after).read_text("utf-8")
    answers = len(benchmark.test_seen), len(benchmark.test_unseen)
    assert "{} test answers about seen classes and {}".format(*answers) in page
    assert "A class with enough examples counts as a seen one" in page
    first = write_report(before).read_text("utf-8")
    assert "A class with enough examples" not in first
    result = json.loads((after.path / "result.json").read_text("utf-8"))
    del result["confidence"]["from"]  # as runs of before that had learned
    (after.path / "result.json").write_text(json.dumps(result), "utf-8")
    assert "held-out answers" in write_report(load_run(after.path)).read_text("utf-8")
