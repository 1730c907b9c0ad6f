"""Combinations of settings that privacy, defences and screening refuse."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedunseen.core.parameters import is_statistic
from fedunseen.core.registry import find
from fedunseen.experiment.rules.base import ConfigFacts, ModelFacts, PresenceFacts, Rule, first

SEVERAL_LOSSES: Rule[ConfigFacts] = Rule(
    "screening-several-losses",
    lambda c: c.has("screening") and c.losses != 1,
    problem=(
        "screening.name = {screening.name!r} judges the features that one loss is computed from, "
        "and method.name = {method.name!r} has several or none"
    ),
    remedy="choose another method, for example fedzsl",
    example={"screening.name": "magnitude"},
    preset="digit-pairs-clswgan",
)
"""Asked when the experiment is read, and again of the model that is made."""


def _check_defence(p: PresenceFacts) -> None:
    """Let the defence refuse a number of replies; with private noise it judges each reply by
    itself.
    """
    if p.has("defence") and not p.has("privacy"):
        defence = find("defence", p.experiment.defence.name)(p.experiment.defence)
        for round, drawn in p.drawn().items():
            defence.check(drawn, round)


READING: Sequence[Rule[ConfigFacts]] = (
    Rule(
        "client-privacy-of-sums",
        lambda c: not c.method.trained and c.experiment.privacy.name == "client-level",
        problem=(
            "privacy.name = 'client-level' bounds what clients train, but method.name = "
            "{method.name!r} is solved from sums"
        ),
        remedy="set it to 'sample-level', or choose a method that is trained, for example fedzsl",
        example={
            "evaluation.selection": "last",
            "privacy.name": "client-level",
            "privacy.epsilon": 8,
            "privacy.clip": 1,
        },
        preset="digit-pairs-gaussian",
    ),
    Rule(
        "sample-privacy-of-training",
        lambda c: c.experiment.privacy.name == "sample-level" and c.method.trained,
        problem=(
            "privacy.name = 'sample-level' is about sums over samples, but method.name = "
            "{method.name!r} trains"
        ),
        remedy="set it to 'client-level', or choose a method in closed form, for example gaussian",
        example={
            "evaluation.selection": "last",
            "privacy.name": "sample-level",
            "privacy.clip": 1.0,
            "privacy.epsilon": 1.0,
        },
    ),
    Rule(
        "two-bounds-on-samples",
        lambda c: (
            c.experiment.privacy.name == "sample-level" and c.get("method", "clip_norm") is not None
        ),
        problem=(
            "privacy.clip bounds the norm of a sample under privacy.name = 'sample-level', and so "
            "does method.clip_norm"
        ),
        remedy="leave method.clip_norm out",
        example={
            "evaluation.selection": "last",
            "privacy.name": "sample-level",
            "privacy.clip": 1.0,
            "privacy.epsilon": 1.0,
            "method.clip_norm": 1.0,
        },
        preset="digit-pairs-gaussian",
    ),
    Rule(
        "sample-privacy-of-large-classes",
        lambda c: (
            c.experiment.privacy.name == "sample-level"
            and (c.get("method", "min_samples") or 1) > 1
        ),
        problem=(
            "privacy.name = 'sample-level' is about sums over all samples, and method.min_samples "
            "= {method.min_samples} leaves classes out by their exact counts"
        ),
        remedy="leave method.min_samples out: the noise hides single samples",
        example={
            "evaluation.selection": "last",
            "privacy.name": "sample-level",
            "privacy.clip": 1.0,
            "privacy.epsilon": 1.0,
            "method.min_samples": 5,
        },
        preset="digit-pairs-gaussian",
    ),
    Rule(
        "sample-privacy-of-rounds",
        lambda c: c.experiment.privacy.name == "sample-level" and c.experiment.strategy.rounds > 1,
        problem=(
            "privacy.name = 'sample-level' accounts for sums that are released once, not for those "
            "of {strategy.rounds} rounds"
        ),
        remedy="set strategy.rounds to 1, without partition.join and partition.leave",
        example={
            "evaluation.selection": "last",
            "privacy.name": "sample-level",
            "privacy.clip": 1.0,
            "privacy.epsilon": 1.0,
            "strategy.rounds": 2,
            "partition.join": {"1": 1},
        },
        preset="digit-pairs-gaussian",
    ),
    Rule(
        "privacy-needs-mean",
        lambda c: c.has("privacy") and not c.strategy.merges_by_mean,
        problem=(
            "privacy.name = {privacy.name!r} protects the mean of the updates, but strategy.name = "
            "{strategy.name!r} takes more than that from its clients"
        ),
        remedy="choose fedavg, fedavg-decay, fedprox or moon",
        example={
            "evaluation.selection": "last",
            "privacy.name": "client-level",
            "privacy.epsilon": 8,
            "privacy.clip": 1,
            "strategy.name": "scaffold",
        },
    ),
    Rule(
        "privacy-weights",
        lambda c: c.has("privacy") and c.experiment.strategy.weights == "samples",
        problem=(
            "privacy.name = {privacy.name!r} cannot weight clients by how many samples they have, "
            "which is private"
        ),
        remedy="set strategy.weights to 'classes' or 'uniform'",
        example={
            "evaluation.selection": "last",
            "privacy.name": "client-level",
            "privacy.epsilon": 8,
            "privacy.clip": 1,
            "strategy.weights": "samples",
        },
    ),
    Rule(
        "privacy-validation",
        lambda c: c.has("privacy") and c.evaluation.selection == "validation",
        problem=(
            "privacy.name = {privacy.name!r} spends its budget in every round, and "
            "evaluation.selection = 'validation' trains one more run on the same data"
        ),
        remedy="set it to 'last'",
        example={"privacy.name": "client-level", "privacy.epsilon": 8, "privacy.clip": 1},
    ),
    Rule(
        "privacy-answers",
        lambda c: (
            c.experiment.privacy.name == "sample-level" and c.evaluation.confidence == "asking"
        ),
        problem=(
            "privacy.name = {privacy.name!r} adds noise to statistics, and evaluation.confidence = "
            "'asking' asks for counts of answers, which have none"
        ),
        remedy="set evaluation.confidence to 'draws'",
        example={
            "evaluation.selection": "last",
            "privacy.name": "sample-level",
            "privacy.epsilon": 8,
            "privacy.clip": 1,
            "evaluation.confidence": "asking",
        },
        preset="digit-pairs-gaussian",
    ),
    SEVERAL_LOSSES,
    Rule(
        "defence-unbounded",
        lambda c: c.has("defence") and c.strategy.lengths == "model",
        problem=(
            "defence.name = {defence.name!r} cannot bound what strategy.name = {strategy.name!r} "
            "merges, which divides every update by the steps that its client says it took"
        ),
        remedy="choose another strategy, for example fedavg",
        example={"defence.name": "median", "strategy.name": "fednova"},
    ),
)

# Noise may turn a running variance negative: "privacy-of-statistics".
MODEL: Sequence[Rule[ModelFacts]] = (
    SEVERAL_LOSSES,
    Rule(
        "defence-without-scores",
        lambda m: m.asks_scores and (m.model.generates or m.task.name != "zero-shot"),
        problem=(
            "defence.name = {defence.name!r} asks the merged model for scores of classes, which "
            "method.name = {method.name!r} has only after training classifiers or learning them "
            "from examples"
        ),
        remedy="choose another defence",
        example={"evaluation.selection": "last", "defence.name": "class-probes"},
        preset="digit-pairs-clswgan",
    ),
    Rule(
        "privacy-with-defence",
        lambda m: (
            m.has("privacy")
            and m.has("defence")
            and not find("defence", m.experiment.defence.name)(m.experiment.defence).per_client
        ),
        problem=(
            "privacy.name = {privacy.name!r} needs a defence that judges every update by itself, "
            "which defence.name = {defence.name!r} does not as it is set"
        ),
        remedy="choose 'norm-clip' with a defence.bound, or 'none'",
        example={
            "evaluation.selection": "last",
            "privacy.name": "client-level",
            "privacy.epsilon": 8,
            "privacy.clip": 1,
            "defence.name": "median",
        },
    ),
    Rule(
        "privacy-of-statistics",
        lambda m: m.has("privacy") and first("statistic", filter(is_statistic, m.params)),
        problem=(
            "privacy.name = {privacy.name!r} cannot protect running statistics ({statistic!r}), "
            "which noise may turn negative"
        ),
        remedy="choose an encoder without BatchNorm, for example encoder.norm = 'group'",
        example={
            "evaluation.selection": "last",
            "privacy.name": "client-level",
            "privacy.epsilon": 8,
            "privacy.clip": 1,
            "data.name": "arrays",
            "data.features": [],
            "encoder.name": "conv4",
            "encoder.norm": "batch",
        },
        needs="images",
    ),
)

PRESENCE: Sequence[Rule[PresenceFacts]] = (
    Rule(
        "defence-too-few-clients",
        _check_defence,
        problem=(
            "defence.name = {defence.name!r} compares the updates of more clients than a round has"
        ),
        remedy="lower its settings, choose another defence, or let more clients take part",
        example={"defence.name": "krum", "partition.clients": 4},
    ),
)

RULES: Mapping[type[ConfigFacts], Sequence[Rule[Any]]] = {
    ConfigFacts: READING,
    ModelFacts: MODEL,
    PresenceFacts: PRESENCE,
}
