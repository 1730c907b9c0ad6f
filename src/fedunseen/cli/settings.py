"""``fedunseen settings``: every key of an experiment file, from the code that reads it."""

from __future__ import annotations

import json
import re
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from fedunseen.core.settings import Settings
from fedunseen.data import PartitionSettings
from fedunseen.experiment.registry import find, names
from fedunseen.experiment.schema import NAMED, SECTIONS, EvaluationSettings, RunSettings
from fedunseen.threats.privacy import PrivacySettings

__all__ = ["reference"]


def reference() -> str:
    """Return a Markdown table of keys, defaults and meanings for each section and each of its choices."""
    parts: list[str] = []
    for section in SECTIONS:
        parts.append(f"## [{section}]")
        if section in NAMED:
            kinds: list[type[Settings]] = [find(section, name).Settings for name in names(section)]
            common = set.intersection(*(set(kind.model_fields) for kind in kinds))
            same = {key for key in common if len({repr(kind.model_fields[key]) for kind in kinds}) == 1}
            if same:
                parts.append("Every choice has:\n\n" + _table(kinds[0], same))
            for name, kind in zip(names(section), kinds, strict=True):
                own = set(kind.model_fields) - same - {"name"}
                parts.append(f'### name = "{name}"\n\n' + (_table(kind, own) if own else "No keys of its own."))
        else:
            single: dict[str, type[Settings]] = {
                "partition": PartitionSettings,
                "privacy": PrivacySettings,
                "evaluation": EvaluationSettings,
            }
            only = single.get(section, RunSettings)
            parts.append(_table(only, set(only.model_fields)))
    return "\n\n".join(parts) + "\n"


def _table(kind: type[Settings], keys: set[str]) -> str:
    fields = {key: field for key, field in kind.model_fields.items() if key in keys}
    rows = [f"| `{key}` | {_default(field)} | {_meaning(field)} |" for key, field in fields.items()]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    value: Any = field.get_default(call_default_factory=True)
    if value is None:
        return "unset"
    return f"`{json.dumps(value)}`"


def _meaning(field: FieldInfo) -> str:
    text = re.sub(r"\s+", " ", field.description or "").replace("``", "`").replace("|", "\\|")
    if get_origin(field.annotation) is Literal:
        text = f"One of {', '.join(f'`{choice}`' for choice in get_args(field.annotation))}. {text}"
    return text.strip()
