"""Noise on what clients send, and masks over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedunseen.core.parameters import is_statistic
from fedunseen.core.registry import find
from fedunseen.experiment.rules.base import ConfigFacts, ModelFacts, PresenceFacts, Rule

READING: Sequence[Rule[ConfigFacts]] = (
    Rule("privacy-needs-mean", lambda c: c.has("privacy") and not c.strategy.merges_by_mean),
    Rule("privacy-weights", lambda c: c.has("privacy") and c.experiment.strategy.weights == "samples"),
    Rule("privacy-validation", lambda c: c.has("privacy") and c.experiment.evaluation.selection == "validation"),
    Rule("masks-without-merging", lambda c: c.masked and not c.merging),
    Rule("masks-need-mean", lambda c: c.masked and c.method.trained and not c.strategy.merges_by_mean),
    Rule("masks-with-noise-of-some", lambda c: c.masked and c.has("privacy") and c.experiment.strategy.fraction < 1),
    Rule("masks-with-defence", lambda c: c.masked and c.has("defence")),
    Rule("masks-with-client-models", lambda c: c.masked and c.experiment.evaluation.clients),
    Rule("masks-with-rounds-of-sums", lambda c: c.masked and not c.method.trained and c.experiment.strategy.rounds > 1),
    Rule("masks-with-exclusive-peers", lambda c: c.masked and c.get("method", "exclusive")),
    Rule("masks-with-growth", lambda c: c.masked and c.has("growth")),
    Rule("masks-with-compression", lambda c: c.masked and c.has("compression")),
    Rule("masks-with-start", lambda c: c.masked and c.starts_closed),
)


def _statistics(m: ModelFacts) -> dict[str, Any] | None:
    """Return a running statistic among the parameters that noise would change; noise may turn a variance negative."""
    statistic = next(filter(is_statistic, m.params), None) if m.has("privacy") else None
    return {"statistic": statistic} if statistic else None


MODEL: Sequence[Rule[ModelFacts]] = (
    Rule(
        "privacy-with-defence",
        lambda m: (
            m.has("privacy")
            and m.has("defence")
            and not find("defence", m.experiment.defence.name)(m.experiment.defence).per_client
        ),
    ),
    Rule("privacy-of-statistics", _statistics),
)


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
    Rule("masks-too-few-clients", _too_few),
    Rule("masks-of-changing-clients", _varies),
    Rule("masks-too-many-clients", _too_many),
)
