"""Modules import downward and never in a circle; the other budgets are in benchmarks/structure.toml."""

import runpy
from pathlib import Path

STRUCTURE = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "structure.py"))


def test_imports_go_down_and_never_in_a_circle():
    graph = STRUCTURE["import_graph"](STRUCTURE["ROOT"] / "src" / "fedunseen")
    assert STRUCTURE["cycles"](graph) == []
    assert STRUCTURE["upward"](graph) == []


def test_a_cycle_and_an_upward_import_are_found():
    graph = {"p.core.a": {"p.data.b"}, "p.data.b": {"p.data.c"}, "p.data.c": {"p.data.b"}}
    assert STRUCTURE["cycles"](graph) == ["p.data.b <-> p.data.c"]
    assert STRUCTURE["upward"](graph) == ["p.core.a -> p.data.b"]
