"""What shells are told to complete, asked as each of them asks."""

import subprocess
import sys

import pytest

from fedunseen.cli.options import presets, settings, sweeps
from processes import environment

pytestmark = pytest.mark.slow

COMMAND = "import sys; sys.argv[0] = 'fedunseen'; from fedunseen.cli.main import main; main()"


def asked(shell, words):
    """Return what a shell is told when it asks for the completions of a line; zsh asks as fish does."""
    settings = {
        "bash": {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))},
        "fish": {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    own = {**environment(), "_FEDUNSEEN_COMPLETE": f"complete_{shell}", **settings}
    done = subprocess.run([sys.executable, "-c", COMMAND], env=own, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_bash_and_fish_hear_of_presets_and_of_options():
    assert asked("bash", "fedunseen join --log").split() == ["--log-format"]
    lines = asked("fish", "fedunseen run digit").splitlines()
    assert len(lines) > 3
    assert all(line.startswith("digit") and "\t" in line for line in lines)  # what explains a preset fits on a line


def test_only_what_begins_so_is_offered():
    assert [name for name, _ in presets("digit-pairs-gau")] == ["digit-pairs-gaussian"]
    assert [name for name, _ in sweeps("fzsl-table1")] == ["fzsl-table1"]
    assert presets("runs/mine") == []  # then the shell completes files
    assert all(key.startswith("partition.") and key.endswith("=") for key in settings("partition."))
    assert "partition.clients=" in settings("")
