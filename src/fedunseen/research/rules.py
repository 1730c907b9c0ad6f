"""Combinations of settings that attacks refuse."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedunseen.experiment.rules.base import ConfigFacts, Rule
from fedunseen.research.attacks.base import AttackSettings, parse_rounds


def _begins_late(c: ConfigFacts) -> bool:
    attack = c.experiment.attack
    rounds = c.experiment.strategy.rounds
    return (
        isinstance(attack, AttackSettings)
        and min((r for r, _ in parse_rounds(attack.rounds)), default=1) > rounds
    )


READING: Sequence[Rule[ConfigFacts]] = (
    Rule(
        "threat-without-merging",
        lambda c: not c.merging,
        sections=("attack", "screening"),
        problem=(
            "{section}.name = {name!r} is about clients whose updates are merged, which "
            "strategy.name = {strategy.name!r} does not do"
        ),
        remedy="choose another strategy, for example fedavg",
        example={
            "evaluation.selection": "last",
            "attack.name": "sign-flip",
            "strategy.name": "centralised",
        },
    ),
    Rule(
        "threat-of-episodes",
        lambda c: not c.task.attackable,
        sections=("attack", "screening"),
        problem=(
            "{section}.name = {name!r} is not available for {facts.task.name} methods such as "
            "method.name = {method.name!r}, which number classes by their place in an episode"
        ),
        remedy="leave [{section}] out",
        example={"attack.name": "sign-flip"},
        preset="digit-pairs-few-shot",
    ),
    Rule(
        "attack-too-late",
        _begins_late,
        problem=(
            "attack.rounds = {attack.rounds!r} begins after the last of {strategy.rounds} rounds"
        ),
        remedy="let the attack begin earlier, or run more rounds (strategy.rounds)",
        example={
            "evaluation.selection": "last",
            "attack.name": "sign-flip",
            "attack.rounds": "150",
        },
    ),
    Rule(
        "attack-needs-last-round",
        lambda c: (
            isinstance(c.experiment.attack, AttackSettings) and c.evaluation.selection != "last"
        ),
        problem=(
            "attack.name = {attack.name!r} is measured round by round to the last one, and with "
            "evaluation.selection = {evaluation.selection!r} a round before the attack could be "
            "chosen"
        ),
        remedy="set evaluation.selection to 'last'",
        example={"attack.name": "sign-flip", "attack.rounds": "3"},
    ),
    Rule(
        "compression-of-attacks",
        lambda c: c.has("attack") and c.has("compression"),
        problem=(
            "attack.name = {attack.name!r} forges updates as clients make them, and "
            "compression.name = {compression.name!r} changes them on their way"
        ),
        remedy="leave one of them out",
        example={
            "evaluation.selection": "last",
            "compression.name": "8-bit",
            "attack.name": "sign-flip",
        },
    ),
)

RULES: Mapping[type[ConfigFacts], Sequence[Rule[Any]]] = {ConfigFacts: READING}
