"""Who may import what: engines know nothing of the rooms above them, and one carrier's folder imports its library."""

import ast
from pathlib import Path

import pytest

import fedunseen

ROOT = Path(fedunseen.__file__).parent
ENGINES = sorted((ROOT / "engines").rglob("*.py"))


def imported(path):
    """Every module that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports by a relative name"
            yield from (f"{node.module}.{one.name}" for one in node.names)


@pytest.mark.slow
@pytest.mark.parametrize(("library", "folder"), [("flwr", "flower"), ("nvflare", "nvflare")])
def test_one_folder_imports_a_carriers_library(library, folder):
    own = ROOT / "engines" / "carriers" / folder
    found = {path for path in ROOT.rglob("*.py") if library in {name.split(".")[0] for name in imported(path)}}
    assert not [path for path in found if own not in path.parents]
    assert found


def test_nothing_imports_what_flower_does_not_publish():
    """``flwr.app.message`` and the like are modules of a public package, and not public themselves."""
    public = {"flwr", "flwr.app", "flwr.clientapp", "flwr.serverapp"}
    found = {
        (path.name, name)
        for path in ROOT.rglob("*.py")
        for name in imported(path)
        if name.split(".")[0] == "flwr" and name not in public and name.rpartition(".")[0] not in public
    }
    assert not found


def test_nothing_names_what_nvflare_does_not_publish():
    assert not [path for path in ROOT.rglob("*.py") if "nvflare.private" in path.read_text()]


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
