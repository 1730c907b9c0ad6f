"""Values as TOML, on one line each: what ``--set`` takes and what experiment files hold.

The library tomli-w writes files, not values: a table within a section becomes a section of its own
there, which cannot stand behind ``--set``.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from fedunseen.core.errors import ExperimentError
from fedunseen.core.files import DEEPEST, depth

LONGEST = 2**18
"""Characters of a TOML file at most: the parser's time grows with the square of a hostile file's
length.
"""


def parse_toml(text: str, source: object) -> dict[str, Any]:
    """Return the content of a TOML file; ``source`` is its name in messages."""
    if len(text) > LONGEST:
        raise ExperimentError(
            f"{source} has {len(text):,} characters: an experiment has {LONGEST:,} at most"
        )
    parts = max(
        piece.count(".") for piece in re.split(r"[][{},=#\n]", text)
    )  # of a key: the parser's time is quadratic
    if parts > DEEPEST:
        raise ExperimentError(f"{source}: a key has {parts + 1} parts: {DEEPEST} at most")
    try:
        tree = tomllib.loads(text)
    except (
        RecursionError,
        ValueError,
    ) as error:  # ValueError also for a number or a date that Python cannot hold
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ExperimentError(f"{source}: this is not a TOML file: {why}") from None
    if depth(tree) > DEEPEST:
        raise ExperimentError(
            f"{source}: its tables are nested more than {DEEPEST} deep: write them flat"
        )
    return tree


def toml_text(tree: Mapping[str, Any]) -> str:
    """Return the text of a TOML file that reads back to ``tree``: plain values first, then a
    section each.
    """
    plain = {key: value for key, value in tree.items() if not isinstance(value, Mapping)}
    text = _lines(plain)
    for section, content in tree.items():
        if isinstance(content, Mapping):
            text += f"\n[{toml_key(section)}]\n{_lines(content)}"
    return text.lstrip("\n")


def _lines(content: Mapping[str, Any]) -> str:
    return "".join(f"{toml_key(key)} = {toml_value(value)}\n" for key, value in content.items())


def toml_key(key: str) -> str:
    """Write a key, in quotes where it needs them."""
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else json.dumps(key, ensure_ascii=False)


def toml_value(value: Any) -> str:
    """Write a value.

    Example:
        >>> toml_value({"5-9": [10, 0.5, True]})
        '{ 5-9 = [10, 0.5, true] }'
    """
    if isinstance(value, Mapping):
        inner = ", ".join(f"{toml_key(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)  # strings, whole numbers, true and false
