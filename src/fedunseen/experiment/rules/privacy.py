"""Noise on what clients send, and masks over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedunseen.core.parameters import is_statistic
from fedunseen.core.registry import find
from fedunseen.experiment.rules.base import ConfigFacts, ModelFacts, PresenceFacts, Rule

LAST = {"evaluation.selection": "last"}
NOISE = {"privacy.name": "client-level", "privacy.epsilon": 8, "privacy.clip": 1}
MASKED = {"privacy.aggregation": "masked"}

READING: Sequence[Rule[ConfigFacts]] = (
    Rule(
        code="privacy-needs-mean",
        when=lambda c: c.has("privacy") and not c.strategy.merges_by_mean,
        problem="privacy.name = {privacy.name!r} protects the mean of the updates, but strategy.name = "
        "{strategy.name!r} takes more than that from its clients",
        remedy="choose fedavg, fedavg-decay, fedprox or moon",
        example={**LAST, **NOISE, "strategy.name": "scaffold"},
    ),
    Rule(
        code="privacy-weights",
        when=lambda c: c.has("privacy") and c.experiment.strategy.weights == "samples",
        problem="privacy.name = {privacy.name!r} cannot weight clients by how many samples they have, which is private",
        remedy="set strategy.weights to 'classes' or 'uniform'",
        example={**LAST, **NOISE, "strategy.weights": "samples"},
    ),
    Rule(
        code="privacy-validation",
        when=lambda c: c.has("privacy") and c.experiment.evaluation.selection == "validation",
        problem="privacy.name = {privacy.name!r} counts every round on the clients' data, and evaluation.selection = "
        "'validation' would train a run more on them",
        remedy="set it to 'last'",
        example=NOISE,
    ),
    Rule(
        code="masks-without-merging",
        when=lambda c: c.masked and not c.merging,
        problem="privacy.aggregation = 'masked' has no effect with strategy.name = {strategy.name!r}, which merges no "
        "clients' updates",
        remedy="leave it out, or choose a strategy that does",
        example={**MASKED, "strategy.name": "local"},
    ),
    Rule(
        code="masks-need-mean",
        when=lambda c: c.masked and c.method.trained and not c.strategy.merges_by_mean,
        problem="privacy.aggregation = 'masked' leaves only the weighted mean of the updates, but strategy.name = "
        "{strategy.name!r} takes more than that from its clients",
        remedy="choose another, for example fedavg",
        example={**MASKED, "strategy.name": "scaffold"},
    ),
    Rule(
        code="masks-with-noise-of-some",
        when=lambda c: c.masked and c.has("privacy") and c.experiment.strategy.fraction < 1,
        problem="privacy.name = {privacy.name!r} under privacy.aggregation = 'masked' needs every client in every "
        "round, since each adds a part of the noise",
        remedy="set strategy.fraction to 1",
        example={**LAST, **MASKED, **NOISE, "strategy.fraction": 0.5},
    ),
    Rule(
        code="masks-with-defence",
        when=lambda c: c.masked and c.has("defence"),
        problem="defence.name = {defence.name!r} judges updates one by one, which privacy.aggregation = 'masked' hides",
        remedy="leave one of the two out",
        example={**MASKED, "defence.name": "krum"},
    ),
    Rule(
        code="masks-with-client-models",
        when=lambda c: c.masked and c.experiment.evaluation.clients,
        problem="evaluation.clients measures every client's own model, which privacy.aggregation = 'masked' hides",
        remedy="leave it out",
        example={**MASKED, "evaluation.clients": True},
    ),
    Rule(
        code="masks-with-rounds-of-sums",
        when=lambda c: c.masked and not c.method.trained and c.experiment.strategy.rounds > 1,
        problem="privacy.aggregation = 'masked' adds up the sums of method.name = {method.name!r} once: those of "
        "{strategy.rounds} rounds would differ by what the party has sent that came between them",
        remedy="set strategy.rounds to 1, without partition.join and partition.leave",
        preset="digit-pairs-gaussian",
        example={**MASKED, "strategy.rounds": 3, "partition.join": {"1": 1}},
    ),
    Rule(
        code="masks-with-exclusive-peers",
        when=lambda c: c.masked and c.get("method", "exclusive"),
        problem="method.exclusive takes a client's own share out of the merged model exactly, which the rounding of "
        "privacy.aggregation = 'masked' does not allow",
        remedy="leave one of the two out",
        preset="digit-pairs-few-shot",
        example={**MASKED, "method.name": "maml-mi", "method.exclusive": True, "strategy.weights": "uniform"},
    ),
    Rule(
        code="masks-with-growth",
        when=lambda c: c.masked and c.has("growth"),
        problem="privacy.aggregation = 'masked' is laid out once, for classes that do not change, and growth.name = "
        "{growth.name!r} changes them",
        remedy="leave one of the two out",
        example={**LAST, **MASKED, "growth.name": "unknown"},
    ),
    Rule(
        code="masks-with-compression",
        when=lambda c: c.masked and c.has("compression"),
        problem="compression.name = {compression.name!r} makes updates smaller, which privacy.aggregation = 'masked' "
        "turns into words that look like noise",
        remedy="leave one of the two out",
        example={**MASKED, "compression.name": "top-k"},
    ),
    Rule(
        code="masks-with-start",
        when=lambda c: c.masked and c.starts_closed,
        problem="method.start = 'closed-form' lets clients send their sums as they are before they train, and "
        "privacy.aggregation = 'masked' is there to hide them",
        remedy="leave one of the two out",
        example={**MASKED, "method.start": "closed-form", "method.hidden": []},
    ),
)


def _statistics(m: ModelFacts) -> dict[str, Any] | None:
    """Return a running statistic among the parameters that noise would change; noise may turn a variance negative."""
    statistic = next(filter(is_statistic, m.params), None) if m.has("privacy") else None
    return {"statistic": statistic} if statistic else None


MODEL: Sequence[Rule[ModelFacts]] = (
    Rule(
        code="privacy-with-defence",
        when=lambda m: m.has("privacy")
        and m.has("defence")
        and not find("defence", m.experiment.defence.name)(m.experiment.defence).per_client,
        problem="privacy.name = {privacy.name!r} needs a defence that judges every update by itself, which "
        "defence.name = {defence.name!r} does not as it is set",
        remedy="choose 'norm-clip' with a defence.bound, or 'none'",
        example={**LAST, **NOISE, "defence.name": "median"},
    ),
    Rule(
        code="privacy-of-statistics",
        when=_statistics,
        problem="privacy.name = {privacy.name!r} cannot protect running statistics ({statistic!r}), which noise may "
        "turn negative",
        remedy="choose an encoder without BatchNorm, for example encoder.norm = 'group'",
        given="images",
        example={
            **LAST, **NOISE, "data.name": "arrays", "data.features": [], "encoder.name": "conv4",
            "encoder.norm": "batch",
        },
    ),
)  # fmt: skip


def _too_few(p: PresenceFacts) -> dict[str, Any] | None:
    """Return the first round in which fewer clients take part than a sum under masks needs."""
    if not p.masked or (p.get("data", "part") and not p.partition.remote):
        return None  # a party does not have the list of the others
    from fedunseen.secagg.enrolment import colluders, threshold

    clients = len(p.partition.clients)
    least = threshold(clients, colluders(clients))
    few = [(round, drawn) for round, drawn in p.drawn().items() if drawn < least]
    return {"clients": clients, "least": least, "round": few[0][0], "drawn": few[0][1]} if few else None


def _varies(p: PresenceFacts) -> bool:
    """Return whether two sums under masks may be of different clients, although the settings do not allow it."""
    if not p.masked or (p.get("data", "part") and not p.partition.remote):
        return False
    varies = p.experiment.strategy.fraction < 1 or len({tuple(present) for present in p.rounds().values()}) > 1
    return varies and p.experiment.privacy.dropouts == "refuse"


def _too_many(p: PresenceFacts) -> dict[str, Any] | None:
    """Return how many clients there are, if masks are not made for so many."""
    if not p.masked:
        return None
    from fedunseen.secagg.ring import PARTIES  # needs the libraries of masks

    clients = len(p.partition.clients)
    return {"clients": clients, "most": PARTIES} if clients > PARTIES else None


PRESENCE: Sequence[Rule[PresenceFacts]] = (
    Rule(
        code="masks-too-few-clients",
        when=_too_few,
        problem="privacy.aggregation = 'masked' with {clients} clients needs {least} of them in a round, and round "
        "{round} (counted from 0) has {drawn}",
        remedy="change partition or strategy.fraction",
        example={**MASKED, **LAST, "strategy.fraction": 0.4},
    ),
    Rule(
        code="masks-of-changing-clients",
        when=_varies,
        problem="privacy.aggregation = 'masked' adds up the same clients in every round, since the difference of two "
        "sums can reveal one client",
        remedy="leave partition.join, partition.leave and strategy.fraction out, or set privacy.dropouts = 'allow'",
        example={**MASKED, **LAST, "partition.join": {"4": 1}},
    ),
    Rule(
        code="masks-too-many-clients",
        when=_too_many,
        problem="privacy.aggregation = 'masked' adds up {most} clients at most, and there are {clients}",
        remedy="lower partition.clients",
        example={**MASKED, **LAST, "partition.kind": "iid", "partition.clients": 1025},
    ),
)
