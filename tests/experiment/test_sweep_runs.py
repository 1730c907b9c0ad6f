"""Sweeps in real processes: in parallel, killed, resumed, with cells that fail in every way."""

import csv
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from fedunseen.core import registry
from fedunseen.core.errors import RunDirectoryError
from fedunseen.core.toml import toml_text
from fedunseen.experiment import assemble
from fedunseen.pages.report.sweep_page import write_sweep_report
from fedunseen.research.sweep import read_sweep, rows, run_sweep, runner
from processes import descendants, environment, is_running, until
from refusals import message_of

pytestmark = pytest.mark.slow

PLUGIN = """
import os, signal

from fedunseen import register
from fedunseen.methods.fedzsl import FedZSL


@register("method", "raises")
class Raises(FedZSL):
    def phases(self):
        return 1 // 0


@register("method", "killed")
class Killed(FedZSL):
    def phases(self):
        os.kill(os.getpid(), signal.SIGKILL)
"""

SWEEP = """
title = "A small one"
base = "base.toml"
seeds = 2
experiment.strategy.rounds = 15
experiment.evaluation = { selection = "last", clients = false, embedding = false }
[axes.what]
"slow" = { method = { lr = 0.01 } }
"fast" = { method = { lr = 0.1 } }
"last" = { method = { lr = 0.05 } }
[[figures]]
lines = ["what"]
"""

BROKEN = """
"killed" = { method.name = "killed" }
"raises" = { method.name = "raises" }
"good" = { strategy = { rounds = 1 } }
"""


@pytest.fixture(scope="module", autouse=True)
def one_core():
    with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):
        yield


@pytest.fixture(scope="module")
def file(tree, tmp_path_factory):
    path = tmp_path_factory.mktemp("sweep") / "small.toml"
    path.write_text(SWEEP, "utf-8")
    path.with_name("base.toml").write_text(toml_text(tree), "utf-8")
    return path


@pytest.fixture(scope="module")
def changed(file):
    """Read the sweep with another text in place of one of its own, and with more ``settings``
    before all others.
    """

    def change(old, new, settings=""):
        path = file.with_name("changed.toml")
        path.write_text(settings + file.read_text("utf-8").replace(old, new), "utf-8")
        return read_sweep(path)

    return change


def completed(file, out, **more):
    """Run what is left of the sweep; return the rows, results.csv without seconds, and what else
    may not differ.
    """
    sweep = read_sweep(file)
    found = run_sweep(sweep, out, jobs=1, **more)
    write_sweep_report(sweep, found, out)
    with open(out / "results.csv", newline="", encoding="utf-8") as table:
        lines = [
            {key: value for key, value in line.items() if key != "seconds"}
            for line in csv.DictReader(table)
        ]
    kept = {
        name: (out / name).read_bytes() for name in ("results.md", "results.html", "sweep.json")
    }
    models = {
        str(path.relative_to(out)): path.read_bytes() for path in out.rglob("model.safetensors")
    }
    assert len(models) == 6  # three cells, two seeds
    return found, (lines, kept, models)


@pytest.fixture(scope="module")
def whole(file, tmp_path_factory):
    """The sweep, run one cell after the other without any disturbance: its folder, rows and
    results.
    """
    out = tmp_path_factory.mktemp("whole") / "out"
    return out, *completed(file, out)


def test_cells_fail_alone_and_say_why(changed, tmp_path, monkeypatch):
    (tmp_path / "fragile.py").write_text(PLUGIN)
    monkeypatch.setenv(
        "FEDUNSEEN_PLUGINS", str(tmp_path / "fragile.py")
    )  # child processes load it too
    monkeypatch.setitem(registry._REGISTERED, "method", {})
    sweep, out, heard = changed("[[fig", BROKEN + "[[fig"), tmp_path / "out", []
    found = run_sweep(
        sweep, out, cells=sweep.cells[3:], jobs=1, on_cell=lambda row, left: heard.append(left)
    )
    *_, killed, raises, good = found
    assert [row.status for row in found] == ["not run"] * 3 + ["failed"] * 2 + ["done"]
    assert heard == [2, 1, 0]
    assert (
        killed.problem == "its process was ended by SIGKILL; perhaps memory ran out: try --jobs 1"
    )
    assert raises.problem == "ZeroDivisionError: integer division or modulo by zero"
    assert "return 1 // 0" in json.loads((out / "failed" / "raises.json").read_text())["traceback"]
    assert good.mean["zsl"] > 0


def times(out):
    """Return when the results of cells were written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in out.glob("cells/*/result.json")}


def start(file, out, jobs):
    """Run the sweep in a process of its own."""
    words = [
        sys.executable,
        "-m",
        "fedunseen",
        "sweep",
        str(file),
        "--out",
        str(out),
        "--jobs",
        jobs,
    ]
    return subprocess.Popen(
        words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_any_executor_runs_the_cells_to_the_same_results(file, whole, tmp_path):
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        assert completed(file, tmp_path / "out", executor=executor)[1] == whole[2]


def test_an_executor_whose_worker_dies_lists_its_cells_and_goes_on_after_it(
    file, whole, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    sweep = read_sweep(file)

    def divided(task):
        return 1 // 0

    class Dies(ThreadPoolExecutor):
        def submit(self, fn, task):
            return super().submit(divided if task["cell"] == "fast" else fn, task)

    with Dies(1) as executor:
        found = {row.cell.key: row for row in run_sweep(sweep, out, executor=executor)}
    assert {key: row.status for key, row in found.items()} == {
        "slow": "done", "fast": "failed", "last": "done",
    }  # fmt: skip
    assert "its worker has failed" in found["fast"].problem
    before = times(out)
    assert completed(file, out, resume=True)[1] == whole[2]
    assert before.items() <= times(out).items()  # not run again


def test_a_second_process_is_kept_out(changed, tmp_path):
    sweep = changed("rounds = 15", "rounds = 1")
    out = tmp_path / "out"

    def on_cell(row, left):
        with pytest.raises(RunDirectoryError, match="in use by another process"):
            run_sweep(sweep, out, resume=True, jobs=1)

    assert [row.status for row in run_sweep(sweep, out, jobs=1, on_cell=on_cell)] == ["done"] * 3


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_a_parallel_sweep_that_is_killed_resumes_to_the_same_results(file, whole, tmp_path):
    out = tmp_path / "out"
    process = start(file, out, "2")
    metrics = out / "cells" / "last" / "seed-0" / "metrics.jsonl"  # one of the others is done
    until(lambda: process.poll() is not None or (metrics.exists() and metrics.stat().st_size))
    workers = descendants(process.pid)
    process.kill()
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (-signal.SIGKILL, ""), stderr
    assert len(workers) >= 2
    until(lambda: not any(map(is_running, workers)))
    statuses, before = {row.cell.key: row.status for row in rows(read_sweep(file), out)}, times(out)
    assert statuses["last"] == "not run"
    assert before.keys() == {key for key, status in statuses.items() if status == "done"} != set()
    assert completed(file, out, resume=True)[1] == whole[2]
    assert before.items() <= times(out).items()  # not run again


def test_a_directory_that_holds_something_else_is_refused_and_what_is_shown_may_change(
    file, changed, whole, tmp_path
):
    out, found, _ = whole
    sweep, resume = read_sweep(file), {"resume": True}
    before = {path: path.read_bytes() for path in out.glob("*.*") if path.is_file()}
    for folder, text in (("mine", "thesis.txt"), ("half", "sweep.json")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / text).write_text('{"cells": [')
    (tmp_path / "file").write_text("")

    for given, path, more, sentence in (
        (sweep, out, {}, " already holds a sweep: add --resume to continue with it"),
        (read_sweep(file, overrides={"strategy.rounds": 16}), out, resume,
         " holds another sweep (slow: strategy.rounds was 15, is 16): choose another --out, or "
         "resume it with "),
        (changed('"last" =', '"latest" ='), out, resume, " holds another sweep (it has the cell "
                                                         "last): "),
        (changed("[[fig", '"more" = {}\n[[fig'), out, resume, " holds another sweep (it lacks the "
                                                              "cell more): "),
        (sweep, tmp_path / "mine", {}, " exists and is not a sweep's directory: choose another "
                                       "--out"),
        (sweep, tmp_path / "mine", resume, " exists and is not a sweep's directory: choose another "
                                           "--out"),
        (sweep, tmp_path / "half", resume, f"{os.sep}sweep.json is damaged: run the sweep again in "
                                           "another --out"),
        (sweep, tmp_path / "file", {}, " exists and is not a sweep's directory: choose another "
                                       "--out"),
    ):  # fmt: skip
        assert f"{path}{sentence}" in message_of(
            run_sweep, given, path, error=RunDirectoryError, **more
        )
    assert before == {path: path.read_bytes() for path in out.glob("*.*") if path.is_file()}

    sweep = changed("[[fig", '[table]\nmetrics = ["zsl"]\n[[fig')
    assert run_sweep(sweep, out, resume=True, cells=[sweep.cells[0]])[0].mean == found[0].mean


def test_a_cell_that_cannot_be_built_refuses_the_sweep_before_anything_is_written(
    changed, tmp_path
):
    sweep = changed("[[fig", '"no groups" = { method = { name = "distzsl" } }\n[[fig')
    sentence = message_of(
        run_sweep, sweep, tmp_path / "out", cells=[sweep.cells[0], sweep.cells[-1]], jobs=1
    )
    assert sentence.startswith(
        "changed: no groups: method.decorrelation needs every attribute in a group"
    )
    assert not (tmp_path / "out").exists()


def test_what_is_built_decides_which_cells_are_refused(changed, tmp_path, monkeypatch):
    """A combination that only the data refuse is listed as refused; the data are read once for all
    cells.
    """
    loaded = mock.Mock(wraps=assemble.load_data)
    monkeypatch.setattr(runner, "load_data", loaded)
    sweep = changed(
        "[[fig", '"maps" = { method = { name = "apn" } }\n[[fig', "skip_refused = true\n"
    )
    assert all(cell.refused is None for cell in sweep.cells)  # nothing is known before the data are
    assert list(runner._check_cells(sweep, sweep.cells)) == ["maps"]
    assert loaded.call_count == 2  # for vectors, and for what the network on maps takes
    loaded.reset_mock()
    row = run_sweep(sweep, tmp_path / "out", cells=[sweep.cells[-1]])[-1]
    assert (row.status, "method.name = 'apn'" in row.problem) == ("refused", True)
    assert not (tmp_path / "out" / "cells").exists()
    run_sweep(sweep, tmp_path / "out", resume=True, cells=[sweep.cells[-1]])
    assert loaded.call_count == 1  # a refused cell is not built again


def test_cores_are_shared_unless_the_user_has_said_how_many_threads(monkeypatch):
    monkeypatch.setattr(runner, "_cores", lambda: 8)
    with runner._threads(2):
        assert os.environ["OMP_NUM_THREADS"] == "1"
    monkeypatch.delenv("OMP_NUM_THREADS")
    for jobs, threads in ((2, "4"), (3, "2"), (16, "1")):
        with runner._threads(jobs):
            assert os.environ["OMP_NUM_THREADS"] == threads
        assert "OMP_NUM_THREADS" not in os.environ
