"""The README and the docs do what they say."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedunseen import Experiment, load_run, run
from fedunseen.cli.settings import reference

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def block(language, contains):
    """Return the README's one code block of a language that contains a text."""
    (found,) = [b for b in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if contains in b]
    return found


def test_the_settings_reference_is_what_the_code_reads(monkeypatch):
    """Of what is on the page. A new choice may wait for the next ``fedunseen settings``."""
    page = (ROOT / "docs" / "experiment.md").read_text("utf-8")
    sections = {part.partition("]")[0]: part for part in page.split("\n## [")[1:]}
    listed = {section: re.findall(r'^### name = "(.*)"$', part, re.MULTILINE) for section, part in sections.items()}
    for section, part in sections.items():
        for bare in re.findall(r"^No keys of their own: (.*)\.$", part, re.MULTILINE):
            listed[section] = sorted([*listed[section], *re.findall("`(.*?)`", bare)])
    monkeypatch.setattr("fedunseen.cli.settings.names", listed.__getitem__)
    assert page.endswith(reference())


def test_the_experiment_of_the_docs_is_a_valid_one(tmp_path):
    text = (ROOT / "docs" / "experiment.md").read_text("utf-8")
    (tmp_path / "example.toml").write_text(re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1])
    experiment = Experiment.load(tmp_path / "example.toml")
    assert experiment.partition.join == {"5-9": 10}


def test_bring_your_own_data_works_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my-animals").mkdir()
    Path("my-animals/classes.csv").write_text(block("text", "zebra,seen"))
    exec(block("python", "np.savez"), {})
    Path("my-animals.toml").write_text(block("toml", 'name = "folder"'))
    done = run(Experiment.load("my-animals.toml", {"strategy.rounds": 3}), "out")
    assert done.result["zsl"] > 60.0  # of two unseen classes
    features = np.load("my-animals/features.npz")["features"][-1:]
    (ranking,) = done.predict(features, classes={"eel": [0, 0, 0.9, 0.4]})
    known = {"zebra", "cow", "tiger", "orca", "wolf", "hippo", "clownfish", "otter"}
    assert {p.name for p in ranking} == known | {"eel"}


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "first"
    overrides = {"strategy.rounds": 12, "evaluation.selection": "last", "evaluation.clients": False}
    run(Experiment.load("digit-pairs", overrides), path)
    return path


def test_the_predictions_of_the_readme_are_right(first_run):
    done = load_run(first_run)
    for name in ("03", "47", "85"):
        (ranking,) = done.predict([ROOT / f"examples/digit-pairs/{name}.png"], among="unseen", top=3)
        assert ranking[0].name == name
    words = ROOT / "examples/digit-pairs/words.csv"
    (ranking,) = done.predict([ROOT / "examples/digit-pairs/47.png"], classes=words, among="given")
    assert [p.name for p in ranking] == ["forty-seven", "forty-something", "seventy-four"]


def test_the_commands_of_the_readme_are_the_command_s_own(first_run):
    """Every option that the README shows is known to the command."""
    used = set(re.findall(r"\$ fedunseen (\w+)", README))
    for name in used:
        help_text = subprocess.run(
            [sys.executable, "-m", "fedunseen", name, "--help"], capture_output=True, text=True, check=True,
            env={**os.environ, "COLUMNS": "200", "TERM": "dumb"},
        ).stdout  # fmt: skip
        for line in re.findall(rf"\$ fedunseen {name} (.*)", README):
            for option in re.findall(r"--[a-z]+", line):
                assert option in help_text


@pytest.fixture
def their_package(tmp_path, monkeypatch):
    """The package of docs/extending.md, written from its code blocks and installed."""
    text = (ROOT / "docs" / "extending.md").read_text("utf-8")
    site, points = tmp_path / "site", []
    for name in ("devise", "careful"):
        code = re.search(rf"`my_package/{name}\.py`:\n\n```python\n(.*?)```", text, re.DOTALL)[1]
        (site / "my_package").mkdir(parents=True, exist_ok=True)
        (site / "my_package" / f"{name}.py").write_text(code)
        points.append(re.search(rf'\[project\.entry-points\."(.*?)"\]\n({name}) = "(my_package.*?)"', text).groups())
    info = site / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("".join(f"[{group}]\n{name} = {at}\n" for group, name, at in points))
    monkeypatch.syspath_prepend(site)


@pytest.mark.usefixtures("their_package")
def test_the_method_and_the_strategy_of_the_docs_train_and_recognise_unseen_classes(tmp_path):
    settings = {"method.name": "devise", "strategy.rounds": 10, "evaluation.selection": "last"}
    done = run(Experiment.load("digit-pairs", {**settings, "strategy.name": "scaffold"}), tmp_path / "scaffold")
    assert done.result["zsl"] > 60.0  # of twenty unseen classes
    careful = {**settings, "strategy.name": "careful", "strategy.rounds": 1}
    plain = run(Experiment.load("digit-pairs", {**careful, "strategy.name": "fedavg"}), tmp_path / "plain")
    shrunk = run(Experiment.load("digit-pairs", careful), tmp_path / "careful")
    moved = [(one.params["g.weight"]).norm() for one in (plain, shrunk)]
    assert moved[1] < moved[0]
    conv = {"encoder.name": "conv", "method.lr": 0.01, "strategy.rounds": 1}
    assert run(Experiment.load("digit-pairs", settings | conv), tmp_path / "conv").result["rounds"] == 1


@pytest.mark.usefixtures("their_package")
def test_what_other_packages_add_is_listed_with_its_settings():
    assert '### name = "devise"' in reference()
    assert "By how much the right class has to lead." in reference()


@pytest.mark.filterwarnings("ignore:the graphical lasso")
def test_every_block_of_the_library_page_does_what_it_shows():
    found = doctest.testfile(str(ROOT / "docs" / "library.md"), module_relative=False)
    assert found.attempted > 50
    assert found.failed == 0


def test_every_link_to_a_heading_leads_to_one():
    def headings(page):
        found = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}

    pages = [ROOT / "README.md", ROOT / "SECURITY.md", *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")]
    links = [
        (page, *link) for page in pages for link in re.findall(r"\]\(([^)#\s:]*)#([^)]+)\)", page.read_text("utf-8"))
    ]
    assert links
    assert [link for link in links if link[2] not in headings(link[0].parent / link[1] if link[1] else link[0])] == []
