"""Imports go down and never in a circle, and who may import what; pages, package and names have plain words."""

import ast
import runpy
from pathlib import Path

import pytest

STRUCTURE = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "structure.py"))
PACKAGE = STRUCTURE["ROOT"] / "src" / "fedunseen"
ENGINES = sorted((PACKAGE / "engines").rglob("*.py"))


def test_imports_go_down_and_never_in_a_circle():
    graph = STRUCTURE["import_graph"](PACKAGE)
    assert STRUCTURE["cycles"](graph) == []
    assert STRUCTURE["upward"](graph) == []


def test_a_cycle_and_an_upward_import_are_found():
    graph = {"p.core.a": {"p.data.b"}, "p.data.b": {"p.data.c"}, "p.data.c": {"p.data.b"}}
    assert STRUCTURE["cycles"](graph) == ["p.data.b <-> p.data.c"]
    assert STRUCTURE["upward"](graph) == ["p.core.a -> p.data.b"]


def imported(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports by a relative name"
            yield from (f"{node.module}.{one.name}" for one in node.names)


@pytest.mark.slow
@pytest.mark.parametrize(("library", "folder"), [("flwr", "flower"), ("nvflare", "nvflare")])
def test_one_folder_imports_a_carriers_library(library, folder):
    own = PACKAGE / "engines" / "carriers" / folder
    found = {path for path in PACKAGE.rglob("*.py") if library in {name.split(".")[0] for name in imported(path)}}
    assert not [path for path in found if own not in path.parents]
    assert found


def test_nothing_imports_what_flower_does_not_publish():
    """``flwr.app.message`` and the like are modules of a public package, and not public themselves."""
    public = {"flwr", "flwr.app", "flwr.clientapp", "flwr.serverapp"}
    found = {
        (path.name, name)
        for path in PACKAGE.rglob("*.py")
        for name in imported(path)
        if name.split(".")[0] == "flwr" and name not in public and name.rpartition(".")[0] not in public
    }
    assert not found


def test_nothing_names_what_nvflare_does_not_publish():
    assert not [path for path in PACKAGE.rglob("*.py") if "nvflare.private" in path.read_text()]


def test_engines_name_no_room_above_them():
    """Nor in a string that is imported later."""
    above = ("fedunseen.cli", "fedunseen.report", "fedunseen.experiment", "fedunseen.tasks", "fedunseen.federation")
    found = [
        (path, node.value)
        for path in ENGINES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(above)
    ]
    assert not [one for one in found if one[1] != "fedunseen.federation"]  # the name of a logger


def test_the_coordinator_knows_no_carrier_by_import():
    remote = [path for path in ENGINES if path.parent.name == "remote"]
    assert not [(path, name) for path in remote for name in imported(path) if "carriers" in name]


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
