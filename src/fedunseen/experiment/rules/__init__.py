"""What goes with what: every combination of choices that is refused.

One pair of files a feature: the ``.py`` says when a rule applies, the ``.toml`` has the sentence, the remedy and an
example. The first rule that applies refuses. A single wrong setting is refused by its own section (pydantic), and what
one method alone needs by that method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedunseen.core.errors import ExperimentError
from fedunseen.experiment.rules import closed_form, data, deployment, evaluation, growth, merging, privacy, threats
from fedunseen.experiment.rules.base import (
    ConfigFacts,
    DataFacts,
    EncoderFacts,
    Facts,
    ModelFacts,
    PresenceFacts,
    Rule,
    StartFacts,
)

__all__ = [
    "OFFLINE", "RULES", "ConfigFacts", "DataFacts", "EncoderFacts", "ModelFacts", "PresenceFacts", "StartFacts",
    "check",
]  # fmt: skip

RULES: Mapping[type[ConfigFacts], Sequence[Rule[Any]]] = {
    ConfigFacts: (
        *closed_form.READING, *merging.READING, *privacy.READING, *threats.READING, *deployment.READING,
        *evaluation.READING, *data.READING, *growth.READING,
    ),
    StartFacts: deployment.START,
    EncoderFacts: data.ENCODER,
    DataFacts: data.DATA,
    ModelFacts: (*data.MODEL, *closed_form.MODEL, *merging.MODEL, *threats.MODEL, *privacy.MODEL),
    PresenceFacts: (*data.PRESENCE, *threats.PRESENCE, *privacy.PRESENCE),
}  # fmt: skip
"""By the facts that they are asked about."""

OFFLINE = deployment.OFFLINE


def check(facts: Facts, rules: Sequence[Rule[Facts]] | None = None) -> None:
    """Ask the rules about these facts, by default all that are about such facts."""
    for rule in RULES[type(facts)] if rules is None else rules:
        if sentence := rule.refusal(facts):
            raise ExperimentError(sentence, rule.code)
