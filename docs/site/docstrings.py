"""Docstrings for the site: roles, tables and formulas (reStructuredText, LaTeX) become Markdown,
links and MathML.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import griffe
from latex2mathml.converter import convert

ROLE = re.compile(r":(attr|class|data|func|math|meth|mod):`([^`]*)`")
RULE = re.compile(r"=+( +=+)+")


class Docstrings(griffe.Extension):
    """Translates every docstring of the package once it is loaded, when names can be looked up."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Walk through the package."""
        self._walk(pkg, pkg)

    def _walk(self, pkg: griffe.Module, thing: griffe.Object) -> None:
        if thing.docstring:
            thing.docstring.value = markdown(
                thing.docstring.value, lambda name: _place(pkg, thing, name)
            )
        for member in thing.members.values():
            if not member.is_alias:
                self._walk(pkg, member)  # type: ignore[arg-type]


def markdown(text: str, place: Callable[[str], str | None] = lambda name: None) -> str:
    """Return a docstring as Markdown. ``place`` says where a name is defined, or None."""

    def role(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "math":
            return formula(name)
        shown, found = (
            name.lstrip("~").split(".")[-1] if name[0] == "~" else name,
            place(name.lstrip("~")),
        )
        code = f"`{shown}{'()' if kind in ('func', 'meth') else ''}`"
        return (
            f'<autoref identifier="{found}" optional markdown>{code}</autoref>' if found else code
        )

    displayed = re.compile(r"^( *)\.\. math::(.*(?:\n(?:\1 +\S.*))*)", re.M)
    text = displayed.sub(lambda found: found[1] + formula(found[2], "block"), text)
    text = "\n".join(_tables(inspect.cleandoc(text).split("\n")))
    return ROLE.sub(role, re.sub(r"^Example:$", "Examples:", text, flags=re.M))


def formula(latex: str, display: str = "inline") -> str:
    """Return LaTeX as MathML in which Markdown finds nothing to do."""
    made = convert(" ".join(latex.split()), display=display)
    return re.sub(r"[_*|`\\]", lambda found: f"&#{ord(found[0])};", made)


def _tables(lines: list[str]) -> list[str]:
    """Return the lines with tables ruled by = as tables ruled by |."""
    out: list[str] = []
    rows: list[list[str]] | None = None
    for line in lines:
        if RULE.fullmatch(line):
            if rows is None:
                rows, starts = [], [found.start() for found in re.finditer("=+", line)]
                ruled = 0
            ruled += 1
            if ruled == 3:
                out += ["| " + " | ".join(row) + " |" for row in rows]
                rows = None
            elif ruled == 2:
                rows.append(["---"] * len(starts))
        elif rows is not None:
            cells = [line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
            if cells[0]:
                rows.append(cells)
            else:  # goes on from the line above
                rows[-1] = [
                    f"{above} {more}".strip() for above, more in zip(rows[-1], cells, strict=True)
                ]
        else:
            out.append(line)
    return out


def _place(pkg: griffe.Module, thing: griffe.Object, name: str) -> str | None:
    """Return the path of what a docstring names: in its class, in its module, or from the root."""
    around = thing
    while True:
        if not around.is_function and _has(pkg, path := f"{around.path}.{name}"):
            return path
        if around.parent is None:
            return name if _has(pkg, name) else None
        around = around.parent  # type: ignore[assignment]


def _has(pkg: griffe.Module, path: str) -> bool:
    try:
        return path.startswith(f"{pkg.path}.") and not pkg[path.partition(".")[2]].is_alias
    except (KeyError, ValueError):
        return False
