"""The papers' folders name functions, settings and commands that exist."""

import pydoc
import re
from pathlib import Path

import pytest

import fedunseen.papers
from fedunseen.cli.settings import reference
from fedunseen.core.presets import sweep_names

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


def test_all_four_papers_have_a_page():
    assert ids == ["distzsl", "fedfsl", "fedzsl", "fzsl"]
