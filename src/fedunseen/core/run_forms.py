"""Which kinds of values the JSON files of a run directory have, so that readers need not ask."""

import math
import re
from collections.abc import Mapping
from typing import Any

_NUMBER = (int, float)
_FORMS: Mapping[str, Mapping[str, Any]] = {
    "manifest.json": {
        "answers": [],
        "benchmark": str,
        "command": [str],
        "created": str,
        "data_fingerprint": str,
        "encoder": {},
        "experiment": {"*": (dict, str), "name": str},
        "fitted": [str],
        "forgotten": [],
        "image_shape": [int],
        "input_shape": [int],
        "learnt": [],
        "picture_shape": [int],
        "plugins": {},
        "removed": {},
        "seed": int,
        "task": str,
        "text_encoder": {},
        "traits": {
            "accuracies": [str],
            "merges!": bool,
            "pools!": bool,
            "private!": [str],
            "zero_shot!": bool,
        },
        "versions": {"*": str},
    },
    "result.json": {
        "adapted": {},
        "bytes_down": _NUMBER,
        "bytes_up": _NUMBER,
        "calibration_factor": _NUMBER,
        "chosen_on_validation": {"settings": {}},
        "clipped": _NUMBER,
        "confidence": {},
        "gzsl_head": str,
        "influence": {},
        "left_out_accuracy": {},
        "learnt": [],
        "left_out_rivals": {"*": {}},
        "parameters": {"*": int},
        "parameters_shared": int,
        "rounds": int,
        "run": str,
        "seconds": _NUMBER,
        "seed": int,
        "seeds": [int],
        "selected_round": int,
        "selection": str,
        "stays": [str],
        "summary": {},
        "sums_sha256": str,
        "warnings": [{"what!": str, "why": str, "remedy!": str}],
    },
}
"""File -> key -> the type of its value. ``[...]`` is a list of that, ``[]`` of anything; of a table
each key that is named, and all (``*``); ``!`` marks those that it must have. Other keys are checked
where they are read."""

_ACCURACY = re.compile("(uncalibrated_)?(zsl|gzsl|few_shot)(_.+)?")
_ABSENT = ("command", "encoder", "image_shape", "picture_shape", "text_encoder", "plugins")
"""Keys that may be null."""


def misshapen(file: str, content: Mapping[str, Any]) -> str:
    """Return the first key whose value is of another kind than the package writes; "" if none is.

    Args:
        file: the name of a file of a run directory.
        content: the table that it holds.
    """
    for key, value in content.items():
        form = _FORMS[file].get(key, _NUMBER if _ACCURACY.fullmatch(key) else None)
        null = value is None and key in _ABSENT
        if form is None or null:
            continue
        if not _has(value, form) or (key.endswith("_shape") and min(value, default=0) < 1):
            return key
    return "image_shape" if _other_pictures(content) else ""


def _other_pictures(content: Mapping[str, Any]) -> bool:
    """Return whether pictures are said to have other pixels than samples."""
    pictures = content.get("image_shape")
    return pictures is not None and (
        len(pictures) not in (2, 3) or math.prod(pictures) != math.prod(content["input_shape"])
    )


def not_numbers(content: Mapping[str, Any], names: list[str]) -> str:
    """Return the first of these keys, or of their deviations, that is no number; "" if none is."""
    for name in names:
        deviation = content.get(f"{name}_sd", 0.0)
        if not (_has(content.get(name), _NUMBER) and _has(deviation, _NUMBER)):
            return name
    return ""


def _has(value: Any, form: Any) -> bool:
    if isinstance(form, list):
        return isinstance(value, list) and all(_has(item, kind) for kind in form for item in value)
    if isinstance(form, Mapping):
        return isinstance(value, dict) and _has_keys(value, form)
    if isinstance(value, bool):
        return form is bool
    return isinstance(value, form)


def _has_keys(table: Mapping[str, Any], form: Mapping[str, Any]) -> bool:
    for key, kind in form.items():
        name = key.rstrip("!")
        chosen = table if key == "*" else [name] if name in table else []
        if key != name and not chosen:
            return False
        if not all(_has(table[item], kind) for item in chosen):
            return False
    return True
