"""The README, the docs and the papers' pages do what they say."""

import doctest
import os
import pydoc
import re
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedunseen import Experiment, load_run, run
from fedunseen.cli.main import app
from fedunseen.cli.settings import reference
from fedunseen.core.presets import preset_names
from fedunseen.experiment.assemble import load_data
from fedunseen.methods import METHODS
from fedunseen.pages.report import write_report
from fedunseen.research.sweeps import sweep_names

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
DATA = (ROOT / "docs" / "data.md").read_text("utf-8")
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]


def block(language, contains, page=DATA):
    """Return a page's one code block of a language that contains a text."""
    (found,) = [
        b for b in re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL) if contains in b
    ]
    return found


@pytest.mark.slow
def test_the_block_of_the_readme_names_a_class_that_nobody_has(capsys):
    code = block("python", "ZeroShotClassifier", README)
    exec(code, {})
    named, kept, right = capsys.readouterr().out.splitlines()
    assert f"max().round(2))  # {named}: no training example" in code
    assert kept.startswith("['zebra'] zebra: tiger ")
    assert f"print(round(model.score(X, y), 2))  # {right}, all" in code


def test_the_readme_is_short_and_its_commands_can_be_copied():
    assert len(README.splitlines()) <= 120
    assert len(re.findall(r"\]\(", README)) <= 5
    assert not re.search(r"://|git\+|ADDRESS", README)
    assert README.index("**ZSL**") == min(
        found.start() - 2 for found in re.finditer(r"\b(?:ZSL|GZSL|H)\b", README)
    )


def test_the_list_of_pages_has_every_page():
    """docs/README.md, which is the site's navigation too."""
    docs = ROOT / "docs"
    listed = re.findall(
        r"^- \[.*?\]\(([^)]+)\)(?::|$)", (docs / "README.md").read_text("utf-8"), re.MULTILINE
    )
    there = [
        *docs.rglob("*.md"),
        *docs.glob("tutorials/*.ipynb"),
        *ROOT.glob("*.md"),
        *ROOT.glob("benchmarks/*.md"),
    ]
    own = (docs / "README.md", ROOT / "README.md")
    assert sorted(listed) == sorted(
        os.path.relpath(page, docs) for page in there if page not in own
    )


def headings(page):
    """Return the headings of a page as a link names them."""
    found = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_every_link_leads_to_a_file_and_to_a_heading_in_it():
    pattern = r"(?:\]\(|src=\")(?!https?:)([^)#\s\"]*)(?:#([^)\"]+))?"
    links = [
        (page, *link) for page in PAGES for link in re.findall(pattern, page.read_text("utf-8"))
    ]
    assert len(links) > 50
    assert [(page.name, file) for page, file, _ in links if not (page.parent / file).exists()] == []
    named = [
        (page.parent / file if file else page, heading) for page, file, heading in links if heading
    ]
    assert named
    assert [(page.name, heading) for page, heading in named if heading not in headings(page)] == []


def promises(page):
    """Return the cells of the tests in a page's tables, each with the names in it."""
    cells, last = [], -1
    for line in page.splitlines():
        row = [cell.strip() for cell in line.strip().strip("|").split("|")]
        part = row[0].startswith("**") and not any(row[1:])
        if not line.startswith("|"):
            last = -1
        elif row[-1] == "test":
            last = len(row) - 1
        elif last > 0 and not set(line) <= set("|-: ") and not part:
            cells.append((row[0], re.findall(r"`([^`]+)`", row[last])))
    return cells


def lacks(name):
    """Return whether a test is missing: its file, or its function in it."""
    file, _, function = name.partition("::")
    if not (file.startswith("tests/") and (ROOT / file).is_file()):
        return True
    text = (ROOT / file).read_text("utf-8")
    return not re.search(rf"^def {function}\(" if function else "^def test_", text, re.M)


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/secure-aggregation.md"])
def test_each_promise_names_a_test_that_exists(page):
    """In tables whose last column is called ``test``; other tests on these pages exist too."""
    text = (ROOT / page).read_text("utf-8")
    rows = promises(text)
    assert len(rows) > 10
    assert [promise for promise, names in rows if not names] == []
    named = {name for _, names in rows for name in names} | set(
        re.findall(r"`(tests/[^`\s]+)`", text)
    )
    assert [name for name in sorted(named) if lacks(name)] == []


def test_a_promise_without_a_test_is_found():
    table = "| promise | test |\n|---|---|\n| **Part** | |\n| safe | `tests/no.py` |\n| sound | |\n"
    assert promises(table) == [("safe", ["tests/no.py"]), ("sound", [])]
    assert lacks("tests/no.py")
    assert lacks("tests/test_documents.py::test_nothing")
    assert lacks("src/fedunseen/model.py")
    assert not lacks("tests/test_documents.py")
    assert not lacks("tests/test_documents.py::test_a_promise_without_a_test_is_found")


@pytest.mark.slow
def test_bring_your_own_data_works_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my-animals").mkdir()
    Path("my-animals/classes.csv").write_text(block("text", "zebra,seen"))
    exec(block("python", "np.savez"), {})
    Path("my-animals.toml").write_text(block("toml", "# my-animals.toml"))
    done = run(Experiment.load("my-animals.toml"), "out")
    assert done.result["zsl"] > 60.0  # of two unseen classes
    features = np.load("my-animals/features.npz")["features"][-1:]
    (ranking,) = done.predict(features, classes={"eel": [0, 0, 0.9, 0.4]})
    known = {"zebra", "cow", "tiger", "orca", "wolf", "hippo", "clownfish", "otter"}
    assert {p.name for p in ranking} == known | {"eel"}


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    experiment = Experiment.load("digit-pairs-gaussian", {"evaluation.embedding": False})
    return run(experiment, tmp_path_factory.mktemp("runs") / "first")


@pytest.mark.slow
def test_the_predictions_of_the_readme_are_right(first_run):
    for name in ("03", "47", "85"):
        (ranking,) = first_run.predict(
            [ROOT / f"examples/digit-pairs/{name}.png"], among="unseen", top=3
        )
        assert ranking[0].name == name
    words = ROOT / "examples/digit-pairs/words.csv"
    (ranking,) = first_run.predict(
        [ROOT / "examples/digit-pairs/47.png"], classes=words, among="given"
    )
    assert [p.name for p in ranking] == ["forty-seven", "forty-something", "seventy-four"]


@pytest.mark.slow
def test_the_commands_and_blocks_of_the_any_shot_page_do_what_they_show(
    first_run, tmp_path, monkeypatch, capsys
):
    """All but the runs, of which the first is at hand."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(first_run.path, "runs/first")
    shutil.copytree(ROOT / "examples", "examples")
    shutil.copytree("examples/any-shot", ".", dirs_exist_ok=True)
    page, commands = (ROOT / "docs" / "any-shot.md").read_text("utf-8"), 0
    for language, code in re.findall(r"```(console|python)\n(.*?)```", page, re.DOTALL):
        if language == "python":
            exec(code, {})
            assert capsys.readouterr().out.splitlines() == re.findall(
                r"^print\(.*\)  # ([^:\n]+)", code, re.MULTILINE
            )
            continue
        for command, shown in re.findall(r"\$ fedunseen (?!run )(.*)\n((?:[^$].*\n)*)", code):
            done = CliRunner().invoke(app, command.split())
            assert (done.exit_code, without_digits(done.output)) == (0, without_digits(shown))
            commands += 1
    assert commands == 7
    assert load_run("runs/first").predict("new.png", top=1)[0][0].name == "30"  # as it was
    zsl = load_run("runs/without-3").result["zsl"]
    assert f"{zsl:.1f}" in Path("runs/without-3/README.md").read_text("utf-8")
    assert "3-alone" in Path("runs/more/README.md").read_text("utf-8")


def without_digits(text):
    """Drop the decimals, which depend on the machine's arithmetic."""
    return re.sub(r"(\d)\.\d+", r"\1", text)


@pytest.fixture
def their_package(tmp_path, monkeypatch):
    """The package of examples/ that the pages on extensions name, installed."""
    package = ROOT / "examples/my-package"
    site = tmp_path / "site"
    shutil.copytree(package / "my_package", site / "my_package")
    project = tomllib.loads((package / "pyproject.toml").read_text("utf-8"))["project"]
    info = site / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {at}\n" for name, at in points.items())
            for group, points in project["entry-points"].items()
        )
    )
    monkeypatch.syspath_prepend(site)


@pytest.mark.slow
@pytest.mark.usefixtures("their_package")
def test_the_trained_method_and_the_strategy_of_the_package_recognise_unseen_classes(tmp_path):
    settings = {"method.name": "devise", "strategy.rounds": 10, "evaluation.selection": "last"}
    done = run(
        Experiment.load("digit-pairs", {**settings, "strategy.name": "scaffold"}),
        tmp_path / "scaffold",
    )
    assert done.result["zsl"] > 60.0  # of twenty unseen classes
    careful = {**settings, "strategy.name": "careful", "strategy.rounds": 1}
    plain = run(
        Experiment.load("digit-pairs", {**careful, "strategy.name": "fedavg"}), tmp_path / "plain"
    )
    shrunk = run(Experiment.load("digit-pairs", careful), tmp_path / "careful")
    moved = [(one.params["g.weight"]).norm() for one in (plain, shrunk)]
    assert moved[1] < moved[0]
    conv = {"encoder.name": "conv", "method.lr": 0.01, "strategy.rounds": 1}
    assert (
        run(Experiment.load("digit-pairs", settings | conv), tmp_path / "conv").result["rounds"]
        == 1
    )


@pytest.mark.slow
@pytest.mark.usefixtures("their_package")
def test_the_closed_form_of_the_package_is_that_of_one_place(tmp_path):
    settings = {"method.name": "exemplars", "evaluation.selection": "last"}
    parties = run(Experiment.load("digit-pairs-gaussian", settings), tmp_path / "parties")
    assert parties.result["zsl"] > 60.0  # of twenty unseen classes
    whole = run(
        Experiment.load("digit-pairs-gaussian", {**settings, "strategy.name": "centralised"}),
        tmp_path / "one",
    )
    torch.testing.assert_close(parties.params["to_mean"], whole.params["to_mean"])


@pytest.mark.slow
@pytest.mark.usefixtures("their_package")
def test_the_task_of_the_package_is_judged_and_predicts(tmp_path):
    few = {
        "data.train_per_class": 10,
        "data.test_per_class": 4,
        "strategy.rounds": 8,
        "method.name": "half",
    }
    done = run(Experiment.load("digit-pairs", few), tmp_path / "run")
    assert done.headline() == f"halves {done.result['halves']:.1f} %"
    assert done.result["halves"] > 75.0  # of two
    digits = load_data(Experiment.load("digit-pairs", few), 0)
    rows = np.concatenate([digits.test_seen, digits.test_unseen])
    second = [ranking[0].name == "second" for ranking in done.predict(digits.features[rows])]
    right = np.array(second) == (digits.labels[rows] >= len(digits.space.names) / 2)
    assert 100 * right.mean() == pytest.approx(done.result["halves"])
    page = write_report(done).read_text("utf-8")
    assert "A run of the task <strong>halves</strong>" in page
    assert f"{done.result['halves']:.1f}&nbsp;%" in page
    short = {**few, "strategy.rounds": 1, "run.seeds": 2}
    several = run(Experiment.load("digit-pairs", short), tmp_path / "seeds")
    assert several.result["halves"] == pytest.approx(
        sum(one.result["halves"] for one in several.seeds) / 2
    )


@pytest.mark.slow
@pytest.mark.usefixtures("their_package")
def test_what_other_packages_add_is_listed_with_its_settings():
    assert "`devise`" in reference()
    assert "By how much the right class has to lead." in reference()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the graphical lasso")
@pytest.mark.parametrize(
    ("page", "least"), [("library.md", 25), ("building-blocks.md", 25), ("models.md", 8)]
)
def test_every_block_of_the_python_pages_does_what_it_shows(page, least):
    found = doctest.testfile(str(ROOT / "docs" / page), module_relative=False)
    assert found.attempted > least
    assert found.failed == 0


def test_pictures_of_the_docs_are_small():
    assert {
        path.name for path in ROOT.glob("docs/images/*") if path.stat().st_size > 150_000
    } == set()


# The papers' pages

PAPERS = sorted((ROOT / "src" / "fedunseen" / "research" / "papers").glob("*/README.md"))
NAMES = [path.parent.name for path in PAPERS]


@pytest.mark.slow
@pytest.mark.parametrize("page", [path.read_text("utf-8") for path in PAPERS], ids=NAMES)
def test_what_a_paper_s_page_names_exists(page):
    names = re.findall(r"`(fedunseen\.[\w.]+)`", page)
    assert names
    assert [name for name in names if pydoc.locate(name) is None] == []
    sweeps = re.findall(
        r"`(?:fedunseen sweep "
        r")?((?:fedzsl|distzsl|fzsl|fedfsl)-(?:table|fig|noise|mi|exc|def)[\w-]*)`",
        page,
    )
    assert sweeps
    assert set(sweeps) <= set(sweep_names())
    keys = re.findall(r"`(?:method|strategy|evaluation)\.(\w+)", page)
    assert {key for key in keys if f"| `{key}` |" not in reference()} == set()
    assert set(re.findall(r"`((?:cub|awa2|sun|fc100|miniimagenet)-[\w-]+)`", page)) <= set(
        preset_names()
    )


@pytest.mark.parametrize(
    ("paper", "last"), [("fedzsl", 10), ("distzsl", 21), ("fzsl", 6), ("fedfsl", 16)]
)
def test_all_four_papers_have_a_page_with_one_row_for_every_equation(paper, last):
    assert NAMES == ["distzsl", "fedfsl", "fedzsl", "fzsl"]
    page = PAPERS[NAMES.index(paper)].read_text("utf-8")
    found = []
    for numbers in re.findall(r"^\| Eqs?\. (\d+(?:(?:, | and | to )\d+)*)", page, re.MULTILINE):
        ends = [int(number) for number in re.findall(r"\d+", numbers)]
        found += range(ends[0], ends[1] + 1) if " to " in numbers else ends
    assert sorted(found) == list(range(1, last + 1))


METHODS_OF = {
    "distzsl": ["distzsl"],
    "fedfsl": ["maml", "maml-mi", "maml-mi-adv"],
    "fedzsl": ["fedzsl"],
    "fzsl": ["clswgan"],
}
SECTIONS_OF = {  # of the printed papers
    "distzsl": set(),
    "fedfsl": {"5.1", "5.4.4"},
    "fedzsl": {"3.3"},  # Feature Magnitude Backdoor Defense
    "fzsl": {"4.2"},
}


@pytest.mark.parametrize("paper", NAMES)
def test_the_keys_and_sections_of_a_paper_s_page_are_its_own(paper):
    page = PAPERS[NAMES.index(paper)].read_text("utf-8")
    methods = [pydoc.locate(METHODS[name].replace(":", ".")) for name in METHODS_OF[paper]]
    own = {key for method in methods for key in method.Settings.model_fields}
    keys = set(re.findall(r"`method\.(\w+)", page))
    assert keys
    assert keys <= own
    sections = set(re.findall(r"(?:section |\()(\d(?:\.\d)+)\b", page))
    assert sections == SECTIONS_OF[paper]


FEDZSL = {"momentum": 0.9, "weight_decay": 1e-5, "batch_size": 64, "rounds": 50, "local_epochs": 2}
FEDZSL |= {"clients": 10, "kl": 3.0, "temperature": 10.0, "alpha": 0.01}
ALL = {"sce_classes": "all", "kl_classes": "all"}
DISTZSL = {**FEDZSL, "rounds": 100, "kl": 10.0, "bilateral": 0.1, "decorrelation": 0.3}
FZSL = {"clients": 4, "rounds": 100, "local_epochs": 1, "batch_size": 64, "weights": "uniform"}
FEDFSL = {"clients": 10, "ways": 5, "shots": 1, "mi": 0.2, "lr": 1e-3, "inner_lr": 0.01}
PRINTED = {
    "cub-fedzsl": {**FEDZSL, "lr": 5e-3},
    "awa2-fedzsl": {**FEDZSL, "lr": 3e-4},
    "sun-fedzsl": {**FEDZSL, "lr": 1e-2},
    "cub-fedzsl-resnet18": {**FEDZSL, **ALL, "lr": 5e-3},
    "awa2-fedzsl-resnet18": {**FEDZSL, **ALL, "lr": 3e-4},
    "sun-fedzsl-resnet18": {**FEDZSL, **ALL, "lr": 1e-2},
    "cub-distzsl": DISTZSL,
    "cub-distzsl-resnet101": DISTZSL,
    "cub-clswgan": FZSL,
    "sun-clswgan": {**FZSL, "lr": 2e-4},
    "awa2-clswgan": {**FZSL, "lr": 1e-5},
    "apy-clswgan": {**FZSL, "lr": 1e-5},
    "miniimagenet-maml-mi-adv": FEDFSL,
}
"""What the papers print -> the presets that keep to it."""


@pytest.mark.parametrize("preset", PRINTED)
def test_a_preset_has_the_settings_that_its_paper_prints(preset):
    chosen = Experiment.load(preset, {"data.root": "elsewhere"})  # which nothing reads here
    sections = (chosen.partition, chosen.method, chosen.strategy)
    merged = {key: value for section in sections for key, value in dict(section).items()}
    assert {key: merged[key] for key in PRINTED[preset]} == PRINTED[preset]


SYMBOLS = {
    "weight decay": "weight_decay", "batch": "batch_size", "local epochs": "local_epochs",
    "mu": "kl", "tau": "temperature", "delta": "alpha", "KL": "kl",
    "alpha (`method.inner_lr`)": "inner_lr", "gamma (`method.mi`)": "mi",
}  # fmt: skip
"""Words of the papers' pages -> settings; others have the name of the setting."""


@pytest.mark.parametrize(
    ("paper", "preset", "count"),
    [
        ("distzsl", "cub-distzsl", 9),
        ("fedfsl", "miniimagenet-maml-mi-adv", 2),
        ("fedzsl", "cub-fedzsl", 9),
        ("fzsl", "cub-clswgan", 4),
    ],
)
def test_the_printed_numbers_of_a_paper_s_page_are_those_of_its_preset(paper, preset, count):
    page = PAPERS[NAMES.index(paper)].read_text("utf-8")
    found = []
    for label, printed in re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", page, re.MULTILINE):
        numbers = re.findall(r"\d[\d.e-]*", printed)
        words = re.findall(r"([A-Za-z]+) \d", printed) if label.startswith("weights on") else []
        names = [SYMBOLS.get(name, name) for name in words or label.split(", ")]
        if len(names) == len(numbers):
            found += [
                (name, float(number))
                for name, number in zip(names, numbers, strict=True)
                if name in PRINTED[preset]
            ]
    assert len(found) == count
    assert found == [(name, PRINTED[preset][name]) for name, _ in found]
