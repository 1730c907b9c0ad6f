"""The manifest of a run records the command that was typed, and its pages print it."""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import fedunseen
from fedunseen import load_run
from fedunseen.cli.main import app
from fedunseen.core.command_line import command_line, without_secrets
from fedunseen.pages.report.card import model_card
from fedunseen.pages.report.page import write_report
from fedunseen.pages.report.reproducibility import shown_command
from processes import sets
from small_runs import CLOSED, experiment

RUN = ["run", "digit-pairs-gaussian", *sets(CLOSED), "--out", "my run"]


class ReachedError(Exception):
    """The command has started its run."""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def typed_at(monkeypatch):
    """The commands that are recorded where runs start, which they do not."""
    found = []

    def reach(*given, **more):
        found.append(command_line())
        raise ReachedError

    monkeypatch.setattr("fedunseen.experiment.running.run", reach)
    return found


def page(path):
    run = load_run(path)
    write_report(run)
    return (path / "report.html").read_text("utf-8"), model_card(run)


@pytest.mark.slow
def test_a_run_records_its_command_and_the_pages_print_it(place):
    done = CliRunner().invoke(app, RUN)
    assert done.exit_code == 0, done.output
    manifest = json.loads((place / "my run" / "manifest.json").read_text("utf-8"))
    assert manifest["command"] == ["fedunseen", *RUN]
    printed = shown_command(manifest).splitlines()
    assert printed[0] == "fedunseen run digit-pairs-gaussian \\"
    assert printed[-1] == "    --out 'my run'"
    report, card = page(place / "my run")
    assert "fedunseen run digit-pairs-gaussian" in report
    assert "--out &#39;my run&#39;" in report
    assert all(line in card for line in printed)
    assert command_line() is None  # no longer than the command


@pytest.mark.slow
def test_a_resumed_run_keeps_the_command_that_started_it(place):
    assert CliRunner().invoke(app, RUN).exit_code == 0
    (place / "my run" / "result.json").unlink()
    assert CliRunner().invoke(app, [*RUN, "--resume"]).exit_code == 0
    manifest = json.loads((place / "my run" / "manifest.json").read_text("utf-8"))
    assert manifest["command"] == ["fedunseen", *RUN]


@pytest.mark.slow
def test_the_pages_of_a_run_from_python_and_of_an_older_one_name_no_command(place):
    path = fedunseen.run(experiment("digit-pairs-gaussian"), place / "run").path
    file = path / "manifest.json"
    manifest = json.loads(file.read_text("utf-8"))
    assert manifest["command"] is None
    report, card = page(path)
    assert "Python started this run" in report
    assert "Made by Python" in card
    del manifest["command"]
    file.write_text(json.dumps(manifest), "utf-8")
    report, card = page(path)
    for text in (report, card):
        assert "Python started this run" not in text
        assert "Made by" not in text
        assert "fedunseen run digit-pairs-gaussian" not in text


def test_host_records_that_it_was_insecure(typed_at):
    words = ["host", "digit-pairs-gaussian", "--insecure", "--parties", "a,b,c"]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, ReachedError), done.output
    assert typed_at == [["fedunseen", *words]]


def test_flower_records_its_own_command(monkeypatch):
    flower_app = pytest.importorskip(
        "fedunseen.deploy.flower_app", reason="`make test-flower` runs this"
    )
    monkeypatch.setattr(flower_app, "GridLink", lambda grid, names: SimpleNamespace())
    monkeypatch.setattr(flower_app, "_coordinate", lambda grid, config: command_line())
    config = {"experiment": "digit-pairs", "out": "here"}
    assert flower_app.coordinate(None, config) == [
        "flwr", "run", "deploy/flower", "--run-config", 'experiment="digit-pairs" out="here"',
    ]  # fmt: skip


def test_nvflare_records_its_own_command(place, typed_at, monkeypatch):
    nvflare_job = pytest.importorskip("fedunseen.deploy.nvflare_job")
    monkeypatch.setattr(nvflare_job, "coordinated", lambda *given: typed_at.append(command_line()))
    where = nvflare_job.Place("server", place, place, {"set": {}})
    nvflare_job.Coordinator("digit-pairs").coordinate(where, ["north"])
    assert typed_at == [["nvflare", "job", "submit", "-j", "deploy/nvflare"]]


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--token", "x1"], ["--token", "..."]),
        (["--token=x1"], ["--token=..."]),
        (["--dashboard-token-file", "f"], ["--dashboard-token-file", "f"]),
        (["--set", "a.password=x1"], ["--set", "a.password=..."]),
        (["--track", "https://me:x1@host/a"], ["--track", "https://...@host/a"]),
        (["--set=a.password=x1"], ["--set=a.password=..."]),
        (["--token-file=f", "--out", "b"], ["--token-file=f", "--out", "b"]),
    ],
)
def test_secrets_are_not_recorded(words, kept):
    assert without_secrets(words) == kept
