"""What goes with what: every combination of choices that is refused.

A rule says when it applies, its sentence, the remedy and an example. The core's rules are here,
those of a folder beside the core in its own module ``rules``. A further file of this folder is
found by itself: its ``RULES`` lists rules about settings, or has rules by the facts that they are
asked about. The first rule that applies refuses. A single wrong setting is refused by its own
section (pydantic), and what one method alone needs by that method.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from fedunseen.core.errors import ExperimentError
from fedunseen.core.extensions import added, further_modules
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
)
from fedunseen.experiment.rules.reading import READING, START

__all__ = [
    "ConfigFacts",
    "DataFacts",
    "EncoderFacts",
    "ModelFacts",
    "PresenceFacts",
    "StartFacts",
    "all_rules",
    "check",
]

SHARED = ("assembling", "base", "reading")
"""The modules of this folder whose rules are listed below, or that have none."""

_CORE: Mapping[type[ConfigFacts], Sequence[Rule[Any]]] = {
    ConfigFacts: READING,
    StartFacts: START,
    EncoderFacts: ENCODER,
    DataFacts: DATA,
    ModelFacts: MODEL,
    PresenceFacts: PRESENCE,
}


@cache
def all_rules() -> Mapping[type[ConfigFacts], Sequence[Rule[Any]]]:
    """Return all rules by the facts that they are asked about: the core's first."""
    files = [f"{__name__}.{module}" for module in further_modules(__name__)]
    further_rules = []
    for place in (*files, *added("RULES")):
        rules = import_module(place).RULES
        if isinstance(rules, Rule):
            raise TypeError(f"RULES of {place} is one rule: write (Rule(...),), with the comma")
        further_rules.append(rules if isinstance(rules, Mapping) else {ConfigFacts: rules})
    return {
        facts: (*core_rules, *(rule for table in further_rules for rule in table.get(facts, ())))
        for facts, core_rules in _CORE.items()
    }


def check(facts: Facts, rules: Sequence[Rule[Facts]] | None = None) -> None:
    """Ask the rules about these facts, by default all that are about such facts.

    Raises:
        ExperimentError: a rule applies; the error has its code.
    """
    for rule in all_rules()[type(facts)] if rules is None else rules:
        if sentence := rule.refusal(facts):
            raise ExperimentError(sentence, rule.code)
