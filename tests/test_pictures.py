"""The pictures of the README and the docs show the pages as they are."""

import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"


@pytest.fixture
def pictures():
    """Return the program that makes them."""
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "tools" / "pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow  # of every commit it would ask for a browser
def test_no_page_has_changed_since_its_picture_was_made(pictures):
    made = json.loads(pictures.RECORD.read_text("utf-8"))
    changed = [name for name in made if made[name] != pictures.digest(name)]
    assert changed == [], "run `python tools/pictures.py`, and look at the pictures"


def test_every_picture_is_made_by_the_program_and_shown(pictures):
    assert {path.name for path in IMAGES.glob("*.png")} == set(pictures.SOURCES)
    assert set(json.loads(pictures.RECORD.read_text("utf-8"))) == set(pictures.SOURCES)
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = {
        name for page in pages for name in re.findall(r"images/([\w.]+)", page.read_text("utf-8"))
    }
    assert shown == set(pictures.SOURCES)


def test_a_change_of_any_file_of_a_page_is_found(pictures, tmp_path, monkeypatch):
    for name in sorted(set().union(*pictures.SOURCES.values())):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pictures.SOURCE / name, tmp_path / name)
    monkeypatch.setattr(pictures, "SOURCE", tmp_path)
    before = {name: pictures.digest(name) for name in pictures.SOURCES}
    (tmp_path / "pages" / "serve" / "style.css").write_text("body { color: red }")
    changed = {name for name in before if before[name] != pictures.digest(name)}
    assert changed == {"playground.png", "live.png"}
