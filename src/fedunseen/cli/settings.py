"""``fedunseen settings``: every key of an experiment file, from the code that reads it."""

import ast
import inspect
import json
import re
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from fedunseen.cli.console import say
from fedunseen.core.errors import ExperimentError
from fedunseen.core.registry import find, names
from fedunseen.core.settings import Settings
from fedunseen.experiment.parsing import NAMED, SECTIONS
from fedunseen.experiment.schema import plain_settings


def reference() -> str:
    """Return a Markdown table of keys, defaults and meanings for each section and each of its choices."""
    parts: list[str] = []
    for section in SECTIONS:
        parts.append(f"## [{section}]")
        if section in NAMED:
            parts += _choices(_kinds(section))
        else:
            only = plain_settings(section)
            parts.append(_table(only, set(only.model_fields)))
    return "\n\n".join(parts) + "\n"


def _kinds(section: str) -> dict[str, type[Settings]]:
    """Return the settings of a section's choices, without those of other packages that cannot be loaded."""
    kinds = {}
    for name in names(section):
        try:
            kinds[name] = find(section, name).Settings
        except ExperimentError as error:
            say(f"warning: {error}")
    return kinds


def _choices(kinds: Mapping[str, type[Settings]]) -> list[str]:
    """Return the tables of a section's choices: keys that several have in the same words stand once, at the top."""
    sharing: dict[tuple[str, str], list[str]] = {}  # a key with its default and meaning -> who has it
    for name, kind in kinds.items():
        for key, field in kind.model_fields.items():
            sharing.setdefault((key, f"{field!r} {_docstrings(kind).get(key)}"), []).append(name)
    groups: dict[tuple[str, ...], set[str]] = {}
    for (key, _), sharers in sharing.items():
        groups.setdefault(tuple(sharers), set()).add(key)
    # all choices, or at least three that share more than one key
    groups = {w: keys for w, keys in groups.items() if len(w) == len(kinds) or (len(w) > 2 and len(keys) > 1)}
    parts = []
    for having, keys in sorted(groups.items(), key=lambda group: (-len(group[0]), group[0])):
        named = ", ".join(f"`{name}`" for name in having)
        title = "Every choice has:" if len(having) == len(kinds) else f"{named} have:"
        parts.append(f"{title}\n\n" + _table(kinds[having[0]], keys))
    bare = []
    for name, kind in kinds.items():
        shown = {"name"}.union(*(keys for having, keys in groups.items() if name in having))
        if own := set(kind.model_fields) - shown:
            parts.append(f'### name = "{name}"\n\n' + _table(kind, own))
        else:
            bare.append(f"`{name}`")
    if bare:
        parts.append(f"No keys of their own: {', '.join(bare)}.")
    return parts


def _table(kind: type[Settings], keys: set[str]) -> str:
    fields = {key: field for key, field in kind.model_fields.items() if key in keys}
    docstrings = _docstrings(kind)
    rows = [
        f"| `{key}` | {_default(field)} | {_meaning(field, docstrings.get(key))} |" for key, field in fields.items()
    ]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    value: Any = field.get_default(call_default_factory=True)
    if value is None:
        return "unset"
    return f"`{json.dumps(value)}`"


@cache
def _docstrings(kind: type[Settings]) -> dict[str, str]:
    """Return the docstrings below fields. Pydantic could read them too, but does so whenever a class is imported."""
    found = {}
    for base in reversed(kind.__mro__[: kind.__mro__.index(Settings)]):
        try:
            (tree,) = ast.parse(dedent(inspect.getsource(base))).body
        except (OSError, TypeError):  # made by `register`, which has no source
            continue
        for field, below in pairwise(getattr(tree, "body", ())):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[key] = text
    return found


def _meaning(field: FieldInfo, docstring: str | None) -> str:
    text = re.sub(r"\s+", " ", docstring or "").replace("``", "`").replace("|", "\\|")
    if get_origin(field.annotation) is Literal:
        text = f"One of {', '.join(f'`{choice}`' for choice in get_args(field.annotation))}. {text}"
    return text.strip()
