"""Test samples that are shown as examples: named, and left out of all that is measured since."""

import numpy as np
import pytest

from fedunseen import Experiment, load_run, run
from fedunseen.cli.texts import compared
from fedunseen.core.errors import ExperimentError
from fedunseen.evaluation.measures import SHORT
from fedunseen.experiment.assemble import load_data
from fedunseen.experiment.tables import compare
from fedunseen.metrics import per_class
from fedunseen.pages.report.card import model_card
from fedunseen.pages.report.page import write_report


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    settings = {"data.train_per_class": 10, "data.test_per_class": 8, "evaluation.embedding": False}
    path = tmp_path_factory.mktemp("shown") / "run"
    return run(Experiment.load("digit-pairs-gaussian", settings), path)


@pytest.fixture(scope="module")
def benchmark(done):
    return load_data(done.experiment, 0)


def rows_of(benchmark, c):
    return benchmark.test_unseen[benchmark.labels[benchmark.test_unseen] == c]


@pytest.mark.slow
def test_they_are_left_out_by_content_and_named(done, benchmark, tmp_path):
    c, other = benchmark.space.unseen[:2].tolist()
    names = benchmark.space.names
    shown = {
        names[c]: benchmark.features[rows_of(benchmark, c)[:5]],
        names[other]: benchmark.features[rows_of(benchmark, other)[:1]] + np.float32(1e-3),
    }
    with pytest.warns(
        UserWarning, match=rf"5 test samples were shown as examples: {names[c]} \(5\)"
    ):
        changed = done.learn(examples=shown, out=tmp_path / "new")
    assert changed.result["shown_tests"] == {names[c]: 5}
    assert changed.result["shown"] == {names[c]: 5, names[other]: 1}
    tests = np.concatenate([benchmark.test_unseen, benchmark.test_seen])
    kept = np.setdiff1d(tests, rows_of(benchmark, c)[:5])
    answers = changed.model.scores(benchmark.features[kept]).argmax(1)
    right = per_class(benchmark.labels[kept], answers, benchmark.space.unseen)
    assert changed.result["gzsl_unseen"] == pytest.approx(right.mean())
    assert len(changed.evaluation["labels"]) == len(changed.evaluation["stated"]) == len(kept)
    assert any("were shown as examples" in sign["what"] for sign in changed.result["warnings"])

    # what is learned or adapted to later leaves them out too
    more = {names[other]: benchmark.features[rows_of(benchmark, other)[:2]]}
    with pytest.warns(UserWarning, match="7 test samples"):
        again = load_run(changed.path).learn(examples=more, out=tmp_path / "again")
    assert again.result["shown_tests"] == {names[c]: 5, names[other]: 2}
    assert len(again.evaluation["labels"]) == len(kept) - 2
    pool = benchmark.features[benchmark.train[:200]] * np.float32(0.99)
    adapted = load_run(again.path).adapt(pool, tmp_path / "adapted")
    assert len(adapted.evaluation["labels"]) == len(kept) - 2
    np.testing.assert_array_equal(
        adapted.evaluation["left_out_tests"], again.evaluation["left_out_tests"]
    )

    # runs are compared on the test samples that both were measured on
    labels = done.evaluation["labels"]
    both = np.setdiff1d(np.arange(len(labels)), again.evaluation["left_out_tests"])
    np.testing.assert_array_equal(again.evaluation["labels"], labels[both])
    before = done.evaluation["gzsl_answers"][both]
    unseen = per_class(labels[both], before, benchmark.space.unseen).mean()
    for first, second, sign in ((again, done, 1), (done, again, -1)):
        found = compare(first, second)
        assert (found.count, found.left_out) == (len(labels) - 7, 7)
        difference, _ = found.differences["gzsl_unseen"]
        assert difference == pytest.approx(sign * (again.result["gzsl_unseen"] - unseen))
    found = compare(again, changed)
    assert (found.count, found.left_out, found.to_dict()["left_out"]) == (len(labels) - 7, 2, 2)
    assert "2 test samples that one of the runs was shown as examples are left out." in compared(
        [found], SHORT
    )
    assert compare(again, again).left_out == 0


def test_where_no_others_are_left_the_accuracies_stay(done, benchmark, tmp_path):
    shown = {
        benchmark.space.names[c]: benchmark.features[rows_of(benchmark, c)]
        for c in benchmark.space.unseen
    }
    with pytest.warns(UserWarning, match="No others are left"):
        changed = done.learn(examples=shown, out=tmp_path / "new")
    assert changed.result["gzsl_unseen"] == done.result["gzsl_unseen"]
    signs = [sign["remedy"] for sign in changed.result["warnings"] if "examples" in sign["what"]]
    assert len(signs) == 1
    assert signs[0].startswith("No others are left")
    assert set(compare(changed, done).differences.values()) == {(0.0, 0.0)}

    # nor are they measured by what is adapted to later
    with pytest.warns(UserWarning, match="were shown as examples"):
        adapted = changed.adapt(
            benchmark.features[benchmark.train[:200]] * np.float32(0.99), tmp_path / "adapted"
        )
    assert adapted.result["gzsl_unseen"] == done.result["gzsl_unseen"]


@pytest.mark.slow
def test_runs_that_share_no_tested_samples_of_a_kind_are_not_compared(done, benchmark, tmp_path):
    names = benchmark.space.names
    runs = []
    for k in (0, 1):
        rows = {names[c]: rows_of(benchmark, c)[k::2] for c in benchmark.space.unseen.tolist()}
        shown = {name: benchmark.features[some] for name, some in rows.items()}
        with pytest.warns(UserWarning, match="were shown as examples"):
            runs.append(done.learn(examples=shown, out=tmp_path / str(k)))
    with pytest.raises(ExperimentError, match="no test samples of seen or of unseen classes"):
        compare(*runs)


@pytest.mark.slow
def test_the_report_and_the_card_say_which_classes_have_examples(done, benchmark, tmp_path):
    names = benchmark.space.names
    unseen = benchmark.space.unseen.tolist()
    rng = np.random.default_rng(0)
    rows = {names[c]: benchmark.features[rows_of(benchmark, c)] for c in unseen}
    shown = {
        name: np.clip(x[:5] + 0.01 * rng.random(x[:5].shape), 0, 1) for name, x in rows.items()
    }
    one = done.learn(examples={names[unseen[0]]: shown[names[unseen[0]]]}, out=tmp_path / "one")
    every = done.learn(examples=shown, out=tmp_path / "every")
    assert "shown_tests" not in every.result
    before, some, after = (
        write_report(each, tmp_path / f"{k}.html").read_text("utf-8")
        for k, each in enumerate((done, one, every))
    )
    assert "From their descriptions alone" in before
    assert "From descriptions and examples" in some
    assert "1 of these was shown by examples since" in " ".join(some.split())
    assert "all of these were shown by examples since" in " ".join(after.split())
    for page in (some, after):
        assert "From their descriptions alone" not in page
        assert "There is no example of" not in page
    assert f"Shown by examples since: {names[unseen[0]]} (5)." in model_card(one)
    low, high = every.result["intervals"]["gzsl_unseen"]
    assert low < every.result["gzsl_unseen"] < high
    assert f"{low:.0f} to" in after
    assert "Show 5 examples" not in " ".join(every.result["summary"]["text"])
