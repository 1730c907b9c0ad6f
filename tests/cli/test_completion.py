"""What shells are told to complete, asked as each of them asks."""

import os
import shutil
import subprocess
import sys

import pytest

from fedunseen.cli.completion import presets, settings

COMMAND = "import sys; sys.argv[0] = 'fedunseen'; from fedunseen.cli.main import main; main()"


def asked(shell, words):
    """Return what a shell is told when it asks for the completions of a line."""
    told = {
        "bash": {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))},
        "zsh": {"_TYPER_COMPLETE_ARGS": words},
        "fish": {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": paths, "_FEDUNSEEN_COMPLETE": f"complete_{shell}", **told}
    done = subprocess.run([sys.executable, "-c", COMMAND], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_hears_of_presets_commands_and_settings(shell):
    assert "digit-pairs-gaussian" in asked(shell, "fedunseen run digit-pairs-g")
    assert "serve" in asked(shell, "fedunseen ser")
    assert "strategy.rounds=" in asked(shell, "fedunseen run digit-pairs --set strategy.ro")
    assert "--log-format" in asked(shell, "fedunseen join --log")


def test_what_explains_a_preset_fits_on_a_line():
    lines = asked("fish", "fedunseen run digit").splitlines()
    assert len(lines) > 3
    assert all(line.startswith("digit") and "\t" in line for line in lines)


def test_only_what_begins_so_is_offered():
    assert [name for name, _ in presets("digit-pairs-gau")] == ["digit-pairs-gaussian"]
    assert presets("runs/mine") == []  # then the shell completes files
    assert all(key.startswith("partition.") and key.endswith("=") for key in settings("partition."))
    assert "partition.clients=" in settings("")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_shown(shell):
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": paths, "_FEDUNSEEN_COMPLETE": f"source_{shell}"}
    done = subprocess.run([sys.executable, "-c", COMMAND], env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    assert "fedunseen" in done.stdout
    if path := shutil.which(shell):  # the shell itself finds no fault with it
        subprocess.run([path, "-n"], input=done.stdout, text=True, check=True)
