"""Imports go down and never in a circle, and who may import what; pages, package and names have
plain words.
"""

import ast
import re
import runpy
from pathlib import Path

import pytest

STRUCTURE = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "structure.py"))
PACKAGE = STRUCTURE["ROOT"] / "src" / "fedunseen"


@pytest.mark.slow
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
    own = PACKAGE / "deploy" / folder
    found = {
        path
        for path in PACKAGE.rglob("*.py")
        if library in {name.split(".")[0] for name in imported(path)}
    }
    assert not [path for path in found if own not in path.parents]
    assert found


@pytest.mark.slow
def test_nothing_imports_what_flower_does_not_publish():
    """``flwr.app.message`` and the like are modules of a public package, and not public
    themselves.
    """
    public = {"flwr", "flwr.app", "flwr.clientapp", "flwr.serverapp"}
    found = {
        (path.name, name)
        for path in PACKAGE.rglob("*.py")
        for name in imported(path)
        if name.split(".")[0] == "flwr"
        and name not in public
        and name.rpartition(".")[0] not in public
    }
    assert not found


def test_nothing_names_what_nvflare_does_not_publish():
    assert not [path for path in PACKAGE.rglob("*.py") if "nvflare.private" in path.read_text()]


@pytest.mark.slow
def test_the_core_imports_nothing_from_the_folders_beside_it():
    assert STRUCTURE["from_beside"](STRUCTURE["import_graph"](PACKAGE)) == []
    graph = {"p.core.a": {"p.deploy.b"}, "p.deploy.b": {"p.core.a"}}
    assert STRUCTURE["from_beside"](graph) == ["p.core.a -> p.deploy.b"]


def test_imports_for_type_checkers_and_in_functions_count(tmp_path):
    module = tmp_path / "a.py"
    module.write_text(
        "if TYPE_CHECKING:\n    from p.b import B\n\n\ndef f():\n    from p import c\n"
    )
    assert STRUCTURE["imported"](module, "p", {"p", "p.b", "p.c"}) == {"p.b", "p.c"}


@pytest.mark.slow
def test_the_coordinator_knows_no_carrier_by_import():
    carriers = tuple(f"fedunseen.deploy.{name}" for name in ("websocket", "flower", "nvflare"))
    remote = sorted((PACKAGE / "deploy" / "remote").glob("*.py"))
    assert remote
    assert not [
        (path, name) for path in remote for name in imported(path) if name.startswith(carriers)
    ]


def test_files_that_contributing_names_exist():
    text = (STRUCTURE["ROOT"] / "CONTRIBUTING.md").read_text("utf-8")
    named = set(re.findall(r"(?<![\w/.])[\w./]+/[\w.]+\.(?:py|toml|md)\b", text))
    places = (STRUCTURE["ROOT"], PACKAGE)
    assert len(named) > 20
    named = {name for name in named if "NAME" not in name}
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


PROSE = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "prose.py"))


@pytest.mark.parametrize("page", PROSE["pages"](), ids=lambda p: p.name)
def test_pages_use_plain_words(page):
    assert PROSE["found_words"]([(page.name, 1, PROSE["prose_of_page"](page))]) == []


def test_code_in_a_page_or_a_template_and_names_of_random_streams_are_skipped(tmp_path):
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text("Nobody\n```text\nnobody\n```\n`nobody` [x](nobody.md)\n")
    module.write_text('STREAM = "nobody"\nTEXT = "nobody is told"  # mend it\n')
    assert PROSE["found_words"]([("page", 1, PROSE["prose_of_page"](page))]) == ["page:1: Nobody"]
    found = PROSE["found_words"](
        [("module", line, text) for line, text in PROSE["prose_of_code"](module)]
    )
    assert found == ["module:2: nobody", "module:2: told", "module:2: mend"]
    page = tmp_path / "page.html"
    page.write_text(
        "<style>\n.nobody {}</style>\n{% set nobody = 1 %}{{ nobody }}\n<p>Nobody `nobody`</p>\n"
    )
    assert PROSE["found_words"](
        [("page", n, text) for n, text in PROSE["prose_of_code"](page)]
    ) == ["page:4: Nobody"]


def test_every_group_of_mutants_has_modules_and_tests():
    """A folder that moves must not leave a group that finds nothing."""
    root = STRUCTURE["ROOT"]
    mutants = runpy.run_path(str(root / "tools" / "mutants.py"))
    for group, (patterns, tests) in mutants["GROUPS"].items():
        for pattern in patterns:
            assert list((root / mutants["PACKAGE"]).glob(pattern)), (group, pattern)
        assert [path for path in tests if not (root / path).exists()] == [], group


def test_no_two_files_of_tests_have_one_name():
    """pytest imports them by their name alone, and skips the second where both run together."""
    names = [path.name for path in (STRUCTURE["ROOT"] / "tests").rglob("*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == ["conftest.py"]
