"""Attacks, screening of samples, and defences."""

from __future__ import annotations

from collections.abc import Sequence

from fedunseen.core.registry import find
from fedunseen.experiment.rules.base import ConfigFacts, ModelFacts, PresenceFacts, Rule
from fedunseen.threats.attacks import AttackSettings, parse_rounds

LAST = {"evaluation.selection": "last"}


def _begins_late(c: ConfigFacts) -> bool:
    attack, rounds = c.experiment.attack, c.experiment.strategy.rounds
    return isinstance(attack, AttackSettings) and min((r for r, _ in parse_rounds(attack.rounds)), default=1) > rounds


SEVERAL_LOSSES: Rule[ConfigFacts] = Rule(
    code="screening-several-losses",
    when=lambda c: c.has("screening") and c.losses != 1,
    problem="screening.name = {screening.name!r} judges the features that one loss is computed from, and method.name = "
    "{method.name!r} has several or none",
    remedy="choose another method, for example fedzsl",
    preset="digit-pairs-clswgan",
    example={"screening.name": "magnitude"},
)
"""Asked when the experiment is read, and again of the model that is made."""

READING: Sequence[Rule[ConfigFacts]] = (
    Rule(
        code="threat-without-merging",
        sections=("attack", "screening"),
        when=lambda c: not c.merging,
        problem="{section}.name = {name!r} is about clients whose updates are merged, which strategy.name = "
        "{strategy.name!r} does not do",
        remedy="choose another strategy, for example fedavg",
        example={**LAST, "attack.name": "sign-flip", "strategy.name": "centralised"},
    ),
    Rule(
        code="threat-of-episodes",
        sections=("attack", "screening"),
        when=lambda c: not c.task.attackable,
        problem="{section}.name = {name!r} is not available for {facts.task.name} methods such as method.name = "
        "{method.name!r}, which number classes by their place in an episode",
        remedy="leave [{section}] out",
        preset="digit-pairs-few-shot",
        example={"attack.name": "sign-flip"},
    ),
    SEVERAL_LOSSES,
    Rule(
        code="attack-too-late",
        when=_begins_late,
        problem="attack.rounds = {attack.rounds!r} begins after the last of {strategy.rounds} rounds",
        remedy="let the attack begin earlier, or run more rounds (strategy.rounds)",
        example={**LAST, "attack.name": "sign-flip", "attack.rounds": "50"},
    ),
    Rule(
        code="attack-needs-last-round",
        when=lambda c: isinstance(c.experiment.attack, AttackSettings) and c.experiment.evaluation.selection != "last",
        problem="attack.name = {attack.name!r} is measured round by round to the last one, and with "
        "evaluation.selection = {evaluation.selection!r} a round before the attack could be chosen",
        remedy="set evaluation.selection to 'last'",
        example={"attack.name": "sign-flip", "attack.rounds": "3"},
    ),
    Rule(
        code="defence-unbounded",
        when=lambda c: c.has("defence") and c.strategy.lengths == "model",
        problem="defence.name = {defence.name!r} cannot bound what strategy.name = {strategy.name!r} merges, which "
        "divides every update by the steps that its client says it took",
        remedy="choose another strategy, for example fedavg",
        example={"defence.name": "median", "strategy.name": "fednova"},
    ),
)

MODEL: Sequence[Rule[ModelFacts]] = (
    SEVERAL_LOSSES,
    Rule(
        code="defence-without-scores",
        when=lambda m: m.asks_scores and (m.model.generates or m.task.name != "zero-shot"),
        problem="defence.name = {defence.name!r} asks the merged model for scores of classes, which method.name = "
        "{method.name!r} has only after training classifiers or learning them from examples",
        remedy="choose another defence",
        preset="digit-pairs-clswgan",
        example={**LAST, "defence.name": "class-probes"},
    ),
)


def _check_defence(p: PresenceFacts) -> None:
    """Let the defence refuse a number of replies; with private noise it judges each reply by itself."""
    if p.has("defence") and not p.has("privacy"):
        defence = find("defence", p.experiment.defence.name)(p.experiment.defence)
        for round, drawn in p.drawn().items():
            defence.check(drawn, round)


PRESENCE: Sequence[Rule[PresenceFacts]] = (
    Rule(
        code="defence-too-few-clients",
        when=_check_defence,
        problem="defence.name = {defence.name!r} compares the updates of more clients than a round has",
        remedy="lower its settings, choose another defence, or let more clients take part",
        example={"defence.name": "bulyan", "partition.clients": 5},
    ),
)
