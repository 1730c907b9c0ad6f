"""``fedunseen sweep``, ``sweeps`` and ``bench``."""

import csv
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from fedunseen.research.cli.sweep import seconds_of
from fedunseen.research.sweeps import sweep_names
from processes import environment, until

SWEEP = """
title = "Two rates"
base = "small.toml"
[experiment]
evaluation = { selection = "last", clients = false, theory = false, embedding = false }
[axes]
lr = { key = "method.lr", values = [0.05, 0.1] }
"""


@pytest.fixture
def two(small, monkeypatch):
    """A sweep file of two cells on a small benchmark."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = small.with_name("two.toml")
    path.write_text(SWEEP, "utf-8")
    return path


@pytest.mark.slow
def test_a_sweep_runs_and_is_told_on_both_streams(works, two, tmp_path):
    out = tmp_path / "deep" / "out"
    words = "sweep", two, "--out", out, "--only", "lr=0.1", "--json"
    done = works(*words)
    not_run, row = done.answer["cells"]
    expected = {
        "sweep": "two",
        "out": str(out),
        "report": str(out / "results.html"),
        "cells": [not_run, row],
    }
    assert done.answer == {**expected, "done": 1, "failed": 0, "refused": 0, "not_run": 1}
    assert (not_run["values"], not_run["status"], row["values"]) == (
        {"lr": "0.05"},
        "not run",
        {"lr": "0.1"},
    )
    result = json.loads((out / row["run"] / "result.json").read_text())
    assert {key: row[key] for key in ("zsl", "gzsl_seen")} == {
        key: result[key] for key in ("zsl", "gzsl_seen")
    }
    said = done.err.splitlines()
    assert said[0].startswith(f"0.1: ZSL {row['zsl']:.1f}  H {row['gzsl_harmonic']:.1f}  (")
    assert said[1:] == [
        f"sweep:  {out}",
        f"table:  {out / 'results.csv'}",
        f"report: {out / 'results.html'}",
    ]
    with open(out / "results.csv", newline="", encoding="utf-8") as file:
        assert [float(line["zsl"]) for line in csv.DictReader(file) if line["zsl"]] == [row["zsl"]]
    again = works(*words, "--resume")
    assert (again.out, again.err.splitlines()) == (done.out, said[1:])  # nothing was run


@pytest.mark.slow
def test_cells_that_fail_end_with_code_1_and_their_reason_once(command, two, tmp_path):
    two.write_text(SWEEP.replace("[0.05, 0.1]", "[1e25, 1e30]"), "utf-8")
    done = command("sweep", two, "--out", tmp_path / "out", "--jobs", "1", "--json")
    assert (done.code, done.answer["failed"]) == (1, 2)
    *_, reason, last = done.err.splitlines()
    assert last == "2 of 2 cells failed; with --resume they are tried again"
    assert reason.startswith("failed: 1e+25; 1e+30: ")
    assert "not finite" in reason


def test_a_dry_run_lists_the_cells_and_writes_nothing(command, two, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert command("sweep", two, "--dry-run") == (
        0,
        "0.05\n0.1\n",
        "2 cells; 2 runs, seeds counted\n",
    )
    assert command("sweep", two, "--dry-run", "--only", "lr=0.1", "--json").answer == {
        "sweep": "two", "cells": [{"values": {"lr": "0.1"}, "folder": "0.1", "refused": None}],
    }  # fmt: skip
    assert sorted(tmp_path.rglob("*")) == before


def test_the_shipped_sweeps_are_listed_with_their_data(command):
    listed = re.findall(r"^(\S+): .*(?:\n    --data (\S.*))?$", command("sweeps").out, re.MULTILINE)
    assert [name for name, _ in listed] == sweep_names()
    few_shot = {name for name in sweep_names() if name.startswith("fedfsl-")}
    without = {name for name, sets in listed if "digit-pairs" not in sets}
    assert without == {
        "fzsl-table5",
        *few_shot,
    }  # the first compares networks that make the features
    assert {name for name, sets in listed if not sets} == {"fedfsl-fig6", "fedfsl-mi"}


@pytest.mark.slow
def test_an_interrupt_leaves_a_sweep_that_can_be_resumed(two, tmp_path, own_cache):
    out = tmp_path / "out"
    words = (
        "-m",
        "fedunseen",
        "sweep",
        two,
        "--set",
        "strategy.rounds=5000",
        "--out",
        out,
        "--jobs",
        "1",
    )
    process = subprocess.Popen(
        [sys.executable, *words], env=environment() | {"FEDUNSEEN_CACHE": str(own_cache)}, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # What runs in the background of a shell is started with interrupts ignored, and so are its
        # children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    metrics = out / "cells" / "0.05" / "metrics.jsonl"
    until(lambda: metrics.exists() and metrics.stat().st_size, needed=[process])
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    stdout, stderr = process.communicate(timeout=240)
    assert (process.returncode, stdout) == (130, "")
    assert stderr == f"interrupted: continue with the same command and --out {out} --resume\n"
    assert (out / "results.html").exists()
    assert not (out / "failed").exists()
    assert not metrics.with_name("result.json").exists()


BENCH = """
title = "One method"
[bench]
validation_runs = 2
seeds = 1
examples = [0]
pool = false
[experiment]
data = { name = "digit-pairs", train_per_class = 4, test_per_class = 4 }
partition = { kind = "pccd", clients = 4 }
evaluation = { clients = false, embedding = false }
[axes.method.ridge]
method = { name = "ridge" }
evaluation.choose = { "method.log_gamma" = [-1.0, 0.0] }
"""


@pytest.mark.slow
def test_the_command_runs_and_prints_the_rows(works, tmp_path):
    (tmp_path / "one.toml").write_text(BENCH, "utf-8")
    words = "bench", tmp_path / "one.toml", "--out", tmp_path / "out", "--json"
    assert [row["status"] for row in works(*words, "--budget", "0s").answer["rows"]] == ["not run"]
    done = works(*words)
    assert [row["status"] for row in done.answer["rows"]] == ["done"]
    assert "1 of 1 rows measured" in done.err
    assert (tmp_path / "out" / "leaderboard.html").exists()


def test_a_budget_is_read_in_its_unit():
    assert (seconds_of("90s"), seconds_of("1.5min"), seconds_of("2h"), seconds_of("")) == (
        90,
        90,
        7200,
        float("inf"),
    )
