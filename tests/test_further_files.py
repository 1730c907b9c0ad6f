"""A method, a rule, a section of the report, a command: one new file each in a copy of the package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedunseen
from fedunseen.core.extensions import at, commands, further_modules, sections
from fedunseen.core.registry import choosable, find, package_names

METHOD = """
from fedunseen.methods.closed_form.ridge import Ridge


class Twice(Ridge, name="twice-ridge"):
    \"\"\"Ridge regression under another name.\"\"\"
"""
RULE = """
from fedunseen.experiment.rules.base import Rule

RULES = (
    Rule(
        "unlucky-seed",
        lambda c: c.experiment.run.seed == 13,
        problem="run.seed = {run.seed} brings bad luck",
        remedy="take another one",
        example={"run.seed": 13},
    ),
)
"""
SECTION = """
TEMPLATE = "<section><h2>The weather</h2><p>{{ sky }} over {{ experiment.method.name }}</p></section>"
FOLDED = False


def content(facts):
    return {"sky": "clear"} if facts.zero_shot else None
"""
COMMAND = """
PANEL = "Data"


def greet_party(name: str) -> None:
    \"\"\"Greet a party.\"\"\"
    print(f"hello {name}")
"""
FILES = {
    "methods/twice_ridge.py": METHOD,
    "experiment/rules/luck.py": RULE,
    "pages/report/sections/weather.py": SECTION,
    "cli/greet_party.py": COMMAND,
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Return a function that runs a command of a copy of the package with the four files."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(Path(fedunseen.__file__).parent, folder / "fedunseen")
    for name, text in FILES.items():
        (folder / "fedunseen" / name).write_text(text, "utf-8")

    def command(*words):
        done = subprocess.run(
            [sys.executable, "-m", "fedunseen", *words],
            env={**os.environ, "PYTHONPATH": str(folder)},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return command


@pytest.mark.slow
def test_a_file_is_a_method_and_another_a_section_of_its_report(copy, tmp_path):
    words = ("run", "digit-pairs-gaussian", "--set", "method.name=twice-ridge", "--json")
    status, out, err = copy(*words, "--out", str(tmp_path / "run"))
    assert status == 0, err
    assert json.loads(out)["zsl"] > 50
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "<h2>The weather</h2><p>clear over twice-ridge</p>" in page


@pytest.mark.slow
def test_a_file_is_a_method_that_settings_list(copy):
    assert "`twice-ridge`" in copy("settings")[1]


@pytest.mark.slow
def test_a_file_is_a_rule(copy):
    words = ("run", "digit-pairs-gaussian", "--set", "run.seed=13", "--json")
    status, out, _ = copy(*words)
    assert status == 2
    assert json.loads(out)["error"] == {
        "code": "unlucky-seed",
        "message": "run.seed = 13 brings bad luck: take another one",
    }


@pytest.mark.slow
def test_a_file_is_a_command(copy):
    assert copy("greet-party", "north")[:2] == (0, "hello north\n")
    panels = copy("--help")[1]
    data, _, after = panels.partition("Data:")[2].partition("Use a finished run:")
    assert "greet-party" in data
    assert "greet-party" not in after


def test_every_further_file_of_this_package_adds_what_its_folder_is_for():
    """A helper that no ``SHARED`` names fails here."""
    for section in choosable():
        for name, place in package_names(section).items():
            if place.endswith(":"):
                assert find(section, name).Settings.model_fields["name"].default == name
    for module in further_modules("fedunseen.experiment.rules"):
        assert at(f"fedunseen.experiment.rules.{module}:RULES")
    for command in commands():
        assert callable(at(command.place)) or command.group
        assert command.panel in ("Start", "Data", "Use a finished run", "Deploy", "Research")


@pytest.mark.parametrize(
    "package", sorted({one.folder for one in sections().values() if one.folder})
)
def test_shared_names_files_that_are_there(package):
    folder = Path(at(f"{package}:__file__")).parent
    for module in at(f"{package}:SHARED"):
        assert (folder / f"{module}.py").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "right", "wrong", "said"),
    [
        (
            "experiment/rules/luck.py",
            "    ),\n)",
            "    )\n)",
            "fedunseen.experiment.rules.luck is one rule",
        ),
        ("pages/report/sections/weather.py", "TEMPLATE", "TEMPLATES", "weather has no TEMPLATE"),
        ("cli/greet_party.py", "greet_party", "greet", "has no function 'greet_party'"),
    ],
)
def test_a_mistake_in_such_a_file_is_named_with_its_place(file, right, wrong, said, tmp_path):
    shutil.copytree(Path(fedunseen.__file__).parent, tmp_path / "fedunseen")
    assert right in FILES[file]
    (tmp_path / "fedunseen" / file).write_text(FILES[file].replace(right, wrong), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "fedunseen", "run", "digit-pairs-gaussian", "--out", "run"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert said in done.stderr
