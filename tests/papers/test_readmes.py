"""The papers' folders name functions, settings and commands that exist."""

import pydoc
import re
from pathlib import Path

import pytest

import fedunseen.papers
from fedunseen.cli.settings import reference
from fedunseen.core.presets import preset_names, sweep_names

READMES = sorted(Path(fedunseen.papers.__file__).parent.glob("*/README.md"))
ids = [path.parent.name for path in READMES]


@pytest.mark.parametrize("page", [path.read_text("utf-8") for path in READMES], ids=ids)
def test_what_a_paper_s_page_names_exists(page):
    names = re.findall(r"`(fedunseen\.[\w.]+)`", page)
    assert names
    assert [name for name in names if pydoc.locate(name) is None] == []
    sweeps = re.findall(
        r"`(?:fedunseen sweep )?((?:fedzsl|distzsl|fzsl|fedfsl)-(?:table|fig|noise|mi|exc|def)[\w-]*)`", page
    )
    assert sweeps
    assert set(sweeps) <= set(sweep_names())
    keys = re.findall(r"`(?:method|strategy|evaluation)\.(\w+)", page)
    assert {key for key in keys if f"| `{key}` |" not in reference()} == set()
    assert set(re.findall(r"`((?:cub|awa2|sun|fc100|miniimagenet)-[\w-]+)`", page)) <= set(preset_names())


@pytest.mark.parametrize(("paper", "last"), [("fedzsl", 10), ("distzsl", 21), ("fzsl", 6), ("fedfsl", 16)])
def test_all_four_papers_have_a_page_with_one_row_for_every_equation(paper, last):
    assert ids == ["distzsl", "fedfsl", "fedzsl", "fzsl"]
    page = READMES[ids.index(paper)].read_text("utf-8")
    found = []
    for numbers in re.findall(r"^\| Eqs?\. (\d+(?:(?:, | and | to )\d+)*)", page, re.MULTILINE):
        ends = [int(number) for number in re.findall(r"\d+", numbers)]
        found += range(ends[0], ends[1] + 1) if " to " in numbers else ends
    assert sorted(found) == list(range(1, last + 1))
