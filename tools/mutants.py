"""Measure how many drawn faults the fast tests find: the mutation score of each group of modules.

A mutant is the source with one operator, comparison, sign or number changed. Mutants are drawn by
the hash of the place (module, function, kind, ordinal in the function), so the same places are
drawn after unrelated changes::

    python tools/mutants.py                          # every group, 20 mutants each
    python tools/mutants.py losses metrics --count 8
    python tools/mutants.py --list strategies        # print the drawn mutants, run nothing
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src/fedunseen")
GROUPS = {  # modules of the package, and the tests that must find their faults
    "losses": (["losses.py"], ["tests/test_losses.py"]),
    "metrics": (["metrics.py"], ["tests/test_metrics.py"]),
    "partitions": (
        ["partitions.py", "federation/partition.py"],
        ["tests/test_partitions.py", "tests/federation/test_partition.py"],
    ),
    "trainer": (["core/trainer.py", "core/phases.py"], ["tests/core"]),
    "masks": (["deploy/secagg/*.py"], ["tests/secagg"]),
    "strategies": (
        ["strategies/*.py"],
        ["tests/strategies", "tests/defences/test_pipeline.py", "tests/engines/test_in_process.py"],
    ),
    "screening": (["safety/defences/screening.py"], ["tests/defences/test_screening.py"]),
    "methods": (["methods/**/*.py"], ["tests/methods"]),
}
SWAPS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


class Mutant(NamedTuple):
    """One changed place: its module, its position in ``ast.walk`` order, and how it is printed."""

    module: Path
    position: int
    name: str


def change(node: ast.AST) -> ast.AST | None:
    """Return the node with one fault, or None where it offers no place for one."""
    changed = copy.deepcopy(node)
    match changed:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in SWAPS:
            changed.op = SWAPS[type(op)]()
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            changed.ops = [SWAPS[type(op)]()]
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=value) if type(value) in (int, float):
            changed.value = value + 1
        case _:
            return None
    return changed


def mutants(module: Path) -> Iterator[Mutant]:
    """Yield every mutant of a module that lies in a function."""
    tree = ast.parse((ROOT / module).read_text())
    owner: dict[ast.AST, str] = {}
    for function in ast.walk(tree):  # outer functions come first, so the innermost one owns a node
        if isinstance(function, ast.FunctionDef):
            owner |= {node: function.name for part in function.body for node in ast.walk(part)}
    ordinals: Counter[str] = Counter()
    for position, node in enumerate(ast.walk(tree)):
        if node in owner and change(node) is not None:
            kind = type(
                getattr(node, "op", None) or (getattr(node, "ops", None) or [node])[0]
            ).__name__
            name = f"{module.relative_to(PACKAGE)}:{owner[node]}:{kind}"
            ordinals[name] += 1
            line = getattr(node, "lineno", 0)
            yield Mutant(module, position, f"{name}:{ordinals[name]} (line {line})")


def place_of(name: str) -> str:
    """Return where a mutant is, by which it is drawn; a file that has moved keeps the mutants of
    its old place.
    """
    return name.split(" (")[0].replace("federation/partition.py", "data/partition.py")


def draw(group: str, count: int) -> list[Mutant]:
    """Return the drawn mutants of a group, the same ones for the same places."""
    modules = sorted(
        {path for pattern in GROUPS[group][0] for path in (ROOT / PACKAGE).glob(pattern)}
    )
    if not modules:
        raise SystemExit(f"{group}: no module matches {GROUPS[group][0]}")
    every = [mutant for path in modules for mutant in mutants(path.relative_to(ROOT))]
    return sorted(every, key=lambda m: hashlib.sha256(place_of(m.name).encode()).digest())[:count]


def passes(tests: list[str], folder: Path, timeout: float) -> bool:
    """Return whether the tests pass with the source in ``folder``; False where they do not end in
    time.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        *tests,
    ]
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    try:
        ran = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return ran.returncode == 0


def mutated(mutant: Mutant) -> str:
    """Return the module's source with the mutant in place."""
    tree = ast.parse((ROOT / mutant.module).read_text())
    target = list(ast.walk(tree))[mutant.position]
    changed = change(target)

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return changed if node is target else self.generic_visit(node)

    return ast.unparse(ast.fix_missing_locations(Replace().visit(tree)))


def main() -> None:
    """Print each mutant as found or missed, and the score of each group."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("groups", nargs="*", default=list(GROUPS), help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--count", type=int, default=20, help="mutants drawn from each group")
    parser.add_argument(
        "--timeout", type=float, default=900, help="seconds after which a mutant counts as found"
    )
    parser.add_argument("--list", action="store_true", help="print the drawn mutants and stop")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shutil.copytree(ROOT / PACKAGE, folder / "fedunseen")
        for group in arguments.groups:
            drawn = draw(group, arguments.count)
            if arguments.list:
                print(*[mutant.name for mutant in drawn], sep="\n")
                continue
            tests = GROUPS[group][1]
            if not passes(tests, folder, arguments.timeout):
                sys.exit(f"{group}: the tests fail without a mutant; make them pass first")
            results = []
            for mutant in drawn:
                place = folder / mutant.module.relative_to("src")
                place.write_text(mutated(mutant))
                results.append(not passes(tests, folder, arguments.timeout))
                shutil.copy(ROOT / mutant.module, place)
                print(f"{'found ' if results[-1] else 'MISSED'} {mutant.name}", flush=True)
            print(f"{group}: {sum(results)} of {len(results)} found\n", flush=True)


if __name__ == "__main__":
    main()
