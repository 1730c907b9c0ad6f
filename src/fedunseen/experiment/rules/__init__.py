"""What goes with what: every combination of choices that is refused.

The ``.py`` files say when a rule applies, the ``.toml`` files have its sentence, remedy and example, a file a feature.
The first rule that applies refuses. A single wrong setting is refused by its own section (pydantic), and what one
method alone needs by that method.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fedunseen.core.errors import ExperimentError
from fedunseen.experiment.rules.assembling import DATA, ENCODER, MODEL, PRESENCE
from fedunseen.experiment.rules.base import (
    ConfigFacts,
    DataFacts,
    EncoderFacts,
    Facts,
    ModelFacts,
    PresenceFacts,
    Rule,
    StartFacts,
)  # fmt: skip
from fedunseen.experiment.rules.reading import OFFLINE, READING, START

__all__ = [
    "OFFLINE", "RULES", "ConfigFacts", "DataFacts", "EncoderFacts", "ModelFacts", "PresenceFacts", "StartFacts",
    "check",
]  # fmt: skip

RULES: Mapping[type[ConfigFacts], Sequence[Rule[Any]]] = {
    ConfigFacts: READING, StartFacts: START, EncoderFacts: ENCODER, DataFacts: DATA, ModelFacts: MODEL,
    PresenceFacts: PRESENCE,
}  # fmt: skip
"""By the facts that they are asked about."""


def check(facts: Facts, rules: Sequence[Rule[Facts]] | None = None) -> None:
    """Ask the rules about these facts, by default all that are about such facts."""
    for rule in RULES[type(facts)] if rules is None else rules:
        if sentence := rule.refusal(facts):
            raise ExperimentError(sentence, rule.code)
