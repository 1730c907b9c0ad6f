"""Imports go down and never in a circle; pages, package and names have plain words."""

import runpy
from pathlib import Path

import pytest

STRUCTURE = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "structure.py"))


def test_imports_go_down_and_never_in_a_circle():
    graph = STRUCTURE["import_graph"](STRUCTURE["ROOT"] / "src" / "fedunseen")
    assert STRUCTURE["cycles"](graph) == []
    assert STRUCTURE["upward"](graph) == []


def test_a_cycle_and_an_upward_import_are_found():
    graph = {"p.core.a": {"p.data.b"}, "p.data.b": {"p.data.c"}, "p.data.c": {"p.data.b"}}
    assert STRUCTURE["cycles"](graph) == ["p.data.b <-> p.data.c"]
    assert STRUCTURE["upward"](graph) == ["p.core.a -> p.data.b"]


PROSE = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "prose.py"))


@pytest.mark.parametrize("page", PROSE["pages"](), ids=lambda p: p.name)
def test_pages_use_plain_words(page):
    assert PROSE["found_words"]([(page.name, 1, PROSE["prose_of_page"](page))]) == []


def test_the_package_uses_plain_words():
    assert PROSE["found_words"](PROSE["package"]()) == []


def test_code_in_a_page_or_a_template_and_names_of_random_streams_are_skipped(tmp_path):
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text("Nobody\n```text\nnobody\n```\n`nobody` [x](nobody.md)\n")
    module.write_text('STREAM = "nobody"\nTEXT = "nobody is told"  # mend it\n')
    assert PROSE["found_words"]([("page", 1, PROSE["prose_of_page"](page))]) == ["page:1: Nobody"]
    found = PROSE["found_words"]([("module", line, text) for line, text in PROSE["prose_of_code"](module)])
    assert found == ["module:2: nobody", "module:2: told", "module:2: mend"]
    page = tmp_path / "page.html"
    page.write_text("<style>\n.nobody {}</style>\n{% set nobody = 1 %}{{ nobody }}\n<p>Nobody `nobody`</p>\n")
    assert PROSE["found_words"]([("page", n, text) for n, text in PROSE["prose_of_code"](page)]) == ["page:4: Nobody"]


def test_variables_have_plain_names():
    assert [(path.name, *one) for path in PROSE["modules"]() for one in PROSE["old_names"](path)] == []


def test_names_are_found_where_they_are_bound(tmp_path):
    module = tmp_path / "module.py"
    module.write_text(
        'import re as sight\ndef told(_merit): pass\nfor shelf in []: print(shelf)\nx.told = {"told": told}\n'
    )
    assert sorted(PROSE["old_names"](module)) == [(1, "sight"), (2, "_merit"), (2, "told"), (3, "shelf")]
