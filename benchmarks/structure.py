"""Print the structural budgets of the package, and check that none has grown.

Counted are lines of Python, long functions, functions of many parameters, import cycles, imports against the order of
packages, words of documentation, without research notes and the list of changes, and pages over the length of their
kind, without code blocks. ``structure.toml`` holds the limit of each; a limit may only fall::

    python benchmarks/structure.py --check      # exit code 1 where a limit is exceeded
    python benchmarks/structure.py --tighten    # lower every limit to what is measured
    python benchmarks/structure.py --verbose    # name the functions and the imports
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMITS = Path(__file__).with_suffix(".toml")
ORDER = (  # a package imports from its own line and those above it
    ("core", "losses", "metrics", "partitions"),
    ("encoders",),
    ("data",),
    ("strategies",),
    ("methods",),
    ("evaluation",),
    ("secagg",),
    ("engines",),
    ("privacy", "defences", "attacks"),
    ("federation",),
    ("tasks",),
    ("experiment",),
    ("papers",),
    ("tools", "estimator"),
    ("report", "serve"),
    ("cli",),
    ("__main__", "__init__"),
)
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
PARAMETERS_EXEMPT = ("src/fedunseen/estimator.py:__init__",)
LINES, PARAMETERS = 60, 8
PAGES = {"Tutorials": 800, "How-to": 600, "Explanation": 1000}  # words

Found = dict[str, list[str]]


def functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield the place of each function of a file, its lines and its parameters."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            own = node.args
            count = len([*own.posonlyargs, *own.args, *own.kwonlyargs]) + bool(own.vararg) + bool(own.kwarg)
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield f"{path.relative_to(ROOT).as_posix()}:{node.name}", lines, count


def imported(path: Path, package: str, modules: set[str]) -> set[str]:
    """Return the package's modules that a file imports, in functions too; imports for type checkers do not count."""

    def visit(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for child in node.orelse:
                yield from visit(child)
            return
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    found = set()
    for name in visit(ast.parse(path.read_text("utf-8"))):
        while name and name not in modules:
            name = name.rpartition(".")[0]
        if name and name != package:
            found.add(name)
    return found


def import_graph(source: Path) -> dict[str, set[str]]:
    """Return module -> the modules of the same package that it imports."""
    paths = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source.parent).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: imported(path, source.name, set(paths)) - {name} for name, path in paths.items()}


def cycles(graph: dict[str, set[str]]) -> list[str]:
    """Return the strongly connected components of more than one module, each as its sorted names."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen, left = set[str](), list(graph[start])
        while left:
            name = left.pop()
            if name not in seen:
                seen.add(name)
                left += graph[name]
        reached[start] = seen
    groups = {tuple(sorted({b for b in reached[a] if a in reached[b]} | {a})) for a in graph if a in reached[a]}
    return [" <-> ".join(group) for group in sorted(groups)]


def upward(graph: dict[str, set[str]]) -> list[str]:
    """Return the imports of a package that stands above the importing one."""

    def rank(name: str) -> int:
        return RANK[name.split(".")[1]] if "." in name else len(ORDER)

    pairs = ((a, b) for a, targets in sorted(graph.items()) for b in sorted(targets))
    return [f"{a} -> {b}" for a, b in pairs if rank(b) > rank(a)]


def long_pages() -> Iterator[str]:
    """Yield the pages of ``docs/README.md`` that have more words than their kind may, and their number of words."""
    index = ROOT / "docs" / "README.md"
    for kind, body in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", index.read_text("utf-8"), re.DOTALL | re.MULTILINE):
        for link in re.findall(r"^- \[.*?\]\((.*?)\)", body, re.MULTILINE) if kind in PAGES else ():
            text = (index.parent / link).read_text("utf-8")
            if link.endswith(".ipynb"):
                cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
                text = "\n".join("".join(cell["source"]) for cell in cells)
            words = len(re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE).split())
            if words > PAGES[kind]:
                yield f"{link} {words}"


def measure() -> tuple[dict[str, int], Found]:
    """Return each budget's number, and what is behind those that name something."""
    source = ROOT / "src" / "fedunseen"

    def lines(folder: str) -> int:
        return sum(path.read_text("utf-8").count("\n") for path in (ROOT / folder).rglob("*.py"))

    every = [one for path in sorted(source.rglob("*.py")) for one in functions(path)]
    graph = import_graph(source)
    found: Found = {
        "long_functions": [f"{place} {length}" for place, length, _ in every if length > LINES],
        "many_parameters": [
            f"{place} {count}"
            for place, _, count in every
            if count > PARAMETERS and "/cli/" not in place and place not in PARAMETERS_EXEMPT
        ],
        "import_cycles": cycles(graph),
        "upward_imports": upward(graph),
        "long_pages": list(long_pages()),
    }
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    read = [path for path in pages if path.name != "CHANGELOG.md" and path.parent.name != "research"]
    words = sum(len(path.read_text("utf-8").split()) for path in read)
    sizes = {"src_lines": lines("src"), "tests_lines": lines("tests"), "docs_words": words}
    return sizes | {name: len(places) for name, places in found.items()}, found


def main() -> None:
    """Print the table, and check or lower the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail where a limit is exceeded")
    parser.add_argument("--tighten", action="store_true", help="lower the limits to what is measured")
    parser.add_argument("--verbose", action="store_true", help="name what is counted")
    parser.add_argument("--smallest", action="store_true", help="as every benchmark: nothing is smaller here")
    chosen = parser.parse_args()
    numbers, found = measure()
    limits: dict[str, dict[str, int]] = tomllib.loads(LIMITS.read_text("utf-8"))
    print(f"{'':18}{'now':>8}{'limit':>8}{'target':>8}")
    for name, number in numbers.items():
        print(f"{name:18}{number:8,}{limits['limits'][name]:8,}{limits['targets'][name]:8,}")
        for place in found.get(name, ()) if chosen.verbose else ():
            print(f"    {place}")
    over = [name for name, number in numbers.items() if number > limits["limits"][name]]
    if chosen.tighten:
        lowest = {name: min(number, limits["limits"][name]) for name, number in numbers.items()}
        parts = (("limits", lowest), ("targets", limits["targets"]))
        text = "\n".join(f"[{part}]\n" + "".join(f"{k} = {v}\n" for k, v in own.items()) for part, own in parts)
        LIMITS.write_text("# Limits only fall: `python benchmarks/structure.py --tighten`.\n" + text, "utf-8")
    if chosen.check and over:
        sys.exit(f"over the limit: {', '.join(over)}; `--verbose` names the places, and {LIMITS.name} holds the limits")


if __name__ == "__main__":
    main()
