"""Drawn class splits: what a row was given by its bench, and which classes are unseen."""

import csv
import sys

import numpy as np
import pytest

import splits
from fedunseen.data.benchmarks.digit_pairs import VALIDATION_SHIFTS, DigitPairs, class_space
from fedunseen.research.papers.bench import read_bench


def test_a_row_gets_the_values_that_its_bench_printed(tmp_path):
    (tmp_path / "bench.csv").write_text(
        "data,method,condition,settings\n"
        "AWA1_LAMPERT,distzsl,0,method.lr=0.1 strategy.rounds=3.0 evaluation.factor=0.25\n"
        "CIFAR100_MBV2,distzsl,0,method.lr=0.00333 method.optimiser=adam"
        " strategy.rounds=11.0 evaluation.factor=0.49615829778260256\n",
        "utf-8",
    )
    assert splits.chosen("distzsl", "CIFAR100_MBV2", tmp_path / "bench.csv") == {
        "method.lr": 0.00333,
        "method.optimiser": "adam",
        "strategy.rounds": 11,
        "evaluation.factor": 0.49615829778260256,
    }


def test_the_shipped_bench_gives_a_row_its_rounds_and_its_offset():
    values = splits.chosen("distzsl", "CIFAR100_MBV2")
    assert values["method.optimiser"] == "adam"
    assert isinstance(values["strategy.rounds"], int)
    assert 0 < values["evaluation.factor"] < 5


TINY = """
title = "Two closed forms"
data = ["pairs"]

[bench]
validation_runs = 2
reference = "gaussian"

[experiment]
partition = { kind = "pccd", clients = 3 }
evaluation = { clients = false }

[axes.method.gaussian]
method = { name = "gaussian" }
evaluation.choose = { "method.shrinkage" = [0.1, 0.5] }

[axes.method.ridge]
method = { name = "ridge" }
evaluation.choose = { "method.log_gamma" = [-1.0, 1.0] }

[data_sets.pairs]
note = "few samples"
data = { name = "digit-pairs", train_per_class = 8, test_per_class = 5 }
"""


@pytest.mark.slow
def test_both_rows_of_a_file_choose_on_the_published_split_and_train_on_the_drawn_one(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "tiny.toml").write_text(TINY, "utf-8")
    words = (
        f"ridge gaussian --data pairs --splits 1 --file {tmp_path}/tiny.toml --out {tmp_path}/out"
    )
    monkeypatch.setattr(sys, "argv", ["splits.py", *words.split()])
    splits.main()
    printed = capsys.readouterr().out
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines() if line[0] == "|"]
    published, drawn = (
        [[float(value) for value in cell.split(";")] for cell in row[1:]] for row in rows[2:4]
    )
    assert published != drawn
    gain = np.mean([gaussian[0] - ridge[0] for ridge, gaussian in (published, drawn)])
    assert f"gaussian less ridge, ZSL: {gain:+.1f} ±" in printed
    for k, unseen in ((0, "03"), (1, f"{splits.unseen_shifts(1)[0]:02d}")):
        with open(
            tmp_path / "out" / f"pairs--ridge--{k}" / "classes.csv", encoding="utf-8"
        ) as file:
            kinds = {row["name"]: row["split"] for row in csv.DictReader(file)}
        assert kinds[unseen] == "unseen"
    splits.main()
    assert capsys.readouterr().out == printed


@pytest.mark.slow
def test_no_unseen_shift_of_a_drawn_split_was_a_validation_shift_and_no_source_digit_leaks():
    drawn = [splits.unseen_shifts(k) for k in range(1, 11)]
    assert len(set(drawn)) == 10
    assert (3, 7) not in drawn
    assert not {shift for pair in drawn for shift in pair} & set(VALIDATION_SHIFTS)
    sweep, _ = read_bench()
    data = next(cell.experiment for cell in sweep.cells if cell.values["data"] == "digit-pairs")
    published = DigitPairs.load(data.data, 0)
    other = splits.drawn(data, published, 1)
    unseen = other.labels[other.test_unseen]
    assert {int(shift) for shift in (unseen - unseen // 10) % 10} == set(drawn[0])
    assert not set(other.train) & {*other.test_seen, *other.test_unseen}
    # the images of a class that is seen in both splits are the same, so tests keep their sources
    both = np.intersect1d(other.space.seen, published.space.seen)
    rows = [one.train[np.isin(one.labels[one.train], both)] for one in (other, published)]
    np.testing.assert_array_equal(other.features[rows[0]], published.features[rows[1]])
    assert len(class_space(drawn[0], ()).validation) == 0
