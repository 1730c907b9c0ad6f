"""Attacks, screening of samples, and defences."""

from __future__ import annotations

from collections.abc import Sequence

from fedunseen.attacks.base import AttackSettings, parse_rounds
from fedunseen.core.registry import find
from fedunseen.experiment.rules.base import ConfigFacts, ModelFacts, PresenceFacts, Rule


def _begins_late(c: ConfigFacts) -> bool:
    attack, rounds = c.experiment.attack, c.experiment.strategy.rounds
    return isinstance(attack, AttackSettings) and min((r for r, _ in parse_rounds(attack.rounds)), default=1) > rounds


SEVERAL_LOSSES: Rule[ConfigFacts] = Rule("screening-several-losses", lambda c: c.has("screening") and c.losses != 1)
"""Asked when the experiment is read, and again of the model that is made."""

READING: Sequence[Rule[ConfigFacts]] = (
    Rule("threat-without-merging", lambda c: not c.merging, sections=("attack", "screening")),
    Rule("threat-of-episodes", lambda c: not c.task.attackable, sections=("attack", "screening")),
    SEVERAL_LOSSES,
    Rule("attack-too-late", _begins_late),
    Rule(
        "attack-needs-last-round",
        lambda c: isinstance(c.experiment.attack, AttackSettings) and c.experiment.evaluation.selection != "last",
    ),
    Rule("defence-unbounded", lambda c: c.has("defence") and c.strategy.lengths == "model"),
)

MODEL: Sequence[Rule[ModelFacts]] = (
    SEVERAL_LOSSES,
    Rule("defence-without-scores", lambda m: m.asks_scores and (m.model.generates or m.task.name != "zero-shot")),
)


def _check_defence(p: PresenceFacts) -> None:
    """Let the defence refuse a number of replies; with private noise it judges each reply by itself."""
    if p.has("defence") and not p.has("privacy"):
        defence = find("defence", p.experiment.defence.name)(p.experiment.defence)
        for round, drawn in p.drawn().items():
            defence.check(drawn, round)


PRESENCE: Sequence[Rule[PresenceFacts]] = (Rule("defence-too-few-clients", _check_defence),)
