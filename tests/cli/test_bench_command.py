"""``fedunseen bench``."""

import json

import pytest

from fedunseen.cli.sweep import seconds_of

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


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "one.toml"
    path.write_text(BENCH, "utf-8")
    return path


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--budget", "2 days"], "--budget 2 days: write a number and s, min or h, for example 2h"),
        (["--only", "method"], "--only method: write it as AXIS=VALUE, for example --only method=distzsl"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_written(refused, file, tmp_path, arguments, sentence):
    assert refused("bench", file, "--out", tmp_path / "out", *arguments) == sentence
    assert not (tmp_path / "out").exists()


def test_the_command_runs_and_prints_the_rows(command, file, tmp_path):
    done = command("bench", file, "--out", tmp_path / "out", "--budget", "0s", "--json")
    assert done.code == 0, done.err
    assert [row["status"] for row in json.loads(done.out)["rows"]] == ["not run"]
    done = command("bench", file, "--out", tmp_path / "out", "--json")
    assert done.code == 0, done.err
    assert [row["status"] for row in json.loads(done.out)["rows"]] == ["done"]
    assert "1 of 1 rows measured" in done.err
    assert (tmp_path / "out" / "leaderboard.html").exists()


def test_a_budget_is_read_in_its_unit():
    assert (seconds_of("90s"), seconds_of("1.5min"), seconds_of("2h"), seconds_of("")) == (90, 90, 7200, float("inf"))
