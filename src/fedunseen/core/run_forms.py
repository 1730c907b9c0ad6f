"""Which kinds of values the JSON files of a run directory have, so that readers need not ask."""

from collections.abc import Mapping
from typing import Any

_NUMBER = (int, float)
_SECTIONS = ("data", "encoder", "evaluation", "method", "partition", "privacy", "run", "strategy")
_ACCURACIES = [
    prefix + name + suffix
    for prefix in ("", "uncalibrated_")
    for name in ("zsl", "gzsl_accuracy", "gzsl_harmonic", "gzsl_seen", "gzsl_unseen", "few_shot")
    for suffix in ("", "_sd")
]
_WEIGHTS = {"digest!": str, "files!": {"*": int}, "revision?": str}
FORMS: Mapping[str, Mapping[str, Any]] = {
    "manifest.json": {
        "answers": [],
        "benchmark": str,
        "client": int,
        "command?": [str],
        "created": str,
        "data_fingerprint": str,
        "encoder?": {"setting!": str, **_WEIGHTS},
        "experiment": {"*": (dict, str), **{name: {} for name in _SECTIONS}},
        "fitted": [str],
        "forgotten": [],
        "image_shape?": [int],
        "input_shape": [int],
        "learnt": [],
        "picture_shape?": [int],
        "plugins?": [str],
        "removed": {},
        "seed": int,
        "task": str,
        "text_encoder?": _WEIGHTS,
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
        **dict.fromkeys(_ACCURACIES, _NUMBER),
        "adapted": {"samples": int},
        "bytes_down": _NUMBER,
        "bytes_up": _NUMBER,
        "calibration_factor": _NUMBER,
        "chosen_on_validation": {"settings": {}},
        "clipped": _NUMBER,
        "confidence": {},
        "form": str,
        "gzsl_head": str,
        "gzsl_unseen_by_description": _NUMBER,
        "influence": {},
        "intervals": {"*": [_NUMBER]},
        "left_out_accuracy": {},
        "learn_effect": {
            "text!": str,
            "taught!": {"*": int},
            "classes!": {
                "class!": [str],
                "tests!": [int],
                "before!": [_NUMBER],
                "after!": [_NUMBER],
                "taken_by!": [str],
            },
        },
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
        "shown": {"*": int},
        "shown_tests": {"*": int},
        "stays": [str],
        "summary": {},
        "sums_sha256": str,
        "warnings": [{"what!": str, "why": str, "remedy!": str}],
    },
}
"""File -> key -> the type of its value. ``[...]`` is a list of that, ``[]`` of anything; of a table
each key that is named, and all (``*``). ``!`` marks a key that a table must have, ``?`` one that
may be null. Other keys are checked where they are read."""


def has_form(value: Any, form: Any) -> bool:
    """Return whether a value of a file is of the kind that ``form`` says."""
    if isinstance(form, list):
        return isinstance(value, list) and all(
            has_form(item, kind) for kind in form for item in value
        )
    if isinstance(form, Mapping):
        if not isinstance(value, dict):
            return False
        for key, kind in form.items():
            name = key.rstrip("!?")
            if name not in value:
                if key.endswith("!"):
                    return False
                continue
            if not (value[name] is None and key.endswith("?")) and not has_form(value[name], kind):
                return False
        return "*" not in form or all(has_form(item, form["*"]) for item in value.values())
    if isinstance(value, bool):
        return form is bool
    return isinstance(value, form)
