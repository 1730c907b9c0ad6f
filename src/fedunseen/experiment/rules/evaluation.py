"""How a round and settings are chosen, when training stops, and what is measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedunseen.experiment.rules.base import ConfigFacts, Rule

LAST = {"evaluation.selection": "last"}
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
        code="choose-without-validation",
        when=lambda c: c.experiment.evaluation.choose and c.experiment.evaluation.selection != "validation",
        problem="evaluation.choose needs evaluation.selection = 'validation'",
        remedy="settings are chosen there",
        example={**LAST, "evaluation.choose": {"method.lr": [0.1]}},
    ),
    Rule(
        code="stop-without-validation",
        when=lambda c: (
            c.experiment.strategy.stop_after is not None and c.experiment.evaluation.selection != "validation"
        ),
        problem="strategy.stop_after = {strategy.stop_after} stops where validation classes show no gain, and "
        "evaluation.selection = {evaluation.selection!r} looks at none",
        remedy="set it to 'validation', or leave strategy.stop_after out",
        example={**LAST, "strategy.stop_after": 5},
    ),
    Rule(
        code="stop-after-all-rounds",
        when=lambda c: (c.experiment.strategy.stop_after or 0) >= c.experiment.strategy.rounds,
        problem="strategy.stop_after = {strategy.stop_after} can stop no run of {strategy.rounds} rounds",
        remedy="lower it, or raise strategy.rounds",
        example={"strategy.stop_after": 5, "strategy.rounds": 5},
    ),
    Rule(
        code="stop-between-measurements",
        when=lambda c: (
            c.experiment.strategy.stop_after is not None
            and c.experiment.strategy.stop_after < (c.experiment.evaluation.every or 0)
        ),
        problem="strategy.stop_after = {strategy.stop_after} counts rounds without gain, none of which may be measured "
        "with evaluation.every = {evaluation.every}",
        remedy="let evaluation.every be at most strategy.stop_after",
        example={"strategy.stop_after": 3, "evaluation.every": 4},
    ),
    Rule(
        code="every-round-measured",
        sections=("attack", "growth"),
        when=lambda c: (c.experiment.evaluation.every or 1) > 1,
        problem="evaluation.every = {evaluation.every} leaves rounds out, and {section}.name = {name!r} is measured "
        "round by round",
        remedy="leave evaluation.every out",
        example={**LAST, "evaluation.every": 2, "attack.name": "sign-flip"},
    ),
    Rule(
        code="factor-without-calibration",
        when=lambda c: c.experiment.evaluation.factor is not None and c.experiment.evaluation.calibration == "none",
        problem="evaluation.factor has no effect with evaluation.calibration = 'none'",
        remedy="leave one out",
        example={"evaluation.factor": 1.0, "evaluation.calibration": "none"},
    ),
    Rule(
        code="factor-without-unseen-classes",
        when=lambda c: c.experiment.evaluation.factor is not None and not c.method.zero_shot,
        problem="evaluation.factor has no effect on method.name = {method.name!r}, which recognizes no unseen class",
        remedy="leave it out",
        preset="digit-pairs-classifier",
        example={"evaluation.factor": 1.0},
    ),
    Rule(
        code="choose-with-task",
        when=lambda c: c.experiment.evaluation.choose and not c.task.chooses_settings,
        problem="evaluation.choose is not available for {facts.task.name} methods such as method.name = "
        "{method.name!r}",
        remedy="compare settings with a sweep, on validation classes (evaluation.selection = 'validation')",
        preset="omniglot-maml",
        example={"evaluation.selection": "validation", "evaluation.choose": {"method.lr": [0.1]}},
    ),
    Rule(
        code="choose-fixed-setting",
        when=_fixed,
        problem="evaluation.choose: {key!r} cannot be chosen",
        remedy="only method, strategy, defence and engine can",
        example={"evaluation.choose": {"data.name": ["digits"]}},
    ),
    Rule(
        code="choose-from-nothing",
        when=_empty,
        problem="evaluation.choose: {key!r} has no value to choose from",
        remedy="give it a few",
        example={"evaluation.choose": {"method.lr": []}},
    ),
)
