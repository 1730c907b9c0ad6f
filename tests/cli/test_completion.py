"""What shells are told to complete, asked as each of them asks."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest

from fedunseen.cli.completion import presets, settings, sweeps

COMMAND = "import sys; sys.argv[0] = 'fedunseen'; from fedunseen.cli.main import main; main()"


def asked(shell, words):
    """Return what a shell is told when it asks for the completions of a line; zsh asks as fish does."""
    told = {
        "bash": {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))},
        "fish": {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": paths, "_FEDUNSEEN_COMPLETE": f"complete_{shell}", **told}
    done = subprocess.run([sys.executable, "-c", COMMAND], env=environment, capture_output=True, text=True)
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


class Terminal:
    """An interactive shell with a home of its own, in which the command's completion has been installed."""

    def __init__(self, shell, home):
        pexpect = pytest.importorskip("pexpect", reason="pexpect is not installed")
        path = shutil.which(shell)
        if path is None:
            pytest.skip(f"there is no {shell} on this machine")
        (home / "bin").mkdir(parents=True)
        command = home / "bin" / "fedunseen"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -c {shlex.quote(COMMAND)} "$@"\n')
        command.chmod(0o755)
        told = {"HOME": str(home), "ZDOTDIR": str(home), "XDG_CONFIG_HOME": str(home / ".config"), "TERM": "dumb"}
        told |= {"PATH": f"{command.parent}:{os.environ['PATH']}"}
        told |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        told |= {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # the shell is named, and no parent asked
        self.environment = {**os.environ, **told}
        done = subprocess.run([command, "--install-completion", shell], env=self.environment, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        (home / "notes.txt").write_text("a file to complete\n")
        self.child = pexpect.spawn(
            path, ["-i"], env=self.environment, cwd=home, encoding="utf-8", timeout=120, dimensions=(50, 200)
        )

    def completed(self, line, expected):
        """Type a line, press Tab once, and wait until what is expected stands behind it."""
        self.child.send("\x15" + line + "\t")
        self.child.expect_exact(expected)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_one_tab_completes_in_the_shell_itself(shell, tmp_path):
    terminal = Terminal(shell, tmp_path / "home")
    terminal.completed("fedunseen run digit-pairs-ga", "ussian ")  # the first Tab of a new shell
    terminal.completed("fedunseen run digit-pairs --set strategy.local_e", "pochs=")
    terminal.child.send("5")  # the value follows without a space
    terminal.child.expect_exact("5")
    assert terminal.child.before == ""
    terminal.completed("fedunseen report no", "tes.txt ")
    if shell == "zsh":
        terminal.completed("fedunseen data ", "Write an experiment's samples")  # with its apostrophe
    terminal.child.close(force=True)


def test_fish_completes_in_the_shell_itself(tmp_path):
    terminal = Terminal("fish", tmp_path / "home")
    terminal.child.close(force=True)
    lines = ["ser", "sweep fzsl-table1", "run digit-pairs --set strategy.local_e", "report no"]
    asked = "\n".join(f"complete -C 'fedunseen {line}'" for line in lines)
    done = subprocess.run(
        ["fish", "-c", asked], cwd=tmp_path / "home", env=terminal.environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    names = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert names == ["serve", "fzsl-table1", "strategy.local_epochs=", "notes.txt"]
