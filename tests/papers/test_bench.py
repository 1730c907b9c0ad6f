"""A bench: rows tuned alike, examples and pools, intervals over seeds and classes, resumed and in
parts.
"""

import csv
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from fedunseen import Experiment, load_run, run
from fedunseen.core.errors import DataError, ExperimentError, RunDirectoryError
from fedunseen.data.benchmarks.digit_pairs import DigitPairs
from fedunseen.pages.report.bench_page import write_bench_report
from fedunseen.research.papers import bench as module
from fedunseen.research.papers.bench import (
    SHIPPED,
    Interval,
    interval,
    lines,
    number,
    read_bench,
    run_bench,
)
from fedunseen.research.papers.conditions import halves, measured
from fedunseen.research.sweep.schema import read_sweep, select

TINY = """
title = "Two methods"
[bench]
validation_runs = 2
seeds = 2
examples = [0, 1]
seen_test = { fedzsl = "its rate" }
[experiment]
data = { name = "digit-pairs", train_per_class = 6, test_per_class = 6 }
partition = { kind = "pccd", clients = 4 }
strategy = { name = "fedavg", rounds = 2, local_epochs = 1 }
evaluation = { clients = false, embedding = false }
[axes.method.gaussian]
method = { name = "gaussian" }
evaluation.choose = { "method.shrinkage" = [0.1, 0.5] }
[axes.method.fedzsl]
method = { name = "fedzsl", kl = 0.0, consistency = 0.0 }
evaluation.choose = { "method.lr" = [0.1, 0.5] }
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The tiny bench, run in two parts, with what was there after the first."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "tiny.toml").write_text(TINY, "utf-8")
    sweep, bench = read_bench(folder / "tiny.toml")
    out, said = folder / "out", []
    assert not run_bench(sweep, bench, out, select(sweep, {"method": "gaussian"}))
    first = {path.name: path.read_bytes() for path in (out / "measured").iterdir()}
    half = lines(sweep, bench, out)
    assert not run_bench(sweep, bench, out, sweep.cells, say=said.append)
    return SimpleNamespace(sweep=sweep, bench=bench, out=out, first=first, half=half, said=said)


@pytest.mark.slow
def test_a_part_leaves_the_other_rows_as_not_run_and_a_second_call_runs_them_alone(small):
    assert sorted(small.first) == ["gaussian--0.json", "gaussian--1.json"]
    assert [
        (line.values["method"], line.values["condition"], line.status) for line in small.half
    ] == [
        *(("gaussian", condition, "done") for condition in ("0", "1", "pool")),
        *(("fedzsl", condition, "not run") for condition in ("0", "1", "pool")),
    ]
    assert [words.partition(": ZSL")[0] for words in small.said] == [
        "fedzsl: seed 0",
        "fedzsl: seed 1",
    ]
    assert all(
        (small.out / "measured" / name).read_bytes() == content
        for name, content in small.first.items()
    )
    assert not run_bench(small.sweep, small.bench, small.out, small.sweep.cells, say=pytest.fail)


def test_the_leaderboard_has_every_row_with_cost_and_difference(small):
    out = small.out
    write_bench_report(small.sweep, small.bench, lines(small.sweep, small.bench, out), out)
    with open(out / "leaderboard.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = [(row["status"], row["seeds"], row["chosen_with_test_in_view"]) for row in rows]
    assert found == [("done", "2", "")] * 3 + [("done", "2", "its rate")] * 3
    ours, reference = rows[3], rows[0]
    assert float(ours["zsl_difference"]) == pytest.approx(
        float(ours["zsl"]) - float(reference["zsl"])
    )
    assert float(ours["zsl_difference_half"]) > 0
    assert reference["zsl_difference"] == ""
    stored = load_run(out / "cells" / "fedzsl--1").result
    assert float(ours["bytes"]) == (stored["bytes_up"] + stored["bytes_down"]) * stored["rounds"]
    assert float(ours["seconds"]) > 0
    page = (out / "leaderboard.html").read_text("utf-8")
    assert page.count("<tr") == 7
    assert page.count("<select") == 2  # method and condition
    assert (out / "leaderboard.md").read_text("utf-8").count("\n| gaussian |") == 3
    assert (out / "leaderboard.tex").read_text("utf-8").count(r"\\") == 7


def test_later_seeds_train_with_what_the_first_chose(small):
    chosen = load_run(small.out / "cells" / "fedzsl--0").result["chosen_on_validation"]
    assert len(chosen["tried"]) == 2
    later = load_run(small.out / "cells" / "fedzsl--1").experiment
    assert later.method.lr == chosen["settings"]["method.lr"]
    assert (later.strategy.rounds, later.evaluation.factor) == (chosen["round"], chosen["factor"])
    assert (later.evaluation.selection, later.run.seed) == ("last", 1)


def test_without_examples_the_measured_half_is_answered_as_predict_does(small):
    one = load_run(small.out / "cells" / "gaussian--0")
    benchmark = DigitPairs.load(one.experiment.data, 0)
    _, asked = halves(benchmark, 0, 1)
    answers = [ranking[0].name for ranking in one.predict(benchmark.features[asked], top=1)]
    right = np.array(answers) == np.array(benchmark.space.names)[benchmark.labels[asked]]
    classes = np.unique(benchmark.labels[benchmark.test_unseen])
    expected = [100 * right[benchmark.labels[asked] == c].mean() for c in classes]
    assert measured(one, [0], False)["0"]["unseen"] == pytest.approx(expected)


def test_halves_share_no_sample_and_cover_the_tests():
    benchmark = DigitPairs.load(DigitPairs.Settings(train_per_class=2, test_per_class=6), 0)
    shown, asked = halves(benchmark, 3, 3)
    assert sorted([*shown, *asked]) == sorted([*benchmark.test_unseen, *benchmark.test_seen])
    assert np.bincount(benchmark.labels[shown]).tolist() == [3] * 100
    with pytest.raises(
        DataError, match=r"half of the test samples of '0[0-9]' are 3, fewer than 4 examples"
    ):
        halves(benchmark, 3, 4)


def test_no_time_left_starts_nothing(small, tmp_path):
    assert not run_bench(small.sweep, small.bench, tmp_path / "out", small.sweep.cells, budget=-1.0)
    assert {line.status for line in lines(small.sweep, small.bench, tmp_path / "out")} == {
        "not run"
    }
    other, _ = read_bench(small.out.with_name("tiny.toml"), {"partition.clients": 2})
    with pytest.raises(RunDirectoryError, match=r"gaussian: partition\.clients was 4, is 2\)"):
        run_bench(other, small.bench, tmp_path / "out", other.cells)


@pytest.mark.slow
def test_any_executor_runs_the_bench_to_the_same_results(small, tmp_path):
    out, said = tmp_path / "out", []
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        assert not run_bench(
            small.sweep, small.bench, out, small.sweep.cells, say=said.append, executor=executor
        )
    assert sum(words.count(": ZSL") for words in said) == 4
    for path in (small.out / "measured").iterdir():
        one, single = (
            json.loads((folder / "measured" / path.name).read_text()) for folder in (out, small.out)
        )
        assert one | {"seconds": None} == single | {"seconds": None}
    for path in small.out.rglob("model.safetensors"):
        assert (out / path.relative_to(small.out)).read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_a_cell_that_fails_leaves_the_others(small, tmp_path, monkeypatch):
    sweep, bench, out = small.sweep, small.bench, tmp_path / "out"

    def broken(experiment, path, resume=False):
        if experiment.method.name == "gaussian":
            raise ZeroDivisionError("no")
        return run(experiment, path, resume=resume)

    monkeypatch.setattr(module, "run", broken)
    assert run_bench(sweep, bench.model_copy(update={"seeds": 1}), out, sweep.cells)
    found = [(line.status, line.problem) for line in lines(sweep, bench, out)]
    assert found == [("failed", "ZeroDivisionError: no")] * 3 + [("partial", "")] * 3
    more = bench.model_copy(
        update={"seeds": 1, "examples": [0, 2]}
    )  # one more condition, of a run that is there
    assert lines(sweep, more, out)[4].status == "not run"
    assert run_bench(sweep, more, out, sweep.cells)
    assert lines(sweep, more, out)[4].status == "done"


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("validation_runs = 2", "validation_runs = 3", "bench-budget"),
        ('"method.lr" = [0.1, 0.5]', '"method.lr" = [0.1]', "bench-budget"),
        ("evaluation = { clients", 'evaluation = { selection = "last", clients', "experiment"),
        ("[axes.method.", "[axes.way.", "bench-method"),
        ('name = "fedavg"', 'name = "local"', "bench-models"),
        ("examples = [0, 1]", "examples = []", "experiment"),
        ("seeds = 2", 'seeds = 2\nreference = "ridge"', "bench-method"),
        ("validation_runs = 2", "validation_runs = 2\nunheard = 1", "experiment"),
        ("[bench]", "[table]", "experiment"),
        (TINY[: TINY.index("[experiment]")], 'title = "No bench"\n', "bench-table"),
    ],
)
def test_a_bench_that_is_not_tuned_alike_is_refused(tmp_path, old, new, code):
    assert old in TINY
    (tmp_path / "bad.toml").write_text(TINY.replace(old, new), "utf-8")
    with pytest.raises(ExperimentError) as refused:
        read_bench(tmp_path / "bad.toml")
    assert refused.value.code == code


def test_the_losses_of_distzsl_are_tuned_row_by_row():
    sweep, bench = read_bench(SHIPPED.with_name("losses.toml"))
    assert bench.reference == "attributes alone"
    assert [
        len([cell for cell in sweep.cells if cell.values["data"] == data])
        for data in sweep.axes["data"]
    ] == [6, 4]
    found = {
        cell.values["method"]: cell.experiment.method for cell in sweep.cells if cell.experiment
    }
    assert (found["w/ kl"].kl, found["w/ kl"].bilateral, found["DistZSL"].kl) == (10.0, 0.0, 10.0)


@pytest.mark.slow
def test_the_shipped_bench_gives_every_row_the_same_budget():
    sweep, bench = read_bench()
    assert {"gaussian", "ridge", "fedzsl", "distzsl", "clswgan"} <= set(sweep.axes["method"])
    assert sweep.axes["data"] == ("digit-pairs", "AWA1_LAMPERT", "CIFAR100_MBV2")
    assert (bench.examples, bench.pool, bench.seeds) == ([0, 1, 5], True, 3)
    assert all(isinstance(cell.experiment, Experiment) for cell in sweep.cells)
    photos, _ = read_bench(SHIPPED.with_name("photos.toml"))
    more = [*photos.cells, *read_sweep(SHIPPED.with_name("omniglot.toml")).cells]
    assert {cell.experiment.method.name for cell in more} == {
        "gaussian",
        "ridge",
        "fedzsl",
        "maml",
        "protonet",
    }


class TestInterval:
    def test_of_seeds_alone_is_students(self):
        """Classes that are all alike add nothing: 4.30 standard errors of three seeds."""
        each = [{"zsl": [v, v], "unseen": [v, v], "seen": [v, v]} for v in (50.0, 60.0, 70.0)]
        assert interval(each, (), "zsl") == Interval(
            60.0, pytest.approx(4.3027 * 10 / 3**0.5, rel=1e-4)
        )

    def test_of_classes_alone_is_that_of_their_mean(self):
        """Seeds that are all alike add nothing: the jackknife of a mean is its standard error."""
        values = [10.0, 20.0, 60.0]
        half = interval([{"zsl": values, "unseen": values, "seen": values}] * 2, (), "zsl").half
        assert half == pytest.approx(4.3027 * np.std(values, ddof=1) / 3**0.5, rel=1e-4)

    def test_of_a_difference_pairs_classes(self):
        ours = {"zsl": [10.0, 90.0], "unseen": [10.0, 90.0], "seen": [50.0, 50.0]}
        theirs = {name: [v - 3.0 for v in values] for name, values in ours.items()}
        found = interval([ours] * 3, [theirs] * 3, "zsl")
        assert found == Interval(pytest.approx(3.0), pytest.approx(0.0, abs=1e-9))

    def test_of_one_seed_is_none(self):
        one = {"zsl": [10.0, 90.0], "unseen": [20.0, 40.0], "seen": [60.0, 60.0]}
        assert interval([one], (), "gzsl_harmonic").half is None
        assert number(one, "gzsl_harmonic") == 40.0

    def test_of_the_harmonic_mean_leaves_out_classes_of_both_kinds(self):
        """Seen classes that are all alike add nothing: what is left is a slow jackknife over the
        unseen ones.
        """
        one = {"zsl": [0.0] * 3, "unseen": [20.0, 40.0, 60.0], "seen": [60.0, 60.0]}
        without = [2 * u * 60 / (u + 60) for u in (50.0, 40.0, 30.0)]
        expected = (2 / 3 * sum((h - np.mean(without)) ** 2 for h in without)) ** 0.5
        half = interval([one] * 2, (), "gzsl_harmonic").half
        assert half == pytest.approx(3.1824 * expected, rel=1e-3)  # t with 2 + 1 degrees of freedom
