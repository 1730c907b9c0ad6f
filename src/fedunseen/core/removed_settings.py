"""Settings that earlier versions had, and that their run directories and models still name."""

from collections.abc import Mapping
from typing import Any

REMOVED: Mapping[str, Mapping[str, Any]] = {
    "data": {
        "novel": [5, 6, 7, 8, 9],
        "split_seed": 0,
        "unseen_classes": 10,
        "words": 20,
    },
    "encoder": {"carry": 20.0, "hidden": {"gru": 128}, "smallest": {"conv": 2, "conv4": 1}},
    "method": {
        "agree": 0.1,
        "batch_tasks": "auto",
        "betas": [0.5, 0.999],
        "center": 0.5,
        "depth": 2,
        "disagree": 0.1,
        "heads": 4,
        "mi_in_stages": True,
        "passes": 2,
        "penalty": 10.0,
        "refine_lr": 1e-4,
        "scale": {"fedzsl": 1.0, "distzsl": 1.0},
        "softmax_epochs": 50,
        "softmax_lr": 1e-3,
        "text_attributes": 5,
        "text_scale": 1.0,
    },
    "strategy": {"update_scale": 1.0},
    "attack": {"objects": []},
    "defence": {
        "confidence": 0.9,
        "free": 400,
        "loud": 3.0,
        "multiple": {"class-probes": 1.5, "clip-noise": 1.0, "norm-clip": 1.0},
        "per_class": 8,
        "pulled": 0.4,
        "stolen": 0.1,
    },
    "engine": {"precision": "fp32", "speeds": "log-normal"},
}
"""Section -> key -> the value that holds today; a table where only some choices had the key, or
each has a value of its own."""


def without_removed(section: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored settings of a section without removed ones that say what holds today.

    One that says something else stays: the section refuses it as an unknown key.
    """
    remaining = dict(settings)
    for key, value in REMOVED.get(section, {}).items():
        today = value.get(str(settings.get("name"))) if isinstance(value, Mapping) else value
        if today is not None and settings.get(key) == today:
            del remaining[key]
    return remaining
