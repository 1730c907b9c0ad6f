"""Methods that are solved from sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedunseen.experiment.rules.base import ConfigFacts, ModelFacts, Rule

LAST = {"evaluation.selection": "last"}
SAMPLE_LEVEL = {**LAST, "privacy.name": "sample-level", "privacy.clip": 1.0, "privacy.epsilon": 1.0}


def _kept_out(c: ConfigFacts) -> dict[str, Any] | None:
    """Return what a start in closed form has no place for."""
    kept = ["method.hidden"] if c.get("method", "hidden") else []
    kept += ["strategy.shared"] if tuple(c.experiment.strategy.shared) != ("*",) else []
    if not c.starts_closed or not (kept or not c.strategy.merges):
        return None
    return {"what": " and ".join(kept) or f"strategy.name = {c.experiment.strategy.name!r}, which merges nothing,"}


READING: Sequence[Rule[ConfigFacts]] = (
    Rule(
        code="client-privacy-of-sums",
        when=lambda c: not c.method.trained and c.experiment.privacy.name == "client-level",
        problem="privacy.name = 'client-level' bounds what clients train, but method.name = {method.name!r} is solved "
        "from sums",
        remedy="set it to 'sample-level', or choose a method that is trained, for example fedzsl",
        preset="digit-pairs-gaussian",
        example={**LAST, "privacy.name": "client-level", "privacy.epsilon": 8, "privacy.clip": 1},
    ),
    Rule(
        code="updates-of-sums",
        sections=("attack", "screening", "defence", "compression"),
        when=lambda c: not c.method.trained,
        problem="{section}.name = {name!r} is about clients that train, but method.name = {method.name!r} is solved "
        "from sums",
        remedy="leave [{section}] out, or choose a method that is trained, for example fedzsl",
        preset="digit-pairs-gaussian",
        example={"defence.name": "median"},
    ),
    Rule(
        code="sample-privacy-of-training",
        when=lambda c: c.experiment.privacy.name == "sample-level" and c.method.trained,
        problem="privacy.name = 'sample-level' is about sums over samples, but method.name = {method.name!r} trains",
        remedy="set it to 'client-level', or choose a method in closed form, for example gaussian",
        example=SAMPLE_LEVEL,
    ),
    Rule(
        code="two-bounds-on-samples",
        when=lambda c: c.experiment.privacy.name == "sample-level" and c.get("method", "clip_norm") is not None,
        problem="privacy.clip bounds the norm of a sample under privacy.name = 'sample-level'",
        remedy="leave method.clip_norm out",
        preset="digit-pairs-gaussian",
        example={**SAMPLE_LEVEL, "method.clip_norm": 1.0},
    ),
    Rule(
        code="sample-privacy-of-rounds",
        when=lambda c: c.experiment.privacy.name == "sample-level" and c.experiment.strategy.rounds > 1,
        problem="privacy.name = 'sample-level' accounts for sums that are released once, not for those of "
        "{strategy.rounds} rounds",
        remedy="set strategy.rounds to 1, without partition.join and partition.leave",
        preset="digit-pairs-gaussian",
        example={**SAMPLE_LEVEL, "strategy.rounds": 2, "partition.join": {"1": 1}},
    ),
    Rule(
        code="rounds-of-sums",
        when=lambda c: not c.method.trained
        and c.experiment.strategy.rounds > 1
        and not (c.experiment.partition.join or c.experiment.partition.leave or c.has("growth")),
        problem="method.name = {method.name!r} is solved from sums, which clients send once",
        remedy="leave strategy.rounds out, or set it to 1 (more rounds are for partitions with clients that come late, "
        "partition.join)",
        example={"method.name": "eszsl", "strategy.rounds": 3},
    ),
    Rule(
        code="rounds-of-totals",
        when=lambda c: c.get("method", "retention") == "total" and c.experiment.strategy.rounds > 1,
        problem="method.retention = 'total' keeps no client's own sums, so that no client can come late or leave",
        remedy="set strategy.rounds to 1 and leave partition.join and partition.leave out, or method.retention = "
        "'each'",
        preset="digit-pairs-gaussian",
        example={"method.retention": "total", "strategy.rounds": 2, "partition.join": {"1": 1}},
    ),
    Rule(
        code="start-with-section",
        sections=("attack", "screening", "defence", "privacy", "growth"),
        when=lambda c: c.starts_closed,
        problem="method.start = 'closed-form' lets clients send sums before they train, which {section}.name = "
        "{name!r} does not cover",
        remedy="leave one of the two out",
        example={**LAST, "method.start": "closed-form", "method.hidden": [], "defence.name": "median"},
    ),
    Rule(
        code="start-not-linear",
        when=_kept_out,
        problem="method.start = 'closed-form' is one linear model for all clients to begin with",
        remedy="leave {what} out",
        example={"method.start": "closed-form"},
    ),
)  # fmt: skip

MODEL: Sequence[Rule[ModelFacts]] = (
    Rule(
        code="start-trained-encoder",
        when=lambda m: m.starts_closed and m.model.backbone.trained,
        problem="method.start = 'closed-form' is a linear model of features that do not change, but encoder.name = "
        "{encoder.name!r} is trained",
        remedy="name a frozen one, for example tflite",
        example={"method.start": "closed-form", "method.hidden": [], "encoder.name": "conv", "data.features": []},
    ),
)
