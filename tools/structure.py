"""Print the structural budgets of the package, and check that none has grown.

Counted are long functions and functions of many parameters outside ``cli/``; import cycles,
imports against the order of packages and of the core from the folders beside it, those for type
checkers and inside functions too; imports inside functions outside ``cli/``; assignments of a
tuple to a tuple; lines over 100 columns; words of documentation, without research notes, and
pages over the length of their kind, without code blocks. Lines of code
have no limit. ``structure.toml`` holds the limit of each; a limit may only fall::

    python tools/structure.py --check      # exit code 1 where a limit is exceeded
    python tools/structure.py --tighten    # lower every limit to what is measured
    python tools/structure.py --verbose    # name the functions and the imports
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
    ("confidence",),
    ("plans",),
    ("statistics",),
    ("model",),
    ("evaluation",),
    ("federation",),
    ("tasks",),
    ("experiment",),
    ("estimator",),
    ("cli",),
    ("safety",),  # beside the core: each is found by what it lists, and can be deleted
    ("deploy",),
    ("research",),
    ("pages",),
    ("__main__", "__init__"),
)
BESIDE = ("safety", "deploy", "research", "pages")
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
PARAMETERS_EXEMPT = ("src/fedunseen/estimator.py:__init__",)
LINES, PARAMETERS, COLUMNS = 60, 8, 100
PAGES = {"Tutorials": 800, "How-to": 600, "Explanation": 1000}  # words

Found = dict[str, list[str]]


def functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield the place of each function of a file, its lines and its parameters."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            own = node.args
            count = (
                len([*own.posonlyargs, *own.args, *own.kwonlyargs])
                + bool(own.vararg)
                + bool(own.kwarg)
            )
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield f"{path.relative_to(ROOT).as_posix()}:{node.name}", lines, count


def imported(path: Path, package: str, modules: set[str]) -> set[str]:
    """Return the package's modules that a file imports, in functions and for type checkers too."""
    names = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    found = set()
    for name in names:
        while name and name not in modules:
            name = name.rpartition(".")[0]
        if name and name != package:
            found.add(name)
    return found


def lazy_imports(path: Path) -> Iterator[str]:
    """Yield the imports of the package's own modules inside functions."""
    seen = set()
    for function in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for node in ast.walk(function):
                own = isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                    "fedunseen"
                )
                if own and node.lineno not in seen:
                    seen.add(node.lineno)
                    yield f"{path.relative_to(ROOT).as_posix()}:{node.lineno} {node.module}"


def tuple_assignments(path: Path) -> Iterator[str]:
    """Yield the assignments of a tuple to a tuple, which save lines alone."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if (
            isinstance(node, ast.Assign)
            and any(isinstance(target, ast.Tuple) for target in node.targets)
            and isinstance(node.value, ast.Tuple)
        ):
            yield f"{path.relative_to(ROOT).as_posix()}:{node.lineno}"


def from_beside(graph: dict[str, set[str]]) -> list[str]:
    """Return the imports of the core from the folders beside it."""

    def beside(name: str) -> bool:
        return "." in name and name.split(".")[1] in BESIDE

    return [
        f"{a} -> {b}"
        for a, targets in sorted(graph.items())
        for b in sorted(targets)
        if beside(b) and not beside(a)
    ]


def import_graph(source: Path) -> dict[str, set[str]]:
    """Return module -> the modules of the same package that it imports."""
    paths = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source.parent).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: imported(path, source.name, set(paths)) - {name} for name, path in paths.items()}


def cycles(graph: dict[str, set[str]]) -> list[str]:
    """Return the strongly connected components of more than one module, each as its sorted
    names.
    """
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen, left = set[str](), list(graph[start])
        while left:
            name = left.pop()
            if name not in seen:
                seen.add(name)
                left += graph[name]
        reached[start] = seen
    groups = {
        tuple(sorted({b for b in reached[a] if a in reached[b]} | {a}))
        for a in graph
        if a in reached[a]
    }
    return [" <-> ".join(group) for group in sorted(groups)]


def upward(graph: dict[str, set[str]]) -> list[str]:
    """Return the imports of a package that stands above the importing one."""

    def rank(name: str) -> int:
        return RANK[name.split(".")[1]] if "." in name else len(ORDER)

    pairs = ((a, b) for a, targets in sorted(graph.items()) for b in sorted(targets))
    return [f"{a} -> {b}" for a, b in pairs if rank(b) > rank(a)]


def long_pages() -> Iterator[str]:
    """Yield the pages of ``docs/README.md`` that have more words than their kind may, and their
    number of words.
    """
    index = ROOT / "docs" / "README.md"
    for kind, body in re.findall(
        r"^## (.*?)\n(.*?)(?=^## |\Z)", index.read_text("utf-8"), re.DOTALL | re.MULTILINE
    ):
        for link in re.findall(r"^- \[.*?\]\((.*?)\)", body, re.MULTILINE) if kind in PAGES else ():
            text = (index.parent / link).read_text("utf-8")
            if link.endswith(".ipynb"):
                cells = [
                    cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"
                ]
                text = "\n".join("".join(cell["source"]) for cell in cells)
            words = len(
                re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE).split()
            )
            if words > PAGES[kind]:
                yield f"{link} {words}"


def measure() -> tuple[dict[str, int], Found]:
    """Return each budget's number, and what is behind those that name something."""
    source = ROOT / "src" / "fedunseen"

    files = sorted(source.rglob("*.py"))
    every = [one for path in files for one in functions(path)]
    graph = import_graph(source)
    found: Found = {
        "long_functions": [
            f"{place} {length}"
            for place, length, _ in every
            if length > LINES and "/cli/" not in place
        ],
        "many_parameters": [
            f"{place} {count}"
            for place, _, count in every
            if count > PARAMETERS and "/cli/" not in place and place not in PARAMETERS_EXEMPT
        ],
        "import_cycles": cycles(graph),
        "core_from_beside": from_beside(graph),
        "lazy_imports": [
            place for path in files if "cli" not in path.parts for place in lazy_imports(path)
        ],
        "tuple_assignments": [place for path in files for place in tuple_assignments(path)],
        "long_lines": [
            f"{path.relative_to(ROOT).as_posix()}:{number}"
            for path in files
            for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
            if len(line) > COLUMNS
        ],
        "upward_imports": upward(graph),
        "long_pages": list(long_pages()),
    }
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    read = [path for path in pages if path.parent.name != "research"]
    words = sum(len(path.read_text("utf-8").split()) for path in read)
    return {"docs_words": words} | {name: len(places) for name, places in found.items()}, found


def limits_of(file: Path) -> dict[str, dict[str, int]]:
    """Return the tables ``limits`` and ``targets`` of a TOML file."""
    tables: dict[str, dict[str, int]] = tomllib.loads(file.read_text("utf-8"))
    return tables


def judge(numbers: dict[str, int], places: Found, file: Path, check: bool, tighten: bool) -> None:
    """Print each number beside its limit and target, and what ``places`` names below it.

    Args:
        numbers: name -> what is measured.
        places: name -> what was counted, to be named.
        file: TOML with the tables ``limits`` and ``targets``.
        check: exit with code 1 where a limit is exceeded.
        tighten: lower the limits in the file to what is measured.
    """
    limits = limits_of(file)
    print(f"{'':18}{'now':>8}{'limit':>8}{'target':>8}")
    for name, number in numbers.items():
        print(f"{name:18}{number:8,}{limits['limits'][name]:8,}{limits['targets'][name]:8,}")
        for place in places.get(name, ()):
            print(f"    {place}")
    over = [name for name, number in numbers.items() if number > limits["limits"][name]]
    if tighten:
        lowest = {name: min(number, limits["limits"][name]) for name, number in numbers.items()}
        parts = (("limits", lowest), ("targets", limits["targets"]))
        text = "\n".join(
            f"[{part}]\n" + "".join(f"{k} = {v}\n" for k, v in table.items())
            for part, table in parts
        )
        line = f"# Limits only fall: `python tools/{file.stem}.py --tighten`.\n"
        file.write_text(line + text, "utf-8")
    if check and over:
        sys.exit(f"over the limit: {', '.join(over)}; {file.name} holds the limits")


def main() -> None:
    """Print the table, and check or lower the limits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="fail where a limit is exceeded")
    parser.add_argument(
        "--tighten", action="store_true", help="lower the limits to what is measured"
    )
    parser.add_argument("--verbose", action="store_true", help="name what is counted")
    chosen = parser.parse_args()
    numbers, found = measure()
    limits = limits_of(LIMITS)["limits"]
    named = {
        name: places
        for name, places in found.items()
        if chosen.verbose or numbers[name] > limits[name]
    }
    judge(numbers, named, LIMITS, chosen.check, chosen.tighten)


if __name__ == "__main__":
    main()
