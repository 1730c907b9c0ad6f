"""``fedunseen settings``: every key of an experiment file, from the code that reads it."""

import ast
import inspect
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from fedunseen.cli.console import say
from fedunseen.core.errors import ExperimentError, MissingDependencyError
from fedunseen.core.registry import find, names
from fedunseen.core.settings import Settings
from fedunseen.experiment.parsing import NAMED, SECTIONS
from fedunseen.experiment.schema import plain_settings


def reference() -> str:
    """Return a Markdown table of keys, defaults and meanings for each section.

    A key that several choices of a section have with one meaning stands in one row.
    """
    return "\n".join(f"## [{section}]\n{_table(section)}\n" for section in SECTIONS)


def _kinds(section: str) -> dict[str, type[Settings]]:
    """Return the settings of a section's choices, without those that cannot be loaded: of other
    packages, or where the libraries of an extra are missing.
    """
    kinds = {}
    for name in names(section):
        try:
            kinds[name] = find(section, name).Settings
        except MissingDependencyError as error:
            say(f"note: {section}.name = {name!r} is not listed: {error}")
        except ExperimentError as error:
            say(f"warning: {error}")
    return kinds


@dataclass(frozen=True)
class _Row:
    """A key of a section in one meaning.

    Attributes:
        key: of the section.
        defaults: name of a choice that has the key -> its default.
        meaning: one paragraph.
    """

    key: str
    defaults: dict[str, str]
    meaning: str

    def default(self) -> str:
        """Return the default of most choices, then others, each with its choices."""
        names: dict[str, list[str]] = {}
        for name, default in self.defaults.items():
            names.setdefault(default, []).append(name)
        usual, *rare_values = sorted(names, key=lambda default: -len(names[default]))
        return "; ".join([usual, *(f"{', '.join(names[value])}: {value}" for value in rare_values)])


def _rows(kinds: Mapping[str, type[Settings]]) -> list[_Row]:
    """Return the keys of choices: first those that most have, then choice by choice."""
    rows: dict[tuple[str, str], _Row] = {}
    for name, kind in kinds.items():
        docstrings = _docstrings(kind)
        for key, field in kind.model_fields.items():
            meaning = _meaning(field, docstrings.get(key))
            row = rows.setdefault((key, meaning), _Row(key, {}, meaning))
            row.defaults[name] = _default(field)
    return sorted(rows.values(), key=lambda row: (-len(row.defaults), tuple(row.defaults)))


def _table(section: str) -> str:
    if section not in NAMED:
        rows = _rows({"": plain_settings(section)})
        cells = [["key", "default", "meaning"], ["---"] * 3]
        cells += [[f"`{row.key}`", row.default(), row.meaning] for row in rows]
    else:
        kinds = _kinds(section)
        cells = [["key", "default", "of", "meaning"], ["---"] * 4]
        cells += [["`name`", "", "all", f"One of {_listed(kinds)}."]]
        for row in _rows(kinds):
            if row.key != "name":
                having = "all" if len(row.defaults) == len(kinds) else _listed(row.defaults)
                cells.append([f"`{row.key}`", row.default(), having, row.meaning])
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    value: Any = field.get_default(call_default_factory=True)
    return "unset" if value is None else f"`{json.dumps(value)}`"


@cache
def _docstrings(kind: type[Settings]) -> dict[str, str]:
    """Return the docstrings below fields. Pydantic could read them too, but does so whenever a
    class is imported.
    """
    texts = {}
    for base in reversed(kind.__mro__[: kind.__mro__.index(Settings)]):
        try:
            (tree,) = ast.parse(dedent(inspect.getsource(base))).body
        except (OSError, TypeError):  # made by `register`, which has no source
            continue
        for field, below in pairwise(getattr(tree, "body", ())):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(
                    value=ast.Constant(value=str(text))
                ):
                    texts[key] = text
    return texts


def _meaning(field: FieldInfo, docstring: str | None) -> str:
    text = re.sub(r"\s+", " ", docstring or "").replace("``", "`").replace("|", "\\|")
    if get_origin(field.annotation) is Literal:
        text = f"One of {_listed(map(str, get_args(field.annotation)))}. {text}"
    return text.strip()
