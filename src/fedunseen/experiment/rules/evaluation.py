"""How a round and settings are chosen, when training stops, and what is measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedunseen.experiment.rules.base import ConfigFacts, Rule

FIXED = ("run", "evaluation", "data", "encoder", "partition", "privacy")


def _fixed(c: ConfigFacts) -> dict[str, Any] | None:
    """Return a setting that all choices have to share."""
    keys = [key for key in c.experiment.evaluation.choose if key.split(".")[0] in FIXED]
    return {"key": keys[0]} if keys else None


def _empty(c: ConfigFacts) -> dict[str, Any] | None:
    """Return a setting without a value to choose."""
    keys = [key for key, values in c.experiment.evaluation.choose.items() if not values]
    return {"key": keys[0]} if keys else None


READING: Sequence[Rule[ConfigFacts]] = (
    Rule(
        "choose-without-validation",
        lambda c: c.experiment.evaluation.choose and c.experiment.evaluation.selection != "validation",
    ),
    Rule(
        "stop-without-validation",
        lambda c: c.experiment.strategy.stop_after is not None and c.experiment.evaluation.selection != "validation",
    ),
    Rule("stop-after-all-rounds", lambda c: (c.experiment.strategy.stop_after or 0) >= c.experiment.strategy.rounds),
    Rule(
        "stop-between-measurements",
        lambda c: (
            c.experiment.strategy.stop_after is not None
            and c.experiment.strategy.stop_after < (c.experiment.evaluation.every or 0)
        ),
    ),
    Rule("every-round-measured", lambda c: (c.experiment.evaluation.every or 1) > 1, sections=("attack", "growth")),
    Rule(
        "factor-without-calibration",
        lambda c: c.experiment.evaluation.factor is not None and c.experiment.evaluation.calibration == "none",
    ),
    Rule(
        "factor-without-unseen-classes", lambda c: c.experiment.evaluation.factor is not None and not c.method.zero_shot
    ),
    Rule("choose-with-task", lambda c: c.experiment.evaluation.choose and not c.task.chooses_settings),
    Rule("choose-fixed-setting", _fixed),
    Rule("choose-from-nothing", _empty),
)
