"""``fedunseen run``, ``report`` and ``estimate``; how long things take is not asserted."""

import json
import re
import subprocess
import sys
from collections import defaultdict

import numpy as np
import pytest

from fedunseen import Experiment, run
from fedunseen.cli import progress
from fedunseen.cli.console import LEGEND
from fedunseen.core import registry
from fedunseen.experiment.encode_features import encode
from fedunseen.experiment.estimate import estimate
from fedunseen.federation.run_directory import RunDirectory
from processes import environment, sets
from small_runs import TRAINED


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
    assert said[1:4] == LEGEND.splitlines()
    assert said[4].startswith("There are few test samples. The 95 % intervals are: unseen ")
    warnings = [f"warning: {each['what']} {each['remedy']}" for each in result["warnings"]]
    assert said[5:-2] == [*result["summary"]["text"], *warnings]  # no progress: no one watches
    assert re.fullmatch(
        r"ZSL [\d.]+ %   GZSL unseen [\d.]+ %  seen [\d.]+ %  harmonic [\d.]+ %  all [\d.]+ %",
        said[0],
    )
    assert said[-2:] == [f"run:    {out}", f"report: {out / 'report.html'}"]
    assert (out / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_an_interrupted_run_says_how_to_go_on(command, small, tmp_path, monkeypatch):
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


def test_a_run_that_diverged_with_finite_losses_warns_on_the_console_in_json_and_in_the_report(
    works, tmp_path
):
    """Of one round, so that no loss can be seen to grow: exit code 0, but nothing was learned."""
    settings = {**TRAINED, "method.lr": 20, "strategy.rounds": 1, "evaluation.clients": False}
    done = works("run", "digit-pairs", *sets(settings), "--out", tmp_path / "run", "--json")
    diverged = "warning: Training diverged: the cross-entropy"
    (said,) = (line for line in done.err.splitlines() if line.startswith(diverged))
    assert ", where guessing among 100 classes has 4.6. Set method.lr to a tenth" in said
    warning, *_ = done.answer["warnings"]
    assert warning["what"] in said
    assert warning["what"] in (tmp_path / "run" / "report.html").read_text("utf-8")


@pytest.mark.slow
def test_a_finished_run_says_the_same_when_resumed_and_its_report_is_written_again(
    works, refused, small, tmp_path
):
    page = tmp_path / "out" / "report.html"
    words = "run", small, "--out", page.parent, "--json"
    assert works(*words) == works(*words, "--resume")
    assert works("report", page.parent, "--json").answer == {
        "run": str(page.parent),
        "report": str(page),
    }
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
    more = {
        "privacy": {"epsilon": 3.14159},
        "dropped": {"4": "x"},
        "defence": {"dropped": {"1": "y", "4": "z"}},
    }
    assert (
        progress.state({**LINE, **more}) == "loss 1.250  ZSL 33.3  H 12.5  epsilon 3.14  2 left out"
    )


def test_progress_in_a_pipe_is_a_line_every_so_often(capsys):
    seconds = iter([0.0, 1.0, 19.0, 20.5, 20.5, 39.0, 41.0, 41.0])
    with progress.live_progress(lambda: next(seconds)) as hear:
        hear("training", 0, 5, None)
        for round in range(1, 6):
            hear("training", round, 5, LINE)
    lines = [f"training: round {n} of 5  loss 1.250  ZSL 33.3  H 12.5\n" for n in (3, 5)]
    assert tuple(capsys.readouterr()) == ("", "".join(lines))


@pytest.mark.slow
def test_a_preset_that_needs_the_user_s_data_runs_and_makes_its_report(works, tmp_path):
    small = {"data.train_per_class": 2, "data.test_per_class": 1, "evaluation.selection": "last"}
    encode(Experiment.load("digit-pairs-gaussian", small), tmp_path / "mat" / "MINE")
    settings = {
        "data.root": str(tmp_path / "mat"),
        "data.dataset": "MINE",
        "partition.clients": 2,
        "method.kl": 0,
    }
    words = *sets({**settings, "strategy.rounds": 1}), "--out", tmp_path / "out", "--json"
    assert works("run", "cub-fedzsl", *words).answer["rounds"] == 1
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize(
    "arguments", [["run"], ["nonsense"], ["run", "x", "--rounds", "3"], ["run", "x", "--out"]]
)
def test_a_command_line_that_is_none_has_code_2(command, arguments):
    done = command(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "error" in done.err.lower()


# What an estimate counts, against a run's own files

SMALL = {
    "data.train_per_class": 10,
    "data.test_per_class": 4,
    "strategy.rounds": 2,
    "run.device": "cpu",
}


@pytest.mark.slow
def test_what_travels_and_how_many_trainings_are_those_of_the_run(tmp_path):
    settings = {**SMALL, "evaluation.choose": {"method.kl": [0.0, 1.0, 3.0]}, "run.seeds": 2}
    variant = estimate(Experiment.load("digit-pairs", settings))
    assert variant["stages"] == 2 * (3 + 1)  # each seed: three to choose from, and the run itself
    per_round = variant["seconds_round"] + variant["seconds_evaluation"]
    clients = (
        2 * 2 * 10 * variant["seconds_evaluation"]
    )  # two seeds, two rounds, ten clients' own models
    assert variant["seconds_run"] == pytest.approx(8 * 2 * per_round + clients)
    done = run(
        Experiment.load("digit-pairs", {**SMALL, "evaluation.selection": "last"}), tmp_path / "run"
    )
    assert variant["parameters"] == sum(done.result["parameters"].values())
    line = done.metrics[0]
    assert variant["bytes_round"] == (line["bytes_down"] + line["bytes_up"]) // len(
        line["participants"]
    )
    assert (variant["device"], variant["device_bytes"]) == ("cpu", None)


def test_a_round_of_more_samples_is_estimated_from_the_same_batches(monkeypatch):
    """With a clock that counts its readings, time per sample is fixed, so that samples alone
    decide.
    """
    readings = iter(range(1000))
    monkeypatch.setattr("fedunseen.experiment.estimate._now", lambda on_gpu: float(next(readings)))
    one, three, half = (
        estimate(
            Experiment.load(
                "digit-pairs",
                {**SMALL, "strategy.local_epochs": epochs, "strategy.fraction": share},
            )
        )
        for epochs, share in ((1, 1.0), (3, 1.0), (1, 0.5))
    )
    assert three["seconds_round"] == pytest.approx(3 * one["seconds_round"])
    assert half["seconds_round"] == pytest.approx(one["seconds_round"] / 2)


@pytest.mark.slow
def test_the_command_says_it_in_five_lines_or_in_json(works):
    words = "estimate", "digit-pairs", *sets(SMALL)
    assert "4 trainings of 2 rounds" in works(*words, "--set", "run.seeds=2").out
    assert works(*words, "--json").answer["stages"] == 2


@pytest.mark.slow
def test_rounds_that_are_left_out_are_not_counted_as_measured(tmp_path):
    settings = {
        **SMALL,
        "strategy.rounds": 7,
        "evaluation.every": 3,
        "evaluation.selection": "last",
    }
    variant = estimate(Experiment.load("digit-pairs", settings))
    done = run(Experiment.load("digit-pairs", settings), tmp_path / "run")
    measured = sum("zsl" in line for line in done.metrics)
    assert measured == 4  # rounds 1, 3, 6 and 7
    measured += sum(len(line["clients"]["zsl"]) for line in done.metrics if "clients" in line)
    assert variant["seconds_run"] == pytest.approx(
        7 * variant["seconds_round"] + measured * variant["seconds_evaluation"]
    )


OWN = """
import fedunseen
from fedunseen.methods import FedZSL

@fedunseen.register("method", "own")
class Own(FedZSL):
    def loss(self, params, batch, context):
        {}
"""


@pytest.mark.parametrize("mode", ["batched", "one-at-a-time"])
@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            'return params["nope"], {}',
            "--plugin {}, line 8 fails (KeyError: 'nope'): fix that file; PYTHONDEVMODE=1",
        ),
        (
            "return None",
            "{}, line 7: a loss returns (loss, terms), a scalar tensor and a mapping of name -> "
            "tensor",
        ),
        (
            'return params["g.weight"], {}',
            "{}, line 7: a loss returns (loss, terms), a scalar tensor",
        ),
        (
            'return params["g.weight"].mean(), {"g": 1.0}',
            "{}, line 7: a loss returns (loss, terms), a scalar tensor",
        ),
    ],
)
def test_an_error_in_a_plugin_is_one_sentence_and_leaves_no_run(
    body, sentence, mode, refused, small, tmp_path
):
    file, out = tmp_path / "mine.py", tmp_path / "run"
    file.write_text(OWN.format(body))
    own = sets({"method.name": "own", "engine.mode": mode})
    assert refused("run", small, "--plugin", file, *own, "--out", out).startswith(
        sentence.format(file)
    )
    assert not out.exists()


@pytest.mark.slow
def test_a_run_of_a_plugin_asks_for_its_file(works, refused, small, tmp_path, monkeypatch):
    file, out, pool = tmp_path / "mine.py", tmp_path / "run", tmp_path / "pool.npy"
    file.write_text(OWN.format("return super().loss(params, batch, context)"))
    works("run", small, "--plugin", file, *sets({"method.name": "own"}), "--out", out)
    np.save(pool, np.load(tmp_path / "data" / "features.npz")["features"])
    sentence = "method.name: 'own' of this run comes from a plugin ({}): give the file with --plugin FILE or in"
    commands = [("predict", out, pool), ("forget", out, "--party", "0", "--out", tmp_path / "new")]
    for words in commands:
        monkeypatch.setattr(registry, "_REGISTERED", defaultdict(dict))
        monkeypatch.setattr(registry, "_LOADED", {})
        monkeypatch.delenv("FEDUNSEEN_PLUGINS")
        assert refused(*words).startswith(sentence.format(file))
        works(*words, "--plugin", file)
