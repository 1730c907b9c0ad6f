"""What the command says of itself."""

import re
import subprocess
import sys

import pytest
from typer.main import get_command

import fedunseen
from fedunseen.cli.main import PANELS, app


def commands(command, path=()):
    """Return every command under its name."""
    inner = getattr(command, "commands", {})
    found = {} if inner else {" ".join(path): command}
    for name, one in inner.items():
        found |= commands(one, (*path, name))
    return found


ALL = commands(get_command(app))


@pytest.mark.parametrize("name", ALL)
def test_every_argument_and_every_option_has_a_line(name):
    for one in ALL[name].params:
        assert getattr(one, "help", None), f"{name}: {one.name}"
    assert re.fullmatch(r"[A-Z].*\.", ALL[name].help.splitlines()[0])


def test_the_plain_command_says_where_to_begin_with_commands_that_there_are(command):
    done = command()
    assert (done.code, done.err) == (0, "")
    shown = re.findall(r"^  fedunseen ([a-z]+(?: check)?)", done.out, re.MULTILINE)
    assert shown[0] == "run"
    assert set(shown) <= ALL.keys()


def test_help_lists_every_command_in_one_panel(command):
    shown = command("--help").out
    for title, names in PANELS.items():
        assert f"\n{title}:\n" in shown
        assert all(len(re.findall(rf"^  {name} ", shown, re.MULTILINE)) == 1 for name in names)
    assert {name for names in PANELS.values() for name in names} == {name.split()[0] for name in ALL}


def test_the_version_is_the_package_s(command):
    assert command("--version") == (0, f"fedunseen {fedunseen.__version__}\n", "")


def test_help_loads_neither_pytorch_nor_what_draws_boxes():
    """What takes long to import; no clock, so that a busy machine does not matter."""
    heavy = {"torch", "numpy", "scipy", "sklearn", "pydantic", "jinja2", "rich"}
    script = (
        "import sys\nfrom fedunseen.cli.main import main\nsys.argv = ['fedunseen', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print(sorted({heavy!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert "run an experiment" in done.stdout.lower()


def test_a_run_of_one_round_and_its_report_load_neither_scipy_nor_scikit_learn(tmp_path):
    words = ["fedunseen", "run", "digit-pairs", "--out", str(tmp_path / "run")]
    for setting in ("strategy.rounds=1", "evaluation.selection=last", "data.train_per_class=2", "method.kl=0"):
        words += ["--set", setting]
    script = f"import sys\nfrom fedunseen.cli.main import main\nsys.argv = {words!r}\nmain()"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", script], capture_output=True, text=True, check=True
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert {"torch", "jinja2"} <= loaded
    assert not loaded & {"scipy", "sklearn"}
    assert (tmp_path / "run" / "report.html").exists()
