"""``fedunseen sweep`` and ``fedunseen sweeps``."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from fedunseen.core.presets import sweep_names
from processes import environment

pytestmark = pytest.mark.slow

SWEEP = """
title = "Two rates"
base = "small.toml"

[experiment.strategy]
rounds = {rounds}

[experiment.evaluation]
selection = "last"
clients = false
theory = false
embedding = false

[axes]
lr = {{ key = "method.lr", values = [0.05, 0.1] }}
"""


@pytest.fixture
def two(small, monkeypatch):
    """A sweep file of two cells on a small benchmark."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = small.with_name("two.toml")
    path.write_text(SWEEP.format(rounds=2), "utf-8")
    return path


def test_a_sweep_runs_and_is_told_on_both_streams(command, two, tmp_path):
    out = tmp_path / "deep" / "out"
    done = command("sweep", two, "--out", out, "--only", "lr=0.1", "--json")
    assert done.code == 0, done.err
    assert done.out.count("\n") == 1
    answer = json.loads(done.out)
    assert (answer["sweep"], answer["out"], answer["report"]) == ("two", str(out), str(out / "results.html"))
    assert (answer["done"], answer["failed"], answer["refused"], answer["not_run"]) == (1, 0, 0, 1)
    not_run, row = answer["cells"]
    assert (not_run["values"], not_run["status"], row["values"]) == ({"lr": "0.05"}, "not run", {"lr": "0.1"})
    result = json.loads((out / row["run"] / "result.json").read_text())
    assert {key: row[key] for key in ("zsl", "gzsl_seen")} == {key: result[key] for key in ("zsl", "gzsl_seen")}
    said = done.err.splitlines()
    assert said[0].startswith(f"0.1: ZSL {row['zsl']:.1f}  H {row['gzsl_harmonic']:.1f}  (")
    assert said[1:] == [f"sweep:  {out}", f"table:  {out / 'results.csv'}", f"report: {out / 'results.html'}"]
    with open(out / "results.csv", newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [float(line["zsl"]) for line in lines if line["zsl"]] == [row["zsl"]]
    again = command("sweep", two, "--out", out, "--only", "lr=0.1", "--resume", "--json")
    assert (again.code, again.out) == (0, done.out)
    assert again.err.splitlines() == said[1:]  # nothing was run


def test_cells_that_fail_end_with_code_1_and_their_reason_once(command, two, tmp_path):
    two.write_text(two.read_text("utf-8").replace("[0.05, 0.1]", "[1e25, 1e30]"), "utf-8")
    done = command("sweep", two, "--out", tmp_path / "out", "--jobs", "1", "--json")
    assert done.code == 1
    assert json.loads(done.out)["failed"] == 2
    said = done.err.splitlines()
    assert said[-1] == "2 of 2 cells failed; with --resume they are tried again"
    assert said[-2].startswith("failed: 1e+25; 1e+30: ")
    assert "not finite" in said[-2]


def test_a_dry_run_lists_the_cells_and_writes_nothing(command, two, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    done = command("sweep", two, "--dry-run")
    assert (done.code, done.out) == (0, "0.05\n0.1\n")
    assert done.err == "2 cells; 2 runs, seeds counted\n"
    result = json.loads(command("sweep", two, "--dry-run", "--only", "lr=0.1", "--json").out)
    assert result == {"sweep": "two", "cells": [{"values": {"lr": "0.1"}, "folder": "0.1", "refused": None}]}
    assert sorted(tmp_path.rglob("*")) == before


def test_the_shipped_sweeps_are_listed_with_their_data(command):
    lines = command("sweeps").out.splitlines()
    assert [line.partition(":")[0] for line in lines[::2]] == sweep_names()
    assert all(line.startswith("    --data ") for line in lines[1::2])
    without = {name for name, line in zip(sweep_names(), lines[1::2], strict=True) if "digit-pairs" not in line}
    few_shot = {name for name in sweep_names() if name.startswith("fedfsl-")}
    assert without == {"fzsl-table5", *few_shot}  # the first compares networks that make the features


def test_an_interrupt_leaves_a_sweep_that_can_be_resumed(small, two, tmp_path, own_cache):
    two.write_text(SWEEP.format(rounds=5000), "utf-8")
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "fedunseen", "sweep", str(two), "--out", str(out), "--jobs", "1"],
        env=environment() | {"FEDUNSEEN_CACHE": str(own_cache)}, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # What runs in the background of a shell is started with interrupts ignored, and so are its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    metrics = out / "cells" / "0.05" / "metrics.jsonl"
    limit = time.monotonic() + 300
    while not (metrics.exists() and metrics.stat().st_size):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    stdout, stderr = process.communicate(timeout=240)
    assert (process.returncode, stdout) == (130, "")
    assert stderr == f"interrupted: continue with the same command and --out {out} --resume\n"
    assert (out / "results.html").exists()
    assert not (out / "failed").exists()
    assert not (out / "cells" / "0.05" / "result.json").exists()
