"""``fedunseen bench``."""

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


def test_the_command_runs_and_prints_the_rows(works, tmp_path):
    (tmp_path / "one.toml").write_text(BENCH, "utf-8")
    words = "bench", tmp_path / "one.toml", "--out", tmp_path / "out", "--json"
    assert [row["status"] for row in works(*words, "--budget", "0s").answer["rows"]] == ["not run"]
    done = works(*words)
    assert [row["status"] for row in done.answer["rows"]] == ["done"]
    assert "1 of 1 rows measured" in done.err
    assert (tmp_path / "out" / "leaderboard.html").exists()


def test_a_budget_is_read_in_its_unit():
    assert (seconds_of("90s"), seconds_of("1.5min"), seconds_of("2h"), seconds_of("")) == (90, 90, 7200, float("inf"))
