"""``fedunseen run`` and ``fedunseen report``."""

import json
import re
import subprocess
import sys

import pytest

from fedunseen import Experiment
from fedunseen.cli import progress
from fedunseen.tools.encode import encode
from processes import TRAINED, environment, sets


@pytest.mark.slow
def test_the_real_command_prints_its_result_alone_on_standard_output(small, tmp_path):
    out = tmp_path / "deep" / "down"
    words = [sys.executable, "-m", "fedunseen", "run", small, "--out", out, "--json"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (done.stdout[-1], done.stdout.count("\n")) == ("\n", 1)
    result = json.loads(done.stdout)
    assert result.keys() >= {"zsl", "gzsl_unseen", "gzsl_seen", "gzsl_harmonic", "seconds"}
    assert (result["rounds"], result["run"]) == (2, str(out))
    assert result == json.loads((out / "result.json").read_text())
    said = done.stderr.splitlines()
    assert said[1:-2] == result["summary"]["text"]  # no progress where no one watches
    assert re.fullmatch(r"ZSL [\d.]+ %   GZSL unseen [\d.]+ %  seen [\d.]+ %  harmonic [\d.]+ %", said[0])
    assert said[-2:] == [f"run:    {out}", f"report: {out / 'report.html'}"]
    assert (out / "report.html").stat().st_size > 10_000


def test_resuming_a_finished_run_says_the_same_again(command, small, tmp_path):
    arguments = ("run", small, "--out", tmp_path / "out", "--json")
    assert command(*arguments) == command(*arguments, "--resume")


def test_an_interrupted_run_says_how_to_go_on(command, small, tmp_path, monkeypatch):
    from fedunseen.federation.run_directory import RunDirectory

    real = RunDirectory.save_checkpoint

    def interrupt(self, checkpoint):
        if checkpoint.round == 2:
            raise KeyboardInterrupt
        real(self, checkpoint)

    monkeypatch.setattr(RunDirectory, "save_checkpoint", interrupt)
    monkeypatch.chdir(tmp_path)
    said = "interrupted: continue with the same command and --out runs/small-seed0 --resume\n"
    assert command("run", "small.toml") == (130, "", said)
    monkeypatch.setattr(RunDirectory, "save_checkpoint", real)
    assert command("run", "small.toml", "--out", "runs/small-seed0", "--resume").code == 0


def test_a_run_that_diverged_with_finite_losses_warns_on_the_console_in_json_and_in_the_report(works, tmp_path):
    """Its loss falls, from hundreds of thousands to thousands: exit code 0, but nothing was learned."""
    settings = {**TRAINED, "method.lr": 20, "strategy.rounds": 4, "evaluation.clients": False}
    done = works("run", "digit-pairs", *sets(settings), "--out", tmp_path / "run", "--json")
    diverged = "warning: Training diverged: the cross-entropy"
    (said,) = (line for line in done.err.splitlines() if line.startswith(diverged))
    assert ", where guessing among 100 classes has 4.6. Set method.lr to a tenth" in said
    warning, *_ = done.answer["warnings"]
    assert warning["what"] in said
    assert warning["what"] in (tmp_path / "run" / "report.html").read_text("utf-8")


def test_report_names_the_page_and_one_that_cannot_be_written_is_one_sentence(refused, works, small, tmp_path):
    works("run", small, "--out", tmp_path / "out")
    page = tmp_path / "out" / "report.html"
    assert works("report", page.parent, "--json").answer == {"run": str(page.parent), "report": str(page)}
    page.unlink()
    page.mkdir()
    message = refused("report", page.parent)
    assert page.name in message
    assert message.endswith(" cannot be read or written (Is a directory): fix that and try again")


LINE = {"losses": {"loss": 1.25}, "zsl": 33.3, "gzsl_harmonic": 12.5}


def test_progress_is_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("TERM", "xterm")
    with progress.live_progress() as hear:
        hear("training", 0, 2, None)
        hear("training", 1, 2, LINE)
        hear("training", 2, 2, {**LINE, "losses": {}})
    shown = capsys.readouterr()
    assert shown.out == ""
    assert all(words in shown.err for words in ("training", "2/2", "ZSL 33.3  H 12.5"))
    more = {"privacy": {"epsilon": 3.14159}, "dropped": {"4": "x"}, "defence": {"dropped": {"1": "y", "4": "z"}}}
    assert progress.state({**LINE, **more}) == "loss 1.250  ZSL 33.3  H 12.5  epsilon 3.14  2 left out"


def test_progress_in_a_pipe_is_a_line_every_so_often(capsys):
    seconds = iter([0.0, 1.0, 19.0, 20.5, 20.5, 39.0, 41.0, 41.0])
    with progress.live_progress(lambda: next(seconds)) as hear:
        hear("training", 0, 5, None)
        for round in range(1, 6):
            hear("training", round, 5, LINE)
    lines = [f"training: round {n} of 5  loss 1.250  ZSL 33.3  H 12.5\n" for n in (3, 5)]
    assert tuple(capsys.readouterr()) == ("", "".join(lines))


def test_a_preset_that_needs_the_user_s_data_runs_and_makes_its_report(works, tmp_path):
    small = {"data.train_per_class": 2, "data.test_per_class": 1, "evaluation.selection": "last"}
    encode(Experiment.load("digit-pairs-gaussian", small), tmp_path / "mat" / "MINE")
    settings = {"data.root": str(tmp_path / "mat"), "data.dataset": "MINE", "partition.clients": 2, "method.kl": 0}
    words = *sets({**settings, "strategy.rounds": 1}), "--out", tmp_path / "out", "--json"
    assert works("run", "cub-fedzsl", *words).answer["rounds"] == 1
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize("arguments", [["run"], ["nonsense"], ["run", "x", "--rounds", "3"], ["run", "x", "--out"]])
def test_a_command_line_that_is_none_has_code_2(command, arguments):
    done = command(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "Error" in done.err
